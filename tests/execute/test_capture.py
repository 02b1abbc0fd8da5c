"""A step that a GPU cannot capture costs no run: another process takes it eagerly, whichever executor there is."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from reference import small
from reference.plugin_package import OBJECTIVE, known, write_package

from fairssl.execute import worker as worker_module
from fairssl.execute.jobs import Job
from fairssl.execute.options import Options, Settings
from fairssl.execute.ray import RayLoop, ray_job
from fairssl.execute.reporting import SilentReporter
from fairssl.execute.signals import GracefulStop
from fairssl.execute.worker import StepNotCaptured, Worker, step_key
from fairssl.store.runs import RunStore
from fairssl.train.trainer import build_trainer

# On a CPU nothing is captured: this raises what a capture would, once, after some steps.
REFUSING = OBJECTIVE.replace(
    "        z, z_ =",
    """\
        flag = Path(os.environ["REFUSED"])
        self.calls = getattr(self, "calls", 0) + 1
        if self.calls == 4 and not flag.exists():
            flag.touch()
            raise NotCaptured("operation not permitted when stream is capturing (agree.py:7: loss.item())")
        z, z_ =""",
).replace(
    "import torch\n",
    "import os\nfrom pathlib import Path\n\nimport torch\n\nfrom fairssl.train.cudagraph import NotCaptured\n",
)
SETS = [word for text in small.SETS for word in ("--set", text)]
TINY = ["--epochs", "2", "--image-size", "16", "--batch-size", "16", "--annotated", "0.3", *SETS]
SAID = "trained eagerly, which is slower, since a GPU cannot capture its step: operation not permitted"


def bench(site: Path, out: Path, refused: Path, *words: str) -> str:
    """`fairssl bench` of the refusing objective by a process of its own; what it says on stderr."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(site), "REFUSED": str(refused)}
    call = [sys.executable, "-m", "fairssl", "bench", "--method", "agree", *TINY, "--out", str(out), *words]
    done = subprocess.run(call, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    return done.stderr


def encoders(out: Path) -> dict[str, bytes]:
    return {path.parent.name: path.read_bytes() for path in out.glob("pretrain/*/encoder.safetensors")}


def has(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["--seeds", "2"],
        ["--seeds", "2", "--pack", "2"],
        ["--seeds", "3", "--workers", "1", "--pack", "2"],
        pytest.param(
            ["--seeds", "1", "--executor", "slurm", "--submit", "cluster=local", "--workers", "1"],
            marks=pytest.mark.skipif(not has("submitit"), reason="no submitit here"),
        ),
    ],
)
def test_a_step_that_cannot_be_captured_costs_no_run(tmp_path: Path, words: list[str]) -> None:
    write_package(tmp_path / "site", "strange", {"objectives/agree.py": REFUSING})
    refused = tmp_path / "refused"
    said = bench(tmp_path / "site", tmp_path / "runs", refused, *words)
    assert refused.exists()
    if "slurm" not in words:
        assert said.count(SAID) == 1 and "(agree.py:7: loss.item())" in said
    else:  # whose jobs have logs of their own
        logs = "".join(path.read_text() for path in (tmp_path / "runs" / "slurm").glob("*.err"))
        assert logs.count(SAID) == 1
    records = [json.loads(path.read_text()) for path in (tmp_path / "runs").glob("results/*/record.json")]
    assert [record["state"] for record in records] == ["ok"] * int(words[1])
    assert {record["facts"]["path"] for record in records} == {"eager"}
    bench(tmp_path / "site", tmp_path / "plain", refused, *words[:2])
    assert encoders(tmp_path / "runs") == encoders(tmp_path / "plain")  # from the same start


