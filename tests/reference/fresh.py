"""A fresh environment as a user makes it, without a network: Python's own venv, the libraries of the environment that runs
the tests, and fairssl installed into it from a wheel or from a checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from reference.checkout import ROOT

OFFLINE = ("--no-index", "--no-build-isolation", "--no-deps", "--quiet")
LEFT = shutil.ignore_patterns(".*", "runs", "*.egg-info", "build", "dist", "site", "__pycache__", "benchmarks/perf")


class Environment:
    """A virtual environment in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=120)
        (site,) = (folder / "lib").glob("python*/site-packages")
        libraries = [path for path in sys.path if "-packages" in Path(path).name and Path(path).is_dir()]
        (site / "libraries.pth").write_text("\n".join(libraries) + "\n")
        self.variables = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))},
            "FAIRSSL_CACHE": str(folder / "cache"),
            "OMP_NUM_THREADS": "1",
        }

    def install(self, *what: str) -> None:
        """As `pip install`, of what lies on this machine."""
        done = self.run("python", "-m", "pip", "install", *OFFLINE, "--ignore-installed", *what)
        assert done.returncode == 0, done.stdout + done.stderr

    def run(self, command: str, *args: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """A command of this environment, to its end."""
        words = [str(self.bin / command), *args]
        return subprocess.run(
            words, cwd=cwd, env=self.variables, capture_output=True, text=True, timeout=600, check=False
        )

    def fairssl(self, *args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        return self.run("fairssl", *args, cwd=cwd)


def checkout(folder: Path) -> Path:
    """A copy of this checkout, as git clone would give it: what the tests build must not lie in the tree."""
    shutil.copytree(ROOT, folder, ignore=LEFT)
    return folder
