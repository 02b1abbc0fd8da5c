"""Stopping between two steps, with a checkpoint."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class GracefulStop:
    """Turns SIGTERM and Ctrl-C into a stop between two steps, with a checkpoint; outside training they act at once."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self._training = False

    def __call__(self) -> bool:
        return self.signal is not None

    def ask(self, number: int) -> None:
        """As if the signal had come, but never at once."""
        self.signal = self.signal or number

    def _handle(self, number: int, frame: FrameType | None) -> None:
        # A second Ctrl-C does not wait for the step. A second SIGTERM is the same wish: a group of processes that is sent
        # one gets it from the sender and from its parent.
        if not self._training or (self.signal is not None and number == signal.SIGINT):
            self.signal = self.signal or number
            raise KeyboardInterrupt
        self.signal = self.signal or number

    @contextmanager
    def listening(self, *more: int) -> Iterator[None]:
        """Listen to SIGTERM, SIGINT and `more` during the block; outside the main thread, to nothing."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._handle) for number in (signal.SIGTERM, signal.SIGINT, *more)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def training(self) -> Iterator[None]:
        self._training = True
        try:
            yield
        finally:
            self._training = False

    @property
    def exit_code(self) -> int:
        """75 after SIGTERM, so that a scheduler requeues; 130 after Ctrl-C."""
        return 130 if self.signal in (None, signal.SIGINT) else 75
