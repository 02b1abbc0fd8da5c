"""Layers and mathematics that two or more plugins share."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def mlp(*widths: int, batch_norm: bool = True) -> nn.Sequential:
    """Linear layers of the given widths with ReLU between; batch norm before each ReLU unless told not to, none at the end."""
    layers: list[nn.Module] = []
    for i, (fan_in, fan_out) in enumerate(zip(widths[:-1], widths[1:], strict=True)):
        last = i == len(widths) - 2
        layers.append(nn.Linear(fan_in, fan_out, bias=last or not batch_norm))
        if not last:
            if batch_norm:
                layers.append(nn.BatchNorm1d(fan_out))
            layers.append(nn.ReLU(inplace=True))
    return nn.Sequential(*layers)


def normalize(x: Tensor) -> Tensor:
    """(B, P) to unit length in float32; a zero row stays zero with finite gradients, also when it came in half precision."""
    return F.normalize(x.float(), dim=-1, eps=1e-6)


@torch.no_grad()
def ema_update(target: nn.Module, online: nn.Module, rate: Tensor | float) -> None:
    """target <- rate * target + (1 - rate) * online, for parameters and float buffers; integer buffers are copied.

    Batch-norm statistics are averaged too, so that a momentum encoder can be evaluated.
    """
    ours = [*target.parameters(), *target.buffers()]
    theirs = [*online.parameters(), *online.buffers()]
    for a, b in zip(ours, theirs, strict=True):
        if a.dtype.is_floating_point:
            a.mul_(rate).add_(b * (1 - rate))
        else:
            a.copy_(b)
