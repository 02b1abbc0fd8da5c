"""Where runs lie on disk: one folder per key, whole or not there.

    pretrain/<key>/   spec.json, encoder.safetensors, history.csv
    results/<key>/    record.json, predictions.csv.gz (id, score, target, group)
    work/<key>/       of a training that goes on: checkpoints, history.csv, live.json
    plans/            what was asked for, one file per grid
    locks/            one file per claim, there while it is held

A folder is written under a temporary name beside its place, flushed to the disk, and renamed. Whoever writes a
temporary folder or file holds a kernel lock on it, so what a killed process left behind is told from what a live one
still writes without looking at clocks, process numbers or host names. Nothing is unpickled.
"""

from __future__ import annotations

import csv
import errno
import fcntl
import gzip
import io
import json
import os
import re
import secrets
import shutil
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fairssl.loggers import history_to_csv
from fairssl.types import UserError

if TYPE_CHECKING:
    from torch import Tensor

State = Literal["ok", "failed", "diverged"]
RECORD_VERSION = 1
_TEMP = ".tmp-"
_KEY = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]*")


class StoreError(UserError, OSError):
    """The disk refused a write in the middle of a run: full, read-only, gone. `errno` says which.

    Nothing half-written is left. A broad catch around a cell must let it through: the failed record could not be
    written either.
    """

    def __init__(self, path: Path, error: OSError) -> None:
        super().__init__(
            f"cannot write {path}: {error.strerror or error}; free or repair the disk, "
            "then the same command goes on from here"
        )
        self.errno = error.errno
        self._made_of = (path, error)

    def __reduce__(self) -> tuple[Any, ...]:  # so that a worker process can hand it to its parent
        return type(self), self._made_of


# --------------------------------------------------------------------------- records


def to_json(value: Any, indent: int | None = None) -> str:
    """JSON that depends on the value alone: sorted keys, floats that round-trip; NaN or infinity is a `ValueError`."""
    separators = (",", ":") if indent is None else (",", ": ")
    return json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False, indent=indent, separators=separators)


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Measured(_Frozen):
    """Metrics by symbol, as fractions; None where undefined, and then `undefined` has the reason."""

    metrics: dict[str, float | None] = Field(default_factory=dict)
    undefined: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _every_none_has_its_reason(self) -> Measured:
        missing = {symbol for symbol, value in self.metrics.items() if value is None}
        if missing != set(self.undefined) or not all(self.undefined.values()):
            odd = ", ".join(sorted(missing ^ set(self.undefined))) or "an empty reason"
            raise ValueError(f"a metric is None exactly where `undefined` has a reason; see {odd}")
        return self


def reason_of(error: str) -> str:
    """One line of an error that may be a traceback: the type and the first line of what was raised, not of where."""
    lines = [line for line in error.splitlines() if line.strip()]
    frames = [number for number, line in enumerate(lines) if line.startswith("  File ")]
    after = lines[frames[-1] :] if frames else lines
    line = next((line for line in after if not line.startswith(" ")), "").strip()
    return line if len(line) <= 200 else line[:197] + "..."


class Record(Measured):
    """What one run came to. `metrics` are of the test split; a failed or diverged run has none.

    `facts` are what a table's heading tells of the data: groups, positive, n_train, n_annotated, n_val, n_test.
    """

    version: int = RECORD_VERSION  # of this format
    spec: dict[str, Any]  # the whole RunSpec
    key: str
    state: State
    cells: dict[str, dict[str, int]] = Field(default_factory=dict)  # test examples: target -> label of the group -> n
    validation: Measured | None = None
    leakage: dict[str, Any] | None = None
    intervals: dict[str, Any] | None = None
    noise_floor: dict[str, Any] | None = None
    facts: dict[str, Any] = Field(default_factory=dict)
    error: str | None = None  # failed: the traceback; diverged: as `step 120: loss nan`
    notes: list[str] = Field(default_factory=list)
    env: dict[str, str | None] = Field(default_factory=dict)  # versions and the device's name; None: not installed
    timings: dict[str, float] = Field(default_factory=dict)  # seconds
    metric_versions: dict[str, int] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _state_and_error_agree(self) -> Record:
        if (self.state == "ok") != (self.error is None) or self.error == "":
            raise ValueError(f"a record that is {self.state} has error {self.error!r}")
        if self.state != "ok" and self.metrics:
            raise ValueError(f"a record that is {self.state} has no metrics")
        return self

    @property
    def reason(self) -> str:
        """Why it did not end well, in one line; empty if it did."""
        return reason_of(self.error or "")

    def to_json(self) -> str:
        """One line; equal records, equal text."""
        return to_json(self.model_dump(mode="json"))


