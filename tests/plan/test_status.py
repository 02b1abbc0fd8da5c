"""`fairssl status`: what it counts, and that it reads and touches nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from reference import small

from fairssl.cli import run
from fairssl.execute.jobs import Job, jobs_of
from fairssl.execute.options import Settings
from fairssl.execute.reporting import SilentReporter
from fairssl.execute.signals import GracefulStop
from fairssl.execute.worker import Worker
from fairssl.plan.estimate import Pace, format_duration
from fairssl.plan.status import Live, survey, write_plan
from fairssl.store.record import Record
from fairssl.store.runs import RunStore

TRACEBACK = """Traceback (most recent call last):
  File "/a/plugin.py", line 3, in forward
    raise ValueError("bad")
ValueError: bad
and more
"""


def status(runs: Path, capfd: pytest.CaptureFixture[str]) -> dict:
    capfd.readouterr()
    assert run(["status", str(runs), "--json"]) == 0
    found: dict = json.loads(capfd.readouterr().out)
    return found


def test_cells_are_counted_by_state_and_the_last_error_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    plan, store = small.plan("simclr", "sofclr", seeds=3), RunStore(tmp_path)
    store.create()
    write_plan(plan, store)
    states = dict.fromkeys(("planned", "running", "ok", "failed", "diverged"), 0)
    assert status(tmp_path, capfd) | {**states, "planned": 6} == status(tmp_path, capfd)

    jobs: list[Job] = jobs_of(survey(plan, store))
    assert len(jobs) == 6
    assert Worker(store, Settings(plan.roots), SilentReporter(), GracefulStop()).run(jobs[:1]) == []
    failed, diverged, running = (job.runs[0] for job in jobs[1:4])
    for cell, state, error in ((diverged, "diverged", "step 3: nan"), (failed, "failed", TRACEBACK)):
        store.write_result(Record(spec=cell.spec.model_dump(mode="json"), key=cell.spec.key, state=state, error=error))
    with store.claim(running.spec.pretrain_key):
        live = Live(store, running.spec.pretrain_key, [running])
        live.views_per_step = 32
        live("train", 10, 1000)
        monkeypatch.setattr("fairssl.plan.status.LIVE_SECONDS", 0.0)  # as if two seconds had gone by
        live("train", 20, 1000)
        found = status(tmp_path, capfd)
        assert {name: found[name] for name in states} == {
            "planned": 2, "running": 1, "ok": 1, "failed": 1, "diverged": 1
        }  # fmt: skip
        (one,) = found["at_work"]
        assert (one["what"], one["done"], one["total"]) == ("train", 20, 1000)
        assert one["views_per_second"] == pytest.approx(32 * one["per_second"])
        path = tmp_path / "results" / failed.spec.key / "record.json"
        assert found["last_error"] == {
            "key": failed.spec.key,
            "name": failed.name,
            "state": "failed",
            "reason": "ValueError: bad",
            "error": TRACEBACK,
            "record": str(path),
        }
        capfd.readouterr()
        assert run(["status", str(tmp_path)]) == 0
        text = capfd.readouterr().out
        assert text.startswith("2 planned, 1 running, 1 ok, 1 failed, 1 diverged\n")
        assert "train 20 of 1000" in text
        assert f"Last error: {failed.name} failed: ValueError: bad\n  in full in {path}\n" in text
        assert "--retry-failed" in text
    # its owner is gone: the live file says nothing any more
    found = status(tmp_path, capfd)
    assert (found["running"], found["planned"], found["at_work"]) == (0, 3, [])


def test_looking_touches_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    plan, store = small.plan("simclr"), RunStore(tmp_path)
    store.create()
    write_plan(plan, store)
    with store.claim(plan.runs[0].spec.pretrain_key):
        before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")}
        status(tmp_path, capfd)
        assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")} == before


def test_a_folder_that_is_not_there_is_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["status", str(tmp_path / "none")]) == 2
    assert "name the one that `fairssl bench` writes to" in capfd.readouterr().err


def test_a_plan_is_written_once_and_depends_on_the_cells_alone(tmp_path: Path) -> None:
    for name in ("a", "b"):
        store = RunStore(tmp_path / name)
        store.create()
        write_plan(small.plan("simclr", "sofclr"), store)
        write_plan(small.plan("simclr", "sofclr"), store)
    (a,), (b,) = (list((tmp_path / name / "plans").iterdir()) for name in ("a", "b"))
    assert a.name == b.name and a.read_bytes() == b.read_bytes()


def test_the_csv_is_whole_after_every_epoch_and_ends_as_the_kept_one(tmp_path: Path) -> None:
    from fairssl.execute.loggers import CsvLogger
    from fairssl.store.history import history_to_csv

    rows = [{"epoch": 1.0, "loss": 0.1 + 0.2}, {"epoch": 2.0, "loss": 1 / 3, "extra": 5.0}]
    first = CsvLogger(tmp_path)
    first.epoch(rows[0])
    assert (tmp_path / "history.csv").read_bytes() == history_to_csv(rows[:1])
    resumed = CsvLogger(tmp_path, rows[:1])  # another process goes on
    resumed.epoch(rows[1])
    assert (tmp_path / "history.csv").read_bytes() == history_to_csv(rows)
    assert [p.name for p in tmp_path.iterdir()] == ["history.csv"]


def test_time_by_epochs_and_least_steps() -> None:
    pace = Pace(seconds_per_epoch=2.0, steps_per_epoch=10)
    assert pace.train_seconds(epochs=5, min_steps=0) == 10
    assert pace.train_seconds(epochs=5, min_steps=95) == 20
    assert Pace(0.0, 0).train_seconds(5, 100) == 0  # nothing is trained
    assert [format_duration(s) for s in (None, 5, 600, 7200, 200_000)] == [
        "unknown",
        "5 s",
        "10 min",
        "2.0 h",
        "2.3 days",
    ]
