"""Tables as Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable

from fairssl.board.table import TAIL, Table


def to_markdown(*tables: Table) -> str:
    """A heading, a table and its notes each. Text of the user's own cannot break the table."""
    return "\n".join(_one_markdown(table) for table in tables)


def grid(table: Table) -> str:
    """The table alone."""

    rule = ["---", *("---:" for _ in table.columns), *("---" for _ in TAIL[1:]), "---:"]
    rows = (
        table_line(
            f"**{markdown_text(cell.text)}**{' °' if cell.dim else ''}" if cell.bold else markdown_text(cell.signed)
            for cell in row
        )
        for row in table.body
    )
    return "\n".join([text_line(table.head), table_line(rule), *rows])


def table_line(cells: Iterable[str]) -> str:
    """A line of a Markdown table, of cells that are Markdown already."""
    return f"| {' | '.join(cells)} |"


def text_line(cells: Iterable[str]) -> str:
    """The same of plain text, which cannot break the table."""
    return table_line(map(markdown_text, cells))


def _one_markdown(table: Table) -> str:
    parts = [f"## {markdown_text(table.title)}", markdown_text(" ".join(table.heading)), grid(table)]
    if table.notes:
        parts.append("\n".join(f"- {markdown_text(note)}" for note in table.notes))
    return "\n\n".join(parts) + "\n"


# What begins a cell, a tag, an entity, code, a link, or emphasis; an underscore within a word begins none.
_SPECIAL = re.compile(r"[\\|`*\[\]]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
_ENTITY = re.compile(r"&(?=#?\w+;)")


def markdown_text(text: str) -> str:
    """Text that Markdown shows as it is, in one line."""
    text = _SPECIAL.sub(lambda sign: "\\" + sign.group(), " ".join(text.split()))
    return _ENTITY.sub("&amp;", text).replace("<", "&lt;")
