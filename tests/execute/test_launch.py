"""Executors: real processes that are killed, stopped, orphaned, that share a folder and run out of disk."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from reference import small
from reference.plugin_package import BUGGY, PREPARED, known, write_package
from reference.small_disk import mounted
from reference.started import TINY, alive, bits, finish, start, training, until
from reference.utkface_files import people, write_faces

from fairssl import kinds
from fairssl.cli import run
from fairssl.execute import worker as worker_module
from fairssl.execute.jobs import Job, packs_of
from fairssl.execute.options import Settings
from fairssl.execute.reporting import SilentReporter
from fairssl.execute.signals import GracefulStop
from fairssl.execute.worker import Worker, WorkerBroken
from fairssl.plan.resolve import Plan
from fairssl.store.runs import RunStore
from fairssl.train.interleave import interleave
from fairssl.train.trainer import Trainer


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--executor", "slrum"], "did you mean 'slurm'"),
        (["--workers", "0"], "--workers 0: must be at least 1"),
        (["--num-gpus", "0.5"], "--num-gpus is for --executor ray"),
        (["--submit", "a=1"], "--submit is for --executor slurm"),
        (["--executor", "slurm", "--submit", "a"], "is not of the form parameter=value"),
        (["--checkpoint-minutes", "0"], "--checkpoint-minutes 0.0: must be above 0"),
        (["--checkpoint-epochs", "-1"], "must be at least 0"),
        (["--log", "tensorbord"], "did you mean 'tensorboard'"),
        (["--pack", "many"], "--pack 'many': a number of seeds, at least 1, or auto"),
        (["--pack", "4", "--executor", "ray"], "tasks share a GPU by --num-gpus 0.25"),
        (["--pack", "2", "--devices", "2"], "seeds share a device, or devices share a run; not both"),
        (["--devices", "0"], "--devices 0: must be at least 1"),
        (["--devices", "2", "--executor", "ray"], "elsewhere start the command by torchrun"),
        (["--devices", "2", "--device", "cuda:0"], "that is one device"),
    ],
)
def test_a_mistake_is_one_line(
    words: list[str], message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["bench", *TINY, "--out", str(tmp_path / "runs"), *words]) == 2
    assert message in capfd.readouterr().err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("package", "words", "extra"),
    [
        ("ray", ["--executor", "ray"], "fairssl[ray]"),
        ("submitit", ["--executor", "slurm"], "fairssl[slurm]"),
        ("wandb", ["--log", "wandb"], "fairssl[loggers]"),
        ("mlflow", ["--log", "mlflow"], "fairssl[loggers]"),
        ("tensorboard", ["--log", "tensorboard"], "fairssl[loggers]"),
    ],
)
def test_a_missing_extra_is_named_with_the_line_that_installs_it(
    package: str,
    words: list[str],
    extra: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, package, None)  # as if it were not there
    assert run(["bench", *TINY, "--method", "simclr", "--out", str(tmp_path), *words]) == 2
    assert f"pip install '{extra}'" in capfd.readouterr().err
    assert not list(tmp_path.rglob("record.json"))


def test_workers_log_and_checkpoints_rerun_nothing_and_a_changed_parameter_reruns_its_cells(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["bench", *TINY, "--method", "simclr,sofclr", "--out", str(tmp_path)]
    assert run(words) == 0

    def left(*more: str) -> tuple[int, int]:
        capfd.readouterr()
        assert run([*words, "--dry-run", "--json", *more]) == 0
        plan = json.loads(capfd.readouterr().out)
        return plan["done"], plan["left"]

    same = (["--workers", "2"], ["--device", "cpu"], ["--checkpoint-minutes", "9"], ["--checkpoint-epochs", "1"])
    for more in (*same, ["--data-dir", str(tmp_path)], ["--executor", "slurm"], ["--retry-failed"]):
        assert left(*more) == (2, 0), more
    assert left("--set", "adversary.hidden_dim=64") == (1, 1)
    assert left("--set", "probe.lr=0.1") == (0, 2)
    assert left("--set", "train.lr=0.1") == (0, 2)
    assert left("--seeds", "2") == (2, 2)


def test_moved_images_rerun_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    names = people({(a, g, e): 6 for a in (20, 30) for g in (0, 1) for e in (0, 1)})
    write_faces(tmp_path / "here", names)
    size = ["--seeds", "1", "--epochs", "1", "--image-size", "8", "--batch-size", "8", "--encoder", "small_cnn"]
    words = ["bench", "--dataset", "utkface", "--method", "simclr", *size, "--annotated", "0.5"]
    words += ["--out", str(tmp_path / "runs"), "--dry-run", "--json"]

    def keys(where: str) -> set[str]:
        from fairssl.plan.request import Request
        from fairssl.plan.resolve import resolve

        request = Request(("simclr",), ("utkface",), image_size=8, data_dir=tmp_path / where)
        return {cell.spec.key for cell in resolve(request).runs}

    before = keys("here")
    (tmp_path / "here").rename(tmp_path / "there")
    assert keys("there") == before


def test_the_estimate_comes_from_records_like_it_and_scales_with_epochs(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["bench", *TINY, "--method", "simclr", "--out", str(tmp_path), "--dry-run", "--json"]

    def estimate(*more: str) -> dict:
        capfd.readouterr()
        assert run([*words, *more]) == 0
        return json.loads(capfd.readouterr().out)["estimate"]

    assert estimate()["seconds"] is None and estimate()["unknown"] == 1
    assert estimate("--estimate")["seconds"] >= 0 and estimate("--estimate")["unknown"] == 0
    assert run(words[:-2]) == 0
    (path,) = (tmp_path / "results").rglob("record.json")
    record = json.loads(path.read_text())
    record["timings"].update(seconds_per_epoch=10.0, evaluate_seconds=3.0)
    path.write_text(json.dumps(record))
    assert estimate()["seconds"] == 0
    assert estimate("--seeds", "3")["seconds"] == pytest.approx(2 * (2 * 10 + 3))
    assert estimate("--epochs", "7")["seconds"] == pytest.approx(7 * 10 + 3)
    assert estimate("--seeds", "3", "--workers", "2")["seconds"] == pytest.approx(2 * 10 + 3)
    assert estimate("--method", "sogclr")["unknown"] == 1  # and simclr, done
    assert estimate("--set", "probe.lr=0.1")["seconds"] == pytest.approx(3)  # it is trained already


@pytest.mark.slow
def test_two_workers_leave_what_one_process_leaves(tmp_path: Path) -> None:
    words = ("--method", "simclr,sofclr", "--seeds", "2")
    alone, _ = finish(start(tmp_path / "alone", *words))
    pair, _ = finish(start(tmp_path / "pair", *words, "--workers", "2"))
    assert pair == alone
    assert bits(tmp_path / "pair") == bits(tmp_path / "alone")
    assert not list((tmp_path / "pair" / "work").iterdir())


@pytest.mark.slow
def test_a_killed_worker_stops_no_other_and_its_job_goes_on_from_the_checkpoint(tmp_path: Path) -> None:
    words = ("--method", "simclr,sogclr", "--epochs", "300", "--checkpoint-epochs", "1")
    finish(start(tmp_path / "whole", *words))
    process = start(tmp_path / "killed", *words, "--workers", "2")
    os.kill(until(lambda: training(tmp_path / "killed"))[0], signal.SIGKILL)  # type: ignore[index]
    _, err = finish(process)
    assert "died (signal SIGKILL; out of memory?); another one goes on from its checkpoint" in err
    assert bits(tmp_path / "killed") == bits(tmp_path / "whole")


@pytest.mark.slow
def test_a_job_that_kills_its_worker_twice_is_recorded_as_failed_and_the_others_are_done(tmp_path: Path) -> None:
    process = start(tmp_path, "--method", "simclr", "--epochs", "4000", "--workers", "1")
    for _ in range(2):
        victim = until(lambda: training(tmp_path))[0]  # type: ignore[index]
        os.kill(victim, signal.SIGKILL)
        until(lambda pid=victim: pid not in training(tmp_path) or process.poll() is not None)
    _, err = finish(process, 1)
    assert "again; given up" in err
    (record,) = RunStore(tmp_path).records()
    assert record.state == "failed" and "SIGKILL" in (record.error or "") and "2 times" in (record.error or "")


@pytest.mark.slow
def test_workers_die_with_their_parent_and_leave_a_checkpoint(tmp_path: Path) -> None:
    process = start(tmp_path, "--method", "simclr,sogclr", "--epochs", "4000", "--workers", "2")
    pids = until(lambda: len(training(tmp_path)) == 2 and training(tmp_path))
    process.kill()
    process.communicate()
    until(lambda: not any(alive(pid) for pid in pids), 20)  # type: ignore[attr-defined]
    assert len(list((tmp_path / "work").glob("*/checkpoint-*.safetensors"))) == 2


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
def test_a_signal_stops_all_workers_with_checkpoints_and_says_how_to_go_on(
    number: int, code: int, tmp_path: Path
) -> None:
    words = ("--method", "simclr,sogclr", "--epochs", "500", "--workers", "2")
    process = start(tmp_path / "cut", *words)
    pids = until(lambda: len(training(tmp_path / "cut")) == 2 and training(tmp_path / "cut"))
    process.send_signal(number)
    _, err = finish(process, code)
    assert "the same command goes on from here" in err
    assert not any(alive(pid) for pid in pids)  # type: ignore[attr-defined]
    assert len(list((tmp_path / "cut" / "work").glob("*/checkpoint-*.safetensors"))) == 2
    cut, _ = finish(start(tmp_path / "cut", *words))
    whole, _ = finish(start(tmp_path / "whole", *words))
    assert cut == whole and bits(tmp_path / "cut") == bits(tmp_path / "whole")


@pytest.mark.slow
def test_two_commands_share_the_work_side_by_side(tmp_path: Path) -> None:
    words = ("--method", "simclr,sogclr", "--seeds", "2", "--epochs", "200")
    one, two = start(tmp_path, *words), start(tmp_path, *words)
    until(lambda: len(set(training(tmp_path))) == 2)  # both train, at the same time
    first, second = finish(one)[0], finish(two)[0]
    assert first == second
    assert sum("train_seconds" in r.timings for r in RunStore(tmp_path).records()) == 4


KILLS = """
import os, random, signal, sys
from pathlib import Path
import sklearn.linear_model, timm, torch, torchvision  # once, not in every child
from fairssl.cli import run
torch.set_num_threads(1)
from fairssl.train.step import TrainStep
import fairssl.execute.worker, fairssl.store.runs

