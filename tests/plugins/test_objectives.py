"""Self-supervised objectives: given values, slow references, properties, and what every objective must hold."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from reference import harness, losses
from reference.harness import CASES, build, context, encoder, given, images, reorder, step, terms
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from fairssl import kinds
from fairssl import nn as shared
from fairssl.nn import networks_in_bf16
from fairssl.types import UserError

OBJECTIVES = [name for name in kinds.objectives.where() if kinds.objectives.get(name).trains]
INPUT = CASES["inputs"]
A, B, TAU = INPUT["view_a"], INPUT["view_b"], INPUT["tau"]
SOGCLR = {"temperature": TAU, "gamma": INPUT["gamma"], "eps0": INPUT["eps0"]}


def tensor(rows: Any) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def leaves(a: Any = A, b: Any = B) -> list[Tensor]:
    return [tensor(a).requires_grad_(), tensor(b).requires_grad_()]


def noise(n: int, width: int, seed: int) -> list[Tensor]:
    gen = torch.Generator().manual_seed(seed)
    return [torch.randn(n, width, generator=gen, dtype=torch.float64).requires_grad_() for _ in range(2)]


def sogclr(n_train: int = INPUT["n"], u: Any = None, **params: Any) -> Any:
    """In float64, with a `u` in which 0 means never visited."""
    part = build("objective", "sogclr", context(n_train=n_train), **params).double()
    part.gamma.fill_(part.config.gamma)  # what float32 rounded away
    if u is not None:
        part.u.copy_(tensor(u))
        part.seen.copy_(tensor(u) > 0)
    return part


def visit(part: Any, views: list[Tensor], index: Any = INPUT["index"]) -> tuple[Tensor, Tensor, Tensor]:
    """Loss, logged value and what each image was divided by."""
    divided = []
    update = part.update
    part.update = lambda *given: divided.append(update(*given)) or divided[-1]
    try:
        out = part({"all": given(views, index)})
    finally:
        del part.update
    return out.primal["gcl_surrogate"], out.log["gcl"], divided[0]


def close(found: Any, wanted: Any, tolerance: float = 1e-6) -> None:
    torch.testing.assert_close(
        torch.as_tensor(found, dtype=torch.float64).detach(), tensor(wanted), rtol=0, atol=tolerance
    )


def test_ntxent_has_the_given_values():
    part = build("objective", "simclr", temperature=TAU)
    loss = part({"all": given(leaves())}).primal["nt_xent"]
    close(loss, CASES["ntxent_mean_over_2n"], 1e-12)
    close(2 * loss, CASES["ntxent_sum_of_two_directions"], 1e-12)
    scaled = build("objective", "simclr", temperature=TAU, loss_scale_tau=True)
    close(scaled({"all": given(leaves())}).primal["nt_xent"], CASES["ntxent_times_tau"], 1e-12)
    close(losses.nt_xent(A, B, TAU), CASES["ntxent_mean_over_2n"], 1e-12)


@pytest.mark.parametrize(("n", "tau"), [(2, 1.0), (5, 0.3), (7, 0.05)])
def test_ntxent_and_its_gradient_equal_the_loops(n, tau):
    a, b = noise(n, 3, seed=n)
    loss = shared.nt_xent([a, b], tau)
    close(loss, losses.nt_xent(a.tolist(), b.tolist(), tau), 1e-10)
    (gradient,) = torch.autograd.grad(loss, a)
    close(gradient, losses.slope(lambda rows: losses.nt_xent(rows, b.tolist(), tau), a.tolist()), 1e-6)


def test_ntxent_of_a_collapsed_batch_is_the_logarithm_of_the_number_of_other_views():
    same = torch.ones(8, 4, dtype=torch.float64, requires_grad=True)
    loss = shared.nt_xent([same, same], 0.3)
    close(loss, math.log(15), 1e-12)
    assert torch.autograd.grad(loss, same)[0].isfinite().all()


@pytest.mark.parametrize("u_in_grad", ["new", "old"])
def test_sogclr_has_the_given_values(u_in_grad):
    wanted, views = CASES[f"sogclr_{u_in_grad}"], leaves()
    part = sogclr(u=INPUT["u0"], u_in_grad=u_in_grad, **SOGCLR)
    loss, value, divided = visit(part, views)
    close(part.u, wanted["u"], 1e-12)
    close(divided, wanted["denominators"], 1e-12)
    close(loss, wanted["surrogate"], 1e-12)
    close(value, wanted["value"], 1e-12)
    close(torch.autograd.grad(loss, views[0])[0], wanted["grad_view_a"], 1e-8)
    assert part.seen.tolist() == [True, True, True, True, False, True]


def test_sogclr_with_gamma_1_has_the_given_values_and_descends_the_two_view_loss():
    wanted, views = CASES["sogclr_gamma1"], leaves()
    part = sogclr(u=INPUT["u0"], **{**SOGCLR, "gamma": 1.0})
    gradient = torch.autograd.grad(visit(part, views)[0], views[0])[0]
    close(part.u, wanted["u"], 1e-12)
    close(gradient, wanted["grad_view_a"], 1e-6)

    exact = sogclr(temperature=TAU, gamma=1.0, eps0=0.0)
    gradient = torch.autograd.grad(visit(exact, views)[0], views[0])[0]
    close(gradient, losses.slope(lambda rows: losses.compositional(rows, B, TAU), A), 1e-8)


@pytest.mark.parametrize("u_in_grad", ["new", "old"])
def test_sogclr_equals_the_loops_over_three_visits(u_in_grad):
    params = {"temperature": 0.2, "gamma": 0.7, "eps0": 1e-3}
    part = sogclr(n_train=8, u_in_grad=u_in_grad, **params)
    u, seen = [0.0] * 8, [False] * 8
    for seed, index in enumerate([[0, 3, 5], [5, 1, 0, 7], [3, 0, 6, 1]]):
        a, b = noise(len(index), 4, seed)
        loss, value, divided = visit(part, [a, b], index)
        u, denominators, wanted = losses.sogclr_step(
            a.tolist(), b.tolist(), index, u, seen, 0.2, 0.7, 1e-3, u_in_grad == "old"
        )
        seen = [was or image in index for image, was in enumerate(seen)]
        close(part.u, u, 1e-10)
        close(divided, denominators, 1e-10)
        close(value, wanted, 1e-10)

        def surrogate(rows, b=b, denominators=denominators):
            return losses.sogclr_surrogate(rows, b.tolist(), denominators, 0.2, 1e-3)

        close(loss, surrogate(a.tolist()), 1e-10)
        close(torch.autograd.grad(loss, a)[0], losses.slope(surrogate, a.tolist()), 1e-6)
    assert part.seen.tolist() == seen


def test_u_follows_the_image_and_not_its_place_in_the_batch():
    a, b = noise(5, 4, seed=0)
    order = torch.tensor([3, 0, 4, 1, 2])
    index = torch.tensor([7, 2, 9, 0, 4])
    one, other = sogclr(n_train=10), sogclr(n_train=10)
    for _ in range(2):
        loss = visit(one, [a, b], index)[0].detach()
        permuted = visit(other, [a[order], b[order]], index[order])[0]
        close(permuted, float(loss), 1e-12)
    close(one.u, other.u.tolist(), 1e-12)
    assert one.u.count_nonzero() == 5


def test_a_first_visit_takes_the_estimate_even_beside_images_already_seen():
    part = sogclr(n_train=4, gamma=0.1)
    visit(part, noise(2, 3, seed=0), [0, 1])
    a, b = noise(2, 3, seed=1)
    visit(part, [a, b], [1, 2])
    g, g_ = losses.inner_estimates(a.tolist(), b.tolist(), 0.3)
    close(part.u[2], (g[1] + g_[1]) / 2, 1e-12)  # gamma times that, where the rule is per batch


def test_sogclr_of_a_collapsed_batch_is_zero():
    same = torch.ones(6, 4, dtype=torch.float64, requires_grad=True)
    loss, value, _ = visit(sogclr(n_train=6, eps0=0.0), [same, same], range(6))
    close(value, 0.0, 1e-12)  # -1 + tau log exp(1/tau)
    assert torch.autograd.grad(loss, same)[0].isfinite().all()


def test_gamma_falls_along_a_cosine_to_its_minimum():
    part = sogclr(gamma_schedule="cosine", gamma=0.8, gamma_min=0.2, gamma_decay=0.5)
    found = []
    for progress in (0.0, 0.125, 0.25, 0.5, 0.75, 1.0):
        part.after_step(nn.Identity(), torch.tensor(progress))
        found.append(float(part.gamma))
    close(found, [0.8, 0.5 + 0.3 * math.sqrt(0.5), 0.5, 0.2, 0.2, 0.2], 1e-6)
    constant = sogclr(gamma=0.8)
    constant.after_step(nn.Identity(), torch.tensor(1.0))
    close(constant.gamma, 0.8, 1e-7)


def test_sogclr_refuses_what_it_cannot_do():
    with pytest.raises(UserError, match="at least 2"):
        visit(sogclr(), noise(1, 3, seed=0), [0])
    with pytest.raises(UserError, match=r"sogclr\.temperature.*0\.02.*got 0\.01"):
        build("objective", "sogclr", temperature=0.01)
    with pytest.raises(UserError, match="did you mean 'gamma'"):
        build("objective", "sogclr", gama=0.5)


class Fixed(nn.Module):
    """Gives the same rows whatever it is asked."""

    def __init__(self, rows: Tensor):
        super().__init__()
        self.rows = rows

    def forward(self, _: Tensor) -> Tensor:
        return self.rows


def test_byol_has_the_given_values():
    part = build("objective", "byol")
    a, b = leaves()
    part.predictor, part.target_encoder = nn.Identity(), nn.Identity()
    part.target_projector = Fixed(torch.cat([a, b]))
    loss = part({"all": given([a, b])}).primal["regression"]
    close(loss, CASES["byol"]["symmetrised_sum"], 1e-12)
    close(losses.byol_direction(A, B), CASES["byol"]["one_direction"], 1e-12)


def test_byol_compares_each_prediction_with_the_other_view():
    part = build("objective", "byol")
    (a, b), (c, d) = noise(5, 4, seed=0), noise(5, 4, seed=1)
    part.predictor, part.target_encoder = nn.Identity(), nn.Identity()
    part.target_projector = Fixed(torch.cat([c, d]))
    loss = part({"all": given([a, b])}).primal["regression"]
    wanted = losses.byol_direction(a.tolist(), d.tolist()) + losses.byol_direction(b.tolist(), c.tolist())
    close(loss, wanted, 1e-10)
    assert torch.autograd.grad(loss, [c, d], allow_unused=True) == (None, None)


def test_byol_averages_at_the_given_rates():
    ones, zeros = torch.ones_like, torch.zeros_like
    for k, rate in enumerate(CASES["byol"]["ema_tau_base_0_99"]):
        backbone = encoder().double()
        part = build("objective", "byol", context(backbone), tau_base=0.99).double()
        pairs = [(part.target_encoder, backbone), (part.target_projector, part.projector)]
        for target, online in pairs:
            target.load_state_dict({name: ones(value) for name, value in target.state_dict().items()})
            online.load_state_dict({name: zeros(value) for name, value in online.state_dict().items()})
        part.after_step(backbone, torch.tensor(k / 10, dtype=torch.float64))
        for target, _ in pairs:
            for name, value in target.state_dict().items():
                if value.dtype.is_floating_point:
                    close(value, (rate * ones(value)).tolist(), 1e-12)
                else:
                    assert value == 0, name  # counts are copied


def test_byols_target_sees_batch_statistics_and_its_running_ones_move_towards_the_online_ones():
    backbone = encoder()
    part = build("objective", "byol", context(backbone)).train()
    online, target = backbone[1], part.target_encoder[1]
    online.running_mean.fill_(3.0)
    with torch.no_grad():
        part.after_step(backbone, torch.tensor(0.0))
    close(target.running_mean, [0.01 * 3.0] * harness.D, 1e-6)

    batch = images()
    plain = terms(batch, backbone, part)[0]
    target.running_mean.fill_(100.0)
    assert torch.equal(terms(batch, backbone, part)[0], plain)

    step(batch, backbone, part)
    assert target.num_batches_tracked.dtype == torch.int64
    assert target.num_batches_tracked == online.num_batches_tracked


def test_byols_target_gets_no_gradient_and_is_no_part_of_the_representation():
    backbone = encoder()
    part = build("objective", "byol", context(backbone))
    step(images(), backbone, part)
    fixed = {"target_encoder", "target_projector"}
    assert {name.split(".")[0] for name, p in part.named_parameters() if not p.requires_grad} == fixed
    h = torch.randn(3, harness.D)
    assert part.represent(h) is h
    assert not any(p is q for p in part.parameters() for q in backbone.parameters())


@pytest.mark.parametrize("scale", [0.1, 3.0])
def test_vicreg_and_its_gradient_equal_the_loops(scale):
    part = build("objective", "vicreg")
    a, b = ((scale * view).detach().requires_grad_() for view in noise(5, 3, seed=0))
    loss = sum(part({"all": given([a, b])}).primal.values())
    close(loss, losses.vicreg(a.tolist(), b.tolist()), 1e-9)
    gradient = torch.autograd.grad(loss, a)[0]
    close(gradient, losses.slope(lambda rows: losses.vicreg(rows, b.tolist()), a.tolist()), 1e-5)


def test_vicreg_of_a_collapsed_batch_pays_for_the_lost_variance_alone():
    part = build("objective", "vicreg")
    same = torch.ones(6, 4, dtype=torch.float64, requires_grad=True)
    found = part({"all": given([same, same])}).primal
    close(found["variance"], 2 * 25 * (1 - 0.01), 1e-9)
    close(found["invariance"] + found["covariance"], 0.0, 1e-12)
    assert torch.autograd.grad(sum(found.values()), same)[0].isfinite().all()


def test_vicreg_is_a_short_file_that_needs_only_the_door_for_plugins():
    text = Path(kinds.objectives.locate("vicreg").path).read_text(encoding="utf-8")
    assert len(text.splitlines()) < 60
    ours = [line.split()[1] for line in text.splitlines() if line.startswith(("from fairssl", "import fairssl"))]
    assert set(ours) <= {"fairssl.api", "fairssl.nn"}


def test_normalize_keeps_the_direction_of_every_finite_row():
    x = torch.tensor([[3.0, 4.0], [3e-5, 4e-5], [3e30, 4e30], [0.0, 0.0], [0.0, -1e-12]])
    close(shared.normalize(x), [[0.6, 0.8], [0.6, 0.8], [0.6, 0.8], [0.0, 0.0], [0.0, 0.0]], 1e-6)
    assert shared.normalize(torch.tensor([[math.nan, 1.0]])).isnan().any()
    assert shared.normalize(x.double()).dtype == torch.float64


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_normalize_is_finite_forward_and_backward_in_half_precision(dtype):
    largest = torch.finfo(dtype).max
    x = torch.tensor([[0.0, 0.0], [largest, -largest], [1.0, 0.0]], dtype=dtype, requires_grad=True)
    out = shared.normalize(x)
    assert out.dtype == torch.float32
    close(out.norm(dim=1), [0.0, 1.0, 1.0], 1e-6)
    assert torch.autograd.grad(out.sum(), x)[0].isfinite().all()


def test_normalize_has_the_gradient_of_the_textbook_formula():
    x = torch.randn(4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    weight = torch.arange(20, dtype=torch.float64).reshape(4, 5)
    (found,) = torch.autograd.grad((weight * shared.normalize(x)).sum(), x)
    (wanted,) = torch.autograd.grad((weight * x / x.square().sum(1, keepdim=True).sqrt()).sum(), x)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


@pytest.fixture
def no_chance(monkeypatch):
    """Noise drawn in a step is 1 throughout: it comes from the run's own generator, no state of the part's."""
    monkeypatch.setattr(torch, "randn_like", torch.ones_like)


@pytest.mark.usefixtures("no_chance")
@pytest.mark.parametrize("name", OBJECTIVES)
def test_an_objective_does_not_depend_on_the_order_of_its_batch(name):
    order = torch.tensor([4, 2, 0, 5, 1, 3])
    found = []
    for batch in (images(), reorder(images(), order)):
        backbone = encoder().double()
        part = build("objective", name, context(backbone)).double()
        batch.views = [view.double() for view in batch.views]
        found.append(([step(batch, backbone, part) for _ in range(2)], part.state_dict()))
    assert found[1][0] == pytest.approx(found[0][0], abs=1e-9)
    for key, value in found[0][1].items():
        torch.testing.assert_close(found[1][1][key], value, rtol=1e-7, atol=1e-9)


@pytest.mark.usefixtures("no_chance")
@pytest.mark.parametrize("name", OBJECTIVES)
def test_an_objectives_state_dict_holds_all_that_its_next_step_depends_on(name):
    backbone = encoder()
    part = build("objective", name, context(backbone))
    step(images(seed=3), backbone, part)
    kept = harness.snapshot(backbone, part)
    wanted = [step(images(seed=s), backbone, part, progress=0.3) for s in (4, 5)]

    fresh = encoder(seed=7)
    other = build("objective", name, context(fresh))
    fresh.load_state_dict(kept[0])
    other.load_state_dict(kept[1])
    assert [step(images(seed=s), fresh, other, progress=0.3) for s in (4, 5)] == wanted
    for key, value in part.state_dict().items():
        assert torch.equal(other.state_dict()[key], value), key


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("scale", [0.0, 1e4])
def test_an_objective_is_finite_under_mixed_precision_with_extreme_images(name, scale):
    backbone = encoder()
    part = build("objective", name, context(backbone))
    batch = images()
    batch.views = [torch.cat([0 * view[:1], scale * view[1:]]) for view in batch.views]
    with networks_in_bf16(True):
        loss, _, found = terms(batch, backbone, part)
    assert all(value.dtype == torch.float32 for value in found.primal.values())
    parameters = [p for p in [*backbone.parameters(), *part.parameters()] if p.requires_grad]
    gradients = [g for g in torch.autograd.grad(loss, parameters, allow_unused=True) if g is not None]
    assert loss.isfinite() and gradients and all(g.isfinite().all() for g in gradients)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_an_objectives_step_reads_no_tensor_back(name):
    if not kinds.objectives.get(name).capturable:
        pytest.skip("declares that its step cannot be captured")
    backbone = encoder()
    part = build("objective", name, context(backbone))
    with FakeTensorMode(allow_non_fake_inputs=True):  # no values: a branch on one, or .item(), is an error
        loss, _, _ = terms(images(), backbone, part)
        loss.backward()
        part.after_step(backbone, torch.rand(()))
