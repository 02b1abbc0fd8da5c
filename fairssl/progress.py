"""Progress on stderr: bars on a terminal and in a notebook that has ipywidgets, a line now and then elsewhere, as in a
scheduler's log."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairssl.plan.resolve import Run
    from fairssl.store.record import Record

LINE_SECONDS = 60.0  # where there is no terminal, what goes on is told at most that often


class LineReporter:
    """A launch's reporter where stderr is no terminal: a line for every run that ends, and for what goes on at most every
    minute, with the time that is left."""

    def __init__(self) -> None:
        self._said: set[str] = set()
        self._started = self._told = time.monotonic()
        self._what, self._done, self._total = "", 0.0, 0
        self._part = 0.0  # of the pretraining at hand

    def stage(self, what: str, done: int, total: int) -> None:
        """A `Progress` for whatever goes on now."""
        if what == "train" and total:
            self._part = done / total
        if total and done < total and self._is_time():
            left = _time_left(time.monotonic() - self._started, self._done + self._part, self._total)
            self._print(f"fairssl: {self._what or 'data'}: {what} {done} of {total}{left}")

    def overall(self, what: str, done: float, total: int) -> None:
        """How many of all pretrainings are done."""
        self._what, self._done, self._total, self._part = what, done, total, 0.0
        if self._is_time():
            self._print(f"fairssl: {what}{_time_left(time.monotonic() - self._started, done, total)}")

    def note(self, text: str) -> None:
        """Something the user should know, said once."""
        if text not in self._said:
            self._said.add(text)
            self._print(f"fairssl: {text}")

    def done(self, run: Run, record: Record) -> None:
        """A run has its record."""
        self._told = time.monotonic()
        self._print(f"fairssl: {ended(run, record)}")

    def _is_time(self) -> bool:
        if time.monotonic() - self._told < LINE_SECONDS:
            return False
        self._told = time.monotonic()
        return True

    def _print(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)


class BarReporter(LineReporter):
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
        self._stage_name = ""

    def stage(self, what: str, done: int, total: int) -> None:
        if what != self._stage_name:
            self._stage_name = what
            self.bars.reset(self._stage, description=what, total=total, visible=True)
        self.bars.update(self._stage, completed=done, total=total)
        if what == "train":
            self.bars.update(self._all, completed=self._done + done / max(total, 1))

    def overall(self, what: str, done: float, total: int) -> None:
        if done < self._done:  # a worker died: its part is to be done again
            self.bars.reset(self._all, total=total, visible=True)
        self._done, self._stage_name = done, ""
        self.bars.update(self._all, description=what, total=total, completed=done, visible=True)

    def _print(self, line: str) -> None:
        self.bars.console.print(line.removeprefix("fairssl: "), highlight=False, markup=False)


def ended(run: Run, record: Record) -> str:
    """A line about a run that has its record: accuracy and equalised odds x 100, or how and why it ended badly."""
    if record.state != "ok":
        return f"{run.name} {record.state}: {record.reason}"
    values = {k: record.metrics.get(k) for k in ("Acc", "ED")}
    return f"{run.name}: " + ", ".join(f"{k} {100 * v:.1f}" for k, v in values.items() if v is not None)


def _time_left(seconds: float, done: float, total: int) -> str:
    from fairssl.plan.estimate import format_duration

    if not total or done <= 0:
        return ""
    return f"; {done:.1f} of {total} pretrainings, about {format_duration(seconds * (total - done) / done)} left"


@contextmanager
def reporter() -> Iterator[LineReporter]:
    """The reporter of one command or call: bars on a terminal, or in a notebook that can draw them, lines elsewhere."""
    if not (sys.stderr.isatty() or _in_notebook_with_bars()):
        yield LineReporter()
        return
    live = BarReporter()
    with live.bars:
        yield live


def _in_notebook_with_bars() -> bool:
    """Rich moves its bars by ipywidgets; where these are not, it would warn at every move."""
    from rich.console import Console

    in_notebook = "ipykernel" in sys.modules and Console(stderr=True).is_jupyter
    return in_notebook and importlib.util.find_spec("ipywidgets") is not None
