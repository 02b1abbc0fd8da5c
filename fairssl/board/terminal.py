"""Tables on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import IO, TYPE_CHECKING

from fairssl.board.markdown import to_markdown
from fairssl.board.table import Table

if TYPE_CHECKING:
    from rich.console import RenderableType


def to_rich(table: Table) -> RenderableType:
    """The table for a terminal."""
    from rich import box
    from rich.console import Group
    from rich.table import Table as Grid
    from rich.text import Text

    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in table.head:
        numeric = name == "Seeds" or name in {column.heading for column in table.columns}
        grid.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in table.body:
        grid.add_row(*(Text(" ".join(text.split()), style="bold" if bold else "") for text, bold in row))
    lines: list[RenderableType] = [
        Text(table.title, style="bold"),
        Text(" ".join(table.heading)),
        grid,
        *map(Text, table.notes),
    ]
    return Group(*lines)


def show(tables: Sequence[Table], file: IO[str] | None = None) -> None:
    """Print tables: laid out on a terminal, plain Markdown where the output is piped. `file` is stdout if left out."""
    file = file or sys.stdout
    if not file.isatty():  # not what rich takes for a terminal, which FORCE_COLOR decides
        file.write(to_markdown(*tables))
        return
    from rich.console import Console

    console = Console(file=file, highlight=False)
    for table in tables:
        console.print(to_rich(table))
