"""Checkpoints: everything the future of a run depends on, as safetensors with JSON beside them. Nothing is unpickled."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

FORMAT = 2  # of the content; raised when the loop can no longer read what an earlier one wrote
KEEP = 2  # checkpoints kept: the previous one stays until the new one is whole

State = tuple[dict[str, Tensor], dict[str, Any]]  # tensors by name, and JSON


def serialize(state: State) -> bytes:
    """A state as the bytes of one safetensors file."""
    tensors, meta = state
    return save({k: v.to("cpu", copy=True) for k, v in tensors.items()}, metadata={"meta": json.dumps(meta)})


def read(path: Path) -> State:
    """The state in a checkpoint's file."""
    with safe_open(path, "pt") as file:
        meta = json.loads(file.metadata()["meta"])
        return {name: file.get_tensor(name) for name in file.keys()}, meta  # noqa: SIM118


def deserialize(content: bytes) -> State:
    """The inverse of `serialize`."""
    with tempfile.NamedTemporaryFile(suffix=".safetensors") as file:
        file.write(content)
        file.flush()
        return read(Path(file.name))


def write(folder: Path, n_steps_done: int, content: bytes) -> None:
    """Write a checkpoint and drop all but the newest `KEEP`; a kill at any moment, or a full disk, leaves a whole one."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"checkpoint-{n_steps_done:09d}.safetensors"
    temporary = path.with_suffix(".partial")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    temporary.replace(path)
    for old in sorted(folder.glob("checkpoint-*.safetensors"))[:-KEEP]:
        old.unlink()


def newest(folder: Path, key: str, device: torch.device) -> State | None:
    """The newest whole checkpoint of the pretraining `key`; a torn or foreign one is skipped with a warning that names it."""
    for path in sorted(folder.glob("checkpoint-*.safetensors"), reverse=True):
        try:
            tensors, meta = read(path)
        except Exception as error:  # safetensors raises its own untyped error for a truncated file
            _warn(f"checkpoint {path} cannot be read ({error}); going on from the one before")
            continue
        fault = _fault(meta, key, device)
        if fault:
            _warn(f"checkpoint {path} is of {fault}; not used")
            continue
        threads = torch.get_num_threads()
        if device.type == "cpu" and meta.get("threads") not in (None, threads):
            _warn(
                f"checkpoint {path} is of {meta['threads']} threads, now {threads}: equal up to rounding, not in bits"
            )
        return tensors, meta
    return None


def _fault(meta: Mapping[str, Any], key: str, device: torch.device) -> str | None:
    if meta["key"] != key:
        return "another spec"
    if meta.get("format") != FORMAT:
        return "another version of fairssl"
    if meta.get("device", device.type) != device.type:  # whose generators have other states
        return f"a {meta['device']} device, this is a {device.type}"
    return None


def _warn(message: str) -> None:
    print(f"fairssl: warning: {message}", file=sys.stderr)
