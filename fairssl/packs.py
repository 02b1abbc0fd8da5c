"""Image files on disk, and packs: their images decoded once into one memory-mapped array.

Two roots matter. The data root is where the user's files lie: `--data-dir`, else FAIRSSL_DATA, else a per-user folder.
The cache folder holds what can be made again: FAIRSSL_CACHE, else the per-user cache folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import json
import os
import posixpath
import shutil
import statistics
import struct
import tempfile
import time
import unicodedata
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from PIL import Image, ImageOps

from fairssl.types import Progress, UserError, first_line, silent

DECODER = 1  # raise it when `decode` gives other pixels
SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".gif")
CHUNK = 256  # images decoded before they are written: at 224 px 38 MB
STALE = 3600  # seconds without a write after which a half-built pack is a dead process's
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


# --------------------------------------------------------------------------- where things lie


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
    base = _writable(cache_folder() / "packs")
    with tempfile.TemporaryDirectory(prefix=".building-", dir=base, ignore_cleanup_errors=True) as folder:
        token = _cache.set(Path(folder))
        try:
            yield Path(folder)
        finally:
            _cache.reset(token)


def _writable(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _cache_fault(folder, error) from error
    return folder


def _cache_fault(folder: Path, error: OSError) -> UserError:
    reason = error.strerror or str(error)
    return UserError(f"cannot write the cache folder {str(folder)!r}: {reason}; set FAIRSSL_CACHE to another folder")


# --------------------------------------------------------------------------- names


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


# --------------------------------------------------------------------------- files


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
                reason = _reason(error)
            if len(sides) == 15:
                break
        if not sides:
            raise _none_decodes(self, len(self), reason)
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
        folder = _writable(cache_folder() / "checksums")
        kept = folder / f"{hashlib.sha256(path.encode('utf-8', 'surrogateescape')).hexdigest()[:32]}.npz"
        with contextlib.suppress(OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile), np.load(kept) as stored:
            if str(stored["stamp"]) == stamp.hexdigest():
                self._crc = stored["crc"]
                return stored["crc"]
        crc = np.zeros(len(self), dtype=np.uint32)
        try:
            with ThreadPoolExecutor(_n_threads()) as pool:
                for i, value in enumerate(_ahead(pool, lambda name: zlib.crc32(self.read(name)), self.names)):
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


def _n_threads() -> int:
    return min(16, os.cpu_count() or 1)


def _ahead(pool: ThreadPoolExecutor, work: Callable[[str], T], items: Names) -> Iterator[T]:
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
        raise _cache_fault(path.parent, error) from error


# --------------------------------------------------------------------------- packs


def decode(data: bytes, image_size: int) -> np.ndarray:
    """uint8 (3, S, S) RGB: orientation from EXIF applied, shorter side resized to S, centre crop.

    Pillow's bilinear filter, whose support grows with the reduction (antialiased), on the fully decoded image: no
    `draft`, no `reducing_gap`, which are faster and give other pixels. Errors: one of `UNREADABLE`.
    """
    with Image.open(io.BytesIO(data)) as file:
        image = ImageOps.exif_transpose(file).convert("RGB")
    width, height = image.size
    shorter = min(width, height)
    if shorter != image_size:
        wanted = (round(width * image_size / shorter), round(height * image_size / shorter))
        image = image.resize(wanted, Image.Resampling.BILINEAR)
        width, height = wanted
    left, top = (width - image_size) // 2, (height - image_size) // 2
    image = image.crop((left, top, left + image_size, top + image_size))
    return np.ascontiguousarray(np.asarray(image).transpose(2, 0, 1))


@dataclass(frozen=True)
class Pack:
    """Decoded images. N of the n names that were asked for; the others do not decode.

    `images` uint8 (N, 3, S, S), memory-mapped: writing to it changes this process's copy, never the file.
    `kept` int64 (N,) position of each image among the names asked for; `sha256` uint8 (N, 32) of each file's bytes.
    `corrupt` is `name: reason` for every image left out.
    """

    images: np.ndarray
    kept: np.ndarray
    sha256: np.ndarray
    corrupt: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.kept)

    @property
    def notes(self) -> tuple[str, ...]:
        """One line that names and counts what was left out; nothing if nothing was."""
        if not self.corrupt:
            return ()
        shown = "; ".join(self.corrupt[:5]) + ("; ..." if len(self.corrupt) > 5 else "")
        return (f"corrupt: {len(self.corrupt)} images do not decode and are left out: {shown}",)


def pack(files: ImageFiles, names: Names, image_size: int, fingerprint: str, progress: Progress = silent) -> Pack:
    """The images called `names`, in that order, at `image_size` pixels; decoded the first time, then only opened.

    The key is (`fingerprint` of the files' content, names, size, decoder version). A pack appears whole by an atomic
    rename; two processes may build the same one. `progress` is told of images done.
    Errors: `UserError` if there is no image, none decodes, or the cache cannot be written; nothing is left behind.
    """
    if image_size < 1:
        raise UserError(f"image size {image_size} is not a number of pixels; use 1 or more")
    if not len(names):
        raise UserError(f"{str(files.root)!r} holds no image that can be used")
    listing = hashlib.sha256("\0".join(names).encode("utf-8", "surrogateescape")).hexdigest()
    key = hashlib.sha256(json.dumps([DECODER, image_size, fingerprint, listing]).encode()).hexdigest()[:32]
    folder = _writable(cache_folder() / "packs")
    final = folder / key
    opened = _open(final, image_size)
    if opened is not None:
        return opened
    _sweep(folder)
    needed, free = len(names) * 3 * image_size**2, shutil.disk_usage(folder).free
    if needed > free:
        raise UserError(
            f"a pack of {len(names):,} images at {image_size} px needs {needed / 1e9:.1f} GB and {str(folder)!r} has "
            f"{free / 1e9:.1f} GB; set FAIRSSL_CACHE to another folder or use a smaller --image-size"
        )
    temporary: Path | None = None
    try:
        temporary = Path(tempfile.mkdtemp(prefix=".building-", dir=folder))
        _build(temporary, files, names, image_size, progress)
        if final.exists() and _open(final, image_size) is None:  # damaged, not built by another process meanwhile
            shutil.rmtree(final, ignore_errors=True)
        with contextlib.suppress(OSError):  # somebody else's is there: as good as ours
            os.replace(temporary, final)
    except OSError as error:
        raise _cache_fault(folder, error) from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
    opened = _open(final, image_size)
    if opened is None:
        raise UserError(
            f"the pack {str(final)!r} cannot be read back; delete it, or set FAIRSSL_CACHE to another folder"
        )
    return opened


def _build(folder: Path, files: ImageFiles, names: Names, image_size: int, progress: Progress) -> None:
    """Fill `folder` with images.npy, kept.npy, sha256.npy and pack.json."""

    def one(name: str) -> tuple[np.ndarray, bytes] | str:
        try:
            data = files.read(name)
            return decode(data, image_size), hashlib.sha256(data).digest()
        except UNREADABLE as error:
            return _reason(error)

    kept: list[int] = []
    digests = bytearray()
    corrupt: list[str] = []
    shape = (3, image_size, image_size)
    # warnings of PIL's about odd files; `corrupt` says what matters
    with (
        (folder / "images.npy").open("wb") as file,
        ThreadPoolExecutor(_n_threads()) as pool,
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", module=r"PIL\.")
        start = _write_header(file, (len(names), *shape))
        for i, result in enumerate(_ahead(pool, one, names)):
            if isinstance(result, str):
                corrupt.append(f"{names[i]}: {result}")
            else:
                file.write(result[0].data)
                kept.append(i)
                digests += result[1]
            if (i + 1) % CHUNK == 0 or i + 1 == len(names):
                progress("decoding", i + 1, len(names))
        if not kept:
            raise _none_decodes(files, len(names), corrupt[0].rpartition(": ")[2])
        file.seek(0)
        if _write_header(file, (len(kept), *shape)) != start:
            raise RuntimeError("the header of a shorter array has another length")
        file.flush()
        os.fsync(file.fileno())
    np.save(folder / "kept.npy", np.array(kept, dtype=np.int64))
    np.save(folder / "sha256.npy", np.frombuffer(bytes(digests), dtype=np.uint8).reshape(-1, 32))
    about = {"decoder": DECODER, "image_size": image_size, "n": len(kept), "corrupt": corrupt}
    (folder / "pack.json").write_text(json.dumps(about), encoding="utf-8")


def _write_header(file: Any, shape: tuple[int, ...]) -> int:
    """Write the head of a .npy file of uint8 in C order; where the data begins. Its length does not depend on N."""
    np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
    return int(file.tell())


def _open(folder: Path, image_size: int) -> Pack | None:
    """The pack in `folder`; None if there is none, or one that is not whole."""
    try:
        about = json.loads((folder / "pack.json").read_text(encoding="utf-8"))
        images = np.load(folder / "images.npy", mmap_mode="c")
        kept, sha256 = np.load(folder / "kept.npy"), np.load(folder / "sha256.npy")
    except (OSError, ValueError, EOFError):
        return None
    if (
        images.shape != (about["n"], 3, image_size, image_size)
        or len(kept) != len(images)
        or len(sha256) != len(images)
    ):
        return None
    return Pack(images, kept, sha256, tuple(about["corrupt"]))


def _sweep(folder: Path) -> None:
    """Remove what killed processes left half-built."""
    for left in folder.glob(".building-*"):
        with contextlib.suppress(OSError):
            newest = max(p.stat().st_mtime for p in (left, *left.rglob("*")))
            if time.time() - newest > STALE:
                shutil.rmtree(left, ignore_errors=True)


def _reason(error: BaseException) -> str:
    return "not an image" if isinstance(error, Image.UnidentifiedImageError) else first_line(error)


def _none_decodes(files: ImageFiles, n: int, reason: str) -> UserError:
    return UserError(
        f"none of the {n:,} images in {str(files.root)!r} decodes ({reason}); unpack or download them again"
    )
