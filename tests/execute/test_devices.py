"""Runs that several processes train together, from the command line: equal tables, deaths, signals, torchrun."""

from __future__ import annotations

import csv
import gzip
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from reference.plugin_package import BUGGY, OBJECTIVE, PREPARED, write_package
from reference.started import LONG, TINY, alive, bits, finish, start, training, until
from safetensors.torch import load_file

pytestmark = pytest.mark.slow
TORCHRUN = [
    sys.executable,
    *["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "fairssl", "bench"],
]
GRID = ("--method", "sofclr,vae+mmd", "--epochs", "3")


def others(pid: int) -> list[int]:
    """The processes that the parent of `pid` has started besides it."""
    parent = Path(f"/proc/{pid}/stat").read_text().split()[3]
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().split()
        except OSError:
            continue
        if fields[3] == parent and fields[0] != str(pid):
            found.append(int(fields[0]))
    return found


def losses(out: Path) -> dict[str, list[list[float]]]:
    """Every history of a grid, by key."""
    return {
        path.parent.name: [[float(v) for v in row] for row in list(csv.reader(path.read_text().splitlines()))[1:]]
        for path in sorted(out.glob("pretrain/*/history.csv"))
    }


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("two")
    finish(start(out, *GRID, "--devices", "2"))
    return out


def test_two_processes_leave_what_one_leaves(together: Path, tmp_path: Path) -> None:
    """The same files under the same keys, losses equal up to rounding, and every test image judged once."""
    finish(start(tmp_path / "one", *GRID))
    one, two = losses(tmp_path / "one"), losses(together)
    assert one.keys() == two.keys() and len(one) == 2
    for key, rows in one.items():
        for row, other in zip(rows, two[key], strict=True):
            assert row == pytest.approx(other, rel=2e-3, abs=2e-3)
    assert bits(tmp_path / "one").keys() == bits(together).keys()
    for path in together.glob("results/*/predictions.csv.gz"):
        ids = [row["id"] for row in csv.DictReader(gzip.decompress(path.read_bytes()).decode().splitlines())]
        assert len(ids) == len(set(ids)) == 40


def test_torchrun_leaves_the_same_bits(together: Path, tmp_path: Path) -> None:
    call = [*TORCHRUN, *TINY, *GRID, "--out", str(tmp_path), "--json"]
    done = subprocess.run(call, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=300)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)) == 2  # one process prints
    assert bits(tmp_path) == bits(together)


def test_torchrun_tells_a_mistake_in_one_line_and_ends(tmp_path: Path) -> None:
    call = [*TORCHRUN, *TINY, "--dataset", "celeba", "--data-dir", str(tmp_path), "--out", str(tmp_path / "runs")]
    done = subprocess.run(call, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=120)
    assert done.returncode == 1  # torchrun's own
    ours = done.stderr.partition("torch/distributed/elastic")[0]
    assert "celeba" in ours and "Traceback" not in ours


def test_more_processes_than_images_is_a_mistake_told_in_one_line(tmp_path: Path) -> None:
    for more in ([], ["--dry-run"]):
        _, err = finish(start(tmp_path, "--devices", "5", "--batch-size", "2", "--method", "ce", *more), 2)
        assert "5 devices: a step of the 'annotated' stream has 2 images; at most as many devices" in err
    _, err = finish(start(tmp_path, "--devices", "15", "--method", "simclr,ce"), 2)  # of 48 images 14 are annotated
    assert "15 devices: a step of the 'annotated' stream has 14 images; at most as many devices" in err
    assert not list(tmp_path.iterdir())


def test_a_dead_process_takes_its_run_down_and_the_next_ones_go_on_from_the_checkpoint(tmp_path: Path) -> None:
    words = ("--method", "simclr", "--epochs", "150", "--devices", "2")
    whole, cut = start(tmp_path / "whole", *words), start(tmp_path / "cut", *words, "--checkpoint-minutes", "0.002")
    pid = until(lambda: training(tmp_path / "cut"))[0]  # type: ignore[index]
    until(lambda: list((tmp_path / "cut").rglob("checkpoint-*")))
    (other,) = others(pid)
    os.kill(other, signal.SIGKILL)
    _, err = finish(cut)
    assert "another one goes on from its checkpoint" in err
    finish(whole)
    assert bits(tmp_path / "cut") == bits(tmp_path / "whole")


