"""Tables as LaTeX, laid out as the paper's."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

from fairssl.board.names import printed_name
from fairssl.board.table import DOES_NOT_COMPETE, Cell, Column, Row, Table

# Compiled by itself it is a document; read by \input within one, it is its tables. \@nodocument is \relax once the body of
# a document has begun.
_BEGIN = r"""% Needs booktabs and graphicx. \input this file into a paper, or compile it by itself.
\makeatletter
\ifx\@nodocument\relax
  \def\fairsslend{}
\else
  \documentclass[10pt]{article}
  \usepackage[a4paper,landscape,margin=15mm]{geometry}
  \usepackage{booktabs}
  \usepackage{graphicx}
  \def\fairsslend{\end{document}}
  \begin{document}
\fi
\makeatother
"""


def to_latex(*tables: Table) -> str:
    """A `table*` environment each, for the packages booktabs and graphicx; the file also compiles by itself."""
    return _BEGIN + "\n".join(_one_latex(table) for table in tables) + "\n\\fairsslend\n"


def _one_latex(table: Table) -> str:
    columns = [column for column in table.columns if not column.diagnostic]
    numbers = {column.symbol: at for at, column in enumerate(table.columns, start=1)}
    head = [
        latex_text(f"({table.target}, {table.attribute})"),
        *(f"{_heading(c)} ${_ARROWS[c.arrow]}$" for c in columns),
    ]
    body: list[str] = []
    for family in table.families():
        body += [r"\midrule"] if body else []
        for i in family:
            row, cells = table.rows[i], table.body[i]
            shown = [_cell(cells[numbers[c.symbol]]) for c in columns]
            if row.all_failed:
                shown = [rf"\multicolumn{{{len(columns)}}}{{l}}{{{latex_text(row.verdict)}}}"]
            body.append(_line([_name(row), *shown]))
    spread = r", mean ($\pm$ standard deviation) over the seeds" if len(table.seeds) > 1 else ""
    seeds = f"{len(table.seeds)} seed{'s' if len(table.seeds) > 1 else ''}{spread}"
    small = " ".join([*table.heading, *table.notes])
    lines = [
        r"\begin{table*}[htbp]",
        r"\centering",
        rf"\caption{{Accuracy and fairness on {latex_text(table.title)}; {seeds}.}}",
        rf"\label{{tab:{_label(table)}}}",
        r"\resizebox{\ifdim\width>\textwidth\textwidth\else\width\fi}{!}{%",
        rf"\begin{{tabular}}{{l{'c' * len(columns)}}}",
        r"\toprule",
        _line(head),
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}}",
        "",
        rf"\vspace{{2pt}}\begin{{minipage}}{{\textwidth}}\footnotesize {latex_text(small)}\end{{minipage}}",
        r"\end{table*}",
    ]
    return "\n".join(lines) + "\n"


def _line(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"


def _heading(column: Column) -> str:
    """`ΔED` -> `$\\Delta$ ED`, as the paper has it."""
    return latex_text(column.heading.replace("Δ", "Δ ") if column.heading.startswith("Δ") else column.heading)


def _name(row: Row) -> str:
    mark = f" {DOES_NOT_COMPETE}" if row.is_marked else ""
    return latex_text(printed_name(row.label) + mark)


def _cell(cell: Cell) -> str:
    mean, plus_minus, sd = cell.text.partition(" ± ")
    text = rf"\textbf{{{latex_text(mean)}}}" if cell.bold else latex_text(mean)
    text += rf" ($\pm$ {latex_text(sd)})" if plus_minus else ""
    return text + (r"$^\circ$" if cell.dim else "")


def _label(table: Table) -> str:
    """Letters, digits and hyphens, so that \\ref finds it."""
    parts = (table.dataset, table.target, table.attribute, *(f"{k}-{v}" for k, v in table.differs.items()))
    return "-".join(re.sub(r"[^A-Za-z0-9]+", "-", part).strip("-") or "x" for part in parts)


_ARROWS = {"↑": r"\uparrow", "↓": r"\downarrow"}
_TEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "Δ": r"$\Delta$",
    "±": r"$\pm$",
    "×": r"$\times$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "°": r"$^\circ$",
    "†": r"$^\dagger$",
    "–": "--",
    "—": "---",
    "’": "'",
    "“": "``",
    "”": "''",
    "…": "...",
    "ß": r"\ss{}",
    "ø": r"\o{}",
    "Ø": r"\O{}",
    "æ": r"\ae{}",
    "Æ": r"\AE{}",
    "œ": r"\oe{}",
    "Œ": r"\OE{}",
    "ł": r"\l{}",
    "Ł": r"\L{}",
    "ı": r"\i{}",
    "<": r"$<$",
    ">": r"$>$",
    "|": r"$|$",
    '"': "''",
    "-": "{-}",  # two of them are no dash, and a question mark before a grave accent no ligature
    "`": r"\`{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
}
_ACCENTS = {
    "\u0300": "`",
    "\u0301": "'",
    "\u0302": "^",
    "\u0303": "~",
    "\u0304": "=",
    "\u0306": "u ",
    "\u0307": ".",
    "\u0308": '"',
    "\u030a": "r ",
    "\u030b": "H ",
    "\u030c": "v ",
    "\u0327": "c ",
}


def latex_text(text: str) -> str:
    """Text that LaTeX's own fonts print, in ASCII: accents by their commands or left out, other signs as `U+1F600`."""
    return "".join(_sign(sign) for sign in " ".join(text.split()))


def _sign(sign: str) -> str:
    if sign in _TEX:
        return _TEX[sign]
    if " " <= sign <= "~":
        return sign
    first, *marks = list(unicodedata.normalize("NFD", sign))
    if marks and first.isascii() and first.isalpha():
        for mark in marks:
            first = rf"\{_ACCENTS[mark]}{{{first}}}" if mark in _ACCENTS else first
        return first
    plain = unicodedata.normalize("NFKC", sign).replace("\u2044", "/")  # of a fraction
    if plain != sign and plain.isascii() and plain.isprintable():
        return "".join(map(_sign, plain))
    return f"U+{ord(sign):04X}"
