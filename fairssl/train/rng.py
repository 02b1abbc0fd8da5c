"""States of the global random generators: those that dropout and a part's own `torch.rand` draw from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor


def get_rng_state(device: torch.device) -> list[Tensor]:
    """The state of the CPU's generator and, on a GPU, that of the device's, in this order."""
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]


def set_rng_state(device: torch.device, states: Sequence[Tensor]) -> None:
    """The inverse of `get_rng_state`."""
    torch.set_rng_state(states[0].cpu())
    if device.type == "cuda" and len(states) > 1:
        torch.cuda.set_rng_state(states[1].cpu(), device)


@contextmanager
def preserved(device: torch.device, usable: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """Leave the global generators after the block as they were before it; not if the device is no longer `usable`."""
    before = get_rng_state(device)
    try:
        yield
    finally:
        if usable():
            set_rng_state(device, before)
