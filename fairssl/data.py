"""Images on the device: the annotated subset, index streams, and augmentation in one batch with per-image parameters."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fairssl.spec import TrainConfig, derive_seed
from fairssl.types import Sampler, Split, UserError


@dataclass(frozen=True)
class DeviceSplit:
    """The training split where the loop reads it. `images` uint8 (N, C, H, W); `target` (N,); `group` (N,), -1 where
    no part may see it: every image outside the annotated subset."""

    images: Tensor
    target: Tensor
    group: Tensor
    annotated: Tensor  # (n_annotated,) positions, ascending


def annotated_subset(group: np.ndarray, n_groups: int, share: float, attribute: str, seed: int) -> np.ndarray:
    """Positions of the images whose group may be seen: `share` of them at random, every group at least twice.

    Depends on the split, the attribute, the share and the seed, never on the target. A group with fewer than two images
    gives what it has. Images of unknown group (-1) cannot be annotated.
    """
    known = np.flatnonzero(group >= 0)
    if len(known) == 0:
        raise UserError(f"no training image has a known {attribute!r}: nothing can be annotated")
    order = np.random.Generator(np.random.PCG64(derive_seed("annotated", attribute, seed))).permutation(known)
    wanted = min(len(known), max(round(share * len(group)), min(2 * n_groups, len(known))))
    chosen = order[:wanted]
    for code in range(n_groups):
        missing = 2 - int((group[chosen] == code).sum())
        if missing > 0:
            extra = [i for i in order[wanted:] if group[i] == code][:missing]
            chosen = np.concatenate([chosen, np.asarray(extra, dtype=chosen.dtype)])
    return np.sort(chosen)


def balanced(rows: Tensor, target: Tensor, group: Tensor, seed: int) -> Tensor:
    """Of the positions `rows`, equally many of each target x group cell that has any, drawn by seed; ascending."""
    cell = group[rows] * 2 + target[rows]
    gen = torch.Generator().manual_seed(derive_seed("balanced", seed))
    shuffled = torch.randperm(len(rows), generator=gen)
    rows, cell = rows[shuffled], cell[shuffled]
    codes, counts = torch.unique(cell, return_counts=True)
    take = int(counts.min())
    return torch.cat([rows[cell == code][:take] for code in codes]).sort().values


def to_device(split: Split, annotated: np.ndarray, device: torch.device) -> DeviceSplit:
    """Everything the loop reads, on the device; a memory-mapped pack stays on disk when the device is the CPU."""
    images = (
        torch.from_numpy(np.require(split.images, requirements="W")) if split.images.flags.writeable else _wrap(split)
    )
    shown = np.full(len(split), -1, dtype=np.int64)
    shown[annotated] = split.group[annotated]
    return DeviceSplit(
        images.to(device),
        torch.from_numpy(np.array(split.target, dtype=np.int64)).to(device),
        torch.from_numpy(shown).to(device),
        torch.from_numpy(annotated.astype(np.int64)).to(device),
    )


def _wrap(split: Split) -> Tensor:
    # A read-only map cannot back a tensor; the copy is one pass over the pack and the page cache holds it anyway.
    return torch.from_numpy(np.array(split.images))


# --------------------------------------------------------------------------- index streams


class IndexStream:
    """Which images each step sees. A pure function of (seed, name, step): nothing to save, nothing to lose.

    `positions` (M,) what the stream draws from. A batch never holds an image twice; a stream smaller than the batch gives
    smaller batches. `cells` (M,): for balanced samplers each batch takes equally many of every cell; each cell is its own
    endless reshuffled stream, so a small cell comes round more often.
    """

    def __init__(self, name: str, positions: Tensor, batch_size: int, seed: int, cells: Tensor | None = None):
        self.name, self.seed = name, seed
        if cells is None:
            members = [positions]
        else:
            members = [positions[cells == code] for code in torch.unique(cells).tolist()]
        share = max(1, batch_size // len(members))
        self._members = members
        self._takes = [min(share, len(m)) for m in members]
        self.n_images = len(positions)
        self.batch_size = sum(self._takes)
        self.n_batches = max(1, len(positions) // self.batch_size)  # of one pass

    def steps(self, start: int, n: int) -> Tensor:
        """(n, batch) int64 positions of the steps start, start + 1, ..."""
        columns = []
        for number, (members, take) in enumerate(zip(self._members, self._takes, strict=True)):
            per_pass = len(members) // take
            first, last = start // per_pass, (start + n - 1) // per_pass
            passes = [self._shuffled(number, members, turn)[: per_pass * take] for turn in range(first, last + 1)]
            rows = torch.cat(passes).view(-1, take)
            columns.append(rows[start - first * per_pass :][:n])
        return torch.cat(columns, dim=1)

    def _shuffled(self, number: int, members: Tensor, turn: int) -> Tensor:
        gen = torch.Generator().manual_seed(derive_seed("order", self.name, number, turn, self.seed))
        return members[torch.randperm(len(members), generator=gen)]


def cells_of(sampler: Sampler, data: DeviceSplit, positions: Tensor) -> Tensor | None:
    """The cell of each position for a balanced sampler; None for a plain shuffle."""
    if sampler == "shuffle":
        return None
    group = data.group[positions]
    return group if sampler == "group_balanced" else group * 2 + data.target[positions]


# --------------------------------------------------------------------------- augmentation


def normalise(images: Tensor) -> Tensor:
    """uint8 or [0, 1] float (B, C, H, W) -> float32 with mean 0.5 and scale 0.5."""
    x = images.float().div_(255) if images.dtype == torch.uint8 else images
    return (x - 0.5) / 0.5


@dataclass(frozen=True)
class Crop:
    """A box per image in pixels, (B,) each; `flip` (B,) bool mirrors the result."""

    top: Tensor
    left: Tensor
    height: Tensor
    width: Tensor
    flip: Tensor


def random_crop(n: int, height: int, width: int, config: TrainConfig, gen: torch.Generator) -> Crop:
    """Random resized crops: area uniform in [crop_min, 1], aspect log-uniform in [3/4, 4/3], as torchvision draws them.

    Ten tries at once; the first that fits is taken, the whole image if none does.
    """
    tries = 10
    u = torch.rand(4, n, tries, generator=gen, device=gen.device)
    area = height * width * (config.crop_min + u[0] * (1 - config.crop_min))
    ratio = torch.exp(math.log(3 / 4) + u[1] * (math.log(4 / 3) - math.log(3 / 4)))
    w, h = (area * ratio).sqrt().round(), (area / ratio).sqrt().round()
    fits = (w <= width) & (h <= height) & (w > 0) & (h > 0)
    first = fits.int().argmax(dim=1, keepdim=True)  # 0 where none fits
    some = fits.any(dim=1)
    w = torch.where(some, w.gather(1, first)[:, 0], float(width))
    h = torch.where(some, h.gather(1, first)[:, 0], float(height))
    top = (u[2, :, 0] * (height - h + 1)).floor()
    left = (u[3, :, 0] * (width - w + 1)).floor()
    flip = torch.rand(n, generator=gen, device=gen.device) < config.flip
    return Crop(top, left, h, w, flip)


def _resize_matrix(start: Tensor, length: Tensor, n_in: int, n_out: int) -> Tensor:
    """(B, n_out, n_in) weights that resize the interval [start, start + length) to n_out pixels: the triangle filter,
    widened where it shrinks, which is torchvision's bilinear interpolation with antialias."""
    scale = (length / n_out)[:, None, None]
    support = scale.clamp(min=1.0)
    out = torch.arange(n_out, device=start.device, dtype=torch.float32)[None, :, None]
    pixel = torch.arange(n_in, device=start.device, dtype=torch.float32)[None, None, :]
    centre = start[:, None, None] + (out + 0.5) * scale
    inside = (pixel >= start[:, None, None]) & (pixel < (start + length)[:, None, None])
    weight = (1 - (pixel + 0.5 - centre).abs() / support).clamp(min=0) * inside
    return weight / weight.sum(dim=-1, keepdim=True).clamp(min=1e-12)


