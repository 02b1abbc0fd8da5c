"""`fairssl bench` from the command line: the table, what is shared, what is not done twice, what a kill leaves, bad input."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from reference import small
from reference.celeba_layout import COLUMNS, values, write_celeba

import fairssl
from fairssl.cli import run
from fairssl.store.runs import RunStore
from fairssl.types import UserError

TINY = ["--seeds", "2", "--epochs", "2", "--image-size", "16", "--batch-size", "16", "--annotated", "0.3"]
SETS = [word for text in small.SETS for word in ("--set", text)]


def bench(out: Path, *words: str) -> int:
    return run(["bench", *TINY, *SETS, "--out", str(out), *words])


def _error(capfd: pytest.CaptureFixture[str], words: list[str]) -> str:
    """The one line that a wrong call prints; nothing on stdout, exit code 2."""
    assert run(words) == 2
    captured = capfd.readouterr()
    assert captured.out == ""
    lines = captured.err.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("fairssl: error: ") and "Traceback" not in captured.err
    return lines[0]


def test_a_grid_gives_the_papers_table_and_a_second_call_trains_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--method", "simclr,sofclr", "--attr", "male", "--attr", "young"]
    assert bench(tmp_path, *words) == 0
    first = capfd.readouterr().out
    header = "| Method | Acc | ΔED | ΔEO | ΔDP | IntraAUC | InterAUC | GAUC | WD | KL |"
    assert first.count(header) == 2  # a table per attribute
    assert (tmp_path / "table.md").read_text() == first
    assert "±" in first and "**" in first and "\x1b" not in first
    rows = [line for line in first.splitlines() if line.startswith("| s")]
    assert [row.split("|")[1].removesuffix("† ").strip() for row in rows] == ["simclr", "sofclr"] * 2
    records = list(RunStore(tmp_path).records())
    assert len(records) == 2 * 2 * 2 and all(r.state == "ok" for r in records)
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "results").rglob("*") if p.is_file()}

    monkeypatch.setattr("fairssl.train.step.TrainStep.__call__", None)  # training anything would now fail
    assert bench(tmp_path, *words) == 0
    assert capfd.readouterr().out == first
    assert before == {p: p.stat().st_mtime_ns for p in (tmp_path / "results").rglob("*") if p.is_file()}


def test_the_same_grid_elsewhere_gives_the_same_bytes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        assert bench(tmp_path / name, "--method", "sofclr") == 0
    a, b = (sorted(p for p in (tmp_path / name).rglob("*") if p.is_file()) for name in ("a", "b"))
    assert [p.relative_to(tmp_path / "a") for p in a] == [p.relative_to(tmp_path / "b") for p in b]
    for ours, theirs in zip(a, b, strict=True):
        if ours.name != "record.json":  # it holds timings
            assert ours.read_bytes() == theirs.read_bytes(), ours.name
    one, two = (json.loads(next((tmp_path / n / "results").rglob("record.json")).read_text()) for n in ("a", "b"))
    for record in (one, two):
        del record["timings"]
    assert one == two


def test_json_rows_are_flat_and_in_fractions(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert bench(tmp_path, "--method", "simclr", "--json") == 0
    rows = json.loads(capfd.readouterr().out)
    assert len(rows) == 1
    row = rows[0]
    assert {k: row[k] for k in ("method", "dataset", "target", "attr", "n_seeds", "failed")} == {
        "method": "simclr",
        "dataset": "synthfaces",
        "target": "attractive",
        "attr": "male",
        "n_seeds": 2,
        "failed": 0,
    }
    assert set(row) - {"undefined"} >= {"Acc", "ED", "EO", "DP", "IntraAUC", "InterAUC", "GAUC", "WD", "KL"}
    assert 0 < row["Acc"]["mean"] < 1 and row["Acc"]["sd"] >= 0
    assert bench(tmp_path, "--method", "simclr", "--json", "--seeds", "1") == 0
    assert json.loads(capfd.readouterr().out)[0]["Acc"]["sd"] is None


def test_the_table_is_what_score_says_of_the_kept_predictions(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert bench(tmp_path, "--method", "simclr", "--seeds", "1", "--json") == 0
    row = json.loads(capfd.readouterr().out)[0]
    path = next((tmp_path / "results").rglob("predictions.csv.gz"))
    words = ["score", str(path), "--target", "target", "--score", "score", "--group", "group", "--json"]
    assert run(words) == 0
    scored = json.loads(capfd.readouterr().out)["metrics"]
    for symbol in ("Acc", "ED", "EO", "DP", "IntraAUC", "InterAUC", "GAUC", "WD", "KL"):
        assert row[symbol]["mean"] == pytest.approx(scored[symbol], abs=1e-12)


def test_methods_that_share_a_pretraining_train_once_with_equal_results(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The attribute-blind simclr with two probes: together, and each alone in its own folder."""
    linear, knn = (
        ["--method", "simclr", "--seeds", "1"],
        ["--method", "simclr", "--seeds", "1", "--set", "probe.kind=knn"],
    )
    assert bench(tmp_path / "shared", *linear) == 0
    assert bench(tmp_path / "shared", *knn) == 0
    assert len(list((tmp_path / "shared" / "pretrain").iterdir())) == 1
    assert bench(tmp_path / "alone", *knn) == 0
    shared = {r.key: r.metrics for r in RunStore(tmp_path / "shared").records()}
    (alone,) = RunStore(tmp_path / "alone").records()
    assert len(shared) == 2 and shared[alone.key] == alone.metrics


