"""Layer-wise adaptive rate scaling, an optimiser for large batches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


class LARS(torch.optim.Optimizer):
    """SGD with momentum whose step each parameter scales to its own length.

    You, Gitman, Ginsburg: Large Batch Training of Convolutional Networks, 2017, arXiv 1708.03888, in the form that the
    self-supervised methods use (SimCLR, BYOL, Barlow Twins). With u = gradient + weight_decay w, each parameter w moves by
    v <- momentum v + q u, w <- w - lr v, where q = trust |w| / |u|, or 1 if either length is 0. A group whose `trust` is None
    has q = 1. `lr` is a 0-d tensor, read at each step where it lies; nothing is read back.
    """

    def __init__(
        self, params: Iterable[Any], lr: Tensor, weight_decay: float, momentum: float, trust: float | None
    ) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum, "trust": trust})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            moved = [p for p in group["params"] if p.grad is not None]
            if not moved:
                continue
            for parameter in moved:
                state = self.state[parameter]
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(parameter)
            update = torch._foreach_add([p.grad for p in moved], moved, alpha=group["weight_decay"])
            if group["trust"] is not None:
                lengths, sizes = torch._foreach_norm(moved), torch._foreach_norm(update)
                scales = [
                    torch.where((w > 0) & (u > 0), group["trust"] * w / u.clamp_min(1e-30), 1.0)
                    for w, u in zip(lengths, sizes, strict=True)
                ]
                torch._foreach_mul_(update, scales)
            velocity = [self.state[p]["momentum_buffer"] for p in moved]
            torch._foreach_mul_(velocity, group["momentum"])
            torch._foreach_add_(velocity, update)
            torch._foreach_sub_(moved, torch._foreach_mul(velocity, group["lr"]))
