"""Devices, and the training split where the loop reads it."""

from __future__ import annotations

import platform
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fairssl.data.splits import RunData
from fairssl.types import UserError, first_line


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

    def visible_to(self, sees: frozenset[str]) -> DeviceSplit:
        """The split as a part may see it: labels that its `sees` does not declare are -1 throughout."""
        hidden = torch.full_like(self.group, -1)
        return replace(
            self,
            target=self.target if "target" in sees else hidden,
            group=self.group if "group" in sees else hidden,
        )


def to_device(data: RunData, device: torch.device, images: Tensor | None = None) -> DeviceSplit:
    """The training split of a run, on the device. `images`: what `place` gave for it, so that runs share it."""
    train = data.splits.train
    images = place(train.images, device) if images is None else images
    return DeviceSplit(
        images,
        torch.from_numpy(np.array(train.target, dtype=np.int64)).to(device),
        torch.from_numpy(data.visible_group).to(device),
        torch.from_numpy(data.annotated.astype(np.int64)).to(device),
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


def check_device_name(name: str) -> None:
    """Refuse what is the name of no device, on whatever machine; whether it is here is not asked."""
    if name == "auto":
        return
    try:
        torch.device(name)
    except RuntimeError as error:
        raise UserError(f"--device {name!r} cannot be used: no such device; use auto, cpu, cuda or cuda:1") from error


def pick_device(name: str = "auto") -> torch.device:
    """`auto`: a GPU if there is one. A device that is not here is an error, never replaced."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    check_device_name(name)
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"--device {name!r} cannot be used: {first_line(error)}; try --device cpu or auto") from error
    return device


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"{device.type} ({platform.machine()})"
