"""`fairssl new`: a working plugin with its test, to be changed into what you want."""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from string import Template

import typer

from fairssl.cli._paths import parse_path
from fairssl.cli._table import echo_line
from fairssl.types import UserError


def new(
    kind: str = typer.Argument(..., help="method, objective, head, encoder, dataset or metric; plural too."),
    name: str = typer.Argument(..., help="What users will type: lower_snake_case."),
    into: Path = typer.Option(
        Path("."),
        "--into",
        parser=parse_path,
        help="A fairssl checkout, a plugin package made by this command, or any folder.",
    ),
) -> None:
    """Write a working plugin and its test.

    In a fairssl checkout: plugins/KIND/NAME.py and tests/plugins/test_NAME.py. In a plugin package: KIND/NAME.py and
    tests/test_NAME.py. Anywhere else: a new plugin package in a folder fairssl-NAME, to be installed with pip install -e.

    Examples:

        fairssl new objective my_loss
        fairssl new dataset my_faces --into ~/research
    """
    from fairssl import kinds, registry

    one = kinds.by_kind(kind).one
    _check_name(one, name)
    if not into.is_dir():
        raise UserError(f"--into {str(into)!r} is not a folder; make it first")
    files = _files(one, name, into)
    _write_all(files)
    for path in files:
        typer.echo(f"wrote {path}")
    first = next(iter(files))
    if first.name == "pyproject.toml":
        typer.echo(f"make it known: pip install -e {first.parent}")
    elif registry.unseen_plugins(into):
        echo_line(f"fairssl: warning: {registry.unseen_plugins(into)}")
    test = next(path for path in files if path.name == f"test_{name}.py")
    typer.echo(f"then: fairssl check {one} {name}; python -m pytest {test}")


def _check_name(one: str, name: str) -> None:
    """A Python module's name that nothing else in the same grammar has."""
    from fairssl import kinds
    from fairssl.spec.method import CORE_PARTS

    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise UserError(f"{name!r} cannot name a plugin: lower case letters, digits and _, as in my_{one}")
    if name in CORE_PARTS:
        raise UserError(f"{name!r} cannot name a plugin: --set calls a part of the core so; take another name")
    rivals = ("methods", "objectives", "heads") if one in ("method", "objective", "head") else (f"{one}s",)
    for kind in rivals:
        rival = kinds.by_kind(kind)
        if name in rival.offers():
            path = rival.offers()[name][0].path
            raise UserError(f"{rival.one} {name!r} exists already ({path}); take another name")
    if one in ("method", "objective"):
        for other, method in kinds.methods.working().items():
            if name in method.aliases:
                raise UserError(f"{name!r} is an alias of method {other!r} already; take another name")
    if one == "metric":
        symbol = _camel(name)
        for other, metric in kinds.metrics.working().items():
            if metric.symbol == symbol:
                raise UserError(f"metric {other!r} has the symbol {symbol!r} already; take another name")


def _files(one: str, name: str, into: Path) -> dict[Path, str]:
    """Path -> text, the project's own file first where there is one."""
    from fairssl import registry

    plugin, test = plugin_and_test(one, name)
    if registry.is_checkout(into):
        return {
            into / "plugins" / f"{one}s" / f"{name}.py": plugin,
            into / "tests" / "plugins" / f"test_{name}.py": test,
        }
    package = _package_of(into)
    if package is not None:
        root, found = into, {}
    else:
        root, package = into / f"fairssl-{name.replace('_', '-')}", f"fairssl_{name}"
        if root.exists():
            raise UserError(f"{str(root)!r} exists already; nothing is overwritten: take another name or --into")
        words = {"name": name, "project": root.name, "package": package, "interface": str(registry.INTERFACE)}
        found = {
            root / "pyproject.toml": _filled("pyproject.toml", words),
            root / package / "__init__.py": _filled("package.py", words),
        }
    folder = root / package / f"{one}s"
    if not (folder / "__init__.py").exists():
        found[folder / "__init__.py"] = ""
    return {**found, folder / f"{name}.py": plugin, root / "tests" / f"test_{name}.py": test}


def plugin_and_test(one: str, name: str) -> tuple[str, str]:
    """The text of a new plugin of a kind, in singular, and that of its test."""
    words = {"name": name, "Name": _camel(name)}
    return _filled(f"{one}/plugin.py", words), _filled(f"{one}/test.py", words)


def _filled(name: str, words: Mapping[str, str]) -> str:
    """A file of fairssl/templates with its words put in."""
    text = resources.files("fairssl").joinpath("templates", f"{name}.tmpl").read_text(encoding="utf-8")
    return Template(text).substitute(words)


def _package_of(folder: Path) -> str | None:
    """The import package that a project in `folder` offers as plugins; None if there is no such project."""
    import tomllib

    project = folder / "pyproject.toml"
    if not project.is_file():
        return None
    try:
        content = tomllib.loads(project.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{project} cannot be read: {error}") from error
    points: Mapping[str, str] = content.get("project", {}).get("entry-points", {}).get("fairssl.plugins", {})
    return next(iter(points.values()), None)


def _write_all(files: Mapping[Path, str]) -> None:
    """All files or none; a file that is there already is never touched."""
    for path in files:
        if path.exists():
            raise UserError(f"{path} exists already; nothing is overwritten: take another name or move it")
    written: list[Path] = []
    try:
        for path, text in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "x", encoding="utf-8") as file:
                written.append(path)
                file.write(text)
    except OSError as error:
        for path in written:
            path.unlink(missing_ok=True)
        raise UserError(f"cannot write {path}: {error.strerror or error}; nothing was left behind") from error


def _camel(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))
