"""Tables as Markdown."""

from __future__ import annotations

from collections.abc import Iterable

from fairssl.board.table import Table


def to_markdown(*tables: Table) -> str:
    """A heading, a table and its notes each. Text of the user's own cannot break the table."""
    return "\n".join(_one_markdown(table) for table in tables)


def _one_markdown(table: Table) -> str:
    def line(cells: Iterable[str]) -> str:
        return f"| {' | '.join(cells)} |"

    rule = ["---", *("---:" for _ in table.columns), "---", "---", "---:"]
    body = (line(f"**{_md(text)}**" if bold else _md(text) for text, bold in row) for row in table.body)
    parts = [f"## {_md(table.title)}", _md(" ".join(table.heading)), "\n".join([line(table.head), line(rule), *body])]
    if table.notes:
        parts.append("\n".join(f"- {_md(note)}" for note in table.notes))
    return "\n\n".join(parts) + "\n"


def _md(text: str) -> str:
    text = " ".join(text.split())
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
