"""The adversary and CCL: given values, slow references, properties, and what every head must hold."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from reference import harness, losses
from reference.harness import CASES, build, context, encoder, given, images, reorder, step, terms
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from fairssl import kinds
from fairssl.nn import networks_in_bf16, nt_xent
from fairssl.types import Batch, UserError

HEADS = [name for name in kinds.heads.where() if kinds.heads.get(name).streams]  # the rest acts after training
INPUT = CASES["inputs"]


def adversary(n_groups: int = 2, width: int = 3, **params: Any) -> Any:
    return build("head", "adversary", context(n_groups=n_groups, feature_dim=width), hidden_dim=7, **params).double()


def noise(n: int, width: int = 3, seed: int = 0) -> list[Tensor]:
    gen = torch.Generator().manual_seed(seed)
    return [torch.randn(n, width, generator=gen, dtype=torch.float64).requires_grad_() for _ in range(2)]


def layers(head: Any) -> tuple[Any, Any]:
    first, _, second = head.discriminator
    return (first.weight.tolist(), first.bias.tolist()), (second.weight.tolist(), second.bias.tolist())


@pytest.mark.parametrize("seen", ["normalized", "raw", "projection"])
@pytest.mark.parametrize("n_groups", [2, 5])
def test_the_encoder_descends_and_the_discriminator_ascends_its_log_likelihood(seen, n_groups):
    weight, n = 0.7, 6
    head = adversary(n_groups, input=seen, projection_dim=3, weight=weight)
    f = noise(n)
    group = [k % n_groups for k in range(n)]
    found = head({"annotated": given(f, group=group)})
    first, second = layers(head)

    def cross_entropy(rows):
        rows = rows if seen == "raw" else [losses.unit(row) for row in rows]
        return losses.cross_entropy(rows, first, second, group + group)

    both = torch.cat(f).tolist()
    assert float(found.dual["cross_entropy"].detach()) == pytest.approx(cross_entropy(both), abs=1e-10)
    assert float(found.primal["log_likelihood"].detach()) == pytest.approx(-cross_entropy(both), abs=1e-10)

    encoder_gradient = torch.cat(torch.autograd.grad(weight * found.primal["log_likelihood"], f, retain_graph=True))
    wanted = -weight * torch.tensor(losses.slope(cross_entropy, both), dtype=torch.float64)
    torch.testing.assert_close(encoder_gradient, wanted, rtol=0, atol=1e-7)

    # The weight does not reach the discriminator, and features that carry a graph change nothing for it.
    dual = list(head.dual_parameters())
    assert len(dual) == 4 == len(list(head.parameters()))
    ours = torch.autograd.grad(found.dual["cross_entropy"], dual)
    detached = head({"annotated": given([x.detach() for x in f], group=group)})
    for a, b in zip(ours, torch.autograd.grad(detached.dual["cross_entropy"], dual), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_the_normalized_input_hides_the_length_of_a_feature():
    f, group = noise(4), [0, 1, 0, 1]
    longer = [100 * x for x in f]
    for seen, same in (("normalized", True), ("raw", False)):
        head = adversary(input=seen)
        a, b = (head({"annotated": given(x, group=group)}).dual["cross_entropy"] for x in (f, longer))
        assert torch.allclose(a, b, atol=1e-12) is same


def test_before_its_start_the_adversary_moves_the_discriminator_alone():
    f, group = noise(4), [0, 1, 0, 1]
    head = adversary(start=0.5, weight=0.7)
    usual = adversary(weight=0.7)
    usual.load_state_dict(head.state_dict(), strict=False)
    batch = {"annotated": given(f, group=group)}

    def moves(one: Any) -> list[Tensor]:
        found = one(batch)
        return [
            *torch.autograd.grad(found.primal["log_likelihood"], f, retain_graph=True),
            *torch.autograd.grad(found.dual["cross_entropy"], list(one.dual_parameters())),
        ]

    for progress, at_work in ((0.0, 0), (0.49, 0), (0.5, 1), (1.0, 1)):
        head.after_step(torch.nn.Identity(), torch.tensor(progress))
        for number, (ours, theirs) in enumerate(zip(moves(head), moves(usual), strict=True)):
            torch.testing.assert_close(ours, theirs if at_work or number >= 2 else torch.zeros_like(theirs))
    assert "start" not in adversary().config.params() and head.config.params()["start"] == 0.5


def train(head: Any, batch: Batch, n_steps: int, lr: float) -> dict[str, float]:
    optimizer = torch.optim.Adam(head.dual_parameters(), lr=lr)
    for _ in range(n_steps):
        out = head({"annotated": batch})
        optimizer.zero_grad()
        out.dual["cross_entropy"].backward()
        optimizer.step()
    return {name: float(value.detach()) for part in (out.dual, out.log) for name, value in part.items()}


def test_on_features_that_tell_nothing_the_best_discriminator_is_the_prior():
    group = torch.tensor([0] * 5 + [1] * 3 + [2] * 2)
    f = torch.ones(10, 3, dtype=torch.float64)
    head = adversary(3)
    end = train(head, given([f, f], group=group), 300, 0.02)
    shares = [0.5, 0.3, 0.2]
    assert end["cross_entropy"] == pytest.approx(-sum(p * math.log(p) for p in shares), abs=1e-4)
    found = head.discriminator(torch.nn.functional.normalize(f[:1])).softmax(1)[0]
    assert found.tolist() == pytest.approx(shares, abs=5e-3)
    assert end["accuracy"] == 0.5


def test_five_separable_groups_are_told_apart():
    gen = torch.Generator().manual_seed(0)
    group = torch.arange(50) % 5
    f = [torch.eye(5)[group] + 0.1 * torch.randn(50, 5, generator=gen) for _ in range(2)]
    batch = given([x.double() for x in f], group=group)
    assert train(adversary(5, width=5), batch, 60, 0.02)["accuracy"] > 0.9


def test_the_adversary_says_when_the_projection_is_of_another_width():
    head = adversary(input="projection", projection_dim=128)
    with pytest.raises(UserError, match=r"128 wide.*gives 3.*projection_dim"):
        head({"annotated": given(noise(4), group=[0, 1, 0, 1])})


@pytest.mark.parametrize("scale", [0.0, 1.0, 1e4, 1e30])
@pytest.mark.parametrize("seen", ["normalized", "raw"])
def test_the_adversary_is_finite_when_it_is_sure_and_wrong(scale, seen):
    head = adversary(input=seen).float()
    f = [(scale * x.detach()).to(torch.bfloat16).float().requires_grad_() for x in noise(4)]
    out = head({"annotated": given(f, group=[0, 1, 0, 1])})
    loss = out.primal["log_likelihood"]
    assert loss.dtype == torch.float32 and loss.isfinite()
    assert all(g.isfinite().all() for g in torch.autograd.grad(loss, [*f, *head.parameters()]))


def test_other_spellings_and_the_weight_of_the_paper():
    assert adversary().config.weight == 1.0
    assert adversary(alpha=0.3).config.weight == 0.3
    assert build("head", "ccl", **{"lambda": 0.5}).config.weight == 0.5
    with pytest.raises(UserError, match="twice"):
        adversary(alpha=0.3, weight=0.3)


def ccl(views: list[Tensor], group: Any, tau: float = 0.3) -> Tensor:
    return build("head", "ccl", temperature=tau)({"annotated": given(views, group=group)}).primal["ccl"]


def test_ccl_has_the_given_values():
    tau, group = INPUT["tau"], INPUT["group"]
    views = [torch.tensor(INPUT[key], dtype=torch.float64) for key in ("view_a", "view_b")]
    loss = ccl(views, group, tau)
    assert float(loss) == pytest.approx(CASES["ccl_same_group_negatives"], abs=1e-12)
    simclr = build("objective", "simclr", temperature=tau)({"all": given(views)}).primal["nt_xent"]
    assert float(simclr + 0.5 * loss) == pytest.approx(CASES["simclr_plus_ccl_weight_0_5"], abs=1e-12)


@pytest.mark.parametrize("group", [[0, 1, 0, 1, 1], [0, 1, 2, 3, 4], [0, 0, 0, 0, 0], [4, 4, 1, 4, 1]])
def test_ccl_and_its_gradient_equal_the_loops(group):
    a, b = noise(5)
    loss = ccl([a, b], group)
    assert float(loss.detach()) == pytest.approx(losses.nt_xent(a.tolist(), b.tolist(), 0.3, group), abs=1e-10)
    slope = losses.slope(lambda rows: losses.nt_xent(rows, b.tolist(), 0.3, group), a.tolist())
    wanted = torch.tensor(slope, dtype=torch.float64)
    torch.testing.assert_close(torch.autograd.grad(loss, a)[0], wanted, rtol=0, atol=1e-6)


def test_an_anchor_alone_in_its_group_has_no_loss_and_one_group_is_plain_ntxent():
    a, b = noise(4)
    alone = ccl([a, b], [0, 1, 2, 3])
    assert float(alone.detach()) == pytest.approx(0.0, abs=1e-12)
    assert all(g.abs().max() < 1e-12 for g in torch.autograd.grad(alone, [a, b]))
    together = float(ccl([a, b], [1, 1, 1, 1]).detach())
    assert together == pytest.approx(float(nt_xent([a, b], 0.3).detach()), abs=1e-12)

    pair = float(ccl([a[:2], b[:2]], [0, 0]).detach())
    assert float(ccl([a[:3], b[:3]], [0, 0, 1]).detach()) == pytest.approx(
        pair * 2 / 3, abs=1e-12
    )  # it stays in the mean


def built(name: str, n_groups: int = 2, seed: int = 0) -> tuple[Any, Any, Any]:
    backbone = encoder(seed)
    ctx = context(backbone, n_groups=n_groups)
    objective = "ce" if kinds.heads.get(name).needs == "logits" else "simclr"
    return backbone, build("objective", objective, ctx), build("head", name, ctx)


@pytest.mark.parametrize("name", HEADS)
def test_a_head_does_not_depend_on_the_order_of_its_batch(name):
    order = torch.tensor([4, 2, 0, 5, 1, 3])
    found = []
    for batch in (images(), reorder(images(), order)):
        modules = [module.double() for module in built(name)]
        batch.views = [view.double() for view in batch.views]
        found.append(([step(batch, *modules) for _ in range(2)], modules[2].state_dict()))
    assert found[1][0] == pytest.approx(found[0][0], abs=1e-9)
    for key, value in found[0][1].items():
        torch.testing.assert_close(found[1][1][key], value, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("name", HEADS)
def test_a_heads_state_dict_holds_all_that_its_next_step_depends_on(name):
    modules = built(name)
    step(images(seed=3), *modules)
    kept = harness.snapshot(*modules)
    wanted = [step(images(seed=s), *modules, progress=0.3) for s in (4, 5)]

    fresh = built(name, seed=7)
    for module, state in zip(fresh, kept, strict=True):
        module.load_state_dict(state)
    assert [step(images(seed=s), *fresh, progress=0.3) for s in (4, 5)] == wanted


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize(("n_groups", "present"), [(2, 2), (5, 5), (2, 1), (5, 3)])
def test_a_head_takes_any_number_of_groups_also_when_one_is_missing(name, n_groups, present):
    modules = built(name, n_groups)
    primal, dual, _ = terms(images(n_groups=present), *modules)
    assert primal.isfinite() and (dual is None or dual.isfinite())
    step(images(n_groups=present), *modules)
    assert all(value.isfinite().all() for value in modules[2].state_dict().values())


@pytest.mark.parametrize("name", HEADS)
def test_a_head_is_finite_under_mixed_precision_with_extreme_images(name):
    backbone, objective, head = built(name)
    batch = images()
    batch.views = [torch.cat([0 * view[:1], 1e4 * view[1:]]) for view in batch.views]
    with networks_in_bf16(True):
        primal, dual, _ = terms(batch, backbone, objective, head)
    parameters = [p for p in backbone.parameters() if p.requires_grad]
    gradients = list(torch.autograd.grad(primal, parameters, retain_graph=True))
    if dual is not None:
        gradients += torch.autograd.grad(dual, list(head.dual_parameters()))
    assert primal.isfinite() and all(g.isfinite().all() for g in gradients)


@pytest.mark.parametrize("name", HEADS)
def test_a_heads_step_reads_no_tensor_back(name):
    if not kinds.heads.get(name).capturable:
        pytest.skip("declares that its step cannot be captured")
    modules = built(name)
    with FakeTensorMode(allow_non_fake_inputs=True):  # no values: a branch on one, or .item(), is an error
        primal, _, _ = terms(images(), *modules)
        primal.backward()
        modules[2].after_step(modules[0], torch.rand(()))
