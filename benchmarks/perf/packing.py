"""Packing: N seeds of a cell in one process at once, against one seed, N one after the other, and N processes.

    python benchmarks/perf/packing.py [--method simclr] [--seeds 4] [--size 64] [--batch 128] [--json packing.json]

Every figure is the time of the same number of steps for each seed, after warm-up and capture. `times_one` is the time
over that of one seed alone: N if nothing is gained. `memory_gb` is what each way adds to what the device has in use, images
included, and of processes their CUDA contexts too; on a CPU, to the largest memory of the process, of processes all.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import torch
from outcome import Outcome, arguments, count, now, peak_gb, script, spread, timed
from step import make_spec, random_split

from fairssl.data.device import DeviceSplit, pick_device
from fairssl.train.interleave import interleave
from fairssl.train.trainer import Trainer


class Several:
    """One trainer per seed, captured and warmed up."""

    def __init__(self, options: argparse.Namespace, split: DeviceSplit, seeds: list[int]) -> None:
        specs = [
            make_spec(options.method, options.size, options.batch, options.encoder, options.precision, seed)
            for seed in seeds
        ]
        self.trainers = [Trainer(spec, split, 2) for spec in specs]
        self.steps = [trainer.advance() for trainer in self.trainers]
        self.at_once(options.warm_up)

    def at_once(self, n: int) -> None:
        """n steps of each, in turns."""
        self._check(interleave(self.trainers, [itertools.islice(steps, n) for steps in self.steps]))

    def in_turn(self, n: int) -> None:
        """n steps of the first, then of the second, and so on."""
        for trainer, steps in zip(self.trainers, self.steps, strict=True):
            self._check(interleave([trainer], [itertools.islice(steps, n)]))

    def _check(self, ended: list[Exception | None]) -> None:
        for error in ended:
            if error is not None:
                raise error


def used_gb(device: torch.device) -> float:
    if device.type != "cuda":
        return peak_gb()
    free, total = torch.cuda.mem_get_info(device)
    return (total - free) / 1e9


class Process:
    """One seed in a process of its own, which waits for a line before its steps and says when they are done."""

    def __init__(self, options: argparse.Namespace, seed: int) -> None:
        flags = (
            f"--method {options.method} --size {options.size} --batch {options.batch} --encoder {options.encoder} "
            f"--precision {options.precision} --device {options.device} --n {options.n} --steps {options.steps} "
            f"--warm-up {options.warm_up} --serve {seed}"
        )
        threads = str(max(1, (os.cpu_count() or 1) // options.seeds))  # as fairssl's worker processes have
        self.process = subprocess.Popen(
            [sys.executable, __file__, *flags.split()],
            env={**os.environ, "OMP_NUM_THREADS": threads},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def say(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def hear(self) -> float:
        """Its memory in GB, once it has done what it was at."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"a process ended with {self.process.wait()}; see above")
        return float(line)

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


def serve(options: argparse.Namespace) -> None:
    """The other end of a `Process`."""
    device = pick_device(options.device)
    one = Several(options, random_split(options.n, options.size, options.batch, device), [options.serve])
    now(device)
    print(used_gb(device), flush=True)
    for _ in sys.stdin:
        one.at_once(options.steps)
        now(device)
        print(used_gb(device), flush=True)


def in_one_process(
    options: argparse.Namespace, device: torch.device
) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Seconds of each block of each way, and its memory."""
    n, empty = options.steps, used_gb(device)
    split = random_split(options.n, options.size, options.batch, device)
    one = Several(options, split, [0])
    with_one = used_gb(device)
    several = Several(options, split, list(range(options.seeds)))
    beside_it = used_gb(device) - with_one
    memory = {"one seed": with_one - empty, "packed": beside_it + split.images.nbytes / 1e9}  # the images are shared
    ways: dict[str, Callable[[], Any]] = {
        "one seed": lambda: one.at_once(n),
        "one after the other": lambda: several.in_turn(n),
        "packed": lambda: several.at_once(n),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(options.repeats):
        for name, way in ways.items():
            seconds[name].append(timed(way, device)[0])
    return seconds, memory


def in_processes(options: argparse.Namespace, device: torch.device) -> tuple[list[float], float]:
    """Seconds of each block, and the memory of all processes."""
    empty = used_gb(device)
    others: list[Process] = []
    try:
        others += [Process(options, seed) for seed in range(options.seeds)]
        memory = [one.hear() for one in others]
        seconds = []
        for _ in range(options.repeats):
            started = now()
            for one in others:
                one.say()
            memory = [one.hear() for one in others]
            seconds.append(now() - started)
    finally:
        for one in others:
            one.end()
    return seconds, max(memory) - empty if device.type == "cuda" else sum(memory)


def main() -> None:
    on_gpu = torch.cuda.is_available()
    parser = arguments(__doc__)
    parser.add_argument("--method", default="simclr")
    parser.add_argument("--seeds", type=count, default=4)
    parser.add_argument("--size", type=count, default=64 if on_gpu else 32, help="pixels")
    parser.add_argument("--batch", type=count, default=128 if on_gpu else 32)
    parser.add_argument("--encoder", default="resnet18" if on_gpu else "small_cnn")
    parser.add_argument("--precision", choices=["bf16", "float32"], default="bf16" if on_gpu else "float32")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--n", type=count, default=10_000 if on_gpu else 640, help="images")
    parser.add_argument("--steps", type=count, default=150 if on_gpu else 20, help="of each seed, in one timed block")
    parser.add_argument("--warm-up", type=int, default=30 if on_gpu else 3, help="steps")
    parser.add_argument("--repeats", type=count, default=5)
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        serve(options)
        return
    device = pick_device(options.device)
    outcome = Outcome(__file__, options, device)
    seconds, memory = in_one_process(options, device)
    one = statistics.median(seconds["one seed"])

    def add(name: str) -> None:
        times = seconds[name]
        outcome.add(
            what=name,
            seeds=1 if name == "one seed" else options.seeds,
            seconds=spread(times),
            times_one=spread([each / one for each in times]),
            memory_gb=memory.get(name),
        )

    for name in list(seconds):
        add(name)
    if device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()
    seconds["processes"], memory["processes"] = in_processes(options, device)
    add("processes")


if __name__ == "__main__":
    script(main)
