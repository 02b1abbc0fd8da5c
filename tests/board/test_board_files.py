"""A board's files: built, verified, exported, added, compared, as the commands do."""

from __future__ import annotations

import contextlib
import csv
import gzip
import html
import io
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from reference import scored, small
from reference.checkout import ROOT
from reference.command import fairssl
from reference.plugin_package import write_package
from reference.records import record, spec

from fairssl import cli, scoring
from fairssl.api import metric
from fairssl.board.against_paper import Comparison, compare_with_paper
from fairssl.board.build import protocol_of
from fairssl.board.command import command_of
from fairssl.board.files import sha256
from fairssl.board.load import tables_of
from fairssl.board.paper import paper_rows
from fairssl.board.recompute import brought_up_to_date, disagreements, outdated
from fairssl.board.rows import build
from fairssl.board.verify import verify
from fairssl.board.wanted import Wanted, not_run
from fairssl.plan.resolve import Run
from fairssl.spec.run import key_of
from fairssl.store.record import ColumnFacts, Predictions, Record
from fairssl.store.runs import RunStore
from fairssl.types import Outcome

FILES = {
    "index.html",
    "manifest.json",
    "predictions",
    "records.jsonl",
    "table.csv",
    "table.md",
    "table.tex",
    "tradeoff.md",
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three methods, three seeds."""
    root = tmp_path_factory.mktemp("filled")
    scored.fill(root)
    return root


@pytest.fixture(scope="module")
def built(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("built") / "board"
    assert cli.run(["board", "build", str(runs), "--out", str(out)]) == 0
    return out


@pytest.fixture
def board(built: Path, tmp_path: Path) -> Path:
    """A copy to tamper with."""
    return Path(shutil.copytree(built, tmp_path / "board"))


def contents(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def error_of(capsys: pytest.CaptureFixture[str], words: list[str]) -> str:
    """The one line of a refused command; exit code 2."""
    assert cli.run(words) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and err.startswith("fairssl: error: ") and "Traceback" not in err
    return err


def test_the_same_runs_give_the_same_bytes(runs: Path, built: Path, tmp_path: Path) -> None:
    """Fault S10: also from a copy whose files lie on the disk in another order."""
    assert {p.name for p in built.iterdir()} == FILES
    other = tmp_path / "runs"
    for path in sorted((runs / "results").rglob("*"), reverse=True):
        if path.is_file():
            target = other / path.relative_to(runs)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    assert cli.run(["board", "build", str(other), "--out", str(tmp_path / "again")]) == 0
    assert contents(built) == contents(tmp_path / "again")
    assert cli.run(["board", "build", str(other), "--out", str(tmp_path / "again")]) == 0  # over what is there
    assert contents(built) == contents(tmp_path / "again")


def test_it_writes_beside_the_runs_by_default_and_says_what(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scored.fill(tmp_path, ("simclr",), seeds=2)
    assert cli.run(["board", "build", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "2 records, 1 table, 1 row" in out and str(tmp_path / "index.html") in out
    assert (tmp_path / "table.md").is_file()


def test_what_an_earlier_board_held_goes(tmp_path: Path) -> None:
    store = scored.fill(tmp_path / "runs", ("simclr",), seeds=2)
    assert cli.run(["board", "build", str(tmp_path / "runs"), "--out", str(tmp_path / "b")]) == 0
    gone = sorted(store.result_keys())[0]
    shutil.rmtree(store.result_dir(gone))
    assert cli.run(["board", "build", str(tmp_path / "runs"), "--out", str(tmp_path / "b")]) == 0
    assert len(list((tmp_path / "b" / "predictions").iterdir())) == 1
    assert verify(tmp_path / "b").faults == []


def test_mistakes_are_told_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], runs: Path) -> None:
    for args, message in (
        ([str(tmp_path / "none")], "no folder"),
        ([str(tmp_path)], "holds no results; run"),
        ([str(runs), "--grid", "nonsense"], "is no file and no grid of fairssl's"),
        ([str(runs), "--grid", "smoke"], "holds no run of the grid smoke"),
    ):
        assert message in error_of(capsys, ["board", "build", *args, "--out", str(tmp_path / "out")])
        assert list(tmp_path.iterdir()) == []


def test_a_build_that_fails_changes_nothing(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With a damaged record as the last: of a new board nothing is left, of an old one all."""
    folder = Path(shutil.copytree(runs, tmp_path / "runs"))
    store = RunStore(folder)
    old = tmp_path / "old"
    assert cli.run(["board", "build", str(folder), "--out", str(old)]) == 0
    (old / "predictions" / f"{min(store.result_keys())}.csv.gz").write_bytes(b"of an older training")
    before = contents(old)
    (store.result_dir(max(store.result_keys())) / "record.json").write_text("{")
    for out in (old, tmp_path / "a" / "b"):
        assert "record.json is damaged" in error_of(capsys, ["board", "build", str(folder), "--out", str(out)])
    assert contents(old) == before
    assert {p.name for p in old.iterdir()} == FILES and {p.name for p in tmp_path.iterdir()} == {"old", "runs"}


def test_a_damaged_record_leaves_the_old_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = scored.fill(tmp_path, ("simclr",), seeds=2)
    assert cli.run(["board", "build", str(tmp_path)]) == 0
    before = {p: p.read_bytes() for p in tmp_path.iterdir() if p.is_file()}
    (store.result_dir(sorted(store.result_keys())[1]) / "record.json").write_text("{")
    assert "record.json is damaged" in error_of(capsys, ["board", "build", str(tmp_path)])
    assert {p: p.read_bytes() for p in tmp_path.iterdir() if p.is_file()} == before


def test_a_record_that_its_predictions_do_not_give_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = scored.fill(tmp_path, ("simclr",), seeds=1)
    (key,) = store.result_keys()
    path = store.result_dir(key) / "record.json"
    record = json.loads(path.read_text())
    record["metrics"]["ED"] += 0.01
    path.write_text(json.dumps(record))
    assert "is not what its predictions give: ED is" in error_of(capsys, ["board", "build", str(tmp_path)])


def a_grid(path: Path) -> Path:
    """Two methods, one of which `scored.fill` knows nothing of."""
    lines = {"methods": ["simclr", "byol"], "seeds": 2, "epochs": 2, "image_size": 16, "batch_size": 16}
    lines |= {"annotated": 0.3, "set": list(small.SETS)}
    path.write_text("\n".join(f"{name} = {json.dumps(value)}" for name, value in lines.items()))
    return path


def test_a_grid_picks_its_runs_and_names_what_was_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scored.fill(tmp_path / "runs", ("simclr", "sofclr"), seeds=2)
    grid = a_grid(tmp_path / "mine.toml")
    out = tmp_path / "board"
    assert cli.run(["board", "build", str(tmp_path / "runs"), "--grid", str(grid), "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "2 records, 1 table, 1 row" in said
    assert "not run: byol synthfaces/attractive/male, seeds 0, 1\n" in said
    manifest = json.loads((out / "manifest.json").read_text())
    assert sorted(run["state"] for run in manifest["runs"].values()) == ["missing", "missing", "ok", "ok"]
    for name in ("table.md", "table.tex", "index.html"):
        text = html.unescape((out / name).read_text())
        assert "sofclr" not in text
        assert "Not run yet: 2 of the grid's 4 runs with target attractive and attribute male." in text, name
    assert cli.run(["board", "verify", str(out)]) == 0
    assert "not run: byol synthfaces/attractive/male, seeds 0, 1\n" in capsys.readouterr().out


def test_the_runs_of_a_sweep_that_are_not_there_are_counted_by_seed() -> None:
    names = [f"sofclr faces/a/b seed {seed}" for seed in (10, 2, 2, 2)] + ["byol faces/a/b seed 0"]
    assert list(not_run(names)) == [
        "not run: byol faces/a/b, seed 0",
        "not run: sofclr faces/a/b, seeds 2 (3 settings), 10",
    ]


def test_what_a_grid_lacks_is_the_same_with_and_without_its_data() -> None:
    run = small.run_of("simclr")
    elsewhere = Run(
        run.label, run.spec.model_copy(update={"data": run.spec.data.model_copy(update={"fingerprint": None})})
    )
    here, there = (Wanted("mine", [one]).missing(()) for one in (run, elsewhere))
    assert here == there and list(here.values()) == [run.name]


def test_the_csv_has_a_line_per_method_and_metric(built: Path) -> None:
    lines = list(csv.DictReader(io.StringIO((built / "table.csv").read_text())))
    symbols = {m.symbol for m in scoring.columns()} | {"Leak"}
    assert {(line["method"], line["metric"]) for line in lines} == {
        (method, symbol) for method in ("simclr", "sogclr", "sofclr") for symbol in symbols
    }
    acc = next(line for line in lines if (line["method"], line["metric"]) == ("sofclr", "Acc"))
    assert acc["n"] == "3" and 0 < float(acc["sd"]) < float(acc["mean"]) < 1 and acc["undefined"] == ""
    assert float(acc["low"]) < float(acc["mean"]) < float(acc["high"])
    assert acc["tier"] == "recomputed" and acc["command"].startswith("fairssl bench --method sofclr")


@metric("TestShare", better="higher", heading="Share", version=1)
def share(outcome: Outcome) -> float:
    """Share of predictions above one half."""
    return float((outcome.score > 0.5).mean())


@pytest.fixture
def more_metrics(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Install a metric, or raise the version of one."""
    standing = scoring.columns()

    def install(extra: Any = None, raised: str = "") -> None:
        found = []
        for one in standing:
            if one.symbol == raised:
                copy: Any = lambda o, one=one, **k: one(o, **k)  # noqa: E731
                vars(copy).update({**vars(one), "version": one.version + 1})
                one = copy
            found.append(one)
        if extra is not None:
            extra.name = "share"
            found.append(extra)
        for where in (
            "fairssl.scoring.columns",
            "fairssl.scoring.resampling.columns",
            "fairssl.scoring.metrics.columns",
        ):
            monkeypatch.setattr(where, lambda: found)

    return install


def test_a_metric_that_was_not_there_is_computed_from_the_predictions(
    runs: Path, tmp_path: Path, more_metrics: Callable[..., None]
) -> None:
    store = RunStore(runs)
    record = next(store.records())
    kept = store.read_predictions(record.key)
    assert kept is not None and outdated(record, scoring.columns()) == []
    more_metrics(share, raised="KL")
    assert [m.symbol for m in outdated(record, scoring.columns())] == ["KL", "TestShare"]
    anew = brought_up_to_date(record, kept, scoring.columns())
    assert anew.metrics["TestShare"] == float((kept.score > 0.5).mean())
    assert anew.metrics["KL"] == record.metrics["KL"] and anew.columns["KL"].version == record.columns["KL"].version + 1
    assert brought_up_to_date(anew, kept, scoring.columns()) is anew and anew.key == record.key
    text = "\n".join(build([anew])[0].heading)
    assert "Computed from the kept predictions after the runs, training nothing: KL (version " in text
    assert cli.run(["board", "build", str(runs), "--out", str(tmp_path)]) == 0
    lines = list(csv.DictReader(io.StringIO((tmp_path / "table.csv").read_text())))
    assert {line["metric"] for line in lines} >= {"TestShare"} and (tmp_path / "table.md").read_text().count("## ") == 1


SHARE = '''\
"""Share of predictions above one half."""

from fairssl.api import Outcome, metric


@metric("TestShare", better="higher", heading="Share")
def share(outcome: Outcome) -> float:
    """Share of predictions above one half, 0..1."""
    return float((outcome.score > 0.5).mean())
'''


def test_a_board_is_verified_with_its_own_metrics_whatever_else_is_installed(
    board: Path, runs: Path, tmp_path: Path
) -> None:
    write_package(tmp_path / "site", "stranger", {"metrics/share.py": SHARE})
    env = {"PYTHONPATH": str(tmp_path / "site")}
    code, out, _ = fairssl("board", "verify", board, env=env)
    assert code == 0 and "no fault" in out
    assert "note: TestShare: installed here, no part of this board" in out.splitlines()
    # One that was made with it: its values are told from the records where there are any, and refused where not.
    assert fairssl("board", "build", runs, "--out", tmp_path / "more", env=env)[0] == 0
    assert fairssl("board", "verify", tmp_path / "more", env=env)[0] == 0
    code, out, _ = fairssl("board", "verify", tmp_path / "more")
    assert code == 1 and "TestShare is of version 1, here none is installed" in out
    assert "the tables cannot be made anew: TestShare of version 1 is not installed here and not in every record" in out
    # Leaving a metric out of the manifest hides no changed value.
    manifest = json.loads((board / "manifest.json").read_text())
    del manifest["metrics"]["ED"]
    (board / "manifest.json").write_text(json.dumps(manifest))
    lines = (board / "records.jsonl").read_text().splitlines()
    first = json.loads(lines[0])
    first["metrics"]["ED"] += 0.001
    (board / "records.jsonl").write_text("\n".join([json.dumps(first), *lines[1:]]) + "\n")
    assert any("ED is " in fault for fault in verify(board).faults)


def test_what_predictions_do_not_give_is_named(runs: Path) -> None:
    store = RunStore(runs)
    record = next(store.records())
    kept = store.read_predictions(record.key)
    assert kept is not None and disagreements(record, kept, scoring.columns()) == []
    other = record.model_copy(update={"metrics": {**record.metrics, "ED": None}, "undefined": {"ED": "x"}})
    (said,) = disagreements(other, kept, scoring.columns())
    assert said.startswith("ED is undefined, its predictions give 0.")
    flipped = {**record.columns, "ED": record.columns["ED"].model_copy(update={"better": "higher"})}
    (said,) = disagreements(record.model_copy(update={"columns": flipped}), kept, scoring.columns())
    assert "ED is declared otherwise" in said


def test_a_board_as_it_was_built_has_no_fault(built: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["board", "verify", str(built)]) == 0
    n = 9 * len(scoring.columns())
    assert f"9 records, {n} cells computed again: no fault" in capsys.readouterr().out


def rewrite_records(board: Path, change: Callable[[list[dict[str, Any]]], None]) -> None:
    path = board / "records.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    change(records)
    path.write_text(
        "".join(json.dumps(r, sort_keys=True, separators=(",", ":"), ensure_ascii=False) + "\n" for r in records)
    )


def digit_in_a_metric(board: Path) -> None:
    def change(records: list[dict[str, Any]]) -> None:
        records[0]["metrics"]["ED"] += 0.001

    rewrite_records(board, change)


def digit_in_a_table(board: Path) -> None:
    path = board / "table.md"
    text = path.read_text()
    at = re.search(r"\d\.\d(\d)", text.split("| simclr")[1])
    assert at is not None
    place = text.index("| simclr") + len("| simclr") + at.start(1)
    path.write_text(text[:place] + str((int(text[place]) + 1) % 10) + text[place + 1 :])


def digit_in_the_page(board: Path) -> None:
    path = board / "index.html"
    path.write_text(
        path.read_text().replace(">simclr<", ">simclr2<", 1).replace('data-value="0.', 'data-value="0.9', 1)
    )


def digit_in_a_prediction(board: Path) -> None:
    path = sorted((board / "predictions").iterdir())[0]
    lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    words = lines[5].split(",")
    words[1] = repr(float(words[1]) / 2)
    lines[5] = ",".join(words)
    path.write_bytes(gzip.compress(("\n".join(lines) + "\n").encode(), mtime=0))


def deleted_seed(board: Path) -> None:
    rewrite_records(board, lambda records: records.pop(0))


def other_protocol(board: Path) -> None:
    """A row of another version of the probe, with the key that belongs to it."""

    def change(records: list[dict[str, Any]]) -> None:
        records[0]["spec"]["probe"]["version"] += 1
        records[0]["key"] = key_of(records[0]["spec"])

    rewrite_records(board, change)


def changed_spec(board: Path) -> None:
    def change(records: list[dict[str, Any]]) -> None:
        records[0]["spec"]["train"]["epochs"] = 3

    rewrite_records(board, change)


def changed_version_alone(board: Path) -> None:
    def change(records: list[dict[str, Any]]) -> None:
        records[0]["spec"]["train"]["loop"] = 1

    rewrite_records(board, change)


def missing_predictions(board: Path) -> None:
    sorted((board / "predictions").iterdir())[0].unlink()


def labels_exchanged(board: Path) -> None:
    """Other test labels, with metrics and hashes to match: only the other runs on the same data tell."""
    path = sorted((board / "predictions").iterdir())[0]
    key = path.name.removesuffix(".csv.gz")
    kept = Predictions.from_csv_gz(path.read_bytes())
    target = kept.target.copy()
    target[[0, scored.N_PER_CELL]] = target[[scored.N_PER_CELL, 0]]
    other = Predictions(kept.ids, kept.score, target, kept.group)
    path.write_bytes(other.to_csv_gz())

    def change(records: list[dict[str, Any]]) -> None:
        at = next(i for i, r in enumerate(records) if r["key"] == key)
        ours = Record.model_validate(records[at])
        values = {m.symbol: v for m, v in zip(scoring.columns(), _values(ours, other), strict=True)}
        records[at]["metrics"] = values

    rewrite_records(board, change)


def _values(record: Record, kept: Predictions) -> Iterator[Any]:
    from fairssl.board.recompute import outcome_of, values_of

    yield from values_of(outcome_of(record, kept), record, scoring.columns()).values()


@pytest.mark.parametrize(
    ("tamper", "message"),
    [
        (digit_in_a_metric, "ED is 0."),
        (digit_in_a_table, "table.md is not what its records give: line"),
        (digit_in_the_page, "index.html is not what its records give: line"),
        (digit_in_a_prediction, "is not the file that the manifest was made with"),
        (deleted_seed, "is expected, but not among the records"),
        (other_protocol, "is not in the manifest"),
        (changed_spec, "its spec has the key"),
        (changed_version_alone, "loop 1, probe "),
        (missing_predictions, "has no predictions/"),
        (labels_exchanged, "other test images or labels than the other runs on the same data"),
    ],
)
def test_what_was_changed_is_found(
    board: Path, tamper: Callable[[Path], None], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    tamper(board)
    assert cli.run(["board", "verify", str(board)]) == 1
    out = capsys.readouterr().out
    assert f"{message}" in out and "fault: " in out and "Traceback" not in out
    assert cli.run(["board", "verify", str(board), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["faults"]


def test_a_changed_noise_floor_is_found_where_asked(board: Path) -> None:
    def change(records: list[dict[str, Any]]) -> None:
        records[0]["noise_floor"]["ED"]["high"] += 0.01

    rewrite_records(board, change)
    assert any("noise_floor of ED is" in fault for fault in verify(board, resample=True).faults)


def test_what_is_no_board_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no folder" in error_of(capsys, ["board", "verify", str(tmp_path / "none")])
    assert "has no manifest.json" in error_of(capsys, ["board", "verify", str(tmp_path)])
    (tmp_path / "manifest.json").write_text("[" * 100_000)
    assert "is no JSON" in error_of(capsys, ["board", "verify", str(tmp_path)])


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundle")
    scored.fill(folder / "runs", ("simclr", "sofclr"), seeds=1)
    assert cli.run(["board", "export", str(folder / "runs"), "--out", str(folder / "b.zip")]) == 0
    return folder / "b.zip"


def repacked(bundle: Path, out: Path, change: Callable[[dict[str, bytes]], None], sealed: bool = True) -> Path:
    """The bundle with a change; `sealed`: with a manifest that tells of it, as a careful forger's."""
    with zipfile.ZipFile(bundle) as old:
        files = {name: old.read(name) for name in old.namelist()}
    change(files)
    if sealed:
        seal(files)
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as new:
        for name, data in files.items():
            new.writestr(name, data)
    return out


def seal(files: dict[str, bytes]) -> None:
    manifest = json.loads(files["manifest.json"])
    manifest["files"] |= {name: sha256(data) for name, data in files.items() if name != "manifest.json"}
    manifest["files"] = {name: value for name, value in manifest["files"].items() if name in files}
    with contextlib.suppress(ValueError, KeyError):
        records = [json.loads(line) for line in files["records.jsonl"].splitlines()]
        manifest["runs"] = {r["key"]: {"state": r["state"], "protocol": protocol_of(r["spec"])} for r in records}
    files["manifest.json"] = json.dumps(manifest).encode()


def test_a_bundle_goes_into_another_folder_and_its_rows_into_its_tables(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scored.fill(tmp_path / "mine", ("sogclr", "simclr"), seeds=1)
    before = contents(tmp_path / "mine")
    assert cli.run(["board", "add", str(bundle), "--runs", str(tmp_path / "mine")]) == 0
    assert "1 run added" in capsys.readouterr().out
    after = contents(tmp_path / "mine")
    assert {name: after[name] for name in before} == before
    assert [row.label for row in tables_of(tmp_path / "mine")[0].rows] == ["simclr", "sogclr", "sofclr"]
    assert cli.run(["board", "add", str(bundle), "--runs", str(tmp_path / "mine")]) == 0
    assert "0 runs added" in capsys.readouterr().out
    assert contents(tmp_path / "mine") == after
    assert cli.run(["board", "build", str(tmp_path / "mine"), "--out", str(tmp_path / "b")]) == 0
    assert verify(tmp_path / "b").faults == []


def test_equal_runs_give_an_equal_bundle(bundle: Path, tmp_path: Path) -> None:
    assert cli.run(["board", "export", str(bundle.parent / "runs"), "--out", str(tmp_path / "c.zip")]) == 0
    assert (tmp_path / "c.zip").read_bytes() == bundle.read_bytes()


def with_record(change: Callable[[dict[str, Any]], None]) -> Callable[[dict[str, bytes]], None]:
    def of_files(files: dict[str, bytes]) -> None:
        first, *rest = files["records.jsonl"].splitlines(keepends=True)
        record = json.loads(first)
        change(record)
        files["records.jsonl"] = json.dumps(record).encode() + b"\n" + b"".join(rest)

    return of_files


def first_predictions(files: dict[str, bytes]) -> str:
    return sorted(name for name in files if name.startswith("predictions/"))[0]


ATTACKS: dict[str, tuple[Callable[[dict[str, bytes]], Any], str]] = {
    "climbs": (lambda f: f.update({"../../evil": b"x"}), "no part of a bundle"),
    "absolute": (lambda f: f.update({"/etc/evil": b"x"}), "no part of a bundle"),
    "climbs below predictions": (lambda f: f.update({"predictions/../../x.csv.gz": b"x"}), "no part of a bundle"),
    "a pickle": (lambda f: f.update({"encoder.pt": b"\x80\x04."}), "no part of a bundle"),
    "key that climbs": (with_record(lambda r: r.update(key="../../x")), "is no key"),
    "a better number": (with_record(lambda r: r["metrics"].update(ED=0.0)), "ED is 0.0, its predictions give"),
    "a spec that was not run": (
        with_record(lambda r: r["spec"]["train"].update(epochs=9)),
        "the spec or the key was changed",
    ),
    "a metric of nobody's": (with_record(lambda r: r["metrics"].update(Magic=1.0)), "Magic cannot be computed here"),
    "direction turned": (with_record(lambda r: r["columns"]["ED"].update(better="higher")), "declared otherwise"),
    "groups that are no names": (with_record(lambda r: r["facts"].update(groups=[1, 2])), "facts.groups.0 is 1, which"),
    "no groups": (with_record(lambda r: r["facts"].pop("groups")), "does not name its groups"),
    "facts of another type": (
        with_record(lambda r: r["facts"].update(departures=7)),
        "facts.departures is 7, which should be a valid list",
    ),
    "a number that is text": (
        with_record(lambda r: r["facts"].update(n_train="many")),
        "facts.n_train is 'many', which should be a valid integer",
    ),
    "a count below 0": (with_record(lambda r: r["facts"].update(n_steps=-1)), "facts.n_steps is -1, which should be "),
    "a larger test set": (
        with_record(lambda r: r["facts"].update(n_test=10_000)),
        "240 images are counted in its cells",
    ),
    "leakage below 0": (
        with_record(lambda r: r["leakage"].update(balanced_accuracy=-5.0)),
        "leakage.balanced_accuracy is -5.0, which should be greater than or equal to 0",
    ),
    "leakage of the perceptron above 1": (
        with_record(lambda r: r["leakage"].update(mlp_balanced_accuracy=1.5)),
        "leakage.mlp_balanced_accuracy is 1.5, which should be less than or equal to 1",
    ),
    "leakage that is no number": (
        with_record(lambda r: r["leakage"].update(balanced_accuracy=float("nan"))),
        "leakage.balanced_accuracy is nan, which should be a finite number",
    ),
    "leakage that is text": (
        with_record(lambda r: r["leakage"].update(balanced_accuracy="0.1")),
        "leakage.balanced_accuracy is '0.1', which should be a valid number",
    ),
    "an interval that is no number": (
        with_record(lambda r: r.update(intervals={"ED": {"low": float("-inf"), "high": 0.2}})),
        "intervals.ED.low is -inf",
    ),
    "an interval backwards": (
        with_record(lambda r: r.update(intervals={"ED": {"low": 0.3, "high": 0.2}})),
        "intervals.ED is from 0.3 to 0.2, which is backwards",
    ),
    "a noise floor of text": (
        with_record(lambda r: r["noise_floor"]["ED"].update(high="x")),
        "noise_floor.ED.high is 'x'",
    ),
    "a validation accuracy of 7": (
        with_record(lambda r: r.update(validation={"metrics": {"Acc": 7.0}})),
        "validation.Acc is 7.0, outside [0, 1]",
    ),
    "a time that is no number": (with_record(lambda r: r["timings"].update(a=float("inf"))), "timings.a"),
    "a time below 0": (with_record(lambda r: r["timings"].update(a=-1.0)), "timings.a is -1.0, below 0"),
    "infinity in a corner": (
        with_record(lambda r: r["facts"].update(mine=[1.0, {"deep": float("inf")}])),
        "facts.mine.1.deep is inf, which is not finite",
    ),
    "a score that is no number": (
        lambda f: f.update({first_predictions(f): with_score(f[first_predictions(f)], b"nan")}),
        "score is NaN in 1 of 240 rows",
    ),
    "predictions of nobody's": (
        lambda f: f.update({"predictions/junk.csv.gz": b"PK"}),
        "it holds predictions/junk.csv.gz, which no record names; nothing was taken",
    ),
    "very many of them": (
        lambda f: f.update({f"predictions/k{i}.csv.gz": b"" for i in range(70_000)}),
        "which no record names",
    ),
    "more files than there may be": (
        lambda f: f.update({f"predictions/k{i}.csv.gz": b"" for i in range(100_010)}),
        "100,014 files; at most 100,002",
    ),
    "counts changed": (
        with_record(lambda r: r["cells"]["0"].update({"male": 61, "not male": 59})),
        "test examples per target and group",
    ),
    "no JSON": (lambda f: f.update({"records.jsonl": b"{" * 50_000}), "is no record"),
    "no records": (lambda f: f.update({"records.jsonl": b""}), "holds no records"),
    "twice": (lambda f: f.update({"records.jsonl": f["records.jsonl"] * 2}), "twice"),
    "no predictions": (lambda f: f.pop(first_predictions(f)), "has no predictions/"),
    "no gzip": (lambda f: f.update({first_predictions(f): b"PK"}), "is no table of predictions"),
    "a bomb": (lambda f: f.update({first_predictions(f): gzip.compress(b"0" * 70_000_000)}), "bytes unpacked"),
    "a line too long": (lambda f: f.update({"records.jsonl": b" " * (2**22 + 2)}), "larger than"),
}


def with_score(data: bytes, score: bytes) -> bytes:
    """The predictions with another score of the first image."""
    head, first, *rest = gzip.decompress(data).split(b"\n")
    id_, _, *labels = first.split(b",")
    return gzip.compress(b"\n".join([head, b",".join([id_, score, *labels]), *rest]), mtime=0)


def without_first(files: dict[str, bytes], predictions: bool) -> None:
    """A seed deleted: from the records, and with its predictions."""
    first, *rest = files["records.jsonl"].splitlines(keepends=True)
    files["records.jsonl"] = b"".join(rest)
    if predictions:
        files.pop(f"predictions/{json.loads(first)['key']}.csv.gz")


def of_manifest(change: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, bytes]], None]:
    def of_files(files: dict[str, bytes]) -> None:
        manifest = json.loads(files["manifest.json"])
        change(manifest)
        files["manifest.json"] = json.dumps(manifest).encode()

    return of_files


# What the manifest, left as it was, tells.
UNSEALED: dict[str, tuple[Callable[[dict[str, bytes]], Any], str]] = {
    "a digit of Leak": (
        with_record(lambda r: r["leakage"].update(balanced_accuracy=0.51)),
        "records.jsonl is not the file that the manifest was made with; nothing was taken from it",
    ),
    "a seed deleted": (lambda f: without_first(f, True), "is expected, but not among the records"),
    "a record deleted": (lambda f: without_first(f, False), "is expected, but not among the records"),
    "a score": (
        lambda f: f.update({first_predictions(f): with_score(f[first_predictions(f)], b"0.123")}),
        "is not the file that the manifest was made with",
    ),
    "no manifest": (lambda f: f.pop("manifest.json"), "has no manifest.json; make a board with"),
    "an empty manifest": (lambda f: f.update({"manifest.json": b"{}"}), "names no runs and files"),
    "no JSON": (lambda f: f.update({"manifest.json": b"[" * 100_000}), "is no JSON"),
    "another version": (of_manifest(lambda m: m.update(version=9)), "its manifest has version 9"),
    "a run that the manifest lacks": (of_manifest(lambda m: m["runs"].popitem()), "is not in the manifest"),
    "another probe": (
        of_manifest(lambda m: next(iter(m["runs"].values()))["protocol"].update(probe=1)),
        "; the manifest has dataset",
    ),
    "a run that failed": (
        of_manifest(lambda m: next(iter(m["runs"].values())).update(state="failed")),
        "is ok, the manifest has failed",
    ),
    "a hash too few": (of_manifest(lambda m: m["files"].pop(first_predictions(m["files"]))), "is not in the manifest"),
    "a file too few": (
        of_manifest(lambda m: m["files"].update({"predictions/gone.csv.gz": "0"})),
        "it has no predictions/gone.csv.gz",
    ),
}


@pytest.mark.parametrize("name", UNSEALED)
def test_a_bundle_that_is_not_what_its_manifest_tells_is_refused(
    name: str, bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change, message = UNSEALED[name]
    bad = repacked(bundle, tmp_path / "bad.zip", change, sealed=False)
    said = error_of(capsys, ["board", "add", str(bad), "--runs", str(tmp_path / "in" / "runs")])
    assert message in said
    assert {p.name for p in tmp_path.iterdir()} == {"bad.zip"}


def test_a_link_in_a_bundle_is_refused(bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Under a name of its own, and in the place of a file that belongs there."""
    with zipfile.ZipFile(bundle) as old:
        files = {name: old.read(name) for name in old.namelist()}
    for name in ("predictions/link.csv.gz", first_predictions(files)):
        with zipfile.ZipFile(tmp_path / "bad.zip", "w") as new:
            for at, data in files.items():
                if at != name:
                    new.writestr(at, data)
            entry = zipfile.ZipInfo(name)
            entry.external_attr = (stat.S_IFLNK | 0o777) << 16
            new.writestr(entry, "/etc/passwd")
        said = error_of(capsys, ["board", "add", str(tmp_path / "bad.zip"), "--runs", str(tmp_path / "runs")])
        assert f"'{name}' in " in said and "is a link" in said and not (tmp_path / "runs").exists()
        folder = tmp_path / "folder"
        with zipfile.ZipFile(bundle) as file:
            file.extractall(folder)
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to("/etc")
        said = error_of(capsys, ["board", "add", str(folder), "--runs", str(tmp_path / "runs")])
        assert ("which no record names" if "link" in name else "a link is not followed") in said
        shutil.rmtree(folder)


def test_a_part_of_a_grid_may_be_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The manifest calls what was not run missing."""
    scored.fill(tmp_path / "runs", ("simclr", "sofclr"), seeds=2)
    grid = a_grid(tmp_path / "mine.toml")
    words = ["board", "export", str(tmp_path / "runs"), "--grid", str(grid), "--out", str(tmp_path / "b.zip")]
    assert cli.run(words) == 0
    with zipfile.ZipFile(tmp_path / "b.zip") as file:
        states = [run["state"] for run in json.loads(file.read("manifest.json"))["runs"].values()]
    assert sorted(states) == ["missing", "missing", "ok", "ok"]
    assert cli.run(["board", "add", str(tmp_path / "b.zip"), "--runs", str(tmp_path / "theirs")]) == 0
    assert "2 runs added" in capsys.readouterr().out


def other_score(record: dict[str, Any], found: Predictions) -> Predictions:
    """Another result of the same run: scores of another training, with all that follows from them."""
    score = found.score.copy()
    score[0] = 0.123
    other = Predictions(found.ids, score, found.target, found.group)
    ours = Record.model_validate(record)
    record["metrics"] = {m.symbol: v for m, v in zip(scoring.columns(), _values(ours, other), strict=True)}
    return other


def test_other_results_of_a_run_that_is_there_are_refused(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = tmp_path / "mine"
    assert cli.run(["board", "add", str(bundle), "--runs", str(runs)]) == 0
    before = contents(runs)

    def rescored(files: dict[str, bytes]) -> None:
        first, *rest = files["records.jsonl"].splitlines(keepends=True)
        record = json.loads(first)
        name = f"predictions/{record['key']}.csv.gz"
        files[name] = other_score(record, Predictions.from_csv_gz(files[name])).to_csv_gz()
        files["records.jsonl"] = json.dumps(record).encode() + b"\n" + b"".join(rest)

    changes: dict[str, Callable[[dict[str, bytes]], None]] = {
        "(scores of 1 of 240 images)": rescored,
        "(leakage)": with_record(lambda r: r["leakage"].update(balanced_accuracy=0.5)),
        "(facts.n_train)": with_record(lambda r: r["facts"].update(n_train=49)),
        "(facts.departures)": with_record(lambda r: r["facts"].update(departures=["none"])),
    }
    key = json.loads(next(iter(lines_of(bundle))))["key"]
    for what, change in changes.items():
        bad = repacked(bundle, tmp_path / "bad.zip", change)
        said = error_of(capsys, ["board", "add", str(bad), "--runs", str(runs)])
        assert f"1 of its runs are in {runs} with other results: {key} {what}; nothing was taken" in said, said
        assert contents(runs) == before

    def elsewhere(record: dict[str, Any]) -> None:
        record["timings"]["train_seconds"] = 9.0
        record["env"]["device"] = "cpu (another)"
        record["notes"].append("on another machine")

    same = repacked(bundle, tmp_path / "same.zip", with_record(elsewhere))
    capsys.readouterr()
    assert cli.run(["board", "add", str(same), "--runs", str(runs)]) == 0
    assert "0 runs added" in (out := capsys.readouterr().out) and "2 were there already" in out
    assert contents(runs) == before


def lines_of(bundle: Path) -> list[bytes]:
    with zipfile.ZipFile(bundle) as file:
        return file.read("records.jsonl").splitlines()


def test_a_run_that_failed_elsewhere_does_not_replace_ours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scored.fill(tmp_path / "mine", ("simclr",), seeds=1)
    (run,) = small.plan("simclr", seeds=1).runs
    theirs = RunStore(tmp_path / "theirs")
    theirs.create()
    columns = {m.symbol: ColumnFacts.of(m) for m in scoring.columns()}
    spec_ = run.spec.model_dump(mode="json")
    theirs.write_result(Record(spec=spec_, key=run.spec.key, state="failed", error="x: y", columns=columns))
    assert cli.run(["board", "export", str(theirs.root), "--out", str(tmp_path / "b.zip")]) == 0
    before = contents(tmp_path / "mine")
    assert cli.run(["board", "add", str(tmp_path / "b.zip"), "--runs", str(tmp_path / "mine")]) == 0
    out = capsys.readouterr().out
    assert "0 runs added" in out and f"not taken: {run.spec.key} failed there and ended well in" in out
    assert contents(tmp_path / "mine") == before


def test_leak_is_reported_wherever_it_is_told(built: Path) -> None:
    lines = list(csv.DictReader(io.StringIO((built / "table.csv").read_text())))
    assert {line["tier"] for line in lines if line["metric"] == "Leak"} == {"reported"}
    assert {line["tier"] for line in lines if line["metric"] != "Leak"} == {"recomputed"}
    assert "recomputed from the predictions; Leak as reported" in (built / "index.html").read_text()
    assert "Leak is as the run reported it" in (built / "table.md").read_text()


def test_a_record_of_what_cannot_be_makes_no_board(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And of a board that has it, `verify` says so."""
    folder = Path(shutil.copytree(runs, tmp_path / "runs"))
    path = sorted((folder / "results").iterdir())[-1] / "record.json"
    record = json.loads(path.read_text())
    record["leakage"]["balanced_accuracy"] = -5.0
    path.write_text(json.dumps(record) + "\n")
    said = error_of(capsys, ["board", "build", str(folder), "--out", str(tmp_path / "b")])
    assert f"record {record['key']} holds what cannot be: leakage.balanced_accuracy is -5.0" in said
    assert {p.name for p in tmp_path.iterdir()} == {"runs"}


def test_a_board_of_it_has_a_fault(board: Path) -> None:
    def change(records: list[dict[str, Any]]) -> None:
        records[0]["leakage"]["balanced_accuracy"] = -5.0

    rewrite_records(board, change)
    assert any("leakage.balanced_accuracy is -5.0" in fault for fault in verify(board).faults)


def test_a_bundle_is_no_folder(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("mine")
    said = error_of(capsys, ["board", "build", str(runs), "--out", str(tmp_path / "file")])
    assert "Not a directory; name another place" in said and (tmp_path / "file").read_text() == "mine"
    said = error_of(capsys, ["board", "export", str(runs), "--out", str(runs)])
    assert f"{runs} is a folder; name the file to write, as --out {runs / 'bundle.zip'}" in said


@pytest.mark.parametrize("name", ATTACKS)
def test_what_does_not_fit_is_refused_and_nothing_is_taken(
    name: str, bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change, message = ATTACKS[name]
    bad = repacked(bundle, tmp_path / "bad.zip", change)
    said = error_of(capsys, ["board", "add", str(bad), "--runs", str(tmp_path / "in" / "runs")])
    assert message in said
    assert {p.name for p in tmp_path.iterdir()} == {"bad.zip"}


def test_other_test_labels_than_ours_are_refused(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scored.fill(tmp_path / "mine", ("sogclr",), seeds=1)

    def change(files: dict[str, bytes]) -> None:
        for name in [name for name in files if name.startswith("predictions/")]:
            kept = Predictions.from_csv_gz(files[name])
            files[name] = Predictions([f"x{i}" for i in kept.ids], kept.score, kept.target, kept.group).to_csv_gz()

    bad = repacked(bundle, tmp_path / "bad.zip", change)
    before = contents(tmp_path / "mine")
    said = error_of(capsys, ["board", "add", str(bad), "--runs", str(tmp_path / "mine")])
    assert "other test images or labels than" in said and contents(tmp_path / "mine") == before


def test_a_folder_is_a_bundle_too_and_its_links_are_not_followed(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "folder"
    with zipfile.ZipFile(bundle) as file:
        file.extractall(folder)
    assert cli.run(["board", "add", str(folder), "--runs", str(tmp_path / "one")]) == 0
    (tmp_path / "secret").write_bytes((folder / "records.jsonl").read_bytes())
    (folder / "records.jsonl").unlink()
    (folder / "records.jsonl").symlink_to(tmp_path / "secret")
    assert "a link is not followed" in error_of(capsys, ["board", "add", str(folder), "--runs", str(tmp_path / "two")])


def test_what_is_no_bundle_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no file or folder" in error_of(capsys, ["board", "add", str(tmp_path / "none")])
    (tmp_path / "x").write_text("hello")
    assert "no folder and no zip file" in error_of(capsys, ["board", "add", str(tmp_path / "x")])


@pytest.mark.parametrize(
    ("method", "sets"),
    [
        ("sofclr", ("adversary.weight=0.3",)),
        ("byol+adversary:0.3", ()),
        ("erm", ("train.lr=0.01",)),
        ("ce", ("probe.kind=knn",)),
        ("sofclr", ("adversary.weight=0",)),  # whose spec has no adversary
    ],
)
def test_a_rows_command_means_its_runs(method: str, sets: tuple[str, ...]) -> None:
    import shlex

    from fairssl.plan.request import Request
    from fairssl.plan.resolve import resolve

    spec = small.run_of(method, sets).spec
    words = shlex.split(command_of(spec.model_dump(mode="json"), method, (0,)))
    assert words[:2] == ["fairssl", "bench"]
    given: dict[str, list[str]] = {}
    for flag, value in zip(words[2::2], words[3::2], strict=True):
        given.setdefault(flag, []).append(value)
    request = Request(
        methods=given["--method"],
        datasets=given["--dataset"],
        targets=given["--target"],
        attributes=given["--attr"],
        seeds=1,
        encoder=given["--encoder"][0],
        epochs=int(given["--epochs"][0]),
        image_size=int(given["--image-size"][0]),
        batch_size=int(given["--batch-size"][0]),
        annotated=float(given["--annotated"][0]) if "--annotated" in given else None,
        assignments=given.get("--set"),
    )
    assert resolve(request).runs[0].spec.key == spec.key


def test_a_spec_that_no_command_gives_has_none() -> None:
    spec = small.run_of("simclr").spec.model_dump(mode="json")
    assert command_of({**spec, "train": {**spec["train"], "loop": 1}}, "simclr", (0,)) == ""
    assert command_of(spec, "nobody's", (0,)) == ""


def test_the_papers_tables_are_whole() -> None:
    rows = paper_rows()
    assert len(rows) == 86 and all(len(row.cells) == 9 for row in rows)
    sofclr = next(r for r in rows if (r.table, r.attribute, r.method) == ("celeba_attractive", "male", "sofclr"))
    assert (sofclr.cells["ED"].mean, sofclr.cells["ED"].sd) == (14.93, 0.22)
    assert sum(bool(cell.inconsistent) for row in rows for cell in row.cells.values()) == 28


def test_our_numbers_beside_the_papers() -> None:
    """UTKFace, ethnicity: one cell that agrees, one better, one worse, one that the paper has twice, one undefined."""
    theirs = next(r for r in paper_rows() if (r.table, r.attribute, r.method) == ("utkface", "ethnicity", "simclr+ccl"))
    shift = {"Acc": 0.2, "ED": -9.0, "EO": 9.0}
    values: dict[str, float | None] = {
        s: (c.mean + shift.get(s, 0.0)) / (100 if s in ("Acc", "ED", "EO", "DP") else 1)
        for s, c in theirs.cells.items()
    }
    values["GAUC"] = None
    specs = [spec("simclr", seed) for seed in range(2)]
    for one in specs:
        one["method"] |= {"name": "simclr+ccl", "heads": [{"name": "ccl", "version": 1, "params": {"weight": 1.0}}]}
    (table,) = build([record(one, values) for one in specs])
    found = {c.metric: c for c in compare_with_paper([table])}
    assert {s: found[s].verdict for s in ("Acc", "ED", "EO", "GAUC", "WD", "KL", "IntraAUC")} == {
        "Acc": "agree",
        "ED": "better",
        "EO": "worse",
        "GAUC": "not comparable",
        "WD": "not comparable",
        "KL": "not comparable",
        "IntraAUC": "agree",
    }
    assert found["WD"].reason.startswith("the paper's value is inconsistent: identical to the SoFCLR row")
    assert found["Acc"].tolerance == pytest.approx(max(1.0, 2 * (theirs.cells["Acc"].sd or 0)))


def beside_the_paper(folder: str) -> list[str]:
    """The lines that a process prints for a published board."""
    code, out, err = fairssl("board", "compare", ROOT / "leaderboards" / folder, "--paper")
    assert (code, err) == (0, "")
    return out.splitlines()


def test_what_is_not_the_papers_protocol_stands_above_the_verdicts() -> None:
    lines = beside_the_paper("utkface_cpu_annotated")
    assert lines[2] == (
        "Not as in the paper, which alone may make a value better or worse: encoder small_cnn (paper resnet18); 32 px (paper "
        "does not say); 40 epochs (paper 100); batch 128 (paper 64); 100 % of the training images annotated (paper 5 %); "
        "2,520 test images (paper 3,200); a probe of 2,000 steps (paper 20 epochs)."
    )
    (kl,) = [line for line in lines if line.startswith("| sofclr | KL")]
    assert "not comparable: KL depends on the size of the test set: ours has 2,520 images, the paper's 3,200 |" in kl


def test_of_a_sweep_only_the_methods_own_settings_are_judged() -> None:
    lines = [
        line for line in beside_the_paper("utkface_cpu_alpha") if line.startswith("| sofclr") and "| Acc |" in line
    ]
    verdicts = [(line.split("|")[1].strip(), line.split("|")[-2].strip()) for line in lines]
    assert len({label for label, _ in verdicts}) == 7
    for label, verdict in verdicts:
        setting = label.removeprefix("sofclr (").removesuffix(")")
        other = f"not comparable: not what stands for the paper's row: {setting.replace('=0.0', '=0')}"
        assert verdict == ("worse" if setting == "adversary.weight=1.0" else other)


def test_only_several_seeds_and_an_equal_test_set_are_judged() -> None:
    """One seed has no spread. KL is judged where the test set has the paper's size, whatever departures say; settings of a
    method that were selected stand for the paper's row too."""

    def of(n_seeds: int, n_test: int, **train: Any) -> dict[str, Comparison]:
        facts = {"groups": ["a", "b"], "n_train": 10_000, "n_test": n_test, "departures": ["other images"]}
        (table,) = build([record(spec("sogclr", seed, train=train), facts=facts) for seed in range(n_seeds)])
        return {c.metric: c for c in compare_with_paper([table])}

    one = of(1, 3200)
    assert {(c.verdict, c.reason) for c in one.values()} >= {("not comparable", "one seed: our spread is not known")}
    assert "worse" not in {c.verdict for c in one.values()}
    two = of(2, 3200, epochs=7)
    assert two["KL"].verdict == "worse" and two["KL"].differences == (
        "64 px (paper does not say)",
        "7 epochs (paper 100)",
    )
    assert of(2, 800)["KL"].reason.endswith("ours has 800 images, the paper's 3,200") and of(2, 800)["WD"].reason == ""
    published = [
        json.loads(line) for line in (ROOT / "leaderboards/utkface_cpu_alpha/records.jsonl").read_text().splitlines()
    ]
    tried = [Record(**one) for one in published if one["spec"]["method"]["name"] == "sofclr"]
    weak = [one for one in tried if one.spec["method"]["heads"][0]["params"]["weight"] == 0.3]
    chosen = [
        one.model_copy(update={"facts": {**one.facts, "selection": {"rule": "paper", "trials": 6}}}) for one in weak
    ]
    for records, judged in ((weak, False), (chosen, True)):
        found = compare_with_paper(build(records))
        assert (next(c for c in found if c.metric == "Acc").verdict == "worse") == judged


def test_the_command_calls_the_rows_of_a_published_sweep_as_its_table_does() -> None:
    lines = beside_the_paper("utkface_cpu_alpha")
    table = (ROOT / "leaderboards" / "utkface_cpu_alpha" / "table.md").read_text(encoding="utf-8").replace(" †", "")
    rows = {line.split(" | ")[0] for line in lines if line.startswith("| sofclr")}
    assert len(rows) >= 7 and rows == {
        line.split(" | ")[0] for line in table.splitlines() if line.startswith("| sofclr")
    }
    assert not any("| sogclr |" in line for line in lines)


def test_the_command_compares(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["board", "compare", str(runs), "--paper"]) == 0
    assert "no row of" in capsys.readouterr().out
    assert "name what to compare: --paper, or two rows" in error_of(capsys, ["board", "compare", str(runs)])


@pytest.mark.slow
def test_the_whole_way_through_processes(tmp_path: Path) -> None:
    scored.fill(tmp_path / "runs", ("simclr", "sofclr"), seeds=2)
    env = {**os.environ, "COLUMNS": "80", "FORCE_COLOR": "1"}

    def fairssl(*words: str) -> subprocess.CompletedProcess[str]:
        call = [sys.executable, "-m", "fairssl", *words]
        return subprocess.run(call, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)

    assert fairssl("board", "build", "runs", "--out", "b").returncode == 0
    assert fairssl("board", "verify", "b").returncode == 0
    assert fairssl("board", "export", "runs", "--out", "b.zip").returncode == 0
    assert fairssl("board", "add", "b.zip", "--runs", "theirs").returncode == 0
    assert fairssl("board", "build", "theirs", "--out", "c").returncode == 0
    sorted((tmp_path / "b" / "predictions").iterdir())[0].unlink()
    done = fairssl("board", "verify", "b")
    assert done.returncode == 1 and "has no predictions/" in done.stdout and "Traceback" not in done.stderr


TINY = ["--seeds", "2", "--epochs", "2", "--image-size", "16", "--batch-size", "16", "--annotated", "0.3"]
SETS = [word for text in small.SETS for word in ("--set", text)]


def test_a_failed_run_is_told_with_path_reason_and_way_out(tmp_path: Path) -> None:
    """Fault C8: in the table's notes and in --json; through processes. Every run is there, so that none is trained."""
    store = RunStore(tmp_path / "runs")
    store.create()
    ok, bad = small.plan("simclr", seeds=2).runs
    found = scored.predictions(ok.spec)
    store.write_result(scored.record(ok.spec, found), found)
    trace = "Traceback (most recent call last):\n  File x\nRuntimeError: the disk | broke\n"
    store.write_result(Record(spec=bad.spec.model_dump(mode="json"), key=bad.spec.key, state="failed", error=trace))
    call = [
        sys.executable,
        "-m",
        "fairssl",
        "bench",
        *TINY,
        *SETS,
        "--method",
        "simclr",
        "--out",
        "runs",
        "--board",
        "b",
    ]
    done = subprocess.run([*call, "--json"], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1, done.stderr
    (row,) = json.loads(done.stdout)
    path = f"runs/results/{bad.spec.key}/record.json"
    assert row["failures"] == [{"seed": 1, "state": "failed", "reason": "RuntimeError: the disk | broke", "path": path}]
    assert "--retry-failed" in row["way_out"] and (tmp_path / path).is_file()
    table = (tmp_path / "runs" / "table.md").read_text()
    assert f"The whole error is in {path}; the same command with --retry-failed runs it again." in table
    assert (tmp_path / "b" / "index.html").is_file() and "b/table.md" in done.stderr
    assert verify(tmp_path / "b").faults == []


def test_a_metric_added_between_two_runs_leaves_one_row(
    tmp_path: Path, more_metrics: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    """Fault A17: the second seed has one metric more than the first, which is computed for it from its predictions."""
    store = RunStore(tmp_path / "runs")
    first, second = small.plan("simclr", seeds=2).runs
    found = scored.predictions(first.spec)
    store.write_result(scored.record(first.spec, found), found)
    more_metrics(share)
    found = scored.predictions(second.spec)
    store.write_result(scored.record(second.spec, found), found)
    words = ["bench", *TINY, *SETS, "--method", "simclr", "--out", str(tmp_path / "runs"), "--json"]
    assert cli.run(words) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["n_seeds"] == 2 and row["TestShare"]["sd"] is not None
    (table,) = tables_of(tmp_path / "runs")
    assert len(table.rows) == 1
