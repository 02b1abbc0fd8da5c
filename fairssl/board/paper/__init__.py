"""The paper's tables and how they were made, as data."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any


@dataclass(frozen=True)
class PaperCell:
    """A value as printed: Acc, ED, EO and DP in percent. `inconsistent`: why it cannot be compared with; empty if it can."""

    mean: float
    sd: float | None
    inconsistent: str = ""


@dataclass(frozen=True)
class PaperProtocol:
    """How the paper made a row. `image_size` in pixels and `batch_size` in images; `annotated`: share of the training images
    whose group is known; `n_train`, `n_test` images; `probe_epochs` of the linear probe. None: the paper does not say."""

    encoder: str
    image_size: int | None
    epochs: int
    batch_size: int
    annotated: float
    n_train: int
    n_test: int
    probe_epochs: int


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
    protocol: PaperProtocol


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
            protocol=_protocol(content["protocols"], row["table"], row["method"]),
        )
        for row in content["rows"]
    )


def _protocol(protocols: Sequence[Mapping[str, Any]], table: str, method: str) -> PaperProtocol:
    found = next(p for p in protocols if table in p["tables"] and (p["methods"] is None or method in p["methods"]))
    return PaperProtocol(**{name: value for name, value in found.items() if name not in ("tables", "methods")})


@cache
def paper_names() -> Mapping[str, str]:
    """Registry name -> the paper's name of a method, in the order of its tables: supervised, self-supervised, SoFCLR."""
    found: dict[str, str] = {}
    for row in paper_rows():
        found.setdefault(row.method, row.name)
    return found
