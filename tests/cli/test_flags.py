"""Grids and flags as a user gives them: through a `fairssl` process, whose answers are read."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import timm
from reference.checkout import ROOT
from safetensors.torch import save_file

from fairssl import kinds
from fairssl.plan.request import GRID_KEYS, Request, grid_names
from fairssl.plan.resolve import resolve_all

TINY = [
    *("--epochs", "2", "--seeds", "1", "--image-size", "16", "--batch-size", "16", "--set", "encoder.width=4"),
    *("--set", "data.n_train=120", "--set", "data.n_val_per_cell=20", "--set", "data.n_test_per_cell=40"),
]


def fairssl(*words: str, cwd: Path, code: int = 0, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the command line as a process of its own, one thread, in `cwd`."""
    call = [sys.executable, "-m", "fairssl", *words]
    found = subprocess.run(
        call, cwd=cwd, env={**os.environ, "OMP_NUM_THREADS": "1", **env}, capture_output=True, text=True, timeout=300
    )
    assert found.returncode == code, found.stderr
    return found


def plan(*words: str, cwd: Path, **env: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(fairssl("bench", *words, "--dry-run", "--json", cwd=cwd, **env).stdout)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(grid_names()))
def test_a_shipped_grid_counts_what_its_first_line_says(name: str, tmp_path: Path) -> None:
    """Fault A1: every list in a grid file was dropped in silence. No dataset but the embedded ones is here."""
    first = grid_names()[name].read_text(encoding="utf-8").splitlines()[0]
    said = re.match(r"# ([\d,]+) runs, ([\d,]+) pretrainings: ", first)
    assert said, f"{name}: its first line says no counts: {first}"
    found = plan("--grid", name, cwd=tmp_path, FAIRSSL_DATA=str(tmp_path))
    assert (found["runs"], found["pretrainings"]) == tuple(int(n.replace(",", "")) for n in said.groups())


FILE = """
methods = ["simclr", "sofclr"]
datasets = ["synthfaces"]
targets = ["attractive", "big_nose"]
attributes = ["male", "young"]
seeds = [3, 7]
set = ["adversary.weight=0.1,0.3", "encoder.width=4"]
encoder = "small_cnn"
preset = "smoke"
epochs = 3
image_size = 16
batch_size = 24
annotated = 0.25
equal_views = true
pretrain_dataset = "synthfaces"
pretrain_target = "bags_under_eyes"
pretrain_attribute = "young"
pairs = "all"
"""
FLAGS = {
    "methods": ["--method", "simclr,sofclr"],
    "datasets": ["--dataset", "synthfaces"],
    "targets": ["--target", "attractive,big_nose"],
    "attributes": ["--attr", "male", "--attr", "young"],
    "seeds": ["--seeds", "3,7"],
    "set": ["--set", "adversary.weight=0.1,0.3", "--set", "encoder.width=4"],
    "encoder": ["--encoder", "small_cnn"],
    "preset": ["--preset", "smoke"],
    "epochs": ["--epochs", "3"],
    "image_size": ["--image-size", "16"],
    "batch_size": ["--batch-size", "24"],
    "annotated": ["--annotated", "0.25"],
    "equal_views": ["--equal-views"],
    "pretrain_dataset": ["--pretrain-dataset", "synthfaces"],
    "pretrain_target": ["--pretrain-target", "bags_under_eyes"],
    "pretrain_attribute": ["--pretrain-attr", "young"],
    "pairs": ["--pairs", "all"],
}
OTHER = {
    "methods": ["--method", "sofclr,byol+adversary"],
    "targets": ["--target", "big_nose"],
    "attributes": ["--attr", "young"],
    "seeds": ["--seeds", "1"],
    "set": ["--set", "adversary.weight=0.7"],
    "preset": ["--preset", "paper"],
    "epochs": ["--epochs", "4"],
    "image_size": ["--image-size", "24"],
    "batch_size": ["--batch-size", "32"],
    "annotated": ["--annotated", "0.5"],
    "equal_views": ["--no-equal-views"],
}


