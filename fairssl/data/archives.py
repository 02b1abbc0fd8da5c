"""Files in a folder, a zip or a tar, listed and read in one way. Nothing is ever unpacked to the names inside.

A source has `found`, (name, size, stamp) of every file that it holds, and `read(name)`, which several threads may call.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import hashlib
import lzma
import os
import posixpath
import stat
import tarfile
import tempfile
import threading
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
from PIL import Image

from fairssl.data.places import cache_fault, cache_folder, writable_folder, write_whole
from fairssl.types import UserError, printable

Found = list[tuple[str, int, int]]  # name with `/` between folders, bytes, stamp
BLOCK = 1 << 20  # bytes that are unpacked at once
ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
READS = "zip, tar, tar.gz, tar.bz2 and tar.xz"
_PACKINGS: dict[str, tuple[bytes, Any]] = {  # the first bytes, and what opens it
    "gzip": (b"\x1f\x8b", gzip.open),
    "bzip2": (b"BZh", bz2.open),
    "xz": (b"\xfd7zXZ\x00", lzma.open),
}
_OTHER_KINDS = {
    b"7z\xbc\xaf\x27\x1c": "a 7z archive",
    b"Rar!\x1a\x07": "a rar archive",
    b"\x28\xb5\x2f\xfd": "a zstd file",
}


class Source(Protocol):
    """Where image files lie. `stamp` is the CRC-32 of a file's content where `has_crc`, else a time that changes with it."""

    has_crc: bool
    found: Found

    def read(self, name: str) -> bytes: ...

    def close(self) -> None: ...


class Folder:
    """The files of a folder and of the folders down to `depth` below it (None: all). A stamp is the time of the last
    change in nanoseconds. Links are followed, each folder once. Hidden files are left out."""

    has_crc = False

    def __init__(self, root: Path, depth: int | None, wanted: Callable[[str], bool]) -> None:
        self.root = root
        self.found: Found = []
        seen = set()
        folders = [(root, "", 0)]
        while folders:
            folder, prefix, level = folders.pop()
            about = os.stat(folder)
            if (about.st_dev, about.st_ino) in seen and level:
                continue
            seen.add((about.st_dev, about.st_ino))
            with os.scandir(folder) as entries:
                for entry in entries:
                    if is_hidden(entry.name):
                        continue
                    if entry.is_dir():
                        if depth is None or level < depth:
                            folders.append((Path(entry.path), f"{prefix}{entry.name}/", level + 1))
                    elif wanted(entry.name) and entry.is_file():
                        about = entry.stat()
                        self.found.append((prefix + entry.name, about.st_size, about.st_mtime_ns))

    def read(self, name: str) -> bytes:
        return self.root.joinpath(*name.split("/")).read_bytes()

    def close(self) -> None:
        """Nothing is held."""


class Zip:
    """The files of a zip, from its directory, which has their CRC-32."""

    has_crc = True

    def __init__(self, path: Path, wanted: Callable[[str], bool]) -> None:
        self._zip = zipfile.ZipFile(path)
        self._entries = {}
        for entry in self._zip.infolist():
            name = _zip_name(entry)
            if wanted(name) and not entry.is_dir() and not any(map(is_hidden, name.split("/"))):
                self._entries[name] = entry  # of two with one name the later counts, as for whoever unpacks it
        self.found: Found = [(name, entry.file_size, entry.CRC) for name, entry in self._entries.items()]

    def read(self, name: str) -> bytes:
        return self._zip.read(self._entries[name])

    def close(self) -> None:
        self._zip.close()


def _zip_name(entry: zipfile.ZipInfo) -> str:
    """The name as a file system would have it. Without the flag for UTF-8 the bytes may be in any encoding, and are UTF-8
    nearly always; `zipfile` takes them for cp437, which loses nothing."""
    name = entry.filename
    if not entry.flag_bits & 0x800:
        with contextlib.suppress(UnicodeEncodeError):  # a name that `zipfile` found elsewhere in the entry
            name = os.fsdecode(name.encode("cp437")) if os.name == "posix" else name
    return name


