"""What made a result: versions, hardware, and hashes of the source files that can change it. No part of a key."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from pathlib import Path

import fairssl
from fairssl import kinds
from fairssl.registry import Registry
from fairssl.spec.run import RunSpec

# What of fairssl itself can change a result; how runs are planned, spread, stored and shown cannot.
_COUNTED = ("types.py", "distributed.py", "nn.py", "parts.py", "spec", "data", "train", "scoring", "evaluate")


def sources(spec: RunSpec) -> dict[str, str]:
    """Plugin, as `heads.adversary`, -> the first 64 bits of the SHA-256 of its file, in hex; and `fairssl` for the core.

    A plugin's file is one file by contract, so its hash tells whether its code is what it was.
    """
    used: list[tuple[Registry[object], str]] = [
        (kinds.objectives, spec.method.objective.name),
        *((kinds.heads, head.name) for head in spec.method.heads),
        (kinds.encoders, spec.encoder.name),
        *((kinds.datasets, name) for name in sorted({spec.data.dataset, spec.pretrain_data.dataset})),
    ]
    found = {f"{registry.kind}.{name}": _hash_of(registry.locate(name).path) for registry, name in used}
    return {**found, "fairssl": core_hash()}


@cache
def core_hash() -> str:
    """A hash over those files of fairssl that can change a result."""
    whole = hashlib.sha256()
    root = Path(fairssl.__file__).parent
    for path in _files(root):
        whole.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return whole.hexdigest()[:16]


def _files(root: Path) -> Iterator[Path]:
    for name in _COUNTED:
        path = root / name
        yield from sorted(path.glob("*.py")) if path.is_dir() else [path]


@cache
def _hash_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def changed(made_by: dict[str, str], spec: RunSpec) -> list[str]:
    """The names whose source is not what made a stored result; empty for a result that says nothing of its sources."""
    now = sources(spec)
    return sorted(name for name, value in made_by.items() if now.get(name, value) != value)


def environment(device_name: str, n_threads: int) -> dict[str, str]:
    """Versions and hardware."""
    packages = ("fairssl", "torch", "torchvision", "timm", "numpy")
    return {
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in packages},
        "device": device_name,
        "threads": str(n_threads),
    }
