"""Where data is looked for, and where what can be made again is kept.

The data root is where the user's files lie: `--data-dir`, else FAIRSSL_DATA, else a per-user folder. The cache folder
holds decoded images and checksums: FAIRSSL_CACHE, else the per-user cache folder. A group may share it: what is written
there has the modes that the umask gives.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import platformdirs

from fairssl.types import UserError, first_line, printable

_cache: ContextVar[Path | None] = ContextVar("cache", default=None)


def data_root(data_dir: Path | str | None, name: str) -> Path:
    """Where dataset `name` is looked for: `data_dir`, else FAIRSSL_DATA, else the per-user data folder.

    `~` is expanded. A folder or file that the user named and that does not exist is a `UserError`, as is an empty
    `data_dir`; an empty FAIRSSL_DATA counts as not set, and the per-user folder need not exist.
    """
    if data_dir is not None and not str(data_dir):
        raise UserError("--data-dir is empty; name a folder or an archive of images, or leave it out for FAIRSSL_DATA")
    for given, what in ((data_dir, "--data-dir"), (os.environ.get("FAIRSSL_DATA"), "FAIRSSL_DATA")):
        if given:
            root = _expanded(given, what)
            try:
                os.stat(root)
            except FileNotFoundError:
                raise UserError(
                    f"{name}: {what} {str(root)!r} does not exist; name a folder or an archive that holds the images"
                ) from None
            except (OSError, ValueError) as error:
                reason = getattr(error, "strerror", None) or error
                raise UserError(f"{name}: {what} {str(root)!r} cannot be read: {reason}") from error
            return root
    return _per_user(platformdirs.user_data_path, "FAIRSSL_DATA, or give --data-dir")


def cache_folder() -> Path:
    """Where packs and checksums are kept: FAIRSSL_CACHE, else the per-user cache folder."""
    chosen = _cache.get() or os.environ.get("FAIRSSL_CACHE")
    if chosen:
        return _expanded(chosen, "FAIRSSL_CACHE")
    return _per_user(platformdirs.user_cache_path, "FAIRSSL_CACHE to a folder")


def _expanded(path: Path | str, what: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError as error:  # a `~` of somebody who has no home folder
        raise UserError(f"{what} {str(path)!r}: there is no such home folder; write the path in full") from error


def _per_user(find: Callable[..., Path], way_out: str) -> Path:
    """The per-user folder. In some containers a user has none: HOME is not set and the password file does not know them,
    on which releases of `platformdirs` raise or give a relative path."""
    try:
        folder = find("fairssl", appauthor=False)
    except RuntimeError:
        folder = Path()
    if not folder.is_absolute():
        raise UserError(f"this user has no home folder (HOME is not set): set {way_out}")
    return folder


@contextlib.contextmanager
def fresh_cache() -> Iterator[Path]:
    """Within it the cache is an empty folder that is removed at the end: everything is read and decoded anew."""
    base = writable_folder(cache_folder() / "packs")
    try:
        folder = tempfile.TemporaryDirectory(prefix=".building-", dir=base, ignore_cleanup_errors=True)
    except OSError as error:
        raise cache_fault(base, error) from error
    with folder as path:
        token = _cache.set(Path(path))
        try:
            yield Path(path)
        finally:
            _cache.reset(token)


def writable_folder(folder: Path) -> Path:
    """`folder`, made if need be; `UserError` if it cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cache_fault(folder, error) from error
    return folder


def cache_fault(folder: Path, error: OSError) -> UserError:
    """The error for a cache that the disk, or its owner, does not let us write."""
    reason = error.strerror or str(error)
    return UserError(f"cannot write the cache folder {str(folder)!r}: {reason}; set FAIRSSL_CACHE to another folder")


def fresh_start(path: Path) -> str:
    """The way out of a file or folder of the cache that is of no use: its owner may delete it, and nobody else is told to."""
    try:
        mine = not hasattr(os, "getuid") or path.stat().st_uid == os.getuid()
    except OSError:
        mine = False
    if mine:
        return f"delete {str(path)!r}, or set FAIRSSL_CACHE to another folder"
    return "it is another user's: ask them to renew it, or set FAIRSSL_CACHE to a folder of your own"


def new_folder(parent: Path, prefix: str) -> Path:
    """A new folder of a random name, with the mode that the umask gives: `tempfile` would keep everyone else out."""
    folder = parent / f"{prefix}{secrets.token_hex(8)}"
    folder.mkdir()
    return folder


def write_whole(path: Path, write: Callable[[Any], Any]) -> None:
    """Write a file of the cache so that it appears whole or not at all; `UserError` where that cannot be."""
    temporary = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    try:
        with temporary.open("xb") as file:
            write(file)
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise cache_fault(path.parent, error) from error


def read_fault(name: str, error: OSError, path: Path | None = None) -> UserError:
    """The error for a file or folder that the disk, or its owner, does not let us read."""
    which = error.filename if error.filename is not None else path
    named = f" {printable(os.fsdecode(which))!r}" if which is not None and not isinstance(which, int) else ""
    return UserError(f"{f'{name}: ' if name else ''}cannot read{named}: {error.strerror or error}")


def out_of_memory(name: str, error: MemoryError, image_size: int | None = None) -> UserError:
    """The error for a dataset that takes more memory than there is."""
    at = "" if image_size is None else f" at {image_size} px"
    reason = f" ({first_line(error)})" if str(error) else ""
    return UserError(
        f"{name}: its images{at} take more memory than there is{reason}; use a smaller --image-size or fewer images"
    )
