"""What one run came to: its record and its predictions, as files hold them."""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from fairssl.interfaces import Metric
from fairssl.types import Undefined

State = Literal["ok", "failed", "diverged"]
RECORD_VERSION = 2


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


def resampled_json(found: Mapping[str, Any]) -> dict[str, Any]:
    """Intervals or noise floors by symbol as a record holds them: None where one has no value."""

    def value(one: Any, name: str) -> Any:
        part = getattr(one, name)
        return None if isinstance(part, Undefined) else part

    return {symbol: {f.name: value(one, f.name) for f in fields(one)} for symbol, one in found.items()}


class ColumnFacts(_Frozen):
    """What a table must know of a metric, as the metric itself declares it, at the version that computed the value."""

    version: int
    heading: str
    better: Literal["higher", "lower"]
    percent: bool  # printed x 100
    headline: bool  # in the printed tables; the others are in the exports
    order: int  # place among the columns

    @classmethod
    def of(cls, metric: Metric) -> ColumnFacts:
        """What an installed metric declares."""
        return cls(
            version=metric.version,
            heading=metric.heading,
            better=metric.better,
            percent=metric.percent,
            headline=metric.headline,
            order=metric.order,
        )


class Record(Measured):
    """What one run came to. `metrics` are of the test split; a failed or diverged run has none.

    `facts` are what a table tells of the data and the training: `groups` in order of their codes, `ordered` (whether that
    order means something), `positive` (what y = 1 is), n_train, n_val, n_test, n_annotated (if any part reads which images
    are annotated), n_unknown (test images left out, their group being unknown), one_class (which class all predictions
    are of, where they are of one), `batches` (stream -> images of a step), n_views, n_steps, `feature_sd`,
    `effective_rank` and `collapsed` (whether the encoder still tells images apart), `unread` (settings that have no
    effect), `n_neighbours` (how many vote in a kNN probe), `departures` from an official protocol, and hashes of the splits
    and of the annotated subset.
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
    columns: dict[str, ColumnFacts] = Field(default_factory=dict)  # symbol -> of the metrics above
    sources: dict[str, str] = Field(default_factory=dict)  # plugin, or `fairssl` -> hash of its source

    @field_validator("error")
    @classmethod
    def _can_be_written(cls, error: str | None) -> str | None:
        """A file name in a traceback may be no UTF-8."""
        return None if error is None else error.encode("utf-8", "backslashreplace").decode("utf-8")

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
    def from_csv_gz(cls, data: bytes, max_bytes: int | None = None) -> Predictions:
        """The inverse. Anything else than what `to_csv_gz` writes, or more than `max_bytes` unpacked: `ValueError`."""
        try:
            with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
                text = file.read() if max_bytes is None else file.read(max_bytes + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"not a whole gzip file: {error}") from error
        if max_bytes is not None and len(text) > max_bytes:
            raise ValueError(f"more than {max_bytes} bytes unpacked")
        try:
            rows = list(csv.reader(io.StringIO(text.decode())))
        except csv.Error as error:
            raise ValueError(f"not a table: {error}") from error
        if not rows or rows[0] != ["id", "score", "target", "group"] or any(len(row) != 4 for row in rows):
            raise ValueError("not a table of id, score, target, group")
        ids, score, target, group = zip(*rows[1:], strict=True) if len(rows) > 1 else ((), (), (), ())
        return cls(
            ids=list(ids),
            score=np.array([float(x) for x in score], dtype=np.float64),
            target=np.array([int(x) for x in target], dtype=np.int64),
            group=np.array([int(x) for x in group], dtype=np.int64),
        )
