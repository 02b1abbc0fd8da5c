"""What a user runs first on a new GPU: captured and eager steps of one small method, compared and timed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import islice, pairwise
from typing import Any

import torch

from fairssl.data.device import DeviceSplit, device_name
from fairssl.plan.request import Request
from fairssl.plan.resolve import resolve
from fairssl.spec.run import RunSpec
from fairssl.train.cudagraph import WARM_UP, GraphedStep, NotCaptured, streams
from fairssl.train.rng import preserved
from fairssl.train.trainer import Trainer
from fairssl.types import first_line

METHOD = "simclr"
N_COMPARED = 12  # steps whose losses are compared, most of them replays
STEPS_PER_EPOCH = 80  # at whose end values are read back
TOLERANCE = 1e-2  # of the largest loss: sums in another order, in bf16, over so many steps


@dataclass
class GPUCheck:
    """What was found. None: it could not be measured, and `faults` say why.

    `difference`: the largest between the losses of captured and of eager steps, as a share of the largest loss; infinite
    where they are no losses.
    `model_views_per_second`: of the same step, captured, on views that are there already: no gather, no augmentation.
    """

    device: str
    name: str
    path: str | None = None  # captured or eager
    compiled: bool | None = None  # the augmentation
    difference: float | None = None
    views_per_second: float | None = None
    eager_views_per_second: float | None = None
    model_views_per_second: float | None = None
    faults: tuple[str, ...] = ()  # what stops training, or may make it wrong or slow

    def sentences(self) -> list[str]:
        """What is well, in plain words."""
        found = []
        if self.difference is not None and self.difference <= TOLERANCE:
            found.append(
                f"{N_COMPARED} steps of {METHOD}, {self.path}, have the losses of eager ones (they differ by at most "
                f"{self.difference:.1e} of the largest)"
            )
        if self.compiled:
            found.append("augmentation is compiled")
        if self.views_per_second and self.model_views_per_second and self.eager_views_per_second:
            found.append(
                f"{self.views_per_second:,.0f} views/s, {self.views_per_second / self.model_views_per_second:.2f} of the "
                f"model alone and {self.views_per_second / self.eager_views_per_second:.1f} times as fast as eager steps"
            )
        return found


def gpu_fault() -> str | None:
    """Why torch sees no GPU here, and what to do about it; None if it sees one."""
    if torch.cuda.is_available():
        return None
    if torch.version.cuda is None and torch.version.hip is None:
        return f"torch {torch.__version__} was built without CUDA: install a build that has it, as pytorch.org tells"
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return f"torch finds no GPU: {first_line(error)}"
    return "torch finds no GPU"


def check_gpu(
    device: torch.device, size: int = 64, batch: int = 128, encoder: str = "resnet18", seconds: float = 1.0
) -> GPUCheck:
    """Take steps of SimCLR on random images, captured and eager; compare and time them.

    `size`: pixels; `batch`: images of a step; `seconds`: that each of three kinds of steps is timed for.
    """
    found = GPUCheck(str(device), device_name(device))
    faults: list[str] = []
    with preserved(device), _deterministic():
        spec, data = _spec(size, batch, encoder), _data(size, batch, device)
        try:
            eager = Trainer(spec, data, 2, eager=True)
            expected, steps = _losses(eager)
            found.eager_views_per_second = _pace(steps, 2 * batch, seconds, device)
            trainer = Trainer(spec, data, 2)
            losses, steps = _losses(trainer)
            found.path, found.compiled = trainer.path, trainer.step.sets[0].augment.compiled
            found.difference = difference(expected, losses)
            found.views_per_second = _pace(steps, 2 * batch, seconds, device)
            found.model_views_per_second = _pace(_alone(trainer), 2 * batch, seconds, device)
        except NotCaptured as error:
            faults.append(f"a step cannot be captured, so that runs go on eagerly, which is slower: {error}")
        except (RuntimeError, MemoryError) as error:  # torch has no narrower type for what a device or a driver answers
            faults.append(f"a step fails: {first_line(error)}")
    found.faults = (*faults, *doubts(found, device))
    return found


def doubts(found: GPUCheck, device: torch.device) -> Iterator[str]:
    """What the figures say is not as it should be."""
    if found.difference is not None and not found.difference <= TOLERANCE:
        by = f"they differ by {found.difference:.1e} of the largest"
        by = by if math.isfinite(found.difference) else "some are not finite, or all are 0"
        yield (
            f"captured steps have other losses than eager ones ({by}): do not trust results from here; FAIRSSL_EAGER=1 takes "
            "all steps eagerly"
        )
    if device.type != "cuda":
        return
    if found.compiled is False:
        yield "augmentation is not compiled, which is slower; the warning above says why"
    if found.views_per_second and found.model_views_per_second:
        ratio = found.views_per_second / found.model_views_per_second
        if ratio < 0.85:
            yield f"a step reaches {ratio:.2f} of the model alone; something else may be using this GPU or its host"
    if not torch.cuda.is_bf16_supported(including_emulation=False):
        yield "this GPU has no units for bf16: --set train.precision=float32 may be faster"


def _spec(size: int, batch: int, encoder: str) -> RunSpec:
    """A run of more epochs than are timed."""
    sets = ("train.precision=bf16",)
    loop: dict[str, Any] = {"epochs": 100_000, "image_size": size, "batch_size": batch}
    request = Request((METHOD,), ("synthfaces",), seeds=1, encoder=encoder, assignments=sets, **loop)
    return resolve(request).runs[0].spec


def _data(size: int, batch: int, device: torch.device) -> DeviceSplit:
    """Random images, two targets, two groups."""
    n = batch * STEPS_PER_EPOCH
    gen = torch.Generator(device).manual_seed(0)
    images = torch.randint(0, 256, (n, 3, size, size), dtype=torch.uint8, generator=gen, device=device)
    code = torch.arange(n, device=device)
    return DeviceSplit(images, code % 2, code // 2 % 2, code)


def _losses(trainer: Trainer) -> tuple[list[float], Callable[[], object]]:
    """The loss of each of the first steps, and what takes the next one."""
    steps = trainer.advance()
    sums = [0.0]
    for _ in islice(steps, N_COMPARED):
        _wait(trainer.device)
        sums.append(float(trainer.history.sums["loss"]))
    return [after - before for before, after in pairwise(sums)], partial(next, steps)


def difference(a: list[float], b: list[float]) -> float:
    """Infinite where a loss is not finite, or all are 0, as they are where nothing is computed."""
    largest = max(map(abs, a))
    if largest == 0 or not all(map(math.isfinite, (*a, *b))):
        return math.inf
    return max(abs(x - y) for x, y in zip(a, b, strict=True)) / largest


def _alone(trainer: Trainer) -> Callable[[], object]:
    """A call of it is a step on views that are there already, captured where the trainer's are."""
    index = {name: stream.steps(0, 1)[0].to(trainer.device) for name, stream in trainer.streams.items()}
    drawn = trainer.step.draw(index)

    def update(index: object, images: object) -> None:
        trainer.step.update(drawn)

    step = update if trainer.graphed is None else GraphedStep(update, trainer.step.gen, trainer.device)
    stream = streams.take(trainer.device) if trainer.device.type == "cuda" else None

    def take() -> None:
        with nullcontext() if stream is None else torch.cuda.stream(stream):
            step(index, None)

    for _ in range(WARM_UP + 1):
        take()
    return take


def _pace(step: Callable[[], object], n_views: int, seconds: float, device: torch.device) -> float:
    """Views per second, over about so many seconds."""
    n, took = 4, 0.0
    while took < seconds:
        n = n if not took else max(n + 1, min(4 * n, round(1.2 * n * seconds / took)))
        _wait(device)
        started = time.perf_counter()
        for _ in range(n):
            step()
        _wait(device)
        took = time.perf_counter() - started
    return n_views * n / took


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextmanager
def _deterministic() -> Iterator[None]:
    """Without cuDNN's sums in an order that changes from call to call, of which Adam makes full steps."""
    before = torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark
    torch.backends.cudnn.deterministic = True
    try:
        yield
    finally:
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = before
