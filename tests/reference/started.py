"""`fairssl bench` as a process that runs while a test looks at it, and what it leaves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from reference import small

SETS = [word for text in small.SETS for word in ("--set", text)]
TINY = ["--seeds", "1", "--epochs", "2", "--image-size", "16", "--batch-size", "16", "--annotated", "0.3", *SETS]
LONG = ("--method", "simclr", "--epochs", "4000")


def start(out: Path, *words: str, session: bool = False, **env: str) -> subprocess.Popen[str]:
    call = [sys.executable, "-m", "fairssl", "bench", *TINY, "--out", str(out), *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **env}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(call, **pipes, text=True, env=environment, start_new_session=session)


def finish(process: subprocess.Popen[str], code: int = 0) -> tuple[str, str]:
    out, err = process.communicate(timeout=300)
    assert process.returncode == code, err
    assert "Traceback" not in err, err
    return out, err


def bits(out: Path) -> dict[str, object]:
    """Everything that a grid leaves, timings and the number of threads apart."""
    found: dict[str, object] = {}
    for path in sorted(p for p in out.rglob("*") if p.is_file() and p.parts[len(out.parts)] in ("pretrain", "results")):
        name = str(path.relative_to(out))
        if path.name == "record.json":
            record = json.loads(path.read_text())
            del record["timings"], record["env"]
            found[name] = record
        else:
            found[name] = path.read_bytes()
    return found


def until(condition: Callable[[], object], seconds: float = 90) -> object:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError("it never came to that")


def live(out: Path) -> list[dict]:
    found = []
    for path in (out / "work").glob("*/live.json"):
        try:
            found.append(json.loads(path.read_text()))
        except (OSError, ValueError):  # just ended
            continue
    return found


def training(out: Path) -> list[int]:
    """Processes that are some steps into a training."""
    return [one["pid"] for one in live(out) if one["what"] == "train" and one["done"] > 3]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False
