"""barlow_twins, simsiam, moco_v3 and dino: against plain loops, values by hand, and what must not change them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from reference import small
from reference.harness import build, given
from torch import Tensor


def noise(n: int, width: int, seed: int) -> list[Tensor]:
    gen = torch.Generator().manual_seed(seed)
    return [torch.randn(n, width, generator=gen, dtype=torch.float64).requires_grad_() for _ in range(2)]


def cosine(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True)) / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


def barlow(a: list[list[float]], b: list[list[float]], redundancy: float) -> float:
    n, width = len(a), len(a[0])

    def column(rows: list[list[float]], i: int) -> list[float]:
        values = [row[i] for row in rows]
        mean = sum(values) / n
        sd = math.sqrt(sum((v - mean) ** 2 for v in values) / n + 1e-5)
        return [(v - mean) / sd for v in values]

    total = 0.0
    for i in range(width):
        for j in range(width):
            c = sum(x * y for x, y in zip(column(a, i), column(b, j), strict=True)) / n
            total += (1 - c) ** 2 if i == j else redundancy * c**2
    return total


@pytest.mark.parametrize("seed", [0, 1])
def test_barlow_twins_equals_the_loops(seed: int) -> None:
    a, b = noise(7, 4, seed)
    terms = build("objective", "barlow_twins", redundancy=0.3)({"all": given([a, b])}).primal
    assert sum(float(value.detach()) for value in terms.values()) == pytest.approx(
        barlow(a.tolist(), b.tolist(), 0.3), rel=1e-9
    )


def test_barlow_twins_does_not_see_scale_and_offset_of_a_feature_nor_the_order_of_images() -> None:
    a, b = (x.detach() for x in noise(50, 4, 2))
    part, order = build("objective", "barlow_twins"), torch.randperm(50)

    def loss(*views: Tensor) -> float:
        return float(sum(part({"all": given(list(views))}).primal.values()))

    assert loss(3 * a + 5, b) == pytest.approx(loss(a, b), rel=1e-4)
    assert loss(a[order], b[order]) == pytest.approx(loss(a, b), rel=1e-9)
    assert loss(a[order], b) > loss(a, a)


def test_barlow_twins_by_hand() -> None:
    same = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]], dtype=torch.float64)
    terms = build("objective", "barlow_twins", redundancy=1.0)({"all": given([same, same])}).primal
    assert float(terms["invariance"]) == pytest.approx(0, abs=1e-8) and float(terms["redundancy"]) == 0
    flat = torch.ones(4, 2, dtype=torch.float64)  # collapsed: no feature varies, and each costs 1
    terms = build("objective", "barlow_twins")({"all": given([flat, flat])}).primal
    assert float(terms["invariance"]) == pytest.approx(2)


def test_simsiam_equals_the_loops_and_holds_one_side_still() -> None:
    a, b = noise(5, 3, 0)
    part = build("objective", "simsiam", projection_dim=3)
    part.predictor = torch.nn.Linear(3, 3).double()
    loss = part({"all": given([a, b])}).primal["similarity"]
    p, q = part.predictor(a).tolist(), part.predictor(b).tolist()
    wanted = [-cosine(p[i], b[i].tolist()) / 2 - cosine(q[i], a[i].tolist()) / 2 for i in range(5)]
    assert float(loss.detach()) == pytest.approx(sum(wanted) / 5, rel=1e-6)
    # The gradient of a is that of its own prediction alone.
    (gradient,) = torch.autograd.grad(loss, a)
    again = a.detach().requires_grad_()
    own = torch.stack([-torch.nn.functional.cosine_similarity(part.predictor(again), b.detach())]).mean() / 2
    torch.testing.assert_close(gradient, torch.autograd.grad(own, again)[0], rtol=1e-5, atol=1e-8)


def test_simsiams_projector_ends_with_a_norm_without_parameters() -> None:
    part = build("objective", "simsiam", projection_dim=6)
    z = part.projector(torch.randn(32, 16))
    assert z.mean(0).abs().max() < 1e-5 and torch.allclose(z.var(0, unbiased=False), torch.ones(6), atol=1e-2)
    assert not list(part.projector[-1].parameters())


def step_of(method: str, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
    trainer = small.trainer(small.run_of(method, sets=kwargs.pop("sets", ()), **kwargs).spec)
    index = {name: stream.steps(0, 1)[0] for name, stream in trainer.streams.items()}
    return trainer, trainer.step.encode(trainer.step.draw(index))


def test_moco_v3_equals_the_loops() -> None:
    trainer, batches = step_of("moco_v3", sets=("moco_v3.temperature=0.4",))
    part, batch, tau = trainer.model.objective, batches["all"], 0.4
    loss = float(part({"all": batch}).primal["contrast"].detach())
    with torch.no_grad():
        q = part.predictor(torch.cat(batch.z)).chunk(2)
        k = part.momentum_projector(part.momentum_encoder(torch.cat(batch.views))).chunk(2)
    n, total = len(batch.index), 0.0
    for ours, theirs in ((q[0], k[1]), (q[1], k[0])):
        for i in range(n):
            s = [cosine(ours[i].tolist(), theirs[j].tolist()) / tau for j in range(n)]
            total += 2 * tau * (math.log(sum(map(math.exp, s))) - s[i]) / n
    assert loss == pytest.approx(total, rel=1e-4)


@pytest.mark.parametrize(("method", "mine"), [("moco_v3", "momentum_encoder"), ("dino", "teacher_encoder")])
def test_the_momentum_encoder_follows_at_the_rising_rate_and_is_no_part_of_what_is_judged(
    method: str, mine: str
) -> None:
    trainer = small.trainer(small.run_of(method, sets=(f"{method}.momentum=0.6",)).spec)
    part = trainer.model.objective
    before = next(getattr(part, mine).parameters()).clone()
    trainer.step({name: stream.steps(0, 1)[0] for name, stream in trainer.streams.items()})
    online = next(trainer.model.encoder.parameters()).detach()
    rate = 1 - 0.4 * (math.cos(math.pi / trainer.n_steps) + 1) / 2
    torch.testing.assert_close(next(getattr(part, mine).parameters()), rate * before + (1 - rate) * online)
    assert not any(p.requires_grad for p in getattr(part, mine).parameters())


def test_dino_equals_the_loops_over_large_and_small_crops() -> None:
    trainer, batches = step_of("dino", sets=("dino.n_small=3", "dino.n_prototypes=6"))
    part, batch = trainer.model.objective, batches["all"]
    assert [view.shape[-1] for view in batch.views] == [16, 16, 8, 8, 8]
    part.center.copy_(torch.linspace(-0.02, 0.02, 6))
    center = part.center.clone()
    loss = float(part({"all": batch}).primal["cross_entropy"].detach())
    with torch.no_grad():
        large = torch.cat(batch.views[:2])
        teacher = part.teacher_projector(part.teacher_encoder(large)).tolist()
    n, total, count = len(batch.index), 0.0, 0
    found = [[cosine(row, w) for w in part.teacher_prototypes.weight.tolist()] for row in teacher]

    def softmax(values: list[float]) -> list[float]:
        top = max(values)
        powers = [math.exp(v - top) for v in values]
        return [p / sum(powers) for p in powers]

    for g in (0, 1):
        for v in range(5):
            if v == g:
                continue
            for i in range(n):
                p = softmax([(c - o) / 0.04 for c, o in zip(found[g * n + i], center.tolist(), strict=True)])
                z = batch.z[v][i].tolist()
                q = softmax([cosine(z, w) / 0.1 for w in part.prototypes.weight.tolist()])
                total -= sum(a * math.log(b) for a, b in zip(p, q, strict=True))
                count += 1
    assert loss == pytest.approx(total / count, rel=1e-3)
    mean = [sum(row[k] for row in found) / len(found) for k in range(6)]
    assert part.center.tolist() == pytest.approx(
        [0.9 * c + 0.1 * m for c, m in zip(center.tolist(), mean, strict=True)], abs=1e-5
    )


def test_dinos_small_crops_are_shown_to_no_head_and_can_be_left_out() -> None:
    _, batches = step_of("dino+adversary")
    assert len(batches["all"].views) == 6 and len(batches["annotated"].views) == 2
    _, batches = step_of("dino", sets=("dino.n_small=0",))
    assert len(batches["all"].views) == 2


def test_dinos_row_shows_two_fifths_of_the_image_at_least() -> None:
    assert small.run_of("dino").spec.train.crop_min == 0.4


@pytest.mark.parametrize("method", ["barlow_twins", "simsiam", "moco_v3", "dino"])
def test_they_take_any_head_that_an_embedding_allows(method: str) -> None:
    heads = "adversary+ccl+hsic+mmd+max_entropy"
    trainer = small.trainer(small.run_of(f"{method}+{heads}", epochs=1).spec)
    trainer.run()
    assert math.isfinite(trainer.history.rows[-1]["loss"])
