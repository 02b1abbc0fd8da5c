"""Where a training's epochs go while it runs: a CSV file always, and what `--log` names.

A logger is told of every epoch that this process trained. After a resume the epochs since the last checkpoint come again,
with the same values; each logger keeps one of the two.
"""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from fairssl.registry import did_you_mean
from fairssl.store.history import history_to_csv
from fairssl.types import UserError


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
            os.replace(
                temporary, self.path
            )  # not flushed: a crash of the machine costs a file that a resume writes anew
        except OSError:
            temporary.unlink(missing_ok=True)
            raise

    def close(self) -> None:
        pass


class TensorBoardLogger:
    """An event file in `folder`/tensorboard/`name`."""

    def __init__(self, folder: Path, name: str, first_epoch: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # TensorBoard drops what an earlier process said of the epochs from purge_step on.
        self._writer = SummaryWriter(str(folder / "tensorboard" / name), purge_step=first_epoch)

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

        project = os.environ.get("WANDB_PROJECT", "fairssl")
        self._run = wandb.init(
            project=project, id=key, name=name, config=dict(config), resume="allow", dir=str(folder), reinit=True
        )

    def epoch(self, row: Mapping[str, float]) -> None:
        self._run.log(_values(row), step=int(row["epoch"]))

    def close(self) -> None:
        self._run.finish()


class MlflowLogger:
    """A run in MLflow's experiment `fairssl` or MLFLOW_EXPERIMENT_NAME, at MLFLOW_TRACKING_URI or in `folder`/mlflow."""

    def __init__(self, folder: Path, key: str, name: str, config: Mapping[str, Any]) -> None:
        from mlflow.tracking import MlflowClient

        uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{(folder / 'mlflow.db').absolute()}"
        self._client = MlflowClient(tracking_uri=uri)
        title = os.environ.get("MLFLOW_EXPERIMENT_NAME", "fairssl")
        found = self._client.get_experiment_by_name(title)
        experiment = found.experiment_id if found else self._client.create_experiment(title)
        earlier = self._client.search_runs([experiment], f"tags.fairssl_key = '{key}'", max_results=1)
        run = earlier[0] if earlier else self._client.create_run(experiment, tags={"fairssl_key": key}, run_name=name)
        self._id = run.info.run_id
        if not earlier:
            for field, value in _leaves(config):
                self._client.log_param(self._id, field, value)

    def epoch(self, row: Mapping[str, float]) -> None:
        for key, value in _values(row).items():
            self._client.log_metric(self._id, key, value, step=int(row["epoch"]))

    def close(self) -> None:
        self._client.set_terminated(self._id)


class Several:
    """Tells each of several loggers."""

    def __init__(self, loggers: Sequence[Logger]) -> None:
        self.loggers = loggers

    def epoch(self, row: Mapping[str, float]) -> None:
        for logger in self.loggers:
            logger.epoch(row)

    def close(self) -> None:
        for logger in self.loggers:
            logger.close()


PACKAGES = {"tensorboard": "tensorboard", "wandb": "wandb", "mlflow": "mlflow"}  # --log name -> what it imports


def check_loggers(names: Sequence[str]) -> None:
    """An unknown name, or one whose package is not installed, is told before anything is trained."""
    for name in names:
        if name not in PACKAGES:
            raise UserError(f"unknown --log {name!r}{did_you_mean(name, PACKAGES)}; a CSV file is always written")
        need(PACKAGES[name], f"--log {name}", "loggers")


def need(package: str, what: str, extra: str) -> Any:
    """Import a package that only `what` needs; `UserError` with the line that installs it."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise UserError(
            f"{what} needs the package {package}, which does not import ({error}): pip install 'fairssl[{extra}]'"
        ) from error


def open_logger(
    names: Sequence[str],
    root: Path,
    work: Path,
    key: str,
    name: str,
    config: Mapping[str, Any],
    history: Sequence[Mapping[str, float]],
) -> Logger:
    """The CSV in `work`, and the loggers of these names with their files below `root`/logs.

    `key` and `config` are of the pretraining; `name` is for people; `history` is what is trained already.
    """
    made: list[Logger] = [CsvLogger(work, history)]
    logs = root / "logs"
    if names:
        logs.mkdir(parents=True, exist_ok=True)
    for one in names:
        if one == "tensorboard":
            made.append(TensorBoardLogger(logs, key, len(history) + 1))
        elif one == "wandb":
            made.append(WandbLogger(logs, key, name, config))
        else:
            made.append(MlflowLogger(logs, key, name, config))
    return Several(made)


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
