"""The board: what a table says, and that it says the same of the same records in whatever order."""

from __future__ import annotations

import csv
import io
import json
import math
import random
import re
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from fairssl import cli
from fairssl.board.build import build_folder
from fairssl.board.csv import to_csv
from fairssl.board.json import to_json_rows
from fairssl.board.latex import to_latex
from fairssl.board.markdown import to_markdown
from fairssl.board.rows import Board, build
from fairssl.board.table import COLUMNS, Table
from fairssl.board.terminal import show
from fairssl.store.record import Predictions, Record, State
from fairssl.store.runs import RunStore
from fairssl.types import UserError

SYMBOLS = ["Acc", "ED", "EO", "DP", "IntraAUC", "InterAUC", "GAUC", "WD", "KL"]
FACTS = {"groups": ["Caucasian", "others"], "positive": "male", "n_train": 10000, "n_annotated": 500, "n_test": 2704}
CELLS = {"0": {"Caucasian": 676, "others": 676}, "1": {"Caucasian": 1352, "others": 0}}


def spec(
    method: str = "sofclr", seed: int = 0, *, weight: float = 1.0, train: Mapping[str, Any] | None = None, **data: Any
) -> dict[str, Any]:
    objective = "sogclr" if method in ("sofclr", "sogclr+adversary") else method  # two names of one composition
    head = {"name": "adversary", "version": 1, "params": {"weight": weight, "hidden": 512}}
    return {
        "method": {
            "name": method,
            "objective": {"name": objective, "version": 1, "params": {"tau": 0.3}},
            "heads": [head] if weight else [],
            "probe": "linear",
            "target": "none",
            "group": "annotated" if weight else "none",
        },
        "data": {
            "dataset": "utkface",
            "version": 1,
            "params": {},
            "fingerprint": "0123456789abcdef",
            "image_size": 64,
            "split_seed": 0,
            "target": "gender",
            "attribute": "ethnicity",
            **data,
        },
        "annotated": 0.05,
        "encoder": {"name": "resnet18", "version": 1, "params": {"stem": "standard"}},
        "train": {"epochs": 100, "batch_size": 64, "lr": 0.001, **(train or {})},
        "metrics": dict.fromkeys(SYMBOLS, 1),
        "seed": seed,
    }


def record(
    spec: dict[str, Any],
    values: float | Mapping[str, float | None] = 0.5,
    *,
    state: State = "ok",
    error: str = "boom",
    **fields: Any,
) -> Record:
    """A record whose metrics are all one number, or as given and 0.5 else; None is undefined."""
    given = dict(values) if isinstance(values, Mapping) else dict.fromkeys(SYMBOLS, values)
    metrics = {**dict.fromkeys(SYMBOLS, 0.5), **given} if state == "ok" else {}
    fields.setdefault("undefined", {s: f"group 1 has no {s}" for s, v in metrics.items() if v is None})
    fields.setdefault("metric_versions", dict.fromkeys(SYMBOLS, 1) if state == "ok" else {})
    fields.setdefault("key", f"k{zlib.crc32(json.dumps([spec, given]).encode()):x}")
    ok = {"facts": FACTS, "cells": CELLS} if state == "ok" else {"error": error}
    return Record(spec=spec, state=state, metrics=metrics, **{**ok, **fields})


def seeds(values: Sequence[float | None], method: str = "sofclr", symbol: str = "Acc", **given: Any) -> list[Record]:
    return [record(spec(method, seed, **given), {symbol: value}) for seed, value in enumerate(values)]


def one(records: Sequence[Record]) -> Table:
    (table,) = build(records)
    return table


