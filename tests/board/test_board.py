"""The board: what a table says, and that it says the same of the same records in whatever order."""

from __future__ import annotations

import csv
import io
import json
import math
import random
import re
from collections.abc import Sequence
from typing import Any

import pytest
from reference.records import FACTS, LARGE, SYMBOLS, columns, record, seeds, spec

from fairssl.board.competing import below_majority
from fairssl.board.csv import to_csv
from fairssl.board.describe import _images
from fairssl.board.html import to_html
from fairssl.board.json import to_json_rows, to_long_rows
from fairssl.board.latex import to_latex
from fairssl.board.markdown import to_markdown
from fairssl.board.rows import Board, build
from fairssl.board.table import Cell, SeedStats, Table
from fairssl.board.terminal import show
from fairssl.board.tradeoff import to_tradeoff_markdown
from fairssl.store.record import Record, State
from fairssl.types import UserError


def one(records: Sequence[Record]) -> Table:
    (table,) = build(records)
    return table


def cells(table: Table) -> dict[str, dict[str, str]]:
    """label -> heading -> cell, read back from the Markdown."""
    lines = [line for line in to_markdown(table).splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    assert len({len(row) for row in rows}) == 1, "a row with another number of cells than the head"
    return {row[0].removesuffix(" †"): dict(zip(rows[0], row, strict=True)) for row in rows[2:]}


def test_mean_and_standard_deviation_by_hand() -> None:
    """Fault S9: .80, .82, .87 has sample sd .036056 (standard error .0208); divided by n it would be .0294."""
    table = one(seeds([0.80, 0.82, 0.87]))
    value = table.rows[0].values["Acc"]
    assert value.mean == pytest.approx(0.83, abs=1e-15)
    assert value.sd == pytest.approx(math.sqrt(0.0026 / 2), abs=1e-15)
    assert value.sd is not None and value.sd / math.sqrt(3) == pytest.approx(0.0208, abs=5e-5)
    assert cells(table)["sofclr"]["Acc"] == "**83.00 ± 3.61**"


def test_one_seed_has_no_deviation() -> None:
    table = one(seeds([0.8]))
    assert table.rows[0].values["Acc"].sd is None
    assert cells(table)["sofclr"]["Acc"] == "80.00"
    assert "±" not in to_markdown(table) and "pm" not in to_latex(table) and "**" not in to_markdown(table)
    assert "One seed: no spread is known, so nothing is bold." in to_markdown(table)
    assert to_json_rows(table)[0]["Acc"] == {"mean": 0.8, "sd": None}


def test_columns_and_scales_are_the_papers() -> None:
    table = one([record(spec(), 0.125)])
    assert table.head == [
        *("Method", "Acc", "ΔED", "ΔEO", "ΔDP", "IntraAUC", "InterAUC", "GAUC", "WD", "KL"),
        *("Target seen", "Group seen", "Images/step", "Seeds"),
    ]
    assert [cell.text for cell in table.body[0]] == [
        *("sofclr †", "12.50", "12.50", "12.50", "12.50", "0.1250", "0.1250", "0.1250", "0.1250", "0.1250"),
        *("none", "annotated", "-", "1"),
    ]
    assert [c.symbol for c in table.columns if c.better == "higher"] == ["Acc"]


def test_leakage_stands_beside_the_metrics_where_it_was_measured() -> None:
    """A diagnostic: after the paper's columns, never bold, its balanced accuracy x 100."""
    leaky = [
        record(spec(seed=s), 0.5, leakage={"accuracy": 0.9, "balanced_accuracy": x}) for s, x in enumerate([0.7, 0.8])
    ]
    table = one(leaky)
    assert table.head[9:11] == ["KL", "Leak"]
    assert table.body[0][10] == Cell("75.00 ± 7.07")
    assert to_json_rows(table)[0]["Leak"]["mean"] == pytest.approx(0.75)
    assert ",Leak," in to_csv(table)
    assert "Leak" not in to_markdown(one([record(spec(), 0.5)]))


def test_leakage_by_a_perceptron_has_a_column_where_it_was_measured() -> None:
    both = {"accuracy": 0.9, "balanced_accuracy": 0.7, "mlp_accuracy": 0.9, "mlp_balanced_accuracy": 0.8}
    table = one([record(spec("byol"), 0.5, leakage=both), record(spec("ccl"), 0.5, leakage={"balanced_accuracy": 0.6})])
    assert table.head[10:12] == ["Leak", "Leak (MLP)"]
    found = {row["method"]: row["LeakMLP"]["mean"] for row in to_json_rows(table)}
    assert found == {"byol": 0.8, "ccl": None}
    assert "Leak (MLP): the same of a perceptron with 256 hidden units" in to_markdown(table)


def test_leakages_of_two_versions_of_the_probe_are_not_compared() -> None:
    def leaky(name: str, **leakage: Any) -> Record:
        return record(spec(name), 0.5, leakage={"accuracy": 0.9, "balanced_accuracy": 0.7, **leakage})

    old, new, none = leaky("sogclr"), leaky("byol", version=2), record(spec("ccl"), 0.5)
    rows = {row["method"]: row for row in to_json_rows(one([old, new, none]))}
    assert rows["byol"]["Leak"]["mean"] == 0.7 and rows["sogclr"]["Leak"]["mean"] is None
    assert "version 1 of the leakage probe, others by 2; bench --force" in rows["sogclr"]["undefined"]["Leak"]
    assert rows["ccl"]["undefined"]["Leak"] == "not measured"
    alone = {row["method"]: row["Leak"]["mean"] for row in to_json_rows(one([old, none]))}
    assert alone == {"sogclr": 0.7, "ccl": None}


def test_rows_stand_in_the_order_that_was_asked_for() -> None:
    board = Board(order=["sogclr", "byol"])
    for name in ("ccl", "byol", "sogclr", "adversary"):
        board.add(record(spec(name), 0.5))
    (table,) = board.tables()
    assert [row.label for row in table.rows] == ["sogclr", "byol", "adversary", "ccl"]


def test_who_saw_which_label_is_in_the_row() -> None:
    all_seen = spec("ce")
    all_seen["method"] |= {"target": "all", "group": "none"}
    found = cells(one([record(spec()), record(all_seen)]))
    assert (found["sofclr"]["Target seen"], found["sofclr"]["Group seen"]) == ("none", "annotated")
    assert (found["ce"]["Target seen"], found["ce"]["Group seen"]) == ("all", "none")


def test_a_row_with_failed_seeds_does_not_compete() -> None:
    rows = [*seeds([0.9], "a"), record(spec("a", 1), state="diverged"), *seeds([0.8, 0.8], "b")]
    found = cells(one(rows))
    assert found["a"]["Acc"] == "90.00" and found["a"]["Seeds"] == "1 of 2"
    assert found["b"]["Acc"].startswith("**80.00")
    assert "- a: over seed 0 alone: does not compete." in to_markdown(one(rows))


def test_a_row_that_lacks_seeds_does_not_compete_however_it_came_to_be_so() -> None:
    """Fault A7: three seeds asked, sogclr has only seed 2, at .9."""
    rows = [*seeds([0.5, 0.6, 0.7], "simclr"), record(spec("sogclr", 2), {"Acc": 0.9}, cells=LARGE)]
    table = one(rows)
    found = cells(table)
    assert found["sogclr"]["Acc"] == "90.00" and found["sogclr"]["Seeds"] == "1 of 3"
    assert found["simclr"]["Acc"].startswith("**60.00")
    assert "- sogclr: over seed 2 alone; seeds 0, 1 not run: does not compete." in to_markdown(table)
    acc = next(row for row in to_long_rows(table) if (row["method"], row["metric"]) == ("sogclr", "Acc"))
    assert (acc["best"], acc["competes"], acc["rank"], acc["missing"]) == (False, False, 2, 2)


def test_a_row_no_better_than_the_larger_class_does_not_compete_for_fairness() -> None:
    """Fault A8: `random` at 50.25 % has the smallest gaps. It may still be best in accuracy."""
    low = [record(spec("random", s), {"Acc": 0.5025 + s / 1000, "ED": 0.001 + s / 1000}, cells=LARGE) for s in range(3)]
    good = [record(spec("a", s), {"Acc": 0.80 + s / 100, "ED": 0.1 + s / 100}, cells=LARGE) for s in range(3)]
    found = cells(one([*low, *good]))
    assert "**" not in found["random"]["ΔED"] and found["a"]["ΔED"].startswith("**11.00")
    assert found["random"]["Method"] == "random †"
    text = to_markdown(one([*low, *good]))
    assert "- random: accuracy is not two standard errors above the larger class's 50.00 %: does not compete" in text
    worse = [record(spec("b", s), {"Acc": 0.40 + s / 100, "ED": 0.1}, cells=LARGE) for s in range(3)]
    assert cells(one([*low, *worse]))["random"]["Acc"].startswith("**50.35")


def test_a_row_that_lacks_a_seed_ranks_after_every_complete_one() -> None:
    """Also after one that does not compete for fairness, and in every metric."""
    low = [record(spec("random", s), {"Acc": 0.5025 + s / 1000, "ED": 0.3}, cells=LARGE) for s in range(2)]
    good = [record(spec("a", s), {"Acc": 0.80 + s / 100, "ED": 0.2}, cells=LARGE) for s in range(2)]
    lacking = [record(spec("b", 1), {"Acc": 0.9, "ED": 0.1}, cells=LARGE)]
    rows = to_long_rows(one([*low, *good, *lacking]))
    for metric, wanted in (("ED", {"a": 1, "random": 2, "b": 3}), ("Acc", {"a": 1, "random": 2, "b": 3})):
        assert {row["method"]: row["rank"] for row in rows if row["metric"] == metric} == wanted


def test_a_trade_off_says_what_it_leaves_out_and_marks_what_does_not_compete() -> None:
    low = [record(spec("random", s), {"Acc": 0.5025, "ED": 0.01}, cells=LARGE) for s in range(3)]
    good = [record(spec("a", s), {"Acc": 0.80, "ED": 0.1 + 0.09 * (s == 2)}, cells=LARGE) for s in range(3)]
    lacking = [record(spec("b", 1), {"Acc": 0.9, "ED": 0.05}, cells=LARGE)]
    text = to_tradeoff_markdown(one([*low, *good, *lacking]))
    ed = text.partition("### Acc against ΔED")[2].partition("###")[0]
    assert "Pareto front, by ascending ΔED: random †, a." in ed
    assert "Left out, for want of a seed or a value or as collapsed: b." in ed
    assert "†: no more accurate than always saying the larger class." in ed
    assert "| 2.00 | random † | 50.25 | 1.00 |" in ed and "| 15.00 | a | 80.00 | 13.00 |" in ed
    assert "95 % interval 0.0000 to" in ed  # a t interval alone would begin below 0, where no area is


def test_a_caption_says_who_trained_longer_than_asked() -> None:
    facts = {**FACTS, "batches": {"annotated": 128}, "n_steps": 402, "n_views": 2}
    longer = [record(spec("ce", train={"min_steps": 400}), facts=facts)]
    said = "Trained longer than asked: ce, 402 steps (train.min_steps), 134 epochs of 500 annotated images in place of 100."
    assert said in to_markdown(one(longer))
    enough = [record(spec("ce", train={"min_steps": 300}), facts={**facts, "n_steps": 300})]
    assert "longer than asked" not in to_markdown(one(enough))


def test_a_caption_says_where_all_rows_see_as_many_views() -> None:
    batches = {"simclr": {"all": 256}, "sofclr": {"all": 128, "annotated": 128}}
    equal = [record(spec(m), facts={**FACTS, "batches": batches[m], "n_views": 2}) for m in batches]
    assert "Equal views: every row takes 512 augmented images per step." in to_markdown(one(equal))
    text = to_markdown(one(equal))
    assert "batches under Images/step" in text and "instead of" not in text  # the column says each row's own
    alone = to_markdown(one(equal[:1]))
    assert "Equal views" not in alone and "batch 256" in alone
    untrained = record(spec("random"), facts={**FACTS, "batches": {}, "n_views": 0})
    with_untrained = to_markdown(one([*equal, untrained]))
    assert "Equal views: every row that trains takes 512 augmented images per step." in with_untrained


def test_two_standard_errors_by_hand() -> None:
    """n = 10,000 and two seeds of equal accuracy: sqrt(.51 .49 / 10,000) = .005, so .51 is not above .50 by two of them,
    .5101 is."""
    facts = {"cells": LARGE}
    same = {"by_seed": {0: 0.0, 1: 0.0}, "sd": 0.0}
    assert below_majority(SeedStats(0.5099, **same), facts) and not below_majority(SeedStats(0.5101, **same), facts)
    assert below_majority(SeedStats(0.5101, sd=0.01, by_seed={0: 0.0, 1: 0.0}), facts)
    assert not below_majority(None, facts) and not below_majority(SeedStats(0.2), {})


def test_a_collapsed_row_competes_in_nothing() -> None:
    rows = [
        *seeds([0.7, 0.72, 0.71], "a"),
        *seeds([0.9, 0.92, 0.91], "b", facts={"collapsed": True, "feature_sd": 0.001, "effective_rank": 1.0}),
    ]
    found = cells(one(rows))
    assert found["a"]["Acc"].startswith("**71.00") and found["b"]["Acc"] == "91.00 ± 1.00"
    assert (
        "- b: seed 0, 1, 2: the features have collapsed (standard deviation 0.001, effective rank 1): does not compete."
        in to_markdown(one(rows))
    )


def test_best_is_the_best_mean_and_what_is_not_told_apart_from_it() -> None:
    """Differences to a: b .001, -.001, 0 (p = 1); c .1, .101, .099 (p < .001)."""
    rows = [*seeds([0.80, 0.82, 0.84], "a"), *seeds([0.799, 0.821, 0.84], "b"), *seeds([0.70, 0.719, 0.741], "c")]
    found = cells(one(rows))
    assert [found[name]["Acc"].startswith("**") for name in "abc"] == [True, True, False]
    ranks = {row["method"]: row["rank"] for row in to_long_rows(one(rows)) if row["metric"] == "Acc"}
    assert ranks == {"a": 1, "b": 1, "c": 3} or ranks == {"a": 1, "b": 2, "c": 3}


def test_what_is_inside_the_noise_floor_is_marked() -> None:
    floor = {"ED": {"mean": 0.02, "high": 0.05, "n_replicates": 200, "n_undefined": 0}}
    rows = [record(spec("a", s), {"Acc": 0.8, "ED": x}, noise_floor=floor) for s, x in enumerate([0.03, 0.04])]
    rows += [record(spec("b", s), {"Acc": 0.8, "ED": x}, noise_floor=floor) for s, x in enumerate([0.06, 0.05])]
    table = one(rows)
    found = cells(table)
    assert found["a"]["ΔED"].endswith("±" + " 0.71** °") or found["a"]["ΔED"].endswith("0.71 °")
    assert "°" not in found["b"]["ΔED"] and "°: inside the noise floor" in to_markdown(table)
    line = next(row for row in to_long_rows(table) if (row["method"], row["metric"]) == ("a", "ED"))
    assert (line["floor_mean"], line["floor_high"], line["inside_floor"]) == (0.02, 0.05, True)


def test_a_constant_predictor_is_told() -> None:
    """Fault D17: all gaps are 0, which says nothing of fairness."""
    facts = {**FACTS, "one_class": 1}
    rows = [record(spec("a", s), {"Acc": 0.5, "ED": 0.0, "DP": 0.0}, facts=facts) for s in range(2)]
    text = to_markdown(one([*rows, *seeds([0.8, 0.81], "b")]))
    assert (
        "- a: all predictions are one class (seed 0, 1: y = 1): gaps in decisions are 0 for want of decisions." in text
    )
    assert "**" not in cells(one([*rows, *seeds([0.8, 0.81], "b")]))["a"]["ΔED"]


def test_the_caption_says_pairs_departures_selection_and_hardware() -> None:
    facts = {
        **FACTS,
        "groups": ["a", "b", "c"],
        "pairs": "all",
        "departures": ["the official partition is not usable"],
        "selection": {"rule": "paper", "trials": 12, "chosen": {"train.lr": 0.001}},
    }
    env = {"device": "cpu (x86_64)", "threads": "2", "torch": "2.14.1"}
    text = to_markdown(one([record(spec("a", s), 0.7, facts=facts, env=env) for s in range(2)]))
    assert "3 groups: gaps are means over all 3 pairs of groups" in text
    assert "Departure from the protocol: the official partition is not usable." in text
    assert "Settings selected by rule paper, 12 trials each, on validation data: a with train.lr=0.001." in text
    assert (
        "Trained on cpu (x86\\_64), 2 threads, torch 2.14.1: another device" in text
        or "Trained on cpu (x86_64)" in text
    )


def test_the_caption_says_of_each_search_what_was_tried_chosen_and_not_met() -> None:
    rule = {"rule": "paper", "reference": "ce", "asked": 5, "trial_seeds": [0]}
    both = {**rule, "trials": 5, "space": 9, "chosen": {"train.lr": 0.001}}
    later = {"rule": "constrained:1", "asked": 1, "trials": 1, "space": 9, "trial_seeds": [0, 1]}
    later |= {"chosen": {"train.lr": 0.001}, "flag": "no setting is fair; the fairest was taken"}
    few = {**rule, "trials": 3, "space": 3, "chosen": {}}
    fewer = {**rule, "trials": 2, "space": 4, "chosen": {}}
    none = {**rule, "trials": 1, "space": 1, "chosen": {}}
    records = [
        record(spec("a", seed), 0.7, facts={**FACTS, "selection": [both, later] if seed == 0 else [both]})
        for seed in range(2)
    ]
    for name, selection in (("b", few), ("c", fewer), ("d", none)):
        records += [record(spec(name, seed), 0.7, facts={**FACTS, "selection": [selection]}) for seed in range(2)]
    text = " ".join(one(records).heading)
    assert (
        "Settings selected by rule paper (reference ce), 5 trials each (b 3, its whole space; c 2 of 4, the others did not "
        "end well; d has nothing to search), on validation data: a with train.lr=0.001; b; c; d."
    ) in text
    assert (
        "Settings selected by rule constrained:1, 1 trial each, 2 seeds per trial, on validation data: "
        "a with train.lr=0.001 (seed 0 alone). Rule constrained:1 was not met for a: no setting is fair; the fairest was taken."
    ) in text


def test_a_chosen_setting_is_told_with_its_rule_and_is_no_exception() -> None:
    """Before: `train.lr = 1e-05 instead of 0.0001: b`."""

    def tuned(name: str, lr: float, chosen: bool) -> Record:
        found = spec(name)
        found["train"] = {**found["train"], "lr": lr}
        selection = [{"rule": "accuracy", "trials": 2, "chosen": {"train.lr": lr}}] if chosen else []
        return record(found, 0.7, facts={**FACTS, "selection": selection})

    plain = one([tuned("a", 0.001, False), tuned("b", 1e-5, False)])
    assert any("instead of" in note for note in plain.notes)
    told = one([tuned("a", 0.001, True), tuned("b", 1e-5, True)])
    assert not any("instead of" in note for note in told.notes)
    assert "a with train.lr=0.001; b with train.lr=1e-05." in " ".join(told.heading)
    assert " ".join(told.heading).count("train.lr=1e-05") == 1


def test_rows_of_one_family_stand_together() -> None:
    """What training saw comes first, then the order asked for, then the paper's."""
    ce, plain = spec("ce", weight=0.0), spec("byol", weight=0.0)
    ce["method"] |= {"target": "all"}
    records = [record(spec("sofclr")), record(plain), record(ce), record(spec("simclr", weight=0.0))]
    table = one(records)
    assert [row.label for row in table.rows] == ["ce", "simclr", "byol", "sofclr"]
    assert [list(family) for family in table.families()] == [[0], [1, 2], [3]]
    assert to_latex(table).count(r"\midrule") == 3


def test_one_undefined_seed_leaves_the_mean_undefined() -> None:
    """Faults M1, M12: never a zero and never an average over the rest."""
    table = one([*seeds([0.2, None, 0.3], "a", "EO"), *seeds([0.4, 0.4], "b", "EO")])
    found = cells(table)
    assert found["a"]["ΔEO"] == "-" and found["b"]["ΔEO"].startswith("40.00")
    assert "- a: ΔEO undefined (-): seed 1: group 1 has no EO." in to_markdown(table)
    row = to_json_rows(table)[0]
    assert row["EO"] == {"mean": None, "sd": None}
    assert row["undefined"] == {"EO": "seed 1: group 1 has no EO"}
    assert "undefined" not in to_json_rows(table)[1]
    line = next(line for line in csv.DictReader(io.StringIO(to_csv(table))) if line["metric"] == "EO")
    assert (line["mean"], line["sd"], line["undefined"]) == ("", "", "seed 1: group 1 has no EO")


def test_a_reason_that_all_seeds_share_is_said_once() -> None:
    table = one(seeds([None, None], symbol="EO"))
    assert table.rows[0].values["EO"].reason == "group 1 has no EO"


def test_an_empty_group_is_told_with_its_zero() -> None:
    """Fault M12."""
    assert "y = 1: Caucasian 1352, others 0." in to_markdown(one([record(spec())]))


def test_a_metric_that_was_not_measured_is_undefined() -> None:
    bare = Record(spec=spec(), key="k1", state="ok", metrics={"Acc": 0.5}, columns=columns())
    table = one([bare])
    assert cells(table)["sofclr"]["KL"] == "-"
    assert to_json_rows(table)[0]["undefined"]["KL"] == "not measured"


def test_failed_cells_are_rows_that_say_so() -> None:
    trace = "Traceback (most recent call last):\n  File ...\nRuntimeError: out of | memory\n"
    records = [
        record(spec("a", 0), state="failed", error=trace),
        record(spec("a", 1), state="failed", error=trace),
        record(spec("a", 2), state="diverged", error="step 120: loss nan\nmore"),
        *seeds([0.8, 0.8, 0.8], "b"),
    ]
    table = one(records)
    found = cells(table)
    assert found["a"]["Acc"] == "failed (2 of 3 seeds), diverged (1 of 3 seeds)"
    assert {found["a"][c.heading] for c in table.columns[1:]} == {"-"}
    assert found["a"]["Seeds"] == "0 of 3"
    assert (
        r"- a: seed 0, 1: failed: RuntimeError: out of \| memory; seed 2: diverged: step 120: loss nan."
        in to_markdown(table)
    )
    row = to_json_rows(table)[0]
    assert (row["n_seeds"], row["failed"]) == (3, 3)
    assert row["Acc"] == {"mean": None, "sd": None} and row["undefined"]["Acc"] == "no seed ended well (of 3)"
    assert to_json_rows(table)[1]["failed"] == 0
    key = table.rows[0].keys[0]
    where = f"The whole error is in results/{key}/record.json and 2 more; the same command with --retry-failed runs"
    assert where in to_markdown(table)
    assert row["failures"][0] == {
        "seed": 0,
        "state": "failed",
        "reason": "RuntimeError: out of | memory",
        "path": f"results/{key}/record.json",
    }
    assert row["way_out"] == "the same command with --retry-failed runs it again"


def test_an_ok_record_stands_for_a_failed_one_of_the_same_seed() -> None:
    records = [record(spec(), state="failed"), record(spec(), 0.75)]
    for order in (records, records[::-1]):
        assert to_json_rows(one(order))[0]["Acc"]["mean"] == 0.75


def test_two_results_of_one_run_are_refused() -> None:
    with pytest.raises(UserError, match=r"seed 0 of sofclr has two different results \(k1 and k2\)"):
        build([record(spec(), 0.5, key="k1"), record(spec(), 0.6, key="k2")])
    assert len(build([record(spec(), 0.5, key="k1"), record(spec(), 0.5, key="k1")])) == 1


def test_a_record_without_a_spec_is_named() -> None:
    with pytest.raises(UserError, match="record k1 has no spec that a table can be made of"):
        build([Record(spec={}, key="k1", state="ok")])


def test_namesakes_are_told_apart_by_what_they_differ_in() -> None:
    records = [record(spec(seed=s, weight=w, train={"epochs": e})) for s in (0, 1) for w in (0.5, 1.0) for e in (5, 50)]
    labels = [row.label for row in one(records).rows]
    assert labels == sorted(f"sofclr (adversary.weight={w}, train.epochs={e})" for w in (0.5, 1.0) for e in (5, 50))
    assert all(row.seeds == (0, 1) for row in one(records).rows)
    found = one([record(spec(weight=0.0)), record(spec(weight=1.0))])
    assert [row.label for row in found.rows] == [
        "sofclr (adversary.weight=0.0)",
        "sofclr (adversary.weight=1.0)",
    ]


def test_the_row_of_weight_0_of_a_sweep_stands_beside_the_others_by_its_weight() -> None:
    """What only the dropped head read is in no label: the annotated share, the discriminator's optimiser."""
    swept = []
    for weight in (0.0, 0.5, 1.0):
        one_of = spec(weight=weight, train={"epochs": 5})
        if weight:
            one_of = {**one_of, "annotated": 0.05, "train": {**one_of["train"], "dual_lr": 0.001}}
        swept.append(record(one_of))
    expected = [f"sofclr (adversary.weight={weight})" for weight in (0.0, 0.5, 1.0)]
    assert [row.label for row in one(swept).rows] == expected


def test_one_composition_is_one_row_whatever_it_was_called_unless_names_are_given() -> None:
    records = [record(spec("sogclr+adversary", 0)), record(spec("sofclr", 1))]
    assert [(row.label, row.seeds) for row in one(records).rows] == [("sofclr", (0, 1))]
    board = Board()
    for r in (record(spec(seed=0)), record(spec(seed=1))):
        for label in ("sofclr", "sogclr+adversary"):
            board.add(r, label)
    (table,) = board.tables()
    assert [(row.label, row.seeds) for row in table.rows] == [("sofclr", (0, 1)), ("sogclr+adversary", (0, 1))]


def test_settings_that_only_some_rows_have_are_noted() -> None:
    records = [record(spec(name)) for name in ("a", "b", "d")]
    records.append(record(spec("c", train={"epochs": 7})))
    text = to_markdown(one(records))
    assert "100 epochs, batch 64" in text
    assert "- train.epochs = 7 instead of 100: c." in text


@pytest.mark.parametrize(("n", "said"), [(10000, "100 %"), (9990, "99.9 %"), (500, "5 %"), (3, "0.03 %")])
def test_the_annotated_share_is_a_plain_number(n: int, said: str) -> None:
    (line,) = _images({"n_train": "10000", "n_annotated": str(n)}, {})
    assert line == f"Images: 10000 train, {n} of them annotated ({said})."


def test_the_heading_says_what_the_numbers_are_of() -> None:
    text = to_markdown(one(seeds([0.8, 0.8, 0.8, 0.8])))
    assert text.startswith("## utkface: target gender, attribute ethnicity\n")
    for fact in (
        "y = 1 is male.",
        "Groups: 0 Caucasian, 1 others.",
        "Encoder resnet18 (stem=standard), 64 px, 100 epochs, batch 64.",
        "Images: 10000 train, 500 of them annotated (5 %), 2704 test.",
        "Test examples: y = 0: Caucasian 676, others 676; y = 1: Caucasian 1352, others 0.",
        "Seeds 0, 1, 2, 3; mean ± sample standard deviation (n - 1) over the seeds.",
        "content 0123456789ab, split 0",
        "Metric versions: all 1.",
    ):
        assert fact in text


def test_tables_are_by_dataset_target_and_attribute() -> None:
    places = [("celeba", "young", "male"), ("celeba", "attractive", "male"), ("utkface", "gender", "age")]
    tables = build([record(spec(dataset=d, target=t, attribute=a)) for d, t, a in places])
    assert [(t.dataset, t.target, t.attribute) for t in tables] == sorted(places)
    assert not any(t.differs or "stand in" in to_markdown(t) for t in tables)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"fingerprint": "ffffffffffffffff"}, "fingerprint"),
        ({"fingerprint": None}, "fingerprint"),
        ({"image_size": 32}, "image_size"),
        ({"split_seed": 1}, "split_seed"),
        ({"version": 2}, "version"),
        ({"params": {"pairs": "all"}}, "data.pairs"),
        ({"params": {"pairs": "all"}, "fingerprint": "ffffffffffffffff"}, "data.pairs"),  # it follows from them
    ],
)
def test_rows_of_other_data_never_share_a_table(change: dict[str, Any], name: str) -> None:
    """Fault S5."""
    tables = build([record(spec("a")), record(spec("b", **change))])
    assert [len(t.rows) for t in tables] == [1, 1]
    for table in tables:
        assert list(table.differs) == [name]
        assert f"stand in 2 tables, since they must not be compared: {name} differs." in to_markdown(table)
    assert len({t.title for t in tables}) == 2
    assert {next(iter(row["differs"])) for row in to_json_rows(*tables)} == {name}


