"""Image files in a folder or an archive: their names, sizes and checksums. Nothing is decoded here.

Two roots matter. The data root is where the user's files lie: `--data-dir`, else FAIRSSL_DATA, else a per-user folder.
The cache folder holds what can be made again: FAIRSSL_CACHE, else the per-user cache folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import os
import posixpath
import statistics
import struct
import tempfile
import unicodedata
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from PIL import Image

from fairssl.machine import n_cores
from fairssl.types import Progress, UserError, first_line, silent

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".gif")
CHUNK = 256  # images decoded before they are written: at 224 px 38 MB
UNREADABLE = (  # what PIL and zipfile raise on bytes that are no image
    OSError,
    ValueError,
    SyntaxError,
    EOFError,
    RuntimeError,
    struct.error,
    zlib.error,
    zipfile.BadZipFile,
    Image.DecompressionBombError,
)
T = TypeVar("T")
Names = Sequence[str] | np.ndarray  # N strings
_cache: ContextVar[Path | None] = ContextVar("cache", default=None)


def _per_user(variable: str, fallback: str) -> Path:
    base = os.environ.get(variable) or (os.environ.get("LOCALAPPDATA") if os.name == "nt" else None)
    return (Path(base) if base else Path.home() / fallback) / "fairssl"


def data_root(data_dir: Path | None, name: str) -> Path:
    """Where dataset `name` is looked for: `data_dir`, else FAIRSSL_DATA, else the per-user data folder.

    A folder or file that the user named and that does not exist is a `UserError`; the per-user one need not exist.
    """
    for given, what in ((data_dir, "--data-dir"), (os.environ.get("FAIRSSL_DATA"), "FAIRSSL_DATA")):
        if given:
            root = Path(given).expanduser()
            if not root.exists():
                raise UserError(
                    f"{name}: {what} {str(root)!r} does not exist; name a folder or zip that holds the images"
                )
            return root
    return _per_user("XDG_DATA_HOME", ".local/share")


def cache_folder() -> Path:
    """Where packs and checksums are kept: FAIRSSL_CACHE, else the per-user cache folder."""
    chosen = _cache.get() or os.environ.get("FAIRSSL_CACHE")
    return Path(chosen).expanduser() if chosen else _per_user("XDG_CACHE_HOME", ".cache")


@contextlib.contextmanager
def fresh_cache() -> Iterator[Path]:
    """Within it the cache is an empty folder that is removed at the end: everything is read and decoded anew."""
    base = writable_folder(cache_folder() / "packs")
    with tempfile.TemporaryDirectory(prefix=".building-", dir=base, ignore_cleanup_errors=True) as folder:
        token = _cache.set(Path(folder))
        try:
            yield Path(folder)
        finally:
            _cache.reset(token)


def writable_folder(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cache_fault(folder, error) from error
    return folder


def cache_fault(folder: Path, error: OSError) -> UserError:
    reason = error.strerror or str(error)
    return UserError(f"cannot write the cache folder {str(folder)!r}: {reason}; set FAIRSSL_CACHE to another folder")


def short_id(name: str) -> str:
    """16 hex digits that stand for a file of this base name wherever it lies."""
    base = posixpath.basename(unicodedata.normalize("NFC", name))
    return hashlib.sha256(base.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def hashed_order(ids: Sequence[str], seed: int) -> np.ndarray:
    """int64 (N,): positions of `ids` in a random order that depends on the seed and on each id alone.

    The order of the input does not matter, and an id more or less leaves the order of the others as it was.
    """
    keys = [hashlib.sha256(f"{seed}:{name}".encode()).digest() for name in ids]
    return np.array(sorted(range(len(keys)), key=keys.__getitem__), dtype=np.int64)


def download_fault(path: Path, expected: str) -> UserError:
    """The error for a file that is not what its name says: the file, its first bytes and the likely reason."""
    with path.open("rb") as file:
        first = file.read(512)
    text = first.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if not first:
        reason = "it is empty: the download did not start"
    elif text.startswith((b"<!doctype", b"<html", b"<?xml", b"<head")):
        reason = "it is a web page (a quota, login or virus-scan page) saved under that name"
    elif first.startswith(b"PK\x03\x04"):
        reason = "it begins like a zip but its end is missing: the download was cut off"
    else:
        reason = "it is damaged, or another file under that name"
    return UserError(
        f"{str(path)!r} is not {expected}: {reason}; it begins with {first[:40]!r}. Delete it and download it by hand"
    )


class ImageFiles:
    """The image files of a zip, or of a folder and the folders down to `depth` below it. Nothing is decoded.

    `names` (N,) str, sorted, with `/` between folders, relative to the deepest folder that holds them all, so that a
    zip, its unpacked folder and that folder moved elsewhere have the same names; `sizes` int64 (N,) bytes. Where a
    folder called `within` (in any case) lies at the top, only what it holds counts. Hidden files are no images.
    Errors: `UserError` if `root` cannot be read or is not a zip. An empty one has no names; the caller decides.
    """

    def __init__(self, root: Path, *, within: str = "", depth: int = 1) -> None:
        self.root = Path(root)
        self._zip: zipfile.ZipFile | None = None
        self._crc: np.ndarray | None = None
        try:
            found = self._in_folder(within, depth) if self.root.is_dir() else self._in_zip()
        except zipfile.BadZipFile as error:
            raise download_fault(self.root, "a zip of images") from error
        except OSError as error:
            raise UserError(f"cannot read {str(self.root)!r}: {error.strerror or error}") from error
        base = _common(found)
        if within:
            inside = [f for f in found if f[0][len(base) :].partition("/")[0].casefold() == within.casefold()]
            inside = [f for f in inside if "/" in f[0][len(base) :]]
            if inside:
                found, base = inside, _common(inside)
        found.sort()
        self._base = base
        self.names = np.array([f[0][len(base) :] for f in found], dtype=str)
        self.sizes = np.array([f[1] for f in found], dtype=np.int64)
        stamps = np.array([f[2] for f in found], dtype=np.int64)
        if self._zip is not None:
            self._crc = stamps.astype(np.uint32)
        self._modified = stamps

    def _in_folder(self, within: str, depth: int) -> list[tuple[str, int, int]]:
        """(name, size, time of the last change in ns) of every image file."""
        if within:
            for child in sorted(self.root.iterdir()):
                if child.name.casefold() == within.casefold() and child.is_dir():
                    self.root = child
        found = []
        folders = [(self.root, "", 0)]
        while folders:
            folder, prefix, level = folders.pop()
            with os.scandir(folder) as entries:
                for entry in entries:
                    if _hidden(entry.name):
                        continue
                    if entry.is_dir():
                        if level < depth:
                            folders.append((Path(entry.path), f"{prefix}{entry.name}/", level + 1))
                    elif entry.name.lower().endswith(SUFFIXES) and entry.is_file():
                        stat = entry.stat()
                        found.append((prefix + entry.name, stat.st_size, stat.st_mtime_ns))
        return found

    def _in_zip(self) -> list[tuple[str, int, int]]:
        """(name, size, CRC-32) of every image file, from the zip's directory."""
        self._zip = zipfile.ZipFile(self.root)
        return [
            (entry.filename, entry.file_size, entry.CRC)
            for entry in self._zip.infolist()
            if entry.filename.lower().endswith(SUFFIXES) and not any(map(_hidden, entry.filename.split("/")))
        ]

    def __len__(self) -> int:
        return len(self.names)

    def __enter__(self) -> ImageFiles:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the zip."""
        if self._zip is not None:
            self._zip.close()

    def read(self, name: str) -> bytes:
        """The bytes of one file. Safe to call from several threads."""
        if self._zip is not None:
            return self._zip.read(self._base + str(name))
        return self.root.joinpath(*(self._base + str(name)).split("/")).read_bytes()

    def shorter_side(self) -> int:
        """Pixels of the shorter stored side, the median of a few images' headers. `UserError` if none opens."""
        order = np.argsort(np.arange(len(self)) % max(1, len(self) // 15), kind="stable")
        sides: list[int] = []
        reason = "no files"
        for position in order:
            try:
                with Image.open(io.BytesIO(self.read(self.names[position]))) as image:
                    sides.append(min(image.size))
            except UNREADABLE as error:
                reason = decode_reason(error)
            if len(sides) == 15:
                break
        if not sides:
            raise none_decodes(self, len(self), reason)
        return statistics.median_low(sides)

    def fingerprint(self, progress: Progress = silent) -> str:
        """64 hex digits: SHA-256 over the sorted (name, size, CRC-32 of the content). Equal for a zip and its folder.

        A zip's directory holds the checksums. A folder's are computed once and kept in the cache until a file's name,
        size or time of change differs.
        """
        whole = hashlib.sha256()
        for name, size, crc in sorted(zip(map(str, self.names), self.sizes, self._checksums(progress), strict=True)):
            whole.update(
                f"{unicodedata.normalize('NFC', name)}\0{size}\0{crc:08x}\n".encode("utf-8", "surrogateescape")
            )
        return whole.hexdigest()

    def _checksums(self, progress: Progress) -> np.ndarray:
        if self._crc is not None:
            return self._crc
        path = str(self.root.resolve()) + "/" + self._base
        stamp = hashlib.sha256("\0".join(self.names).encode("utf-8", "surrogateescape"))
        stamp.update(self.sizes.tobytes() + self._modified.tobytes())
        folder = writable_folder(cache_folder() / "checksums")
        kept = folder / f"{hashlib.sha256(path.encode('utf-8', 'surrogateescape')).hexdigest()[:32]}.npz"
        with contextlib.suppress(OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile), np.load(kept) as stored:
            if str(stored["stamp"]) == stamp.hexdigest():
                self._crc = stored["crc"]
                return stored["crc"]
        crc = np.zeros(len(self), dtype=np.uint32)
        try:
            with ThreadPoolExecutor(n_threads()) as pool:
                for i, value in enumerate(map_ahead(pool, lambda name: zlib.crc32(self.read(name)), self.names)):
                    crc[i] = value
                    if i % 1000 == 0 or i + 1 == len(self):
                        progress("reading", i + 1, len(self))
        except OSError as error:
            raise UserError(f"cannot read {str(error.filename or self.root)!r}: {error.strerror or error}") from error
        _write_whole(kept, lambda file: np.savez(file, stamp=np.array(stamp.hexdigest()), crc=crc))
        self._crc = crc
        return crc


def _hidden(name: str) -> bool:
    return name.startswith(".") or name == "__MACOSX"


def _common(found: list[tuple[str, int, int]]) -> str:
    """The folder, with its closing `/`, that holds all of `found`."""
    folders = [name.split("/") for name in {posixpath.dirname(f[0]) for f in found}]
    if not folders:
        return ""
    first, last = min(folders), max(folders)  # what these two share, all share
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False))
    return "".join(f"{folder}/" for folder, _ in same if folder)


def n_threads() -> int:
    return min(16, n_cores())


def map_ahead(pool: ThreadPoolExecutor, work: Callable[[str], T], items: Names) -> Iterator[T]:
    """`map` over a pool, at most one chunk ahead: bounded memory, whatever the length."""

    def some(start: int) -> list[T]:
        return [work(item) for item in items[start : start + 16]]  # one by one, the pool costs as much as the decoding

    for start in range(0, len(items), CHUNK):
        for results in pool.map(some, range(start, min(start + CHUNK, len(items)), 16)):
            yield from results


def _write_whole(path: Path, write: Callable[[Any], Any]) -> None:
    """Write a file of the cache so that it appears whole or not at all."""
    handle, temporary = tempfile.mkstemp(prefix=".", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
        os.replace(temporary, path)
    except OSError as error:
        Path(temporary).unlink(missing_ok=True)
        raise cache_fault(path.parent, error) from error


def decode_reason(error: BaseException) -> str:
    return "not an image" if isinstance(error, Image.UnidentifiedImageError) else first_line(error)


def none_decodes(files: ImageFiles, n: int, reason: str) -> UserError:
    return UserError(
        f"none of the {n:,} images in {str(files.root)!r} decodes ({reason}); unpack or download them again"
    )