@dataclass(frozen=True)
class Predictions:
    """One split's predictions. `ids` N strings; `score` float64 (N,); `target`, `group` int64 (N,)."""

    ids: Sequence[str]
    score: np.ndarray
    target: np.ndarray
    group: np.ndarray

    def to_csv_gz(self) -> bytes:
        """Gzipped CSV: id, score, target, group. Floats round-trip; equal predictions give equal bytes."""
        n = {len(self.ids), len(self.score), len(self.target), len(self.group)}
        if len(n) != 1:
            raise ValueError(f"predictions of unequal length: {sorted(n)}")
        score = np.asarray(self.score, dtype=np.float64)
        if not np.isfinite(score).all():
            raise ValueError("predictions hold a score that is not finite")
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(("id", "score", "target", "group"))
        whole = (np.asarray(column, dtype=np.int64).tolist() for column in (self.target, self.group))
        writer.writerows(zip(self.ids, map(repr, score.tolist()), *whole, strict=True))
        packed = io.BytesIO()
        with gzip.GzipFile(filename="", mode="wb", fileobj=packed, compresslevel=6, mtime=0) as file:
            file.write(text.getvalue().encode())
        return packed.getvalue()

    @classmethod
    def from_csv_gz(cls, data: bytes) -> Predictions:
        """The inverse. Anything else than what `to_csv_gz` writes: `ValueError`."""
        try:
            rows = list(csv.reader(io.StringIO(gzip.decompress(data).decode())))
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"not a whole gzip file: {error}") from error
        if not rows or rows[0] != ["id", "score", "target", "group"] or any(len(row) != 4 for row in rows):
            raise ValueError("not a table of id, score, target, group")
        ids, score, target, group = zip(*rows[1:], strict=True) if len(rows) > 1 else ((), (), (), ())
        return cls(
            ids=list(ids),
            score=np.array([float(x) for x in score], dtype=np.float64),
            target=np.array([int(x) for x in target], dtype=np.int64),
            group=np.array([int(x) for x in group], dtype=np.int64),
        )


# --------------------------------------------------------------------------- files that are whole or not there


