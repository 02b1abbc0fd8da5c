"""How far a grid is and how long it still takes: what `--dry-run` and `fairssl status` tell.

    plans/<digest>.json     the runs of every grid that was started in this runs folder
    work/<key>/live.json    how far a training or its evaluation is, every few seconds, for as long as it goes on

Both are for people: no key and no table depends on them, and removing them loses nothing else.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairssl.plan.estimate import Estimate, Pace, cost_key, paces
from fairssl.spec.keys import canonical, digest
from fairssl.store.files import whole_file
from fairssl.store.record import reason_of
from fairssl.store.runs import RunStore
from fairssl.types import UserError

if TYPE_CHECKING:
    from fairssl.plan.resolve import Plan, Run


LIVE_SECONDS = 2.0  # a live file is written at most that often


@dataclass
class Survey:
    """What of a plan is done and what is left. `due`: pretrain key -> runs that a call would run now, each key once."""

    n_runs: int
    pretrainings: dict[str, list[Run]]
    states: dict[str, str]  # key -> ok, failed or diverged; nothing for what has not ended
    due: dict[str, list[Run]]
    to_train: set[str]  # pretrain keys of `due` that are not trained yet

    def count(self, state: str) -> int:
        """How many runs of the plan ended so, each once, however many of its rows it stands for."""
        return sum(one == state for one in self.states.values())

    def estimate(self, known: Mapping[str, Pace]) -> Estimate:
        found = Estimate()
        for key, runs in self.due.items():
            spec = runs[0].spec
            pace = known.get(cost_key(spec))
            found.add(pace, spec.train.epochs, spec.train.min_steps, len(runs), key in self.to_train)
        return found


def survey(plan: Plan, store: RunStore, retry_failed: bool = False) -> Survey:
    """Compare a plan with a runs folder. Failed and diverged runs are due only where asked. Touches nothing."""
    ended = store.result_keys()
    states: dict[str, str] = {}
    for run in plan.runs:
        key = run.spec.key
        if key in ended and key not in states:
            state = store.state(key)
            if state is not None:
                states[key] = state
    pretrainings = plan.pretrainings()
    due: dict[str, list[Run]] = {}
    for pretrain_key, runs in pretrainings.items():
        wanted: dict[str, Run] = {}
        for run in runs:
            if is_due(states.get(run.spec.key), retry_failed):
                wanted.setdefault(run.spec.key, run)
        if wanted:
            due[pretrain_key] = list(wanted.values())
    to_train = {key for key in due if not store.has_pretrain(key)}
    return Survey(len({run.spec.key for run in plan.runs}), pretrainings, states, due, to_train)


def is_due(state: str | None, retry_failed: bool) -> bool:
    return state is None or (retry_failed and state != "ok")


def write_plan(plan: Plan, store: RunStore) -> Path | None:
    """Leave the plan where `status` finds it. Its name and bytes depend on the runs alone. The file; None if it was there."""
    content = {
        pretrain_key: {
            "cost_key": cost_key(runs[0].spec),
            "epochs": runs[0].spec.train.epochs,
            "min_steps": runs[0].spec.train.min_steps,
            "runs": {run.spec.key: run.name for run in runs},
        }
        for pretrain_key, runs in plan.pretrainings().items()
    }
    text = canonical(content)
    path = store.root / "plans" / f"{digest(content)}.json"
    if path.exists():
        return None
    store.folder("plans")
    with whole_file(path) as file:
        file.write(text.encode() + b"\n")
    return path


def read_plans(store: RunStore) -> dict[str, dict[str, Any]]:
    """All plans of a runs folder as one: pretrain key -> what `write_plan` wrote of it, with the runs of all."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted((store.root / "plans").glob("*.json")):
        try:
            content = json.loads(path.read_bytes())
            for key, entry in content.items():
                found.setdefault(key, {**entry, "runs": {}})["runs"].update(entry["runs"])
        except (OSError, ValueError, AttributeError, KeyError, TypeError) as error:
            raise UserError(f"{path} cannot be read ({error}); remove it, the next bench writes it anew") from error
    return found


class Live:
    """A `Progress` that keeps work/<key>/live.json up to date. A file that cannot be written stops nothing."""

    def __init__(self, store: RunStore, key: str, runs: Sequence[Run]):
        self.path = store.work_dir(key) / "live.json"
        self.views_per_step = 0  # images x views that a training step takes; set once it is known
        self._about = {"name": runs[0].name, "runs": len(runs), "host": platform.node(), "pid": os.getpid()}
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

    runs: dict[str, int]  # planned, running, ok, failed, diverged -> how many
    running: list[dict[str, Any]]  # live files of what a live process holds
    views_per_second: float | None
    seconds_left: float | None
    unknown: int  # pretrainings that no earlier record tells the time of
    last_error: dict[str, str] | None = None  # of the run that failed or diverged last: see `_last_error`
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
        outlines[key] = {**timed, "error": outline.get("error"), "state": outline["state"]}
    running = {key: live for key in plans for live in [_live(store, key)] if live is not None}
    known = paces(outlines.values())
    estimate = Estimate()
    for key, entry in plans.items():
        left = [run for run in entry["runs"] if run not in outlines]
        counts["running" if key in running else "planned"] += len(left)
        if left and key not in running:
            to_train = not store.has_pretrain(key)
            estimate.add(known.get(entry["cost_key"]), entry["epochs"], entry["min_steps"], len(left), to_train)
    for live in running.values():
        if live["what"] == "train" and live["per_second"]:
            estimate.known += 1
            estimate.seconds += (live["total"] - live["done"]) / live["per_second"]
    speeds = [live["views_per_second"] for live in running.values() if live["views_per_second"]]
    names = {key: name for entry in plans.values() for key, name in entry["runs"].items()}
    return Status(
        runs=counts,
        running=list(running.values()),
        views_per_second=sum(speeds) if speeds else None,
        seconds_left=estimate.total(len(running)),
        unknown=estimate.unknown,
        last_error=None if newest is None else _last_error(newest[1], outlines[newest[1]], names, store),
    )


def _last_error(key: str, outline: Mapping[str, Any], names: Mapping[str, str], store: RunStore) -> dict[str, str]:
    """Which run it was, how it ended, why in one line and in full, and the file that holds it."""
    error = outline["error"] or ""
    return {
        "key": key,
        "name": names.get(key, key),
        "state": outline["state"],
        "reason": reason_of(error),
        "error": error,
        "record": str(store.result_dir(key) / "record.json"),
    }


def _live(store: RunStore, key: str) -> dict[str, Any] | None:
    """The live file of a key; None where its owner is dead or has not begun."""
    path = store.root / "work" / key / "live.json"
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return content if store.is_claimed(key) else None