root, words = Path(sys.argv[1]), sys.argv[2:]

def child(out, kill=None):
    pid = os.fork()
    if pid == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if kill:
            kill()
        code = run(["bench", *words, "--out", str(out)])
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def die(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGKILL)

def in_step(number):
    def arm():
        step, count = TrainStep.__call__, [0]
        def counted(self, *args):
            found = step(self, *args)
            count[0] += 1
            if count[0] == number:
                die()
            return found
        TrainStep.__call__ = counted
    return arm

def in_checkpoint(number):
    "Killed with the new checkpoint written in half."
    def arm():
        import fairssl.train.checkpoint
        count = [0]
        save = fairssl.train.checkpoint.save
        def torn(*args, **kwargs):
            content = save(*args, **kwargs)
            count[0] += 1
            if count[0] == number:
                class Half(bytes): pass
                real = open
                def half(path, mode="r", *more, **kw):
                    file = real(path, mode, *more, **kw)
                    file.write(content[: len(content) // 2]); file.flush()
                    die()
                fairssl.train.checkpoint.open = half
            return content
        fairssl.train.checkpoint.save = torn
    return arm

def between():
    "Killed with the training done and its folder not yet in place."
    fairssl.store.runs.RunStore.write_pretrain = die

def in_evaluation():
    fairssl.execute.worker.evaluate = die

assert child(root / "whole") == 0
out = root / "killed"
for kill in (in_step(2), in_checkpoint(2), in_step(3), between, in_evaluation):
    child(out, kill)
assert child(out) == 0
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", [*sorted(kinds.methods.where()), "vicreg+adversary", "simclr+mmd"])
def test_killed_again_and_again_every_method_ends_with_the_same_bits(method: str, tmp_path: Path) -> None:
    words = [*TINY, "--method", method, "--epochs", "4", "--checkpoint-epochs", "1"]
    command = [sys.executable, "-c", KILLS, str(tmp_path), *words]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=600, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
    assert bits(tmp_path / "killed") == bits(tmp_path / "whole")
    assert (tmp_path / "killed" / "table.md").read_bytes() == (tmp_path / "whole" / "table.md").read_bytes()
    names = [path.name for path in tmp_path.rglob("*") if path.is_file()]
    assert not any("checkpoint" in name or "partial" in name for name in names)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of a few megabytes."""
    with mounted(tmp_path / "disk", 8) as folder:
        yield folder


@pytest.mark.slow
@pytest.mark.parametrize("workers", [[], ["--workers", "2"]])
def test_a_disk_that_fills_up_is_one_line_and_with_space_again_the_table_is_the_same(
    workers: list[str], small_disk: Path, tmp_path: Path
) -> None:
    words = ("--method", "simclr,sogclr", "--epochs", "60", "--checkpoint-epochs", "1", *workers)
    whole, _ = finish(start(tmp_path / "whole", *words))
    ballast = (small_disk / "ballast").open("wb", buffering=0)  # there before the disk may be full for a moment
    process = start(small_disk / "runs", *words)
    until(lambda: list((small_disk / "runs" / "work").glob("*/checkpoint-*.safetensors")))
    with ballast as file:
        while process.poll() is None:  # whatever is free, also what it frees
            try:
                file.write(b"x" * 65536)
            except OSError:
                time.sleep(0.01)
    _, err = finish(process, 2)
    assert "No space left on device" in err and err.strip().splitlines()[-1].startswith("fairssl: error: cannot write")
    assert not [p for p in (small_disk / "runs").rglob("*") if p.name.startswith(".tmp-") or p.suffix == ".partial"]
    (small_disk / "ballast").unlink()
    again, _ = finish(start(small_disk / "runs", *words))
    assert again == whole and bits(small_disk / "runs") == bits(tmp_path / "whole")


def test_a_read_only_folder_is_one_line_and_its_table_can_still_be_printed(
    small_disk: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert run(["bench", *TINY, "--method", "simclr", "--out", str(small_disk / "runs")]) == 2
    err = capfd.readouterr().err
    assert "Read-only file system; choose another with --out" in err and "Traceback" not in err


@pytest.mark.slow
def test_clocks_that_disagree_change_nothing(tmp_path: Path) -> None:
    """Checkpoints of the year 2001 and of 2100 are told apart by their step, locks by the kernel."""
    words = ("--method", "simclr", "--epochs", "300", "--checkpoint-epochs", "1")
    finish(start(tmp_path / "whole", *words))
    process = start(tmp_path / "cut", *words)
    until(lambda: len(list((tmp_path / "cut" / "work").glob("*/checkpoint-*.safetensors"))) == 2)
    process.kill()
    process.communicate()
    older, newer = sorted((tmp_path / "cut" / "work").glob("*/checkpoint-*.safetensors"))
    os.utime(older, (4102444800, 4102444800))
    os.utime(newer, (1e9, 1e9))
    for path in (tmp_path / "cut" / "locks").glob("*.lock"):
        os.utime(path, (4102444800, 4102444800))
    finish(start(tmp_path / "cut", *words))
    assert bits(tmp_path / "cut") == bits(tmp_path / "whole")


def needs(package: str) -> pytest.MarkDecorator:
    there = importlib.util.find_spec(package) is not None
    return pytest.mark.skipif(not there, reason=f"{package} is not installed: pip install 'fairssl[ray,slurm,loggers]'")


@pytest.mark.slow
@needs("ray")
def test_on_ray_a_killed_worker_is_replaced_and_the_table_is_the_same(tmp_path: Path) -> None:
    words = ("--method", "simclr,sogclr", "--epochs", "300", "--checkpoint-epochs", "1")
    whole, _ = finish(start(tmp_path / "whole", *words))
    process = start(tmp_path / "ray", *words, "--executor", "ray", "--workers", "2")
    pids = until(lambda: len(set(training(tmp_path / "ray"))) == 2 and training(tmp_path / "ray"))
    os.kill(pids[0], signal.SIGKILL)  # type: ignore[index]
    out, err = finish(process)
    assert "another one takes it over" in err
    assert out == whole and bits(tmp_path / "ray") == bits(tmp_path / "whole")


@pytest.mark.slow
@needs("ray")
def test_from_ray_nodes_with_another_disk_results_come_back(tmp_path: Path) -> None:
    words = ("--method", "simclr,sogclr")
    whole, _ = finish(start(tmp_path / "whole", *words))
    # Ray's workers inherit this, and see another folder at that path than the command does.
    hidden = "import pathlib; e = pathlib.Path.exists; pathlib.Path.exists = lambda p: '.seen-' not in p.name and e(p)"
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(hidden)
    path = os.pathsep.join(filter(None, [str(tmp_path / "site"), os.environ.get("PYTHONPATH")]))
    out, _ = finish(start(tmp_path / "ray", *words, "--executor", "ray", "--workers", "2", PYTHONPATH=path))
    assert out == whole and bits(tmp_path / "ray") == bits(tmp_path / "whole")
    assert not list((tmp_path / "ray" / "locks").iterdir())


@pytest.mark.slow
@needs("ray")
def test_ctrl_c_stops_ray_with_checkpoints(tmp_path: Path) -> None:
    process = start(tmp_path, "--method", "simclr,sogclr", "--epochs", "4000", "--executor", "ray", "--workers", "2")
    pids = until(lambda: len(set(training(tmp_path))) == 2 and training(tmp_path))
    process.send_signal(signal.SIGINT)
    _, err = finish(process, 130)
    assert "the same command goes on from here" in err
    until(lambda: not any(alive(pid) for pid in pids), 30)  # type: ignore[attr-defined]
    assert len(list((tmp_path / "work").glob("*/checkpoint-*.safetensors"))) == 2


def ray_refusal(out: Path, **env: str) -> str:
    """The one line of a command that finds no Ray to work on; a cluster has five seconds to answer."""
    code = "import sys, fairssl.execute.ray as ray; ray.SECONDS_TO_CONNECT = 5.0; from fairssl.cli import main; main()"
    call = [sys.executable, "-c", code, "bench", *TINY, "--method", "simclr", "--out", str(out), "--executor", "ray"]
    done = subprocess.run(call, capture_output=True, text=True, env={**os.environ, **env}, timeout=100)
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    assert not out.exists()
    line = done.stderr.splitlines()[-1]
    assert line.startswith("fairssl: error: ")
    return line


@pytest.mark.slow
@needs("ray")
def test_a_ray_cluster_that_is_gone_is_told_within_a_time_limit(tmp_path: Path) -> None:
    dead = "127.0.0.1:9"
    assert f"no Ray cluster at RAY_ADDRESS={dead}: no answer in 5 s" in ray_refusal(tmp_path / "runs", RAY_ADDRESS=dead)
    # Ray itself leaves the address of the last cluster on a machine, also where that one died.
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text(dead)
    told = ray_refusal(tmp_path / "runs", RAY_TMPDIR=str(tmp_path))
    assert "no Ray cluster at the address that Ray left on this machine: no answer in 5 s" in told
    assert "`ray stop`" in told


@pytest.mark.slow
@needs("ray")
def test_a_folder_whose_name_is_too_long_for_rays_sockets_is_told(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 25)
    folder.mkdir()
    told = ray_refusal(tmp_path / "runs", TMPDIR=str(folder))
    assert "Ray does not start: " in told and "set RAY_TMPDIR to a short path" in told


@pytest.mark.slow
@needs("submitit")
def test_on_slurm_a_preempted_job_is_requeued_and_goes_on(tmp_path: Path) -> None:
    """Through submitit's local executor, which requeues as Slurm does."""
    words = ("--method", "simclr,sogclr", "--epochs", "500")
    whole, _ = finish(start(tmp_path / "whole", *words))
    slurm = ("--executor", "slurm", "--workers", "2", "--submit", "cluster=local")
    process = start(tmp_path / "slurm", *words, *slurm)
    pids = until(lambda: len(set(training(tmp_path / "slurm"))) == 2 and training(tmp_path / "slurm"))
    os.kill(pids[0], signal.SIGUSR2)  # type: ignore[index]
    until(lambda: list((tmp_path / "slurm" / "work").glob("*/checkpoint-*.safetensors")))
    out, _ = finish(process)
    assert out == whole and bits(tmp_path / "slurm") == bits(tmp_path / "whole")
    logs = "".join(path.read_text() for path in (tmp_path / "slurm" / "slurm").glob("*.out"))
    assert "Requeued job" in logs
    said = "".join(path.read_text() for path in (tmp_path / "slurm" / "slurm").glob("*.err"))
    assert "fairssl: simclr synthfaces/attractive/male seed 0: Acc" in said


@pytest.mark.slow
@needs("submitit")
def test_on_slurm_a_cell_that_fails_again_keeps_what_it_died_of(tmp_path: Path) -> None:
    write_package(tmp_path / "site", "strange", {"objectives/agree.py": BUGGY})
    out = tmp_path / "runs"
    for more in ([], ["--retry-failed", "--executor", "slurm", "--workers", "1", "--submit", "cluster=local"]):
        _, err = finish(start(out, "--method", "agree", *more, PYTHONPATH=str(tmp_path / "site")), 1)
        (record,) = RunStore(out).records()
        assert record.state == "failed" and "AssertionError: a bug" in record.error
    assert "not finished" not in err


@pytest.mark.slow
@needs("tensorboard")
def test_tensorboard_holds_every_epoch(tmp_path: Path) -> None:
    finish(start(tmp_path, "--method", "simclr", "--log", "tensorboard"))
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (folder,) = (tmp_path / "logs" / "tensorboard").iterdir()
    events = EventAccumulator(str(folder))
    events.Reload()
    history = RunStore(tmp_path).read_pretrain(folder.name)
    assert history is not None
    shown = [(event.step, event.value) for event in events.Scalars("loss")]
    assert shown == [(row["epoch"], pytest.approx(row["loss"], rel=1e-6)) for row in history[1]]


@pytest.mark.slow
def test_a_grid_that_goes_on_uses_as_many_threads_as_one_that_never_stopped(tmp_path: Path) -> None:
    """Threads are in the last bits of a result: what is left of a plan must not decide how many there are."""
    words = ("--method", "simclr,sogclr", "--epochs", "40")
    for out, parts in ((tmp_path / "whole", ((),)), (tmp_path / "parts", (("--method", "simclr"), ()))):
        for part in parts:
            environment = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
            more = part or words[:2]
            call = [sys.executable, "-m", "fairssl", "bench", *TINY, *words[2:], *more, "--out", str(out)]
            if part:
                call += ["--workers", "2"]  # the first half of the grid, as its workers would do it
            assert subprocess.run(call, env=environment, capture_output=True).returncode == 0
    assert bits(tmp_path / "parts") == bits(tmp_path / "whole")


def test_packs_are_seeds_of_one_cell_in_the_order_of_the_jobs() -> None:
    jobs = jobs_of_plan(small.plan("simclr", "sofclr", seeds=5))
    settings = Settings({}, "cpu", pack=2)
    packs = [[(job.runs[0].label, job.runs[0].spec.seed) for job in pack] for pack in packs_of(jobs, settings, 1)]
    for label in ("simclr", "sofclr"):
        assert [pack for pack in packs if pack[0][0] == label] == [
            [(label, 0), (label, 1)],
            [(label, 2), (label, 3)],
            [(label, 4)],
        ]


def test_unasked_a_pack_fills_a_gpu_and_leaves_none_idle() -> None:
    def sizes(device: str, n_devices: int = 1, **request: int) -> list[int]:
        jobs = jobs_of_plan(small.plan("simclr", seeds=8, **request))
        return [len(pack) for pack in packs_of(jobs, Settings({}, device), n_devices)]

    assert sizes("cpu", image_size=64, batch_size=128) == [1] * 8
    assert sizes("cuda:0", image_size=64, batch_size=128) == [4, 4]  # 1,024 views of 64 px
    assert sizes("cuda:0", image_size=64, batch_size=64) == [8]
    assert sizes("cuda:0", image_size=128, batch_size=128) == [1] * 8
    assert sizes("cuda:0", 4, image_size=64, batch_size=128) == [2] * 4


def jobs_of_plan(plan: Plan) -> list[Job]:
    return [Job(key, tuple(cells)) for key, cells in plan.pretrainings().items()]


@pytest.mark.slow
def test_packed_seeds_leave_the_bits_of_single_ones_also_in_workers(tmp_path: Path) -> None:
    words = ("--method", "sofclr,vae+mmd", "--seeds", "3")
    alone, _ = finish(start(tmp_path / "alone", *words))
    packed, _ = finish(start(tmp_path / "packed", *words, "--pack", "2"))
    workers, _ = finish(start(tmp_path / "workers", *words, "--pack", "3", "--workers", "2"))
    assert alone == packed == workers
    assert bits(tmp_path / "alone") == bits(tmp_path / "packed") == bits(tmp_path / "workers")
    sizes = [record.timings.get("packed") for record in RunStore(tmp_path / "packed").records()]
    assert sorted(sizes, key=str) == [2, 2, 2, 2, None, None]


class Notes(SilentReporter):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str, detail: str = "") -> None:
        self.notes.append(text)


def worked(out: Path, pack: int, jobs: list[Job], log: SilentReporter) -> RunStore:
    store = RunStore(out)
    store.create()
    assert Worker(store, Settings({"synthfaces": None}, pack=pack), log, GracefulStop()).run(jobs) == []
    return store


def ends_with(error: Exception, first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packs train as ever, but that their runs from number `first` on end with this error."""

    def cut(trainers: Sequence[Trainer], runs: Sequence[Iterator[None]]) -> list[Exception | None]:
        if len(runs) == 1:
            return interleave(trainers, runs)
        return [*interleave(trainers[:first], runs[:first]), *[error] * (len(runs) - first)]

    monkeypatch.setattr(worker_module, "interleave", cut)


def test_an_unasked_pack_that_the_memory_does_not_hold_is_trained_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = jobs_of_plan(small.plan("simclr", seeds=3))
    for job in jobs:
        worked(tmp_path / "alone", 1, [job], SilentReporter())
    ends_with(torch.OutOfMemoryError("no more"), 1, monkeypatch)
    log = Notes()
    store = worked(tmp_path / "auto", 0, jobs, log)
    assert [note for note in log.notes if "memory" in note] == [
        "simclr synthfaces/attractive/male seed 1: out of memory with 3 seeds at once; 2 are trained again, one at a time"
    ]
    assert bits(tmp_path / "auto") == bits(tmp_path / "alone")
    assert len(list(store.records())) == 3

    asked = Notes()
    states = {record.spec["seed"]: record.state for record in worked(tmp_path / "asked", 3, jobs, asked).records()}
    assert states == {0: "ok", 1: "failed", 2: "failed"}  # what was asked for is not replaced
    assert any("out of memory with 3 seeds at once; --pack 1 needs less" in note for note in asked.notes)


@pytest.mark.parametrize("first", [0, 1])
def test_a_worker_that_loses_its_device_records_one_failure_and_leaves_the_rest(
    first: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the others of the pack fail with it, or are trained already: it cannot judge them any more."""
    jobs = jobs_of_plan(small.plan("simclr", seeds=3))
    error = torch.OutOfMemoryError("no more") if first else RuntimeError("illegal access")
    ends_with(error, first, monkeypatch)
    monkeypatch.setattr(Worker, "device_lost", lambda self: True)
    with pytest.raises(WorkerBroken, match="failed, and cpu with it") as found:
        worked(tmp_path, 0, jobs, log := Notes())
    assert found.value.recorded
    assert [(record.spec["seed"], record.state) for record in RunStore(tmp_path).records()] == [(first, "failed")]
    assert [RunStore(tmp_path).has_pretrain(job.key) for job in jobs] == [number < first for number in range(3)]
    assert any("was lost while 3 seeds had it" in note for note in log.notes)


def test_a_device_that_is_lost_over_an_evaluation_leaves_the_other_cells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = jobs_of_plan(small.plan("simclr", seeds=2))
    monkeypatch.setattr("fairssl.execute.worker.evaluate", lambda *_: 1 / 0)
    monkeypatch.setattr(Worker, "device_lost", lambda self: True)
    with pytest.raises(WorkerBroken, match="failed, and cpu with it"):
        worked(tmp_path, 0, jobs, SilentReporter())
    (record,) = RunStore(tmp_path).records()
    assert (record.spec["seed"], record.state) == (0, "failed") and "ZeroDivisionError" in record.error
    assert all(RunStore(tmp_path).has_pretrain(job.key) for job in jobs)


def test_a_stage_before_training_is_run_also_where_no_step_is_taken(tmp_path: Path) -> None:
    text = PREPARED.replace("    class Config", "    trains = False\n\n    class Config", 1)
    write_package(tmp_path / "site", "strange", {"objectives/agree.py": text})
    with known(tmp_path / "site"):
        (job,) = jobs_of_plan(small.plan("agree"))
        store = worked(tmp_path / "runs", 0, [job], SilentReporter())
        (record,) = store.records()
        assert record.state == "ok", record.error
        kept, _ = store.read_pretrain(job.key)
        assert kept["part.agree.seen"].tolist() == [1, -1, -1]


@pytest.mark.slow
def test_after_a_lost_device_another_process_does_the_rest(tmp_path: Path) -> None:
    text = BUGGY + "\n\nfrom fairssl.execute.worker import Worker\n\nWorker.device_lost = lambda self: True\n"
    write_package(tmp_path / "site", "strange", {"objectives/agree.py": text})
    words = ("--method", "agree,simclr", "--seeds", "2")
    env = {"PYTHONPATH": str(tmp_path / "site")}

    def states(out: Path) -> list[tuple[str, str]]:
        return sorted((record.spec["method"]["name"], record.state) for record in RunStore(out).records())

    every = [("agree", "failed")] * 2 + [("simclr", "ok")] * 2
    finish(start(tmp_path / "workers", *words, "--workers", "1", **env), 1)
    assert states(tmp_path / "workers") == every
    out = tmp_path / "here"
    for n_failed in (1, 2):
        _, err = finish(start(out, *words, **env), 1)
        assert "failed, and cpu with it; the same command goes on with the rest" in err
        assert states(out).count(("agree", "failed")) == n_failed
    finish(start(out, *words, **env), 1)
    assert states(out) == every


@pytest.mark.slow
def test_a_killed_pack_goes_on_run_by_run(tmp_path: Path) -> None:
    words = ("--method", "simclr", "--seeds", "2", "--epochs", "120", "--workers", "1", "--pack", "2")
    finish(start(tmp_path / "whole", *words))
    process = start(tmp_path / "killed", *words, "--checkpoint-epochs", "1")
    os.kill(until(lambda: training(tmp_path / "killed"))[0], signal.SIGKILL)  # type: ignore[index]
    _, err = finish(process)
    assert err.count("another one goes on from its checkpoint") == 2
    assert bits(tmp_path / "killed") == bits(tmp_path / "whole")


def test_a_second_sigterm_waits_for_the_step_and_a_ctrl_c_after_it_does_not() -> None:
    stop = GracefulStop()
    with stop.listening(), stop.training():
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGTERM)
        assert stop() and stop.exit_code == 75
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)
    assert stop.exit_code == 75
