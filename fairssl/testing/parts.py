"""Checks of objectives and heads."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fairssl import kinds
from fairssl.evaluate.embed import embed
from fairssl.nn import networks_in_bf16
from fairssl.parts import Part
from fairssl.testing.contract import (
    PROCESSES,
    RULE,
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
from fairssl.testing.toy import BATCH, CPU, N, PartBench, index_at, losses_of, outcome, take_steps, tiny_split
from fairssl.train.step import visible_to
from fairssl.train.trainer import Stopped, Trainer
from fairssl.types import Batch, Embeddings, Split, UserError

EAGER = "not capturable, as it says itself: its steps run eagerly"


def part_checks(bench: PartBench, part: Any) -> Steps:
    name = bench.name
    is_head = bench.kind == "heads"
    trains = bool(part.streams) if is_head else part.trains
    idle = "takes no step"

    def words() -> None:
        check_docstrings(part, kinds.by_kind(bench.kind), name)

    def config() -> None:
        check_config(part, name)
        if is_head:
            assert "weight" in part.Config.model_fields, f"{name}.Config must derive from HeadConfig, which has weight"

    def declares() -> None:
        assert part.sees <= {"target", "group", "views"}, (
            f"sees may hold 'target', 'group' and 'views', not {sorted(part.sees)}"
        )
        assert part.streams <= {"all", "annotated"}, f"streams may hold 'all' and 'annotated', not {part.streams}"
        labelled = part.streams if part.labelled is None else part.labelled
        assert labelled <= part.streams, f"labelled holds {sorted(labelled - part.streams)}, which it does not draw"
        assert part.n_views >= 1, f"n_views is {part.n_views}; at least 1"
        if is_head:
            assert part.needs in (None, "embedding", "logits"), f"needs is {part.needs!r}"
        else:
            assert part.streams, "an objective needs a stream to be trained on"
            assert part.gives in ("embedding", "logits"), f"gives is {part.gives!r}"

    def builds() -> None:
        mine = bench.of(bench.trainer())
        assert isinstance(mine, Part), f"{name} must derive from fairssl.api's Objective or Head"
        own = {id(p) for p in mine.parameters()}
        assert all(id(p) in own for p in mine.dual_parameters()), "dual_parameters() gives a parameter not its own"

    def terms() -> None:
        trainer = bench.trainer()
        mine, batches = bench.of(trainer), trainer.step.encode(trainer.step.draw(index_at(trainer)))
        found = mine({stream: visible_to(batches[stream], mine) for stream in mine.streams})
        assert found.primal or (is_head and found.dual), "forward returns no primal term"
        everything = {**found.primal, **found.dual, **found.log}
        assert len(everything) == len(found.primal) + len(found.dual) + len(found.log), "two terms have one name"
        for term, value in everything.items():
            assert isinstance(value, Tensor), f"term {term!r} is a {type(value).__name__}, not a tensor"
            assert value.ndim == 0, f"term {term!r} has shape {tuple(value.shape)}; it must be 0-d"
            counted = term in found.log  # may be a count
            at_least = value.dtype in (torch.float32, torch.float64)
            assert at_least or counted, f"term {term!r} is {value.dtype}; at least float32"
            assert value.isfinite(), f"term {term!r} is {value.item()}"
        assert bool(found.dual) == bool(list(mine.dual_parameters())), (
            "dual terms and dual parameters go together: one without the other never trains"
        )

    def labels() -> None:
        trainer = bench.trainer()
        drawn = trainer.step.draw(index_at(trainer))
        before = losses_of(bench.trainer(), drawn)
        for label in ("target", "group"):
            if any(label in other.sees for other in trainer.model.parts.values()):
                continue
            codes = getattr(trainer.data, label)  # which `draw` has left out, since nobody asks for them
            changed = {s: replace(b, **{label: codes[b.index]}) for s, b in drawn.items()}
            differing = first_difference(before, losses_of(bench.trainer(), changed))
            assert differing is None, f"{differing} depends on the {label}, which `sees` does not declare"

    def gradient() -> None:
        trainer = bench.trainer()
        mine, batches = bench.of(trainer), trainer.step.encode(trainer.step.draw(index_at(trainer)))
        found = mine({stream: visible_to(batches[stream], mine) for stream in mine.streams})
        dual = list(mine.dual_parameters())
        dual_ids = {id(p) for p in dual}
        encoder = [p for p in trainer.model.encoder.parameters() if p.requires_grad]
        moved: set[int] = set()
        if found.primal:
            total = torch.stack(list(found.primal.values())).sum()
            assert total.requires_grad, "the primal terms have no gradient: something detaches them"
            own = [p for p in mine.parameters() if p.requires_grad and id(p) not in dual_ids]
            both = [*encoder, *own]
            gradients = torch.autograd.grad(total, both, allow_unused=True, retain_graph=True)
            reached = [g for g in gradients[: len(encoder)] if g is not None]
            assert len(reached) == len(encoder), "the primal gradient does not reach all of the encoder"
            assert any(g.abs().sum() > 0 for g in reached), "the primal gradient of the encoder is 0"
            assert all(g.isfinite().all() for g in gradients if g is not None), "a primal gradient is not finite"
            moved |= {id(p) for p, g in zip(both, gradients, strict=True) if g is not None}
        if found.dual:
            total = torch.stack(list(found.dual.values())).sum()
            gradients = torch.autograd.grad(total, dual, allow_unused=True)
            assert all(g is not None and g.isfinite().all() for g in gradients), "a dual parameter has no dual gradient"
            moved |= dual_ids
        for label, parameter in mine.named_parameters():
            if parameter.requires_grad and id(parameter) not in moved:
                raise AssertionError(f"no term moves parameter {label!r}: use it, or freeze it (requires_grad_(False))")

    def permutation() -> None:
        drawn = bench.trainer().step.draw(index_at(bench.trainer()))
        before = losses_of(bench.trainer(), drawn)
        if first_difference(before, losses_of(bench.trainer(), drawn, seed=1)) is not None:
            raise Skipped("draws random numbers in its forward pass")
        order = torch.from_numpy(np.random.Generator(np.random.PCG64(3)).permutation(BATCH))
        after = losses_of(bench.trainer(), {stream: _reordered(batch, order) for stream, batch in drawn.items()})
        for term, value in before.items():
            close = torch.isclose(value, after[term], rtol=1e-3, atol=1e-5)
            assert close, f"{term} is {value.item():.6g}, and {after[term].item():.6g} with the batch in another order"

    def state_dict() -> None:
        once, again = bench.trainer(), bench.trainer()
        take_steps(once, 2)
        again.model.load(once.model.tensors())
        drawn = once.step.draw(index_at(once, 2))
        term = first_difference(losses_of(once, drawn), losses_of(again, drawn))
        assert term is None, f"{term} differs after a state dict round trip: keep all state in parameters and buffers"
        entry = first_difference(once.model.tensors(), again.model.tensors())
        assert entry is None, f"{entry} differs after a state dict round trip and one more forward pass"

    @cache
    def uninterrupted() -> Trainer:
        """A run to its last step, which three checks compare another with."""
        np.random.seed(0)
        random.seed(0)
        trainer = bench.trainer()
        trainer.run()
        return trainer

    def seeds() -> None:
        whole = uninterrupted()
        np.random.seed(1)
        random.seed(1)
        again = bench.trainer()
        again.run()
        entry = first_difference(whole.model.tensors(), again.model.tensors())
        assert entry is None, f"{entry} differs between two runs of one seed: draw with torch, or with the `gen` given"
        first, other = bench.trainer(), bench.trainer(seed=1)
        assert first_difference(first.model.tensors(), other.model.tensors()) is not None, (
            "another seed gives the same bits"
        )

    def resume() -> None:
        whole = uninterrupted()
        with tempfile.TemporaryDirectory() as folder:
            first = bench.trainer()
            with suppress(Stopped):
                first.run(Path(folder), stop=lambda: first.done >= 3)
            second = bench.trainer()
            second.run(Path(folder))
            assert second.resumed_at == 3, f"the run went on from step {second.resumed_at} instead of 3"
        entry = first_difference(whole.model.tensors(), second.model.tensors())
        assert entry is None, f"{entry} differs between a run of {whole.n_steps} steps and one cut after 3"

    def bf16() -> None:
        for factor, what in ((0.0, "collapsed to 0"), (1e3, "1000 times as large")):
            trainer = bench.trainer(precision="bf16")
            drawn = trainer.step.draw(index_at(trainer))
            trainer.model.encoder = _Scaled(trainer.model.encoder, factor)  # type: ignore[assignment]
            with networks_in_bf16(True):
                primal, dual, log = trainer.step.terms(trainer.step.encode(drawn))
            for term, value in log.items():
                assert value.isfinite(), f"{term} is {value.item()} under bf16 with features {what}"
            found = torch.autograd.grad(primal, trainer.step.primal, allow_unused=True, retain_graph=True)
            if dual is not None:
                found += torch.autograd.grad(dual, trainer.step.dual, allow_unused=True)
            assert all(g.isfinite().all() for g in found if g is not None), (
                f"a gradient is not finite under bf16 with features {what}"
            )

    def groups(n_groups: int) -> None:
        trainer = bench.trainer(n_groups)
        for log in take_steps(trainer, 2):
            for term, value in log.items():
                assert value.isfinite(), f"{term} is {value.item()} with {n_groups} groups"

    def missing() -> None:
        trainer = bench.trainer()
        hidden = torch.nonzero(trainer.data.group < 0)[:, 0]
        annotated = trainer.data.annotated
        for label, codes in (("group", trainer.data.group), ("target", trainer.data.target)):
            for code in (0, 1):
                batches = {"all": hidden[:BATCH], "annotated": annotated[codes[annotated] == code][:BATCH]}
                found = bench.trainer()
                for term, value in found.step({name: batches[name] for name in found.streams}).items():
                    assert value.isfinite(), f"{term} is {value.item()} in a batch whose {label} is {code} throughout"

    def capturable() -> None:
        if not part.capturable:
            raise Skipped(EAGER)
        trainer = bench.trainer()
        trainer.summed_step(index_at(trainer))  # what is made once may read back
        assert_capturable(trainer, index_at(trainer, 1))

    def replayed() -> None:
        if not part.capturable:
            raise Skipped(EAGER)
        assert_replayed_steps_agree(uninterrupted(), bench.trainer())

    def shared() -> None:
        index = index_at(bench.trainer())
        drawn = bench.trainer().step.draw(index)
        if first_difference(losses_of(bench.trainer(), drawn), losses_of(bench.trainer(), drawn, seed=1)) is not None:
            raise Skipped("draws random numbers in its forward pass")
        alone, *others = (bench.trainer() for _ in range(1 + PROCESSES))
        try:
            found = simulate_processes([partial(outcome, other, index) for other in others])
        except RuntimeError as error:
            if "inplace" in str(error) or "`sharded`" in str(error):
                # The one is what joint statistics do to what a direct use has kept for its backward pass.
                raise AssertionError(f"{PROCESSES} processes cannot share the batch: {RULE}") from error
            raise
        assert_processes_agree(outcome(alone, index), found)

    def embeds() -> None:
        trainer = bench.trainer()
        if trainer.n_steps:
            take_steps(trainer, 1)
        mine: Any = bench.of(trainer).eval()
        split = tiny_split(2)
        f = embed(trainer.model.encoder, trainer.model.objective.represent, split, CPU)
        if is_head:
            _check_fit(mine, f, split)
            return
        width = trainer.model.encoder.dim if mine.feature_dim is None else mine.feature_dim
        assert f.shape == (N, width), f"represent gives {tuple(f.shape)} for {N} images; feature_dim says (N, {width})"
        assert f.isfinite().all(), "represent gives a number that is not finite"
        assert torch.equal(f, embed(trainer.model.encoder, mine.represent, split, CPU)), (
            "represent is random in eval mode"
        )
        with torch.inference_mode():
            z, scores = mine.project(f), mine.scores(f)
        assert len(z) == N, f"project gives {tuple(z.shape)} for (N, F) = {tuple(f.shape)}"
        if mine.gives == "logits":
            assert z.numel() == N, (
                f"gives is 'logits', but project gives {tuple(z.shape)}; one logit of y = 1 per image"
            )
        if scores is not None:
            assert scores.shape == (N,), f"scores gives {tuple(scores.shape)}; (N,) is wanted"
            assert ((scores >= 0) & (scores <= 1)).all(), "scores leaves [0, 1]: give probabilities of y = 1"

    def stepping(function: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            if not trains:
                raise Skipped(idle)
            function()

        return run

    in_training: list[tuple[str, Callable[[], None]]] = [
        ("terms are finite 0-d tensors", terms),
        ("only declared labels matter", labels),
        ("gradients reach what they should", gradient),
        ("the batch's order does not matter", permutation),
        ("state dict round trip", state_dict),
        ("equal seeds, equal bits", seeds),
        ("a resumed run equals an uninterrupted one", resume),
        ("finite under bf16 with extreme features", bf16),
        ("2 groups", lambda: groups(2)),
        ("5 groups", lambda: groups(5)),
        ("a batch with one group or one class", missing),
        ("a GPU can capture its step", capturable),
        ("a replayed step equals an eager one", replayed),
        ("processes that share a batch equal one", shared),
    ]
    return [
        ("docstrings and version", words),
        ("config", config),
        ("declarations", declares),
        ("builds", builds),
        *((label, stepping(function)) for label, function in in_training),
        ("after training: " + ("fit" if is_head else "features and scores"), embeds),
    ]


def _reordered(batch: Batch, order: Tensor) -> Batch:
    views = [v[order] for v in batch.views]
    target, group = (None if codes is None else codes[order] for codes in (batch.target, batch.group))
    return replace(batch, views=views, index=batch.index[order], target=target, group=group)


def _check_fit(head: Any, f: Tensor, split: Split) -> None:
    def seen_with(group: Tensor) -> Embeddings:
        target = torch.where(group >= 0, torch.from_numpy(split.target), -1)
        return Embeddings(f, target if "target" in head.sees else None, group if "group" in head.sees else None)

    annotated = torch.from_numpy(split.group.copy())
    annotated[1::3] = -1
    seen = seen_with(annotated)
    transform = head.fit(seen)
    if transform is None:
        assert head.streams, "a head without streams must have a fit that gives a transform, or it does nothing"
        return
    out = transform(f)
    assert len(out) == len(f) and out.ndim == 2, f"the fitted transform gives {tuple(out.shape)} for {tuple(f.shape)}"
    assert out.isfinite().all(), "the fitted transform gives a number that is not finite"
    assert torch.equal(out, head.fit(seen)(f)), "fitting twice gives two transforms: draw no random numbers"
    rows = torch.tensor([3, 0, 9])
    close = torch.allclose(transform(f[rows]), out[rows], rtol=1e-3, atol=1e-4)
    assert close, "the fitted transform of an example depends on the others it is given with"
    hidden = torch.where(torch.from_numpy(split.group) > 0, torch.from_numpy(split.group), -1)  # group 0 is missing
    try:
        found = head.fit(seen_with(hidden))
    except UserError:
        return  # a one-line refusal is an answer too
    assert found is None or found(f).isfinite().all(), "the transform is not finite where a group is missing"


class _Scaled(nn.Module):
    """An encoder whose features are `factor` times as large."""

    def __init__(self, encoder: nn.Module, factor: float):
        super().__init__()
        self.encoder, self.factor = encoder, factor

    def forward(self, x: Tensor) -> Tensor:
        return self.encoder(x) * self.factor
