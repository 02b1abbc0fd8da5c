"""Start-up of the command line: seconds of the commands that train nothing, each in a process of its own.

    python benchmarks/perf/startup.py [--repeats 7] [--json startup.json]

Each command runs once unmeasured, for the files to be in memory and compiled to bytecode.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time

import torch
from outcome import Outcome, arguments, count, script, spread

COMMANDS = ("--help", "list", "show method sofclr", "bench --dry-run")


def seconds(command: str, folder: str) -> tuple[float, float]:
    """Wall and CPU seconds of one call, made in an empty folder."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "fairssl", *command.split()], cwd=folder, stdout=subprocess.DEVNULL, check=True
    )  # fmt: skip
    wall = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--repeats", type=count, default=7)
    options = parser.parse_args()
    outcome = Outcome(__file__, options, torch.device("cpu"))
    with tempfile.TemporaryDirectory() as folder:
        for command in COMMANDS:
            seconds(command, folder)
            wall, cpu = zip(*(seconds(command, folder) for _ in range(options.repeats)), strict=True)
            outcome.add(command=f"fairssl {command}", seconds=spread(wall), cpu_seconds=spread(cpu))


if __name__ == "__main__":
    script(main)
