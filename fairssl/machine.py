"""What this process may use of its machine."""

from __future__ import annotations

import math
import os
from functools import cache
from pathlib import Path


def eager_asked() -> bool:
    """Whether FAIRSSL_EAGER asks that a GPU's steps be taken eagerly and their augmentation uncompiled, for debugging."""
    return os.environ.get("FAIRSSL_EAGER", "") not in ("", "0")


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
