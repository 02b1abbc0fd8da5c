"""The paper's tables, as data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources


@dataclass(frozen=True)
class PaperCell:
    """A value as printed: Acc, ED, EO and DP in percent. `inconsistent`: why it cannot be compared with; empty if it can."""

    mean: float
    sd: float | None
    inconsistent: str = ""


@dataclass(frozen=True)
class PaperRow:
    """A row of one of the paper's tables. `method` is a registry name, `name` the paper's."""

    table: str
    dataset: str
    target: str
    attribute: str
    method: str
    name: str
    cells: Mapping[str, PaperCell]  # symbol -> cell


@cache
def paper_rows() -> tuple[PaperRow, ...]:
    """Every row of the paper's tables, in the paper's order."""
    content = json.loads(resources.files(__name__).joinpath("tables.json").read_text(encoding="utf-8"))
    return tuple(
        PaperRow(
            table=row["table"],
            dataset=row["dataset"],
            target=row["target"],
            attribute=row["attr"],
            method=row["method"],
            name=row["name"],
            cells={symbol: PaperCell(**cell) for symbol, cell in row["cells"].items()},
        )
        for row in content["rows"]
    )


@cache
def paper_names() -> Mapping[str, str]:
    """Registry name -> the paper's name of a method, in the order of its tables: supervised, self-supervised, SoFCLR."""
    found: dict[str, str] = {}
    for row in paper_rows():
        found.setdefault(row.method, row.name)
    return found
