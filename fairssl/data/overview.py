"""What is on this machine of each dataset. Whatever a dataset does wrong is said of it, and stops no other."""

from __future__ import annotations

import traceback
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fairssl import kinds
from fairssl.data.files import telling
from fairssl.data.places import data_root, out_of_memory, read_fault
from fairssl.interfaces import Dataset
from fairssl.machine import memory_bytes
from fairssl.registry import BrokenPlugin
from fairssl.types import Card, DataFacts, Progress, UserError, printable, silent


@dataclass(frozen=True)
class State:
    """A dataset here. `root`: where it was found, None for embedded data. `missing`: what to do where it was not found;
    `fault`: what is wrong with the dataset itself, and then `card` may be None."""

    name: str
    card: Card | None = None
    n_images: int | None = None
    root: Path | None = None
    missing: str | None = None
    fault: str | None = None

    @property
    def found(self) -> bool:
        return self.n_images is not None

    @property
    def where(self) -> str | None:
        """The root as it can be printed."""
        return None if self.root is None else printable(str(self.root))


def overview(data_dir: Path | str | None = None) -> list[State]:
    """Every dataset that is registered, looked for as `data_root` says."""
    return [_state(name, data_dir) for name in kinds.datasets.where()]


def _state(name: str, data_dir: Path | str | None) -> State:
    state = State(name)
    try:
        source = kinds.datasets.build(name, {})
        if not isinstance(source.card, Card):
            raise TypeError(f"its card is a {type(source.card).__name__}, not a Card")
        state = replace(state, card=source.card)
        if not source.card.targets:  # it takes any images and any table: looking would read all that lies there
            return replace(state, missing=f"of your own: {source.card.obtain}")
        root = root_of(source, data_dir)
        facts = inspect(source, root)
        return replace(state, n_images=facts.n_images, root=root)
    except BrokenPlugin as error:
        return replace(state, fault=_line(error))
    except UserError as error:
        return replace(state, missing=_line(error)) if state.card is not None else replace(state, fault=_line(error))
    except (Exception, SystemExit) as error:  # a dataset's author may have made any mistake
        return replace(state, fault=_line(error, type(error).__name__))


def _line(error: BaseException, kind: str = "") -> str:
    return printable(" ".join(f"{kind}{': ' if kind else ''}{error}".split()))


def root_of(source: Dataset, data_dir: Path | str | None) -> Path | None:
    """Where a dataset is looked for; None for one that needs no files."""
    return None if source.card.embedded else data_root(data_dir, source.name)


def inspect(source: Dataset, root: Path | None, progress: Progress = silent) -> DataFacts:
    """What a dataset finds at `root`; `progress` is told of files that are read for their checksums.

    Errors: `UserError`, also for a file or folder that may not be read; `BrokenPlugin` with the line of the dataset's file
    that failed, for everything else.
    """
    with telling(progress):
        facts = _guarded(source, "inspect", root)
    if not isinstance(facts, DataFacts) or not isinstance(facts.n_images, int):
        raise BrokenPlugin(f"dataset {source.name!r}: inspect must return DataFacts with a whole number of images")
    return replace(facts, notes=tuple(map(printable, facts.notes)))


def check_memory(name: str, facts: DataFacts | None, image_size: int) -> None:
    """Refuse images of an embedded dataset that are drawn at any size and take more memory than this machine has: the
    system would end the process without a word. Images in files are decoded to disk, where there is a check of its own."""
    there = memory_bytes()
    if facts is None or facts.max_image_size is not None or there is None:
        return
    needed = facts.n_images * 3 * image_size**2
    if needed > there:
        raise UserError(
            f"{name}: {facts.n_images:,} images of {image_size} px take {needed / 1e9:,.1f} GB, and this machine has "
            f"{there / 1e9:,.1f} GB of memory; use a smaller --image-size or fewer images"
        )


def card_at(source: Dataset, root: Path | None) -> Card:
    """A dataset's card for the data at `root`. Errors as `inspect`."""
    card: Card = _guarded(source, "card_for", root)
    return card


def _guarded(source: Dataset, method: str, root: Path | None) -> Any:
    try:
        return getattr(source, method)(root)
    except UserError:
        raise
    except OSError as error:
        raise read_fault(source.name, error, root) from error
    except MemoryError as error:
        raise out_of_memory(source.name, error) from error
    except (Exception, SystemExit) as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        cause = " ".join(f"{type(error).__name__}: {error}".split())
        raise BrokenPlugin(
            f"dataset {source.name!r} fails in {method}: {cause} ({frame.filename}:{frame.lineno})"
        ) from error
