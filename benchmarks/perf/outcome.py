"""What every script here does with its numbers: a small table on stdout, and JSON that says where they were measured."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def arguments(description: str | None) -> argparse.ArgumentParser:
    """A parser with `--json`, described by the first line of a script's docstring."""
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    parser.add_argument("--json", type=Path, help="also write every number there")
    return parser


def count(text: str) -> int:
    """A whole number, at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: a whole number, at least 1")
    return int(text)


def script(main: Callable[[], None]) -> None:
    """Run a script's main function, a user's mistake told in one line."""
    from fairssl.types import UserError

    try:
        main()
    except UserError as error:
        print(f"{Path(sys.argv[0]).name}: error: {error}", file=sys.stderr)
        sys.exit(2)


def words(text: str) -> list[str]:
    """`"simclr,sofclr"` -> two names."""
    return [word for word in text.split(",") if word]


def numbers(text: str) -> list[int]:
    """`"64,128"` -> two numbers."""
    return [int(word) for word in words(text)]


def now(device: torch.device | None = None) -> float:
    """Seconds of a clock, once the device has done all that it was given."""
    if device is not None and device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)
    return time.perf_counter()


def timed(work: Callable[[], Any], device: torch.device | None = None) -> tuple[float, Any]:
    """(seconds, what `work()` gave)."""
    started = now(device)
    found = work()
    return now(device) - started, found


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Median and range of repeats, and all of them."""
    return {"median": statistics.median(values), "low": min(values), "high": max(values), "all": list(values)}


def peak_gb() -> float:
    """Largest resident memory of this process so far, in GB; Linux alone tells. Not `ru_maxrss`, which begins with the
    memory of the process that started this one."""
    lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024 / 1e9


def hardware(device: torch.device) -> dict[str, Any]:
    """The machine, without its name."""
    import torch

    found: dict[str, Any] = {
        "cpu": _cpu(),
        "cpus": os.cpu_count(),
        "cpus_allowed": len(os.sched_getaffinity(0)),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "device": device.type,
    }
    if device.type == "cuda":
        card = torch.cuda.get_device_properties(device)
        found |= {"gpu": card.name, "gpu_memory_gb": round(card.total_memory / 1e9, 1)}
        found |= {"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
    return found


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


class Outcome:
    """One script's rows, printed and written as they come: what a run that is cut off has measured is kept.

    A cell is a number, a text, or a `spread`, of which the table shows the median, and the range where it has room.
    """

    def __init__(self, script: str, options: argparse.Namespace, device: torch.device) -> None:
        import torch

        from fairssl.data.device import device_name
        from fairssl.provenance import environment

        self.path: Path | None = options.json
        self.rows: list[dict[str, Any]] = []
        self._head: list[str] = []
        self._widths: list[int] = []
        self.content: dict[str, Any] = {
            "benchmark": Path(script).stem,
            "date": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
            "config": {k: str(v) if isinstance(v, Path) else v for k, v in vars(options).items() if k != "json"},
            "hardware": hardware(device),
            "versions": environment(device_name(device), torch.get_num_threads()),
            "rows": self.rows,
        }
        described = {**self.content["hardware"], **self.content["versions"]}
        shown = ("gpu", "cpu", "cpus", "threads", "fairssl", "torch", "torchvision", "timm", "python")
        print(", ".join(f"{name} {described[name]}" for name in shown if name in described))

    def add(self, **row: Any) -> None:
        """Print a row, and write all rows so far."""
        self.rows.append(row)
        cells = [_shown(value) for value in row.values()]
        if list(row) != self._head:
            self._head = list(row)
            self._widths = [max(len(name), len(cell) + 2) for name, cell in zip(row, cells, strict=True)]
            self._widths[0] = 28
            self._print(self._head)
        self._print(cells)
        self._write()

    def say(self, **facts: Any) -> None:
        """Facts about the whole, after the rows."""
        self.content.update(facts)
        for name, value in facts.items():
            print(f"{name}: {_shown(value)}", flush=True)
        self._write()

    def _print(self, cells: Sequence[str]) -> None:
        columns = zip(cells[1:], self._widths[1:], strict=True)
        print("  ".join([cells[0].ljust(self._widths[0]), *(cell.rjust(width) for cell, width in columns)]), flush=True)

    def _write(self) -> None:
        if self.path is not None:
            temporary = self.path.with_name(f".{self.path.name}.partial")
            temporary.write_text(json.dumps(self.content, indent=2) + "\n", encoding="utf-8")
            temporary.replace(self.path)


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        if "median" not in value:
            return ", ".join(f"{name} {_shown(each)}" for name, each in value.items())
        return f"{_shown(value['median'])} ({_shown(value['low'])}-{_shown(value['high'])})"
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return str(value)