def test_the_heading_of_other_data_has_the_words_that_were_typed() -> None:
    """The content's fingerprint stands there only where nothing else tells two tables apart."""

    def titles(*data: tuple[int | None, str]) -> list[str]:
        specs = [spec(params={} if n is None else {"n_eval": n}, fingerprint=content * 16) for n, content in data]
        return sorted(
            t.title.removeprefix("utkface: target gender, attribute ethnicity") for t in build(map(record, specs))
        )

    assert titles((40, "a"), (None, "b")) == [", data.n_eval=40", ", data.n_eval=default"]
    assert titles((40, "a"), (50, "b"), (50, "c")) == [
        f", fingerprint {content * 12}, data.n_eval={n}" for content, n in (("a", 40), ("b", 50), ("c", 50))
    ]


def test_rows_of_other_metric_versions_never_share_a_table() -> None:
    """Fault S5; a failed record, which measured nothing, stands where its spec says."""
    newer = spec("b")
    tables = build(
        [
            record(spec("a")),
            record(newer, columns=columns(KL=2)),
            record(spec("c"), state="failed"),
        ]
    )
    assert [[row.label for row in t.rows] for t in tables] == [["a", "c"], ["b"]]
    assert tables[1].differs == {"metric KL version": "2"}
    assert "DP 1, IntraAUC 1, InterAUC 1, GAUC 1, WD 1, KL 2." in to_markdown(tables[1])


