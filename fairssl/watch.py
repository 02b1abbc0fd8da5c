"""How far a grid is and how long it still takes: what `--dry-run` and `fairssl status` tell.

    plans/<digest>.json     the cells of every grid that was started in this runs folder
    work/<key>/live.json    how far a training or its evaluation is, every few seconds, for as long as it goes on

Both are for people: no key and no table depends on them, and removing them loses nothing else.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import platform
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairssl.spec import RunSpec, canonical, digest
from fairssl.store import RunStore, whole_file
from fairssl.types import Splits, UserError

if TYPE_CHECKING:
    import torch

    from fairssl.pipeline import Cell, Plan

LIVE_SECONDS = 2.0  # a live file is written at most that often


def name_of(cell: Cell) -> str:
    data = cell.spec.data
    return f"{cell.label} {data.dataset}/{data.target}/{data.attribute} seed {cell.spec.seed}"


# --------------------------------------------------------------------------- how long it takes


@dataclass
class Pace:
    """Mean times of runs that cost the same per epoch. `evaluate_seconds` is per cell; None: not known."""

    seconds_per_epoch: float
    steps_per_epoch: float
    evaluate_seconds: float | None = None

    def train_seconds(self, epochs: int, min_steps: int) -> float:
        if not self.steps_per_epoch:
            return 0.0  # nothing is trained
        return self.seconds_per_epoch * max(epochs, math.ceil(min_steps / self.steps_per_epoch))


def like(spec: RunSpec) -> str:
    """Names what costs the same per epoch: method, encoder, dataset, image size, batch; not epochs, seed or labels."""
    data = spec.data
    return _like_text(spec.method.written, spec.encoder.written, spec.train.written, data.dataset, data.image_size)


@lru_cache(maxsize=4096)
def _like_text(method: str, encoder: str, train: str, dataset: str, image_size: int) -> str:
    return _like(json.loads(method), json.loads(encoder), json.loads(train), dataset, image_size)


def _like(method: Any, encoder: Any, train: Any, dataset: str, image_size: int) -> str:
    parts = {name: method[name] for name in ("objective", "heads", "sampler")}
    free = ("epochs", "min_steps", "lr", "dual_lr", "weight_decay")
    loop = {name: value for name, value in train.items() if name not in free}
    return digest([parts, encoder, loop, dataset, image_size])


def paces(outlines: Iterable[Mapping[str, Any]], device: str | None = None) -> dict[str, Pace]:
    """`like` -> the mean pace of the records given; with `device`, of those made on a device of that name alone."""
    trained: dict[str, list[tuple[float, float]]] = {}
    evaluated: dict[str, list[float]] = {}
    for outline in outlines:
        timings = outline.get("timings", {})
        if "evaluate_seconds" not in timings or (device and outline.get("env", {}).get("device") != device):
            continue
        spec = outline["spec"]
        data = spec["data"]
        name = _like(spec["method"], spec["encoder"], spec["train"], data["dataset"], data["image_size"])
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


def time_steps(cell: Cell, splits: Splits, device: torch.device, n_steps: int = 5) -> Pace:
    """The pace of a cell's training from a few real steps on its data, after some to warm up; nothing is kept."""
    import torch

    from fairssl.pipeline import prepare
    from fairssl.train import WARM_UP

    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        trainer = prepare(cell.spec, splits, device)
        if not trainer.n_steps:
            return Pace(0.0, 0)
        steps = trainer.advance()
        warm = min(WARM_UP + 1, trainer.n_steps - 1)  # the capture among them
        for _ in itertools.islice(steps, warm):
            pass
        started = _now(device)
        taken = sum(1 for _ in itertools.islice(steps, n_steps))
        seconds = (_now(device) - started) / taken
    return Pace(seconds * trainer.steps_per_epoch, trainer.steps_per_epoch)


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)
    return time.perf_counter()