def _lock(fd: int, *, wait: bool = False) -> bool:
    """Take the kernel's lock on an open file or folder. It goes when the last descriptor of the opening is closed."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES):
            return False
        raise
    return True


def _still_at(fd: int, path: Path) -> bool:
    """Whether the open file is the one that the path names now."""
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(fd), there)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _sweep(folder: Path, prefix: str = _TEMP) -> None:
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
                _remove(path)
        finally:
            os.close(fd)


def _temporary(folder: Path, name: str, *, is_dir: bool) -> tuple[int, Path]:
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


def _sync_folder(folder: Path) -> None:
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
        _sweep(path.parent, f"{_TEMP}{path.name}-")
        fd, temp = _temporary(path.parent, path.name, is_dir=False)
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
        _sync_folder(path.parent)
    except StoreError:
        raise
    except OSError as error:
        temp.unlink(missing_ok=True)
        raise StoreError(path, error) from error


@contextmanager
def _whole_folder(path: Path, files: Mapping[str, bytes]) -> Iterator[Path]:
    """A temporary folder beside `path` that holds `files`, flushed to the disk; removed at the end unless renamed."""
    temp = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fd, temp = _temporary(path.parent, path.name, is_dir=True)
        try:
            for name, data in files.items():
                with open(temp / name, "xb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
            os.fsync(fd)
            yield temp
            _sync_folder(path.parent)
        finally:
            _remove(temp)
            os.close(fd)
    except StoreError:
        raise
    except OSError as error:
        raise StoreError(path, error) from error


# --------------------------------------------------------------------------- the store


class RunStore:
    """The runs below one folder. Making the object touches nothing; call `prepare` before the first write.

    Any number of processes may read and write at once. A file that is not what this class writes is a `UserError` that
    names it; a write that the disk refuses is a `StoreError`.
    """

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)

    def prepare(self) -> None:
        """Make the folders, see that they can be written and locked, and sweep what killed processes left.

        `UserError` with the folder and the system's reason where that cannot be.
        """
        try:
            for name in ("pretrain", "results", "work", "locks"):
                (self.root / name).mkdir(parents=True, exist_ok=True)
            _sweep(self.root)
            for name in ("pretrain", "results"):
                _sweep(self.root / name)
            fd, probe = _temporary(self.root, "probe", is_dir=False)
            try:
                os.write(fd, b"\0" * 4096)
                os.fsync(fd)
            finally:
                probe.unlink(missing_ok=True)
                os.close(fd)
        except OSError as error:
            reason = error.strerror or str(error)
            raise UserError(f"cannot write to the folder {self.root}: {reason}; choose another with --out") from error

    # ----- results

    def result_dir(self, key: str) -> Path:
        return self._at("results", key)

    def state(self, key: str) -> State | None:
        """How the run ended; None: it has not, or its predictions are gone, and it must be judged again."""
        outline = self.outline(key)
        if outline is None or (outline["state"] == "ok" and not self._has_predictions(key)):
            return None
        state: State = outline["state"]
        return state

    def written_at(self, key: str) -> tuple[int, int] | None:
        """Two numbers that change whenever the run's record is written anew; None where there is none."""
        try:
            found = (self.result_dir(key) / "record.json").stat()
        except FileNotFoundError:
            return None
        return found.st_mtime_ns, found.st_ino

    def _has_predictions(self, key: str) -> bool:
        return (self.result_dir(key) / "predictions.csv.gz").is_file()

    def outline(self, key: str) -> dict[str, Any] | None:
        """The run's record as plain JSON, checked no further than that it is this run's: ten times as fast to read."""
        path = self.result_dir(key) / "record.json"
        data = _bytes_at(path)
        if data is None:
            return None
        try:
            outline = json.loads(data)
        except ValueError as error:
            raise _broken(path, f"Invalid JSON: {error}") from error
        if not isinstance(outline, dict) or outline.get("state") not in ("ok", "failed", "diverged"):
            raise _broken(path, "it holds no record")
        _check_frame(path, outline.get("version", RECORD_VERSION), outline.get("key"), key)
        return outline

    def result_keys(self) -> set[str]:
        """Keys of all runs that ended, from the folder's listing."""
        return set(_keys(self.root / "results"))

    def is_claimed(self, key: str) -> bool:
        """Whether a live process holds the key, found out without taking it or writing anything."""
        try:
            fd = os.open(self.root / "locks" / f"{_checked(key)}.lock", os.O_RDONLY)
        except OSError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(fd)
        return False

    def has_result(self, key: str) -> bool:
        """Whether the run ended well."""
        return self.state(key) == "ok"

    def read_record(self, key: str) -> Record | None:
        """The run's record, None if there is none. A file that is no such record: `UserError`."""
        found = self._read(key)
        return found[0] if found else None

    def _read(self, key: str) -> tuple[Record, bytes] | None:
        path = self.result_dir(key) / "record.json"
        data = _bytes_at(path)
        if data is None:
            return None
        try:
            record = Record.model_validate_json(data)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(str(step) for step in first["loc"])
            raise _broken(path, f"{where}: {first['msg']}" if where else first["msg"]) from error
        _check_frame(path, record.version, record.key, key)
        return record, data

    def records(self) -> Iterator[Record]:
        """All records, in order of their keys, read one by one."""
        for record, _ in self.records_and_lines():
            yield record

    def records_and_lines(self) -> Iterator[tuple[Record, bytes]]:
        """As `records`, each with its text as one line; writing a hundred thousand anew takes as long as reading them."""
        for key in _keys(self.root / "results"):
            found = self._read(key)
            if found is not None:
                record, data = found
                is_line = data.endswith(b"\n") and data.count(b"\n") == 1
                yield record, data if is_line else record.to_json().encode() + b"\n"

    def write_result(self, record: Record, predictions: Predictions | None = None) -> Record:
        """Put a run's result in its place and return the record that stands there afterwards.

        An ok record has predictions, and is never replaced: whoever finished first stays. It replaces a failed or
        diverged one, as does a later failed or diverged one.
        """
        if (record.state == "ok") != (predictions is not None):
            raise ValueError(f"predictions belong to an ok record and to no other; this one is {record.state}")
        folder = self.result_dir(record.key)
        files = {"record.json": record.to_json().encode() + b"\n"}
        if predictions is not None:
            files["predictions.csv.gz"] = predictions.to_csv_gz()
        with _whole_folder(folder, files) as temp, self.claim(f"{record.key}-write", wait=True):
            standing = self.read_record(record.key)
            if standing is not None and standing.state == "ok" and self._has_predictions(record.key):
                return standing
            if not _rename_folder(temp, folder):
                # A folder cannot be exchanged for another in one step everywhere. The record goes last: a reader
                # sees the old record, or the new one with its predictions.
                for name in sorted(files):
                    os.replace(temp / name, folder / name)
                _sync_folder(folder)
        return record

    def read_predictions(self, key: str) -> Predictions | None:
        """Predictions of an ok run; None if there is none."""
        if not self.has_result(key):
            return None
        path = self.result_dir(key) / "predictions.csv.gz"
        try:
            return Predictions.from_csv_gz(path.read_bytes())
        except (OSError, ValueError) as error:
            raise _broken(path, str(error)) from error

    # ----- pretrainings

    def pretrain_dir(self, key: str) -> Path:
        return self._at("pretrain", key)

    def has_pretrain(self, key: str) -> bool:
        folder = self.pretrain_dir(key)
        return all((folder / name).is_file() for name in ("spec.json", "encoder.safetensors", "history.csv"))

    def write_pretrain(
        self,
        key: str,
        spec: Mapping[str, Any],
        tensors: Mapping[str, Tensor],
        history: Sequence[Mapping[str, float]],
    ) -> None:
        """Put a finished pretraining in its place; one that is there already stays and ours is dropped."""
        from safetensors.torch import save

        folder = self.pretrain_dir(key)
        files = {
            "spec.json": to_json(dict(spec), indent=1).encode() + b"\n",
            # cloned, since two names may share memory, which the format refuses
            "encoder.safetensors": save({name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}),
            "history.csv": history_to_csv(history),
        }
        with _whole_folder(folder, files) as temp, self.claim(f"{key}-write", wait=True):
            if self.has_pretrain(key):
                return
            if not _rename_folder(temp, folder):  # somebody took a file out of it
                for name in sorted(files):
                    os.replace(temp / name, folder / name)
                _sync_folder(folder)

    def read_pretrain(self, key: str) -> tuple[dict[str, Tensor], list[dict[str, float]]] | None:
        """Tensors by name, on the CPU, and one mapping per epoch; None if there is no whole pretraining."""
        if not self.has_pretrain(key):
            return None
        from safetensors import SafetensorError
        from safetensors.torch import load

        folder = self.pretrain_dir(key)
        path = folder / "encoder.safetensors"
        try:
            tensors = load(path.read_bytes())
            path = folder / "history.csv"
            return tensors, _history_from_csv(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, SafetensorError) as error:
            raise _broken(path, str(error)) from error

    # ----- work and locks

    def work_dir(self, key: str) -> Path:
        """A folder for the checkpoints of a training that goes on, made if need be. Its files are its owner's care."""
        return self.folder("work", key)

    def folder(self, kind: str, key: str | None = None) -> Path:
        """A folder of the store, made if need be."""
        folder = self.root / kind if key is None else self._at(kind, key)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(folder, error) from error
        return folder

    def clear_work(self, key: str) -> None:
        """Remove the checkpoints of a training that has ended."""
        _remove(self._at("work", key))

    @contextmanager
    def claim(self, key: str, wait: bool = False) -> Iterator[bool]:
        """Hold a key against all other processes, and other claims in this one, during the block.

            with store.claim(key) as got:
                if got: ...

        Without `wait` the block runs at once with False where another holds it; with `wait` it runs when that one is
        done. The kernel lets go when the owner dies, however it dies, and a slow owner keeps it; a child forked during
        the block keeps it too, until it ends.
        """
        path = self.root / "locks" / f"{_checked(key)}.lock"
        try:
            fd = _take(path, wait)
        except OSError as error:
            raise StoreError(path, error) from error
        try:
            yield fd is not None
        finally:
            if fd is not None:
                with suppress(OSError):  # before the lock goes; whoever waits for it sees that and opens anew
                    path.unlink()
                os.close(fd)

    def _at(self, kind: str, key: str) -> Path:
        return self.root / kind / _checked(key)


