"""Augmentation of a whole batch at once, each image with its own random numbers."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from fairssl.data.randaugment import luma, rand_augment
from fairssl.spec.config import TrainConfig
from fairssl.types import first_line


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

    shapes: dict[str, tuple[int, ...]] = {"crop": (4, n, CROP_TRIES), "flip": (n,)}
    if config.recipe == "randaugment":
        shapes["rand_ops"] = (config.rand_ops, 2, n)
    else:
        if config.jitter > 0 or config.gray > 0:
            shapes["jitter"] = (6, n)
        if config.blur > 0:
            shapes["blur"] = (2, n)
    sizes = [math.prod(shape) for shape in shapes.values()]
    drawn = torch.rand(sum(sizes), generator=gen, device=gen.device).split(sizes)
    u = {name: part.view(shape) for (name, shape), part in zip(shapes.items(), drawn, strict=True)}
    u["crop"] = u["crop"].transpose(1, 2)
    return u


def random_crop(u: Mapping[str, Tensor], height: int, width: int, config: TrainConfig) -> Crop:
    """Random resized crops: area uniform in [crop_min, crop_max], aspect log-uniform in [3/4, 4/3], as torchvision draws them.

    Ten tries at once; the first that fits is taken, the whole image if none does.
    """
    v = u["crop"].transpose(1, 2)
    area = height * width * (config.crop_min + v[0] * (config.crop_max - config.crop_min))
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


def adjust_hue(x: Tensor, turn: Tensor) -> Tensor:
    """Rotate the hue of (B, 3, H, W) images in [0, 1] by `turn` (B,) of a full circle, through HSV in closed form."""
    r, g, b = x.unbind(1)
    return torch.stack(_turned(r, g, b, turn), dim=1)


def _turned(r: Tensor, g: Tensor, b: Tensor, turn: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`adjust_hue` on planes, (B, H, W) each."""
    value = torch.maximum(torch.maximum(r, g), b)
    low = torch.minimum(torch.minimum(r, g), b)
    chroma = value - low
    safe = torch.where(chroma > 0, chroma, torch.ones_like(chroma))
    hue = torch.where(
        value == r, (g - b) / safe, torch.where(value == g, 2 + (b - r) / safe, 4 + (r - g) / safe)
    )  # in sixths of a turn, from red
    hue = hue + 6 * turn[:, None, None]

    def channel(n: float) -> Tensor:
        k = torch.remainder(n + hue, 6)
        return value - chroma * torch.minimum(k, 4 - k).clamp(0, 1)

    return channel(5), channel(3), channel(1)


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
        return v[:, None, None]

    # On the three planes, which need no channel axis in between.
    planes = [(plane * wide(jitter.brightness)).clamp(0, 1) for plane in x.unbind(1)]
    mean = luma(*planes).mean(dim=(1, 2), keepdim=True)
    planes = [torch.lerp(mean, plane, wide(jitter.contrast)).clamp(0, 1) for plane in planes]
    gray = luma(*planes)
    planes = [torch.lerp(gray, plane, wide(jitter.saturation)).clamp(0, 1) for plane in planes]
    r, g, b = _turned(planes[0], planes[1], planes[2], jitter.hue)
    on, gray = wide(jitter.gray), luma(r, g, b)
    return torch.stack([torch.where(on, gray, plane) for plane in (r, g, b)], dim=1)


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


def augment(images: Tensor, size: int, config: TrainConfig, u: Mapping[str, Tensor]) -> Tensor:
    """uint8 (B, 3, H, W) -> views, float32 (V B, 3, size, size), normalised, channels-last, view by view; `u` are their
    `random_numbers`, which say how many views there are. A pure function without a branch on data."""
    height, width = images.shape[2:]
    x = images.float().div_(255)
    x = x.repeat(len(u["flip"]) // len(x), 1, 1, 1)
    x = resized_crop(x, random_crop(u, height, width, config), size)
    if "rand_ops" in u:
        x = rand_augment(x.clamp_(0, 1), config, u["rand_ops"])
    if "jitter" in u:
        x = color_jitter(x.clamp_(0, 1), random_jitter(u["jitter"], config))
    if "blur" in u:
        sigma, on = u["blur"]
        x = gaussian_blur(x, 0.1 + 1.9 * sigma, on < config.blur)
    return normalise(x).contiguous(memory_format=torch.channels_last)


# What a compiler's error says -> what is in the way and what to do about it.
_OBSTACLES = {
    "c++ compiler": "there is no C++ compiler: install one (g++), or name one in CXX",
    "c compiler": "there is no C compiler: install one (gcc) and Python's headers, or name one in CC",
    "triton": "Triton is missing or broken: pip install -U triton",
    "calledprocesserror": "the C compiler failed, most often for want of Python's headers: install them (python3-dev)",
    "[errno": "the compiler's files cannot be written: set TORCHINDUCTOR_CACHE_DIR and TRITON_CACHE_DIR to folders with room",
}


def why_not_compiled(reason: str) -> str:
    """One line for the user about a compiler's error."""
    found = next((text for sign, text in _OBSTACLES.items() if sign in reason.lower()), None)
    what = f"{found} ({reason})" if found else f"{reason}; FAIRSSL_EAGER=1 leaves the compiler out"
    return f"augmentation is not compiled, which is slower: {what}"


@cache
def _tell(line: str) -> None:
    """A warning, once in a process, however many sizes and recipes it is true of."""
    print(f"fairssl: warning: {line}", file=sys.stderr)


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
                _tell(why_not_compiled(first_line(error)))
        return self._augment(images, u)


def augmentation(size: int, config: TrainConfig, compiled: bool) -> Augmentation:
    """`augment` for one size and recipe, compiled once for all runs of a process that agree in them; where the compiler fails
    it says so and goes on without it."""
    recipe = (
        "recipe",
        "crop_min",
        "crop_max",
        "flip",
        "jitter",
        "brightness",
        "contrast",
        "saturation",
        "hue",
        "gray",
        "blur",
    )
    used = config.model_dump(include={*recipe, "rand_ops", "rand_magnitude"})
    return _augmentation(size, type(config)(**used), compiled)


_augmentation = cache(Augmentation)
