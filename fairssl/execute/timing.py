"""The pace of a training from a few real steps."""

from __future__ import annotations

import itertools
import time

import torch

from fairssl.data.splits import RunData
from fairssl.plan.estimate import Pace
from fairssl.spec.run import RunSpec
from fairssl.train.cudagraph import WARM_UP, NotCaptured
from fairssl.train.rng import preserved
from fairssl.train.trainer import build_trainer
from fairssl.types import UserError


def time_steps(
    spec: RunSpec,
    data: RunData,
    device: torch.device,
    eager: bool = False,
    compile_augment: bool = False,
    n_steps: int = 5,
) -> Pace:
    """The pace of a run's training from a few real steps on its data, after some to warm up; nothing is kept.

    A step that a GPU cannot capture is a `UserError`: eager ones cannot be timed in the same process.
    """
    with preserved(device):
        trainer = build_trainer(spec, data, device, eager=eager, compile_augment=compile_augment)
        if not trainer.n_steps:
            return Pace(0.0, 0)
        steps = trainer.advance()
        warm = min(WARM_UP + 1, trainer.n_steps - 1)  # the capture among them
        try:
            for _ in itertools.islice(steps, warm):
                pass
        except NotCaptured as error:
            raise UserError(f"{spec.method.name}: a GPU cannot capture its step: {error}; add --eager") from error
        started = _now(device)
        taken = sum(1 for _ in itertools.islice(steps, n_steps))
        seconds = (_now(device) - started) / taken
    return Pace(seconds * trainer.steps_per_epoch, trainer.steps_per_epoch)


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
