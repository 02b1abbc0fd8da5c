"""Tables on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from typing import IO, TYPE_CHECKING, Literal

from fairssl.board.markdown import to_markdown
from fairssl.board.table import INSIDE_FLOOR, Cell, Table

if TYPE_CHECKING:
    from rich.console import Console, RenderableType


def show(
    tables: Sequence[Table], file: IO[str] | None = None, whole: bool = False, terminal: bool | None = None
) -> None:
    """Print tables: laid out on a terminal, plain Markdown where the output goes elsewhere. `file` is stdout if left out.

    A table that is wider than the terminal shows its first columns and says which are left out; `whole` shows those too,
    below. `terminal`: whether the file is one; it is asked if left out.
    """
    from rich.console import Console

    out = file or sys.stdout
    if not (out.isatty() if terminal is None else terminal):
        out.write(to_markdown(*tables))
        return
    console = Console(file=out, highlight=False, force_terminal=True)
    shared = _shared(tables)
    for table in tables:
        console.print(to_rich(table, console, whole, shared))
    if shared:
        console.print(f"Of all tables: {' '.join(shared)}", markup=False)


def _shared(tables: Sequence[Table]) -> list[str]:
    """Sentences of the captions that all of several tables have: they stand once, below the last one."""
    if len(tables) < 2:
        return []
    return [sentence for sentence in tables[0].heading if all(sentence in table.heading for table in tables)]


def to_rich(
    table: Table, console: Console, whole: bool = False, said_elsewhere: Collection[str] = ()
) -> RenderableType:
    """The table for a terminal of the console's width, its caption without what is said elsewhere."""
    from rich.cells import cell_len
    from rich.console import Group
    from rich.text import Text

    first, *others = _widths(table)
    words = max((cell_len(word) for row in table.body for word in _text(row[0]).split()), default=0)
    # A long name is folded between words, so that columns fit beside it.
    first = min(first, max(words, console.width // 3))
    blocks = fitting([first, *others], console.width - EDGES)
    shown = blocks if whole else blocks[:1]
    lines: list[RenderableType] = [Text(table.title, style="bold"), *(_grid(table, block, first) for block in shown)]
    left_out = [_heads(table)[at] for block in blocks[len(shown) :] for at in block[1:]]
    if left_out:
        lines.append(Text(f"Left out for want of width: {', '.join(left_out)}; --all-columns shows them.", style="dim"))
    caption = " ".join(sentence for sentence in table.heading if sentence not in said_elsewhere)
    lines += [Text(caption), *(Text(f"- {note}") for note in table.notes), Text("")]
    return Group(*lines)


GAP = 3  # blanks between columns
EDGES = 2  # a blank before the first column and one after the last


def fitting(widths: Sequence[int], available: int) -> list[list[int]]:
    """Blocks of columns, as positions, that are at most `available` wide; the first column begins each.

    A column that does not fit beside the first one stands alone with it: numbers are never broken, names may be.
    """
    blocks: list[list[int]] = []
    for at in range(1, len(widths)):
        if blocks and sum(widths[i] + GAP for i in (*blocks[-1], at)) - GAP <= available:
            blocks[-1].append(at)
        else:
            blocks.append([0, at])
    return blocks or [[0]]


def _heads(table: Table) -> list[str]:
    arrows = {column.heading: f"{column.heading} {column.arrow}" for column in table.columns}
    return [arrows.get(name, name) for name in table.head]


def _widths(table: Table) -> list[int]:
    from rich.cells import cell_len

    failed = {i for i, row in enumerate(table.rows) if row.all_failed}
    return [
        max(
            cell_len(head),
            *(cell_len(_text(row[at])) for i, row in enumerate(table.body) if not (at == 1 and i in failed)),
            0,
        )
        for at, head in enumerate(_heads(table))
    ]


def _text(cell: Cell) -> str:
    text = "".join(sign for sign in " ".join(cell.text.split()) if sign.isprintable())
    return f"{text} {INSIDE_FLOOR}" if cell.dim else text


def _grid(table: Table, block: Sequence[int], width: int) -> RenderableType:
    from rich import box
    from rich.table import Table as Grid
    from rich.text import Text

    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, GAP - 1, 0, 0), collapse_padding=True)
    numbers = range(1, len(table.columns) + 1)
    for at in block:
        numeric = at in numbers or at == len(table.head) - 1
        folds = at == 0 or (at == 1 and any(row.all_failed for row in table.rows))  # words, which may be broken
        justify: Literal["left", "right"] = "right" if numeric else "left"
        widest = width if at == 0 else None
        grid.add_column(_heads(table)[at], justify=justify, no_wrap=not folds, overflow="fold", max_width=widest)
    for family in table.families():
        for i in family:
            grid.add_row(*(Text(_text(table.body[i][at]), style=_style(table.body[i][at])) for at in block))
        grid.add_section()
    return grid


def _style(cell: Cell) -> str:
    return " ".join([*(["bold"] if cell.bold else []), *(["dim"] if cell.dim else [])])