def resized_crop(images: Tensor, crop: Crop, size: int) -> Tensor:
    """(B, C, H, W) float -> (B, C, size, size): each image's own box, resized and maybe mirrored, by two products."""
    rows = _resize_matrix(crop.top, crop.height, images.shape[2], size)
    columns = _resize_matrix(crop.left, crop.width, images.shape[3], size)
    columns = torch.where(crop.flip[:, None, None], columns.flip(1), columns)
    n, channels = images.shape[:2]
    x = torch.bmm(images.reshape(n, -1, images.shape[3]), columns.transpose(1, 2))  # widths first
    x = x.view(n, channels, images.shape[2], size).transpose(2, 3).reshape(n, -1, images.shape[2])
    x = torch.bmm(x, rows.transpose(1, 2))
    return x.view(n, channels, size, size).transpose(2, 3)


_LUMA = (0.2989, 0.587, 0.114)


def _gray(x: Tensor) -> Tensor:
    """(B, 3, H, W) -> (B, 1, H, W) luma, ITU-R 601 as torchvision rounds it."""
    return _LUMA[0] * x[:, :1] + _LUMA[1] * x[:, 1:2] + _LUMA[2] * x[:, 2:]


def adjust_hue(x: Tensor, turn: Tensor) -> Tensor:
    """Rotate the hue of (B, 3, H, W) images in [0, 1] by `turn` (B,) of a full circle, through HSV in closed form."""
    r, g, b = x.unbind(1)
    value = x.amax(1)
    low = x.amin(1)
    chroma = value - low
    safe = torch.where(chroma > 0, chroma, torch.ones_like(chroma))
    hue = torch.where(
        value == r, (g - b) / safe, torch.where(value == g, 2 + (b - r) / safe, 4 + (r - g) / safe)
    )  # in sixths of a turn, from red
    hue = hue + 6 * turn[:, None, None]

    def channel(n: float) -> Tensor:
        k = torch.remainder(n + hue, 6)
        return value - chroma * torch.minimum(k, 4 - k).clamp(0, 1)

    return torch.stack([channel(5), channel(3), channel(1)], dim=1)


