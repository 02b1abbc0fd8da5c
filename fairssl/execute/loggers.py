"""Where a training's epochs go while it runs: a CSV file always, and what `--log` names.

A logger is told of every epoch that this process trained. After a resume the epochs since the last checkpoint come again,
with the same values; each logger keeps one of the two.

What `--log` names never costs a run. Its server is tried before anything is trained, in a process of its own and for a
limited time. In a training it works in a thread, so that nothing waits for a server. A logger that cannot start, or raises
later, is given up for the rest of the command with one warning.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fairssl.registry import did_you_mean
from fairssl.store.history import history_to_csv
from fairssl.types import UserError, first_line

if TYPE_CHECKING:
    from fairssl.execute.reporting import Reporter

SECONDS_TO_CONNECT = 30.0  # that a logger's server has to answer before anything is trained
SECONDS_TO_CLOSE = 60.0  # that a training waits at its end for a logger to write what it still has


class Logger(Protocol):
    def epoch(self, row: Mapping[str, float]) -> None:
        """An epoch is over. `row`: `epoch` and `step` counted from 1, `lr`, and the mean of every term by name."""

    def close(self) -> None:
        """The training has ended or stopped."""


class CsvLogger:
    """history.csv in `folder`, whole after every epoch. `history`: the epochs before this process took over."""

    def __init__(self, folder: Path, history: Sequence[Mapping[str, float]] = ()) -> None:
        self.path = folder / "history.csv"
        self.rows = [dict(row) for row in history]

    def epoch(self, row: Mapping[str, float]) -> None:
        self.rows.append(dict(row))
        temporary = self.path.with_suffix(".partial")
        try:
            temporary.write_bytes(history_to_csv(self.rows))
            # Not flushed: a machine that crashes costs a file, and a resume writes it anew.
            os.replace(temporary, self.path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise

    def close(self) -> None:
        pass


class TensorBoardLogger:
    """An event file in `folder`/tensorboard/`key`."""

    def __init__(self, folder: Path, key: str, first_epoch: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # TensorBoard drops what an earlier process said of the epochs from purge_step on.
        self._writer = SummaryWriter(str(folder / "tensorboard" / key), purge_step=first_epoch)

    def epoch(self, row: Mapping[str, float]) -> None:
        for key, value in _values(row).items():
            self._writer.add_scalar(key, value, int(row["epoch"]))
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WandbLogger:
    """A run of Weights & Biases whose id is the key of the pretraining, in the project `fairssl` or WANDB_PROJECT."""

    def __init__(self, folder: Path, key: str, name: str, config: Mapping[str, Any]) -> None:
        import wandb

        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "fairssl"),
            id=key,
            name=name,
            config=dict(config),
            resume="allow",
            dir=str(folder),
            reinit="create_new",  # seeds that share a device have a run each, at the same time
            settings=wandb.Settings(console="off"),  # stdout and stderr stay what they are
        )

    def epoch(self, row: Mapping[str, float]) -> None:
        self._run.log(_values(row), step=int(row["epoch"]))

    def close(self) -> None:
        self._run.finish()


class MlflowLogger:
    """A run in MLflow's experiment `fairssl` or MLFLOW_EXPERIMENT_NAME, at MLFLOW_TRACKING_URI or in `folder`/mlflow.db.

    All workers write into that one database, one at a time: while one does, it holds a lock on `folder`/mlflow.lock.
    """

    def __init__(self, folder: Path, key: str, name: str, config: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        self._folder = folder
        self._client, experiment = mlflow_experiment(folder)
        with _mlflow_lock(folder):
            earlier = self._client.search_runs([experiment], f"tags.fairssl_key = '{key}'", max_results=1)
            run = (
                earlier[0] if earlier else self._client.create_run(experiment, tags={"fairssl_key": key}, run_name=name)
            )
            self._id = run.info.run_id
            params = [] if earlier else [Param(field, str(value)) for field, value in _leaves(config)]
            for start in range(0, len(params), 100):  # MLflow takes at most that many at a time
                self._client.log_batch(self._id, params=params[start : start + 100])

    def epoch(self, row: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now, step = int(1000 * time.time()), int(row["epoch"])
        with _mlflow_lock(self._folder):
            self._client.log_batch(self._id, metrics=[Metric(k, v, now, step) for k, v in _values(row).items()])

    def close(self) -> None:
        with _mlflow_lock(self._folder):
            self._client.set_terminated(self._id)


def mlflow_experiment(folder: Path) -> tuple[Any, str]:
    """MLflow's client and the id of the experiment, made if need be. The first call makes the database."""
    from mlflow.tracking import MlflowClient

    uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{(folder / 'mlflow.db').absolute()}"
    title = os.environ.get("MLFLOW_EXPERIMENT_NAME", "fairssl")
    with _mlflow_lock(folder):
        client = MlflowClient(tracking_uri=uri)
        found = client.get_experiment_by_name(title)
        return client, found.experiment_id if found else client.create_experiment(title)


