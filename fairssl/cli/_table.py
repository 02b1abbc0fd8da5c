"""Text laid out for the place it goes to: a terminal of some width, with colours; or a pipe or a file, plain and whole.

On a terminal no word is ever broken: text is wrapped between words, and a table that is too wide loses whole columns, those
of the largest `drop` first, and says so below. Where there is no terminal nothing is wrapped but prose and nothing is left
out, so that one line stays one record. Colour is left away where NO_COLOR is set, or TERM is `dumb`.
"""

from __future__ import annotations

import os
import shutil
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import IO

import typer

GAP = 2  # blanks between two columns
PROSE = 100  # columns; longer lines are hard to read


@dataclass(frozen=True)
class Screen:
    """Where text goes. `width` in columns, None where there is no terminal."""

    width: int | None = None
    colour: bool = False

    def style(self, text: str, fg: str | None = None, bold: bool = False) -> str:
        return typer.style(text, fg=fg, bold=bold) if self.colour and text and (fg or bold) else text


def screen(stream: IO[str] | None = None) -> Screen:
    """The screen behind a stream, stdout if left out."""
    stream = sys.stdout if stream is None else stream
    if not stream.isatty():
        return Screen()
    return Screen(max(20, shutil.get_terminal_size().columns), may_colour())


def may_colour() -> bool:
    """Whether the user allows colours on a terminal (https://no-color.org)."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


@dataclass(frozen=True)
class Column:
    """A column of a table. Columns of `drop` above 0 may be left out where there is no room, the largest first; a column
    whose text is wrapped keeps at least `least` columns of the terminal, and never less than its longest word."""

    head: str = ""
    drop: int = 0
    least: int = 1
    right: bool = False  # numbers
    fg: str | None = None


@dataclass(frozen=True)
class Cell:
    """A table's text in a colour of its own."""

    text: str
    fg: str | None = None


def echo_table(columns: Sequence[Column | str], rows: Iterable[Sequence[str | Cell]], indent: int = 0) -> None:
    """Print a table to stdout, laid out for what stdout is. A head line is printed if any column has a head.

    Args:
        columns: a `Column`, or its head alone.
        rows: one text per column; `Cell(text, "red")` has a colour.
        indent: blanks before each line.
    """
    typer.echo(table(columns, rows, screen(), indent))


def echo_facts(pairs: Iterable[tuple[str, str | Cell]], indent: int = 0) -> None:
    """Print `name  value` lines to stdout, the values below each other and wrapped between words."""
    text = facts(pairs, screen(), indent)
    if text:
        typer.echo(text)


def echo_prose(text: str, indent: int = 0) -> None:
    """Print paragraphs, separated by empty lines, to stdout."""
    typer.echo(prose(text, screen(), indent))


def echo_hanging(head: str, text: str) -> None:
    """Print a line `head` + `text` to stdout. Where that is a terminal, `text` is wrapped between words, its further lines
    below its first."""
    typer.echo(hanging(head, text, screen()))


def echo_line(line: str) -> None:
    """Print a warning or an error to stderr: one line, wrapped between words where that is a terminal."""
    there, line = screen(sys.stderr), " ".join(line.split())
    print(line if there.width is None else prose(line, there), file=sys.stderr)


def table(
    columns: Sequence[Column | str], rows: Iterable[Sequence[str | Cell]], screen: Screen, indent: int = 0
) -> str:
    """The lines of a table; see `echo_table`."""
    heads = [Column(column) if isinstance(column, str) else column for column in columns]
    cells = [[Cell(cell) if isinstance(cell, str) else cell for cell in row] for row in rows]
    texts = [[head.head, *(row[i].text for row in cells)] for i, head in enumerate(heads)]
    widths = [max(map(text_width, text)) for text in texts]
    kept = list(range(len(heads)))
    if screen.width is not None:
        least = [min(n, max(h.least, *map(_longest_word, t))) for n, h, t in zip(widths, heads, texts, strict=True)]
        kept = _kept(heads, least, screen.width - indent)
        widths = _widths(texts, least, kept, screen.width - indent)
    room = [widths[i] for i in kept]
    lines = []
    if any(head.head for head in heads):
        blocks = [wrap(heads[i].head, widths[i]) for i in kept]
        height = max(map(len, blocks))
        blocks = [[""] * (height - len(block)) + block for block in blocks]  # they stand on their columns
        lines += _joined(blocks, room, [(heads[i].right, None, True) for i in kept], screen)
    for row in cells:
        blocks = [wrap(row[i].text, widths[i]) for i in kept]
        lines += _joined(blocks, room, [(heads[i].right, row[i].fg or heads[i].fg, False) for i in kept], screen)
    lines = [" " * indent + line for line in lines]
    if len(kept) < len(heads):
        names = ", ".join(head.head for i, head in enumerate(heads) if i not in kept)
        said = f"No room for: {names}. A wider terminal, --json or a pipe has all."
        lines += ["", prose(said, screen, indent)]
    return "\n".join(lines)


