"""What an executor reports of the runs it does."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from fairssl.plan.resolve import Run
from fairssl.store.record import Record
from fairssl.store.runs import RunStore


class Reporter(Protocol):
    """Told of everything that goes on during a launch."""

    def stage(self, what: str, done: int, total: int) -> None:
        """A `Progress` for whatever goes on now."""

    def overall(self, what: str, done: float, total: int) -> None:
        """What is done now, and how many of all pretrainings are finished; a worker's share of one may be counted in."""

    def note(self, text: str, detail: str = "") -> None:
        """Something the user should know, said once: of several notes that differ in their detail alone, the first."""

    def done(self, run: Run, record: Record) -> None:
        """A run has its record."""


class SilentReporter:
    """A reporter that shows nothing."""

    def stage(self, what: str, done: int, total: int) -> None:
        pass

    def overall(self, what: str, done: float, total: int) -> None:
        pass

    def note(self, text: str, detail: str = "") -> None:
        pass

    def done(self, run: Run, record: Record) -> None:
        pass


def report_ended(runs: Iterable[Run], store: RunStore, log: Reporter) -> None:
    for run in runs:
        record = store.read_record(run.spec.key)
        if record is not None:
            log.done(run, record)
