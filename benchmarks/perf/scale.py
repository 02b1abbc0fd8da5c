"""Plan 100,000 cells, and build a board from 100,000 records: seconds and peak memory of each, in a process of its own.

    python benchmarks/perf/scale.py [--n 100000] [--json scale.json]

The grid is CelebA's, absent: 16 methods x 1,560 pairs of target and attribute x 4 seeds = 99,840 cells. The records are
those of a real run under as many keys, with their seeds, labels and values changed.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairssl.plan.request import Request

METHODS = (
    "simclr", "sogclr", "byol", "vicreg", "simclr+ccl", "sofclr", "ce", "ce+eod", "ce+dpr", "ce+eql", "ml_afl",
    "max_ent", "dfr", "simclr+adversary", "byol+adversary", "sogclr+ccl",
)  # fmt: skip


def request(n: int) -> Request:
    """About n cells of CelebA."""
    from fairssl import kinds
    from fairssl.plan.request import Request

    names = list(kinds.datasets.get("celeba").card.attributes)
    wanted = max(2, min(len(names), round((n / (4 * len(METHODS))) ** 0.5 + 0.5)))
    return Request(METHODS, ("celeba",), names[:wanted], names[:wanted], seeds=4, data_dir=Path("/nowhere"))


def plan(n: int) -> dict[str, int]:
    from fairssl.plan.resolve import resolve
    from fairssl.plan.status import survey
    from fairssl.store.runs import RunStore

    made = resolve(request(n), allow_absent=True)
    found = survey(made, RunStore("/nowhere/runs"))
    return {"cells": found.n_runs, "pretrainings": len(found.pretrainings)}


def write(n: int, runs: Path) -> None:
    """n records in a runs folder, quickly: the layout that RunStore writes, without its flushes."""
    from fairssl import scoring
    from fairssl.plan.resolve import resolve
    from fairssl.store.record import ColumnFacts, Measured, Record

    columns = {metric.symbol: ColumnFacts.of(metric) for metric in scoring.columns()}
    symbols = list(columns)
    (runs / "results").mkdir()
    for number, cell in enumerate(resolve(request(n), allow_absent=True).runs[:n]):
        values = {symbol: ((number * 7919 + i * 104729) % 10007) / 10007 for i, symbol in enumerate(symbols)}
        record = Record(
            spec=cell.spec.model_dump(mode="json"),
            key=cell.spec.key,
            state="ok",
            metrics=dict(values),
            validation=Measured(metrics=dict(values)),
            cells={"0": {"a": 5000, "b": 5000}, "1": {"a": 5000, "b": 5000}},
            leakage={"accuracy": values["Acc"], "majority": 0.5, "groups": ["a", "b"]},
            intervals={
                k: {"low": v - 0.01, "high": v + 0.01, "n_undefined": 0, "n_replicates": 1000}
                for k, v in values.items()
            },
            noise_floor={
                k: {"mean": v / 9, "high": v / 7, "n_undefined": 0, "n_replicates": 200} for k, v in values.items()
            },
            facts={"groups": ["a", "b"], "positive": "y", "n_train": 162770, "n_val": 19867, "n_test": 19962},
            env={"fairssl": "0.1.0", "torch": "2.9", "device": "cpu", "threads": "1"},
            timings={"train_seconds": 60.0, "evaluate_seconds": 2.0, "seconds_per_epoch": 0.6, "steps_per_epoch": 10.0},
            columns=columns,
        )
        folder = runs / "results" / cell.spec.key
        folder.mkdir()
        (folder / "record.json").write_text(record.to_json() + "\n", encoding="utf-8")
        (folder / "predictions.csv.gz").touch()  # a result without predictions is not one; nobody reads these


def todo(n: int, runs: Path) -> dict[str, int]:
    from fairssl.plan.resolve import resolve
    from fairssl.plan.status import survey
    from fairssl.store.runs import RunStore

    found = survey(resolve(request(n), allow_absent=True), RunStore(runs))
    return {"done": len(found.states), "due": len(found.due)}


def board(runs: Path) -> dict[str, int]:
    """Tables of records whose metrics are those that are installed, so that no predictions are read."""
    from fairssl.board.load import tables_of

    tables = tables_of(runs)
    return {"tables": len(tables), "rows": sum(len(table.rows) for table in tables)}


def status(runs: Path) -> dict[str, int]:
    from fairssl.plan.status import status

    return {"ok": status(runs).runs["ok"]}


def measured(stage: str, n: int, runs: Path) -> dict[str, float]:
    """One stage in a process of its own."""
    words = [sys.executable, __file__, "--n", str(n), "--stage", stage, "--runs", str(runs)]
    done = subprocess.run(words, env={**os.environ, "OMP_NUM_THREADS": "2"}, stdout=subprocess.PIPE, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=100_000)
    parser.add_argument("--json", type=Path, help="also write the numbers there")
    parser.add_argument("--stage", help=argparse.SUPPRESS)
    parser.add_argument("--runs", type=Path, help=argparse.SUPPRESS)
    words = parser.parse_args()
    if words.stage:
        started = time.perf_counter()
        stages = {
            "plan": lambda: plan(words.n),
            "write": lambda: write(words.n, words.runs),
            "resume": lambda: todo(words.n, words.runs),
            "board": lambda: board(words.runs),
            "status": lambda: status(words.runs),
        }
        found: dict[str, float] = dict(stages[words.stage]() or {})
        found["seconds"] = round(time.perf_counter() - started, 2)
        used = resource.getrusage(resource.RUSAGE_SELF)
        found["cpu_seconds"] = round(used.ru_utime + used.ru_stime, 2)  # what others on the machine do not change
        found["peak_gb"] = round(used.ru_maxrss / 1e6, 3)  # kB on Linux
        print(json.dumps(found))
        return
    rows = {}
    with tempfile.TemporaryDirectory() as folder:
        for stage in ("plan", "write", "resume", "board", "status"):
            rows[stage] = measured(stage, words.n, Path(folder))
            rest = ", ".join(
                f"{k} {v}" for k, v in rows[stage].items() if k not in ("seconds", "cpu_seconds", "peak_gb")
            )
            seconds, cpu, peak = (rows[stage][name] for name in ("seconds", "cpu_seconds", "peak_gb"))
            print(f"{stage:8} {seconds:8.2f} s, {cpu:.2f} s of CPU, {peak:7.3f} GB  {rest}", flush=True)
    if words.json:
        words.json.write_text(json.dumps({"n": words.n, "cpus": os.cpu_count(), **rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