class Tar:
    """The files of a tar, by their place in it; a stamp is the time when the tar last changed.

    A compressed one cannot be read at a place: it is unpacked, as the one file that it is, into an unnamed temporary file
    in the cache folder, when first read. Its listing is kept in the cache, so that looking at it again unpacks nothing.
    Errors: `tarfile.TarError`, EOFError or `zlib.error` for what is damaged or cut off.
    """

    has_crc = False

    def __init__(self, path: Path, packing: str, wanted: Callable[[str], bool]) -> None:
        self.path, self._packing = path, packing
        self._file: IO[bytes] | None = None
        self._lock = threading.Lock()
        about = path.stat()
        kept = Kept("listings", str(path.resolve()), f"{about.st_size} {about.st_mtime_ns}")
        listing = kept.read()
        if listing is None:
            try:
                listing = self._list()
            except BaseException:
                self.close()
                raise
            kept.write(**listing)
        columns = (listing["names"].tolist(), listing["sizes"].tolist(), listing["offsets"].tolist())
        self._places: dict[str, tuple[int, int]] = {}  # offset, size
        for name, size, offset in zip(*columns, strict=True):
            if wanted(name) and not any(map(is_hidden, name.split("/"))):
                self._places[name] = offset, size
        self.found: Found = [(name, size, about.st_mtime_ns) for name, (_, size) in self._places.items()]

    def _list(self) -> dict[str, np.ndarray]:
        places: dict[str, tuple[int, int]] = {}
        links: dict[str, str] = {}
        whole = self._open()
        whole.seek(0)
        with tarfile.open(fileobj=whole, mode="r:", encoding="utf-8", errors="surrogateescape") as tar:
            for member in tar:
                name = _plain(member.name)
                if member.isreg() and member.sparse is None:
                    places[name] = member.offset_data, member.size
                elif member.islnk():
                    links[name] = _plain(member.linkname)
                elif member.issym():
                    links[name] = posixpath.normpath(posixpath.join(posixpath.dirname(name), member.linkname))
            whole.seek(tar.offset)  # where the next header was looked for
            block = whole.read(tarfile.BLOCKSIZE)
        if len(block) < tarfile.BLOCKSIZE:
            raise EOFError("the archive's last blocks are missing")
        if block.strip(b"\0"):
            raise tarfile.ReadError("a damaged header")
        for name, other in links.items():  # a file under a second name
            if other in places:
                places[name] = places[other]
        return {
            "names": np.array([*places], dtype=str),
            "sizes": np.array([size for _, size in places.values()], dtype=np.int64),
            "offsets": np.array([offset for offset, _ in places.values()], dtype=np.int64),
        }

    def _open(self) -> IO[bytes]:
        if self._file is None:
            self._file = unpacked(self.path, self._packing) if self._packing else self.path.open("rb")
        return self._file

    def read(self, name: str) -> bytes:
        offset, size = self._places[name]
        with self._lock:
            file = self._open()
            file.seek(offset)
            data = file.read(size)
        if len(data) < size:
            raise EOFError("the archive ends before the file does")
        return data

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    __del__ = close


def _plain(name: str) -> str:
    """`./a//b` -> `a/b`."""
    return "/".join(part for part in name.split("/") if part not in ("", "."))


def unpacked(path: Path, packing: str) -> IO[bytes]:
    """The tar inside a compressed one, in a file that is gone when it is closed."""
    folder = writable_folder(cache_folder() / "packs")
    try:
        target = tempfile.TemporaryFile(dir=folder, prefix=".building-")  # noqa: SIM115, the caller closes it
    except OSError as error:
        raise cache_fault(folder, error) from error
    try:
        with _PACKINGS[packing][1](path, "rb") as source:
            started = False
            while block := source.read(BLOCK):
                if not started and not _is_tar(block):
                    raise UserError(f"{str(path)!r} is a {packing} file that holds no tar; fairssl reads {READS}")
                started = True
                try:
                    target.write(block)
                    target.flush()
                except OSError as error:
                    raise cache_fault(folder, error) from error
    except BaseException:
        target.close()
        raise
    return target