def many() -> list[Record]:
    rng = random.Random(0)
    found = []
    for method in ("simclr", "sofclr", "a|b\nc <i>", "byol+adversary:0.3"):
        for attribute in ("ethnicity", "age"):
            for size in (32, 64):
                for seed in range(3):
                    s = spec(method, seed, attribute=attribute, image_size=size, weight=0.1 * len(method))
                    state: State = rng.choice(["ok", "ok", "ok", "failed", "diverged"])
                    values = {symbol: rng.choice([rng.random(), rng.random(), None]) for symbol in SYMBOLS}
                    found.append(record(s, values, state=state, key=f"k{len(found):03d}", error=rng.choice("xyz")))
    return found


def test_shuffled_records_give_equal_bytes() -> None:
    """Fault S11: also from disk, where mappings come in another order."""
    records = many()
    renders = (to_markdown, to_csv, to_latex, to_html, lambda *tables: json.dumps(to_json_rows(*tables)))
    expected = [render(*build(records)) for render in renders]
    for seed in range(5):
        random.Random(seed).shuffle(records)
        assert [render(*build(records)) for render in renders] == expected
    stored = [Record.model_validate_json(r.to_json()) for r in records]
    assert [render(*build(stored)) for render in renders] == expected


def test_text_cannot_break_a_table() -> None:
    """Fault S11: a bar, a line break, a backslash, a tag."""
    table = one([record(spec("a|b\nc\\|<b>"))])
    assert list(cells(table)) == [r"a\|b c\\\|&lt;b>"]
    tex = to_latex(one([record(spec("a_b & 50% #1 {x} \\ ~ ^ $"))]))
    assert r"a\_b \& 50\% \#1 \{x\} \textbackslash{} \textasciitilde{} \textasciicircum{} \$ $^\dagger$ & " in tex


