"""Progress: when a line is due and what it says, by a clock of our own; and what real commands write, to a file or terminal."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from reference import small
from reference.started import TINY
from reference.terminal import written_to

from fairssl import progress
from fairssl.progress import BarReporter, LineReporter
from fairssl.store.record import Record


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def at(self, seconds: float) -> None:
        self.now = 1000.0 + seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(progress.time, "monotonic", found)
    return found


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err.splitlines()


def test_a_line_at_most_every_minute_with_the_time_left(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    log = LineReporter()
    log.overall("simclr seed 0 (1 of 2)", 0, 2)
    clock.at(10)
    log.stage("train", 10, 100)
    clock.at(59)
    log.stage("train", 50, 100)
    assert lines(capsys) == []
    clock.at(61)
    log.stage("train", 60, 100)  # half a pretraining in 51 s; 1.4 are left
    assert lines(capsys) == ["fairssl: simclr seed 0 (1 of 2): train 60 of 100, about 2 min left in all"]
    clock.at(62)
    log.stage("train", 100, 100)
    log.stage("embed", 1, 300)
    assert lines(capsys) == []
    clock.at(121)
    log.stage("embed", 200, 300)  # 0.9 pretrainings in 111 s
    assert lines(capsys) == ["fairssl: simclr seed 0 (1 of 2): embed 200 of 300, about 2 min left in all"]
    clock.at(150)
    run = small.run_of("simclr")
    log.done(run, Record(spec={}, key=run.spec.key, state="failed", error="ValueError: bad"))
    assert lines(capsys) == [f"fairssl: {run.name} failed: ValueError: bad"]
    log.overall("simclr seed 1 (2 of 2)", 1, 2)
    clock.at(209)
    log.stage("train", 40, 100)
    assert lines(capsys) == []  # a line of a run that ended is one too
    clock.at(210)
    log.stage("train", 50, 100)
    assert lines(capsys) == ["fairssl: simclr seed 1 (2 of 2): train 50 of 100, about 71 s left in all"]


def test_a_long_stage_before_any_training_tells_its_own_time(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    log = LineReporter()
    log.stage("reading", 1, 2)
    clock.at(30)
    log.stage("decoding", 100, 202_599)
    clock.at(60)
    log.stage("decoding", 10_100, 202_599)  # 10,000 in 30 s
    assert lines(capsys) == ["fairssl: decoding 10,100 of 202,599, about 10 min left of it"]


def test_the_last_pretraining_tells_the_time_of_its_stage(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    log = LineReporter()
    log.overall("simclr (1 of 1)", 0, 1)
    log.stage("train", 1, 2)
    clock.at(50)
    log.stage("train", 2, 2)
    log.stage("embed", 0, 40)
    clock.at(60)
    log.stage("embed", 10, 40)
    assert lines(capsys) == ["fairssl: simclr (1 of 1): embed 10 of 40, about 30 s left of it"]


def test_workers_tell_a_sum_of_their_shares(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    log = LineReporter()
    log.overall("2 workers (2 starting), 0 of 8 pretrainings done", 0, 8)
    clock.at(60)
    log.overall("2 workers (2 starting), 0 of 8 pretrainings done", 0, 8)
    clock.at(100)
    log.overall("2 workers (2 train), 0 of 8 pretrainings done", 0.5, 8)
    clock.at(150)
    log.overall("2 workers (2 train), 0 of 8 pretrainings done", 1.5, 8)  # one in 50 s
    assert lines(capsys) == [
        "fairssl: 2 workers (2 starting), 0 of 8 pretrainings done",
        "fairssl: 2 workers (2 train), 0 of 8 pretrainings done, about 5 min left in all",
    ]


def test_notes_are_said_once_also_where_their_details_differ(capsys: pytest.CaptureFixture[str]) -> None:
    log = LineReporter()
    for detail in ("connection 0x1 refused", "connection 0x2 refused"):
        log.note("mlflow is given up", detail)
        log.note("48 images")
    assert lines(capsys) == ["fairssl: mlflow is given up: connection 0x1 refused", "fairssl: 48 images"]


class Gone:
    def write(self, text: str) -> int:
        raise OSError(5, "Input/output error")

    def flush(self) -> None:
        raise OSError(5, "Input/output error")


@pytest.mark.parametrize("stderr", [None, Gone()])
def test_a_stderr_that_is_gone_stops_nothing(stderr: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", stderr)
    log = LineReporter()
    log.note("48 images")


def test_bars_stand_where_the_work_is(clock: Clock) -> None:
    log = BarReporter()
    every, stage = log.bars.tasks
    log.overall("simclr (1 of 2)", 0, 2)
    log.stage("train", 30, 100)
    assert (every.completed, every.total, stage.completed, stage.description) == (0.3, 2, 30, "train")
    log.overall("simclr (1 of 2)", 0, 2)  # told again, as workers do
    assert (every.completed, stage.completed) == (0.3, 30)
    log.overall("sogclr (2 of 2)", 1, 2)
    assert every.completed == 1
    log.overall("2 workers", 0.5, 2)  # one has died
    assert every.completed == 0.5


def command(out: Path, *words: str) -> list[str]:
    """A bench that may tell what goes on twenty times a second."""
    code = "import sys, fairssl.progress; fairssl.progress.LINE_SECONDS = 0.05\n"
    code += "from fairssl.cli import main; main()"
    return [sys.executable, "-c", code, "bench", *TINY, "--method", "simclr", "--out", str(out), *words]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [(), ("--workers", "1"), ("--workers", "2")])
def test_a_log_tells_what_goes_on(workers: tuple[str, ...], tmp_path: Path) -> None:
    call = command(tmp_path, "--epochs", "29", "--seeds", "2", *workers)  # a longer grid would take workers unasked
    done = subprocess.run(call, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stderr and "\r" not in done.stderr
    told = done.stderr.splitlines()
    assert all(line.startswith("fairssl: ") for line in told)
    left = r", about \d+ (s|min) left"
    if workers == ("--workers", "2"):
        going_on = rf"fairssl: 2 workers \(.*train\), 0 of 2 pretrainings done{left} in all"
        assert any(re.match(r"fairssl: 2 workers \(2 starting\), 0 of 2 pretrainings done$", line) for line in told)
    elif workers:
        going_on = rf"fairssl: 1 worker \(1 train\), [01] of 2 pretrainings done: train \d+ of 87{left} in all"
    else:
        going_on = rf"fairssl: simclr synthfaces/attractive/male seed 1 \(2 of 2\): train \d+ of 87{left} in all"
    assert any(re.match(going_on, line) for line in told), done.stderr
    assert sum(bool(re.match(r"fairssl: simclr .* seed [01]: Acc \d+\.\d, ED", line)) for line in told) == 2
    assert any(line.startswith("fairssl: drawing faces ") for line in told)


def on_a_terminal(call: list[str], **env: str) -> str:
    """What a command writes to a stderr that is a terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(call, stdout=subprocess.DEVNULL, stderr=theirs, env={**os.environ, **env})
    os.close(theirs)
    written = written_to(ours)
    assert process.wait(300) == 0, written
    return written.decode()


@pytest.mark.slow
def test_a_terminal_shows_bars_and_a_dumb_one_lines(tmp_path: Path) -> None:
    bars = on_a_terminal(command(tmp_path / "bars", "--epochs", "20"), TERM="xterm", COLUMNS="100")
    assert "\x1b[" in bars and re.search(r"train .*\d+/60", bars)
    assert "\rfairssl: simclr" not in bars
    dumb = on_a_terminal(command(tmp_path / "dumb", "--epochs", "20"), TERM="dumb")
    assert "\x1b[" not in dumb and re.search(r"fairssl: simclr .* \(1 of 1\): train \d+ of 60", dumb)


@pytest.mark.slow
def test_a_terminal_that_goes_away_stops_no_training(tmp_path: Path) -> None:
    """As when a connection is cut, and SIGHUP is ignored."""
    ours, theirs = pty.openpty()
    call = ["bash", "-c", "trap '' HUP; exec \"$@\"", "bash", *command(tmp_path, "--epochs", "20", "--json")]
    process = subprocess.Popen(call, stdout=subprocess.PIPE, stderr=theirs, stdin=subprocess.DEVNULL)
    os.close(theirs)
    os.read(ours, 10)
    os.close(ours)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    assert b'"method": "simclr"' in out
