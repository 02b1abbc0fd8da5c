"""What an executor tells while it goes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from fairssl.plan.resolve import Run
from fairssl.store.record import Record
from fairssl.store.runs import RunStore


class Reporter(Protocol):
    """What a launch reports while it goes."""

    def stage(self, what: str, done: int, total: int) -> None:
        """A `Progress` for whatever goes on now."""

    def overall(self, what: str, done: float, total: int) -> None:
        """How many of all pretrainings are done, the parts of those at work included."""

    def note(self, text: str) -> None:
        """Something the user should know, said once."""

    def done(self, run: Run, record: Record) -> None:
        """A run has its record."""


class SilentReporter:
    """A log that says nothing."""

    def stage(self, what: str, done: int, total: int) -> None:
        pass

    def overall(self, what: str, done: float, total: int) -> None:
        pass

    def note(self, text: str) -> None:
        pass

    def done(self, run: Run, record: Record) -> None:
        pass


def report_ended(runs: Iterable[Run], store: RunStore, log: Reporter) -> None:
    for run in runs:
        record = store.read_record(run.spec.key)
        if record is not None:
            log.done(run, record)
