"""What a user asks for: flags and grid files as one value."""

from __future__ import annotations

import importlib.util
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from fairssl.machine import user_path
from fairssl.registry import did_you_mean
from fairssl.spec.method import parse_set, same_setting, sweep
from fairssl.types import UserError

PRESETS = ("smoke", "quick", "paper")
MAX_SEEDS = 10_000
METHODS = ("simclr", "sogclr", "sofclr")  # where none is named
DATASETS = ("synthfaces",)
FLAGS = {
    "methods": "--method",
    "datasets": "--dataset",
    "attributes": "--attr",
    "targets": "--target",
    "assignments": "--set",
    "pretrain_attribute": "--pretrain-attr",
}  # the others are called as their fields


@dataclass(frozen=True)
class Request:
    """What a user asked of `fairssl bench`. None: not said, so that the dataset's card, or a grid file, decides."""

    methods: Sequence[str] | None = None
    datasets: Sequence[str] | None = None
    attributes: Sequence[str] | None = None
    targets: Sequence[str] | None = None
    seeds: int | Sequence[int] | None = None  # N: seeds 0 to N - 1
    encoder: str | None = None
    preset: str | None = None
    epochs: int | None = None
    image_size: int | None = None  # pixels, square
    batch_size: int | None = None
    annotated: float | None = None  # share of the training images, in (0, 1]
    assignments: Sequence[str] | None = None  # as --set has them
    pretrain_dataset: str | None = None  # what encoders are trained on, where it is not what is judged
    pretrain_target: str | None = None
    pretrain_attribute: str | None = None
    equal_views: bool | None = None  # every method sees as many augmented images per step
    pairs: str | None = None  # how more than two groups are compared: adjacent, all, max
    data_dir: Path | str | None = None
    weights: Path | str | None = None  # file of weights that the encoder begins with
    # Field, or setting as `adversary.weight` -> the grid file that says it, for messages; what is not here was said by a flag.
    files: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)

    @property
    def seed_list(self) -> Sequence[int] | None:
        """The seeds themselves."""
        return seeds_up_to(self.seeds, self.said("seeds")) if isinstance(self.seeds, int) else self.seeds

    def called(self, name: str) -> str:
        """How the user said a field, for messages: `--seeds`, or `--grid mine.toml: seeds`."""
        if name in self.files:
            return f"--grid {self.files[name]}: {'set' if name == 'assignments' else name}"
        return _flag(name)

    def before_value(self, name: str) -> str:
        """The same up to the value: `--seeds `, or `--grid mine.toml: seeds = `."""
        return f"{self.called(name)}{' =' * (name in self.files)} "

    def said(self, name: str) -> str:
        """The same with its value: `--seeds 0`, or `--grid mine.toml: seeds = 0`."""
        return f"{self.before_value(name)}{getattr(self, name)}"

    def beside(self, name: str, other: str) -> str:
        """What to call another field that must be said with this one, where it is not said: in the same file, or a flag."""
        return other if name in self.files else _flag(other)

    def called_setting(self, name: str) -> str:
        """How the user said a setting, as `adversary.weight`: `--set`, or `--grid mine.toml: set`."""
        return f"--grid {self.files[name]}: set" if name in self.files else FLAGS["assignments"]

    def overridden_by(self, other: Request) -> Request:
        """This request with everything that `other` says in place of what this one says. Settings are replaced one by one:
        those that `other` does not name stay."""
        names = [f.name for f in fields(other) if f.name != "files" and getattr(other, f.name) is not None]
        said = {name: getattr(other, name) for name in names}
        if self.assignments and other.assignments is not None:
            replaced = self.replaced_by(other)
            said["assignments"] = [*(text for text in self.assignments if text not in replaced), *other.assignments]
        set_now = {_setting(text) for text in other.assignments or ()}
        files = {name: file for name, file in self.files.items() if name not in (*said, *set_now)}
        return replace(self, **said, files={**files, **other.files})

    def replaced_by(self, other: Request) -> dict[str, str]:
        """The assignments for which `other` has another of the same setting -> that one."""
        theirs = {_setting(text): text for text in other.assignments or ()}
        return {text: theirs[_setting(text)] for text in self.assignments or () if _setting(text) in theirs}