def facts(pairs: Iterable[tuple[str, str | Cell]], screen: Screen, indent: int = 0) -> str:
    """The lines of `name  value` pairs; a name too long for its place has a line of its own."""
    rows = [(name, Cell(value) if isinstance(value, str) else value) for name, value in pairs]
    longest = max((text_width(name) for name, _ in rows), default=0)
    room = None if screen.width is None else screen.width - indent
    first = longest if room is None else min(longest, max(8, room // 3))
    lines = []
    for name, cell in rows:
        blocks = wrap(cell.text, None if room is None else room - first - GAP)
        if text_width(name) > first:
            lines.append(screen.style(name, "cyan"))
            name = ""
        pad = " " * (first - text_width(name) + GAP)
        lines.append(f"{screen.style(name, 'cyan')}{pad}{screen.style(blocks[0], cell.fg)}".rstrip())
        lines += [" " * (first + GAP) + screen.style(line, cell.fg) for line in blocks[1:]]
    return "\n".join((" " * indent + line).rstrip() for line in lines)


def prose(text: str, screen: Screen, indent: int = 0) -> str:
    """Paragraphs wrapped to the terminal, at most `PROSE` columns wide."""
    width = min(PROSE, screen.width or PROSE) - indent
    blocks = [wrap(" ".join(paragraph.split()), width) for paragraph in text.split("\n\n")]
    return "\n\n".join("\n".join((" " * indent + line).rstrip() for line in block) for block in blocks)


def hanging(head: str, text: str, screen: Screen) -> str:
    """The lines of `head` + `text`; see `echo_hanging`."""
    indent = text_width(head)
    lines = wrap(text, None if screen.width is None else screen.width - indent)
    return head + ("\n" + " " * indent).join(lines)


def wrap(text: str, width: int | None) -> list[str]:
    """`text` in lines of at most `width` columns, broken between words alone: a longer word has a line of its own, and
    stands out."""
    if width is None or text_width(text) <= width:
        return [text]
    lines, line = [], ""
    for word in text.split():
        longer = f"{line} {word}" if line else word
        if line and text_width(longer) > width:
            lines.append(line)
            longer = word
        line = longer
    return [*lines, line]


def text_width(text: str) -> int:
    """Columns that a text takes: two for a wide character, none for a combining one."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(char) else 1 + (unicodedata.east_asian_width(char) in "WF") for char in text)


def _longest_word(text: str) -> int:
    return max(map(text_width, text.split()), default=0)


def _kept(columns: Sequence[Column], least: Sequence[int], width: int) -> list[int]:
    """The places of the columns that there is room for."""
    kept = list(range(len(columns)))
    while sum(least[i] + GAP for i in kept) - GAP > width:
        most = max(kept, key=lambda i: columns[i].drop)
        if columns[most].drop == 0:
            break
        kept.remove(most)
    return kept


def _widths(texts: Sequence[Sequence[str]], least: Sequence[int], kept: Sequence[int], width: int) -> list[int]:
    """Each column's width: at least `least`, at most what its texts want. The room left over is shared evenly, and what a
    column cannot use, since its words break elsewhere, goes to those that want most."""
    widths, natural = list(least), [max(map(text_width, column)) for column in texts]
    spare = width - sum(least[i] + GAP for i in kept) + GAP
    hungry = sorted(kept, key=lambda i: natural[i] - least[i])
    for place, i in enumerate(hungry):
        more = max(0, min(natural[i] - least[i], spare // (len(hungry) - place)))
        used = max(text_width(line) for text in texts[i] for line in wrap(text, least[i] + more))
        widths[i] = max(least[i], used)
        spare -= widths[i] - least[i]
    for i in reversed(hungry):
        more = max(0, min(natural[i] - widths[i], spare))
        widths[i] += more
        spare -= more
    return widths


def _joined(
    blocks: Sequence[Sequence[str]],
    widths: Sequence[int],
    styles: Sequence[tuple[bool, str | None, bool]],
    screen: Screen,
) -> list[str]:
    """The lines of one row, its cells' lines side by side."""
    lines = []
    for k in range(max(map(len, blocks))):
        line, blank = "", 0
        for block, width, (right, fg, bold) in zip(blocks, widths, styles, strict=True):
            text = block[k] if k < len(block) else ""
            pad = max(0, width - text_width(text))
            if text:
                line += " " * (blank + (pad if right else 0)) + screen.style(text, fg, bold)
                blank = GAP if right else pad + GAP
            else:
                blank += width + GAP
        lines.append(line)
    return lines
