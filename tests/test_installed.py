"""What a user meets after an install: plugins of a checkout, of an example package, broken ones, and of a newer fairssl."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest
from reference.checkout import ROOT
from reference.fresh import Environment, checkout

pytestmark = pytest.mark.slow

README = (ROOT / "README.md").read_text(encoding="utf-8")
BENCH = ["--seeds", "1", "--epochs", "1", "--image-size", "16", "--batch-size", "16", "--json"]


def names(environment: Environment, cwd: Path, kind: str) -> dict[str, dict[str, object]]:
    done = environment.fairssl("list", kind, "--json", cwd=cwd)
    assert done.returncode == 0, done.stderr
    return {row["name"]: row for row in json.loads(done.stdout)}


def readme_install() -> list[str]:
    """The words after `pip install` in the README's first command."""
    first = re.search(r"^python3 -m venv .*$", README, re.MULTILINE)
    assert first is not None
    found = re.search(r"pip install (.*?) &&", first.group())
    assert found is not None
    return found.group(1).split()


@pytest.fixture(scope="module")
def copy_installed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Environment, Path]:
    """fairssl from a wheel, beside the checkout that it was built from."""
    folder = tmp_path_factory.mktemp("copy")
    source = checkout(folder / "source")
    environment = Environment(folder / "env")
    environment.install(str(source))
    shutil.rmtree(source / "build")
    return environment, source