def test_latex_has_a_row_per_row_and_bold_for_best() -> None:
    tex = to_latex(one([*seeds([0.9, 0.9, 0.9], "a"), *seeds([0.79, 0.8, 0.81], "b")]))
    assert r"a & \textbf{90.00} ($\pm$ 0.00) & " in tex and r"b & 80.00 ($\pm$ 1.00) & " in tex
    body = tex.split(r"\midrule")[1].split(r"\bottomrule")[0].strip().splitlines()
    assert len(body) == 2 and {line.count(" & ") for line in body} == {9}


def test_json_rows_are_the_documented_object() -> None:
    (row,) = to_json_rows(one(seeds([0.80, 0.82, 0.87])))
    assert list(row) == ["method", "dataset", "target", "attr", "n_seeds", "failed", *SYMBOLS]
    assert [row[k] for k in ("method", "dataset", "target", "attr")] == ["sofclr", "utkface", "gender", "ethnicity"]
    assert (row["n_seeds"], row["failed"]) == (3, 0)
    assert all(set(row[symbol]) == {"mean", "sd"} for symbol in SYMBOLS)


def test_csv_numbers_round_trip() -> None:
    table = one(seeds([1 / 3, 0.1 + 0.2]))
    line = next(csv.DictReader(io.StringIO(to_csv(table))))
    value = table.rows[0].values["Acc"]
    assert (line["metric"], float(line["mean"]), float(line["sd"]), line["n"]) == ("Acc", value.mean, value.sd, "2")


