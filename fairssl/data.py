"""Images on the device or streamed to it, the annotated subset, index streams, and augmentation of a batch at once."""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fairssl.spec import TrainConfig, derive_seed
from fairssl.types import Sampler, Split, UserError, first_line


@dataclass(frozen=True)
class DeviceSplit:
    """The training split where the loop reads it. `images` uint8 (N, C, H, W), on the device or, if `streamed`, in host
    memory or a memory-mapped file; `target` (N,); `group` (N,), -1 where no part may see it: every image outside the
    annotated subset."""

    images: Tensor
    target: Tensor
    group: Tensor
    annotated: Tensor  # (n_annotated,) positions, ascending
    streamed: bool = False

    @property
    def device(self) -> torch.device:
        return self.target.device


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


def to_device(split: Split, annotated: np.ndarray, device: torch.device, images: Tensor | None = None) -> DeviceSplit:
    """Everything the loop reads, on the device. `images`: what `place` gave for this split, so that runs share it."""
    images = place(split.images, device) if images is None else images
    shown = np.full(len(split), -1, dtype=np.int64)
    shown[annotated] = split.group[annotated]
    return DeviceSplit(
        images,
        torch.from_numpy(np.array(split.target, dtype=np.int64)).to(device),
        torch.from_numpy(shown).to(device),
        torch.from_numpy(annotated.astype(np.int64)).to(device),
        streamed=images.device.type != device.type,
    )


SHARE = 0.5  # of a device's free memory that images may take; the rest is for training


def place(images: np.ndarray, device: torch.device) -> Tensor:
    """uint8 (N, C, H, W) on the device if it takes them beside the training, else where they are: there they are streamed
    from. A memory-mapped pack stays on disk then, and when the device is the CPU."""
    # A read-only array cannot back a tensor; packs are writeable maps, whose changes would stay in this process.
    here = torch.from_numpy(images if images.flags.writeable else np.array(images))
    return here.to(device) if device.type == "cpu" or fits(images.nbytes, free_memory(device)) else here


def fits(n_bytes: int, free: int) -> bool:
    """Whether images of that many bytes may lie on a device with so many bytes free."""
    return n_bytes <= SHARE * free


