"""Layers and mathematics that two or more plugins share."""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairssl import distributed
from fairssl.types import Terms, joined

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


def conv_net(channels: int, width: int, n_out: int) -> nn.Sequential:
    """(B, C, H, W) -> (B, n_out): three 3x3 convolutions of stride 2 to 1, 2 and 4 times `width` channels, each with group
    norm and ReLU, a global mean and a linear layer. For a part's own small networks; no image depends on another."""
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise((channels, width, 2 * width, 4 * width)):
        layers += [
            nn.Conv2d(fan_in, fan_out, 3, 2, 1),
            nn.GroupNorm(math.gcd(8, fan_out), fan_out),
            nn.ReLU(inplace=True),
        ]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, n_out))


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


def mend_narrow_convolutions(network: nn.Module) -> None:
    """Give the convolutions of `network` right weight gradients in bfloat16 on a CPU, by hooks; it computes what it did.

    There torch (2.14.1 with oneDNN) leaves a weight gradient partly unwritten, with whatever was in memory, if the map is
    one pixel wide and the horizontal stride is not 1, as where small crops or many strides shrink an image. Of the kernel
    only the column that meets the pixel matters then; with that column alone, at stride 1, the gradient is whole.
    """
    for module in network.modules():
        if isinstance(module, nn.Conv2d) and module.stride[1] > 1 and module.kernel_size[1] > 1:
            module.register_forward_hook(_convolve_one_column)


def _convolve_one_column(conv: nn.Conv2d, inputs: tuple[Tensor, ...], out: Tensor) -> Tensor | None:
    """What replaces the output of a convolution of maps one pixel wide; None, which keeps it, of any other."""
    x = inputs[0]
    if not (out.device.type == "cpu" and out.dtype == torch.bfloat16 and x.shape[-1] == out.shape[-1] == 1):
        return None
    if isinstance(conv.padding, str) or conv.padding_mode != "zeros":
        return None
    column = conv.padding[1] // conv.dilation[1]
    weight = conv.weight[..., column : column + 1]
    vertical = (conv.stride[0], 1), (conv.padding[0], 0), (conv.dilation[0], 1)
    return F.conv2d(x, weight, conv.bias, *vertical, conv.groups)


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
    return nt_xent_of_views(views, temperature, group).mean()


def nt_xent_of_views(views: Sequence[Tensor], temperature: float, group: Tensor | None = None) -> Tensor:
    """What `nt_xent` is the mean of, (2B,)."""
    if len(views) != 2:
        raise ValueError(f"nt_xent contrasts 2 views of each image, and was given {len(views)}")
    z = normalize(joined(views))
    n = len(z) // 2
    similarity = z @ z.T / temperature
    excluded = torch.eye(2 * n, dtype=torch.bool, device=z.device)
    if group is not None:
        group = group.repeat(2)
        excluded = excluded | (group[:, None] != group[None, :])
    denominator = similarity.masked_fill(excluded, -torch.inf).logsumexp(1)
    positive = similarity.diagonal(n).repeat(2)  # (i, i + n), and by symmetry (i + n, i)
    return denominator - positive


def contrast_within_groups(views: Sequence[Tensor], codes: Sequence[Tensor], temperature: float) -> Tensor:
    """Each view of an image attracts its other views, among the views of other images of its own group: V x (B, P) and the
    group (B,) that each view shows -> 0-d, at least 0.

    The mean over all V B views i, and over the other views p of the same image, of
    -log exp(z_i.z_p / tau) / (exp(z_i.z_p / tau) + sum over n of exp(z_i.z_n / tau)), n the views of other images that
    show the group that i shows. A view alone in its group has loss 0.
    """
    z, group, n = normalize(torch.cat(list(views))), torch.cat(list(codes)), len(views[0])
    image = torch.arange(n, device=z.device).repeat(len(views))
    similarity = z @ z.T / temperature
    same_image = image[:, None] == image[None, :]
    negative = ~same_image & (group[:, None] == group[None, :])
    positive = same_image & ~torch.eye(len(z), dtype=torch.bool, device=z.device)
    lonely = ~negative.any(1)
    others = similarity.masked_fill(~negative, -torch.inf).masked_fill(lonely[:, None], 0).logsumexp(1)
    others = torch.where(lonely, -1e9, others)
    cost = F.softplus(others[:, None] - similarity)
    return torch.where(positive, cost, 0.0).sum() / positive.sum()


def gaussian_kernel(x: Tensor, gammas: Sequence[float], median: bool) -> Tensor:
    """(n, F) -> (n, n), in 0..1: the mean over `gammas` of exp(-gamma d^2 / m), d the distance of two rows.

    With `median`, m is the median of the squared distances of different rows, through which no gradient flows; else 1.
    """
    x = x - x.detach().mean(0)  # distances stay, and less is lost when they are small beside the values
    if median:  # the kernel does not depend on the scale, and the squares of a unit scale stay finite
        x = x / x.detach().abs().amax().clamp_min(TINY)
    product = x @ x.T
    length = product.diagonal()
    squared = (length[:, None] + length[None, :] - 2 * product).clamp_min(0)
    if median:
        row, column = torch.triu_indices(len(x), len(x), 1, device=x.device)
        squared = squared / squared.detach()[row, column].median().clamp_min(TINY)
    return torch.stack([torch.exp(-gamma * squared) for gamma in gammas]).mean(0)


