"""Loggers never cost a run: whatever the server, the key, the database or the client does.

The packages `mlflow` and `wandb` here are stand-ins that behave as the real ones were seen to; where the real ones are
installed the first test runs with them too.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from reference.started import TINY, bits

from fairssl.execute import loggers
from fairssl.execute.loggers import Loggers
from fairssl.execute.reporting import SilentReporter

# The database's tables are made by whoever finds none, in some time, and a second one at it fails, as do two writes at once.
MLFLOW = """
import os, time
from pathlib import Path
from types import SimpleNamespace as Some


class MlflowClient:
    def __init__(self, tracking_uri):
        mode = os.environ.get("FAKE_MLFLOW", "")
        if mode == "hangs":
            time.sleep(600)
        if mode == "away":
            raise RuntimeError(f"API request to {tracking_uri} failed: connection object {id(self):#x} refused")
        self.folder = Path(tracking_uri.removeprefix("sqlite:///")).with_suffix(".tables")
        if not self.folder.exists():
            partial = self.folder.with_suffix(".partial")
            partial.mkdir()
            time.sleep(1.0)
            partial.rename(self.folder)

    def get_experiment_by_name(self, name):
        path = self.folder / name
        return Some(experiment_id=name) if path.exists() else None

    def create_experiment(self, name):
        (self.folder / name).mkdir()
        return name

    def search_runs(self, experiments, filter_string, max_results):
        key = filter_string.split("'")[1]
        return [Some(info=Some(run_id=key))] if (self.folder / experiments[0] / key).exists() else []

    def create_run(self, experiment, tags, run_name):
        (self.folder / experiment / tags["fairssl_key"]).touch()
        return Some(info=Some(run_id=tags["fairssl_key"]))

    def log_batch(self, run_id, metrics=(), params=()):
        assert len(params) <= 100
        busy = self.folder / "busy"
        busy.mkdir()
        time.sleep(0.05)
        (path,) = self.folder.glob(f"*/{run_id}")
        with path.open("a") as file:
            file.writelines(f"{one.step} {one.key} {one.value!r}\\n" for one in metrics)
        busy.rmdir()

    def set_terminated(self, run_id):
        pass
"""
ENTITIES = """
from collections import namedtuple

Metric = namedtuple("Metric", "key value timestamp step")
Param = namedtuple("Param", "key value")
"""
WANDB = """
import os, time
from pathlib import Path


class Settings:
    def __init__(self, **given):
        pass


def login(verify=False):
    if not os.environ.get("WANDB_API_KEY"):
        raise RuntimeError("No API key configured. Use `wandb login` to log in.")
    return True


class Run:
    def log(self, values, step):
        if os.environ.get("FAKE_WANDB") == "breaks" and step == 2:
            raise SystemExit(f"the internal process of {id(self):#x} is gone")

    def finish(self):
        pass


