"""Means of every term per epoch, summed on the device and read back once."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor


class Diverged(RuntimeError):
    """A loss stopped being a number: the step, the term and its value."""


class History:
    """`rows`: one mapping per finished epoch, with `epoch` and `step` counted from 1, `lr`, the mean of every term, and the
    spread of the last step's features (`collapse.Spread`).
    `sums`: term -> float64 sum over the steps of the epoch that is under way, on the device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.rows: list[dict[str, float]] = []
        self.sums: dict[str, Tensor] = {}

    def add(self, terms: Mapping[str, Tensor]) -> None:
        """Add a step's terms to the sums of its epoch."""
        for name, value in terms.items():
            if name not in self.sums:
                self.sums[name] = torch.zeros((), dtype=torch.float64, device=self.device)
            self.sums[name].add_(value)

    def close_epoch(
        self, steps_per_epoch: int, done: int, n_steps: int, lr: Tensor, infinite_at: Tensor
    ) -> dict[str, float]:
        """Read the epoch's sums back, once, and begin the next; the new row. `Diverged` if a loss was not finite."""
        read = torch.stack([infinite_at, lr.double(), *self.sums.values()]).tolist()
        bad, rate = int(read[0]), read[1]
        means = {name: value / steps_per_epoch for name, value in zip(self.sums, read[2:], strict=True)}
        if bad >= 0:
            terms = ", ".join(f"{name} {value}" for name, value in means.items() if not math.isfinite(value))
            raise Diverged(f"step {bad + 1} of {n_steps}: the loss is not finite ({terms})")
        self.rows.append({"epoch": done // steps_per_epoch, "step": done, "lr": rate, **means})
        for value in self.sums.values():
            value.zero_()
        return self.rows[-1]
