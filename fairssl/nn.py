"""Layers and mathematics that two or more plugins share."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairssl import distributed
from fairssl.types import Batch, Terms, joined

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


def at_least_float32(x: Tensor) -> Tensor:
    """`x` in float32, or unchanged where it is float64."""
    return x if x.dtype == torch.float64 else x.float()


class _NetworkPrecision(threading.local):
    bf16 = False


_network_precision = _NetworkPrecision()


@contextmanager
def networks_in_bf16(enabled: bool) -> Iterator[None]:
    """Within it `in_network_precision`, and so `sharded`, run networks in bfloat16 if `enabled`; the training loop's."""
    before, _network_precision.bf16 = _network_precision.bf16, enabled
    try:
        yield
    finally:
        _network_precision.bf16 = before


def in_network_precision(device: torch.device) -> torch.autocast:
    """A context in which networks run in the precision that the loop has set for them."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=_network_precision.bf16)


def sharded(network: nn.Module, x: Tensor) -> Tensor:
    """`network(x)` for what is heavy and works row by row, as a second encoder or a decoder: (n, ...) -> (n, ...), float32.

    The network runs in the loop's precision, float32 or bfloat16, as the encoder does. Where several processes train a run
    together each runs its share of the rows, and all get the whole result; batch statistics are those of all rows. The
    network's parameters must not be used in any other way in the same step.
    """
    with in_network_precision(x.device):
        return at_least_float32(distributed.sharded(network, x))


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
    z = normalize(joined(views))
    n = len(z) // 2
    similarity = z @ z.T / temperature
    excluded = torch.eye(2 * n, dtype=torch.bool, device=z.device)
    if group is not None:
        group = group.repeat(2)
        excluded = excluded | (group[:, None] != group[None, :])
    denominator = similarity.masked_fill(excluded, -torch.inf).logsumexp(1)
    positive = similarity.diagonal(n).repeat(2)  # (i, i + n), and by symmetry (i + n, i)
    return (denominator - positive).mean()


class LinearClassifier(nn.Linear):
    """(B, F) features -> (B,) logits of y = 1."""

    def __init__(self, feature_dim: int) -> None:
        super().__init__(feature_dim, 1)

    def forward(self, f: Tensor) -> Tensor:
        return super().forward(f).squeeze(1)


def classification(batch: Batch) -> Terms:
    """Terms of a batch whose `z` holds V x (B,) logits of y = 1: the mean cross-entropy over the views, at least 0, and
    the accuracy."""
    logit, target = batch.flat_z(), batch.target_of_views()
    loss = F.binary_cross_entropy_with_logits(logit, target.to(logit.dtype))
    accuracy = ((logit.detach() > 0) == (target == 1)).float().mean()
    return Terms(primal={"cross_entropy": loss}, log={"accuracy": accuracy})


def group_gap(value: Tensor, group: Tensor, n_groups: int, among: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Mean over the G - 1 adjacent pairs of groups of |mean value in one - mean value in the other|; and how many groups
    had no example.

    `value` (B,); `group` (B,) in 0..G-1; `among` (B,) bool, the examples that count, all by default. A pair of which a
    group has no example contributes 0 and stays in the mean. For G = 2 the absolute gap of two groups.
    """
    member = group[:, None] == torch.arange(n_groups, device=group.device)  # (B, G)
    if among is not None:
        member = member & among[:, None]
    count = member.sum(0)
    mean = torch.where(member, value[:, None], 0.0).sum(0) / count.clamp(min=1)
    present = count > 0
    gaps = torch.where(present[1:] & present[:-1], (mean[1:] - mean[:-1]).abs(), 0.0)
    return gaps.mean(), (~present).sum()


def log_likelihood(log_p: Tensor, code: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probabilities (B, G) and codes (B,) -> mean log p[code], at most 0; and the accuracy of the likeliest."""
    found = log_p.gather(1, code[:, None]).mean()
    return found, (log_p.detach().argmax(1) == code).float().mean()


class GradientGuard(nn.Module):
    """Identity in the forward pass; backward, a gradient that is finite throughout passes, times `factor`, and one that is
    not becomes zero and is counted. So an adversary that overflows is left out of a step and cannot poison the encoder.

    With `factor` -1 it is the gradient reversal of Ganin and Lempitsky: Unsupervised Domain Adaptation by
    Backpropagation, ICML 2015.
    """

    skipped: Tensor

    def __init__(self) -> None:
        super().__init__()
        # Only ever logged, so no part of what a run depends on.
        self.register_buffer("skipped", torch.zeros(()), persistent=False)

    def forward(self, x: Tensor, factor: float = 1.0) -> Tensor:
        if not x.requires_grad:
            return x
        x = x.view_as(x)  # the hook is for this use of x alone
        x.register_hook(partial(self._passed, factor))
        return x

    def _passed(self, factor: float, gradient: Tensor) -> Tensor:
        finite = gradient.isfinite().all()
        self.skipped.add_(~finite)
        return torch.where(finite, factor * gradient, 0.0)

    def count(self) -> Tensor:
        """How many gradients were dropped since the last call, 0-d."""
        found = self.skipped.clone()
        self.skipped.zero_()
        return found


@torch.no_grad()
def ema_update(target: nn.Module, online: nn.Module, rate: Tensor | float) -> None:
    """target <- rate * target + (1 - rate) * online, for parameters and float buffers; integer buffers are copied.

    Batch-norm statistics are averaged too, so that a momentum encoder can be evaluated.
    """
    both = zip([*target.parameters(), *target.buffers()], [*online.parameters(), *online.buffers()], strict=True)
    floats, others = list[tuple[Tensor, Tensor]](), list[tuple[Tensor, Tensor]]()
    for pair in both:
        (floats if pair[0].dtype.is_floating_point else others).append(pair)
    # All at once: one by one the small ones of a deep network would take longer on a GPU than its forward pass.
    ours, theirs = ([pair[i] for pair in floats] for i in (0, 1))
    torch._foreach_mul_(ours, rate)
    torch._foreach_add_(ours, torch._foreach_mul(theirs, 1 - rate))
    if others:
        torch._foreach_copy_([a for a, _ in others], [b for _, b in others])
