"""What this process may use of its machine, and paths as users write them."""

from __future__ import annotations

import math
import os
import sys
import tempfile
from functools import cache
from pathlib import Path

from fairssl.types import UserError


def eager_asked() -> bool:
    """Whether FAIRSSL_EAGER asks that a GPU's steps be taken eagerly and their augmentation uncompiled, for debugging."""
    return os.environ.get("FAIRSSL_EAGER", "") not in ("", "0")


@cache
def ensure_compiler_cache() -> tempfile.TemporaryDirectory[str] | None:
    """Let torch's compiler have a folder until this process ends, where the one named by TORCHINDUCTOR_CACHE_DIR cannot be
    made: torch makes it when an optimiser is first used, compiled or not, and would fail."""
    named = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    if not named:
        return None
    try:
        os.makedirs(named, exist_ok=True)
    except OSError as error:
        instead = tempfile.TemporaryDirectory(prefix="fairssl-compiler-")
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = instead.name
        reason = error.strerror or type(error).__name__
        print(
            f"fairssl: warning: TORCHINDUCTOR_CACHE_DIR {named!r} cannot be made ({reason}): what is compiled is kept for this "
            "process alone; set it to a folder that can be written",
            file=sys.stderr,
        )
        return instead
    return None


@cache
def n_cores() -> int:
    """Cores that this process may use: those it is bound to, and no more than its container's quota; at least 1."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(bound, _quota() or bound))


def _quota() -> int | None:
    """Cores that a container's control group (version 2) grants, rounded up; None: no limit, or none to be seen."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        return math.ceil(int(quota) / int(period))
    except (OSError, ValueError):  # "max", or another system
        return None


@cache
def memory_bytes() -> int | None:
    """Bytes of memory that this process may use: the machine's, and no more than its container grants; None: not known."""
    try:
        physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # another system
        return None
    try:
        return min(physical, int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii")))
    except (OSError, ValueError):  # "max", or another system
        return physical


def user_path(text: str | Path) -> Path:
    """A path as a user wrote it, with `~` as their home. Nothing at all, or the home of nobody: `UserError`."""
    if not str(text).strip():
        raise UserError("the path is empty; name a file or folder")
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise UserError(f"{str(text)!r}: that home folder is not known; write the path in full") from error