def init(dir, **given):
    with (Path(dir) / "init").open("a") as file:
        file.write("one\\n")
    return Run()
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both packages, for PYTHONPATH."""
    folder = tmp_path_factory.mktemp("site")
    for name, text in (
        ("mlflow/__init__.py", ""),
        ("mlflow/tracking.py", MLFLOW),
        ("mlflow/entities.py", ENTITIES),
        ("wandb/__init__.py", WANDB),
    ):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return folder


def bench(out: Path, *words: str, site: Path | None = None, seconds: float | None = None, **env: str) -> str:
    """A grid by the command line; what it wrote on stderr. `seconds`: those that a server has to answer."""
    code = f"import fairssl.execute.loggers as loggers; loggers.SECONDS_TO_CONNECT = {seconds or 30.0}\n"
    code += "from fairssl.cli import main; main()"
    call = [sys.executable, "-c", code, "bench", *TINY, "--method", "simclr", "--out", str(out), *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **env}
    if site is not None:
        environment["PYTHONPATH"] = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(call, capture_output=True, text=True, env=environment, timeout=500)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done.stderr


def warnings(err: str) -> list[str]:
    return [line for line in err.splitlines() if "warning: --log" in line]


@pytest.mark.slow
@pytest.mark.parametrize("real", [False, True])
def test_workers_share_one_new_mlflow_database(real: bool, site: Path, tmp_path: Path) -> None:
    if real and importlib.util.find_spec("mlflow") is None:
        pytest.skip("mlflow is not installed: pip install 'fairssl[loggers]'")
    words = ("--log", "mlflow", "--seeds", "3", "--workers", "3")
    err = bench(tmp_path, *words, site=None if real else site)
    assert warnings(err) == []
    keys = {path.name for path in (tmp_path / "pretrain").iterdir()}
    assert len(keys) == 3
    if not real:
        experiment = tmp_path / "logs" / "mlflow.tables" / "fairssl"
        assert {path.name for path in experiment.iterdir()} == keys
        for path in experiment.iterdir():
            assert [line.split()[0] for line in path.read_text().splitlines() if " loss " in line] == ["1", "2"]
        return
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'logs' / 'mlflow.db'}")
    runs = client.search_runs([client.get_experiment_by_name("fairssl").experiment_id])
    assert {run.data.tags["fairssl_key"] for run in runs} == keys
    for run in runs:
        assert [one.step for one in client.get_metric_history(run.info.run_id, "loss")] == [1, 2]


@pytest.mark.slow
def test_a_server_that_is_away_and_a_missing_key_are_told_once_before_training(site: Path, tmp_path: Path) -> None:
    env = {"FAKE_MLFLOW": "away", "MLFLOW_TRACKING_URI": "http://127.0.0.1:9", "WANDB_API_KEY": ""}
    err = bench(tmp_path / "out", "--log", "mlflow,wandb", "--seeds", "2", "--workers", "2", site=site, **env)
    mlflow, wandb = warnings(err)
    gone = "is given up, training goes on without it: "
    assert f"--log mlflow {gone}API request to http://127.0.0.1:9 failed" in mlflow
    assert f"--log wandb {gone}No API key configured" in wandb
    before, after = err.index(wandb), err.index("simclr synthfaces/attractive/male seed")
    assert before < after
    bench(tmp_path / "plain", "--seeds", "2")
    assert bits(tmp_path / "out") == bits(tmp_path / "plain")


@pytest.mark.slow
def test_a_server_that_does_not_answer_holds_nothing_up(site: Path, tmp_path: Path) -> None:
    env = {"FAKE_MLFLOW": "hangs", "MLFLOW_TRACKING_URI": "http://10.255.255.1"}
    (told,) = warnings(bench(tmp_path, "--log", "mlflow", site=site, seconds=5.0, **env))
    assert told.endswith("--log mlflow is given up, training goes on without it: no answer in 5 s")


@pytest.mark.slow
def test_a_logger_that_breaks_later_is_dropped_with_one_warning(site: Path, tmp_path: Path) -> None:
    env = {"FAKE_WANDB": "breaks", "WANDB_API_KEY": "x"}
    words = ("--log", "wandb", "--seeds", "3", "--epochs", "3")
    (told,) = warnings(bench(tmp_path / "here", *words, site=site, **env))
    assert "--log wandb is given up, training goes on without it: the internal process" in told
    assert (tmp_path / "here" / "logs" / "init").read_text() == "one\n"  # the seeds after it did not try again
    (told,) = warnings(bench(tmp_path / "workers", *words, "--workers", "2", site=site, **env))
    states = [json.loads(path.read_text())["state"] for path in tmp_path.glob("*/results/*/record.json")]
    assert states == ["ok"] * 6


class Notes(SilentReporter):
    def __init__(self) -> None:
        self.notes: list[tuple[str, str]] = []

    def note(self, text: str, detail: str = "") -> None:
        self.notes.append((text, detail))


class Recorder:
    """In place of a logger: keeps what it is told, and fails or hangs where asked."""

    told: list[object]
    fails = ""
    hangs = ""

    def __init__(self, *args: object) -> None:
        self._act("open")

    def _act(self, what: str) -> None:
        if self.hangs == what:
            time.sleep(30)
        if self.fails == what:
            raise ConnectionError(f"{what} refused")
        type(self).told.append(what)

    def epoch(self, row: dict[str, float]) -> None:
        self._act(f"epoch {row['epoch']:.0f}")

    def close(self) -> None:
        self._act("close")


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> type[Recorder]:
    class Fresh(Recorder):
        told: list[object] = []  # noqa: RUF012 - of this test alone

    monkeypatch.setattr(loggers, "MlflowLogger", Fresh)
    return Fresh


def train(found: Loggers, work: Path, n_epochs: int = 3) -> None:
    work.mkdir(exist_ok=True)
    logger = found.open(work, "key", "name", {}, [])
    for epoch in range(1, n_epochs + 1):
        logger.epoch({"epoch": epoch, "loss": 0.5})
        time.sleep(0.05)
    logger.close()
    assert len((work / "history.csv").read_text().splitlines()) == n_epochs + 1


def test_a_logger_hears_of_every_epoch_in_order(recorder: type[Recorder], tmp_path: Path) -> None:
    log = Notes()
    train(Loggers(["mlflow"], tmp_path, log), tmp_path / "work")
    assert recorder.told == ["open", "epoch 1", "epoch 2", "epoch 3", "close"] and log.notes == []


@pytest.mark.parametrize("fails", ["open", "epoch 1", "epoch 3", "close"])
def test_whatever_fails_is_given_up_for_the_next_trainings_too(
    fails: str, recorder: type[Recorder], tmp_path: Path
) -> None:
    recorder.fails, log = fails, Notes()
    found = Loggers(["mlflow"], tmp_path, log)
    train(found, tmp_path / "work")
    told = list(recorder.told)
    train(found, tmp_path / "next")
    assert recorder.told == told
    assert log.notes == [("warning: --log mlflow is given up, training goes on without it", f"{fails} refused")]


@pytest.mark.parametrize("hangs", ["open", "epoch 2", "close"])
def test_a_logger_that_hangs_holds_no_training_up(
    hangs: str, recorder: type[Recorder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loggers, "SECONDS_TO_CLOSE", 0.2)
    recorder.hangs, log = hangs, Notes()
    started = time.monotonic()
    train(Loggers(["mlflow"], tmp_path, log), tmp_path / "work")
    assert time.monotonic() - started < 5
    assert [detail for _, detail in log.notes] == ["it was not done 0 s after the training"]


def test_without_log_nothing_is_made_but_the_csv(tmp_path: Path) -> None:
    train(Loggers([], tmp_path, Notes()), tmp_path / "work")
    assert [path.name for path in tmp_path.iterdir()] == ["work"]
