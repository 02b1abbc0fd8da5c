"""Grids in files: what they may say, how errors read, and that those shipped resolve."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fairssl.cli import run
from fairssl.plan.request import grid_names, load_grid
from fairssl.plan.resolve import resolve_all
from fairssl.types import UserError


def test_blocks_share_what_stands_at_the_top_and_are_joined(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        'seeds = 2\nmethods = ["simclr"]\n'
        '[[grid]]\ndatasets = ["synthfaces"]\nattributes = ["male", "young"]\n'
        '[[grid]]\ndatasets = ["synthfaces"]\nattributes = ["male"]\nset = ["train.lr=0.01"]\n'
        '[[grid]]\ndatasets = ["synthfaces"]\nattributes = ["male"]\n'
    )
    plan = resolve_all(load_grid(str(path)))
    assert len(plan.runs) == 2 * (2 + 1)  # the third block repeats a part of the first
    assert sorted({cell.spec.train.lr for cell in plan.runs}) == [0.001, 0.01]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("method = ['simclr']", "unknown key 'method'; did you mean 'methods'"),
        ("methods = 'simclr'", "methods = 'simclr' is not a list of at least one name"),
        ("seeds = true", "seeds = True is not a number of seeds"),
        ("seeds = ", "not TOML"),
        ("methods = ['nope']", "unknown method 'nope'"),
    ],
)
def test_a_wrong_grid_is_one_line(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        resolve_all(load_grid(str(path)))


def test_flags_stand_in_place_of_what_the_file_says(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = [
        "bench",
        "--grid",
        "smoke",
        "--seeds",
        "5",
        "--method",
        "byol",
        "--out",
        str(tmp_path),
        "--dry-run",
        "--json",
    ]
    assert run(words) == 0
    plan = json.loads(capfd.readouterr().out)
    assert plan["cells"] == 5 and plan["pretrainings"] == 5


def test_an_unknown_grid_names_the_known_ones() -> None:
    with pytest.raises(UserError, match="is no file and no grid"):
        load_grid("no_such_grid")


@pytest.mark.parametrize("name", sorted(grid_names()))
def test_every_shipped_grid_resolves(name: str) -> None:
    assert resolve_all(load_grid(name), allow_absent=True).runs
