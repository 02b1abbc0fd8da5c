"""Stopping between two steps, with a checkpoint."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class GracefulStop:
    """Turns SIGTERM and Ctrl-C into a stop between two training steps, with a checkpoint.

    Where nothing is trained they raise KeyboardInterrupt at once. Called, it says whether a signal has come.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self._training = False

    def __call__(self) -> bool:
        return self.signal is not None

    def ask(self, number: int) -> None:
        """As if the signal had come, but without an interrupt: also where nothing is trained."""
        self.signal = self.signal or number

    def _handle(self, number: int, frame: FrameType | None) -> None:
        # A second Ctrl-C does not wait for the end of the step. A second SIGTERM says nothing new: where a whole group of
        # processes is sent one, each gets it from the sender and once more from its parent.
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
                signal.signal(number, signal.SIG_DFL if handler is None else handler)  # None: not set by Python

    @contextmanager
    def training(self) -> Iterator[None]:
        """Within it a signal waits for the end of a step."""
        self._training = True
        try:
            yield
        finally:
            self._training = False

    @property
    def exit_code(self) -> int:
        """75 after SIGTERM, so that a scheduler requeues; 130 after Ctrl-C."""
        return 130 if self.signal in (None, signal.SIGINT) else 75
