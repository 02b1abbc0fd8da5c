"""Where plugins are found: one file, one name, six kinds.

A package offers plugins by the entry point group `fairssl.plugins`; the value names an import package with a
sub-package per kind (`objectives/`, `heads/`, ...). A file `vicreg.py` there is the plugin `vicreg`. Names are read
from the file system, so that listing imports nothing.
"""

from __future__ import annotations

import ast
import difflib
import importlib.util
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Generic, TypeVar

from fairssl.types import KINDS, UserError

T = TypeVar("T")
GROUP = "fairssl.plugins"
INTERFACE = 1  # what `fairssl.api` promises; its docstring says when it is raised
OLDEST_INTERFACE = 1  # packages written for this one still work
DECLARATION = "FAIRSSL_INTERFACE"  # where a package's __init__.py says which one it was written for


class UnknownName(UserError):
    """A name that no plugin has; says what is near and what exists."""


class BrokenPlugin(UserError):
    """A plugin's file that does not import; says why."""


@dataclass(frozen=True)
class Location:
    """Where a plugin lies: the distribution that offers it, its module, its file."""

    package: str
    module: str
    path: Path


def did_you_mean(name: str, known: Iterable[str], synonyms: Mapping[str, str] | None = None) -> str:
    """`; did you mean 'x'? known: a, b, c` for error messages. `synonyms`: another word -> the known name that it means."""
    names = sorted(known)
    meant = (synonyms or {}).get(name.casefold())
    close = [meant] if meant in names else difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    hint = f"; did you mean {' or '.join(repr(c) for c in close)}?" if close else ""
    return f"{hint or ';'} known: {', '.join(names) or 'none'}"


@dataclass(frozen=True)
class Package:
    """A distribution that offers plugins: its import package, that package's folders, and why there are none if so."""

    name: str
    module: str
    folders: tuple[Path, ...]
    fault: str | None = None


@cache
def packages() -> tuple[Package, ...]:
    """Everybody who offers plugins, none of them imported."""
    found = {}
    for point in entry_points(group=GROUP):
        name = point.dist.name if point.dist is not None else point.name
        folders: tuple[Path, ...] = ()
        fault = None
        try:
            module = importlib.util.find_spec(point.value)
            folders = tuple(Path(p) for p in (module.submodule_search_locations or ())) if module else ()
        except Exception as error:  # finding a.b imports a, which may fail in any way
            fault = _cause(error)
        if not folders:
            fault = fault or f"no import package {point.value!r} is found"
        elif (fault := _refusal(folders[0] / "__init__.py")) is not None:
            folders = ()
        found[name, point.value] = Package(name, point.value, folders, fault)
    return tuple(package for _, package in sorted(found.items()))


def _refusal(init: Path) -> str | None:
    """Why a package cannot be used with this fairssl, by what its __init__.py declares; None if nothing speaks against it."""
    if not init.exists():
        return None
    try:
        tree = _parsed(init)
    except (SyntaxError, ValueError, OSError) as error:
        return _cause(error)
    for node in tree.body:
        names = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        if not any(isinstance(name, ast.Name) and name.id == DECLARATION for name in names):
            continue
        wanted = getattr(getattr(node, "value", None), "value", None)
        if type(wanted) is not int:
            return f"{DECLARATION} must be a whole number written out, as {DECLARATION} = {INTERFACE} ({init})"
        if wanted > INTERFACE:
            return f"it needs plugin interface {wanted} and this fairssl has {INTERFACE}: pip install -U fairssl"
        if wanted < OLDEST_INTERFACE:
            return (
                f"it was written for plugin interface {wanted} and this fairssl serves {OLDEST_INTERFACE} to {INTERFACE}: "
                "upgrade the package, or install an older fairssl"
            )
    return None


def absence_hint() -> str:
    """`; plugin package x is broken: ...`, for messages about a name that nobody has; empty if there is nothing to say."""
    broken = [f"plugin package {p.name} is broken: {p.fault}" for p in packages() if p.fault]
    return "".join(f"; {reason}" for reason in [*broken, unseen_plugins()] if reason)


def is_checkout(folder: Path) -> bool:
    """Whether a folder has the plugins of a fairssl checkout: `plugins/` with a folder for each kind."""
    return all((folder / "plugins" / kind).is_dir() for kind in KINDS)


def unseen_plugins(checkout: Path = Path(".")) -> str:
    """One sentence, if this fairssl does not read the `plugins/` of the checkout in `checkout`: where it looks, and the way
    out. Empty if it reads them, or if there is no checkout.

    Nothing is imported from the current folder: what may run is what was installed.
    """
    if not is_checkout(checkout):
        return ""
    folder = (checkout / "plugins").resolve()
    folders = [one.resolve() for package in packages() for one in package.folders]
    if folder in folders:
        return ""
    own = next((str(p.folders[0]) for p in packages() if p.name == "fairssl" and p.folders), "nowhere")
    return (
        f"{folder} is not read: this fairssl is a copy with its plugins in {own}; "
        f"to have it read yours: pip install -e {checkout.resolve()}"
    )


