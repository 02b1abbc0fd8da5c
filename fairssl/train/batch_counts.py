"""Batch norm counts the batches it has seen, one small addition for each layer: here one for all layers of a step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

_NAME = "num_batches_tracked"


class _Deferred(Tensor):
    """The count of one layer, to which `add_` adds later. Whoever reads it sees the value before the step."""

    pending: int
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def add_(self, other: Any, *args: Any, **kwargs: Any) -> Tensor:
        if args or kwargs or not isinstance(other, int):
            return super().add_(other, *args, **kwargs)
        self.pending += other
        return self


class BatchCounts:
    """The `num_batches_tracked` of every batch norm in some networks that does not need it in its forward pass."""

    def __init__(self, networks: Iterable[nn.Module]) -> None:
        layers = dict.fromkeys(layer for network in networks for layer in network.modules() if _counts(layer))
        self._buffers = [layer._buffers for layer in layers]
        self._counts: list[Tensor] = []
        self.deferred: list[_Deferred] = []

    @contextmanager
    def together(self) -> Iterator[None]:
        """What the layers count within the block is added at its end, all at once."""
        counts = [buffers[_NAME] for buffers in self._buffers]
        if len(counts) != len(self._counts) or any(a is not b for a, b in zip(counts, self._counts, strict=True)):
            self._counts = [count for count in counts if count is not None]
            self.deferred = [count.as_subclass(_Deferred) for count in self._counts]
        for buffers, later in zip(self._buffers, self.deferred, strict=True):
            later.pending = 0
            buffers[_NAME] = later
        try:
            yield
        finally:
            for buffers, count in zip(self._buffers, counts, strict=True):
                buffers[_NAME] = count
        for n in sorted({later.pending for later in self.deferred} - {0}):
            torch._foreach_add_(
                [c for c, later in zip(self._counts, self.deferred, strict=True) if later.pending == n], n
            )


def _counts(layer: nn.Module) -> bool:
    """Whether it counts, and only that: without a momentum it averages over all batches by that count."""
    return (
        isinstance(layer, _BatchNorm)
        and layer.track_running_stats
        and layer.num_batches_tracked is not None
        and layer.momentum is not None
    )