def test_a_file_in_the_checkout_is_known_after_the_readmes_first_command(tmp_path: Path) -> None:
    source = checkout(tmp_path / "fairssl")
    environment = Environment(source / ".venv")
    assert readme_install() == ["-e", "."]
    environment.install("-e", str(source))
    done = environment.fairssl("new", "objective", "my_loss", cwd=source)
    assert done.returncode == 0 and "warning" not in done.stderr, done.stderr
    assert names(environment, source, "objectives")["my_loss"]["package"] == "fairssl"
    assert names(environment, tmp_path, "objectives")["my_loss"]["broken"] is None, "from any folder"
    words = ["bench", "--method", "my_loss,simclr", "--workers", "2", "--set", "data.n_train=64", *BENCH]
    done = environment.fairssl(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [row["method"] for row in json.loads(done.stdout)] == ["my_loss", "simclr"], "workers see it too"


def test_a_copy_says_that_it_does_not_read_the_checkout(copy_installed: tuple[Environment, Path]) -> None:
    environment, source = copy_installed
    done = environment.fairssl("new", "head", "my_head", cwd=source)
    said = f"{source}/plugins is not read: this fairssl is a copy with its plugins in {environment.folder}"
    out = f"to have it read yours: pip install -e {source}"
    assert done.returncode == 0 and said in done.stderr and out in done.stderr
    for words in (["show", "head", "my_head"], ["bench", "--method", "simclr+my_head", "--dry-run"]):
        done = environment.fairssl(*words, cwd=source)
        assert done.returncode == 2 and said in done.stderr and out in done.stderr
        assert done.stderr.count("\n") == 1 and "unknown" in done.stderr
    done = environment.fairssl("list", "heads", cwd=source)
    assert done.returncode == 0 and said in done.stderr and "my_head" not in done.stdout
    done = environment.fairssl("doctor", cwd=source)
    assert done.returncode == 0 and said in " ".join(done.stdout.split())
    elsewhere = environment.fairssl("list", "heads", cwd=source.parent)
    assert elsewhere.returncode == 0 and not elsewhere.stderr, "elsewhere there is nothing to say"


def test_the_sdist_installs_with_its_licence_and_the_version_that_one_file_states(tmp_path: Path) -> None:
    source = checkout(tmp_path / "source")
    call = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path / "dist"), str(source)]
    done = subprocess.run(call, capture_output=True, text=True, check=False)  # the wheel is built from the sdist
    assert done.returncode == 0, done.stderr
    (sdist,), (wheel,) = (tmp_path / "dist").glob("*.tar.gz"), (tmp_path / "dist").glob("*.whl")
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert sdist.name == f"fairssl-{version}.tar.gz" and wheel.name == f"fairssl-{version}-py3-none-any.whl"
    said = [p for p in source.rglob("*") if p.suffix in (".py", ".toml", ".cff", ".yml") and version in p.read_text()]
    assert said == [source / "pyproject.toml"], "the version stands in one place"
    with tarfile.open(sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    copy = checkout(tmp_path / "copy")
    whole = {path.relative_to(copy).as_posix() for path in copy.rglob("*") if path.is_file()}
    assert whole <= inside, "what its tests and its documentation read is there too"
    assert not [name for name in inside if name.endswith((".png", ".jpg", ".zip", ".pyc"))]
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    environment = Environment(tmp_path / "env")
    environment.install(str(sdist))
    reads_the_tree = ("tests/test_docs.py", "tests/board/test_leaderboards.py", "tests/plan/test_grids.py")
    done = environment.run("python", "-m", "pytest", "-p", "no:cacheprovider", *reads_the_tree, cwd=unpacked)
    assert done.returncode == 0, done.stdout
    (site,) = (environment.folder / "lib").glob("python*/site-packages")
    (about,) = site.glob("fairssl-*.dist-info")
    assert "License-Expression: MIT" in (about / "METADATA").read_text() and (about / "licenses" / "LICENSE").is_file()
    assert environment.fairssl("--version", cwd=tmp_path).stdout == f"fairssl {version}\n"
    assert names(environment, tmp_path, "heads")["adversary"]["broken"] is None
    done = environment.fairssl("bench", "--method", "sofclr", *BENCH, "--set", "data.n_train=64", cwd=tmp_path)
    assert done.returncode == 0 and json.loads(done.stdout)[0]["failed"] == 0, done.stderr


def test_the_extra_all_joins_what_is_optional_for_a_user() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    (joined,) = extras["all"]
    assert set(joined.removeprefix("fairssl[").removesuffix("]").split(",")) == set(extras) - {"all", "docs", "test"}


KINDS = ("method", "objective", "head", "encoder", "dataset", "metric")


@pytest.fixture(scope="module")
def new_package(copy_installed: tuple[Environment, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package that `fairssl new` made, with a plugin of each kind in it."""
    environment, _ = copy_installed
    folder = tmp_path_factory.mktemp("new")
    for kind in KINDS:
        where = folder if kind == KINDS[0] else folder / "fairssl-my-method"
        done = environment.fairssl("new", kind, f"my_{kind}", "--into", str(where), cwd=folder)
        assert done.returncode == 0, done.stderr
    return folder / "fairssl-my-method"


def test_a_new_package_installs_with_the_newest_setuptools_and_its_tests_pass(
    copy_installed: tuple[Environment, Path], new_package: Path, tmp_path: Path
) -> None:
    environment, _ = copy_installed
    environment.install(str(new_package))
    for kind in KINDS:
        row = names(environment, tmp_path, kind)[f"my_{kind}"]
        assert (row["package"], row["broken"]) == ("fairssl-my-method", None)
    words = ["-q", "-W", "error", "-p", "no:cacheprovider", str(new_package / "tests")]
    done = environment.run("python", "-m", "pytest", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stdout


def test_a_new_package_is_read_by_the_old_setuptools_that_comes_with_python(new_package: Path, tmp_path: Path) -> None:
    """Before 70.1 setuptools needs `wheel` to make one, which is not here; the rest of the work is the same."""
    done = subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "env")], capture_output=True, check=False)
    python = tmp_path / "env" / "bin" / "python"
    version = [str(python), "-c", "import setuptools; print(setuptools.__version__)"]
    old = subprocess.run(version, capture_output=True, text=True, check=False)
    if done.returncode or old.returncode:
        pytest.skip("this Python comes without setuptools")
    script = "from setuptools import build_meta; print(build_meta.build_sdist('dist'))"
    built = subprocess.run([str(python), "-c", script], cwd=new_package, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    with tarfile.open(new_package / "dist" / built.stdout.splitlines()[-1]) as archive:
        members = {name.partition("/")[2]: name for name in archive.getnames()}
        assert {f"fairssl_my_method/{kind}s/my_{kind}.py" for kind in KINDS} <= {*members}
        points = archive.extractfile(members["fairssl_my_method.egg-info/entry_points.txt"])
        assert points is not None and b"[fairssl.plugins]\nfairssl_my_method = fairssl_my_method" in points.read()


OURS = {
    "objective": "align_uniform",
    "head": "coral",
    "encoder": "cifar_resnet",
    "metric": "predictive_parity",
    "dataset": "shapes",
}
BROKEN = {
    "objectives/unparsable.py": '"""Does not parse."""\ndef broken(:\n',
    "heads/raises.py": '"""Raises."""\nraise OSError("no model file")\n',
    "encoders/lacking.py": '"""Needs what is not there."""\nimport no_such_library_anywhere\n',
    "metrics/stops.py": '"""Stops."""\nimport sys\nsys.exit("not today")\n',
    "datasets/faulty.py": (ROOT / "examples/fairssl-example/fairssl_example/datasets/shapes.py")
    .read_text(encoding="utf-8")
    .replace("        return DataFacts(", '        raise KeyError("table")\n        return DataFacts('),
}


@pytest.fixture(scope="module")
def example(copy_installed: tuple[Environment, Path], tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """The example package, and five more files in it that do not work, installed beside fairssl."""
    environment, source = copy_installed
    package = source / "examples" / "fairssl-example"
    for path, text in BROKEN.items():
        (package / "fairssl_example" / path).write_text(text)
    environment.install(str(package))
    return environment


def test_the_examples_plugins_are_listed_and_the_broken_ones_with_their_cause(
    example: Environment, tmp_path: Path
) -> None:
    for kind, name in OURS.items():
        row = names(example, tmp_path, kind)[name]
        assert (row["package"], row["broken"]) == ("fairssl-example", None)
    assert "SyntaxError" in str(names(example, tmp_path, "objectives")["unparsable"]["broken"])
    assert "no_such_library_anywhere" in str(names(example, tmp_path, "encoders")["lacking"]["broken"])


def test_doctor_tells_them_from_fairssls_own(example: Environment, tmp_path: Path) -> None:
    done = example.fairssl("doctor", cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines()[-1] == (
        "fairssl itself is well; 4 plugins and 1 dataset of others are broken, see above"
    )
    for cause in (
        "SyntaxError",
        "OSError: no model file",
        "no_such_library_anywhere",
        "SystemExit: not today",
        "table",
    ):
        assert cause in done.stdout


@pytest.mark.parametrize(("kind", "name"), OURS.items())
def test_check_passes(example: Environment, tmp_path: Path, kind: str, name: str) -> None:
    done = example.fairssl("check", kind, name, cwd=tmp_path)
    assert done.returncode == 0 and " 0 fail" in done.stdout, done.stdout + done.stderr


def test_its_own_tests_pass(example: Environment, tmp_path: Path) -> None:
    tests = ROOT / "examples" / "fairssl-example" / "tests"
    done = example.run(
        "python", "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", str(tests), cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout


def test_bench_with_all_five(example: Environment, tmp_path: Path) -> None:
    words = ["bench", "--method", "simclr,align_uniform+coral:0.5", "--dataset", "shapes", "--encoder", "cifar_resnet8"]
    sets = ["--set", "encoder.width=4", "--set", "data.n_train=64", "--set", "data.n_eval=40", "--set", "coral.scale=2"]
    done = example.fairssl(*words, *sets, *BENCH, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "left out of the results: metric 'stops' does not import: SystemExit: not today" in done.stderr
    rows = {row["method"]: row for row in json.loads(done.stdout)}
    assert set(rows) == {"simclr", "align_uniform+coral:0.5"}
    for row in rows.values():
        value = row["PPVGap"]
        assert (0 <= value["mean"] <= 1) if value["mean"] is not None else row["undefined"]["PPVGap"]


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (["--method", "unparsable"], "SyntaxError"),
        (["--method", "simclr+raises"], "OSError: no model file"),
        (["--encoder", "lacking"], "no_such_library_anywhere"),
    ],
)
def test_what_is_broken_stops_those_alone_who_ask_for_it(
    example: Environment, tmp_path: Path, words: list[str], cause: str
) -> None:
    done = example.fairssl("bench", *words, "--dry-run", cwd=tmp_path)
    assert done.returncode == 2 and cause in done.stderr and done.stderr.count("\n") == 1


def test_a_package_for_a_newer_interface_is_refused_in_one_line(example: Environment, tmp_path: Path) -> None:
    (site,) = (example.folder / "lib").glob("python*/site-packages")
    init = site / "fairssl_example" / "__init__.py"
    before = init.read_text()
    init.write_text(before.replace("FAIRSSL_INTERFACE = 1", "FAIRSSL_INTERFACE = 99"))
    try:
        why = "plugin package fairssl-example is broken: it needs plugin interface 99 and this fairssl has 1"
        done = example.fairssl("list", "heads", cwd=tmp_path)
        assert done.returncode == 0 and "coral" not in done.stdout and "adversary" in done.stdout
        assert why in done.stderr and done.stderr.count("\n") == 1
        done = example.fairssl("show", "head", "coral", cwd=tmp_path)
        assert done.returncode == 2 and why in done.stderr and done.stderr.count("\n") == 1
        done = example.fairssl("doctor", cwd=tmp_path)
        assert done.returncode == 0
        assert done.stdout.endswith("fairssl itself is well; 1 plugin package of others is broken, see above\n")
    finally:
        init.write_text(before)