def test_a_worker_whose_step_cannot_be_captured_records_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REFUSED", str(tmp_path / "refused"))
    write_package(tmp_path / "site", "strange", {"objectives/agree.py": REFUSING})
    with known(tmp_path / "site"):
        runs = small.plan("agree", seeds=2).runs
        jobs = [Job(run.spec.pretrain_key, (run,)) for run in runs]
        store = RunStore(tmp_path / "runs")
        store.create()
        settings = Settings({"synthfaces": None}, pack=2)
        with pytest.raises(StepNotCaptured) as found:
            Worker(store, settings, SilentReporter(), GracefulStop()).run(jobs)
        assert found.value.step_key == step_key(runs[0].spec) == step_key(runs[1].spec)
        assert not list(store.records())
        # The other seed had nothing to do with it, and is trained already.
        assert [store.has_pretrain(job.key) for job in jobs] == [False, True]
        assert Worker(store, settings, SilentReporter(), GracefulStop()).run(jobs) == []
        assert [record.state for record in store.records()] == ["ok", "ok"]


@pytest.mark.slow
@pytest.mark.parametrize("alone", [False, True])
def test_a_ray_task_goes_on_eagerly_in_a_process_of_its_own(
    alone: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also on a node that does not see the runs folder."""
    monkeypatch.setenv("REFUSED", str(tmp_path / "refused"))
    write_package(tmp_path / "site", "strange", {"objectives/agree.py": REFUSING})
    with known(tmp_path / "site"):
        run = small.plan("agree").runs[0]
        job, store = Job(run.spec.pretrain_key, (run,)), RunStore(tmp_path / "runs")
        store.create()
        (tmp_path / "seen").touch()
        outcome = ray_job(job, store.root, tmp_path / "seen", alone, {}, Settings({"synthfaces": None}))
        assert isinstance(outcome, dict) and SAID in outcome["note"]
        notes: list[str] = []
        log = SilentReporter()
        log.note = notes.append  # type: ignore[method-assign]
        errors = SimpleNamespace(RayTaskError=KeyError, RayError=LookupError)
        ray = SimpleNamespace(get=lambda task: outcome, exceptions=errors)
        loop = RayLoop(ray, lambda job: "task", [job], store, Settings({}), log)
        loop.on_task_end("task", loop.running.pop("task"))
        assert notes == [outcome["note"]] and loop.finished == 1 and not loop.running
        (record,) = store.records()
        assert record.state == "ok" and record.facts["path"] == "eager"


def test_the_same_code_of_a_step_has_one_key_and_other_code_another() -> None:
    keys = {
        name: step_key(small.run_of(method, sets=sets).spec)
        for name, method, sets in (
            ("plain", "simclr", ()),
            ("rate", "simclr", ("train.lr=0.1",)),
            ("head", "simclr+ccl", ()),
            ("parameter", "simclr", ("simclr.loss_scale_tau=true",)),
        )
    }
    assert keys["plain"] == keys["rate"] and len(set(keys.values())) == 3


def trained_eagerly(settings: Settings, out: Path, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """What the worker asks of each trainer that it builds for simclr and sogclr."""
    asked: list[bool] = []

    def spy(*args: Any) -> Any:
        asked.append(args[4])
        return build_trainer(*args)

    monkeypatch.setattr(worker_module, "build_trainer", spy)
    store = RunStore(out)
    store.create()
    for run in small.plan("simclr", "sogclr", epochs=1).runs:
        Worker(store, settings, SilentReporter(), GracefulStop()).run([Job(run.spec.pretrain_key, (run,))])
    return asked


def test_steps_are_eager_where_asked_or_where_they_are_known_not_to_be_capturable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    roots = {"synthfaces": None}
    simclr = step_key(small.run_of("simclr").spec)
    assert trained_eagerly(Settings(roots), tmp_path / "a", monkeypatch) == [False, False]
    assert trained_eagerly(Settings(roots, eager=True), tmp_path / "b", monkeypatch) == [True, True]
    known_not_to = Settings(roots, eager_steps=frozenset({simclr}))
    assert trained_eagerly(known_not_to, tmp_path / "c", monkeypatch) == [True, False]


@pytest.mark.parametrize(("value", "expected"), [(None, False), ("", False), ("0", False), ("1", True), ("yes", True)])
def test_the_environment_asks_for_eager_steps(
    value: str | None, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if value is None:
        monkeypatch.delenv("FAIRSSL_EAGER", raising=False)
    else:
        monkeypatch.setenv("FAIRSSL_EAGER", value)
    assert Options().settings({}).eager is expected
    assert Options(eager=True).settings({}).eager