@dataclass(frozen=True)
class Jitter:
    """Factors per image, (B,) each: brightness, contrast, saturation multiply; hue in turns; gray (B,) bool."""

    brightness: Tensor
    contrast: Tensor
    saturation: Tensor
    hue: Tensor
    gray: Tensor


def random_jitter(n: int, config: TrainConfig, gen: torch.Generator) -> Jitter:
    u = torch.rand(6, n, generator=gen, device=gen.device)
    on = u[0] < config.jitter

    def factor(v: Tensor, strength: float) -> Tensor:
        low = max(0.0, 1 - strength)
        return torch.where(on, low + v * (1 + strength - low), 1.0)

    return Jitter(
        factor(u[1], config.brightness),
        factor(u[2], config.contrast),
        factor(u[3], config.saturation),
        torch.where(on, (2 * u[4] - 1) * config.hue, 0.0),
        u[5] < config.gray,
    )


def color_jitter(x: Tensor, jitter: Jitter) -> Tensor:
    """(B, 3, H, W) in [0, 1] -> the same. Order is fixed (brightness, contrast, saturation, hue, gray), where torchvision
    shuffles it once per call: one order per batch would be no more random per image, and a fixed one can be captured."""

    def wide(v: Tensor) -> Tensor:
        return v[:, None, None, None]

    x = (x * wide(jitter.brightness)).clamp(0, 1)
    mean = _gray(x).mean(dim=(1, 2, 3), keepdim=True)
    x = torch.lerp(mean, x, wide(jitter.contrast)).clamp(0, 1)
    x = torch.lerp(_gray(x), x, wide(jitter.saturation)).clamp(0, 1)
    x = adjust_hue(x, jitter.hue)
    return torch.where(wide(jitter.gray), _gray(x).expand_as(x), x)


