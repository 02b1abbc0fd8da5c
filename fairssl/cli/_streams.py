"""Standard output and error that never cost a command its work: closed, full, gone, or unable to show a character."""

from __future__ import annotations

import codecs
import errno
import io
import json
import os
import sys
from typing import Any, TextIO


class _ForgivingFile(io.FileIO):
    """A file descriptor whose failed writes are dropped; the first error is kept in `error`."""

    error: OSError | None = None

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            self.error = self.error or error
            return memoryview(data).nbytes


def _escape(error: UnicodeError) -> tuple[str, int]:
    r"""What an encoding lacks, as `\u0394`: the escape that JSON knows too, so that JSON stays whole."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


codecs.register_error("fairssl.escape", _escape)


def open_streams() -> None:
    """Make `sys.stdout` and `sys.stderr` such that no write to them raises.

    A descriptor that was closed before the start is opened on the null device: the next file would get its number, and
    what libraries print would go into it.
    """
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free number, which is this one
    sys.stdout = _forgiving(1, sys.stdout)
    sys.stderr = _forgiving(2, sys.stderr)


def _forgiving(fd: int, given: TextIO | None) -> TextIO:
    raw = _ForgivingFile(fd, "w", closefd=False)
    at_once = fd == 2 or raw.isatty() or bool(getattr(given, "write_through", False))
    encoding = "utf-8" if given is None else given.encoding
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding, errors="fairssl.escape", line_buffering=at_once)


def close_streams(code: int) -> int:
    """Write out what is left, at the end of a command with exit code `code`; the code to end with.

    A reader that has gone, as in `fairssl list | head`, wanted no more. Output that was lost, on a full disk say, is an
    error: 2 in place of 0.
    """
    lost = _lost_output(sys.stdout)
    if lost is not None and lost.errno != errno.EPIPE:
        print(f"fairssl: error: cannot write to standard output: {lost.strerror}", file=sys.stderr)
        code = code or 2
    sys.stderr.flush()
    return code


def _lost_output(stream: TextIO) -> OSError | None:
    stream.flush()
    raw = getattr(getattr(stream, "buffer", None), "raw", None)
    return raw.error if isinstance(raw, _ForgivingFile) else None
