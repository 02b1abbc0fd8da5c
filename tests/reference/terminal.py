"""A command as it runs on a terminal: in a process whose output is a pseudo-terminal of a given width."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Mapping
from pathlib import Path


def on_terminal(
    args: list[str], width: int, cwd: Path | None = None, variables: Mapping[str, str | None] | None = None
) -> tuple[int, str]:
    """Exit code and everything that `python ARGS` writes to stdout and stderr, on a terminal `width` columns wide.

    `variables`: what differs in its environment; None takes a variable away. Nothing is wrapped by the terminal: what is
    written stands in the text as it is.
    """
    unset = {"NO_COLOR": None, "FORCE_COLOR": None, "COLUMNS": None, "LINES": None, "TERM": "xterm-256color"}
    changed = {**unset, **(variables or {})}
    environment = {**os.environ, **{name: value for name, value in changed.items() if value is not None}}
    for name, value in changed.items():
        if value is None:
            environment.pop(name, None)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    process = subprocess.Popen(
        [sys.executable, *args], stdin=theirs, stdout=theirs, stderr=theirs, cwd=cwd, env=environment
    )
    os.close(theirs)
    written = written_to(ours)
    return process.wait(timeout=60), written.decode("utf-8").replace("\r\n", "\n")


def written_to(terminal: int) -> bytes:
    """All that is written to a pseudo-terminal until its other end is closed; this end is closed then."""
    written = b""
    while True:
        try:
            chunk = os.read(terminal, 65536)
        except OSError:  # the other end is closed
            break
        if not chunk:
            break
        written += chunk
    os.close(terminal)
    return written