def test_piped_output_is_plain_markdown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    tables = build(many())
    show(tables)
    assert capsys.readouterr().out == to_markdown(*tables)


def test_a_terminal_gets_every_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    out = io.StringIO()
    show([one([*seeds([0.8, 0.9], "[red]x"), *seeds([0.7], "y")])], out, terminal=True)
    text = out.getvalue()
    assert "\x1b[1m85.00 ± 7.07\x1b[0m" in text and "\x1b[1m70.00" not in text
    assert "[red]x" in text and "\x1b[31m" not in text


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120, 200])
def test_no_value_breaks_at_any_width(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault C3: the columns that fit, each number whole; the others are named, and `whole` has them all."""
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    table = one(
        [
            *seeds([0.8, 0.9, 0.85], "sofclr"),
            *seeds([0.7, 0.72, 0.9], "a_method_with_a_long_name (adversary.weight=0.5)"),
        ]
    )
    text = {}
    for whole in (False, True):
        out = io.StringIO()
        show([table], out, whole=whole, terminal=True)
        text[whole] = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue())
        assert max(len(line) for line in text[whole].splitlines()) <= width
    values = [cell.text for row in table.body for cell in row[1 : 1 + len(table.columns)]]
    assert all(value in text[True] for value in values) and values[0] in text[False]
    shown = [value in text[False] for value in values[: len(table.columns)]]
    assert shown == sorted(shown, reverse=True)  # the first columns are those shown
    left_out = [
        c
        for c, there in zip(table.columns, [c.heading in text[False] for c in table.columns], strict=True)
        if not there
    ]
    assert not left_out
    assert ("--all-columns shows them" in " ".join(text[False].split())) == (len(text[True]) > len(text[False]))


def on_terminal(tables: Sequence[Table], width: int, monkeypatch: pytest.MonkeyPatch, whole: bool = False) -> str:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    out = io.StringIO()
    show(tables, out, whole=whole, terminal=True)
    return re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue())


def test_a_long_name_is_folded_between_words_and_leaves_room_for_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = [{"adversary.weight": 0.5}, {"adversary.weight": 1.0}]
    rows = [record(spec(seed=s, weight=w["adversary.weight"], train={"lr": w["adversary.weight"]}))
            for w in settings for s in (0, 1)]  # fmt: skip
    table = one(rows)
    assert max(len(row.label) for row in table.rows) > 40
    lines = on_terminal([table], 80, monkeypatch, whole=True).splitlines()
    heads = [line for line in lines if line.startswith(" Method ")]
    assert "ΔEO" in heads[0] and len(heads) < len(table.head) / 2
    assert not [line for line in lines if line.strip() in ("hod", "Met")]
    words = {word for row in table.rows for word in row.label.split()}
    assert all(any(word in line for line in lines) for word in words)


def test_a_terminal_marks_what_is_inside_the_noise_floor(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a sign too, which the caption explains: dimmed text alone does not say why."""
    floor = {"ED": {"mean": 0.1, "high": 0.9, "n_undefined": 0, "n_replicates": 200}}
    text = on_terminal([one([record(spec(), 0.5, noise_floor=floor)])], 120, monkeypatch)
    assert "50.00 °" in text and "°: inside the noise floor" in " ".join(text.split())


def test_what_all_tables_say_stands_once_below_them(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = build([record(spec(attribute=name)) for name in ("ethnicity", "age")])
    text = " ".join(on_terminal(tables, 100, monkeypatch).split())
    assert len(tables) == 2 and text.count("One seed: no spread is known, so nothing is bold.") == 1
    last = text.index("Of all tables:")
    assert last < text.index("One seed: no spread") and text.rindex("Encoder") >= text.index("utkface")
    for table in tables:
        assert all(sentence in text for sentence in table.heading)
    alone = " ".join(on_terminal(tables[:1], 100, monkeypatch).split())
    assert "Of all tables" not in alone and all(sentence in alone for sentence in tables[0].heading)


def test_a_setting_that_came_later_tells_rows_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """At its default it is not in a spec; a part that is missing altogether is told by the name of the row."""
    records = []
    for start in (None, 0.3, 0.7):
        for seed in (0, 1):
            content = spec(seed=seed)
            if start is not None:
                content["method"]["heads"][0]["params"]["start"] = start
            records.append(record(content))
    labels = {row.label for row in one(records).rows}
    assert {label for label in labels if "start" in label} == {
        "sofclr (adversary.start=0.3)", "sofclr (adversary.start=0.7)"
    }  # fmt: skip
    assert len(labels) == 3


def test_forced_colours_make_no_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault D15."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    tables = build(many())
    show(tables)
    assert capsys.readouterr().out == to_markdown(*tables)
