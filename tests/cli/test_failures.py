"""What a user is told of runs that failed: where the whole error is, and the way out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from reference.plugin_package import BUGGY, write_package
from reference.started import TINY, finish, start

from fairssl.benchmark import MOST_FAILURES, Failure, report_failures
from fairssl.cli import run
from fairssl.execute.reporting import SilentReporter
from fairssl.store.record import reason_of


@pytest.mark.slow
def test_a_failed_run_is_named_with_its_record_and_the_way_out_in_every_command(tmp_path: Path) -> None:
    write_package(tmp_path / "site", "strange", {"objectives/agree.py": BUGGY})
    env, out = {"PYTHONPATH": str(tmp_path / "site")}, tmp_path / "runs"
    words = ("--method", "agree,simclr")
    for number in range(2):  # the second time nothing is run
        _, err = finish(start(out, *words, **env), 1)
        (path,) = (path for path in out.glob("results/*/record.json") if json.loads(path.read_text())["state"] != "ok")
        last, way_out = err.splitlines()[-2:]
        assert last == (
            f"fairssl: agree synthfaces/attractive/male seed 0 failed: AssertionError: a bug (see {path})"
        ), number
        assert way_out.startswith("fairssl: 1 run failed or diverged; the same command with --retry-failed ")
    _, err = finish(start(out, "--method", "simclr", **env))
    assert "--retry-failed" not in err
    done = subprocess.run([sys.executable, "-m", "fairssl", "status", str(out)], capture_output=True, text=True)
    assert done.returncode == 0 and "failed: AssertionError: a bug" in done.stdout
    assert f"in full in {path}\n" in done.stdout and "--retry-failed" in done.stdout
    # The reader of the table has gone: the code still says that a run failed.
    call = ["bash", "-c", '"$@" | true; exit ${PIPESTATUS[0]}', "bash", sys.executable, "-m", "fairssl", "bench"]
    done = subprocess.run(
        [*call, *TINY, *words, "--out", str(out)], capture_output=True, text=True, env={**os.environ, **env}
    )
    assert done.returncode == 1 and "Traceback" not in done.stderr


HEADLESS = '''\
"""A head that somebody has not finished."""

from fairssl.api import Head


class Unfinished(Head):
    """It says nothing of the loss."""
'''


@pytest.mark.slow
def test_a_part_without_forward_is_named(tmp_path: Path) -> None:
    write_package(tmp_path / "site", "strange", {"heads/unfinished.py": HEADLESS})
    env, out = {"PYTHONPATH": str(tmp_path / "site")}, tmp_path / "runs"
    _, err = finish(start(out, "--method", "simclr+unfinished", **env), 1)
    assert "failed: NotImplementedError: strange.heads.unfinished.Unfinished has no forward; write one" in err


class Notes(SilentReporter):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str, detail: str = "") -> None:
        self.notes.append(text)


def test_many_failures_are_counted_and_a_few_named() -> None:
    failures = [Failure(f"m seed {n}", "diverged", "step 3: loss nan", Path("runs/record.json")) for n in range(500)]
    log = Notes()
    report_failures(failures, log)
    assert len(log.notes) == MOST_FAILURES + 1
    assert log.notes[0] == "m seed 0 diverged: step 3: loss nan (see runs/record.json)"
    assert log.notes[-1].startswith("500 runs failed or diverged (490 more than are named here); ")
    report_failures([], log)
    assert len(log.notes) == MOST_FAILURES + 1


def test_the_reason_is_what_was_raised_also_where_a_traceback_has_no_frames() -> None:
    assert reason_of("Traceback (most recent call last):\nValueError: bad") == "ValueError: bad"
    assert reason_of("step 120: loss nan") == "step 120: loss nan"


def without_locks(*words: str) -> subprocess.CompletedProcess[str]:
    code = "import sys; sys.modules['fcntl'] = None; from fairssl.cli import main; main()"
    return subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)


def test_without_file_locks_what_needs_none_works_and_the_rest_is_one_line(tmp_path: Path) -> None:
    assert without_locks("list").returncode == 0
    done = without_locks("status", str(tmp_path))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("fairssl: error: fairssl keeps its runs with the file locks of Linux and macOS")
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_without_file_locks_bench_refuses_before_anything_and_doctor_tells(tmp_path: Path) -> None:
    done = without_locks("bench", *TINY, "--method", "simclr", "--out", str(tmp_path / "runs"))
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert not (tmp_path / "runs").exists()
    done = without_locks("doctor")
    assert done.returncode == 1 and "problem: no file locks" in done.stdout and "all is well" not in done.stdout


def test_doctor_finds_the_file_locks_here(capfd: pytest.CaptureFixture[str]) -> None:
    run(["doctor", "--json"])
    assert json.loads(capfd.readouterr().out)["file_locks"] is True
