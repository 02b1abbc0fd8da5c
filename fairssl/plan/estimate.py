"""How long what is left takes, from the timings in records."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from fairssl.spec.keys import digest
from fairssl.spec.run import RunSpec


@dataclass
class Pace:
    """Mean times of runs that cost the same per epoch. `evaluate_seconds` is per run; None: not known."""

    seconds_per_epoch: float
    steps_per_epoch: float
    evaluate_seconds: float | None = None

    def train_seconds(self, epochs: int, min_steps: int) -> float:
        if not self.steps_per_epoch:
            return 0.0  # nothing is trained
        return self.seconds_per_epoch * max(epochs, math.ceil(min_steps / self.steps_per_epoch))


def cost_key(spec: RunSpec) -> str:
    """Names what costs the same per epoch: method, encoder, dataset, image size, batch; not epochs, seed or labels."""
    data = spec.data
    return _cost_key_text(
        spec.method.canonical_json,
        spec.encoder.canonical_json,
        spec.train.canonical_json,
        data.dataset,
        data.image_size,
    )


@lru_cache(maxsize=4096)
def _cost_key_text(method: str, encoder: str, train: str, dataset: str, image_size: int) -> str:
    return cost_key_of(json.loads(method), json.loads(encoder), json.loads(train), dataset, image_size)


def cost_key_of(method: Any, encoder: Any, train: Any, dataset: str, image_size: int) -> str:
    parts = {name: method[name] for name in ("objective", "heads", "sampler")}
    free = ("epochs", "min_steps", "lr", "dual_lr", "weight_decay")
    loop = {name: value for name, value in train.items() if name not in free}
    return digest([parts, encoder, loop, dataset, image_size])


def paces(outlines: Iterable[Mapping[str, Any]], device: str | None = None) -> dict[str, Pace]:
    """`cost_key` -> the mean pace of the records given; with `device`, of those made on a device of that name alone."""
    trained: dict[str, list[tuple[float, float]]] = {}
    evaluated: dict[str, list[float]] = {}
    for outline in outlines:
        timings = outline.get("timings", {})
        if "evaluate_seconds" not in timings or (device and outline.get("env", {}).get("device") != device):
            continue
        spec = outline["spec"]
        data = spec["data"]
        name = cost_key_of(spec["method"], spec["encoder"], spec["train"], data["dataset"], data["image_size"])
        evaluated.setdefault(name, []).append(timings["evaluate_seconds"])
        if "seconds_per_epoch" in timings:
            trained.setdefault(name, []).append((timings["seconds_per_epoch"], timings["steps_per_epoch"]))
    return {
        name: Pace(_mean(a for a, _ in times), _mean(b for _, b in times), _mean(evaluated[name]))
        for name, times in trained.items()
    }


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed)


@dataclass
class Estimate:
    """Seconds of work, one thing after the other. `unknown` pretrainings have no pace and are not in it."""

    seconds: float = 0.0
    known: int = 0
    unknown: int = 0

    def add(self, pace: Pace | None, epochs: int, min_steps: int, n_runs: int, train: bool = True) -> None:
        if pace is None:
            self.unknown += 1
            return
        self.known += 1
        self.seconds += pace.train_seconds(epochs, min_steps) * train + n_runs * (pace.evaluate_seconds or 0.0)

    def total(self, workers: int = 1) -> float | None:
        """Seconds by the clock with that many at work; None where nothing is known of anything."""
        return self.seconds / max(1, workers) if self.known or not self.unknown else None


def format_duration(seconds: float | None) -> str:
    if seconds is None:
        return "unknown"
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.1f} days"
