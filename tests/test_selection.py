"""Selection by rule on validation values; the search through a process; test labels change no choice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fairssl.selection import Choice, Trial, choose, search_space
from fairssl.store.runs import RunStore
from fairssl.types import UserError

TRIALS = [  # name, accuracy, ED, worst group
    ("a", 0.80, 0.20, 0.50),
    ("b", 0.795, 0.10, 0.60),
    ("c", 0.785, 0.02, 0.55),
    ("d", 0.70, 0.01, 0.65),
]


def trials(*listed: tuple[str, float | None, float | None, float | None]) -> list[Trial]:
    return [
        Trial((("x", name),), {"Acc": acc, "ED": ed, "WorstGroupAcc": worst})
        for name, acc, ed, worst in listed or TRIALS
    ]


def name(choice: Choice) -> str:
    return str(dict(choice.trial.setting)["x"])


@pytest.mark.parametrize(
    ("rule", "reference", "chosen"),
    [
        ("accuracy", None, "a"),
        ("worst_group", None, "d"),
        ("paper", 0.80, "b"),  # at least .79, and of these the least ED
        ("paper", 0.79, "c"),  # at least .78
        ("paper", 0.71, "d"),
        ("constrained:10", None, "b"),
        ("constrained:2", None, "c"),
        ("constrained:15.5", None, "b"),
    ],
)
def test_each_rule_takes_the_trial_that_it_says(rule: str, reference: float | None, chosen: str) -> None:
    choice = choose(rule, trials(), reference)
    assert name(choice) == chosen and not choice.flag
    assert name(choose(rule, trials()[::-1], reference)) == chosen  # whatever their order
    assert choice.to_json() == {"rule": rule, "trials": 4, "chosen": {"x": chosen}}


def test_a_rule_that_no_trial_meets_is_flagged() -> None:
    choice = choose("paper", trials(), 0.9)
    assert name(choice) == "a" and "within 1 point of the reference's 90.00" in choice.flag
    choice = choose("constrained:0.5", trials())
    assert name(choice) == "d" and "ED of at most 0.5" in choice.flag and "flag" in choice.to_json()


def test_ties_go_to_the_more_accurate_and_then_to_the_first_setting() -> None:
    tied = trials(("b", 0.8, 0.1, 0.5), ("a", 0.8, 0.1, 0.5), ("c", 0.79, 0.1, 0.5))
    assert name(choose("paper", tied, 0.8)) == name(choose("accuracy", tied)) == "a"


def test_the_last_bits_of_a_value_decide_nothing() -> None:
    exact = trials(("b", 0.8, 0.07500000000000004, 0.5), ("a", 0.8, 0.075, 0.5000000000000001))
    choice = choose("constrained:7.5", exact[:1])
    assert name(choice) == "b" and not choice.flag
    assert {name(choose(rule, exact)) for rule in ("constrained:1", "constrained:8", "worst_group")} == {"a"}
    assert not choose("paper", trials(("b", 0.8 - 0.01 - 1e-16, 0.2, 0.5)), 0.8).flag


def test_an_undefined_value_never_wins() -> None:
    some = trials(("a", 0.8, None, None), ("b", 0.795, 0.3, 0.1), ("c", None, 0.0, 0.9))
    assert name(choose("paper", some, 0.8)) == "b"
    assert name(choose("accuracy", some)) == "a"
    assert name(choose("worst_group", some)) == "c"


def test_wrong_rules_are_one_line() -> None:
    with pytest.raises(UserError, match="unknown --rule 'papr'; did you mean 'paper'"):
        choose("papr", trials())
    with pytest.raises(UserError, match="say how large ED may be, 0 to 100 points, as constrained:5"):
        choose("constrained:many", trials())
    with pytest.raises(UserError, match="no trial ended well"):
        choose("accuracy", [])
    with pytest.raises(UserError, match="needs a reference"):
        choose("paper", trials())


def test_a_composition_is_searched_over_the_papers_rates_and_weights() -> None:
    space = search_space("byol+adversary")
    assert space["adversary.weight"] == (0.1, 0.3, 0.5, 0.7, 0.9, 1.0) and space["train.lr"] == (1e-3, 1e-4, 1e-5)


PERMUTED = '''
"""Colored digits whose test labels are permuted."""

import os
from dataclasses import replace

import numpy as np
from fairssl import kinds
from fairssl.api import Dataset

Digits = type(kinds.datasets.build("colored_digits", {}))


class Permuted(Dataset):
    """Colored digits; PERMUTE=1 permutes the targets of the test split."""

    card = Digits.card

    def inspect(self, root):
        return kinds.datasets.build("colored_digits", {}).inspect(root)

    def load(self, root, target, attribute, image_size, split_seed=0, progress=None):
        found = kinds.datasets.build("colored_digits", {}).load(root, target, attribute, image_size, split_seed)
        if os.environ.get("PERMUTE"):
            mixed = np.random.default_rng(0).permutation(found.test.target)
            found = replace(found, test=replace(found.test, target=mixed))
        return found
'''


@pytest.mark.slow
def test_permuting_the_test_labels_changes_no_choice(tmp_path: Path) -> None:
    """The whole search through the command line, twice."""
    from reference.plugin_package import write_package

    write_package(tmp_path / "site", "strange", {"datasets/permuted.py": PERMUTED})
    words = ["tune", "--method", "simclr,sofclr", "--dataset", "permuted", "--rule", "paper", "--trials", "3", "--json"]
    words += ["--tune-seeds", "5,", "--seeds", "2", "--epochs", "1", "--set", "encoder.width=4", "--workers", "1"]

    def search(out: str, **env: str) -> dict[str, Any]:
        call = [sys.executable, "-m", "fairssl", *words, "--out", out]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(tmp_path / "site"), **env}
        done = subprocess.run(call, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    plain, permuted = search("a"), search("b", PERMUTE="1")
    assert plain["choices"] == permuted["choices"] and len(plain["choices"]) == 2
    assert plain["rows"] != permuted["rows"]
    assert {choice["trials"] for choice in plain["choices"]} == {3}
    assert all(row["n_seeds"] == 2 for row in plain["rows"])
    records = [json.loads(p.read_text()) for p in (tmp_path / "a" / "results").glob("*/selection.json")]
    assert len(records) == 4 and all([one["rule"] for one in record] == ["paper"] for record in records)
    assert all(one["reference"] == "simclr" for record in records for one in record)
    assert search("a") == plain  # all from the store


TINY = "--dataset synthfaces --encoder small_cnn --image-size 16 --batch-size 16 --epochs 1 --device cpu --workers 1"
SETS = "--set encoder.width=4 --set data.n_train=64 --set data.n_val_per_cell=10 --set data.n_test_per_cell=20"


def call(folder: Path, words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "400"}
    command = [sys.executable, "-m", "fairssl", *words.split()]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--tune-seeds 0,0", "--tune-seeds names 0 twice; name it once"),
        ("--tune-seeds -1", "--tune-seeds '-1': a number, as 4 for seeds 0 to 3"),
        ("--tune-seeds 0", "--tune-seeds 0: must be at least 1"),
        ("--seeds 3,3", "--seeds names 3 twice"),
        ("--trials two", "Invalid value for '--trials':"),
        ("--trials two", "'two'"),
        ("--set train.lr=0.5", "--set train.lr=0.5: the search itself sets train.lr for simclr (0.001, 0.0001, 1e-05)"),
        ("--set probe.l2=1,2", "--set probe.l2=1,2: a search takes one value of each setting"),
        ("--rule accuracy --reference ce", "--reference ce belongs to --rule paper alone"),
        ("--rule accuracy:3", "accuracy takes no number; write --rule accuracy"),
        ("--reference ce+eo", "known: adversary, ccl"),
        ("--reference simcr", "known: alfr, barlow_twins, byol, ccl, ce, ce+dpr, ce+eod, ce+eql"),
    ],
)
def test_wrong_input_is_one_line_that_names_its_flag(tmp_path: Path, words: str, says: str) -> None:
    done = call(tmp_path, f"tune --method simclr {TINY} {SETS} --out tuned {words}")
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and says in done.stderr, done.stderr
    assert not (tmp_path / "tuned").exists()


@pytest.mark.slow
def test_what_was_tried_is_told_by_validation_values_and_is_on_no_board_unless_asked_for(tmp_path: Path) -> None:
    """Two searches in one folder, boards of it, and a bench that asks for a trial."""
    tuned = f"tune --method simclr {TINY} {SETS} --out runs"
    first = call(tmp_path, f"{tuned} --trials 2 --seeds 2 --rule constrained:0")
    assert first.returncode == 0, first.stderr
    lines = [line for line in first.stderr.splitlines() if "/male seed" in line and ": " in line]
    trials, final = lines[:2], lines[2:]
    assert all("trial " in line and "train.lr=" in line and ": validation Acc " in line for line in trials)
    assert len(final) == 1 and "seed 1: Acc" in final[0]  # seed 0 was the trial itself
    flag = (
        "Rule constrained:0 was not met for simclr: no setting has a validation ED of at most 0; the fairest was taken."
    )
    assert flag in first.stdout and "instead of" not in first.stdout

    second = call(tmp_path, f"{tuned} --trials 1 --seeds 1 --rule paper")
    assert second.returncode == 0, second.stderr
    assert "rule paper (reference simclr), 1 trial each" in second.stdout and "constrained" not in second.stdout

    def rows(words: str = "") -> tuple[int, str]:
        built = call(tmp_path, f"board build runs --out board {words}")
        assert built.returncode == 0, built.stderr
        table = (tmp_path / "board" / "table.md").read_text()
        return sum(line.startswith("| simclr") for line in table.splitlines()), built.stdout + table

    n, text = rows()
    left = "left out: 1 run, tried by fairssl tune and not chosen; board build --trials has such runs too"
    assert left in text and flag in text and "(seed 0 alone)" in text
    assert flag in (tmp_path / "board" / "index.html").read_text()
    assert flag in (tmp_path / "board" / "table.tex").read_text()
    exported = call(tmp_path, "board export runs --out bundle.zip")
    assert exported.stdout.startswith("2 records\nleft out: 1 run, tried by fairssl tune and not chosen; a --grid")
    more, text = rows("--trials")
    assert more == n + 1 and "left out" not in text
    verified = call(tmp_path, "board verify board")
    assert verified.returncode == 0, verified.stdout

    rejected = next((tmp_path / "runs" / "trials").iterdir()).name
    method = json.loads((tmp_path / "runs" / "results" / rejected / "record.json").read_text())["spec"]
    asked = f"--set train.lr={method['train']['lr']}"
    asked += f" --set simclr.temperature={method['method']['objective']['params']['temperature']}"
    benched = call(tmp_path, f"bench --method simclr {TINY} {SETS} {asked} --seeds 1 --out runs")
    assert benched.returncode == 0, benched.stderr
    more, text = rows()
    assert more == n + 1 and "left out" not in text


def test_selections_of_several_rules_stand_beside_each_other(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    (tmp_path / "results" / "abc").mkdir(parents=True)
    path = tmp_path / "results" / "abc" / "selection.json"
    path.write_text('{"rule": "accuracy", "trials": 2, "chosen": {}}')  # as fairssl wrote it before
    store.write_selection("abc", {"rule": "paper", "reference": "ce", "trials": 2})
    store.write_selection("abc", {"rule": "paper", "reference": "ce", "trials": 3})
    assert [(one["rule"], one["trials"]) for one in store.read_selections("abc")] == [("accuracy", 2), ("paper", 3)]
    path.write_text("[")
    with pytest.raises(UserError, match=r"selection.json is damaged"):
        store.read_selections("abc")
