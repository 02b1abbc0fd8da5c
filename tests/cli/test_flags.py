"""Grids and flags as a user gives them: through a `fairssl` process, whose answers are read."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
from reference.checkout import ROOT
from safetensors.torch import save_file

from fairssl import kinds
from fairssl.cli import run
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


Call = Callable[..., tuple[str, str]]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Call:
    """Run a command in this process, in `tmp_path`: what it writes on stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    def call(*words: str, code: int = 0) -> tuple[str, str]:
        assert run(list(words)) == code
        found = capfd.readouterr()
        return found.out, found.err

    return call


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


NO_PAIRS = "has no effect: no run reads it"  # of --pairs, with two groups


@pytest.mark.slow
def test_a_grid_file_and_the_same_flags_plan_the_same_runs(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(FILE, encoding="utf-8-sig")  # as some editors write it
    assert {*FLAGS, "weights"} == set(GRID_KEYS)  # weights are of timm models alone: below
    from_file = plan("--grid", "mine.toml", cwd=tmp_path)
    from_flags = plan(*(word for words in FLAGS.values() for word in words), cwd=tmp_path)
    methods = f"{NO_PAIRS} (simclr, sofclr)"
    assert from_file.pop("without_effect") == [f"--grid mine.toml: pairs = all {methods}"]
    assert from_flags.pop("without_effect") == [f"--pairs all {methods}"]
    assert from_file == from_flags and from_file["replaced"] == []
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
    others = ["--set", "encoder.width=4"] if key == "set" else []  # settings are replaced one by one
    found = plan("--grid", "mine.toml", *OTHER[key], cwd=tmp_path)
    replaced = found.pop("replaced")
    same = plan(*words, *others, *OTHER[key], cwd=tmp_path)
    for one in (found, same):
        (said,) = one.pop("without_effect")
        assert f"all {NO_PAIRS}" in said
    assert found == without_replaced(same)
    line = "--set adversary.weight=0.7 stands in place of adversary.weight=0.1,0.3 in mine.toml"
    assert replaced == ([line] if key == "set" else [])


def without_replaced(found: dict[str, Any]) -> dict[str, Any]:
    assert found.pop("replaced") == []
    return found


def counts(found: dict[str, Any]) -> dict[tuple[str, str], tuple[int, int]]:
    """(method, dataset) -> pretrainings and runs."""
    return {
        (row["method"], row["dataset"]): (row["pretrainings"], row["runs"])
        for row in sorted(found["methods"], key=lambda row: (row["method"], row["dataset"]))
    }


SECTIONS = """
seeds = 1
epochs = 1
set = ["train.lr=0.01,0.02", "encoder.width=4"]
[[grid]]
methods = ["simclr"]
set = ["train.weight_decay=0.1"]
[[grid]]
methods = ["sofclr"]
set = ["train.lr=0.03"]
"""


@pytest.mark.slow
def test_settings_beside_a_file_with_sections_replace_their_namesakes_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(SECTIONS)
    # A section replaces what it names of the top: simclr keeps both rates, sofclr has its own.
    assert counts(plan("--grid", "mine.toml", cwd=tmp_path)) == {
        ("simclr", "synthfaces"): (2, 2),
        ("sofclr", "synthfaces"): (1, 1),
    }
    # What is of the adversary concerns the section that has one.
    words = ["--grid", "mine.toml", "--set", "train.lr=0.1", "--set", "adversary.weight=0.1,0.2", "--dry-run"]
    told = fairssl("bench", *words, cwd=tmp_path)
    lines = [line for line in told.stderr.splitlines() if "stands in place of" in line]
    assert lines == [
        "fairssl: --set train.lr=0.1 stands in place of train.lr=0.01,0.02 in mine.toml",
        "fairssl: --set train.lr=0.1 stands in place of train.lr=0.03 in mine.toml",
    ]
    assert counts(plan(*words[:-1], cwd=tmp_path)) == {
        ("simclr", "synthfaces"): (1, 1),
        ("sofclr", "synthfaces"): (2, 2),
    }
    same = ["--method", "simclr", "--seeds", "1", "--epochs", "1"]
    same += ["--set", "train.lr=0.1", "--set", "encoder.width=4"]
    fairssl("bench", *same, "--set", "train.weight_decay=0.1", *SMALL, "--out", "runs", cwd=tmp_path)
    found = plan(*words[:-1], *SMALL, "--out", "runs", cwd=tmp_path)
    assert found["done"] == 1  # the weight decay and the width of the file were kept: the same key
    grid = "import fairssl; r = fairssl.bench(methods='simclr', grid='mine.toml', settings={'train.lr': 0.1, %s}, %s)"
    data = "'data.n_train': 64, 'data.n_val_per_cell': 10, 'data.n_test_per_cell': 20"
    code = grid % (data, "dataset='synthfaces', image_size=16, batch_size=16, encoder='small_cnn', out='runs'")
    code += "; print(sorted({x.spec.train.weight_decay for x in r.plan.runs}), {x.spec.train.lr for x in r.plan.runs})"
    assert python(code, cwd=tmp_path).stdout == "[1e-06, 0.1] {0.1}\n"


SMALL = [
    *("--image-size", "16", "--batch-size", "16", "--encoder", "small_cnn", "--set", "data.n_train=64"),
    *("--set", "data.n_val_per_cell=10", "--set", "data.n_test_per_cell=20"),
]


def python(code: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )


ALIAS = 'methods = ["sofclr"]\nset = ["adversary.alpha=0.3"]'


@pytest.mark.slow
def test_a_setting_under_another_spelling_replaces_that_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(ALIAS)
    found = plan("--grid", "mine.toml", "--set", "adversary.weight=0.5", cwd=tmp_path)
    assert found["replaced"] == ["--set adversary.weight=0.5 stands in place of adversary.alpha=0.3 in mine.toml"]


@pytest.mark.parametrize("values", ["0.5", "0.5,0.3"])
@pytest.mark.parametrize("method", ["byol+adversary:0.3", "sofclr+adversary:0.3,sofclr"])
def test_a_row_is_never_named_after_another_weight(method: str, values: str, here: Call, tmp_path: Path) -> None:
    _, told = here("bench", "--method", method, *TINY, "--set", f"adversary.weight={values}", code=2)
    name = method.partition(",")[0]
    assert told == (
        f"fairssl: error: method {name!r} says that adversary.weight is 0.3, and --set that it is 0.5; leave one of them out\n"
    )
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_a_weight_said_twice_alike_is_one_weight(tmp_path: Path) -> None:
    found = plan("--method", "byol+adversary:0.3", "--set", "adversary.alpha=0.30", "--seeds", "1", cwd=tmp_path)
    assert found["runs"] == 1
    (tmp_path / "mine.toml").write_text('methods = ["byol+adversary:0.3"]\nset = ["adversary.weight=0.5"]')
    told = fairssl("bench", "--grid", "mine.toml", cwd=tmp_path, code=2).stderr
    assert "and --grid mine.toml: set that it is 0.5" in told


@pytest.mark.parametrize(
    ("methods", "settings", "lines"),
    [
        ("simclr", ("train.dual_lr=0.1",), ["train.dual_lr=0.1 has no effect: no run reads it (simclr)"]),
        ("random", ("train.lr=0.1",), ["train.lr=0.1 has no effect: no run reads it (random)"]),
        ("simclr,sofclr", ("train.dual_lr=0.1",), []),
        ("sogclr", ("sogclr.gamma_min=.1,.2",), ["sogclr.gamma_min=.1,.2 has no effect: no run reads it (sogclr)"]),
        ("sogclr", ("sogclr.gamma_schedule=constant,cosine", "sogclr.gamma_min=.1"), []),
        ("simclr", ("probe.neighbours=3",), ["probe.neighbours=3 has no effect: no run reads it (simclr)"]),
        (
            "sofclr",
            ("adversary.weight=0", "adversary.hidden_dim=16"),
            ["adversary.hidden_dim=16 has no effect: no run reads it (sofclr)"],
        ),
        ("simclr", ("train.lr=0.001",), []),  # the default, and read
    ],
)
def test_a_setting_that_no_run_reads_is_said_in_one_line(
    methods: str, settings: tuple[str, ...], lines: list[str], here: Call
) -> None:
    words = ["bench", "--method", methods, *(word for text in settings for word in ("--set", text)), "--dry-run"]
    told = here(*words)[1].splitlines()
    assert [line for line in told if "no effect" in line] == [f"fairssl: --set {line}" for line in lines]
    assert json.loads(here(*words, "--json")[0])["without_effect"] == [f"--set {line}" for line in lines]


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        ("random --epochs 3 --batch-size 12", ["--epochs 3", "--batch-size 12"]),
        ("random,simclr --epochs 3 --batch-size 12", []),
        ("simclr --annotated 0.2", ["--annotated 0.2"]),
        ("simclr,sofclr --annotated 0.2", []),
        ("simclr --pairs all", ["--pairs all"]),  # of two groups there is one pair
    ],
)
def test_a_flag_that_no_run_reads_is_said_in_one_line(words: str, lines: list[str], here: Call) -> None:
    methods = words.split()[0]
    told = here("bench", "--method", *words.split(), "--dry-run")[1].splitlines()
    expected = [f"fairssl: {line} has no effect: no run reads it ({methods})" for line in lines]
    assert [line for line in told if "no effect" in line] == expected