def _cause(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())


class Registry(Generic[T]):
    """The plugins of one kind. `pick` takes the one public object out of an imported plugin module."""

    def __init__(self, kind: str, pick: Callable[[Any, str], T]):
        self.kind = kind
        self._pick = pick
        self._loaded: dict[str, T] = {}

    @property
    def one(self) -> str:
        """The kind in singular, for messages."""
        return self.kind.removesuffix("s")

    def offers(self) -> dict[str, list[Location]]:
        """name -> everyone who offers it. Reads folder listings only."""
        found: dict[str, list[Location]] = {}
        for package in packages():
            for folder in package.folders:
                for path in sorted((folder / self.kind).glob("[!_]*.py")):
                    module = f"{package.module}.{self.kind}.{path.stem}"
                    found.setdefault(path.stem, []).append(Location(package.name, module, path))
        return found

    def where(self) -> dict[str, str]:
        """name -> module, importing none. A name offered twice appears as `package:name` for each."""
        names = {}
        for name, places in sorted(self.offers().items()):
            for place in places:
                names[name if len(places) == 1 else f"{place.package}:{name}"] = place.module
        return names

    def locate(self, name: str) -> Location:
        package, _, short = name.rpartition(":")
        places = [p for p in self.offers().get(short, []) if not package or p.package == package]
        if not places:
            raise UnknownName(f"unknown {self.one} {name!r}{did_you_mean(name, self.where())}{absence_hint()}")
        if len(places) > 1:
            ways = " or ".join(f"{p.package}:{short}" for p in places)
            owners = " and ".join(f"{p.package} ({p.module})" for p in places)
            raise UserError(f"{self.one} {short!r} is offered by {owners}; write {ways}")
        return places[0]

    def canonical(self, name: str) -> str:
        """The one spelling that specs and keys hold: the short name, or `package:name` where two packages offer it."""
        place = self.locate(name)
        short = place.path.stem
        return short if len(self.offers()[short]) == 1 else f"{place.package}:{short}"

    def get(self, name: str) -> T:
        """Import that one plugin. Unknown name: `UnknownName` with what is near; broken file: `BrokenPlugin` with the cause."""
        place = self.locate(name)
        if place.module not in self._loaded:
            try:
                module = importlib.import_module(place.module)
            except (
                Exception,
                SystemExit,
            ) as error:  # a plugin author's file may fail in any way; the cause is passed on
                raise BrokenPlugin(f"{self.one} {name!r} does not import: {_cause(error)} ({place.path})") from error
            self._loaded[place.module] = self._pick(module, place.path.stem)
        return self._loaded[place.module]

    def working(self) -> dict[str, T]:
        """name -> plugin of all that import, by name; somebody's broken file stands in nobody else's way. See `broken`."""
        found = {}
        for name in self.where():
            try:
                found[name] = self.get(name)
            except BrokenPlugin:
                continue
        return found

    def broken(self) -> dict[str, str]:
        """name -> cause of all that do not import."""
        causes = {}
        for name in self.where():
            try:
                self.get(name)
            except BrokenPlugin as error:
                causes[name] = _line(error)
        return causes

    def build(self, name: str, params: Mapping[str, Any], **runtime: Any) -> Any:
        """The plugin's object made from its validated config. Unknown key: the known ones are named."""
        part: Any = self.get(name)
        return part(configure(part.Config, name, params), **runtime)

    def summary(self, name: str) -> str:
        """First sentence of the plugin's docstring, read without importing it; empty if the file is broken."""
        return summary(self.locate(name).path)


def summary(path: Path) -> str:
    """First sentence of a plugin file's docstring, read without importing it; empty if the file is broken."""
    try:
        text = ast.get_docstring(_parsed(path)) or ""
    except (SyntaxError, ValueError, OSError):
        return ""
    return first_sentence(text)[0]


def first_sentence(text: str) -> tuple[str, str]:
    """A docstring's first sentence, and the rest. That is its first line, or where the first paragraph goes on after that
    line, the paragraph up to its first full stop."""
    paragraph, _, rest = text.strip().partition("\n\n")
    if "\n" not in paragraph:
        return paragraph, rest
    sentence, stop, more = " ".join(paragraph.split()).partition(". ")
    return (f"{sentence}." if stop else sentence), f"{more}\n\n{rest}".strip()


def fault(path: Path, kind: str, module: str) -> str | None:
    """Why a plugin file cannot work, as far as its text tells without importing it: it does not parse, it imports what is
    not there, it ends its own import, or it has no plugin of its kind, or two. None: nothing found. `module` is its name."""
    try:
        tree = _parsed(path)
    except (SyntaxError, ValueError, OSError) as error:
        return _cause(error)
    return _import_fault(tree) or _end(tree) or _plugin_fault(tree, kind, module)


