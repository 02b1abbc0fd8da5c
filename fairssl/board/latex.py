"""Tables as LaTeX."""

from __future__ import annotations

from collections.abc import Iterable

from fairssl.board.table import Table


def to_latex(*tables: Table) -> str:
    """A `table` environment each, for the booktabs package."""
    return "\n".join(_one_latex(table) for table in tables)


def _one_latex(table: Table) -> str:
    def line(cells: Iterable[str]) -> str:
        return " & ".join(cells) + r" \\"

    body = (line(rf"\textbf{{{_tex(text)}}}" if bold else _tex(text) for text, bold in row) for row in table.body)
    notes = (rf"\par\footnotesize {_tex(note)}" for note in table.notes)
    lines = [
        r"\begin{table}",
        rf"\caption{{{_tex(table.title)}. {_tex(' '.join(table.heading))}}}",
        rf"\begin{{tabular}}{{l{'r' * len(table.columns)}llr}}",
        r"\toprule",
        line(map(_tex, table.head)),
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}",
        *notes,
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


_TEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "Δ": r"$\Delta$",
    "±": r"$\pm$",
    "<": r"$<$",
    ">": r"$>$",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
}


def _tex(text: str) -> str:
    return "".join(_TEX.get(sign, sign) for sign in " ".join(text.split()))