def _checked(key: str) -> str:
    if not _KEY.fullmatch(key):
        raise ValueError(f"{key!r} is not a key")
    return key


def _keys(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in os.scandir(folder) if _KEY.fullmatch(entry.name))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise UserError(f"cannot read the folder {folder}: {error.strerror}; make it readable") from error


def _take(path: Path, wait: bool) -> int | None:
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


def _bytes_at(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; make it readable") from error


def _check_frame(path: Path, version: Any, found: Any, key: str) -> None:
    if version != RECORD_VERSION:
        raise _broken(path, f"it has record version {version}, this fairssl reads {RECORD_VERSION}")
    if found != key:
        raise _broken(path, f"it holds the record of {found}")


def _rename_folder(temp: Path, folder: Path) -> bool:
    """Rename; False where a folder that is not empty has the place."""
    try:
        os.rename(temp, folder)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return False
        raise
    return True


def _broken(path: Path, reason: str) -> UserError:
    first = (reason.splitlines() or ["unreadable"])[0]
    return UserError(f"{path} is damaged ({first}); remove the folder {path.parent} and run the same command again")


def _history_from_csv(text: str) -> list[dict[str, float]]:
    names, *rows = csv.reader(io.StringIO(text))
    return [{name: float(x) for name, x in zip(names, row, strict=True) if x} for row in rows]