def _import_fault(tree: ast.Module) -> str | None:
    for node in tree.body:
        if isinstance(node, ast.Import):
            wanted = [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            wanted = [(node.module, alias.name) for alias in node.names]
        else:
            continue
        for module, member in wanted:
            top = module.partition(".")[0]
            if not _is_there(top):
                return f"ModuleNotFoundError: No module named {top!r}"
            if top == "fairssl" and not _has(module, member):
                return f"ImportError: {module} has no {member!r}" if member else f"ImportError: no module {module}"
    return None


EXITS = ("sys.exit", "exit", "quit", "os._exit")


def _end(tree: ast.Module) -> str | None:
    """The error with which a file's import is sure to end: a `raise` or an exit that no condition stands before."""
    for node in tree.body:
        if isinstance(node, ast.Raise):
            call = node.exc
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and ast.unparse(node.value.func) in EXITS:
            call = node.value
        else:
            continue
        name = "RuntimeError" if call is None else ast.unparse(call.func if isinstance(call, ast.Call) else call)
        given = call.args[:1] if isinstance(call, ast.Call) else []
        said = "".join(str(one.value) if isinstance(one, ast.Constant) else ast.unparse(one) for one in given)
        return f"{'SystemExit' if name in EXITS else name}{': ' if said else ''}{said}"
    return None


BASES = {"objectives": "Objective", "heads": "Head", "encoders": "Encoder", "datasets": "Dataset"}
NO_PLUGIN = {
    "object",
    "PluginConfig",
    "DatasetConfig",
    "TableConfig",
    "BaseModel",
    "Exception",
    "NamedTuple",
    "Protocol",
}


def _plugin_fault(tree: ast.Module, kind: str, module: str) -> str | None:
    """That a file has no plugin of its kind, or more than one; None where only an import can tell, as where a call makes the
    class. Methods are imported to be listed, and tell themselves."""
    if kind == "methods":
        return None
    run = [node for node in tree.body if not isinstance(node, ast.FunctionDef | ast.ClassDef)]
    inside = [one for node in run for one in ast.walk(node)]
    calls = any(isinstance(one, ast.Call) or (isinstance(one, ast.alias) and one.name == "*") for one in inside)
    if kind == "metrics":
        decorated = any(getattr(node, "decorator_list", None) for node in [*tree.body, *inside])
        return None if decorated or calls else f"{module} must define exactly one function under @metric, found 0"
    base = BASES[kind]
    classes = {node.name: node for node in [*tree.body, *inside] if isinstance(node, ast.ClassDef)}
    public = [name for name in classes if not name.startswith("_")]
    sure = [name for name in public if classes[name] in tree.body and base in map(ast.unparse, classes[name].bases)]
    found = ""
    if len(sure) > 1:
        found = ", ".join(sure)
    elif not calls and not any(_may_be_plugin(name, classes, set()) for name in public):
        found = "none"
    return f"{module} must define exactly one public {base} class, found {found}" if found else None


def _may_be_plugin(name: str, classes: Mapping[str, ast.ClassDef], seen: set[str]) -> bool:
    """Whether a class, by the names of those it derives from, may derive from one that this file does not define."""
    if name not in classes:
        return name.rpartition(".")[2] not in NO_PLUGIN
    node = classes[name]
    if node.keywords or node.decorator_list:
        return True
    bases = [ast.unparse(base) for base in node.bases]
    return any(_may_be_plugin(base, classes, {*seen, name}) for base in bases if base not in {*seen, name})


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(_text(path), filename=path.name)


@cache
def _is_there(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


@cache
def _has(module: str, member: str) -> bool:
    """Whether one of our own modules exists and its text has the word `member`, which is quick and almost exact."""
    found = importlib.util.find_spec(module)
    if found is None or found.origin is None:
        return False
    if not member or member == "*":
        return True
    inside = found.submodule_search_locations is not None and importlib.util.find_spec(f"{module}.{member}")
    return bool(inside) or re.search(rf"\b{member}\b", _text(Path(found.origin))) is not None


@cache
def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def configure(config: Any, name: str, params: Mapping[str, Any]) -> Any:
    """`config(**params)` with errors a user can act on: unknown keys named with the near ones, wrong values shown."""
    import pydantic

    aliases: Mapping[str, str] = getattr(config, "aliases", {})
    values: dict[str, Any] = {}
    for key, value in params.items():
        real = aliases.get(key, key)
        if real not in config.model_fields:
            raise UserError(f"{name} has no parameter {key!r}{did_you_mean(key, [*config.model_fields, *aliases])}")
        if real in values:
            raise UserError(f"{name}.{real} is set twice (as {key!r} too); set it once")
        values[real] = value
    try:
        return config(**values)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in (name, *first["loc"]))
        raise UserError(f"{where}: {first['msg']}, got {first['input']!r}") from error
