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
    `sums`: term -> float64 sum over the steps of the epoch that is under way, on the device. `n_finite`: how many steps of
    it had a finite loss before one had not, 0-d."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.rows: list[dict[str, float]] = []
        self.sums: dict[str, Tensor] = {}
        self.n_finite = torch.zeros((), dtype=torch.float64, device=device)
        self._vector = torch.empty(0, device=device)  # whose entries the sums of `_together` are
        self._together: tuple[str, ...] = ()  # float32 terms, added all at once

    def add(self, terms: Mapping[str, Tensor]) -> None:
        """Add a step's terms, "loss" among them, to the sums of its epoch."""
        single = tuple(name for name, value in terms.items() if value.dtype == torch.float32)
        if not terms.keys() <= self.sums.keys() or single != self._together:
            self._lay_out(dict.fromkeys([*terms, *self.sums]), single)
        if single:
            self._vector.add_(torch.stack([terms[name] for name in single]))
        for name, value in terms.items():
            if value.dtype != torch.float32:
                self.sums[name].add_(value)
        self.n_finite.add_((self.sums["loss"] * 0).eq_(0))  # a sum that is not finite stays so

    def _lay_out(self, names: Mapping[str, None], together: tuple[str, ...]) -> None:
        """Make places for the sums, those of `together` side by side; what there is stays."""
        before, self._together = self.sums, together
        self._vector = torch.zeros(len(together), dtype=torch.float64, device=self.device)
        places = dict(zip(together, self._vector.unbind(), strict=True))
        self.sums = {name: places.get(name, torch.zeros_like(self.n_finite)) for name in names}
        for name, value in before.items():
            self.sums[name].copy_(value)

    def close_epoch(self, steps_per_epoch: int, done: int, n_steps: int, lr: Tensor) -> dict[str, float]:
        """Read the epoch's sums back, once, and begin the next; the new row. `Diverged` if a loss was not finite."""
        n_finite, rate, *sums = torch.stack([self.n_finite, lr.double(), *self.sums.values()]).tolist()
        means = {name: value / steps_per_epoch for name, value in zip(self.sums, sums, strict=True)}
        if n_finite < steps_per_epoch:
            terms = ", ".join(f"{name} {value}" for name, value in means.items() if not math.isfinite(value))
            first = done - steps_per_epoch + int(n_finite) + 1
            raise Diverged(f"step {first} of {n_steps}: the loss is not finite ({terms})")
        self.rows.append({"epoch": done // steps_per_epoch, "step": done, "lr": rate, **means})
        for value in (self.n_finite, *self.sums.values()):
            value.zero_()
        return self.rows[-1]

    def tensors(self) -> dict[str, Tensor]:
        """What the epoch that is under way has come to, for a checkpoint."""
        return {"n_finite": self.n_finite, **{f"sum.{name}": value for name, value in self.sums.items()}}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """The inverse of `tensors`; other names are passed over."""
        self.n_finite.copy_(tensors["n_finite"])
        self.sums = {k.removeprefix("sum."): v.to(self.device) for k, v in tensors.items() if k.startswith("sum.")}
        self._together = ()
