"""`fairssl new` writes what works at once and never overwrites; `fairssl check` says what is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from reference.plugin_package import OBJECTIVE, known, write_package

from fairssl import kinds, testing
from fairssl.cli import run
from fairssl.cli.new import plugin_and_test
from fairssl.types import KINDS

TEMPLATED = tuple(kind.removesuffix("s") for kind in KINDS)


def call(capsys, *args):
    code = run(list(args))
    out, err = capsys.readouterr()
    return code, out, err


def installed(project: Path) -> None:
    """The metadata that pip install -e would leave beside the project's package."""
    package = next(p.name for p in project.iterdir() if (p / "__init__.py").exists())
    info = project / f"{project.name.replace('-', '_')}-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project.name}\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text(f"[fairssl.plugins]\n{package} = {package}\n")


def files(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("kind", TEMPLATED)
def test_a_new_package_passes_its_checks_at_once(tmp_path, capsys, kind):
    assert call(capsys, "new", kind, "my_own", "--into", str(tmp_path))[0] == 0
    project = tmp_path / "fairssl-my-own"
    assert files(project) == {
        "pyproject.toml",
        "fairssl_my_own/__init__.py",
        f"fairssl_my_own/{kind}s/__init__.py",
        f"fairssl_my_own/{kind}s/my_own.py",
        "tests/test_my_own.py",
    }
    installed(project)
    with known(project):
        assert kinds.by_kind(kind).locate("my_own").package == "fairssl-my-own"
        results = testing.check(kind, "my_own")
    assert [found for found in results if found.state == "fail"] == []
    assert sum(found.state == "pass" for found in results) >= 7


def test_what_it_writes_has_our_own_style(tmp_path, capsys):
    for kind in TEMPLATED:
        for name in (f"a_rather_long_name_of_a_{kind}", f"my_{kind}"):
            assert call(capsys, "new", kind, name, "--into", str(tmp_path))[0] == 0
    ruff = Path(sys.executable).parent / "ruff"
    if not ruff.exists():
        pytest.skip("ruff is not installed")
    rules = ["--isolated", "--line-length", "120"]
    for args in (["check", *rules, "--select", "E,F,UP,B,SIM,RUF"], ["format", "--check", *rules]):
        done = subprocess.run([ruff, *args, "."], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


def test_in_a_checkout_it_writes_the_plugin_and_its_test(tmp_path, capsys, monkeypatch):
    for kind in KINDS:
        (tmp_path / "plugins" / kind).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    code, out, _ = call(capsys, "new", "objectives", "my_own")
    assert code == 0 and files(tmp_path) == {"plugins/objectives/my_own.py", "tests/plugins/test_my_own.py"}
    assert "fairssl check objective my_own" in out


@pytest.mark.parametrize(
    ("kind", "name", "reason"),
    [
        ("head", "adversary", "head 'adversary' exists already"),
        ("head", "simclr", "method 'simclr' exists already"),
        ("objective", "sofclr", "method 'sofclr' exists already"),
        ("metric", "acc", "metric 'acc' exists already"),
        ("dataset", "celeba", "dataset 'celeba' exists already"),
        ("head", "train", "--set calls a part of the core so"),
        ("head", "class", "cannot name a plugin"),
        ("head", "My-Head", "cannot name a plugin"),
        ("head", "../up", "cannot name a plugin"),
        ("head", "9lives", "cannot name a plugin"),
        ("head", "", "cannot name a plugin"),
        ("encoder", "timm", "encoder 'timm' exists already"),
        ("heat", "my_own", "did you mean 'heads'"),
    ],
)
def test_a_name_that_is_taken_or_none_is_refused(tmp_path, capsys, kind, name, reason):
    code, out, err = call(capsys, "new", kind, name, "--into", str(tmp_path))
    assert code == 2 and reason in err and not out and files(tmp_path) == set()


@pytest.mark.parametrize("existing", ["plugins/heads/my_own.py", "tests/plugins/test_my_own.py"])
def test_nothing_is_overwritten_and_nothing_half_written(tmp_path, capsys, existing):
    for kind in KINDS:
        (tmp_path / "plugins" / kind).mkdir(parents=True)
    (tmp_path / existing).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / existing).write_text("mine")
    code, _, err = call(capsys, "new", "head", "my_own", "--into", str(tmp_path))
    assert code == 2 and "exists already" in err
    assert files(tmp_path) == {existing} and (tmp_path / existing).read_text() == "mine"


def test_a_package_folder_that_exists_is_refused(tmp_path, capsys):
    (tmp_path / "fairssl-my-own").mkdir()
    code, _, err = call(capsys, "new", "head", "my_own", "--into", str(tmp_path))
    assert code == 2 and "exists already" in err and files(tmp_path) == set()


def test_a_folder_that_does_not_exist_is_refused(tmp_path, capsys):
    code, _, err = call(capsys, "new", "head", "my_own", "--into", str(tmp_path / "nowhere"))
    assert code == 2 and "is not a folder" in err


@pytest.mark.parametrize("kind", ["metric", "metrics"])
def test_check_prints_every_result_and_counts_them(capsys, kind):
    code, out, _ = call(capsys, "check", kind, "kl")
    *lines, total = out.splitlines()
    assert code == 0 and total == f"metric kl: {len(lines) - 1} pass, 0 fail, 1 skip"
    assert "skip  exchanging two groups' codes: depends on which group is declared first, as it says itself" in lines


def test_check_of_one_check_and_of_none(capsys):
    code, out, _ = call(capsys, "check", "metric", "kl", "--only", "constant scores")
    assert code == 0 and out.splitlines()[1] == "pass  constant scores"
    code, _, err = call(capsys, "check", "metric", "kl", "--only", "constant score")
    assert code == 2 and "did you mean 'constant scores'" in err


def test_check_of_a_faulty_plugin_says_why_and_exits_with_1(tmp_path, capsys):
    faulty = OBJECTIVE.replace("self.config.scale *", "(1 if z.sum() > 0 else 2) *")
    write_package(tmp_path, "stranger", {"objectives/faulty.py": faulty, "objectives/ill.py": "import no_such_thing\n"})
    with known(tmp_path):
        code, out, _ = call(capsys, "check", "objective", "faulty", "--json")
        assert code == 1
        found = {row["name"]: row for row in json.loads(out)}
        assert found["a GPU can capture its step"]["state"] == "fail"
        assert "reads a tensor back" in found["a GPU can capture its step"]["reason"]
        assert call(capsys, "check", "objective", "ill")[:2] == (
            1,
            "fail  imports: objective 'ill' does not import: ModuleNotFoundError: No module named 'no_such_thing' "
            f"({tmp_path}/stranger/objectives/ill.py)\nobjective ill: 0 pass, 1 fail, 0 skip\n",
        )


def test_check_of_an_unknown_name_and_of_a_composition(capsys):
    code, _, err = call(capsys, "check", "head", "adversry")
    assert code == 2 and "did you mean 'adversary'" in err
    code, out, _ = call(capsys, "check", "method", "simclr+ccl:0.3+adversary:0.1")
    assert code == 0 and "skip  what it sees agrees with its parts: a composition without a file" in out


FOLDER = (
    plugin_and_test("dataset", "squares")[0]
    .replace("        embedded=True,\n", '        obtain="make a folder with a file size.txt",\n')
    .replace(
        "        n = self.config.n_train + 2 * self.config.n_eval\n",
        """\
        if not (root / "size.txt").is_file():
            from fairssl.api import UserError

            raise UserError(f"squares is not at {root}: no size.txt")
        n = int((root / "size.txt").read_text())
""",
    )
)


def test_check_of_a_dataset_reads_the_files_that_data_dir_names(tmp_path, capsys):
    assert "embedded" not in FOLDER and "size.txt" in FOLDER
    write_package(tmp_path / "site", "stranger", {"datasets/squares.py": FOLDER})
    data = tmp_path / "data"
    data.mkdir()
    with known(tmp_path / "site"):
        code, _, err = call(capsys, "check", "dataset", "squares", "--data-dir", str(data))
        assert code == 2 and f"squares is not at {data}" in err, "what the user named is refused, not skipped"
        (data / "size.txt").write_text("768")
        code, out, _ = call(capsys, "check", "dataset", "squares", "--data-dir", str(data))
        assert code == 0 and "pass  splits are sound and disjoint" in out and "pass  fingerprint" in out
        assert "pass  says where to get what is not there" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["metric", "kl"], "--data-dir is for a dataset; a check of a metric reads no files"),
        (["dataset", "synthfaces"], "synthfaces is embedded and reads no files"),
        (["dataset", "utkface"], "does not exist"),
    ],
)
def test_data_dir_where_it_cannot_be_used(tmp_path, capsys, words, said):
    code, out, err = call(capsys, "check", *words, "--data-dir", str(tmp_path / "nowhere"))
    assert code == 2 and said in err and not out


@pytest.mark.parametrize("kind", TEMPLATED)
def test_a_template_mentions_the_version_and_what_the_loop_does_by_itself_it_leaves_to_it(kind):
    text = plugin_and_test(kind, "my_own")[0]
    assert "version" in text
    assert "full_precision" not in text and "at_least_float32" not in text and "$" not in text
