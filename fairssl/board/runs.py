"""Which runs of a folder a board has."""

from __future__ import annotations

from collections.abc import Iterator

from fairssl.board.wanted import Wanted
from fairssl.store.record import Record
from fairssl.store.runs import RunStore
from fairssl.types import counted


class BoardRuns:
    """The runs of a grid, or all but those that a search tried and did not choose; `trials`: these too.

    Iterated once: records in order of their keys, each with its text as one line.
    """

    def __init__(self, store: RunStore, wanted: Wanted | None = None, trials: bool = False) -> None:
        self.wanted = wanted
        self.n_left_out = 0  # runs of a search, counted while iterating
        self._store = store
        self._rejected = store.trials() if wanted is None and not trials else set()

    def __iter__(self) -> Iterator[tuple[Record, bytes]]:
        self.n_left_out = 0
        for record, line in self._store.records_and_lines():
            if record.key in self._rejected:
                self.n_left_out += 1
            elif self.wanted is None or self.wanted.has(record.spec):
                yield record, line


def left_out(n: int, way: str) -> str:
    """How many runs of a search are left out, and the way to have them; empty where none is."""
    return f"left out: {counted(n, 'run')}, tried by fairssl tune and not chosen; {way}" if n else ""


def only_trials(folder: object, way: str) -> str:
    """What is wrong where all runs were tried by a search and none is chosen, and the way out."""
    return f"{folder} holds trials of `fairssl tune` alone, of which none is chosen yet; {way}"