def _flag(name: str) -> str:
    return FLAGS.get(name, f"--{name.replace('_', '-')}")


def _setting(assignment: str) -> str:
    return same_setting(assignment.partition("=")[0].strip())


GRIDS = "fairssl_grids"  # the package of the grids that come with fairssl
_LISTS = {"methods": "methods", "datasets": "datasets", "attributes": "attributes", "targets": "targets"}
_NUMBERS = ("epochs", "image_size", "batch_size")
_WORDS = ("encoder", "weights", "preset", "pretrain_dataset", "pretrain_target", "pretrain_attribute", "pairs")
GRID_KEYS = (*_LISTS, "seeds", "set", "annotated", "equal_views", *_NUMBERS, *_WORDS)
PAIRS = ("adjacent", "all", "max")


def grid_names() -> dict[str, Path]:
    """name -> file of every grid that comes with fairssl."""
    found = importlib.util.find_spec(GRIDS)
    folders = [Path(p) for p in (found.submodule_search_locations or ())] if found else []
    return {path.stem: path for folder in folders for path in sorted(folder.glob("*.toml"))}


def grid_file(name: str) -> Path:
    """The file of a grid that is named by its path, or of one that comes with fairssl."""
    known = grid_names()
    if not name.strip():
        raise UserError(f"--grid {name!r} is empty; name a TOML file, or a grid of fairssl's: {', '.join(known)}")
    path = user_path(name)
    if path.is_file():
        return path
    if name not in known:
        raise UserError(f"--grid {name!r} is no file and no grid of fairssl's{did_you_mean(name, known)}")
    return known[name]


def load_grid(name: str, over: Request | None = None) -> list[Request]:
    """The requests of a grid: a TOML file's path, or the name of one that comes with fairssl.

    A file is one request, or several under `[[grid]]` whose runs are joined; what stands at the top is shared by all, and
    what a block says stands in place of it, of `set` by the setting. `over`: what is said beside the file, in place of what
    it says. Errors, `UserError`: name the file and its key.
    """
    return [found if over is None else found.overridden_by(over) for found in _sections(name, over or Request())]


def replaced_settings(name: str, over: Request) -> list[str]:
    """A line for each assignment of a grid file in whose place `over` has another."""
    found = {
        f"--set {new} stands in place of {old} in {path}"
        for path, section in ((grid_file(name), section) for section in _sections(name, over))
        for old, new in section.replaced_by(over).items()
    }
    return sorted(found)