def test_a_run_that_two_rows_share_is_counted_once(here: Call) -> None:
    words = ["bench", "--method", "sofclr,sogclr", "--set", "adversary.weight=0,1", "--seeds", "1", "--dry-run"]
    assert here(*words)[0].startswith(
        "2 runs, 2 distinct pretrainings; 0 done, 0 failed or diverged, 2 to run, 2 to train"
    )
    found = json.loads(here(*words, "--json")[0])
    assert (found["runs"], found["left"]) == (2, 2) and sum(row["runs"] for row in found["methods"]) == 3


def test_equal_views_change_no_method_that_does_not_train(here: Call) -> None:
    keys = []
    for flags in ((), ("--equal-views",)):
        here("bench", "--method", "random", "--seeds", "1", *flags, "--out", "runs", "--preset", "smoke")
        keys.append(sorted(path.name for path in Path("runs/results").iterdir()))
    assert keys[0] == keys[1] and len(keys[0]) == 1


@pytest.mark.slow
def test_a_setting_without_effect_is_said_also_when_runs_are_trained(tmp_path: Path) -> None:
    line = "--set train.dual_lr=0.1 has no effect: no run reads it (simclr)"
    words = ["--method", "simclr", *TINY, "--set", "train.dual_lr=0.1"]
    assert fairssl("bench", *words, cwd=tmp_path).stderr.count(line) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0.1,0.1", "--set 'adversary.weight=0.1,0.1' names 0.1 twice; name it once"),
        ("0.1,0.2,0.10", "--set 'adversary.weight=0.1,0.2,0.10' names 0.10 twice (as 0.1 too); name it once"),
    ],
)
def test_a_sweep_names_a_value_once(text: str, message: str, here: Call) -> None:
    _, told = here("bench", "--method", "sofclr", "--set", f"adversary.weight={text}", code=2)
    assert told == f"fairssl: error: {message}\n"


