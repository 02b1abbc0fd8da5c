"""Where runs lie on disk: one folder per key, whole or not there.

    pretrain/<key>/   spec.json, encoder.safetensors, history.csv; validation.csv where it was judged on the way
    results/<key>/    record.json, predictions.csv.gz (id, score, target, group)
    work/<key>/       of a training that goes on: checkpoints, history.csv, live.json
    plans/            what was asked for, one file per grid
    trials/           an empty file per run that a search tried and nobody has chosen or asked for
    locks/            one file per claim, there while it is held

Nothing is unpickled.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from fairssl.store.files import (
    StoreError,
    is_locked,
    make_temporary,
    remove_path,
    rename_folder,
    sweep_temporaries,
    sync_folder,
    take_lock,
    whole_file,
    whole_folder,
)
from fairssl.store.history import history_from_csv, history_to_csv
from fairssl.store.record import RECORD_VERSION, Predictions, Record, State, to_json
from fairssl.types import UserError

if TYPE_CHECKING:
    from torch import Tensor


SEARCH = ("rule", "reference", "asked", "trial_seeds")  # of a selection: which search it is of
_KEY = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]*")


class RunStore:
    """The runs below one folder. Making the object touches nothing; call `create` before the first write.

    Any number of processes may read and write at once. A file that is not what this class writes is a `UserError` that
    names it; a write that the disk refuses is a `StoreError`.
    """

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)

    def create(self) -> None:
        """Make the folders, see that they can be written and locked, and sweep what killed processes left.

        `UserError` with the folder and the system's reason where that cannot be.
        """
        try:
            for name in ("pretrain", "results", "work", "locks"):
                (self.root / name).mkdir(parents=True, exist_ok=True)
            sweep_temporaries(self.root)
            for name in ("pretrain", "results"):
                sweep_temporaries(self.root / name)
            fd, probe = make_temporary(self.root, "probe", is_dir=False)
            try:
                os.write(fd, b"\0" * 4096)
                os.fsync(fd)
            finally:
                probe.unlink(missing_ok=True)
                os.close(fd)
        except OSError as error:
            reason = error.strerror or str(error)
            raise UserError(f"cannot write to the folder {self.root}: {reason}; choose another with --out") from error

    def remove_if_empty(self) -> None:
        """Take away what `create` has made, and Slurm's folder of jobs that it did not take, as far as nothing was written
        there."""
        shutil.rmtree(self.root / "slurm", ignore_errors=True)
        for path in (
            *(self.root / name for name in ("pretrain", "results", "work", "locks", "plans", "trials")),
            self.root,
        ):
            with suppress(OSError):
                path.rmdir()

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
        return is_locked(self.root / "locks" / f"{_checked(key)}.lock")

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
        selections = self.read_selections(key)
        if selections:
            record = record.model_copy(update={"facts": {**record.facts, "selection": selections}})
            data = record.to_json().encode() + b"\n"
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
        with whole_folder(folder, files) as temp, self.claim(f"{record.key}-write", wait=True):
            standing = self.read_record(record.key)
            if standing is not None and standing.state == "ok" and self._has_predictions(record.key):
                return standing
            if not rename_folder(temp, folder):
                # A folder cannot be exchanged for another in one step everywhere. The record goes last: a reader
                # sees the old record, or the new one with its predictions.
                for name in sorted(files):
                    os.replace(temp / name, folder / name)
                sync_folder(folder)
        return record

    def write_selection(self, key: str, selection: Mapping[str, Any]) -> None:
        """Note beside a run by which rule its settings were chosen, beside what other rules and searches have noted."""
        searched = [selection.get(name) for name in SEARCH]
        others = [one for one in self.read_selections(key) if [one.get(name) for name in SEARCH] != searched]
        with whole_file(self.result_dir(key) / "selection.json") as file:
            file.write(to_json(sorted([*others, dict(selection)], key=to_json)).encode() + b"\n")

    def read_selections(self, key: str) -> list[dict[str, Any]]:
        """By which rules the run's settings were chosen; empty: by nobody."""
        path = self.result_dir(key) / "selection.json"
        data = _bytes_at(path)
        if data is None:
            return []
        try:
            found = json.loads(data)
        except ValueError as error:
            raise _broken(path, f"Invalid JSON: {error}") from error
        return found if isinstance(found, list) else [found]  # an earlier fairssl kept the latest alone

    def mark_trials(self, keys: Iterable[str]) -> None:
        """Note that these runs are tried by a search, so that no board publishes them."""
        self.folder("trials")
        for key in keys:
            path = self._at("trials", key)
            try:
                path.touch()
            except OSError as error:
                raise StoreError(path, error) from error

    def unmark_trials(self, keys: Iterable[str]) -> None:
        """These runs were chosen or asked for, and are trials no longer."""
        for key in self.trials().intersection(keys):
            remove_path(self._at("trials", key))

    def trials(self) -> set[str]:
        """Keys of the runs that a search tried and nobody has chosen or asked for."""
        return set(_keys(self.root / "trials"))

    def read_predictions(self, key: str) -> Predictions | None:
        """Predictions of an ok run; None if there is none."""
        if not self.has_result(key):
            return None
        path = self.result_dir(key) / "predictions.csv.gz"
        try:
            return Predictions.from_csv_gz(path.read_bytes())
        except (OSError, ValueError) as error:
            raise _broken(path, str(error)) from error

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
        validation: Sequence[Mapping[str, float]] = (),
    ) -> None:
        """Put a finished pretraining in its place; one that is there already stays and ours is dropped.

        `validation`: what the validation split gave after some of the epochs, if it was looked at.
        """
        from safetensors.torch import save

        folder = self.pretrain_dir(key)
        files = {
            "spec.json": to_json(dict(spec), indent=1).encode() + b"\n",
            # cloned, since two names may share memory, which the format refuses
            "encoder.safetensors": save({name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}),
            "history.csv": history_to_csv(history),
            **({"validation.csv": history_to_csv(validation)} if validation else {}),
        }
        with whole_folder(folder, files) as temp, self.claim(f"{key}-write", wait=True):
            if self.has_pretrain(key):
                return
            if not rename_folder(temp, folder):  # somebody took a file out of it
                for name in sorted(files):
                    os.replace(temp / name, folder / name)
                sync_folder(folder)

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
            return tensors, history_from_csv(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, SafetensorError) as error:
            raise _broken(path, str(error)) from error

    def discard(self, pretrain_key: str, result_keys: Iterable[str]) -> None:
        """Remove a pretraining, its checkpoints and these results. The caller holds its claim."""
        for folder in (*(self.result_dir(key) for key in result_keys), self.pretrain_dir(pretrain_key)):
            remove_path(folder)
        self.clear_work(pretrain_key)

    def read_history(self, key: str) -> list[dict[str, float]] | None:
        """One mapping per epoch of a pretraining, without its tensors; None if there is no whole pretraining."""
        return self._rows(key, "history.csv") if self.has_pretrain(key) else None

    def read_validation(self, key: str) -> list[dict[str, float]]:
        """What the validation split gave after some epochs, by `epoch` and symbol; empty where it was not looked at."""
        return self._rows(key, "validation.csv") if (self.pretrain_dir(key) / "validation.csv").is_file() else []

    def _rows(self, key: str, name: str) -> list[dict[str, float]]:
        path = self.pretrain_dir(key) / name
        try:
            return history_from_csv(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise _broken(path, str(error)) from error

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
        remove_path(self._at("work", key))

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
            fd = take_lock(path, wait)
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


def is_key(text: str) -> bool:
    """Whether the text can name a run's folder: letters, digits, hyphens and underscores alone."""
    return len(text) <= 200 and _KEY.fullmatch(text) is not None


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


def _broken(path: Path, reason: str) -> UserError:
    first = (reason.splitlines() or ["unreadable"])[0]
    return UserError(f"{path} is damaged ({first}); remove the folder {path.parent} and run the same command again")
