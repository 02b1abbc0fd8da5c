"""The published boards: made anew from their records, byte for byte; the index and the README show what they hold."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest
from reference import scored
from reference.checkout import ROOT
from reference.command import fairssl

from fairssl import cli
from fairssl.board.index import boards_in, grid_of_board, index_of, with_boards
from fairssl.board.verify import verify
from fairssl.spec.run import key_of

FOLDER = ROOT / "leaderboards"
BOARDS = boards_in(FOLDER)


def test_the_index_and_the_readme_are_what_the_boards_give() -> None:
    assert (FOLDER / "README.md").read_text(encoding="utf-8") == index_of(FOLDER)
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert text == with_boards(text, FOLDER), "run: fairssl board index leaderboards --readme README.md"
    assert "<!-- board " in text


@pytest.mark.parametrize("board", BOARDS or [None], ids=lambda b: b.name if b else "none")
def test_a_published_board_is_made_anew_byte_for_byte(board: Path | None) -> None:
    if board is None:
        pytest.skip("no board is published yet")
    found = verify(board)
    assert found.faults == [] and found.n_records


@pytest.mark.parametrize("board", BOARDS or [None], ids=lambda b: b.name if b else "none")
def test_published_results_keep_their_keys(board: Path | None) -> None:
    if board is None:
        pytest.skip("no board is published yet")
    for line in (board / "records.jsonl").read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        assert key_of(record["spec"]) == record["key"]


def test_the_figures_of_the_page_on_real_faces_are_those_of_the_boards() -> None:
    """Each of its rows names a board, an attribute and a row; Acc and ED stand there as that board's table.csv has them."""
    text = (ROOT / "docs" / "real-faces.md").read_text(encoding="utf-8")
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("| `utkface")
    ]
    assert len(rows) > 20
    for board, attribute, row, *shown, seeds in rows:
        name = board.strip("`")
        with (FOLDER / name / "table.csv").open(encoding="utf-8", newline="") as file:
            cells = {
                line["metric"]: line
                for line in csv.DictReader(file)
                if (line["attr"], line["method"]) == (attribute, row.strip("`"))
            }
        for metric, said in zip(("Acc", "ED"), shown, strict=True):
            mean, sd = float(cells[metric]["mean"]), float(cells[metric]["sd"])
            assert said == f"{100 * mean:.2f} ± {100 * sd:.2f}", (name, attribute, row, metric)
            assert seeds == cells[metric]["n_seeds"], (name, attribute, row)


def test_boards_are_indexed_and_their_tables_put_between_markers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scored.fill(tmp_path / "runs", ("simclr",), seeds=2)
    boards = tmp_path / "boards"
    assert cli.run(["board", "build", str(tmp_path / "runs"), "--out", str(boards / "mine")]) == 0
    readme = tmp_path / "README.md"
    old = "before\n<!-- board mine -->\nold\n<!-- end of board -->\nafter\n"
    readme.write_text(old)
    capsys.readouterr()
    assert cli.run(["board", "index", str(boards), "--readme", str(readme)]) == 0
    assert str(readme) in capsys.readouterr().out
    text = readme.read_text()
    assert "old" not in text and "| simclr |" in text and text.startswith("before\n") and text.endswith("after\n")
    assert grid_of_board(boards / "mine") in text
    index = (boards / "README.md").read_text()
    assert "[mine](mine/table.md) | - | synthfaces: target attractive, attribute male | 2 |" in index
    assert cli.run(["board", "index", str(boards), "--readme", str(readme)]) == 0
    assert capsys.readouterr().out == "nothing changed\n"
    table = boards / "mine" / "table.md"
    whole = table.read_text()
    table.write_text(whole.replace("| simclr |", "| mine |"))
    assert cli.run(["board", "index", str(boards), "--readme", str(readme)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "table.md is not the table that its manifest was made with" in said
    assert readme.read_text() == text and (boards / "README.md").read_text() == index
    table.write_text(whole)
    assert cli.run(["board", "index", str(tmp_path / "none")]) == 2
    (tmp_path / "empty").mkdir()
    capsys.readouterr()
    assert cli.run(["board", "index", str(tmp_path / "empty")]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "empty holds no boards; make one below it: fairssl board build" in err
    assert list((tmp_path / "empty").iterdir()) == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("<!-- board other -->\n<!-- end of board -->\n", "<!-- board other -->: {} has no board 'other', only demo"),
        ("<!-- board demo -->\nmine\n", "<!-- board demo --> has no line <!-- end of board --> after it; add it"),
        (
            "<!-- board demo -->\nmine\n<!-- board demo table 2 -->\n<!-- end of board -->\n",
            "<!-- board demo --> has no line <!-- end of board --> after it; add it",
        ),
        ("<!-- end of board -->\n", "<!-- end of board --> has no line <!-- board NAME --> before it; add it"),
        (
            "<!-- board demo --> <!-- end of board -->\n",
            "does not end its line; put <!-- end of board --> on the next one",
        ),
        ("mine\n", "no line <!-- board NAME --> says where a table goes"),
    ],
)
def test_a_file_whose_markers_are_not_right_is_refused_and_nothing_written(
    text: str, says: str, tmp_path: Path
) -> None:
    boards, readme = tmp_path / "boards", tmp_path / "README.md"
    shutil.copytree(FOLDER / "demo", boards / "demo")
    readme.write_text(text)
    code, out, err = fairssl("board", "index", boards, "--readme", readme)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"{readme}: " in err and says.format(boards) in err
    assert readme.read_text() == text and not (boards / "README.md").exists()