@dataclass
class Estimate:
    """Seconds of work, one thing after the other. `unknown` pretrainings have no pace and are not in it."""

    seconds: float = 0.0
    known: int = 0
    unknown: int = 0

    def add(self, pace: Pace | None, epochs: int, min_steps: int, n_cells: int, train: bool = True) -> None:
        if pace is None:
            self.unknown += 1
            return
        self.known += 1
        self.seconds += pace.train_seconds(epochs, min_steps) * train + n_cells * (pace.evaluate_seconds or 0.0)

    def total(self, workers: int = 1) -> float | None:
        """Seconds by the clock with that many at work; None where nothing is known of anything."""
        return self.seconds / max(1, workers) if self.known or not self.unknown else None


def spell(seconds: float | None) -> str:
    if seconds is None:
        return "unknown"
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.1f} days"


# --------------------------------------------------------------------------- what is planned


@dataclass
class Survey:
    """What of a plan is done and what is left. `due`: pretrain key -> cells that a call would run now, each key once."""

    n_cells: int
    pretrainings: dict[str, list[Cell]]
    states: dict[str, str]  # key -> ok, failed or diverged; nothing for what has not ended
    due: dict[str, list[Cell]]
    to_train: set[str]  # pretrain keys of `due` that are not trained yet

    def count(self, state: str, cells: Iterable[Cell]) -> int:
        return sum(self.states.get(cell.spec.key) == state for cell in cells)

    def estimate(self, known: Mapping[str, Pace]) -> Estimate:
        found = Estimate()
        for key, cells in self.due.items():
            spec = cells[0].spec
            pace = known.get(like(spec))
            found.add(pace, spec.train.epochs, spec.train.min_steps, len(cells), key in self.to_train)
        return found


def survey(plan: Plan, store: RunStore, retry_failed: bool = False) -> Survey:
    """Compare a plan with a runs folder. Failed and diverged cells are due only where asked. Touches nothing."""
    ended = store.result_keys()
    states: dict[str, str] = {}
    for cell in plan.cells:
        key = cell.spec.key
        if key in ended and key not in states:
            state = store.state(key)
            if state is not None:
                states[key] = state
    pretrainings = plan.pretrainings()
    due: dict[str, list[Cell]] = {}
    for pretrain_key, cells in pretrainings.items():
        wanted: dict[str, Cell] = {}
        for cell in cells:
            if is_due(states.get(cell.spec.key), retry_failed):
                wanted.setdefault(cell.spec.key, cell)
        if wanted:
            due[pretrain_key] = list(wanted.values())
    to_train = {key for key in due if not store.has_pretrain(key)}
    return Survey(len(plan.cells), pretrainings, states, due, to_train)


def is_due(state: str | None, retry_failed: bool) -> bool:
    return state is None or (retry_failed and state != "ok")


def write_plan(plan: Plan, store: RunStore) -> None:
    """Leave the plan where `status` finds it. Its name and bytes depend on the cells alone."""
    content = {
        pretrain_key: {
            "like": like(cells[0].spec),
            "epochs": cells[0].spec.train.epochs,
            "min_steps": cells[0].spec.train.min_steps,
            "cells": {cell.spec.key: name_of(cell) for cell in cells},
        }
        for pretrain_key, cells in plan.pretrainings().items()
    }
    text = canonical(content)
    path = store.root / "plans" / f"{digest(content)}.json"
    if not path.exists():
        store.folder("plans")
        with whole_file(path) as file:
            file.write(text.encode() + b"\n")


