"""What one run came to: its record and its predictions, as files hold them."""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

State = Literal["ok", "failed", "diverged"]
RECORD_VERSION = 1


def to_json(value: Any, indent: int | None = None) -> str:
    """JSON that depends on the value alone: sorted keys, floats that round-trip; NaN or infinity is a `ValueError`."""
    separators = (",", ":") if indent is None else (",", ": ")
    return json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False, indent=indent, separators=separators)


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Measured(_Frozen):
    """Metrics by symbol, as fractions; None where undefined, and then `undefined` has the reason."""

    metrics: dict[str, float | None] = Field(default_factory=dict)
    undefined: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _every_none_has_its_reason(self) -> Measured:
        missing = {symbol for symbol, value in self.metrics.items() if value is None}
        if missing != set(self.undefined) or not all(self.undefined.values()):
            odd = ", ".join(sorted(missing ^ set(self.undefined))) or "an empty reason"
            raise ValueError(f"a metric is None exactly where `undefined` has a reason; see {odd}")
        return self


def reason_of(error: str) -> str:
    """One line of an error that may be a traceback: the type and the first line of what was raised, not of where."""
    lines = [line for line in error.splitlines() if line.strip()]
    frames = [number for number, line in enumerate(lines) if line.startswith("  File ")]
    after = lines[frames[-1] :] if frames else lines
    line = next((line for line in after if not line.startswith((" ", "Traceback "))), "").strip()
    return line if len(line) <= 200 else line[:197] + "..."


class Record(Measured):
    """What one run came to. `metrics` are of the test split; a failed or diverged run has none.

    `facts` are what a table's heading tells of the data: groups, positive, n_train, n_annotated, n_val, n_test.
    """

    version: int = RECORD_VERSION  # of this format
    spec: dict[str, Any]  # the whole RunSpec
    key: str
    state: State
    cells: dict[str, dict[str, int]] = Field(default_factory=dict)  # test examples: target -> label of the group -> n
    validation: Measured | None = None
    leakage: dict[str, Any] | None = None
    intervals: dict[str, Any] | None = None
    noise_floor: dict[str, Any] | None = None
    facts: dict[str, Any] = Field(default_factory=dict)
    error: str | None = None  # failed: the traceback; diverged: as `step 120: loss nan`
    notes: list[str] = Field(default_factory=list)
    env: dict[str, str | None] = Field(default_factory=dict)  # versions and the device's name; None: not installed
    timings: dict[str, float] = Field(default_factory=dict)  # seconds
    metric_versions: dict[str, int] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _state_and_error_agree(self) -> Record:
        if (self.state == "ok") != (self.error is None) or self.error == "":
            raise ValueError(f"a record that is {self.state} has error {self.error!r}")
        if self.state != "ok" and self.metrics:
            raise ValueError(f"a record that is {self.state} has no metrics")
        return self

    @property
    def reason(self) -> str:
        """Why it did not end well, in one line; empty if it did."""
        return reason_of(self.error or "")

    def to_json(self) -> str:
        """One line; equal records, equal text."""
        return to_json(self.model_dump(mode="json"))


@dataclass(frozen=True)
class Predictions:
    """One split's predictions. `ids` N strings; `score` float64 (N,); `target`, `group` int64 (N,)."""

    ids: Sequence[str]
    score: np.ndarray
    target: np.ndarray
    group: np.ndarray

    def to_csv_gz(self) -> bytes:
        """Gzipped CSV: id, score, target, group. Floats round-trip; equal predictions give equal bytes."""
        n = {len(self.ids), len(self.score), len(self.target), len(self.group)}
        if len(n) != 1:
            raise ValueError(f"predictions of unequal length: {sorted(n)}")
        score = np.asarray(self.score, dtype=np.float64)
        if not np.isfinite(score).all():
            raise ValueError("predictions hold a score that is not finite")
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(("id", "score", "target", "group"))
        whole = (np.asarray(column, dtype=np.int64).tolist() for column in (self.target, self.group))
        writer.writerows(zip(self.ids, map(repr, score.tolist()), *whole, strict=True))
        packed = io.BytesIO()
        with gzip.GzipFile(filename="", mode="wb", fileobj=packed, compresslevel=6, mtime=0) as file:
            file.write(text.getvalue().encode())
        return packed.getvalue()

    @classmethod
    def from_csv_gz(cls, data: bytes) -> Predictions:
        """The inverse. Anything else than what `to_csv_gz` writes: `ValueError`."""
        try:
            rows = list(csv.reader(io.StringIO(gzip.decompress(data).decode())))
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"not a whole gzip file: {error}") from error
        if not rows or rows[0] != ["id", "score", "target", "group"] or any(len(row) != 4 for row in rows):
            raise ValueError("not a table of id, score, target, group")
        ids, score, target, group = zip(*rows[1:], strict=True) if len(rows) > 1 else ((), (), (), ())
        return cls(
            ids=list(ids),
            score=np.array([float(x) for x in score], dtype=np.float64),
            target=np.array([int(x) for x in target], dtype=np.int64),
            group=np.array([int(x) for x in group], dtype=np.int64),
        )