@pytest.mark.parametrize("text", ["", "seeds = 1", '[[grid]]\nmethods = ["simclr"]\n[[grid]]\nseeds = 2'])
def test_a_grid_file_names_methods(text: str, here: Call, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(text)
    _, told = here("bench", "--grid", "mine.toml", "--dry-run", code=2)
    line = '--grid mine.toml: it names no methods; a grid file says which, as methods = ["simclr", "sofclr"]'
    assert told == f"fairssl: error: {line}\n"
    assert json.loads(here("bench", "--grid", "mine.toml", "--method", "simclr", "--dry-run", "--json")[0])["runs"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seeds = 0", "seeds = 0: must be at least 1"),
        ("seeds = [-1]", "seeds -1: a seed is at least 0"),
        ("seeds = [3, 3]", "seeds names 3 twice; name it once"),
        ("epochs = 0", "epochs = 0: must be at least 1"),
        ("annotated = 2.0", "annotated = 2.0: must be a share in (0, 1]"),
        ('set = ["train.lr"]', "set 'train.lr' is not of the form part.parameter=value, as in adversary.weight=0.5"),
        ('set = ["train.lr=x"]', "set: train.lr: Input should be a valid number"),
        ('set = ["train.lr=1,1"]', "set 'train.lr=1,1' names 1 twice"),
        ('set = ["foo.x=1"]', "set foo: no selected method has a part 'foo'"),
        ('set = ["train.epochs=3"]\nepochs = 2', "set and 2 by --grid mine.toml: epochs; give one"),
        ('set = ["train.dual_lr=3"]', "set train.dual_lr=3 has no effect: no run reads it (simclr)"),
        ("annotated = 0.5", "annotated = 0.5 has no effect: no run reads it (simclr)"),
        ('pairs = "maxi"', "unknown pairs 'maxi'; did you mean 'max'"),
        ('encoder = ""', "encoder is empty"),
        ('encoder = "nope"', "encoder: unknown encoder 'nope'"),
        ('datasets = ["nope"]', "datasets: unknown dataset 'nope'"),
        ('targets = ["foo"]', "targets 'foo': synthfaces has no such target"),
        ('attributes = ["foo"]', "attributes 'foo': synthfaces has no such attribute"),
        ('pretrain_target = "male"', "pretrain_target needs pretrain_dataset"),
        ('weights = "w.pth"', "weights = w.pth needs encoder"),
    ],
)
def test_what_is_wrong_in_a_grid_file_names_the_file_and_its_key(
    text: str, message: str, here: Call, tmp_path: Path
) -> None:
    (tmp_path / "mine.toml").write_text(f'methods = ["simclr"]\n{text}')
    _, told = here("bench", "--grid", "mine.toml", "--dry-run", code=0 if "no effect" in message else 2)
    assert "--grid mine.toml: " in told and message in told and told.count("\n") == 1
    named = {word.strip(":;,") for word in told.split() if word.startswith("--")}
    assert named == {"--grid"}  # and no flag that nobody typed


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