def test_one_method_of_every_kind_ends_with_a_row(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A supervised one with a penalty, an adversary with a fresh head, a VAE, an eraser, a refit, and no training at all."""
    methods = "ce+eod,ml_afl,grl,dfr,vfae,fscl+,simclr+leace,random"
    words = ["--method", methods, "--seeds", "1", "--epochs", "1", "--set", "train.min_steps=3", "--json"]
    assert bench(tmp_path, *words) == 0
    rows = json.loads(capfd.readouterr().out)
    seen = ["ce+eod", "ml_afl", "grl", "dfr", "fscl+"]  # by the labels that training saw, then as asked
    assert [row["method"] for row in rows if row["method"] in seen] == seen
    assert sorted(row["method"] for row in rows) == sorted(methods.split(","))
    assert all(row["failed"] == 0 and 0 <= row["Acc"]["mean"] <= 1 for row in rows)


def test_weight_zero_adds_a_row_but_no_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["--method", "sogclr,sofclr", "--set", "adversary.weight=0", "--seeds", "1", "--json"]
    assert bench(tmp_path, *words) == 0
    a, b = json.loads(capfd.readouterr().out)
    rows = {row.pop("method"): row for row in (a, b)}
    assert rows["sofclr"].pop("settings") == {"adversary.weight": 0} and "settings" not in rows["sogclr"]
    assert rows["sogclr"] == rows["sofclr"]
    assert len(list((tmp_path / "results").iterdir())) == 1


def test_a_record_says_what_was_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert bench(tmp_path, "--method", "sofclr", "--seeds", "1") == 0
    (record,) = RunStore(tmp_path).records()
    assert record.spec["train"]["epochs"] == 2 and record.spec["method"]["group"] == "annotated"
    assert record.spec["method"]["heads"][0]["params"]["hidden_dim"] == 512  # defaults are written in
    assert record.cells == {"0": {"not male": 10, "male": 10}, "1": {"not male": 10, "male": 10}}
    assert record.facts["n_train"] == 48 and record.facts["n_annotated"] == 14
    assert {"torch", "numpy", "fairssl", "python", "device"} <= set(record.env)
    assert record.validation is not None and record.validation.metrics["Acc"] is not None
    assert 0 <= record.leakage["accuracy"] <= 1  # type: ignore[index,operator]
    assert record.timings["train_seconds"] > 0
    assert record.intervals is not None and record.noise_floor is not None
    low, high = (record.intervals["Acc"][name] for name in ("low", "high"))
    assert low <= record.metrics["Acc"] <= high and record.intervals["Acc"]["n_replicates"] == 1000  # type: ignore[operator]
    floor = record.noise_floor["DP"]
    assert 0 < floor["mean"] < floor["high"] < 1 and floor["n_replicates"] == 200


def test_a_cell_that_fails_is_a_row_that_says_so_and_stops_no_other(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = __import__("fairssl_plugins.objectives.simclr", fromlist=["x"])
    broken = module.SimCLR.forward
    monkeypatch.setattr(module.SimCLR, "forward", lambda self, batches: 1 / 0)
    assert bench(tmp_path, "--method", "simclr,sogclr", "--seeds", "1") == 1
    out, err = capfd.readouterr()
    assert "failed (1 of 1 seeds)" in out and "ZeroDivisionError" in err
    states = {r.spec["method"]["objective"]["name"]: r for r in RunStore(tmp_path).records()}
    assert states["sogclr"].state == "ok" and states["simclr"].state == "failed"
    assert "Traceback" in (states["simclr"].error or "")
    monkeypatch.setattr(module.SimCLR, "forward", broken)
    assert bench(tmp_path, "--method", "simclr,sogclr", "--seeds", "1") == 1  # not tried again unasked
    assert bench(tmp_path, "--method", "simclr,sogclr", "--seeds", "1", "--retry-failed") == 0
    assert "failed" not in (tmp_path / "table.md").read_text()


def test_a_diverged_cell_has_its_step_and_loss(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = __import__("fairssl_plugins.objectives.simclr", fromlist=["x"])
    whole = module.SimCLR.forward

    def forward(self: object, batches: object) -> object:
        terms = whole(self, batches)
        terms.primal = {k: v * float("nan") for k, v in terms.primal.items()}
        return terms

    monkeypatch.setattr(module.SimCLR, "forward", forward)
    assert bench(tmp_path, "--method", "simclr", "--seeds", "1") == 1
    (record,) = RunStore(tmp_path).records()
    assert record.state == "diverged" and "step 1 of 6" in (record.error or "") and "nan" in (record.error or "")
    assert "diverged (1 of 1 seeds)" in capfd.readouterr().out


def test_dry_run_plans_and_writes_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "none"
    assert bench(out, "--method", "simclr,sofclr", "--dry-run", "--json") == 0
    plan = json.loads(capfd.readouterr().out)
    assert (plan["cells"], plan["pretrainings"], plan["done"]) == (4, 4, 0)
    assert not out.exists()
    words = ["bench", "--dataset", "celeba", "--data-dir", str(tmp_path), "--dry-run", "--json", "--out", str(out)]
    assert run([*words, "--method", "simclr,sogclr,byol,simclr+ccl,sofclr", "--attr", "male,young"]) == 0
    plan = json.loads(capfd.readouterr().out)
    assert plan["cells"] == 40 and plan["pretrainings"] == 28 and "celeba" in plan["absent"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--method", "simclar"], "did you mean 'simclr'"),
        (["--dataset", "celba"], "did you mean 'celeba'"),
        (["--attr", "mal"], "did you mean 'male'"),
        (["--target", "atractive"], "did you mean 'attractive'"),
        (["--target", "male", "--attr", "male"], "cannot be its own sensitive attribute"),
        (["--encoder", "resnet19"], "resnet18"),
        (["--seeds", "0"], "--seeds 0: must be at least 1"),
        (["--seeds", "x"], "--seeds"),
        (["--epochs", "0"], "--epochs 0: must be at least 1"),
        (["--batch-size", "1"], "--batch-size 1: must be at least 2"),
        (["--image-size", "4"], "--image-size 4: must be at least 8"),
        (["--annotated", "0"], "--annotated 0.0: must be a share"),
        (["--annotated", "1.5"], "must be a share"),
        (["--preset", "papr"], "did you mean 'paper'"),
        (["--set", "ccl.weight=1"], "no selected method has a part 'ccl'"),
        (["--set", "adversary.weigth=1"], "did you mean 'weight'"),
        (["--set", "adversary"], "is not of the form"),
        (["--method", "simclr,simclr"], "names 'simclr' twice"),
        (["--method", "simclr+simclr"], "unknown head 'simclr'"),
        (["--nonsense"], "--nonsense"),
        (["--seeds", "99999999999999999999"], "at most 10000"),
        (["--method", ""], "--method '' names nothing in one place"),
        (["--method", "simclr,,sogclr"], "names nothing in one place"),
        (["--encoder", ""], "--encoder is empty"),
        (["--preset", ""], "--preset is empty"),
        (["--method", "sofclr+ccl:-1"], "ccl.weight: Input should be greater than or equal to 0"),
        (["--device", "cuda:7"], "--device 'cuda:7' cannot be used"),
        (["--device", "quantum"], "--device 'quantum' cannot be used"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(
    words: list[str], message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "runs"
    assert message in _error(capfd, ["bench", "--out", str(out), *words])
    assert not out.exists() or not any(p.is_file() for p in out.rglob("*"))


@pytest.mark.parametrize("attribute", ["ethnicity5", "ethnicity+age"])
def test_adjacent_pairs_of_nominal_groups_are_refused_before_anything_is_looked_up(
    attribute: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """By flags, from a grid file and from Python, as `fairssl score --nominal --pairs adjacent` is."""
    said = f" adjacent needs groups in order, and the {5 if '5' in attribute else 4} groups of utkface's {attribute}"
    grid, out = tmp_path / "grid.toml", tmp_path / "runs"
    grid.write_text(
        f'methods = ["simclr"]\ndatasets = ["utkface"]\nattributes = ["age4", "{attribute}"]\npairs = "adjacent"\n'
    )
    flags = ["--dataset", "utkface", "--attr", attribute, "--pairs", "adjacent"]
    in_file = f"--grid {grid}: pairs ="
    for words, how in ((flags, "--pairs"), ([*flags, "--dry-run"], "--pairs"), (["--grid", str(grid)], in_file)):
        assert how + said in _error(capfd, ["bench", "--out", str(out), *words])
    with pytest.raises(UserError, match="needs groups in order"):
        fairssl.bench("simclr", "utkface", attribute, pairs="adjacent", out=out)
    assert not out.exists()


def test_adjacent_pairs_of_ordered_groups_and_of_two_groups_can_be_planned(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["bench", "--dataset", "utkface", "--attr", "age4,ethnicity", "--pairs", "adjacent", "--dry-run"]
    assert run([*words, "--method", "simclr", "--seeds", "1", "--out", str(tmp_path / "runs")]) == 0
    assert capfd.readouterr().out.startswith("2 runs, 2 distinct pretrainings;")


def test_a_plan_for_another_machine_says_what_this_one_lacks(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["bench", *TINY, "--method", "sofclr", "--dry-run", "--out", str(tmp_path / "runs")]
    assert run([*words, "--device", "cuda:77"]) == 0
    out, err = capfd.readouterr()
    assert out.startswith("2 runs, 2 distinct pretrainings; ")
    assert "a run on this machine is refused: --device 'cuda:77' cannot be used" in err
    for executor in ("local", "ray"):
        line = _error(capfd, [*words, "--device", "foo", "--executor", executor])
        assert "--device 'foo' cannot be used: no such device; use auto, cpu, cuda or cuda:1" in line


@pytest.mark.parametrize("dataset", ["utkface", "celeba"])
def test_missing_data_says_where_to_get_it_and_where_to_put_it(
    dataset: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    line = _error(capfd, ["bench", "--dataset", dataset, "--data-dir", str(empty), "--out", str(tmp_path / "runs")])
    assert str(empty) in line and "http" in line
    missing = tmp_path / "nowhere"
    line = _error(capfd, ["bench", "--dataset", dataset, "--data-dir", str(missing), "--out", str(tmp_path / "runs")])
    assert str(missing) in line


def test_an_attribute_with_one_value_is_one_line_and_leaves_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    table = values(80)
    table[:, COLUMNS.index("Male")] = 1
    write_celeba(tmp_path / "data", 80, attributes=table)
    words = ["bench", "--dataset", "celeba", "--data-dir", str(tmp_path / "data"), "--out", str(tmp_path / "runs")]
    assert "'male' has fewer than two known groups in the train split" in _error(capfd, [*words, "--preset", "smoke"])
    assert not (tmp_path / "runs").exists()


def test_no_folder_is_no_place_for_runs(capfd: pytest.CaptureFixture[str]) -> None:
    assert "'--out': the path is empty" in _error(capfd, ["bench", "--out", ""])


def test_a_result_whose_predictions_are_gone_is_judged_again(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert bench(tmp_path, "--method", "simclr", "--seeds", "1") == 0
    first = capfd.readouterr().out
    path = next((tmp_path / "results").rglob("predictions.csv.gz"))
    before = path.read_bytes()
    path.unlink()
    assert bench(tmp_path, "--method", "simclr", "--seeds", "1") == 0
    assert capfd.readouterr().out == first and path.read_bytes() == before


def test_a_batch_larger_than_the_data_is_said(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert bench(tmp_path, "--method", "simclr", "--seeds", "1", "--batch-size", "64") == 0
    assert "the 'all' stream has 48 images: that is its batch, each step" in capfd.readouterr().err


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "file"
    file.write_text("")
    line = _error(capfd, ["bench", *TINY, *SETS, "--out", str(file / "runs")])
    assert str(file) in line


def _start(out: Path, *words: str) -> subprocess.Popen[str]:
    call = [sys.executable, "-m", "fairssl", "bench", *TINY, *SETS, "--out", str(out), *words]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)


def _table(out: Path, *words: str) -> str:
    process = _start(out, *words)
    text, errors = process.communicate()
    assert process.returncode == 0, errors
    return text


@pytest.mark.slow
def test_killed_at_any_moment_the_next_call_gives_the_uninterrupted_table(tmp_path: Path) -> None:
    words = ("--method", "simclr,sofclr", "--epochs", "30")
    started = time.monotonic()
    expected = _table(tmp_path / "whole", *words)
    whole = time.monotonic() - started
    for number in range(6):
        out = tmp_path / f"killed{number}"
        process = _start(out, *words)
        time.sleep(whole * (number + 1) / 7)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        for folder in ("pretrain", "results"):  # whatever is there is whole
            for path in (out / folder).glob("[!.]*"):
                assert (path / ("record.json" if folder == "results" else "encoder.safetensors")).stat().st_size > 0
        assert _table(out, *words) == expected


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
def test_a_signal_leaves_a_checkpoint_and_its_own_exit_code(number: int, code: int, tmp_path: Path) -> None:
    words = ("--method", "simclr", "--epochs", "150", "--seeds", "1")
    process = _start(tmp_path, *words)
    deadline = time.monotonic() + 60
    while not any((tmp_path / "work").rglob("history.csv")) and time.monotonic() < deadline:  # the first epoch is over
        time.sleep(0.05)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == code, errors
    assert "the same command goes on from here" in errors and "Traceback" not in errors
    assert list((tmp_path / "work").rglob("checkpoint-*.safetensors"))
    assert "simclr" in _table(tmp_path, *words)


@pytest.mark.slow
def test_two_calls_at_once_share_the_work(tmp_path: Path) -> None:
    words = ("--method", "simclr,sogclr", "--epochs", "20")
    one, two = _start(tmp_path, *words), _start(tmp_path, *words)
    (first, first_errors), (second, second_errors) = one.communicate(), two.communicate()
    assert (one.returncode, two.returncode) == (0, 0), first_errors + second_errors
    assert first == second
    trained = [r for r in RunStore(tmp_path).records() if "train_seconds" in r.timings]
    assert len(trained) == 4  # each pretraining was paid for once
