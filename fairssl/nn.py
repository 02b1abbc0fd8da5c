"""Layers and mathematics that two or more plugins share."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

TINY = 1e-6  # a row whose largest entry is below this has no direction


def mlp(*widths: int, batch_norm: bool = True) -> nn.Sequential:
    """Linear layers of the given widths with ReLU between, batch norm before each ReLU unless told not to."""
    layers: list[nn.Module] = []
    for i, (fan_in, fan_out) in enumerate(pairwise(widths)):
        last = i == len(widths) - 2
        layers.append(nn.Linear(fan_in, fan_out, bias=last or not batch_norm))
        if not last:
            if batch_norm:
                layers.append(nn.BatchNorm1d(fan_out))
            layers.append(nn.ReLU(inplace=True))
    return nn.Sequential(*layers)


def full_precision(x: Tensor) -> torch.autocast:
    """A context on `x`'s device in which a matrix product keeps its operands' precision under mixed precision."""
    return torch.autocast(x.device.type, enabled=False)


def at_least_float32(x: Tensor) -> Tensor:
    """`x` in float32, or unchanged where it is float64."""
    return x if x.dtype == torch.float64 else x.float()


def normalize(x: Tensor) -> Tensor:
    """(B, P) to unit length, in float32 (float64 stays).

    Finite forward and backward for every finite input, also one that came in half precision: a row is scaled by its
    largest entry first, so that its square neither over- nor underflows, and a row below `TINY` becomes zero with zero
    gradient, where the true one would not fit a float16. NaN and infinity stay visible as NaN.
    """
    x = at_least_float32(x)
    largest = x.detach().abs().amax(-1, keepdim=True)
    x = torch.where(largest <= TINY, 0.0, x / largest.clamp_min(TINY))
    return x / torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp_min(0.5)  # at least 1 unless the row is zero


def nt_xent(views: Sequence[Tensor], temperature: float, group: Tensor | None = None) -> Tensor:
    """Normalised temperature-scaled cross-entropy of two views, 2 x (B, P) -> 0-d, at least 0.

    For each of the 2B views: -log of exp(z.z_pos / tau) over the sum of exp(z.z' / tau) over all other views, its
    positive among them; the mean over the 2B views. With `group` (B,) the sum runs over the views of images of the
    anchor's own group only, so that an anchor alone in its group has loss 0.
    """
    z = normalize(torch.cat(list(views)))
    n = len(z) // 2
    with full_precision(z):
        similarity = z @ z.T / temperature
        excluded = torch.eye(2 * n, dtype=torch.bool, device=z.device)
        if group is not None:
            group = group.repeat(2)
            excluded = excluded | (group[:, None] != group[None, :])
        denominator = similarity.masked_fill(excluded, -torch.inf).logsumexp(1)
        positive = similarity.diagonal(n).repeat(2)  # (i, i + n), and by symmetry (i + n, i)
        return (denominator - positive).mean()


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