def read_plans(store: RunStore) -> dict[str, dict[str, Any]]:
    """All plans of a runs folder as one: pretrain key -> what `write_plan` wrote of it, with the cells of all."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted((store.root / "plans").glob("*.json")):
        try:
            content = json.loads(path.read_bytes())
            for key, entry in content.items():
                found.setdefault(key, {**entry, "cells": {}})["cells"].update(entry["cells"])
        except (OSError, ValueError, AttributeError, KeyError, TypeError) as error:
            raise UserError(f"{path} cannot be read ({error}); remove it, the next bench writes it anew") from error
    return found


# --------------------------------------------------------------------------- what goes on


class Live:
    """A `Progress` that keeps work/<key>/live.json up to date. A file that cannot be written stops nothing."""

    def __init__(self, store: RunStore, key: str, cells: Sequence[Cell]):
        self.path = store.work_dir(key) / "live.json"
        self.views_per_step = 0  # images x views that a training step takes; set once it is known
        self._about = {"name": name_of(cells[0]), "cells": len(cells), "host": platform.node(), "pid": os.getpid()}
        self._what = ""
        self._started = self._written = 0.0
        self._first = 0

    def __call__(self, what: str, done: int, total: int) -> None:
        now = time.monotonic()
        if what != self._what:
            self._what, self._started, self._first, self._written = what, now, done, 0.0
        if self._written and now - self._written < LIVE_SECONDS:
            return
        self._written = now
        rate = (done - self._first) / (now - self._started) if now > self._started and done > self._first else None
        content = {
            **self._about,
            "what": what,
            "done": done,
            "total": total,
            "per_second": rate,
            "views_per_second": rate * self.views_per_step if rate and what == "train" else None,
        }
        temporary = self.path.with_suffix(".partial")
        try:
            temporary.write_text(json.dumps(content), encoding="utf-8")
            os.replace(temporary, self.path)
        except OSError:
            temporary.unlink(missing_ok=True)


@dataclass
class Status:
    """A runs folder at this moment. `seconds_left` by the clock, with as many at work as now; None: nothing known."""

    cells: dict[str, int]  # planned, running, ok, failed, diverged -> how many
    running: list[dict[str, Any]]  # live files of what a live process holds
    views_per_second: float | None
    seconds_left: float | None
    unknown: int  # pretrainings that no earlier record tells the time of
    last_error: dict[str, str] | None = None
    plans: dict[str, dict[str, Any]] = field(default_factory=dict, repr=False)


def status(runs: Path) -> Status:
    """Read a runs folder. Nothing there: `UserError`. Reads plans, records and live files and touches nothing."""
    if not runs.is_dir():
        raise UserError(f"no folder {runs}; name the one that `fairssl bench` writes to")
    store = RunStore(runs)
    plans = read_plans(store)
    counts = dict.fromkeys(("planned", "running", "ok", "failed", "diverged"), 0)
    outlines: dict[str, dict[str, Any]] = {}
    newest: tuple[float, str] | None = None
    for key in store.result_keys():
        outline = store.outline(key)
        if outline is None:
            continue
        counts[outline["state"]] += 1
        if outline["state"] != "ok":
            at = (store.result_dir(key) / "record.json").stat().st_mtime
            newest = max(newest or (at, key), (at, key))
        timed = {name: outline.get(name, {}) for name in ("spec", "timings", "env")} if outline.get("timings") else {}
        outlines[key] = {**timed, "error": outline.get("error")}
    running = {key: live for key in plans for live in [_live(store, key)] if live is not None}
    known = paces(outlines.values())
    estimate = Estimate()
    for key, entry in plans.items():
        left = [cell for cell in entry["cells"] if cell not in outlines]
        counts["running" if key in running else "planned"] += len(left)
        if left and key not in running:
            to_train = not store.has_pretrain(key)
            estimate.add(known.get(entry["like"]), entry["epochs"], entry["min_steps"], len(left), to_train)
    for live in running.values():
        if live["what"] == "train" and live["per_second"]:
            estimate.known += 1
            estimate.seconds += (live["total"] - live["done"]) / live["per_second"]
    speeds = [live["views_per_second"] for live in running.values() if live["views_per_second"]]
    names = {key: name for entry in plans.values() for key, name in entry["cells"].items()}
    return Status(
        cells=counts,
        running=list(running.values()),
        views_per_second=sum(speeds) if speeds else None,
        seconds_left=estimate.total(len(running)),
        unknown=estimate.unknown,
        last_error=None
        if newest is None
        else {"key": newest[1], "name": names.get(newest[1], newest[1]), "error": outlines[newest[1]]["error"] or ""},
    )


def _live(store: RunStore, key: str) -> dict[str, Any] | None:
    """The live file of a key; None where its owner is dead or has not begun."""
    path = store.root / "work" / key / "live.json"
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return content if store.is_claimed(key) else None
