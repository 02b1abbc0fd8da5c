"""The index of published boards, and their tables in other files, between markers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fairssl.board.files import open_source, read_manifest, sha256
from fairssl.board.markdown import markdown_text, table_line
from fairssl.store.files import whole_file
from fairssl.types import UserError

_START = r"<!-- board (?P<name>[\w.-]+)(?: table (?P<number>\d+))? -->"
_END = "<!-- end of board -->"
_ONE = re.compile(f"{_START}|{_END}")
_MARKER = re.compile(f"({_START}\\n).*?({_END})", re.S)


def boards_in(folder: Path) -> list[Path]:
    """The boards below a folder, by name."""
    return sorted(path.parent for path in folder.glob("*/manifest.json"))


def index_of(folder: Path) -> str:
    """The text of the folder's README.md: a line per board, with links to its files, and how to check one."""
    lines = [
        "# Leaderboards",
        "",
        "Each folder is a board that `fairssl board build` wrote: records, per-sample predictions, tables and a page. Nothing",
        "in it is edited by hand. `fairssl board verify FOLDER` computes every number again from the predictions.",
        "",
        "`fairssl bench --grid GRID --out RUNS` and `fairssl board build RUNS --grid GRID --out FOLDER` make the board of a grid",
        "again, and the grid's file says what else was asked for. The command of each row is in `table.csv`, also of boards",
        "without a grid.",
        "",
    ]
    boards = boards_in(folder)
    if not boards:
        raise UserError(
            f"{folder} holds no boards; make one below it: fairssl board build RUNS_DIR --out {folder / 'NAME'}"
        )
    lines += ["| Board | Grid | Tables | Runs | Metrics | Files |", "| --- | --- | --- | ---: | --- | --- |"]
    lines += [table_line(_line(board)) for board in boards]
    return "\n".join(lines) + "\n"


def _line(board: Path) -> Iterator[str]:
    manifest: dict[str, Any] = read_manifest(open_source(board))
    name = board.name
    states = [str(run.get("state")) for run in manifest["runs"].values()]
    missing = sum(state != "ok" for state in states)
    yield f"[{markdown_text(name)}]({name}/table.md)"
    grid = manifest.get("grid")
    yield "-" if grid is None else markdown_text(str(grid))
    yield "; ".join(titles(board))
    yield f"{len(states) - missing}" + (f" of {len(states)}" if missing else "")
    metrics = manifest.get("metrics")
    versions = metrics if isinstance(metrics, dict) else {}
    yield ", ".join(f"{markdown_text(str(symbol))} {version}" for symbol, version in sorted(versions.items()))
    files = ("index.html", "table.csv", "table.tex", "tradeoff.md", "records.jsonl")
    yield ", ".join(f"[{file}]({name}/{file})" for file in files)


def titles(board: Path) -> list[str]:
    """The headings of a board's tables, as Markdown."""
    return [part.splitlines()[0] for part in _sections(board)]


def grid_of_board(board: Path, number: int = 1) -> str:
    """The n-th table of a board, without its heading and notes."""
    sections = _sections(board)
    if not 1 <= number <= len(sections):
        raise UserError(f"{board} has {len(sections)} tables; table {number} is not among them")
    lines = [line for line in sections[number - 1].splitlines() if line.startswith("|")]
    return "\n".join(lines) + "\n"


def _sections(board: Path) -> list[str]:
    try:
        content = (board / "table.md").read_bytes()
    except OSError as error:
        raise UserError(f"{board} has no table.md; build it again with `fairssl board build`") from error
    if sha256(content) != read_manifest(open_source(board))["files"].get("table.md"):
        raise UserError(
            f"{board / 'table.md'} is not the table that its manifest was made with; see `fairssl board verify {board}`, and "
            "build the board again"
        )
    text = content.decode("utf-8")
    return re.split(r"^## ", text, flags=re.M)[1:]


def with_boards(text: str, folder: Path) -> str:
    """A text with the tables of boards put between its markers, as

        <!-- board NAME -->
        <!-- end of board -->

    or `<!-- board NAME table 2 -->`. A board that the folder lacks, a marker without its other one, or no marker at all:
    `UserError`.
    """
    _check_markers(text)

    def filled(found: re.Match[str]) -> str:
        board = folder / found["name"]
        if not (board / "manifest.json").is_file():
            there = ", ".join(path.name for path in boards_in(folder))
            raise UserError(f"<!-- board {found['name']} -->: {folder} has no board {found['name']!r}, only {there}")
        return f"{found[1]}{grid_of_board(board, int(found['number'] or 1))}{found[4]}"

    return _MARKER.sub(filled, text)


def _check_markers(text: str) -> None:
    """Refuse a text in which start and end do not take turns, each on a line of its own."""
    open_marker = ""
    for found in _ONE.finditer(text):
        if (found.group() == _END) != bool(open_marker):
            wrong = open_marker or found.group()
            lacks = f"no line {_END} after it" if open_marker else "no line <!-- board NAME --> before it"
            raise UserError(f"{wrong} has {lacks}; add it")
        open_marker = "" if open_marker else found.group()
        if open_marker and not text.startswith("\n", found.end()):
            raise UserError(f"{open_marker} does not end its line; put {_END} on the next one")
    if open_marker:
        raise UserError(f"{open_marker} has no line {_END} after it; add it")
    if not _ONE.search(text):
        raise UserError(f"no line <!-- board NAME --> says where a table goes; add it, and {_END} on the next line")


def write_index(folder: Path, readme: Path | None = None) -> list[Path]:
    """Write FOLDER/README.md, and the tables into another file between its markers; the files that changed."""
    if not folder.is_dir():
        raise UserError(f"no folder {folder}; name the one that holds the boards")
    texts = {folder / "README.md": index_of(folder)}
    if readme is not None:
        try:
            texts[readme] = with_boards(readme.read_text(encoding="utf-8"), folder)
        except OSError as error:
            raise UserError(f"{readme} cannot be read: {error.strerror}") from error
        except UserError as error:
            raise UserError(f"{readme}: {error}") from error
    changed = []
    for path, text in texts.items():
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            with whole_file(path) as file:
                file.write(text.encode())
            changed.append(path)
    return changed
