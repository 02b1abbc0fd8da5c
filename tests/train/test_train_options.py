"""Optimisers, warm-up and which parameters decay: against plain loops, and part of a key only where they are set."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from reference import small
from torch import Tensor

from fairssl.spec.config import ProbeConfig, TrainConfig
from fairssl.testing.fake_gpu import assert_capturable
from fairssl.train.lars import LARS
from fairssl.train.trainer import Stopped

LATER = {"optimizer", "momentum", "lars_trust", "decay_all", "warmup", "crop_max"}


def rows(trainer: Any, step: int = 0) -> dict[str, Tensor]:
    return {name: stream.steps(step, 1)[0] for name, stream in trainer.streams.items()}


def test_what_came_later_is_in_no_key_at_its_default_and_in_the_key_otherwise() -> None:
    assert not LATER & TrainConfig().model_dump().keys() and TrainConfig.model_fields.keys() >= LATER
    assert "thresholds" not in ProbeConfig().model_dump()
    usual = small.run_of("simclr").spec
    assert small.run_of("simclr", sets=("train.optimizer=adam", "train.warmup=0")).spec.key == usual.key
    keys = {usual.key}
    for text in ("optimizer=sgd", "optimizer=lars", "optimizer=adamw", "decay_all=false", "warmup=0.1", "crop_max=0.9"):
        keys.add(small.run_of("simclr", sets=(f"train.{text}",)).spec.key)
    assert len(keys) == 7


def test_what_an_optimiser_does_not_read_is_in_no_key() -> None:
    def key(*sets: str) -> str:
        return small.run_of("simclr", sets=tuple(f"train.{text}" for text in sets)).spec.key

    assert key("momentum=0.5") == key("lars_trust=0.1") == key()
    assert key("optimizer=sgd", "lars_trust=0.1") == key("optimizer=sgd") != key("optimizer=sgd", "momentum=0.5")
    assert key("optimizer=lars", "lars_trust=0.1") != key("optimizer=lars")
    assert key("weight_decay=0", "decay_all=false") == key("weight_decay=0")


def slow_lars(weights: list[Tensor], gradients: list[list[Tensor]], lr: float, trusted: list[bool]) -> list[Tensor]:
    """Two steps and more, a parameter at a time: weight decay 0.1 where it is trusted, momentum 0.9, trust 0.02."""
    found = []
    for w, steps, trust in zip(weights, zip(*gradients, strict=True), trusted, strict=True):
        w, v = w.double().clone(), torch.zeros_like(w, dtype=torch.float64)
        for g in steps:
            u = g.double() + (0.1 * w if trust else 0)
            length, size = math.sqrt(float((w * w).sum())), math.sqrt(float((u * u).sum()))
            q = 0.02 * length / size if trust and length and size else 1.0
            v = 0.9 * v + q * u
            w = w - lr * v
        found.append(w)
    return found


def test_lars_equals_the_loop() -> None:
    gen = torch.Generator().manual_seed(0)
    weights = [torch.randn(4, 3, generator=gen), torch.randn(5, generator=gen), torch.zeros(2, 2)]
    gradients = [[torch.randn(w.shape, generator=gen) for w in weights] for _ in range(3)]
    moved = [torch.nn.Parameter(w.clone()) for w in weights]
    lr = torch.tensor(0.5)
    flat = {"params": [moved[1]], "weight_decay": 0.0, "trust": None}
    optimizer = LARS([{"params": [moved[0], moved[2]]}, flat], lr, 0.1, 0.9, 0.02)
    for step in gradients:
        for parameter, gradient in zip(moved, step, strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()
    for ours, wanted in zip(moved, slow_lars(weights, gradients, 0.5, [True, False, True]), strict=True):
        torch.testing.assert_close(ours.detach().double(), wanted, rtol=1e-5, atol=1e-6)


def test_a_lars_step_does_not_depend_on_the_scale_of_the_loss() -> None:
    def moved(scale: float) -> Tensor:
        parameter = torch.nn.Parameter(torch.tensor([[3.0, 4.0]]))
        parameter.grad = scale * torch.tensor([[0.0, 2.0]])
        LARS([parameter], torch.tensor(1.0), 0.0, 0.9, 0.1).step()
        return parameter.detach()

    assert torch.allclose(moved(1), torch.tensor([[3.0, 3.5]]))  # a tenth of the length 5 along the gradient
    assert torch.allclose(moved(1), moved(1e4))


@pytest.mark.parametrize("kind", ["adamw", "sgd"])
def test_a_trainers_step_is_torchs_own(kind: str) -> None:
    sets = (f"train.optimizer={kind}", "train.weight_decay=0.1", "train.lr=0.05", "train.decay_all=false")
    trainer = small.trainer(small.run_of("simclr", sets=sets).spec)
    copies = [torch.nn.Parameter(p.detach().clone()) for p in trainer.step.primal]
    plain: Any = torch.optim.AdamW if kind == "adamw" else torch.optim.SGD
    groups = [
        {"params": [p for p in copies if p.ndim > 1], "weight_decay": 0.1},
        {"params": [p for p in copies if p.ndim <= 1], "weight_decay": 0.0},
    ]
    other = plain(groups, lr=0.05, **({} if kind == "adamw" else {"momentum": 0.9}))
    for step in range(3):
        trainer.step(rows(trainer, step))
        for mine, copy in zip(trainer.step.primal, copies, strict=True):
            copy.grad = None if mine.grad is None else mine.grad.clone()
        other.step()
    for mine, copy in zip(trainer.step.primal, copies, strict=True):
        torch.testing.assert_close(mine.detach(), copy.detach(), rtol=1e-5, atol=1e-6)


def test_only_what_has_two_dimensions_decays() -> None:
    sets = ("train.optimizer=adamw", "train.weight_decay=0.5", "train.decay_all=false")
    trainer = small.trainer(small.run_of("simclr", sets=sets).spec)
    decays = {id(p): g["weight_decay"] for g in trainer.step.optimizers["adam"].param_groups for p in g["params"]}
    assert {(p.ndim > 1, decays[id(p)]) for p in trainer.step.primal} == {(True, 0.5), (False, 0.0)}


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_the_rate_rises_evenly_and_then_follows_the_schedule(schedule: str) -> None:
    sets = ("train.warmup=0.25", f"train.schedule={schedule}", "train.lr=0.8", "train.dual_lr=0.4")
    trainer = small.trainer(small.run_of("simclr+adversary", epochs=4, sets=sets).spec)
    n, rates, dual = trainer.n_steps, [], []
    for step in range(n):
        trainer.step(rows(trainer, step))
        rates.append(float(trainer.step.lr))
        dual.append(float(trainer.step.dual_lr))
    assert n == 12
    fall = [0.5 * (1 + math.cos(math.pi * k / 9)) if schedule == "cosine" else 1.0 for k in range(9)]
    assert rates == pytest.approx([0.8 * k for k in (1 / 3, 2 / 3, 1, *fall)])
    assert dual == pytest.approx([rate / 2 for rate in rates])


@pytest.mark.parametrize("kind", ["adamw", "sgd", "lars"])
def test_a_run_by_another_optimiser_that_is_cut_ends_with_the_same_bits(kind: str, tmp_path: Path) -> None:
    sets = (f"train.optimizer={kind}", "train.warmup=0.3", "train.schedule=cosine", "train.decay_all=false")
    spec = small.run_of("simclr", sets=sets).spec
    whole, first, second = (small.trainer(spec) for _ in range(3))
    whole.run()
    with pytest.raises(Stopped):
        first.run(tmp_path, stop=lambda: first.done >= 2)
    second.run(tmp_path)
    assert second.resumed_at == 2
    ours, theirs = whole.state()[0], second.state()[0]
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("kind", ["adamw", "lars"])
def test_a_gpu_can_capture_their_steps(kind: str) -> None:
    sets = (f"train.optimizer={kind}", "train.warmup=0.5", "train.decay_all=false")
    trainer = small.trainer(small.run_of("simclr", sets=sets).spec)
    trainer.step(rows(trainer))
    assert_capturable(trainer, rows(trainer, 1))
