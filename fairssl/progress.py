"""Progress: bars on a terminal, one line that is kept up to date in a notebook, a line now and then elsewhere.

On a terminal and elsewhere it goes to stderr. A stderr that takes nothing, because it is closed or full or its terminal is
gone, stops no training.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from fairssl.plan.estimate import format_duration

if TYPE_CHECKING:
    from fairssl.plan.resolve import Run
    from fairssl.store.record import Record

LINE_SECONDS = 60.0  # where there is no terminal: the least time between two lines about what goes on
NOTEBOOK_SECONDS = 0.5  # the same for the line of a notebook


class LineReporter:
    """A launch's reporter for logs: a line for every run that ends, and at most every minute one about what goes on, with
    the time that is left."""

    def __init__(self) -> None:
        self._said: set[str] = set()
        self._printed = time.monotonic()
        self._job, self._done, self._total = "", 0.0, 0  # as `overall` was last told
        self._trained = 0.0  # share of the pretraining at hand
        self._first: tuple[float, float] | None = None  # when training was first heard of, and how much was done then
        self._stage, self._stage_started, self._stage_first = "", self._printed, 0

    def stage(self, what: str, done: int, total: int) -> None:
        """A `Progress` for whatever goes on now."""
        self._note_stage(what, done, total)
        if total and done < total and self._is_time():
            job = f"{self._job}: " if self._job else ""
            self._show(f"{job}{what} {done:,} of {total:,}{self._time_left() or self._stage_time_left(done, total)}")

    def overall(self, what: str, done: float, total: int) -> None:
        """What is done now, and how many of all pretrainings are finished."""
        self._note_job(what, done, total)
        if self._is_time():
            self._show(f"{what}{self._time_left()}")

    def note(self, text: str, detail: str = "") -> None:
        """Something the user should know, said once: of several notes that differ in their detail alone, the first."""
        if text not in self._said:
            self._said.add(text)
            self._print(f"{text}: {detail}" if detail else text)

    def done(self, run: Run, record: Record) -> None:
        """A run has its record."""
        self._printed = time.monotonic()
        self._print(ended(run, record))

    def _note_stage(self, what: str, done: int, total: int) -> bool:
        """Keep where the stage is; whether it has just begun."""
        begins = what != self._stage or done < self._stage_first
        if begins:
            self._stage, self._stage_started, self._stage_first = what, time.monotonic(), done
        if what == "train" and total:
            self._trained = done / total
            self._note_pace()
        return begins

    def _note_job(self, what: str, done: float, total: int) -> None:
        if done != self._done:
            self._trained = 0.0
        self._job, self._done, self._total = what, done, total
        self._note_pace()

    def _note_pace(self) -> None:
        """Start the clock with the first training step: what comes before says nothing of the pace."""
        done = self._done + self._trained
        if self._first is None and done:
            self._first = time.monotonic(), done

    def _is_time(self) -> bool:
        now = time.monotonic()
        if now - self._printed < self._interval():
            return False
        self._printed = now
        return True

    def _interval(self) -> float:
        return LINE_SECONDS

    def _time_left(self) -> str:
        """Until all pretrainings are done, at the pace so far; empty where nothing is known yet or none is left."""
        done = self._done + self._trained
        if self._first is None or not self._first[1] < done < self._total:
            return ""
        pace = (time.monotonic() - self._first[0]) / (done - self._first[1])
        return f", about {format_duration(pace * (self._total - done))} left in all"

    def _stage_time_left(self, done: int, total: int) -> str:
        """Until this stage is over; empty where its pace is not known yet."""
        if done <= self._stage_first:
            return ""
        pace = (time.monotonic() - self._stage_started) / (done - self._stage_first)
        return f", about {format_duration(pace * (total - done))} left of it"

    def _show(self, text: str) -> None:
        """Tell what goes on."""
        self._print(text)

    def _print(self, text: str) -> None:
        """Write a line that stays."""
        if sys.stderr is not None:
            with suppress(OSError, ValueError):
                print(f"fairssl: {text}", file=sys.stderr, flush=True)


class NotebookReporter(LineReporter):
    """For notebooks: what goes on is one line of the cell's output, replaced a few times a second."""

    def __init__(self) -> None:
        super().__init__()
        self._handle: Any = None

    def _interval(self) -> float:
        return NOTEBOOK_SECONDS

    def _show(self, text: str) -> None:
        from IPython.display import display

        content = {"text/plain": text}
        if self._handle is None:
            self._handle = display(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)

    def close(self) -> None:
        """Leave an empty line where progress was."""
        if self._handle is not None:
            self._handle.update({"text/plain": ""}, raw=True)


class BarReporter(LineReporter):
    """For terminals: a bar over all pretrainings with the time left, and one for the stage at hand."""

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
        self._all_bar = self.bars.add_task("all", total=None, visible=False)
        self._stage_bar = self.bars.add_task("", total=None, visible=False)

    def stage(self, what: str, done: int, total: int) -> None:
        if self._note_stage(what, done, total):
            self.bars.reset(self._stage_bar, description=what, total=total, visible=True)
        self.bars.update(self._stage_bar, completed=done, total=total)
        self.bars.update(self._all_bar, completed=self._done + self._trained)

    def overall(self, what: str, done: float, total: int) -> None:
        before = self._done + self._trained
        self._note_job(what, done, total)
        now = self._done + self._trained
        if now < before:  # a worker died: what it had done of its pretraining is to be done again
            self.bars.reset(self._all_bar, total=total, visible=True)
        self.bars.update(self._all_bar, description=what, total=total, completed=now, visible=True)

    def _print(self, text: str) -> None:
        self.bars.console.print(text, highlight=False, markup=False, soft_wrap=True)


def ended(run: Run, record: Record) -> str:
    """A line about a run that has its record: accuracy and equalised odds x 100, or how and why it ended badly."""
    if record.state != "ok":
        return f"{run.name} {record.state}: {record.reason}"
    values = {k: record.metrics.get(k) for k in ("Acc", "ED")}
    return f"{run.name}: " + ", ".join(f"{k} {100 * v:.1f}" for k, v in values.items() if v is not None)


@contextmanager
def reporter() -> Iterator[LineReporter]:
    """The reporter of one command or call."""
    if _in_notebook():
        notebook = NotebookReporter()
        try:
            yield notebook
        finally:
            notebook.close()
    elif _on_terminal():
        terminal = BarReporter()
        with terminal.bars:
            yield terminal
    else:
        yield LineReporter()


def _on_terminal() -> bool:
    """Whether stderr is a terminal that can move its cursor, as a bar must."""
    if sys.stderr is None or not sys.stderr.isatty():
        return False
    from rich.console import Console

    return not Console(stderr=True).is_dumb_terminal


def _in_notebook() -> bool:
    if "ipykernel" not in sys.modules:
        return False
    from rich.console import Console

    return Console(stderr=True).is_jupyter