def _sections(name: str, over: Request) -> list[Request]:
    """The requests of a file; checked together with what `over` says in place of them."""
    path = grid_file(name)
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UserError(f"--grid {path}: cannot be read: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"--grid {path}: not TOML: {error}") from error
    blocks = content.pop("grid", [{}])
    if not isinstance(blocks, list) or not blocks or not all(isinstance(block, dict) for block in blocks):
        raise UserError(
            f"--grid {path}: grid = {_shown(blocks)}: several grids stand under [[grid]], with two brackets, each with "
            "its own keys; of a single one leave the heading out"
        )
    top = _request(path, content)
    sections = [top.overridden_by(_request(path, block)) for block in blocks]
    for section in sections:
        merged = section.overridden_by(over)
        if merged.methods is None:
            raise UserError(
                f'--grid {path}: it names no methods; a grid file says which, as methods = ["simclr", "sofclr"]'
            )
        check_request(merged)
        for assignments in sweep(section.assignments or (), section.called("assignments")):
            parse_set(assignments, section.called("assignments"))
    return sections


def _request(path: Path, values: Mapping[str, Any]) -> Request:
    said: dict[str, Any] = {}
    for key, value in values.items():
        if key not in GRID_KEYS:
            hint = "; several grids in one file stand under [[grid]]" if isinstance(value, list | dict) else ""
            raise UserError(f"--grid {path}: unknown key {key!r}{did_you_mean(key, GRID_KEYS)}{hint}")
        wanted, fits = _type_of(key, value)
        if not fits:
            raise UserError(f"--grid {path}: {key} = {_shown(value)} is not {wanted}")
        said["assignments" if key == "set" else key] = value
    settings = {_setting(text) for text in said.get("assignments", ())}
    return Request(**said, files=dict.fromkeys((*said, *settings), str(path)))


def _type_of(key: str, value: Any) -> tuple[str, bool]:
    """What a key wants, in words, and whether the value is that."""
    words = isinstance(value, list) and all(isinstance(item, str) for item in value)
    whole = isinstance(value, int) and not isinstance(value, bool)
    if key in _LISTS:
        return 'a list of at least one name, as ["simclr", "sofclr"]', words and bool(value)
    if key == "set":
        return 'a list of assignments, as ["adversary.weight=0.5"]', words
    if key == "equal_views":
        return "true or false", isinstance(value, bool)
    if key == "seeds":
        listed = isinstance(value, list) and bool(value) and all(type(item) is int for item in value)
        return "a number of seeds, as 4, or a list of them, as [3, 7]", whole or listed
    if key in _NUMBERS:
        return "a whole number, as 100 (one number: several need a [[grid]] each)", whole
    if key == "annotated":
        return "a share, as 0.05", whole or isinstance(value, float)
    return 'a word in quotes, as "resnet18"', isinstance(value, str)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def seeds_up_to(n: int, said: str | None = None) -> tuple[int, ...]:
    """Seeds 0 to n - 1. `said` begins messages."""
    said = said or f"--seeds {n}"
    if n < 1:
        raise UserError(f"{said}: must be at least 1")
    if n > MAX_SEEDS:
        raise UserError(f"{said}: it is a number of runs; at most {MAX_SEEDS}")
    return tuple(range(n))


def parse_seeds(text: str, flag: str = "--seeds") -> tuple[int, ...]:
    """`4` is seeds 0 to 3; `3,7` is seeds 3 and 7, and `3,` seed 3 alone. `flag` begins messages."""
    words = text.split(",")
    if len(words) > 1 and not words[-1].strip():
        words.pop()
    if not all(word.strip().isdecimal() for word in words):
        raise UserError(
            f"{flag} {text!r}: a number, as 4 for seeds 0 to 3, or a list, as 3,7 for seeds 3 and 7; '3,' is seed 3 alone"
        )
    numbers = tuple(int(word) for word in words)
    return numbers if "," in text else seeds_up_to(numbers[0], f"{flag} {text}")


def check_seeds(seeds: Sequence[int], called: str) -> None:
    """Refuse a seed that is given twice or is below 0. `called` begins messages."""
    _check_once(seeds, called)
    for seed in seeds:
        if seed < 0:
            raise UserError(f"{called} {seed}: a seed is at least 0")


def _check_once(values: Sequence[Any], called: str) -> None:
    twice = [value for i, value in enumerate(values) if value in values[:i]]
    if twice:
        raise UserError(f"{called} names {twice[0]!r} twice; name it once")


def check_request(request: Request) -> None:
    """Refuse numbers out of range and names given twice, before anything is looked up."""
    for name, low in (("epochs", 1), ("image_size", 8), ("batch_size", 2)):
        value = getattr(request, name)
        if value is not None and value < low:
            raise UserError(f"{request.said(name)}: must be at least {low}")
    for name in (*_WORDS, "data_dir"):
        value = getattr(request, name)
        if value is not None and not str(value):
            raise UserError(f"{request.called(name)} is empty; leave it out for the default")
    if request.weights is not None and request.encoder is None:
        raise UserError(
            f"{request.said('weights')} needs {request.beside('weights', 'encoder')}: the model that they are of, as resnet50"
        )
    for name, known in (("preset", PRESETS), ("pairs", PAIRS)):
        value = getattr(request, name)
        if value is not None and value not in known:
            where, _, key = request.called(name).rpartition(": ")
            raise UserError(f"{where}{': ' * bool(where)}unknown {key} {value!r}{did_you_mean(value, known)}")
    if request.annotated is not None and not 0 < request.annotated <= 1:
        raise UserError(f"{request.said('annotated')}: must be a share in (0, 1], as 0.05")
    for name in _LISTS:
        _check_once(getattr(request, name) or (), request.called(name))
    check_seeds(request.seed_list or (), request.called("seeds"))
    if request.pretrain_dataset is None and (request.pretrain_target or request.pretrain_attribute):
        name = "pretrain_target" if request.pretrain_target else "pretrain_attribute"
        needed = request.beside(name, "pretrain_dataset")
        raise UserError(f"{request.called(name)} needs {needed}: the dataset that encoders are trained on")