def test_a_signal_stops_them_all_with_a_checkpoint(tmp_path: Path) -> None:
    process = start(tmp_path, *LONG, "--devices", "2")
    pid = until(lambda: training(tmp_path))[0]  # type: ignore[index]
    members = [pid, *others(pid)]
    assert len(members) == 2
    process.send_signal(signal.SIGTERM)
    _, err = finish(process, 75)
    assert "the same command goes on from here" in err
    assert not any(alive(one) for one in members)
    assert list(tmp_path.rglob("checkpoint-*.safetensors"))
    (file,) = tmp_path.rglob("checkpoint-*.safetensors")
    assert load_file(file)


def test_a_signal_to_their_whole_process_group_leaves_a_checkpoint_too(tmp_path: Path) -> None:
    """As `timeout` and schedulers send it: each gets it from the sender and once more from its parent."""
    process = start(tmp_path, *LONG, "--devices", "2", session=True)
    until(lambda: training(tmp_path))
    os.killpg(process.pid, signal.SIGTERM)
    _, err = finish(process, 75)
    assert "the same command goes on from here" in err
    assert list(tmp_path.rglob("checkpoint-*.safetensors"))


def test_they_die_with_their_parent(tmp_path: Path) -> None:
    process = start(tmp_path, *LONG, "--devices", "2")
    pid = until(lambda: training(tmp_path))[0]  # type: ignore[index]
    members = [pid, *others(pid)]
    process.kill()
    process.communicate()
    until(lambda: not any(alive(one) for one in members))


def test_a_cell_that_fails_in_all_of_them_is_recorded_and_the_others_are_done(tmp_path: Path) -> None:
    """A temperature that leaves float32 diverges, a part that raises fails."""
    write_package(tmp_path / "site", "strange", {"objectives/agree.py": BUGGY})
    out = tmp_path / "runs"
    words = ("--method", "simclr,agree,sogclr", "--set", "simclr.temperature=1e-40", "--devices", "2")
    _, err = finish(start(out, *words, PYTHONPATH=str(tmp_path / "site")), 1)
    records = {one["spec"]["method"]["name"]: one for one in map(json.loads, _texts(out, "results/*/record.json"))}
    assert {name: one["state"] for name, one in records.items()} == {
        "simclr": "diverged",
        "agree": "failed",
        "sogclr": "ok",
    }, err
    assert "AssertionError: a bug" in records["agree"]["error"]


def test_a_network_that_is_shared_and_used_directly_fails_its_run_and_says_why(tmp_path: Path) -> None:
    text = OBJECTIVE.replace("return self.layer(f)", "return self.layer(f) + sharded(self.layer, f)")
    text = text.replace("from fairssl.api import", "from fairssl.nn import sharded\nfrom fairssl.api import")
    write_package(tmp_path / "site", "strange", {"objectives/agree.py": text})
    out = tmp_path / "runs"
    finish(start(out, "--method", "agree", "--devices", "2", PYTHONPATH=str(tmp_path / "site")), 1)
    (record,) = map(json.loads, _texts(out, "results/*/record.json"))
    assert "a Linear goes through `sharded` and is also used directly" in record["error"]


def test_a_stage_before_training_is_run_by_the_first_of_them_for_all(tmp_path: Path) -> None:
    write_package(tmp_path / "site", "strange", {"objectives/agree.py": PREPARED})
    for n in ("1", "2"):
        words = ("--method", "agree", "--devices", n)
        finish(start(tmp_path / n, *words, PYTHONPATH=str(tmp_path / "site")))
    ((key, one),) = losses(tmp_path / "1").items()
    assert one == [pytest.approx(row, rel=2e-3, abs=2e-3) for row in losses(tmp_path / "2")[key]]
    kept = [load_file(tmp_path / n / "pretrain" / key / "encoder.safetensors") for n in ("1", "2")]
    for name in ("part.agree.noise", "part.agree.mean", "part.agree.seen"):
        assert kept[0][name].equal(kept[1][name])


def _texts(out: Path, pattern: str) -> list[str]:
    return [path.read_text() for path in out.glob(pattern)]