def _is_tar(start: bytes) -> bool:
    try:
        tarfile.TarInfo.frombuf(start[: tarfile.BLOCKSIZE], "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        return False
    return True


class Kept:
    """Arrays about a place that are worth keeping, in the cache, for as long as its `stamp` stays what it is."""

    def __init__(self, what: str, place: str, stamp: str) -> None:
        digest = hashlib.sha256(place.encode("utf-8", "surrogateescape")).hexdigest()
        self._folder, self._name, self._stamp = what, f"{digest[:32]}.npz", stamp

    def read(self) -> dict[str, np.ndarray] | None:
        path = cache_folder() / self._folder / self._name
        with contextlib.suppress(OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile), np.load(path) as stored:
            if str(stored["stamp"]) == self._stamp:
                return {name: stored[name] for name in stored.files if name != "stamp"}
        return None

    def write(self, **arrays: Any) -> None:
        folder = writable_folder(cache_folder() / self._folder)
        write_whole(folder / self._name, lambda file: np.savez(file, stamp=np.array(self._stamp), **arrays))


def open_archive(path: Path, wanted: Callable[[str], bool]) -> Source:
    """The files of an archive whose names are `wanted`. What is no archive, or one that is not whole, is a `UserError` that
    says what it is; only what is of no use to anybody is to be deleted."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise UserError(f"{str(path)!r} is neither a folder nor a file; name a folder or an archive ({READS})")
    with path.open("rb") as file:
        start = file.read(tarfile.BLOCKSIZE)
    packing = next((name for name, (magic, _) in _PACKINGS.items() if start.startswith(magic)), "")
    try:
        if start.startswith(b"PK") or (not packing and not _is_tar(start) and zipfile.is_zipfile(path)):
            return Zip(path, wanted)
        if packing or _is_tar(start):
            return Tar(path, packing, wanted)
    except zipfile.BadZipFile as error:
        raise download_fault(path, "a whole zip of images") from error
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError) as error:
        cut = isinstance(error, EOFError) or "unexpected end" in str(error) or "truncated" in str(error)
        raise download_fault(path, "a whole tar of images", cut) from error
    except OSError as error:
        if error.errno is not None:
            raise
        raise download_fault(path, "a whole tar of images") from error  # gzip and bz2, of bytes that are not theirs
    for magic, kind in _OTHER_KINDS.items():
        if start.startswith(magic):
            raise UserError(f"{str(path)!r} is {kind}, which fairssl does not read; unpack it and name the folder")
    picture = None
    with contextlib.suppress(Exception), Image.open(path) as image:  # it fails in many ways on what is no image
        picture = image.format
    if picture:
        raise UserError(f"{str(path)!r} is one image ({picture}); name the folder or the archive that holds the images")
    what = "an archive of images" if is_archive(path.name) else f"a folder or an archive of images ({READS})"
    raise download_fault(path, what)


def download_fault(path: Path, expected: str, cut: bool = False) -> UserError:
    """The error for a file that is not what its name says: the file, its first bytes and the likely reason.

    Only a web page, an empty file and one that was cut off are to be deleted: of anything else we cannot know whose it is.
    """
    with path.open("rb") as file:
        first = file.read(512)
    text = first.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    way_out = "Delete it and download it by hand"
    if not first:
        reason = "it is empty: the download did not start"
    elif text.startswith((b"<!doctype", b"<html", b"<?xml", b"<head")):
        reason = "it is a web page (a quota, login or virus-scan page) saved under that name"
    elif cut or first.startswith(b"PK\x03\x04"):
        reason = "its end is missing: the download was cut off"
    else:
        reason, way_out = "it is damaged, or another file", "See that it is the file you mean"
    return UserError(f"{str(path)!r} is not {expected}: {reason}; it begins with {first[:40]!r}. {way_out}")


def is_archive(name: str) -> bool:
    """Whether a file of that name is one that `open_archive` may read."""
    return name.lower().endswith(ARCHIVES)


def is_hidden(name: str) -> bool:
    return (name.startswith(".") and name != "..") or name == "__MACOSX"


def subfolders(folder: Path) -> list[Path]:
    """The folders in a folder, sorted by name, without hidden ones; none where it cannot be listed."""
    found = []
    with contextlib.suppress(OSError), os.scandir(folder) as inside:
        found = [Path(entry.path) for entry in inside if not is_hidden(entry.name) and entry.is_dir()]
    return sorted(found)


def archives_in(folder: Path) -> list[Path]:
    """The archives in a folder that `open_archive` may read, by their names, sorted; none where it cannot be listed."""
    found = []
    with contextlib.suppress(OSError), os.scandir(folder) as inside:
        found = [Path(e.path) for e in inside if not is_hidden(e.name) and is_archive(e.name) and e.is_file()]
    return sorted(found)


def contents_of(folder: Path) -> str:
    """What lies in a folder, for messages: `it holds the folders a, b; the archive c.zip; 3 other files`."""
    folders, archives, n_others = [], [], 0
    try:
        with os.scandir(folder) as inside:
            for entry in inside:
                if is_hidden(entry.name):
                    continue
                if entry.is_dir():
                    folders.append(printable(entry.name))
                elif entry.name.lower().endswith((*ARCHIVES, ".7z", ".rar")):
                    archives.append(printable(entry.name))
                else:
                    n_others += 1
    except OSError as error:
        return f"it cannot be listed: {error.strerror or error}"

    def some(one: str, names: list[str]) -> list[str]:
        shown = ", ".join(sorted(names)[:5]) + (f", ... ({len(names):,})" if len(names) > 5 else "")
        return [f"the {one}{'s' if len(names) > 1 else ''} {shown}"] if names else []

    found = [*some("folder", folders), *some("archive", archives)]
    if n_others:
        found.append(f"{n_others:,} {'other ' if found else ''}file{'' if n_others == 1 else 's'}")
    return f"it holds {'; '.join(found)}" if found else "it is empty"