@contextmanager
def _mlflow_lock(folder: Path) -> Iterator[None]:
    """Hold our own database against all other processes; a server of the user's needs no such care."""
    if os.environ.get("MLFLOW_TRACKING_URI"):
        yield
        return
    from fairssl.store.files import take_lock

    descriptor = take_lock(folder / "mlflow.lock", wait=True)
    assert descriptor is not None  # it waits
    try:
        yield
    finally:
        os.close(descriptor)


PACKAGES = {"tensorboard": "tensorboard", "wandb": "wandb", "mlflow": "mlflow"}  # --log name -> what it imports


def check_loggers(names: Sequence[str]) -> None:
    """An unknown name, or one whose package is not installed, is a `UserError` before anything is trained."""
    for name in names:
        if name not in PACKAGES:
            raise UserError(f"unknown --log {name!r}{did_you_mean(name, PACKAGES)}; a CSV file is always written")
        if importlib.util.find_spec(PACKAGES[name]) is None:  # importing some of them takes seconds
            raise _not_installed(PACKAGES[name], f"--log {name}", "loggers", "it is not installed")


def need(package: str, what: str, extra: str) -> Any:
    """Import a package that only `what` needs; `UserError` with the line that installs it."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise _not_installed(package, what, extra, str(error)) from error


def _not_installed(package: str, what: str, extra: str, reason: str) -> UserError:
    return UserError(
        f"{what} needs the package {package}, which does not import ({reason}): pip install 'fairssl[{extra}]'"
    )


def reachable(names: Sequence[str], root: Path, log: Reporter) -> tuple[str, ...]:
    """Those of the loggers whose servers answer, with a warning for each that does not.

    Each is tried in a process that is ended after `SECONDS_TO_CONNECT`: clients wait and try again for minutes.
    """
    kept = []
    for name in names:
        reason = None if name == "tensorboard" else _try_in_a_process(name, _folder(root))
        if reason is None:
            kept.append(name)
        else:
            _warn(log, name, reason)
    return tuple(kept)


def _try_in_a_process(name: str, folder: Path) -> str | None:
    """What `connect` raises, in one line; None if it succeeds."""
    code = (
        "import json, pathlib, sys; sys.path[:] = json.loads(sys.argv[1])\n"
        "from fairssl.execute.loggers import connect\n"
        "from fairssl.types import first_line\n"
        "try:\n    connect(sys.argv[2], pathlib.Path(sys.argv[3]))\n"
        "except Exception as error:\n    sys.exit('\\n' + first_line(error))\n"
    )
    call = [sys.executable, "-P", "-c", code, json.dumps(sys.path), name, str(folder)]
    try:
        done = subprocess.run(
            call,
            stdin=subprocess.DEVNULL,  # or it would ask for a key
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SECONDS_TO_CONNECT,
            env={"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", **os.environ},
        )
    except subprocess.TimeoutExpired:
        return f"no answer in {SECONDS_TO_CONNECT:.0f} s"
    if done.returncode == 0:
        return None
    return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]


def connect(name: str, folder: Path) -> None:
    """Raise where a logger could not write. Makes MLflow's database and its experiment."""
    if name == "mlflow":
        mlflow_experiment(folder)
    elif name == "wandb" and os.environ.get("WANDB_MODE", "online") == "online":
        import wandb

        if not wandb.login(verify=True):
            raise RuntimeError("no API key; set WANDB_API_KEY, or WANDB_MODE=offline")