def gaussian_blur(x: Tensor, sigma: Tensor, on: Tensor) -> Tensor:
    """Blur the images where `on` (B,) with their own `sigma` (B,) in pixels; a separable kernel of a tenth of the size."""
    radius = max(1, round(x.shape[-1] / 20))
    offset = torch.arange(-radius, radius + 1, device=x.device, dtype=torch.float32)
    kernel = torch.exp(-0.5 * (offset[None] / sigma[:, None]) ** 2)
    kernel = torch.where(on[:, None], kernel / kernel.sum(1, keepdim=True), (offset == 0).float()[None])
    n, channels, height, width = x.shape
    k = kernel.repeat_interleave(channels, 0)
    flat = F.pad(x, (radius,) * 4, mode="reflect").reshape(1, n * channels, height + 2 * radius, width + 2 * radius)
    flat = F.conv2d(flat, k[:, None, None, :], groups=n * channels)
    return F.conv2d(flat, k[:, None, :, None], groups=n * channels).view(n, channels, height, width)


# --------------------------------------------------------------------------- RandAugment

RAND_OPS = (
    *("identity", "shear_x", "shear_y", "translate_x", "translate_y", "rotate"),
    *("brightness", "color", "contrast", "sharpness", "posterize", "solarize", "autocontrast", "equalize"),
)  # the fourteen of Cubuk et al. 2020; the first nine after identity may go either way


def rand_augment(x: Tensor, config: TrainConfig, gen: torch.Generator) -> Tensor:
    """(B, 3, H, W) in [0, 1] -> the same: `rand_ops` operations in turn, each image drawing its own with equal chance.

    Cubuk, Zoph, Shlens, Le: RandAugment, NeurIPS 2020, with torchvision's operations and strengths. All images share a
    magnitude; the sign is drawn. Geometry is bilinear, where torchvision's default is the nearest pixel; what it moves in
    is black. Nothing is rounded to 8 bits between operations.
    """
    n, x = len(x), x.float()
    with torch.autocast(x.device.type, enabled=False):  # bfloat16 would tell but one pixel in 256 from the next
        for _ in range(config.rand_ops):
            u = torch.rand(2, n, generator=gen, device=gen.device)
            op = (u[0] * len(RAND_OPS)).long().clamp_(max=len(RAND_OPS) - 1)
            x = rand_op(x, op, torch.where(u[1] < 0.5, -1.0, 1.0) * (config.rand_magnitude / 30))
    return x


def rand_op(x: Tensor, op: Tensor, level: Tensor) -> Tensor:
    """(B, 3, H, W) in [0, 1] -> the same. `op` (B,) indexes `RAND_OPS`; `level` (B,) in [-1, 1], of the full strength.

    The whole batch goes through each kind of operation with its own parameters, which are neutral where an image drew
    another: no branch, so that it can be captured.
    """

    def wide(v: Tensor) -> Tensor:
        return v[:, None, None, None]

    def chosen(name: str) -> Tensor:
        return wide(op == RAND_OPS.index(name))

    x = _affine(x, op, level)
    # Brightness, color, contrast and sharpness: factor * x + (1 - factor) * (black, gray, mean gray or smooth x).
    blends = (op >= RAND_OPS.index("brightness")) & (op <= RAND_OPS.index("sharpness"))
    factor = wide(torch.where(blends, 1 + 0.9 * level, 1.0))
    gray = _gray(x)
    constant = chosen("contrast") * gray.mean(dim=(1, 2, 3), keepdim=True) + chosen("color") * gray
    x = factor * x + (1 - factor) * (chosen("sharpness") * _smoothed(x) + constant)
    x = x.clamp_(0, 1)

    strength = wide(level.abs())
    byte = (x * 255).round_()
    step = torch.exp2((4 * strength).round())  # 8 bits down to 4
    x = torch.where(chosen("posterize"), (byte / step).floor_() * (step / 255), x)
    x = torch.where(x >= torch.where(chosen("solarize"), 1 - strength, 2.0), 1 - x, x)
    low, high = x.amin((2, 3), keepdim=True), x.amax((2, 3), keepdim=True)
    stretches = chosen("autocontrast") & (high > low)
    x = (x - torch.where(stretches, low, 0.0)) / torch.where(stretches, high - low, 1.0)
    return torch.where(chosen("equalize"), _equalized(byte) / 255, x)


