"""The wheel holds the plugins and the grids, and works outside the checkout; the architecture's one rule of imports."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from reference.checkout import ROOT, TESTS

# fmt: off
CORE = (  # a module or package imports only those before it, and itself
    "types", "machine", "process_state", "registry", "interfaces", "distributed", "nn", "parts", "api", "kinds", "spec",
    "data", "train", "scoring", "evaluate", "store", "provenance", "plan", "pipeline", "progress", "execute", "board",
    "figures", "benchmark", "selection", "frozen", "loss", "testing",
)
# fmt: on


def _imports(path: Path) -> set[str]:
    """Modules of fairssl that a file imports when it is loaded; what is only for type checkers or in functions is not."""
    found: set[str] = set()

    def visit(nodes: list[ast.stmt]) -> None:
        for node in nodes:
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
                continue
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fairssl"):
                base = node.module or ""
                found.update([f"{base}.{a.name}" for a in node.names] if base == "fairssl" else [base])
            elif isinstance(node, ast.Import):
                found.update(a.name for a in node.names if a.name.startswith("fairssl"))

    visit(ast.parse(path.read_text(encoding="utf-8")).body)
    return {name.split(".")[1] for name in found if "." in name}


def _modules(path: Path) -> set[str]:
    """As `_imports`, the modules whole."""
    found: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fairssl"):
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                is_module = (ROOT / inner.replace(".", "/")).with_suffix(".py").exists()
                found.add(inner if is_module else str(node.module))
    return found - {"fairssl"}


def _files_of(name: str) -> list[Path]:
    folder = ROOT / "fairssl" / name
    return sorted(folder.glob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]


@pytest.mark.parametrize("name", CORE)
def test_a_core_package_imports_only_those_above_it(name: str) -> None:
    below = {*CORE[CORE.index(name) + 1 :], "cli"}
    for path in _files_of(name):
        assert not _imports(path) & below, path


def test_every_core_package_has_its_place() -> None:
    found = {p.stem for p in (ROOT / "fairssl").glob("[!_]*") if p.suffix == ".py" or (p / "__init__.py").exists()}
    assert found == {*CORE, "cli"}


def test_the_folders_of_the_tests_are_those_of_the_code() -> None:
    tested = {path.parent.name for path in TESTS.glob("*/test_*.py")}
    assert tested - {"plugins", "gpu"} == {
        name for name in {*CORE, "cli"} if (ROOT / "fairssl" / name / "__init__.py").is_file()
    }


def test_modules_of_a_package_import_each_other_in_no_circle() -> None:
    graph: dict[str, set[str]] = {}
    for path in (ROOT / "fairssl").rglob("*.py"):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        graph[module] = _modules(path)
    done: set[str] = set()

    def visit(module: str, above: tuple[str, ...]) -> None:
        assert module not in above, f"a circle of imports: {' -> '.join((*above[above.index(module) :], module))}"
        if module in done:
            return
        for other in sorted(graph.get(module, ())):
            visit(other, (*above, module))
        done.add(module)

    for module in sorted(graph):
        visit(module, ())


@pytest.mark.parametrize(
    "path", sorted((ROOT / "plugins").rglob("[!_]*.py")), ids=lambda p: f"{p.parent.name}-{p.stem}"
)
def test_a_plugin_imports_the_api_and_what_plugins_share_and_no_plugin(path: Path) -> None:
    assert _imports(path) <= {"api", "nn", "scoring"}
    assert "fairssl_plugins" not in path.read_text(encoding="utf-8")
    if path.parent.name in ("datasets", "metrics", "methods"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        heavy = {"torch", "torchvision", "timm", "sklearn", "pandas"}
        loaded = {a.name.split(".")[0] for n in tree.body if isinstance(n, ast.Import) for a in n.names}
        loaded |= {(n.module or "").split(".")[0] for n in tree.body if isinstance(n, ast.ImportFrom)}
        assert not loaded & heavy


@pytest.mark.slow
def test_the_wheel_works_outside_the_checkout(tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(
        ROOT, source, ignore=shutil.ignore_patterns(".*", "runs", "*.egg-info", "build", "dist", "site", "__pycache__")
    )
    call = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path / "dist"), str(source)]
    subprocess.run(call, check=True, capture_output=True)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    for path in [*(ROOT / "plugins").rglob("*.py"), *(ROOT / "benchmarks" / "grids").glob("*.toml")]:
        kind = "fairssl_plugins/" if "plugins" in path.parts[len(ROOT.parts) :] else "fairssl_grids/"
        tail = path.relative_to(ROOT / ("plugins" if kind == "fairssl_plugins/" else "benchmarks/grids"))
        assert kind + tail.as_posix() in names
    for path in (ROOT / "fairssl" / "templates").rglob("*.tmpl"):
        assert path.relative_to(ROOT).as_posix() in names
    assert {"fairssl/board/page/style.css", "fairssl/board/page/script.js", "fairssl/board/paper/tables.json"} <= set(
        names
    )
    assert not [n for n in names if n.endswith((".png", ".jpg", ".zip"))]
    site = tmp_path / "site"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(site), str(wheel)], check=True
    )
    env = {**os.environ, "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"}
    where = subprocess.run(
        [sys.executable, "-c", "import fairssl, fairssl_plugins; print(fairssl.__file__, fairssl_plugins.__file__)"],
        cwd=tmp_path,
        env=env,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    assert all(Path(p).is_relative_to(site) for p in where)
    words = ["bench", "--grid", "smoke", "--seeds", "1", "--epochs", "1", "--set", "data.n_train=64", "--out", "runs"]
    run = subprocess.run(
        [sys.executable, "-m", "fairssl", *words], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("| s") == 3


def test_the_readmes_method_is_the_file_itself() -> None:
    shown = (ROOT / "README.md").read_text(encoding="utf-8").partition("```python\n")[2].partition("```")[0]
    assert shown == (ROOT / "plugins" / "objectives" / "vicreg.py").read_text(encoding="utf-8")
