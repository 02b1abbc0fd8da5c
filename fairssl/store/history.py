"""The history of a training as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence


def history_from_csv(text: str) -> list[dict[str, float]]:
    names, *rows = csv.reader(io.StringIO(text))
    return [{name: float(x) for name, x in zip(names, row, strict=True) if x} for row in rows]


def history_to_csv(history: Sequence[Mapping[str, float]]) -> bytes:
    """A column per name in order of first appearance; what an epoch lacks is empty. Floats round-trip."""
    names = list(dict.fromkeys(name for epoch in history for name in epoch))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    for epoch in history:
        writer.writerow([repr(float(epoch[name])) if name in epoch else "" for name in names])
    return text.getvalue().encode()
