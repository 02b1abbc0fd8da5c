"""The scripts of benchmarks/perf at their smallest: each writes what it promises, and its ratios follow from its parts."""

from __future__ import annotations

import importlib
import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from reference.checkout import PERF

SMALL = ("--set", "data.n_train=64", "--set", "data.n_val_per_cell=6", "--set", "data.n_test_per_cell=10")


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """`measured(script, *flags)`: run a script in this process; its JSON, once that agrees with what it prints."""

    def run(script: str, *flags: str) -> dict[str, Any]:
        path = tmp_path / "found.json"
        monkeypatch.syspath_prepend(str(PERF))
        monkeypatch.setattr(sys, "argv", [script, "--json", str(path), *flags])
        runpy.run_path(str(PERF / f"{script}.py"), run_name="__main__")
        found: dict[str, Any] = json.loads(path.read_text())
        assert found["benchmark"] == script
        assert {"fairssl", "torch", "torchvision", "timm", "python"} <= set(found["versions"])
        assert found["hardware"]["cpus"] >= 1 and found["hardware"]["memory_gb"] > 0
        printed = capsys.readouterr().out
        assert found["versions"]["torch"] in printed
        for row in found["rows"]:
            assert str(next(iter(row.values()))) in printed
        assert not list(tmp_path.glob(".*.partial"))
        return found

    return run


def positive(spread: dict[str, Any]) -> bool:
    """Whether it is a median within its range, of times or speeds above 0."""
    values = spread["all"]
    return 0 < spread["low"] == min(values) <= spread["median"] <= spread["high"] == max(values)


def test_metrics_times_every_metric_and_every_noise_floor(measured: Any) -> None:
    from fairssl import scoring

    found = measured("metrics", "--n", "200", "--replicates", "3", "--permutations", "2", "--repeats", "2")
    assert [(row["what"], row["groups"]) for row in found["rows"]] == [
        ("bootstrap", 2), ("noise floor", 2), ("bootstrap", 4), ("noise floor", 4),
    ]  # fmt: skip
    assert found["config"]["n"] == 200
    for row in found["rows"]:
        assert positive(row["seconds"]) and positive(row["cpu_seconds"])
        assert len(row["seconds"]["all"]) == 2
    assert found["rows"][0]["metrics"] == len(scoring.columns()) > found["rows"][1]["metrics"] > 0


def test_coverage_measures_every_metric_beside_the_percentile_interval(measured: Any, tmp_path: Path) -> None:
    from fairssl import scoring

    table = tmp_path / "coverage.md"
    found = measured(
        "coverage", "--sizes", "80,400", "--sets", "5", "--replicates", "20", "--populations", "fair,fair-4-max,iid",
        "--markdown", str(table),
    )  # fmt: skip
    assert {row["metric"] for row in found["rows"]} == {one.symbol for one in scoring.columns()}
    assert len(found["rows"]) == 3 * 2 * len(scoring.columns())
    for row in found["rows"]:
        assert (row["coverage"] is None) == (row["none"] == 100) and 0 <= row["percentile_coverage"] <= 100
        if row["population"] == "fair" and row["metric"] in ("DP", "WD", "GAUC"):
            assert row["truth"] == 0 and row["coverage"] >= 60
    ece = [row for row in found["rows"] if row["metric"] == "ECEGap"]
    assert all(row["none"] == 100 for row in ece)
    kl = {row["n"]: row["none"] for row in found["rows"] if (row["population"], row["metric"]) == ("fair", "KL")}
    assert kl[80] == 100  # 40 in each group tell too little of 100 buckets
    text = table.read_text()
    assert text.count("| metric | n = 80 | n = 400 |") == 2 and "## fair-4-max" in text
    assert "coverage.py --sets 5`: simulated test sets of each population and size, 20 replicates" in text


