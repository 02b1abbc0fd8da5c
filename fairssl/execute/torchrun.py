"""What torchrun says in the environment of a process that it started. Imports no torch."""

from __future__ import annotations

import os

from fairssl.types import UserError


def torchrun() -> tuple[int, int, int] | None:
    """(processes, number of this one, its number on this machine) where torchrun started this process; else None."""
    names = ("WORLD_SIZE", "RANK", "LOCAL_RANK")
    if any(name not in os.environ for name in (*names, "MASTER_ADDR", "MASTER_PORT")):
        return None
    for name in names:
        if not os.environ[name].isdecimal():
            raise UserError(f"{name}={os.environ[name]!r} in the environment: torchrun sets a number; take it out")
    n, number, local = (int(os.environ[name]) for name in names)
    if not number < n:
        raise UserError(
            f"RANK={number} WORLD_SIZE={n} in the environment: RANK must be below WORLD_SIZE; torchrun sets both"
        )
    return n, number, local