def _affine(x: Tensor, op: Tensor, level: Tensor) -> Tensor:
    """The geometric operations, one bilinear sampling for all. Shears turn about the top left corner and rotations about
    the centre, as torchvision has them; pixels are whole in translations."""
    n, _, height, width = x.shape

    def amount(name: str, full: float) -> Tensor:
        return torch.where(op == RAND_OPS.index(name), full * level, 0.0)

    angle = amount("rotate", math.radians(30))
    shift_x = amount("translate_x", 150 / 331 * width).trunc()
    shift_y = amount("translate_y", 150 / 331 * height).trunc()
    shear_x, shear_y = amount("shear_x", 0.3), amount("shear_y", 0.3)
    cos, sin = torch.cos(angle), torch.sin(angle)
    # Where output pixel (column, row), from the centre, comes from: A (column, row) + b.
    top, left = -height / 2, -width / 2
    a = torch.stack([torch.stack([cos, shear_x - sin], 1), torch.stack([shear_y + sin, cos], 1)], 1)  # (B, 2, 2)
    b = torch.stack([-shear_x * top - shift_x, -shear_y * left - shift_y], 1)
    columns = torch.arange(width, device=x.device) + 0.5 + left
    rows = torch.arange(height, device=x.device) + 0.5 + top
    at = torch.stack([columns.expand(height, width), rows[:, None].expand(height, width)], -1).view(1, -1, 2)
    source = (at @ a.transpose(1, 2) + b[:, None]) / torch.tensor([-left, -top], device=x.device)
    moved = F.grid_sample(x, source.view(n, height, width, 2), padding_mode="zeros", align_corners=False)
    return torch.where(((op >= 1) & (op <= 5))[:, None, None, None], moved, x)


def _smoothed(x: Tensor) -> Tensor:
    """(B, 3, H, W) with each inner pixel averaged with its neighbours, itself five times; the border as it is."""
    rows = x[:, :, :-2] + x[:, :, 1:-1] + x[:, :, 2:]  # sums, which are quicker than a convolution of three channels
    box = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:]
    out = x.clone()
    out[:, :, 1:-1, 1:-1] = (box + 4 * x[:, :, 1:-1, 1:-1]) / 13
    return out


def _equalized(byte: Tensor) -> Tensor:
    """(B, 3, H, W) of whole numbers 0..255, as float -> the same with each channel's histogram flattened."""
    n, channels, height, width = byte.shape
    flat = byte.long().reshape(n * channels, -1)
    count = torch.zeros(n * channels, 256, device=byte.device).scatter_add_(
        1, flat, torch.ones(flat.shape, device=byte.device)
    )  # sums of ones: exact in any order
    brightest = count.gather(1, flat.amax(1, keepdim=True))
    step = ((height * width - brightest) / 255).floor()
    before = count.cumsum(1) - count
    table = ((before + (step / 2).floor()) / step.clamp(min=1)).floor().clamp(0, 255)
    return torch.where(step > 0, table.gather(1, flat), flat.float()).view(byte.shape)


def augment(images: Tensor, size: int, config: TrainConfig, gen: torch.Generator) -> Tensor:
    """uint8 (B, 3, H, W) -> one view, float32 (B, 3, size, size), normalised; every image draws its own parameters."""
    n, _, height, width = images.shape
    x = images.float().div_(255)
    x = resized_crop(x, random_crop(n, height, width, config, gen), size)
    if config.recipe == "randaugment":
        return normalise(rand_augment(x.clamp_(0, 1), config, gen))
    if config.jitter > 0 or config.gray > 0:
        x = color_jitter(x.clamp_(0, 1), random_jitter(n, config, gen))
    if config.blur > 0:
        u = torch.rand(2, n, generator=gen, device=gen.device)
        x = gaussian_blur(x, 0.1 + 1.9 * u[0], u[1] < config.blur)
    return normalise(x)


def views(images: Tensor, n_views: int, size: int, config: TrainConfig, gen: torch.Generator) -> list[Tensor]:
    """V independent views of a batch, augmented in one pass: V x (B, C, size, size)."""
    stacked = images.repeat(n_views, 1, 1, 1)
    return list(augment(stacked, size, config, gen).chunk(n_views))