def free_memory(device: torch.device) -> int:
    """Bytes that a GPU has free, with what this process keeps there unused."""
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + unused


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a GPU, or a library on it, found no memory."""
    text = str(error)
    return isinstance(error, torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and ("out of memory" in text or "ALLOC_FAILED" in text)
    )


class Prefetch:
    """Images streamed to the device: a thread gathers those of the coming steps from a memory-mapped pack while the
    device works. Host memory beyond the page cache: `ahead` + 1 batches per stream, pinned if the device is a GPU."""

    def __init__(self, images: Tensor, device: torch.device, ahead: int = 3) -> None:
        self.images, self.device, self.ahead = images, device, ahead
        self._on_gpu = device.type == "cuda"
        self._copies = torch.cuda.Stream(device) if self._on_gpu else None
        self._slots: dict[tuple[str, int, int], Tensor] = {}  # (stream, batch, place in the ring) -> host memory
        self._free: dict[int, torch.cuda.Event] = {}  # place in the ring -> when its last copy was done

    def __call__(self, steps: Sequence[Mapping[str, Tensor]]) -> Iterator[dict[str, Tensor]]:
        """Of each step, stream -> positions (B,) on the host; gives stream -> uint8 (B, C, H, W) on the device, good until
        the next one is asked for."""
        with ThreadPoolExecutor(1, thread_name_prefix="fairssl-images") as pool:
            waiting: deque[Future[tuple[dict[str, Tensor], torch.cuda.Event | None]]] = deque()
            try:
                for number in range(len(steps) + self.ahead):
                    if number < len(steps):
                        waiting.append(pool.submit(self._fetch, steps[number], number % (self.ahead + 1)))
                    if number >= self.ahead:
                        images, copied = waiting.popleft().result()
                        if copied is not None:
                            now = torch.cuda.current_stream(self.device)
                            now.wait_event(copied)
                            for value in images.values():
                                value.record_stream(now)
                        yield images
            finally:
                for future in waiting:
                    future.cancel()

    def _fetch(self, rows: Mapping[str, Tensor], place: int) -> tuple[dict[str, Tensor], torch.cuda.Event | None]:
        if place in self._free:
            self._free[place].synchronize()
        gathered = {name: self._gathered(name, index, place) for name, index in rows.items()}
        if self._copies is None:
            return gathered, None
        with torch.cuda.stream(self._copies):
            moved = {name: value.to(self.device, non_blocking=True) for name, value in gathered.items()}
            copied = torch.cuda.Event()
            copied.record(self._copies)
        self._free[place] = copied
        return moved, copied

    def _gathered(self, name: str, rows: Tensor, place: int) -> Tensor:
        key = (name, len(rows), place)
        if key not in self._slots:
            shape = (len(rows), *self.images.shape[1:])
            self._slots[key] = torch.empty(shape, dtype=torch.uint8, pin_memory=self._on_gpu)
        return torch.index_select(self.images, 0, rows, out=self._slots[key])


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


CROP_TRIES = 10


def random_numbers(n: int, config: TrainConfig, gen: torch.Generator) -> dict[str, Tensor]:
    """All the chance in `n` views, float32 in [0, 1): (..., n) under the name of what it decides.

    Drawn apart from its use, so that the use is a pure function, which can be compiled, and so that each of several
    processes can use its own columns of the same numbers.
    """

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=gen, device=gen.device)

    u = {"crop": uniform(4, n, CROP_TRIES).transpose(1, 2), "flip": uniform(n)}
    if config.recipe == "randaugment":
        u["rand_ops"] = uniform(config.rand_ops, 2, n)
        return u
    if config.jitter > 0 or config.gray > 0:
        u["jitter"] = uniform(6, n)
    if config.blur > 0:
        u["blur"] = uniform(2, n)
    return u


def random_crop(u: Mapping[str, Tensor], height: int, width: int, config: TrainConfig) -> Crop:
    """Random resized crops: area uniform in [crop_min, 1], aspect log-uniform in [3/4, 4/3], as torchvision draws them.

    Ten tries at once; the first that fits is taken, the whole image if none does.
    """
    v = u["crop"].transpose(1, 2)
    area = height * width * (config.crop_min + v[0] * (1 - config.crop_min))
    ratio = torch.exp(math.log(3 / 4) + v[1] * (math.log(4 / 3) - math.log(3 / 4)))
    w, h = (area * ratio).sqrt().round(), (area / ratio).sqrt().round()
    fits = (w <= width) & (h <= height) & (w > 0) & (h > 0)
    first = fits.int().argmax(dim=1, keepdim=True)  # 0 where none fits
    some = fits.any(dim=1)
    w = torch.where(some, w.gather(1, first)[:, 0], float(width))
    h = torch.where(some, h.gather(1, first)[:, 0], float(height))
    top = (v[2, :, 0] * (height - h + 1)).floor()
    left = (v[3, :, 0] * (width - w + 1)).floor()
    return Crop(top, left, h, w, u["flip"] < config.flip)


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


def random_jitter(u: Tensor, config: TrainConfig) -> Jitter:
    """Uniform numbers (6, B) -> the factors of B images."""
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


def rand_augment(x: Tensor, config: TrainConfig, numbers: Tensor) -> Tensor:
    """(B, 3, H, W) in [0, 1] -> the same: `rand_ops` operations in turn, each image drawing its own with equal chance
    from uniform numbers (rand_ops, 2, B).

    Cubuk, Zoph, Shlens, Le: RandAugment, NeurIPS 2020, with torchvision's operations and strengths. All images share a
    magnitude; the sign is drawn. Geometry is bilinear, where torchvision's default is the nearest pixel; what it moves in
    is black. Nothing is rounded to 8 bits between operations.
    """
    x = x.float()
    with torch.autocast(x.device.type, enabled=False):  # bfloat16 would tell but one pixel in 256 from the next
        for u in numbers:
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
    half = torch.stack([columns.new_full((), -left), rows.new_full((), -top)])  # a tensor of a list would be a copy
    source = (at @ a.transpose(1, 2) + b[:, None]) / half
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


def augment(images: Tensor, size: int, config: TrainConfig, u: Mapping[str, Tensor]) -> Tensor:
    """uint8 (B, 3, H, W) -> one view of each, float32 (B, 3, size, size), normalised, channels-last; `u` are their
    `random_numbers`. A pure function without a branch on data."""
    height, width = images.shape[2:]
    x = images.float().div_(255)
    x = resized_crop(x, random_crop(u, height, width, config), size)
    if "rand_ops" in u:
        x = rand_augment(x.clamp_(0, 1), config, u["rand_ops"])
    if "jitter" in u:
        x = color_jitter(x.clamp_(0, 1), random_jitter(u["jitter"], config))
    if "blur" in u:
        sigma, on = u["blur"]
        x = gaussian_blur(x, 0.1 + 1.9 * sigma, on < config.blur)
    return normalise(x).contiguous(memory_format=torch.channels_last)


class Augmentation:
    """`augment` for one size and recipe: (images, random numbers) -> views. `compiled`: whether by a compiler's code."""

    def __init__(self, size: int, config: TrainConfig, compiled: bool) -> None:
        self.size, self.config, self.compiled = size, config, compiled
        if compiled:
            torch._dynamo.config.recompile_limit = 64  # of one function; every shape of batch is one, and never many
            self._fast = torch.compile(self._augment, dynamic=False, fullgraph=True)

    def _augment(self, images: Tensor, u: Mapping[str, Tensor]) -> Tensor:
        return augment(images, self.size, self.config, u)

    def __call__(self, images: Tensor, u: Mapping[str, Tensor]) -> Tensor:
        if self.compiled:
            try:
                return self._fast(images, u)
            except (torch.OutOfMemoryError, torch.AcceleratorError):
                raise
            except Exception as error:  # the compiler's errors have no common type; an error of ours comes again below
                self.compiled = False
                reason = first_line(error)
                print(f"fairssl: warning: augmentation is not compiled and slower: {reason}", file=sys.stderr)
        return self._augment(images, u)


def augmentation(size: int, config: TrainConfig, device: torch.device) -> Augmentation:
    """`augment` for one size and recipe. Compiled on a GPU, once for all runs of a process that agree in them; where the
    compiler fails it says so and goes on without it."""
    recipe = ("recipe", "crop_min", "flip", "jitter", "brightness", "contrast", "saturation", "hue", "gray", "blur")
    used = config.model_dump(include={*recipe, "rand_ops", "rand_magnitude"})
    return _augmentation(size, type(config)(**used), device.type == "cuda")


_augmentation = cache(Augmentation)


def repeated(images: Tensor, n_views: int, rows: slice) -> Tensor:
    """Of V copies of a batch (B, ...) one after the other, the rows `rows` of the V B."""
    stop = n_views * len(images)
    if rows == slice(0, stop):
        return images.repeat(n_views, *[1] * (images.ndim - 1))
    return images.index_select(0, torch.arange(rows.start, rows.stop, device=images.device) % len(images))
