"""Tiny generated data, and a part in the training loop on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairssl import kinds
from fairssl.data.device import DeviceSplit
from fairssl.nn import networks_in_bf16
from fairssl.parts import Part
from fairssl.registry import configure
from fairssl.spec.config import ProbeConfig, TrainConfig
from fairssl.spec.method import compose, encoder_spec
from fairssl.spec.run import DataSpec, RunSpec
from fairssl.train.build import build_after_training
from fairssl.train.trainer import Trainer
from fairssl.types import Batch, Method, Split, UserError

N, SIDE, BATCH = 48, 32, 8  # images, pixels, images of a batch
CPU = torch.device("cpu")
ENCODER = "fairssl:small_cnn"  # what a part is checked on, and
COMPANION = "fairssl:simclr"  # with, where a head needs an objective


class PartBench:
    """A part in the training loop, on tiny data, as often anew as asked for."""

    def __init__(self, kind: str, name: str):
        self.kind, self.name = kind, kinds.by_kind(kind).canonical(name)
        self.part: Any = kinds.by_kind(kind).get(name)
        if kind == "objectives":
            self.method = Method(summary="", paper="", objective=self.name)
        else:
            params = {} if configure(self.part.Config, name, {}).weight else {"weight": 1.0}  # weight 0 would drop it
            self.method = Method(summary="", paper="", objective=self._companion(), heads={self.name: params})

    def _companion(self) -> str:
        if self.part.needs in (None, kinds.objectives.get(COMPANION).gives):
            return kinds.objectives.canonical(COMPANION)
        for name, objective in kinds.objectives.working().items():
            if objective.gives == self.part.needs:
                return name
        raise UserError(f"no objective gives the {self.part.needs!r} that head {self.name!r} needs")

    def spec(self, **train: Any) -> RunSpec:
        return tiny_spec(self.method, self.name, **train)

    def trainer(self, n_groups: int = 2, seed: int = 0, **train: Any) -> Trainer:
        spec = self.spec(**train).model_copy(update={"seed": seed})
        return prepared(Trainer(spec, tiny_data(n_groups), n_groups))

    def of(self, trainer: Trainer) -> Part:
        """The part under test; a head without a stream is built for the trained model."""
        if self.name in trainer.model.parts:
            return trainer.model.parts[self.name]
        (head,) = trainer.spec.method.heads
        data = trainer.data
        return build_after_training(trainer.spec, head, trainer.model, len(data.target), len(data.annotated), 2)


def tiny_spec(method: Method, label: str, encoder: str = "", **train: Any) -> RunSpec:
    """A few steps of a method on tiny data, with the named encoder and its defaults, or a small one."""
    dataset = kinds.datasets.get(TOY)
    # Plain crops: the augmentation is the same for every part, and half of what a step this small costs.
    plain = {"jitter": 0.0, "gray": 0.0}
    loop = {"batch_size": BATCH, "epochs": 1, "min_steps": 6, "precision": "float32", **plain, **train}
    network = encoder_spec(encoder or kinds.encoders.canonical(ENCODER), {} if encoder else {"width": 8})
    return RunSpec(
        method=compose(label, method, {}),
        data=DataSpec(
            dataset=kinds.datasets.canonical(TOY),
            version=dataset.version,
            params=dataset.Config().params(),
            fingerprint="generated",
            image_size=SIDE,
            target=dataset.card.defaults.target,
            attribute=dataset.card.defaults.attribute,
        ),
        annotated=0.5,
        encoder=network,
        train=TrainConfig.model_validate(loop),
        probe=ProbeConfig.model_validate({"epochs": 2}),
        seed=0,
    )


TOY = "fairssl:colored_digits"  # whose name a tiny spec bears; its images are not loaded


def tiny_split(n_groups: int) -> Split:
    """Noise with a bright patch for the target and a tint for the group."""
    rng = np.random.Generator(np.random.PCG64(7))
    images = rng.integers(0, 200, size=(N, 3, SIDE, SIDE), dtype=np.uint8)
    number = np.arange(N)
    target, group = number % 2, number // 2 % n_groups
    images[target == 1, :, :8, :8] = 255
    images[:, 0] = np.minimum(255, images[:, 0] + (40 * group)[:, None, None]).astype(np.uint8)
    return Split(images, target.astype(np.int64), group.astype(np.int64), tuple(f"generated{i:02d}" for i in number))


def tiny_data(n_groups: int) -> DeviceSplit:
    split = tiny_split(n_groups)
    annotated = np.flatnonzero(np.arange(N) // 2 // n_groups % 2 == 0)  # about half, every group in both classes
    group = np.full(N, -1)
    group[annotated] = split.group[annotated]
    return DeviceSplit(
        torch.from_numpy(split.images),
        torch.from_numpy(split.target),
        torch.from_numpy(group),
        torch.from_numpy(annotated),
    )


def index_at(trainer: Trainer, step: int = 0) -> dict[str, Tensor]:
    return {name: stream.steps(step, 1)[0] for name, stream in trainer.streams.items()}


def take_steps(trainer: Trainer, n: int) -> list[dict[str, Tensor]]:
    return [trainer.step(index_at(trainer, step)) for step in range(n)]


def losses_of(trainer: Trainer, batches: Mapping[str, Batch], seed: int = 0) -> dict[str, Tensor]:
    """Every term of a drawn batch at the present parameters, by name."""
    torch.manual_seed(seed)
    with networks_in_bf16(trainer.step.config.precision == "bf16"):
        _, _, log = trainer.step.terms(trainer.step.encode(dict(batches)))
    return log


def outcome(trainer: Trainer, index: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Losses, every parameter's gradient and every buffer after the forward and backward pass of a step in float64."""
    drawn = trainer.step.draw(index)
    for module in trainer.model.modules().values():
        module.double()
    wide = {name: replace(one, views=[view.double() for view in one.views]) for name, one in drawn.items()}
    primal, dual, log, gradients, dual_gradients = trainer.step.differentiate(wide)
    found = {"the primal loss": primal.detach(), **{f"term {name}": value.double() for name, value in log.items()}}
    if dual is not None:
        found["the dual loss"] = dual.detach()
    names = {id(p): f"{m}.{n}" for m, module in trainer.model.modules().items() for n, p in module.named_parameters()}
    for kind, parameters, values in (
        ("primal", trainer.step.primal, gradients),
        ("dual", trainer.step.dual, dual_gradients),
    ):
        for parameter, value in zip(parameters, values, strict=True):
            if value is not None:
                found[f"the {kind} gradient of {names[id(parameter)]}"] = value.contiguous()
    for prefix, module in trainer.model.modules().items():
        found.update({f"buffer {prefix}.{n}": value.double().contiguous() for n, value in module.named_buffers()})
    return {name: value.clone() for name, value in found.items()}


def tiny_trainer(method: Method, name: str) -> Trainer:
    kept = {k: v for k, v in method.train.items() if k not in ("epochs", "min_steps", "batch_size")}
    return prepared(Trainer(tiny_spec(method, name, **kept), tiny_data(2), 2))


def encoder_trainer(name: str) -> Trainer:
    """The named encoder in the loop, beside an objective that trains it."""
    method = Method(summary="", paper="", objective=kinds.objectives.canonical(COMPANION))
    return Trainer(tiny_spec(method, name, encoder=kinds.encoders.canonical(name)), tiny_data(2), 2)


def prepared(trainer: Trainer) -> Trainer:
    trainer.prepare_parts()
    return trainer