class LinearClassifier(nn.Linear):
    """(B, F) features -> (B,) logits of y = 1."""

    def __init__(self, feature_dim: int) -> None:
        super().__init__(feature_dim, 1)

    def forward(self, f: Tensor) -> Tensor:
        return super().forward(f).squeeze(1)


def classification(logit: Tensor, target: Tensor) -> Terms:
    """Logits of y = 1 and targets, (n,) each -> the mean cross-entropy, at least 0, and the accuracy."""
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


class WorstGroups(nn.Module):
    """Weights of K groups that rise with their losses: the inner maximisation of group DRO.

    Sagawa, Koh, Hashimoto, Liang: Distributionally Robust Neural Networks for Group Shifts, ICLR 2020, Algorithm 1. At each
    call q_k <- q_k exp(rate * mean loss of k), and q is made to sum to 1; a group that the batch lacks has loss 0.
    """

    q: Tensor

    def __init__(self, n_groups: int) -> None:
        super().__init__()
        self.register_buffer("q", torch.full((n_groups,), 1 / n_groups))

    def forward(self, loss: Tensor, group: Tensor, rate: float) -> tuple[Tensor, dict[str, Tensor]]:
        """(n,) losses and groups -> the sum over k of q_k times the mean loss of k, 0-d; and what to log."""
        member = group[:, None] == torch.arange(len(self.q), device=group.device)  # (n, K)
        count = member.sum(0)
        mean = torch.where(member, loss[:, None], 0.0).sum(0) / count.clamp(min=1)
        with torch.no_grad():
            grown = torch.log(self.q.clamp_min(1e-30)) + rate * mean.detach()
            self.q.copy_(torch.softmax(grown, 0))  # in logarithms: a large loss must not overflow
        log = {"largest_weight": self.q.amax(), "empty_groups": (count == 0).sum().float()}
        return (self.q * mean).sum(), log

    def of_cells(
        self, logit: Tensor, target: Tensor, group: Tensor, n_targets: int, rate: float
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The same of the cross-entropy of (n,) logits and targets, each cell of target x group being a group."""
        loss = F.binary_cross_entropy_with_logits(logit, target.to(logit.dtype), reduction="none")
        return self(loss, group * n_targets + target, rate)


def one_hot(code: Tensor, n: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """(B,) codes in 0..n-1 -> (B, n); a code outside is a row of zeros. Unlike torch's it reads nothing back."""
    return (code[:, None] == torch.arange(n, device=code.device)).to(dtype)


def another_group(group: Tensor, index: Tensor, n_groups: int) -> Tensor:
    """A group that is not the image's own, (B,), for what draws an image as if it were of another group: the other one of
    two; of more, one that the image's position `index` decides, so that all are met and an image keeps to one."""
    return (group + 1 + index % max(1, n_groups - 1)) % n_groups


def log_likelihood(log_p: Tensor, code: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probabilities (B, G) and codes (B,) -> mean log p[code], at most 0; and the accuracy of the likeliest."""
    found = log_p.gather(1, code[:, None]).mean()
    return found, (log_p.detach().argmax(1) == code).float().mean()


def bounded_log_variance(raw: Tensor, bound: float) -> tuple[Tensor, Tensor]:
    """bound tanh(raw / bound), so that no input makes a variance infinite or 0; and how many entries |raw| > bound, 0-d."""
    return bound * torch.tanh(raw / bound), (raw.detach().abs() > bound).sum().float()


def divergence_from_prior(mu: Tensor, log_variance: Tensor) -> Tensor:
    """Mean over the rows of KL(N(mu, e^s) || N(0, I)) in nats, (n, F) each -> 0-d, at least 0."""
    return (mu.square() + torch.exp(log_variance) - log_variance - 1).sum(1).mean() / 2


class Discriminator(nn.Sequential):
    """A perceptron of two layers with a softmax over the G groups: (n, F) -> (n, G) log-probabilities."""

    def __init__(self, input_dim: int, hidden_dim: int, n_groups: int) -> None:
        super().__init__(*mlp(input_dim, hidden_dim, n_groups, batch_norm=False))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).log_softmax(1)


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


def momentum_copy(network: nn.Module) -> nn.Module:
    """A copy that no gradient moves, for `ema_update`; fast on a GPU, like the encoder it is taken of."""
    return copy.deepcopy(network).requires_grad_(False).to(memory_format=torch.channels_last)


def momentum_rate(first: float, progress: Tensor) -> Tensor:
    """The share of a momentum encoder's old values that stays, for `ema_update`, after `progress` (0-d, 0..1) of the training:
    `first` at its begin, 1 at its end, along half a cosine (Grill et al. 2020)."""
    return 1 - (1 - first) * (torch.cos(math.pi * progress) + 1) / 2


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


class ImageDecoder(nn.Module):
    """(B, F) -> (B, C, H, W), the mean of the normalised pixels: a ResNet mirrored.

    From a map 1/2^n as wide as the image, n stages that double it (nearest neighbour, 3x3 convolution, batch norm, ReLU)
    from D to D/2, D/4, D/8, D/8, D/8 channels (D at most 512, at least 8 channels), and a 3x3 convolution to the C
    channels; n is 5, or less for images below 32 pixels. What stands out over the image is cut off evenly, so that any
    size fits.

    `decoded` is the forward pass for a training step: the stages, which are heavy, go through `sharded`; the first layer
    stays in float32, since a code may be far larger than a half-precision product keeps apart.
    """

    WIDEST, NARROWEST = 512, 8  # channels of its layers

    def __init__(self, latent_dim: int, encoder_dim: int, image_shape: tuple[int, int, int]) -> None:
        super().__init__()
        channels, *self.size = image_shape
        n_stages = min(5, int(math.log2(min(self.size))))
        widths = [max(self.NARROWEST, min(self.WIDEST, encoder_dim) >> min(stage, 3)) for stage in range(n_stages + 1)]
        self.start = (widths[0], *(math.ceil(side / 2**n_stages) for side in self.size))
        self.unfold = nn.Linear(latent_dim, math.prod(self.start))
        layers: list[nn.Module] = []
        for fan_in, fan_out in pairwise(widths):
            layers += [
                nn.Upsample(scale_factor=2, mode="nearest"),
                nn.Conv2d(fan_in, fan_out, 3, padding=1, bias=False),
                nn.BatchNorm2d(fan_out),
                nn.ReLU(inplace=True),
            ]
        self.stages = nn.Sequential(*layers, nn.Conv2d(widths[-1], channels, 3, padding=1))

    def forward(self, z: Tensor) -> Tensor:
        return self.cropped(self.stages(self.unfolded(z)))

    def decoded(self, z: Tensor) -> Tensor:
        """As `forward`, divided among the processes that train the run."""
        return self.cropped(sharded(self.stages, self.unfolded(z)))

    def unfolded(self, z: Tensor) -> Tensor:
        """(B, F) -> (B, D, h, w), the smallest map."""
        return self.unfold(z).view(len(z), *self.start).contiguous(memory_format=torch.channels_last)

    def cropped(self, x: Tensor) -> Tensor:
        """(B, C, at least H, at least W) -> (B, C, H, W), what stands out over the image cut off evenly."""
        height, width = self.size
        top, left = (x.shape[2] - height) // 2, (x.shape[3] - width) // 2
        return x[:, :, top : top + height, left : left + width]


# What a part needs to train networks of its own before the first step, in `prepare`.


def stored_pixels(images: Tensor, rows: Tensor, gen: torch.Generator | None = None) -> Tensor:
    """(n, C, H, W) in -1..1 on the device of `rows` (n,): stored images, uint8 (N, C, H, W) on any device, each mirrored
    with probability 1/2 if there is a `gen`."""
    x = images[rows.to(images.device)].to(rows.device).float() / 127.5 - 1
    if gen is None:
        return x
    flip = torch.rand(len(rows), generator=gen, device=gen.device) < 0.5
    return torch.where(flip[:, None, None, None], x.flip(3), x)


def passes(rows: Tensor, n: int, batch_size: int, gen: torch.Generator) -> Iterator[Tensor]:
    """The positions `rows` in batches, shuffled anew for each of `n` passes; a last batch may be smaller."""
    for _ in range(n):
        yield from rows[torch.randperm(len(rows), generator=gen, device=gen.device)].split(batch_size)


class Stepper:
    """Steps of Adam for one network: `take(loss)`."""

    def __init__(self, network: nn.Module, lr: float, betas: tuple[float, float]) -> None:
        self.parameters = list(network.parameters())
        self.optimizer = torch.optim.Adam(self.parameters, lr=lr, betas=betas)

    def take(self, loss: Tensor) -> None:
        for parameter, gradient in zip(self.parameters, torch.autograd.grad(loss, self.parameters), strict=True):
            parameter.grad = gradient
        self.optimizer.step()
        self.optimizer.zero_grad()


@contextmanager
def stepping(network: nn.Module, lr: float, betas: tuple[float, float] = (0.9, 0.999)) -> Iterator[Stepper]:
    """Within it a network that is frozen else has gradients and is trained by the stepper it gives. A part builds such a
    network with `requires_grad_(False)`, so that the loop leaves it as `prepare` made it."""
    network.requires_grad_(True)
    try:
        yield Stepper(network, lr, betas)
    finally:
        network.requires_grad_(False)
