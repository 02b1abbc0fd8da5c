"""One style for all figures: colours that people of any colour vision tell apart, plain text, equal bytes every time."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fairssl.board.table import Table
from fairssl.store.files import StoreError, whole_file
from fairssl.types import UserError

# Okabe and Ito: Color Universal Design, 2008; yellow left out, which is faint on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINES = ("-", "--", ":", "-.")
FORMATS = ("png", "pdf")


@contextmanager
def figures() -> Iterator[Any]:
    """matplotlib's Figure class, in our style for the length of the block. Not installed: `UserError` with the way out."""
    try:
        import matplotlib
    except ImportError as error:
        raise UserError(
            "figures need matplotlib, which is not here; install it: pip install 'fairssl[plot]'"
        ) from error
    settings: dict[str, Any] = {
        "font.family": "DejaVu Sans",
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.color": "#e2e5e9",
        "axes.axisbelow": True,
        "legend.frameon": False,
        "savefig.dpi": 200,
        "pdf.fonttype": 42,
        "svg.hashsalt": "fairssl",
        "text.parse_math": False,  # a name may hold a dollar sign
    }
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # whatever the user's own style is
        parameters: Any = matplotlib.rcParams
        parameters.update(settings)
        from matplotlib.figure import Figure

        yield Figure


def plain(text: str) -> str:
    """A name as the font can draw it; what it has no glyph for is `?`."""
    from matplotlib import font_manager
    from matplotlib.ft2font import FT2Font

    font = FT2Font(font_manager.findfont("DejaVu Sans"))
    return "".join(sign if font.get_char_index(ord(sign)) else "?" for sign in " ".join(text.split()))


def wrapped(text: str, width: int) -> str:
    """A name as the font can draw it, on lines of at most `width` signs."""
    return textwrap.fill(plain(text), width)


def colour(at: int) -> str:
    return COLOURS[at % len(COLOURS)]


def line(at: int) -> str:
    """A dash pattern that changes once the colours are used up, so that no two of 28 lines look the same."""
    return LINES[at // len(COLOURS) % len(LINES)]


def marker(at: int) -> str:
    return MARKERS[at % len(MARKERS)]


def legend_below(figure: Any, most: int = 4) -> None:
    """One legend for all panels, below them: each label once."""
    entries: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    if entries:
        figure.legend(
            entries.values(), entries.keys(), loc="outside lower center", ncols=min(most, len(entries)), fontsize=9
        )


def save(figure: Any, folder: Path, name: str) -> list[Path]:
    """Write a figure in every format. The same figure gives the same bytes."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(folder, error) from error
    paths = []
    for kind in FORMATS:
        path = folder / f"{name}.{kind}"
        dates = {"CreationDate": None} if kind == "pdf" else {"Software": None}
        with whole_file(path) as file:
            figure.savefig(file, format=kind, metadata=dates, bbox_inches="tight")
        paths.append(path)
    return paths


def file_name(what: str, table: Table, tables: Sequence[Table]) -> str:
    """`pareto-utkface-gender-age`; siblings that differ in their data alone are counted."""
    place = (table.dataset, table.target, table.attribute)
    siblings = [t for t in tables if (t.dataset, t.target, t.attribute) == place]
    number = [str(siblings.index(table) + 1)] if len(siblings) > 1 else []
    return "-".join(re.sub(r"[^A-Za-z0-9]+", "_", part).strip("_") or "x" for part in (what, *place, *number))


def grid_of(n: int, most: int = 4) -> tuple[int, int]:
    """Rows and columns for n panels."""
    columns = min(n, most)
    return -(-n // columns), columns