def _warn(log: Reporter, name: str, reason: str) -> None:
    reason = reason if len(reason) <= 200 else reason[:197] + "..."
    log.note(f"warning: --log {name} is given up, training goes on without it", reason)


class Loggers:
    """The loggers of a process that trains: those that `--log` names, until one fails.

    `root`: the runs folder, whose logs/ holds their files.
    """

    def __init__(self, names: Sequence[str], root: Path, log: Reporter) -> None:
        self.names, self.root, self.log = list(names), root, log

    def open(
        self, work: Path, key: str, name: str, config: Mapping[str, Any], history: Sequence[Mapping[str, float]]
    ) -> Logger:
        """The CSV in `work` and all loggers, for one training.

        `key` and `config` are of the pretraining; `name` is for people; `history` is what is trained already.
        """
        folder = _folder(self.root) if self.names else self.root

        def opener(logger: str) -> Callable[[], Logger]:
            if logger == "tensorboard":
                return lambda: TensorBoardLogger(folder, key, len(history) + 1)
            kind = WandbLogger if logger == "wandb" else MlflowLogger
            return lambda: kind(folder, key, name, config)

        return _OfOneTraining(CsvLogger(work, history), {one: _InThread(opener(one)) for one in self.names}, self)

    def give_up(self, name: str, reason: str) -> None:
        """Use it no more in this process, and say so once."""
        if name in self.names:
            self.names.remove(name)
        _warn(self.log, name, reason)


class _OfOneTraining:
    def __init__(self, csv: CsvLogger, others: dict[str, _InThread], loggers: Loggers) -> None:
        self.csv, self.others, self.loggers = csv, others, loggers

    def epoch(self, row: Mapping[str, float]) -> None:
        self.csv.epoch(row)
        for other in self.others.values():
            other.epoch(row)
        self._drop_failed()

    def close(self) -> None:
        self.csv.close()
        for other in self.others.values():
            other.close()
        self._drop_failed()

    def _drop_failed(self) -> None:
        for name, other in list(self.others.items()):
            if other.error is not None:
                del self.others[name]
                self.loggers.give_up(name, first_line(other.error))


class _InThread:
    """A logger that works in a thread of its own. `error` is what it raised."""

    def __init__(self, opener: Callable[[], Logger]) -> None:
        self.error: BaseException | None = None
        self._rows: queue.SimpleQueue[Mapping[str, float] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, args=(opener,), daemon=True)
        self._thread.start()

    def _work(self, opener: Callable[[], Logger]) -> None:
        try:
            logger = opener()
            while (row := self._rows.get()) is not None:
                logger.epoch(row)
            logger.close()
        except BaseException as error:  # also SystemExit: a client may end its thread, not our training
            self.error = error

    def epoch(self, row: Mapping[str, float]) -> None:
        self._rows.put(dict(row))

    def close(self) -> None:
        self._rows.put(None)
        self._thread.join(SECONDS_TO_CLOSE)
        if self._thread.is_alive():
            self.error = TimeoutError(f"it was not done {SECONDS_TO_CLOSE:.0f} s after the training")


def _folder(root: Path) -> Path:
    folder = root / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _values(row: Mapping[str, float]) -> dict[str, float]:
    return {key: float(value) for key, value in row.items() if key != "epoch" and math.isfinite(value)}


def _leaves(config: Mapping[str, Any], before: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, value in config.items():
        if isinstance(value, Mapping):
            found += _leaves(value, f"{before}{key}.")
        else:
            found.append((f"{before}{key}", value))
    return found
