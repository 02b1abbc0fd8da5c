"""Image files in a folder or an archive: their names, sizes and checksums. Nothing is decoded here."""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import posixpath
import statistics
import struct
import unicodedata
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from pathlib import Path
from typing import TypeVar

import numpy as np
from PIL import Image

from fairssl.data.archives import Folder, Found, Kept, Source, open_archive, subfolders
from fairssl.data.places import read_fault
from fairssl.machine import n_cores
from fairssl.types import Progress, UserError, counted, first_few, first_line, printable, silent

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".gif")
CHUNK = 256  # images decoded before they are written: at 224 px 38 MB
UNREADABLE = (  # what PIL and the readers of archives raise on bytes that are no image
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
_told: ContextVar[Progress] = ContextVar("told", default=silent)


@contextlib.contextmanager
def telling(progress: Progress) -> Iterator[None]:
    """Within it `progress` is told of files that are read where the caller could not pass it on."""
    token = _told.set(progress)
    try:
        yield
    finally:
        _told.reset(token)


def short_id(name: str, folders: bool = False) -> str:
    """16 hex digits that stand for a file of this base name wherever it lies; with `folders`, for one of this whole name,
    where two folders may hold files of one base name."""
    name = unicodedata.normalize("NFC", name)
    kept = name if folders else posixpath.basename(name)
    return hashlib.sha256(kept.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def hashed_order(ids: Sequence[str], seed: int) -> np.ndarray:
    """int64 (N,): positions of `ids` in a random order that depends on the seed and on each id alone.

    The order of the input does not matter, and an id more or less leaves the order of the others as it was.
    """
    keys = [hashlib.sha256(f"{seed}:{name}".encode("utf-8", "surrogateescape")).digest() for name in ids]
    return np.array(sorted(range(len(keys)), key=keys.__getitem__), dtype=np.int64)


def random_parts(units: Names, seed: int, val: float = 0.1, test: float = 0.1) -> np.ndarray:
    """int64 (N,): 0 train, 1 val, 2 test of N images, about a share `val` and `test` of them, in whole units.

    `units` (N,) strings: images of one unit, such as one person, are in one split. Every split has a unit. Which one depends
    on the seed and the units' names. Errors: `UserError` for fewer than three units (two where a share is 0).
    """
    n, shares = len(units), [share for share in (val, test) if share]
    names, unit, counts = np.unique(np.asarray(units, dtype=str), return_inverse=True, return_counts=True)
    if len(names) <= len(shares):
        raise UserError(
            f"{counted(n, 'image')} of {len(names):,} people or files cannot be split in {len(shares) + 1}; add images"
        )
    order = hashed_order([str(name) for name in names], seed)
    ends = np.cumsum(counts[order])
    part_of = np.zeros(len(names), dtype=np.int64)
    start, taken = 0, 0
    for left, (part, share) in enumerate(((1, val), (2, test))):
        if not share:
            continue
        later = sum(bool(other) for other in (val, test)[left + 1 :]) + 1  # splits that must have a unit too
        end = min(int(np.searchsorted(ends, taken + n * share)) + 1, len(names) - later)
        part_of[order[start:end]] = part
        start, taken = end, int(ends[end - 1])
    return part_of[unit.ravel()]


class ImageFiles:
    """The image files of a folder, a zip or a tar (also compressed). Nothing is decoded, and no archive is unpacked.

    Of a folder, those in it and in the folders down to `depth` below it: 0 is the folder alone, 1 (the default) its
    folders too, None all. Of an archive, all. A name ends as an image's does (`SUFFIXES`, in any case); hidden files and
    folders do not count. Where a folder called `within` (in any case) lies at the top or one folder below, only what it
    holds counts.

    `names` str (N,), sorted, with `/` between folders, relative to the deepest folder that holds them all, so that an
    archive, its unpacked folder and that folder moved elsewhere have the same names and one `fingerprint()`; bytes of a
    name that are no UTF-8 are there as `os.fsdecode` gives them, for `printable` to show. `sizes` int64 (N,) bytes.
    `notes` says which names are no UTF-8.
    Errors: `UserError` if `root` cannot be read, or is a file that is no archive, or not a whole one. An empty one has no
    names; the caller decides.
    """

    def __init__(self, root: Path, *, within: str = "", depth: int | None = 1) -> None:
        self.root = Path(root)
        try:
            if self.root.is_dir():
                self.root = _folder_within(self.root, within)
                self._source: Source = Folder(self.root, depth, is_image_name)
            else:
                self._source = open_archive(self.root, is_image_name)
        except OSError as error:
            raise read_fault("", error, self.root) from error
        found = self._source.found
        base = _common(found)
        if within and (inside := _inside(found, base, within)):
            found, base = inside, _common(inside)
        found.sort()
        self._base = base
        self.names = np.array([f[0][len(base) :] for f in found], dtype=str)
        self.sizes = np.array([f[1] for f in found], dtype=np.int64)
        stamps = np.array([f[2] for f in found], dtype=np.int64)
        self._crc = stamps.astype(np.uint32) if self._source.has_crc else None
        self._modified = stamps

    def __len__(self) -> int:
        return len(self.names)

    def __enter__(self) -> ImageFiles:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the archive."""
        self._source.close()

    @property
    def notes(self) -> tuple[str, ...]:
        """One line on names that are no UTF-8; nothing where there are none."""
        odd = [str(name) for name in self.names if not _is_utf8(name)]
        if not odd:
            return ()
        n = counted(len(odd), "file name is", "file names are")
        return (f"odd names: {n} not UTF-8, and shown escaped: {first_few(odd, 5)}",)

    @property
    def paths(self) -> list[str]:
        """N names as they are seen from `root`, with every folder."""
        return [self._base + str(name) for name in self.names]

    def read(self, name: str) -> bytes:
        """The bytes of one file. Safe to call from several threads."""
        return self._source.read(self._base + str(name))

    def shorter_side(self) -> int:
        """Pixels of the shorter stored side, the median of a few images' headers. `UserError` if none opens."""
        kept = self._kept("sides")
        stored = kept.read()
        if stored is not None:
            return int(stored["side"])
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
        side = statistics.median_low(sides)
        with contextlib.suppress(UserError):  # it saves little, and whoever only reads a shared cache can do without
            kept.write(side=np.array(side))
        return side

    def same_content(self, progress: Progress | None = None) -> np.ndarray:
        """int64 (N,): for each file the position of the first one with the same bytes, its own for most.

        By size and checksum; files that agree in both are read and compared.
        """
        crc = self._checksums(progress)
        first = np.arange(len(self))
        keys = self.sizes.astype(np.uint64) << np.uint64(32) | crc.astype(np.uint64)  # sizes below 4 GB
        _, code, count = np.unique(keys, return_inverse=True, return_counts=True)
        seen: dict[tuple[int, bytes], int] = {}
        for i in np.flatnonzero(count[code.ravel()] > 1):
            content = hashlib.sha256(self.read(self.names[i])).digest()
            first[i] = seen.setdefault((int(keys[i]), content), int(i))
        return first

    def fingerprint(self, progress: Progress | None = None) -> str:
        """64 hex digits: SHA-256 over the sorted (name, size, CRC-32 of the content). Equal for an archive and its folder.

        A zip's directory holds the checksums. Others are computed once and kept in the cache until a file's name, size or
        time of change differs.
        """
        whole = hashlib.sha256()
        for name, size, crc in sorted(zip(map(str, self.names), self.sizes, self._checksums(progress), strict=True)):
            whole.update(
                f"{unicodedata.normalize('NFC', name)}\0{size}\0{crc:08x}\n".encode("utf-8", "surrogateescape")
            )
        return whole.hexdigest()

    def _kept(self, what: str) -> Kept:
        """What the cache has on these files, as long as they do not change."""
        stamp = hashlib.sha256("\0".join(self.names).encode("utf-8", "surrogateescape"))
        stamp.update(self.sizes.tobytes() + self._modified.tobytes())
        return Kept(what, str(self.root.resolve()) + "/" + self._base, stamp.hexdigest())

    def _checksums(self, progress: Progress | None) -> np.ndarray:
        progress = progress or _told.get()
        if self._crc is not None:
            return self._crc
        kept = self._kept("checksums")
        stored = kept.read()
        if stored is not None:
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
            raise read_fault("", error, self.root) from error
        kept.write(crc=crc)
        self._crc = crc
        return crc


def is_image_name(name: str) -> bool:
    """Whether a file of that name is taken for an image."""
    return name.lower().endswith(SUFFIXES)


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _folder_within(root: Path, within: str) -> Path:
    """The folder called `within` in `root`, or in one of the folders there; `root` where there is none."""
    if not within:
        return root
    below = subfolders(root)
    for folders in (below, [inner for folder in below for inner in subfolders(folder)]):
        found = [path for path in folders if path.name.casefold() == within.casefold()]
        if len(found) > 1:
            names = " and ".join(str(path.relative_to(root)) for path in found)
            raise UserError(f"{str(root)!r} holds {printable(names)}; name one of them")
        if found:
            return found[0]
    return root


def _inside(found: Found, base: str, within: str) -> Found:
    """Those of `found` that lie in a folder called `within`, at the top below `base` or else one folder further down."""
    for level in (0, 1):
        inside = []
        for one in found:
            folders = one[0][len(base) :].split("/")[:-1]
            if len(folders) > level and folders[level].casefold() == within.casefold():
                inside.append(one)
        if inside:
            return inside
    return []


def _common(found: Found) -> str:
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


def decode_reason(error: BaseException) -> str:
    return "not an image" if isinstance(error, Image.UnidentifiedImageError) else first_line(error)


def none_decodes(files: ImageFiles, n: int, reason: str) -> UserError:
    return UserError(
        f"none of the {n:,} images in {str(files.root)!r} decodes ({reason}); unpack or download them again"
    )