@pytest.mark.slow
def test_a_grid_file_and_the_same_flags_plan_the_same_runs(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(FILE, encoding="utf-8-sig")  # as some editors write it
    assert {*FLAGS, "weights"} == set(GRID_KEYS)  # weights are of timm models alone: below
    from_file = plan("--grid", "mine.toml", cwd=tmp_path)
    from_flags = plan(*(word for words in FLAGS.values() for word in words), cwd=tmp_path)
    assert from_file == from_flags
    # sofclr twice, simclr once: its runs do not depend on the adversary; 2 targets x 2 attributes x 2 seeds
    assert (from_file["runs"], from_file["pretrainings"]) == (24, 6)


@pytest.mark.slow
def test_weights_in_a_file_are_the_weights_of_the_flag(tmp_path: Path) -> None:
    save_file(timm.create_model("resnet10t", num_classes=0).state_dict(), tmp_path / "w.safetensors")
    text = 'methods = ["random"]\nencoder = "resnet10t"\nweights = "w.safetensors"'
    (tmp_path / "mine.toml").write_text(text)
    (tmp_path / "wrong.toml").write_text(text.replace("w.safe", "missing.safe"))
    flags = ("--method", "random", "--encoder", "resnet10t", "--weights", "w.safetensors")
    assert plan("--grid", "mine.toml", cwd=tmp_path) == plan(*flags, cwd=tmp_path)
    assert "missing.safetensors" in fairssl("bench", "--grid", "wrong.toml", "--dry-run", cwd=tmp_path, code=2).stderr


@pytest.mark.slow
@pytest.mark.parametrize("key", OTHER)
def test_a_flag_stands_in_place_of_its_key_in_the_file_and_of_no_other(key: str, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(FILE)
    words = [word for name, flags in FLAGS.items() if name != key for word in flags]
    assert plan("--grid", "mine.toml", *OTHER[key], cwd=tmp_path) == plan(*words, *OTHER[key], cwd=tmp_path)


@pytest.mark.slow
def test_a_table_that_a_file_makes_equals_the_table_that_the_flags_make(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('methods = ["simclr", "sofclr"]\nattributes = ["male", "young"]')
    one = fairssl("bench", "--grid", "mine.toml", *TINY, "--out", "a", cwd=tmp_path)
    two = fairssl("bench", "--method", "simclr,sofclr", "--attr", "male,young", *TINY, "--out", "b", cwd=tmp_path)
    assert one.stdout == two.stdout and one.stdout.count("| s") == 4


@pytest.mark.slow
def test_a_sweep_has_a_row_for_each_value(tmp_path: Path) -> None:
    words = ["--method", "simclr,sofclr", "--set", "adversary.weight=0.1,0.3", *TINY, "--json"]
    rows = json.loads(fairssl("bench", *words, cwd=tmp_path).stdout)
    assert [row["method"] for row in rows] == [
        *("simclr", "sofclr (adversary.weight=0.1)", "sofclr (adversary.weight=0.3)"),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[grid]\nmethods = ['simclr']", "several grids stand under [[grid]], with two brackets"),
        ("grid = 3", "grid = 3: several grids stand under [[grid]]"),
        ("[[block]]\nmethods = ['simclr']", "unknown key 'block'; known: "),
        ("[set]\nx = 1", "set = {'x': 1} is not a list of assignments"),
        ("epochs = [1, 2]", "epochs = [1, 2] is not a whole number"),
        ("methods = []", "methods = [] is not a list of at least one name"),
        ("seeds = [3, 'x']", "is not a number of seeds, as 4, or a list of them, as [3, 7]"),
    ],
)
@pytest.mark.slow
def test_a_wrong_grid_file_is_one_line_and_exit_2(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(text)
    found = fairssl("bench", "--grid", "mine.toml", cwd=tmp_path, code=2)
    assert message in found.stderr and found.stderr.count("\n") == 1 and not found.stdout


def keys_of(method: str, *sets: str, **given: Any) -> tuple[str, str]:
    (run,) = resolve_all([Request([method], ["synthfaces"], seeds=1, assignments=sets, **given)]).runs
    return run.spec.pretrain_key, run.spec.key


WITHOUT_STREAM = [name for name in kinds.heads.where() if not kinds.heads.get(name).streams]


@pytest.mark.parametrize("method", kinds.methods.where())
@pytest.mark.parametrize("head", WITHOUT_STREAM)
def test_a_head_without_a_stream_leaves_the_pretraining_as_it_is(method: str, head: str) -> None:
    if head in kinds.methods.get(method).heads:
        pytest.skip("the method has it already")
    (plain, result), (both, other) = keys_of(method), keys_of(f"{method}+{head}")
    assert plain == both and result != other


@pytest.mark.parametrize(
    ("method", "setting"),
    [
        ("simclr", "train.dual_lr=0.1"),
        ("simclr", "train.dual_optimizer=sgd"),
        ("simclr", "train.annotated_batch_size=7"),
        ("simclr", "train.rand_ops=4"),
        ("simclr", "train.join_streams=true"),
        ("erm", "train.hue=0.3"),
        ("random", "train.lr=0.5"),
        ("random", "train.epochs=7"),
        ("sogclr", "sogclr.gamma_min=0.1"),
        ("sofclr", "adversary.projection_dim=64"),
        ("erm", "probe.lr=0.5"),
        ("simclr", "probe.neighbours=3"),
    ],
)
def test_what_a_run_cannot_read_is_no_part_of_its_key(method: str, setting: str) -> None:
    assert keys_of(method) == keys_of(method, setting)


def test_what_a_run_reads_is_part_of_its_key() -> None:
    for setting in ("train.dual_lr=0.1", "train.annotated_batch_size=7", "train.join_streams=true", "train.lr=0.1"):
        assert keys_of("sofclr") != keys_of("sofclr", setting)
    assert keys_of("simclr", annotated=0.1) == keys_of("simclr", annotated=0.3)
    assert keys_of("ce", annotated=0.1) != keys_of("ce", annotated=0.3)
    assert keys_of("sogclr", "sogclr.gamma_schedule=cosine") != keys_of(
        "sogclr", "sogclr.gamma_schedule=cosine", "sogclr.gamma_min=0.1"
    )


@pytest.mark.parametrize(
    ("method", "setting", "objective"),
    [
        ("grl", "grl.weight=0", "erm"),
        ("sofclr", "adversary.weight=0", "sogclr"),
        ("simclr+ccl", "ccl.weight=0", "simclr"),
        ("ce+eod", "eod.weight=0", "ce"),
    ],
)
def test_weight_zero_is_the_objective_by_key_and_its_row_says_what_it_saw(
    method: str, setting: str, objective: str
) -> None:
    assert keys_of(method, setting) == keys_of(objective)
    (run,) = resolve_all([Request([method], ["synthfaces"], seeds=1, assignments=[setting])]).runs
    assert run.spec.method.group == "none"


@pytest.mark.slow
def test_one_view_methods_have_the_same_row_after_an_eraser_as_before(tmp_path: Path) -> None:
    """Fault A2 as it was found: leace's inherited two views were given to erm, in whichever order they ran."""
    words = ["--dataset", "synthfaces", *TINY, "--json"]
    first = json.loads(fairssl("bench", "--method", "erm", *words, "--out", "a", cwd=tmp_path).stdout)
    fairssl("bench", "--method", "erm+leace", *words, "--out", "b", cwd=tmp_path)
    second = json.loads(fairssl("bench", "--method", "erm", *words, "--out", "b", cwd=tmp_path).stdout)
    assert first == second
    names = [sorted(p.name for p in (tmp_path / out / "pretrain").iterdir()) for out in ("a", "b")]
    assert names[0] == names[1]
    (key,) = names[0]
    bits = [(tmp_path / out / "pretrain" / key / "encoder.safetensors").read_bytes() for out in ("a", "b")]
    assert bits[0] == bits[1]


@pytest.mark.slow
def test_a_changed_plugin_of_the_same_version_is_told_and_force_makes_its_results_anew(tmp_path: Path) -> None:
    """Fault A10."""
    from reference.plugin_package import write_package

    source = (ROOT / "plugins" / "objectives" / "simclr.py").read_text()
    site = tmp_path / "site"
    write_package(site, "strange", {"objectives/mine.py": source.replace("class SimCLR", "class Mine")})
    words = ["bench", "--method", "mine", *TINY, "--json"]
    first = fairssl(*words, cwd=tmp_path, PYTHONPATH=str(site))
    assert "other source code" not in first.stderr
    file = next(site.rglob("mine.py"))
    file.write_text(file.read_text().replace('{"nt_xent": loss}', '{"nt_xent": -loss}'))
    again = fairssl(*words, cwd=tmp_path, PYTHONPATH=str(site))
    assert again.stdout == first.stdout
    assert "1 of 1 results were made by other source code of objectives.mine" in again.stderr
    anew = fairssl(*words, "--force", cwd=tmp_path, PYTHONPATH=str(site))
    assert anew.stdout != first.stdout and "other source code" not in anew.stderr
