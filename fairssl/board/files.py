"""The files of a board or a bundle, read as a stranger's: no name leads out of it, no file is larger than it may be.

    records.jsonl               a record a line
    predictions/<key>.csv.gz    of every run that ended well
    manifest.json               which runs there must be, and hashes

Nothing is unpacked to the disk, executed or unpickled.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

from pydantic import ValidationError

from fairssl.store.record import RECORD_VERSION, Predictions, Record
from fairssl.store.runs import is_key
from fairssl.types import UserError

MAX_RECORDS = 100_000
MAX_LINE = 4 * 2**20  # bytes of a record
MAX_JSONL = 2**30  # of all records
MAX_PACKED = 32 * 2**20  # of one run's predictions
MAX_UNPACKED = 64 * 2**20
MAX_MANIFEST = 64 * 2**20
PREDICTIONS = "predictions"


class Source(Protocol):
    """Files by name, below one place."""

    name: str

    def names(self) -> list[str]: ...

    def read(self, name: str, limit: int) -> bytes: ...


def open_source(path: Path) -> Source:
    """A folder, or a zip file, as `fairssl board export` writes it."""
    if path.is_dir():
        return _Folder(path)
    if not path.exists():
        raise UserError(f"no file or folder {path}; name a bundle of `fairssl board export`")
    if zipfile.is_zipfile(path):
        return _Zip(path)
    raise UserError(f"{path} is no folder and no zip file; name a bundle of `fairssl board export`")


class _Folder:
    def __init__(self, path: Path) -> None:
        self.path, self.name = path, str(path)

    def names(self) -> list[str]:
        found = []
        for folder in (self.path, self.path / PREDICTIONS):
            if not folder.is_dir() or (folder is not self.path and folder.is_symlink()):
                continue
            entries = (e for e in os.scandir(folder) if not e.is_dir(follow_symlinks=False))
            found += [Path(e.path).relative_to(self.path).as_posix() for e in entries]
        return sorted(found)

    def read(self, name: str, limit: int) -> bytes:
        path = self.path / name
        if path.parent != self.path and path.parent.is_symlink():
            raise UserError(f"{path.parent} is a link, which is not followed")
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError as error:
            raise _absent(self, name) from error
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror}; a link is not followed") from error
        with os.fdopen(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise UserError(f"{path} is no ordinary file")
            return _at_most(file.read(limit + 1), limit, f"{path}")


class _Zip:
    def __init__(self, path: Path) -> None:
        self.name = str(path)
        try:
            self._zip = zipfile.ZipFile(path)
        except (zipfile.BadZipFile, OSError, ValueError) as error:
            raise UserError(f"{path} is no whole zip file ({error})") from error
        entries = [entry for entry in self._zip.infolist() if not entry.is_dir()]
        for entry in entries:
            if stat.S_IFMT(entry.external_attr >> 16) not in (0, stat.S_IFREG):
                raise UserError(
                    f"{entry.filename!r} in {path} is a link or another special file, which is not followed"
                )
        found = Counter(entry.filename for entry in entries)
        twice = next((name for name, n in found.items() if n > 1), None)
        if twice is not None:
            raise UserError(f"{path} holds {twice!r} twice")
        self._names = sorted(found)

    def names(self) -> list[str]:
        return self._names

    def read(self, name: str, limit: int) -> bytes:
        try:
            with self._zip.open(name) as file:  # its declared size may lie
                return _at_most(file.read(limit + 1), limit, f"{name} in {self.name}")
        except KeyError as error:
            raise _absent(self, name) from error
        except (zipfile.BadZipFile, RuntimeError, NotImplementedError, OSError, EOFError, ValueError) as error:
            if isinstance(error, UserError):
                raise
            raise UserError(f"{name} in {self.name} cannot be read: {error}") from error


def _absent(source: Source, name: str) -> UserError:
    return UserError(
        f"{source.name} has no {name}; make a board with `fairssl board build`, a bundle with `fairssl board export`"
    )


def _at_most(data: bytes, limit: int, what: str) -> bytes:
    if len(data) > limit:
        raise UserError(f"{what} is larger than {limit:,} bytes")
    return data


def check_names(source: Source) -> None:
    """Refuse what is no part of a bundle: an absolute name, one that climbs, any other file, more files than there may be."""
    names = source.names()
    if len(names) > MAX_RECORDS + 2:
        raise UserError(f"{source.name} holds {len(names):,} files; at most {MAX_RECORDS + 2:,}")
    for name in names:
        path = PurePosixPath(name)
        whole = name in ("records.jsonl", "manifest.json")
        key = name.removeprefix(f"{PREDICTIONS}/").removesuffix(".csv.gz")
        if not whole and not (name == predictions_name(key) and is_key(key) and len(path.parts) == 2):
            raise UserError(f"{source.name} holds {name!r}, which is no part of a bundle; nothing was taken from it")


def predictions_name(key: str) -> str:
    return f"{PREDICTIONS}/{key}.csv.gz"


def read_lines(source: Source) -> Iterator[tuple[int, bytes]]:
    """The lines of records.jsonl, counted from 1."""
    lines = source.read("records.jsonl", MAX_JSONL).split(b"\n")
    if lines and not lines[-1]:
        lines.pop()
    if len(lines) > MAX_RECORDS:
        raise UserError(f"{source.name} holds {len(lines):,} records; at most {MAX_RECORDS:,}")
    yield from enumerate(lines, start=1)


def parse_record(source: Source, number: int, line: bytes) -> Record:
    """A record of a line; anything else: `UserError` with the line."""
    where = f"{source.name}: line {number} of records.jsonl"
    if len(line) > MAX_LINE:
        raise UserError(f"{where} is larger than {MAX_LINE:,} bytes")
    try:
        record = Record.model_validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(step) for step in first["loc"])
        raise UserError(f"{where} is no record ({place or 'the whole'}: {first['msg']})") from error
    if record.version != RECORD_VERSION:
        raise UserError(f"{where} has record version {record.version}, this fairssl reads {RECORD_VERSION}")
    if not is_key(record.key):
        raise UserError(f"{where}: {record.key!r} is no key")
    return record


def read_records(source: Source) -> list[Record]:
    """All records, each once."""
    found: dict[str, Record] = {}
    for number, line in read_lines(source):
        record = parse_record(source, number, line)
        if record.key in found:
            raise UserError(f"{source.name} holds the record {record.key} twice")
        found[record.key] = record
    return list(found.values())


def read_predictions(source: Source, key: str) -> Predictions:
    """The predictions of a run; missing or no such table: `UserError`."""
    data = source.read(predictions_name(key), MAX_PACKED)
    return parse_predictions(data, f"{predictions_name(key)} of {source.name}")


def parse_predictions(data: bytes, what: str) -> Predictions:
    try:
        found = Predictions.from_csv_gz(data, MAX_UNPACKED)
    except (ValueError, OverflowError) as error:
        raise UserError(f"{what} is no table of predictions ({error})") from error
    if len(set(found.ids)) < len(found.ids):
        raise UserError(f"{what} names an image twice")
    return found


def read_manifest(source: Source) -> dict[str, Any]:
    """manifest.json; anything else than an object of runs and files: `UserError`."""
    try:
        content = json.loads(source.read("manifest.json", MAX_MANIFEST))
    except (ValueError, RecursionError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"manifest.json of {source.name} is no JSON ({error})") from error
    runs, files = (content.get(name) if isinstance(content, dict) else None for name in ("runs", "files"))
    if not isinstance(runs, dict) or not isinstance(files, dict) or not all(isinstance(r, dict) for r in runs.values()):
        raise UserError(f"manifest.json of {source.name} names no runs and files")
    metrics = content.get("metrics")
    if not isinstance(metrics, dict) or not all(type(version) is int for version in metrics.values()):
        raise UserError(f"manifest.json of {source.name} does not say the versions of its metrics")
    return dict(content)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
