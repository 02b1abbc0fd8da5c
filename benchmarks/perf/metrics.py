"""Every metric with its bootstrap interval and noise floor on 20,000 rows: seconds, with two groups and with four.

    python benchmarks/perf/metrics.py [--n 20000] [--json metrics.json]

The scores are all different, which is the slowest case: the work grows with the number of distinct scores.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from outcome import Outcome, arguments, count, numbers, script, spread

from fairssl import scoring, types


def drawn(n: int, n_groups: int) -> types.Outcome:
    """Scores that tell something of the target, and of the group."""
    rng = np.random.default_rng(0)
    target, group = rng.integers(0, 2, n), rng.integers(0, n_groups, n)
    logit = target + 0.3 * group + rng.normal(size=n)
    return types.Outcome(1 / (1 + np.exp(-logit)), target, group, tuple(f"g{code}" for code in range(n_groups)))


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--n", type=count, default=20_000, help="rows")
    parser.add_argument("--groups", type=numbers, default=[2, 4])
    parser.add_argument("--replicates", type=count, default=1000, help="of the bootstrap")
    parser.add_argument("--permutations", type=count, default=200, help="of the noise floor")
    parser.add_argument("--repeats", type=count, default=3)
    options = parser.parse_args()
    outcome = Outcome(__file__, options, torch.device("cpu"))
    scoring.columns()  # imports the metrics
    for n_groups in options.groups:
        data = drawn(options.n, n_groups)
        work: dict[str, Callable[[], dict[str, Any]]] = {
            "bootstrap": partial(scoring.bootstrap, data, options.replicates),
            "noise floor": partial(scoring.noise_floor, data, options.permutations),
        }
        for what, call in work.items():
            wall, cpu = [], []
            for _ in range(options.repeats):
                started = time.perf_counter(), time.process_time()
                found = call()
                wall.append(time.perf_counter() - started[0])
                cpu.append(time.process_time() - started[1])
            outcome.add(
                what=what, groups=n_groups, metrics=len(found), seconds=spread(wall), cpu_seconds=spread(cpu)
            )  # fmt: skip


if __name__ == "__main__":
    script(main)