def test_data_counts_the_images_and_opens_their_pack_faster_than_it_made_it(measured: Any) -> None:
    found = measured("data", "--n", "60", "--image-size", "16", "--repeats", "1")
    assert [row["source"] for row in found["rows"]] == ["folder", "zip"]
    for row in found["rows"]:
        assert row["images"] == 60
        assert row["images_per_second"]["median"] == pytest.approx(60 / row["seconds"]["median"])
        assert 0 < row["again_seconds"]["median"] < row["seconds"]["median"]
        assert 0.01 < row["bare_gb"] <= row["peak_gb"]["median"] < 1
        assert row["pack_gb"] == pytest.approx(60 * 3 * 16**2 / 1e9)


def test_step_compares_the_product_with_the_model_alone_and_a_plain_loop(measured: Any) -> None:
    found = measured(
        "step", "--device", "cpu", "--shapes", "16x8", "--n", "32", "--encoder", "small_cnn",
        "--precision", "float32", "--seconds", "0.01", "--repeats", "2", "--warm-up", "1", "--loop-steps", "1",
        "--workers", "0",
    )  # fmt: skip
    simclr, sofclr = found["rows"]
    assert (simclr["method"], simclr["views_per_step"]) == ("simclr", 16)
    assert (sofclr["method"], sofclr["views_per_step"]) == ("sofclr", 32)  # the annotated batch is as large
    for row in found["rows"]:
        assert (row["size"], row["batch"], row["augmentation"], row["step"]) == (16, 8, "eager", "eager")
        assert positive(row["product"]) and positive(row["ceiling"])
        ratios = [a / b for a, b in zip(row["product"]["all"], row["ceiling"]["all"], strict=True)]
        assert row["ratio"]["all"] == pytest.approx(ratios)
    assert positive(simclr["loop"])
    assert simclr["speedup"] == pytest.approx(simclr["product"]["median"] / simclr["loop"]["median"])
    assert sofclr["loop"] is None and sofclr["speedup"] is None


