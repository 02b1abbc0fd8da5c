"""The one writer: a file or folder is there whole, flushed to the disk, or not at all.

A folder is written under a temporary name beside its place and renamed. Whoever writes a temporary folder or file holds
a kernel lock on it, so what a killed process left behind is told from what a live one still writes without looking at
clocks, process numbers or host names.

This needs `flock` of Linux and macOS. The library `filelock` would bring locks to Windows and still not fairssl: it locks a
file that it makes itself, not the temporary folder that is being written, and there a folder that is locked, or holds an
open file, cannot be renamed, nor a lock file be removed while it is held.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from fairssl.types import UserError

try:
    import fcntl
except ImportError as error:
    raise UserError(
        "fairssl keeps its runs with the file locks of Linux and macOS, which this system lacks; on Windows, use WSL"
    ) from error

_TEMP = ".tmp-"


class StoreError(UserError, OSError):
    """The disk refused a write in the middle of a run: full, read-only, gone. `errno` says which.

    Nothing half-written is left. A broad catch around a cell must let it through: the failed record could not be
    written either.
    """

    def __init__(self, path: Path, error: OSError) -> None:
        in_the_way = error.errno in (
            errno.ENOTDIR,
            errno.EEXIST,
            errno.EISDIR,
        )  # a file for a folder, or a folder for a file
        way_out = (
            "name another place" if in_the_way else "free or repair the disk, then the same command goes on from here"
        )
        super().__init__(f"cannot write {path}: {error.strerror or error}; {way_out}")
        self.errno = error.errno
        self._made_of = (path, error)

    def __reduce__(self) -> tuple[Any, ...]:  # so that a worker process can hand it to its parent
        return type(self), self._made_of


def _lock(fd: int, *, wait: bool = False) -> bool:
    """Take the kernel's lock on an open file or folder. It goes when the last descriptor of the opening is closed."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES):
            return False
        raise
    return True


def is_locked(path: Path) -> bool:
    """Whether another opening of the file holds its lock, found out without taking it or writing anything."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def _still_at(fd: int, path: Path) -> bool:
    """Whether the open file is the one that the path names now."""
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(fd), there)


def remove_path(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def sweep_temporaries(folder: Path, prefix: str = _TEMP) -> None:
    """Remove the temporary files and folders whose writer is dead: their locks are free."""
    try:
        names = [entry.name for entry in os.scandir(folder) if entry.name.startswith(prefix)]
    except OSError:
        return
    for name in names:
        path = folder / name
        try:
            fd = os.open(path, os.O_RDONLY)
        except OSError:  # its writer has just finished with it
            continue
        try:
            if _lock(fd) and _still_at(fd, path):
                remove_path(path)
        finally:
            os.close(fd)


def make_temporary(folder: Path, name: str, *, is_dir: bool) -> tuple[int, Path]:
    """A new locked temporary folder or file in `folder`: its descriptor and path."""
    while True:
        path = folder / f"{_TEMP}{name}-{secrets.token_hex(6)}"
        if is_dir:
            path.mkdir()
            fd = os.open(path, os.O_RDONLY)
        else:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        if _lock(fd) and _still_at(fd, path):  # else another process swept it between its birth and the lock
            return fd, path
        os.close(fd)


def sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """A binary file to write, which takes its place at `path` at the end of the block, on the disk or not at all.

    An exception in the block leaves what was at `path`. The disk refuses: `StoreError`.
    """
    try:
        sweep_temporaries(path.parent, f"{_TEMP}{path.name}-")
        fd, temp = make_temporary(path.parent, path.name, is_dir=False)
    except OSError as error:
        raise StoreError(path, error) from error
    try:
        with os.fdopen(fd, "wb") as file:
            try:
                yield file
                file.flush()
                os.fsync(fd)
                os.replace(temp, path)
            except BaseException:
                temp.unlink(missing_ok=True)
                raise
        sync_folder(path.parent)
    except StoreError:
        raise
    except OSError as error:
        temp.unlink(missing_ok=True)
        raise StoreError(path, error) from error


@contextmanager
def whole_folder(path: Path, files: Mapping[str, bytes]) -> Iterator[Path]:
    """A temporary folder beside `path` that holds `files`, flushed to the disk; removed at the end unless renamed."""
    temp = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fd, temp = make_temporary(path.parent, path.name, is_dir=True)
        try:
            for name, data in files.items():
                with open(temp / name, "xb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
            os.fsync(fd)
            yield temp
            sync_folder(path.parent)
        finally:
            remove_path(temp)
            os.close(fd)
    except StoreError:
        raise
    except OSError as error:
        raise StoreError(path, error) from error


def take_lock(path: Path, wait: bool) -> int | None:
    """The descriptor of the locked file at `path`, made if need be; None where another holds it and we do not wait."""
    while True:
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except FileNotFoundError:
            path.parent.mkdir(parents=True, exist_ok=True)
            continue
        try:
            got = _lock(fd, wait=wait)
            if got and _still_at(fd, path):
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
        if not got:
            return None


def rename_folder(temp: Path, folder: Path) -> bool:
    """Rename; False where a folder that is not empty has the place."""
    try:
        os.rename(temp, folder)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return False
        raise
    return True
