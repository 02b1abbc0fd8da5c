"""`fairssl` as a user starts it: a process of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

# The smallest `fairssl bench`: seconds on one core.
SMALL = ("--encoder", "small_cnn", "--set", "encoder.width=4", "--epochs", "1", "--seeds", "1", "--batch-size", "16")


def fairssl(
    *words: object,
    env: Mapping[str, str | None] | None = None,
    cwd: Path | None = None,
    nobody: bool = False,
    umask: int = 0o022,
) -> tuple[int, str, str]:
    """Exit code, stdout, stderr. `env`: variables to set, or with None to unset. `nobody`: without a right to what is not
    everybody's, which root has; skips the test where that cannot be had."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for name, value in (env or {}).items():
        environment.pop(name, None)
        if value is not None:
            environment[name] = value
    command = [*(_as_nobody() if nobody else []), sys.executable, "-m", "fairssl", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=cwd, timeout=300, umask=umask)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout, done.stderr


def _as_nobody() -> list[str]:
    """What to put before a command so that it runs without root's rights."""
    if os.geteuid() != 0:
        return []
    if shutil.which("setpriv") is None:
        pytest.skip("run by root, and without setpriv root's rights cannot be laid down")
    words = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    if subprocess.run([*words, sys.executable, "-c", ""], capture_output=True).returncode:
        pytest.skip("run by root, and nobody else can start this Python")
    return words
