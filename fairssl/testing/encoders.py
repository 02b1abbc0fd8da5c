"""Checks of encoders."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from fairssl import distributed, kinds
from fairssl.parts import Encoder
from fairssl.testing.contract import (
    PROCESSES,
    Skipped,
    Steps,
    assert_processes_agree,
    check_config,
    check_docstrings,
    first_difference,
)
from fairssl.testing.fake_gpu import assert_capturable
from fairssl.testing.processes import simulate_processes
from fairssl.testing.replay import assert_replayed_steps_agree
from fairssl.testing.toy import SIDE, encoder_trainer, index_at


def encoder_checks(name: str, part: Any) -> Steps:
    shape = (3, SIDE, SIDE)

    def build(seed: int = 0) -> Encoder:
        torch.manual_seed(seed)
        return kinds.encoders.build(name, {}, image_shape=shape)

    def images(n: int = 4) -> Tensor:
        return torch.randn(n, *shape, generator=torch.Generator().manual_seed(5))

    def feature_shape() -> None:
        encoder = build()
        f = encoder(images())
        assert f.shape == (4, encoder.dim), f"the feature has shape {tuple(f.shape)}; dim says (B, {encoder.dim})"
        assert f.isfinite().all(), "a feature is not finite"

    def seeds() -> None:
        entry = first_difference(build().state_dict(), build().state_dict())
        assert entry is None, f"{entry} differs between two encoders of one seed"
        assert torch.equal(build().eval()(images()), build().eval()(images())), "two equal encoders differ on one batch"
        assert first_difference(build().state_dict(), build(1).state_dict()) is not None, (
            "another seed gives the same weights"
        )

    def alone() -> None:
        encoder = build().eval()
        with torch.inference_mode():
            batched, single = encoder(images()), encoder(images()[:1])
        close = torch.allclose(batched[:1], single, rtol=1e-3, atol=1e-4 * float(batched.abs().max()))
        assert close, "in evaluation mode an image's feature depends on the others of its batch"

    def round_trip() -> None:
        one, two = build(), build(1)
        one(images())  # moves running statistics
        two.load_state_dict(one.state_dict())
        entry = torch.equal(one.eval()(images()), two.eval()(images()))
        assert entry, "the state dict does not hold everything the feature depends on"

    def gradient() -> None:
        encoder = build()
        trained = {label: p for label, p in encoder.named_parameters() if p.requires_grad}
        assert trained, "no parameter is trainable"
        found = torch.autograd.grad(encoder(images()).square().sum(), list(trained.values()), allow_unused=True)
        missed = [label for label, g in zip(trained, found, strict=True) if g is None]
        assert not missed, f"no gradient reaches {missed[0]!r}"

    def shared() -> None:
        torch.manual_seed(1)
        x, weight = images(7).double(), torch.randn(7, 1, dtype=torch.float64)
        encoders = [build().double() for _ in range(1 + PROCESSES)]
        drawn = []
        for seed in (0, 1):
            encoder = build()
            torch.manual_seed(seed)
            drawn.append(encoder(images(7)))
        if not torch.equal(*drawn):
            raise Skipped("draws random numbers in training")

        def step(encoder: Encoder) -> dict[str, Tensor]:
            f = distributed.sharded(encoder, x)
            trained = [p for p in encoder.parameters() if p.requires_grad]
            gradients = distributed.reduce_gradients(trained, torch.autograd.grad((f * weight).sin().sum(), trained))
            names = [n for n, p in encoder.named_parameters() if p.requires_grad]
            found = {f"the gradient of {n}": g for n, g in zip(names, gradients, strict=True) if g is not None}
            buffers = {f"buffer {n}": value.double() for n, value in encoder.named_buffers()}
            return {"the feature": f.detach(), **found, **buffers}

        assert_processes_agree(step(encoders[0]), simulate_processes([partial(step, one) for one in encoders[1:]]))

    def capturable() -> None:
        trainer = encoder_trainer(name)
        trainer.summed_step(index_at(trainer))  # what is made once may read back
        assert_capturable(trainer, index_at(trainer, 1))

    def replayed() -> None:
        eager = encoder_trainer(name)
        eager.run()
        assert_replayed_steps_agree(eager, encoder_trainer(name))

    def refuses() -> None:
        found = part.accepts("no such encoder")
        assert found is None, f"accepts() takes any name: it gave {found} for one that does not exist"

    return [
        ("docstrings and version", lambda: check_docstrings(part, kinds.encoders, name)),
        ("config", lambda: check_config(part, name)),
        ("feature is (B, dim)", feature_shape),
        ("equal seeds, equal bits", seeds),
        ("evaluation mode: an image alone", alone),
        ("state dict round trip", round_trip),
        ("gradients reach every parameter", gradient),
        ("a GPU can capture its step", capturable),
        ("a replayed step equals an eager one", replayed),
        ("processes that share a batch equal one", shared),
        ("refuses unknown names", refuses),
    ]
