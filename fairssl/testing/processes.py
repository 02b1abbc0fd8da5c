"""Threads that play the processes of a step."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

from fairssl import distributed

T = TypeVar("T")


class _Thread:
    """One of several threads that play the processes of a step."""

    def __init__(self, rank: int, shares: list[Tensor], barrier: threading.Barrier) -> None:
        self.rank, self.size = rank, len(shares)
        self._shares, self._barrier = shares, barrier

    def add(self, x: Tensor) -> None:
        self._shares[self.rank] = x
        self._barrier.wait()
        total = torch.stack(self._shares).sum(0)
        self._barrier.wait()
        x.copy_(total)


def simulate_processes(functions: Sequence[Callable[[], T]]) -> list[T]:
    """What the functions give, each as one of several processes that train a run; threads play them."""
    barrier = threading.Barrier(len(functions), timeout=60)
    shares = [torch.zeros(())] * len(functions)

    def play(rank: int) -> T:
        try:
            with distributed.simulated(_Thread(rank, shares, barrier)):
                return functions[rank]()
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(len(functions)) as pool:
        running = [pool.submit(play, rank) for rank in range(len(functions))]
    errors = [error for error in (one.exception() for one in running) if error is not None]
    for error in sorted(errors, key=lambda error: isinstance(error, threading.BrokenBarrierError)):
        raise error  # the first that is not about the others' end
    return [one.result() for one in running]
