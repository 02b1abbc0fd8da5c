"""`fairssl new` writes what works at once and never overwrites; `fairssl check` says what is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from reference.plugin_package import OBJECTIVE, known, write_package

from fairssl import kinds, testing
from fairssl.cli import run
from fairssl.cli.new import TEMPLATED
from fairssl.types import KINDS


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


# --------------------------------------------------------------------------- what it writes


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


def test_the_tests_that_it_writes_pass(tmp_path, capsys):
    """All five in one package, their tests run by pytest with warnings as errors, as ours are."""
    assert call(capsys, "new", "head", "my_head", "--into", str(tmp_path))[0] == 0
    project = tmp_path / "fairssl-my-head"
    for kind in TEMPLATED:
        if kind != "head":
            assert call(capsys, "new", kind, f"my_{kind}", "--into", str(project))[0] == 0
    installed(project)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", "tests"],
        cwd=project,
        env={**os.environ, "PYTHONPATH": str(project)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "13 passed" in done.stdout


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
    assert code == 0 and files(tmp_path) == {"plugins/objectives/my_own.py", "tests/test_my_own.py"}
    assert "fairssl check objective my_own" in out


@pytest.mark.slow
def test_pip_installs_a_new_package_and_fairssl_knows_it(tmp_path, capsys):
    pytest.importorskip("setuptools")
    call(capsys, "new", "metric", "my_own", "--into", str(tmp_path))
    pip = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-build-isolation", "--quiet"]
    target = tmp_path / "site"
    done = subprocess.run(
        [*pip, "--target", target, tmp_path / "fairssl-my-own"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"pip cannot build here: {done.stderr.splitlines()[-1] if done.stderr else ''}")
    listed = subprocess.run(
        [sys.executable, "-m", "fairssl", "list", "metrics", "--json"],
        env={**os.environ, "PYTHONPATH": str(target)},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "my_own" in {row["name"] for row in json.loads(listed.stdout)}


# --------------------------------------------------------------------------- what it refuses


@pytest.mark.parametrize(
    ("kind", "name", "reason"),
    [
        ("head", "adversary", "there is a head 'adversary' already"),
        ("head", "simclr", "there is a method 'simclr' already"),
        ("objective", "sofclr", "there is a method 'sofclr' already"),
        ("metric", "acc", "there is a metric 'acc' already"),
        ("dataset", "celeba", "there is a dataset 'celeba' already"),
        ("head", "train", "--set calls a part of the core so"),
        ("head", "class", "cannot name a plugin"),
        ("head", "My-Head", "cannot name a plugin"),
        ("head", "../up", "cannot name a plugin"),
        ("head", "9lives", "cannot name a plugin"),
        ("head", "", "cannot name a plugin"),
        ("encoder", "my_own", "no template for an encoder"),
        ("heat", "my_own", "did you mean 'heads'"),
    ],
)
def test_a_name_that_is_taken_or_none_is_refused(tmp_path, capsys, kind, name, reason):
    code, out, err = call(capsys, "new", kind, name, "--into", str(tmp_path))
    assert code == 2 and reason in err and not out and files(tmp_path) == set()


@pytest.mark.parametrize("existing", ["plugins/heads/my_own.py", "tests/test_my_own.py"])
def test_nothing_is_overwritten_and_nothing_half_written(tmp_path, capsys, existing):
    for kind in KINDS:
        (tmp_path / "plugins" / kind).mkdir(parents=True)
    (tmp_path / existing).parent.mkdir(exist_ok=True)
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


# --------------------------------------------------------------------------- check


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