@pytest.mark.slow
def test_a_caption_says_the_settings_that_are_not_the_defaults(here: Call, tmp_path: Path) -> None:
    words = ["bench", "--seeds", "1", "--epochs", "1", *SMALL, "--set", "encoder.width=4"]

    def table(*more: str) -> str:
        here(*words, *more)
        return (tmp_path / "runs" / "table.md").read_text()

    said = "Settings that are not the defaults: "
    assert said not in table("--method", "simclr,ce,byol+adversary:0.3")  # a method's own settings are its defaults
    assert f"{said}train.lr=0.01." in table("--method", "simclr", "--set", "train.lr=0.01")
    both = table("--method", "simclr,sofclr", "--set", "adversary.weight=0.4")
    assert f"{said}adversary.weight=0.4." in both
    knn = table("--method", "simclr", "--set", "probe.kind=knn", "--set", "probe.neighbours=1000")
    assert f"{said}probe.kind=knn, probe.neighbours=1000." in knn
    assert "a tie, a score of exactly 0.5, is y = 0." in knn
    assert "kNN of simclr: there are 64 training images, all of which vote, in place of 1000 neighbours." in knn
    longer = (
        "Trained longer than asked: ce, 400 steps (train.min_steps), 200 epochs of 32 annotated images in place of 1."
    )
    assert longer in table("--method", "ce") and longer in table("--method", "ce,simclr")
    assert "Equal views: every row takes 64 augmented images per step." in table(
        "--method", "simclr,sofclr", "--equal-views"
    )
    rows = json.loads(here(*words, "--method", "sofclr", "--set", "adversary.weight=0", "--json")[0])
    assert rows[0]["settings"] == {"adversary.weight": 0}
    here("board", "build", "runs", "--out", "board")
    for name in ("table.md", "table.tex", "index.html"):  # a board of them all has two rows of sofclr, told apart by it
        text = (tmp_path / "board" / name).read_text()
        assert "sofclr (adversary.weight=0.0)" in text and "sofclr (adversary.weight=0.4)" in text, name
        assert said not in text, name
    assert "--set probe.kind=knn --set probe.neighbours=1000" in (tmp_path / "board" / "table.csv").read_text()


@pytest.mark.slow
def test_a_compiled_augmentation_is_said_in_record_and_caption(tmp_path: Path) -> None:
    words = ("bench", "--method", "simclr", "--dataset", "synthfaces", "--device", "cpu", *TINY, "--out", "runs")
    done = fairssl(*words, "--compile", cwd=tmp_path)
    assert "augmentation compiled, torch" in done.stdout
    (record,) = tmp_path.glob("runs/results/*/record.json")
    facts = json.loads(record.read_text())["facts"]
    assert (facts["path"], facts["augmentation"]) == ("eager", "compiled")
    again = fairssl(*words, cwd=tmp_path)  # of the same run: it has no other key
    assert again.stdout == done.stdout
    plain = fairssl(*words, "--force", cwd=tmp_path)
    assert "augmentation compiled" not in plain.stdout
    assert json.loads(record.read_text())["facts"]["augmentation"] == "eager"


@pytest.mark.slow
def test_what_compiles_and_what_does_not_are_not_asked_together(tmp_path: Path) -> None:
    for words, env in ((("--eager",), {}), ((), {"FAIRSSL_EAGER": "1"})):
        done = fairssl("bench", "--compile", *words, cwd=tmp_path, code=2, **env)
        assert done.stderr.count("\n") == 1 and "--eager (or FAIRSSL_EAGER) compiles nothing; give one" in done.stderr
    assert not list(tmp_path.iterdir())