@pytest.mark.parametrize(
    ("script", "flags", "message"),
    [
        ("step", ("--shapes", "16x400", "--n", "100"), "--n 100: fewer images than a batch"),
        ("step", ("--methods", "nope"), "step.py: error: unknown method 'nope'"),
        ("coverage", ("--populations", "unfair"), "coverage.py: error: --populations 'unfair': known are fair, slight"),
        ("packing", ("--seeds", "0"), "'0': a whole number, at least 1"),
        ("stages", ("--epochs", "1"), "--epochs 1: at least 2"),
    ],
)
def test_a_mistake_is_told_in_one_line_before_anything_is_measured(
    script: str, flags: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    call = [sys.executable, str(PERF / f"{script}.py"), "--json", str(tmp_path / "found.json"), *flags]
    done = subprocess.run(call, capture_output=True, text=True)
    assert done.returncode == 2 and message in done.stderr.splitlines()[-1]
    assert not list(tmp_path.iterdir())


def test_lightlys_loop_needs_lightly(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['lightly'] = None\n")
    call = [sys.executable, str(PERF / "step.py"), "--lightly"]
    done = subprocess.run(call, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith("--lightly: lightly is not installed: pip install lightly")


def test_stages_of_one_run_add_up(measured: Any) -> None:
    found = measured(
        "stages", "--device", "cpu", "--method", "sofclr", "--dataset", "synthfaces", "--image-size", "16",
        "--batch-size", "16", "--encoder", "small_cnn", "--precision", "float32", "--epochs", "2", *SMALL,
    )  # fmt: skip
    seconds = {row["stage"]: row["seconds"] for row in found["rows"]}
    alone = {"plan", "load, first", "build", "epoch, first", "epoch, later", "embed", "probe", "leakage"}
    judged = {"metrics", "bootstrap", "noise floor"}
    whole = {"whole run", "of it, training loop", "of it, the rest", "of the rest, writing"}
    assert set(seconds) == alone | judged | whole  # drawn images have no pack to open again
    assert all(value > 0 for value in seconds.values())
    assert seconds["whole run"] == pytest.approx(seconds["of it, training loop"] + seconds["of it, the rest"])
    assert found["outside"] == pytest.approx(seconds["of it, the rest"])
    assert found["outside"] > seconds["of the rest, writing"]
    assert found["run"]["image_size"] == 16


@pytest.mark.slow
def test_stages_extrapolates_a_table_from_a_slice_that_bench_ran(measured: Any) -> None:
    found = measured(
        "stages", "--table", "--device", "cpu", "--dataset", "synthfaces", "--image-size", "16", "--batch-size", "16",
        "--encoder", "small_cnn", "--precision", "float32", "--epochs", "2", "--seeds", "2", "--pack", "2", *SMALL,
    )  # fmt: skip
    assert [row["method"] for row in found["rows"]] == ["simclr", "sogclr", "byol", "simclr+ccl", "sofclr"]
    for row in found["rows"]:
        assert row["runs"] == 2 and row["epochs"] == 2 and row["packed"] == 2
        assert row["training_seconds"] > 0 and row["evaluation_seconds"] > 0
    training = sum(row["training_seconds"] for row in found["rows"])
    assert found["slice_seconds"] > training
    rest = found["slice_seconds"] - training
    assert found["other_seconds"] == pytest.approx(rest)
    assert 2 * rest < found["extrapolated_seconds"] < 2 * (training * 100 + rest)  # no epoch as long as both


@pytest.mark.slow
def test_a_table_slice_that_is_cut_off_says_so_and_keeps_what_it_has(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    words = (
        "--table",
        "--device",
        "cpu",
        "--dataset",
        "synthfaces",
        "--image-size",
        "16",
        "--batch-size",
        "16",
        *SMALL,
    )
    words += ("--encoder", "small_cnn", "--precision", "float32", "--epochs", "2000", "--seeds", "1", "--limit", "12")
    done = subprocess.run([sys.executable, str(PERF / "stages.py"), "--json", str(path), *words], capture_output=True)
    assert done.returncode == 1 and b"the slice did not end well (exit 75), " in done.stderr
    if path.exists():  # at least one run had ended
        found = json.loads(path.read_text())
        assert found["rows"] and "extrapolated_seconds" not in found


def test_an_extrapolated_run_has_one_first_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(PERF))
    stages = importlib.import_module("stages")
    of_two = SimpleNamespace(timings={"train_seconds": 10.0, "first_epoch_seconds": 7.0}, spec={"train": {"epochs": 2}})
    assert stages.of_epochs(of_two, 100) == 7 + 99 * 3


@pytest.mark.slow
def test_packing_times_seeds_at_once_in_turn_and_apart(measured: Any) -> None:
    found = measured(
        "packing", "--device", "cpu", "--seeds", "2", "--size", "16", "--batch", "8", "--n", "32", "--encoder",
        "small_cnn", "--precision", "float32", "--steps", "2", "--warm-up", "1", "--repeats", "2",
    )  # fmt: skip
    rows = {row["what"]: row for row in found["rows"]}
    assert list(rows) == ["one seed", "one after the other", "packed", "processes"]
    one = rows["one seed"]["seconds"]["median"]
    for row in rows.values():
        assert positive(row["seconds"])
        assert row["times_one"]["median"] == pytest.approx(row["seconds"]["median"] / one)
    assert rows["one seed"]["memory_gb"] >= 0 and rows["packed"]["memory_gb"] >= 0  # here, of this process's peak
    assert rows["processes"]["memory_gb"] > 0.1


@pytest.mark.slow
def test_startup_times_the_commands_that_train_nothing(measured: Any) -> None:
    found = measured("startup", "--repeats", "1")
    assert [row["command"] for row in found["rows"]] == [
        "fairssl --help", "fairssl list", "fairssl show method sofclr", "fairssl bench --dry-run",
    ]  # fmt: skip
    assert all(positive(row["seconds"]) and positive(row["cpu_seconds"]) for row in found["rows"])


def test_gpu_check_refuses_a_machine_without_a_gpu(tmp_path: Path) -> None:
    hidden = {"CUDA_VISIBLE_DEVICES": "", "PYTHON": sys.executable, "OUT": str(tmp_path / "out")}
    environment = {name: value for name, value in os.environ.items() if name != "WHEELS"}
    done = subprocess.run(
        ["bash", str(PERF / "gpu_check.sh")], env={**environment, **hidden}, capture_output=True, text=True
    )  # fmt: skip
    assert done.returncode == 1
    assert "nothing was measured" in done.stderr
    assert not list((tmp_path / "out").iterdir())


# What passes for a Python with a GPU: notes what it is called with, has no pytest-timeout, and trains one run before it hangs.
PYTHON = """#!/usr/bin/env bash
case "$*" in
  *find_spec*) exit 0 ;;
  *pytest_timeout*) exit ${NO_PLUGIN:-0} ;;
  "-c import pytest") exit 0 ;;
esac
echo "$*" >>"$CALLS"
if [[ "$*" == *"bench --grid"* ]]; then
  mkdir -p "$OUT/runs/results/key" && touch "$OUT/runs/results/key/record.json"
  sleep ${HANG:-0}
fi
"""


def gpu_check(tmp_path: Path, *names: str, **env: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """`gpu_check.sh` with that Python, on data that are there; how it ended, and what it called."""
    python, calls, data = tmp_path / "python", tmp_path / "calls", tmp_path / "data"
    python.write_text(PYTHON)
    python.chmod(0o755)
    data.mkdir(exist_ok=True)
    (data / "utkface.zip").touch()
    calls.write_text("")
    given = {"PYTHON": str(python), "OUT": str(tmp_path / "out"), "CALLS": str(calls), "FAIRSSL_DATA": str(data), **env}
    environment = {name: value for name, value in os.environ.items() if name not in ("WHEELS", "LIMIT")}
    done = subprocess.run(
        ["bash", str(PERF / "gpu_check.sh"), *names],
        env={**environment, **given},
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done, calls.read_text().splitlines()


def test_gpu_check_does_what_is_wanted_most_first(tmp_path: Path) -> None:
    done, calls = gpu_check(tmp_path)
    assert done.returncode == 0, done.stderr
    assert calls[0] == "-m fairssl doctor --gpu"
    assert [Path(call.split()[0]).stem for call in calls[1:3]] == ["step", "packing"]
    bench, board, tests = calls[3:]
    assert "bench --grid paper_utkface_fast --attr ethnicity --pack 4" in bench and "board build" in board
    assert tests == "-m pytest -v --tb=short -W default --session-timeout=80 tests/gpu"
    _, calls = gpu_check(tmp_path, "tests", NO_PLUGIN="1")
    assert calls == ["-m pytest -v --tb=short -W default tests/gpu"]
    _, calls = gpu_check(tmp_path, "table", "step", FAIRSSL_DATA=str(tmp_path / "none"))
    assert [Path(call.split()[0]).stem for call in calls] == ["step", "stages"]


@pytest.mark.slow
def test_gpu_check_keeps_what_has_ended_when_time_runs_out(tmp_path: Path) -> None:
    # A twelfth is left for the board: 3 s, which a process that does nothing has on a busy machine too.
    done, calls = gpu_check(tmp_path, "table", HANG="50", LIMIT="30")
    assert done.returncode == 1 and "failed: table" in done.stdout
    assert len(calls) == 2 and f"board build {tmp_path / 'out' / 'runs'}" in calls[1]
    done, calls = gpu_check(tmp_path, "doctor", "step", LIMIT="0")
    assert done.returncode == 1 and calls == [] and "step: not begun, no time was left" in done.stdout


def test_gpu_check_refuses_a_name_that_it_does_not_know(tmp_path: Path) -> None:
    done, calls = gpu_check(tmp_path, "step", "tabel")
    assert done.returncode == 2 and calls == []
    assert done.stderr == "gpu_check: unknown name 'tabel'; known: doctor step packing table tests\n"
    assert not (tmp_path / "out").exists()
