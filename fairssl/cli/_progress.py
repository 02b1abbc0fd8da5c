"""Progress bars on stderr, on a terminal only: piped output has none of it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairssl.pipeline import Cell
    from fairssl.store import Record


class Bars:
    """A launch's log. This one says nothing but its notes; on a terminal `_Live` takes its place."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def stage(self, what: str, done: int, total: int) -> None:
        """A `Progress` for whatever goes on now."""

    def note(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._print(f"fairssl: {text}")

    def overall(self, what: str, done: float, total: int) -> None:
        """How many of all pretrainings are done."""

    def done(self, cell: Cell, record: Record) -> None:
        if record.state != "ok":
            self._print(f"fairssl: {cell.label} seed {cell.spec.seed} {record.state}: {record.reason}")

    def _print(self, line: str) -> None:
        print(line, file=sys.stderr)


class _Live(Bars):
    """One bar over all pretrainings with the time left, one for the stage at hand."""

    def __init__(self) -> None:
        super().__init__()
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self.bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=Console(stderr=True),
            transient=True,
        )
        self._all = self.bars.add_task("all", total=None, visible=False)
        self._stage = self.bars.add_task("", total=None, visible=False)
        self._what = ""
        self._done = 0.0

    def stage(self, what: str, done: int, total: int) -> None:
        if what != self._what:
            self._what = what
            self.bars.reset(self._stage, description=what, total=total, visible=True)
        self.bars.update(self._stage, completed=done, total=total)
        if what == "train":
            self.bars.update(self._all, completed=self._done + done / max(total, 1))

    def overall(self, what: str, done: float, total: int) -> None:
        if done < self._done:  # a worker died: its part is to be done again
            self.bars.reset(self._all, total=total, visible=True)
        self._done, self._what = done, ""
        self.bars.update(self._all, description=what, total=total, completed=done, visible=True)

    def done(self, cell: Cell, record: Record) -> None:
        if record.state != "ok":
            super().done(cell, record)
            return
        values = {k: record.metrics.get(k) for k in ("Acc", "ED")}
        shown = "  ".join(f"{k} {100 * v:.1f}" for k, v in values.items() if v is not None)
        data = cell.spec.data
        self._print(f"{cell.label:14} {data.dataset}/{data.target}/{data.attribute} seed {cell.spec.seed}  {shown}")

    def _print(self, line: str) -> None:
        self.bars.console.print(line, highlight=False, markup=False)


@contextmanager
def bars() -> Iterator[Bars]:
    """The bars of one command: live on a terminal, silent elsewhere."""
    if not sys.stderr.isatty():
        yield Bars()
        return
    live = _Live()
    with live.bars:
        yield live