def cells(table: Table) -> dict[str, dict[str, str]]:
    """label -> heading -> cell, read back from the Markdown."""
    lines = [line for line in to_markdown(table).splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    assert len({len(row) for row in rows}) == 1, "a row with another number of cells than the head"
    return {row[0]: dict(zip(rows[0], row, strict=True)) for row in rows[2:]}


# --------------------------------------------------------------------------- numbers


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
    assert cells(table)["sofclr"]["Acc"] == "**80.00**"
    assert "±" not in to_markdown(table) and "pm" not in to_latex(table)
    assert to_json_rows(table)[0]["Acc"] == {"mean": 0.8, "sd": None}


def test_columns_and_scales_are_the_papers() -> None:
    table = one([record(spec(), 0.125)])
    assert table.head == [
        *("Method", "Acc", "ΔED", "ΔEO", "ΔDP", "IntraAUC", "InterAUC", "GAUC", "WD", "KL"),
        *("Target seen", "Group seen", "Seeds"),
    ]
    assert [text for text, _ in table.body[0]] == [
        *("sofclr", "12.50", "12.50", "12.50", "12.50", "0.1250", "0.1250", "0.1250", "0.1250", "0.1250"),
        *("none", "annotated", "1"),
    ]
    assert [c.symbol for c in COLUMNS if c.better == "higher"] == ["Acc"]


def test_leakage_stands_beside_the_metrics_where_it_was_measured() -> None:
    """A diagnostic: after the paper's columns, never bold, its balanced accuracy x 100."""
    leaky = [
        record(spec(seed=s), 0.5, leakage={"accuracy": 0.9, "balanced_accuracy": x}) for s, x in enumerate([0.7, 0.8])
    ]
    table = one(leaky)
    assert table.head[9:11] == ["KL", "Leak"]
    assert table.body[0][10] == ("75.00 ± 7.07", False)
    assert to_json_rows(table)[0]["Leak"]["mean"] == pytest.approx(0.75)
    assert "Leak_mean" in to_csv(table, one([record(spec(), 0.5)]))
    assert "Leak" not in to_markdown(one([record(spec(), 0.5)]))


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


# --------------------------------------------------------------------------- bold


def test_best_is_bold_and_as_printed_equal_is_equal() -> None:
    rows = [
        *seeds([0.80001], "a"),
        *seeds([0.80004], "b"),
        *seeds([0.7999], "c"),
    ]
    found = cells(one(rows))
    assert [found[name]["Acc"] for name in "abc"] == ["**80.00**", "**80.00**", "79.99"]
    rows = [*seeds([0.30001], "a", "KL"), *seeds([0.30004], "b", "KL"), *seeds([0.3001], "c", "KL")]
    found = cells(one(rows))
    assert [found[name]["KL"] for name in "abc"] == ["**0.3000**", "**0.3000**", "0.3001"]
    assert all(found[name]["WD"] == "**0.5000**" for name in "abc")


def test_a_row_with_failed_seeds_does_not_compete() -> None:
    rows = [*seeds([0.9], "a"), record(spec("a", 1), state="diverged"), *seeds([0.8, 0.8], "b")]
    found = cells(one(rows))
    assert found["a"]["Acc"] == "90.00" and found["a"]["Seeds"] == "1 of 2"
    assert found["b"]["Acc"].startswith("**80.00")
    assert "does not compete for bold" in to_markdown(one(rows))


# --------------------------------------------------------------------------- what is missing


def test_one_undefined_seed_leaves_the_mean_undefined() -> None:
    """Faults M1, M12: never a zero and never an average over the rest."""
    table = one([*seeds([0.2, None, 0.3], "a", "EO"), *seeds([0.4, 0.4], "b", "EO")])
    found = cells(table)
    assert found["a"]["ΔEO"] == "-" and found["b"]["ΔEO"].startswith("**40.00")
    assert "- a: ΔEO undefined (-): seed 1: group 1 has no EO." in to_markdown(table)
    row = to_json_rows(table)[0]
    assert row["EO"] == {"mean": None, "sd": None}
    assert row["undefined"] == {"EO": "seed 1: group 1 has no EO"}
    assert "undefined" not in to_json_rows(table)[1]
    line = next(csv.DictReader(io.StringIO(to_csv(table))))
    assert (line["EO_mean"], line["EO_sd"], line["undefined"]) == ("", "", "EO: seed 1: group 1 has no EO")


def test_a_reason_that_all_seeds_share_is_said_once() -> None:
    table = one(seeds([None, None], symbol="EO"))
    assert table.rows[0].values["EO"].reason == "group 1 has no EO"


def test_an_empty_group_is_told_with_its_zero() -> None:
    """Fault M12."""
    assert "y = 1: Caucasian 1352, others 0." in to_markdown(one([record(spec())]))


def test_a_metric_that_was_not_measured_is_undefined() -> None:
    bare = Record(spec=spec(), key="k1", state="ok", metrics={"Acc": 0.5})
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


# --------------------------------------------------------------------------- rows


def test_namesakes_are_told_apart_by_what_they_differ_in() -> None:
    records = [record(spec(seed=s, weight=w, train={"epochs": e})) for s in (0, 1) for w in (0.5, 1.0) for e in (5, 50)]
    labels = [row.label for row in one(records).rows]
    assert labels == sorted(f"sofclr (adversary.weight={w}, train.epochs={e})" for w in (0.5, 1.0) for e in (5, 50))
    assert all(row.seeds == (0, 1) for row in one(records).rows)
    found = one([record(spec(weight=0.0)), record(spec(weight=1.0))])
    assert [row.label for row in found.rows] == [
        "sofclr (method.group=annotated, parts=sogclr+adversary)",
        "sofclr (method.group=none, parts=sogclr)",
    ]


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


# --------------------------------------------------------------------------- tables


def test_the_heading_says_what_the_numbers_are_of() -> None:
    text = to_markdown(one(seeds([0.8, 0.8, 0.8, 0.8])))
    assert text.startswith("## utkface: target gender, attribute ethnicity\n")
    for fact in (
        "y = 1 is male.",
        "Groups: 0 Caucasian, 1 others.",
        "Encoder resnet18 (stem=standard), 64 px, 100 epochs, batch 64.",
        "Images: 10000 train, 500 of them annotated (5 %), 2704 test.",
        "Test examples: y = 0: Caucasian 676, others 676; y = 1: Caucasian 1352, others 0.",
        "Seeds 0, 1, 2, 3; mean ± sample standard deviation.",
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
        ({"params": {"pairs": "all"}}, "params.pairs"),
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


def test_rows_of_other_metric_versions_never_share_a_table() -> None:
    """Fault S5; a failed record, which measured nothing, stands where its spec says."""
    newer = spec("b")
    newer["metrics"] = newer["metrics"] | {"KL": 2}
    tables = build(
        [
            record(spec("a")),
            record(newer, metric_versions=newer["metrics"]),
            record(spec("c"), state="failed"),
        ]
    )
    assert [[row.label for row in t.rows] for t in tables] == [["a", "c"], ["b"]]
    assert tables[1].differs == {"metric KL version": "2"}
    assert "DP 1, IntraAUC 1, InterAUC 1, GAUC 1, WD 1, KL 2." in to_markdown(tables[1])


# --------------------------------------------------------------------------- text


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


def test_shuffled_records_give_equal_bytes(tmp_path: Path) -> None:
    """Fault S11: also from disk, where mappings come in another order."""
    records = many()
    renders = (to_markdown, to_csv, to_latex, lambda *tables: json.dumps(to_json_rows(*tables)))
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
    assert r"a\_b \& 50\% \#1 \{x\} \textbackslash{} \textasciitilde{} \textasciicircum{} \$ & " in tex


def test_latex_has_a_row_per_row_and_bold_for_best() -> None:
    tex = to_latex(one([*seeds([0.9, 0.9], "a"), *seeds([0.8, 0.8], "b")]))
    assert r"a & \textbf{90.00 $\pm$ 0.00} & " in tex and r"b & 80.00 $\pm$ 0.00 & " in tex
    body = tex.split(r"\midrule")[1].split(r"\bottomrule")[0].strip().splitlines()
    assert len(body) == 2 and {line.count(" & ") for line in body} == {12}


def test_json_rows_are_the_documented_object() -> None:
    (row,) = to_json_rows(one(seeds([0.80, 0.82, 0.87])))
    assert list(row) == ["method", "dataset", "target", "attr", "n_seeds", "failed", *SYMBOLS]
    assert [row[k] for k in ("method", "dataset", "target", "attr")] == ["sofclr", "utkface", "gender", "ethnicity"]
    assert (row["n_seeds"], row["failed"]) == (3, 0)
    assert all(set(row[symbol]) == {"mean", "sd"} for symbol in SYMBOLS)


def test_csv_numbers_round_trip() -> None:
    table = one(seeds([1 / 3, 0.1 + 0.2]))
    (line,) = csv.DictReader(io.StringIO(to_csv(table)))
    value = table.rows[0].values["Acc"]
    assert (float(line["Acc_mean"]), float(line["Acc_sd"])) == (value.mean, value.sd)


def test_piped_output_is_plain_markdown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.setenv(name, "1")
    tables = build(many())
    show(tables)
    assert capsys.readouterr().out == to_markdown(*tables)


def test_a_terminal_gets_every_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    out = io.StringIO()
    monkeypatch.setattr(out, "isatty", lambda: True, raising=False)
    show([one([*seeds([0.8, 0.9], "[red]x"), *seeds([0.7], "y")])], out)
    text = out.getvalue()
    assert "\x1b[1m85.00 ± 7.07\x1b[0m" in text and "\x1b[1m70.00" not in text
    assert "[red]x" in text and "\x1b[31m" not in text


# --------------------------------------------------------------------------- files and the command


def fill(root: Path) -> None:
    store = RunStore(root)
    p = Predictions(["a"], *[np.zeros(1)] * 3)
    for r in many():
        store.write_result(r, p if r.state == "ok" else None)


def test_the_command_writes_the_same_files_twice(tmp_path: Path) -> None:
    """Fault S10: a second run changes no byte; every seed keeps its record and its predictions."""
    fill(tmp_path / "runs")
    contents = []
    for name in ("one", "two"):
        assert cli.run(["board", "build", str(tmp_path / "runs"), "--out", str(tmp_path / name)]) == 0
        contents.append({p.name: p.read_bytes() for p in (tmp_path / name).iterdir()})
    assert contents[0] == contents[1]
    assert set(contents[0]) == {"table.md", "table.csv", "table.tex", "records.jsonl"}
    lines = contents[0]["records.jsonl"].decode().splitlines()
    assert [json.loads(line)["key"] for line in lines] == [f"k{i:03d}" for i in range(48)]
    assert to_markdown(*build(Record.model_validate_json(line) for line in lines)) == contents[0]["table.md"].decode()
    n_ok = sum(r.state == "ok" for r in many())
    assert len(list((tmp_path / "runs").rglob("predictions.csv.gz"))) == n_ok


def test_the_command_writes_beside_the_runs_by_default(tmp_path: Path) -> None:
    fill(tmp_path)
    done = CliRunner().invoke(cli.app, ["board", "build", str(tmp_path)])
    assert done.exit_code == 0 and "48 records, 4 tables, 16 rows" in done.stdout
    assert (tmp_path / "table.md").is_file()


def test_the_commands_user_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for args, message in (
        ([str(tmp_path / "none")], "no folder"),
        ([str(tmp_path)], "holds no results; run"),
    ):
        assert cli.run(["board", "build", *args, "--out", str(tmp_path / "out")]) == 2
        err = capsys.readouterr().err
        assert message in err and err.count("\n") == 1
        assert not (tmp_path / "out").exists()


def test_a_damaged_record_leaves_the_old_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(tmp_path)
    build_folder(tmp_path, tmp_path)
    before = {p: p.read_bytes() for p in tmp_path.iterdir() if p.is_file()}
    (tmp_path / "results" / "k020" / "record.json").write_text("{")
    assert cli.run(["board", "build", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert "k020/record.json is damaged" in err and err.count("\n") == 1
    assert {p: p.read_bytes() for p in tmp_path.iterdir() if p.is_file()} == before
