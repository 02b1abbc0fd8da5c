"""`fairssl doctor --gpu`, and what a machine without a compiler, or without room for its files, is told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from reference import small
from reference.command import SMALL, fairssl

from fairssl.data.augment import why_not_compiled
from fairssl.execute import gpu_check
from fairssl.execute.gpu_check import GPUCheck, check_gpu
from fairssl.testing.replay import ReplayedStep
from fairssl.train.cudagraph import NotCaptured
from fairssl.train.trainer import Trainer

CPU = torch.device("cpu")
TINY: dict[str, Any] = {"size": 16, "batch": 8, "encoder": "small_cnn", "seconds": 0.01}


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_doctor_says_why_there_is_no_gpu() -> None:
    code, text, _ = fairssl("doctor", "--gpu")
    assert code == 1
    problem = " ".join(text[text.index("problem: ") :].split())
    assert problem.startswith(("problem: torch finds no GPU", f"problem: torch {torch.__version__} was built without"))
    code, text, _ = fairssl("doctor", "--gpu", "--json")
    found = json.loads(text)
    assert code == 1 and found["gpu"]["well"] == [] and found["gpu"]["faults"] == found["problems"] != []
    code, text, _ = fairssl("doctor", "--json")
    assert code == 0 and json.loads(text)["gpu"] is None


class Replaying(Trainer):
    """Its steps are replayed as on a GPU, unless they are to be eager."""

    def __init__(self, *args: Any, eager: bool = False) -> None:
        super().__init__(*args, eager=eager)
        if not eager:
            self.graphed = ReplayedStep(self.summed_step, self.step.gen, self.device)


def test_replayed_steps_are_compared_with_eager_ones_and_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_check, "Trainer", Replaying)
    monkeypatch.setattr(gpu_check, "GraphedStep", ReplayedStep)
    found = check_gpu(CPU, **TINY)
    assert (found.device, found.path, found.compiled) == ("cpu", "captured", False)
    assert found.difference == 0 and found.faults == ()
    speeds = (found.views_per_second, found.eager_views_per_second, found.model_views_per_second)
    assert all(speed is not None and speed > 0 for speed in speeds)
    first, last = found.sentences()
    assert first.startswith("12 steps of simclr, captured, have the losses of eager ones")
    assert "views/s" in last and "of the model alone" in last


def test_steps_that_freeze_a_number_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    class Frozen(Replaying):
        n = 0

        def summed_step(self, *args: Any) -> None:
            self.n += 1
            super().summed_step(*args)
            self.history.sums["loss"].add_(0.1 * self.n)

    monkeypatch.setattr(gpu_check, "Trainer", Frozen)
    monkeypatch.setattr(gpu_check, "GraphedStep", ReplayedStep)
    found = check_gpu(CPU, **TINY)
    (fault,) = found.faults
    assert "captured steps have other losses than eager ones" in fault and "FAIRSSL_EAGER=1" in fault
    assert not any("have the losses" in text for text in found.sentences())


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (NotCaptured("no such node"), "cannot be captured, so that runs go on eagerly, which is slower: no such node"),
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to\nallocate"),
            "a step fails: CUDA out of memory. Tried to",
        ),
    ],
)
def test_a_step_that_fails_is_a_fault_and_what_was_measured_before_stays(
    error: Exception, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing(Replaying):
        def summed_step(self, *args: Any) -> None:
            if self.graphed is not None and self.done == 3:
                raise error
            super().summed_step(*args)

    monkeypatch.setattr(gpu_check, "Trainer", Failing)
    found = check_gpu(CPU, **TINY)
    assert len(found.faults) == 1 and found.faults[0].endswith(fault)
    assert found.eager_views_per_second is not None and found.views_per_second is None and found.sentences() == []


def test_losses_that_are_none_agree_with_nothing() -> None:
    assert gpu_check.difference([0.0, 0.0], [0.0, 0.0]) == float("inf")
    assert gpu_check.difference([1.0, float("nan")], [1.0, 1.0]) == float("inf")
    assert gpu_check.difference([1.0, 2.0], [1.0, 2.5]) == 0.25
    assert "some are not finite" in next(gpu_check.doubts(GPUCheck("cpu", "", difference=float("inf")), CPU))


@pytest.mark.parametrize(
    ("reason", "way_out"),
    [
        ("RuntimeError: Failed to find C compiler. Please set triton.knobs.build.impl", "install one (gcc)"),
        ("InvalidCxxCompiler: No working C++ compiler found", "install one (g++), or name one in CXX"),
        ("Cannot find a working triton installation.", "pip install -U triton"),
        ("CalledProcessError: Command '['gcc', 'main.c']' returned non-zero exit status 1.", "python3-dev"),
        ("OSError: [Errno 28] No space left on device", "set TORCHINDUCTOR_CACHE_DIR and TRITON_CACHE_DIR"),
        ("something else", "FAIRSSL_EAGER=1"),
    ],
)
def test_what_keeps_augmentation_from_being_compiled_has_a_way_out(reason: str, way_out: str) -> None:
    line = why_not_compiled(reason)
    assert line.startswith("augmentation is not compiled, which is slower: ") and way_out in line and reason in line


COMPILED = """\
import torch
from fairssl.data.augment import augment, augmentation, random_numbers
from fairssl.spec.config import TrainConfig
images = torch.randint(0, 256, (4, 3, 16, 16), dtype=torch.uint8)
for size in (16, 12):
    u = random_numbers(8, TrainConfig(), torch.Generator())
    made = augmentation(size, TrainConfig(), compiled=True)
    assert torch.equal(made(images, u), augment(images, size, TrainConfig(), u)) and not made.compiled
"""


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["compiler", "folder"])
def test_without_a_compiler_or_a_place_for_its_files_one_line_is_said(missing: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    env = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"), "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    if missing == "compiler":
        env["CXX"] = str(tmp_path / "no-compiler")
    else:  # it can be made, and then nothing can be written there
        (tmp_path / "cache").mkdir()
        env["TMPDIR"] = str(tmp_path / "cache")
        for name in ("fxgraph", "aotautograd", "locks"):
            (tmp_path / "cache" / name).symlink_to(tmp_path / "file")
    done = subprocess.run([sys.executable, "-c", COMPILED], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stderr.splitlines() if line.startswith("fairssl: warning: ")]
    assert len(said) == 1 and "augmentation is not compiled, which is slower: " in said[0]
    assert ("there is no C++ compiler" in said[0]) == (missing == "compiler")


@pytest.mark.slow
def test_a_compilers_folder_that_cannot_be_made_stops_no_run(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    sets = [word for text in (*small.SETS[:3], "data.min_cell=1") for word in ("--set", text)]
    words = ("bench", "--method", "simclr", "--image-size", "16", *SMALL, *sets, "--out", tmp_path / "runs", "--json")
    code, out, err = fairssl(*words, env={"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "file" / "below")})
    assert code == 0 and json.loads(out)
    said = [line for line in err.splitlines() if "TORCHINDUCTOR_CACHE_DIR" in line]
    assert len(said) == 1 and "cannot be made (Not a directory): what is compiled is kept for this process" in said[0]
