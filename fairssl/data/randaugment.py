"""RandAugment for a whole batch at once."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from fairssl.spec.config import TrainConfig

_LUMA = (0.2989, 0.587, 0.114)


def luma(r: Tensor, g: Tensor, b: Tensor) -> Tensor:
    """Three planes -> their luma, ITU-R 601 as torchvision rounds it."""
    return _LUMA[0] * r + _LUMA[1] * g + _LUMA[2] * b


def grayscale(x: Tensor) -> Tensor:
    """(B, 3, H, W) -> (B, 1, H, W) luma."""
    return luma(x[:, :1], x[:, 1:2], x[:, 2:])


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
    gray = grayscale(x)
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
