"""Autoencoder, MMD, CCL alone, FSCL, LEACE and the untrained encoder: values, loops, invariances, what gradients reach."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from reference import harness, losses, representation, small
from reference.harness import CASES, build, context, encoder, given, images
from torch import Tensor, nn

from fairssl import kinds
from fairssl.nn import networks_in_bf16, nt_xent
from fairssl.spec.method import parse_method
from fairssl.types import Embeddings, UserError


def noise(n: int, width: int = 3, seed: int = 0, n_views: int = 2) -> list[Tensor]:
    gen = torch.Generator().manual_seed(seed)
    return [torch.randn(n, width, generator=gen, dtype=torch.float64).requires_grad_() for _ in range(n_views)]


def lists(views: list[Tensor]) -> list[list[list[float]]]:
    return [view.tolist() for view in views]


def fscl(
    views: list[Tensor], target: Any, group: Any, n_groups: int = 2, **params: Any
) -> tuple[Tensor, dict[str, float]]:
    part = build("objective", "fscl", context(n_groups=n_groups), **params)
    out = part({"annotated": given(views, target=target, group=group)})
    return out.primal["fscl"], {name: float(value) for name, value in out.log.items()}


CELLS = [
    ([0, 1, 0, 1, 0, 1], [0, 0, 1, 1, 0, 1], 2),
    ([0, 0, 1, 1, 0, 1], [0, 1, 0, 1, 4, 4], 5),
    ([0, 0, 1, 1, 1, 1], [0, 1, 1, 1, 1, 1], 2),  # no negative in group 0
    ([0, 1, 1, 1, 1, 1], [3, 3, 3, 3, 3, 3], 5),  # one group is there
]


@pytest.mark.parametrize(("target", "group", "n_groups"), CELLS)
@pytest.mark.parametrize("plus", [False, True])
@pytest.mark.parametrize("n_views", [1, 2])
def test_fscl_and_its_gradient_equal_the_loops(target, group, n_groups, plus, n_views):
    views = noise(6, n_views=n_views)
    loss, _ = fscl(views, target, group, n_groups, group_norm=plus, temperature=0.2)

    def reference(rows):
        return representation.fscl([rows, *lists(views[1:])], target, group, 0.2, plus, 2, n_groups)

    assert float(loss.detach()) == pytest.approx(reference(views[0].tolist()), abs=1e-9)
    lonely = [i for i in range(6) if not any(target[i] != target[j] and group[i] == group[j] for j in range(6))]
    moved = [[0.0] * 3 if i in lonely else row for i, row in enumerate(losses.slope(reference, views[0].tolist()))]
    found = torch.autograd.grad(loss, views[0])[0]
    if not lonely:
        torch.testing.assert_close(found, torch.tensor(moved, dtype=torch.float64), rtol=0, atol=1e-6)
    assert found.isfinite().all()


def test_fscl_by_hand():
    # Anchors along the axes. Class 0: e1 (group 0), e2 (group 1); class 1: e1 (group 0), e3 (group 1); tau 1.
    e = torch.eye(3, dtype=torch.float64)
    loss, _ = fscl([torch.stack([e[0], e[1], e[0], e[2]])], [0, 0, 1, 1], [0, 1, 0, 1], temperature=1.0)
    # Every positive is orthogonal to its anchor. In group 0 the one negative is e1 itself, exp(1); in group 1 exp(0).
    assert float(loss) == pytest.approx((1 + 0 + 1 + 0) / 4, abs=1e-12)


def test_fscls_positives_are_not_in_the_denominator_and_negatives_of_another_group_do_not_matter():
    target, group = [0, 0, 1, 1], [0, 1, 0, 1]
    z = torch.eye(4, dtype=torch.float64)
    moved = z.clone()
    moved[0] = torch.tensor([0.8, 0.0, 0.0, 0.6], dtype=torch.float64)  # towards the other class in the other group
    assert float(fscl([moved], target, group)[0]) == pytest.approx(float(fscl([z], target, group)[0]), abs=1e-12)
    together = z.clone()
    together[1] = z[0]
    # Two of four anchors gain 1 / tau each, which a denominator with the positives in it would limit.
    gain = float(fscl([z], target, group)[0] - fscl([together], target, group)[0])
    assert gain == pytest.approx(2 / 4 / 0.1, abs=1e-9)


def test_an_anchor_without_positives_is_left_out_and_counted():
    views = noise(4, n_views=1)
    loss, log = fscl(views, [0, 1, 1, 3], [0, 0, 0, 0])
    assert log == {"n_no_positive": 2, "n_no_negative": 0}
    assert float(loss.detach()) == pytest.approx(
        representation.fscl(lists(views), [0, 1, 1, 3], [0] * 4, 0.1), abs=1e-9
    )
    assert torch.autograd.grad(loss, views)[0].isfinite().all()

    alone, log = fscl(views, [0, 1, 2, 3], [0, 0, 0, 0])
    assert float(alone.detach()) == 0 and log["n_no_positive"] == 4
    assert not torch.autograd.grad(alone, views)[0].any()

    _, log = fscl(views, [0, 0, 1, 1], [0, 1, 1, 1], group_norm=True)
    assert log == {"n_no_positive": 2, "n_no_negative": 1}  # the two of class 0 are each alone in their cells


def test_fscl_plus_by_the_authors_code() -> None:
    """Worked out with the public code of Park et al.: each positive is divided by the count of its own cell."""
    one = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [-1.0, 0.0]], dtype=torch.float64)
    two = torch.tensor([[0.8, 0.6], [1.0, 0.0], [0.6, 0.8], [-0.8, 0.6]], dtype=torch.float64)
    loss, _ = fscl([one, two], [0, 0, 0, 1], [0, 0, 1, 0], group_norm=True, temperature=0.5)
    assert float(loss) == pytest.approx(-0.6667, abs=1e-4)


def test_an_anchor_without_negatives_is_drawn_to_its_positives_and_nowhere_else():
    a = torch.tensor([[1.0, 0.0], [0.6, 0.8]], dtype=torch.float64, requires_grad=True)
    loss, log = fscl([a], [1, 1], [0, 0], temperature=0.5)
    assert log["n_no_negative"] == 2
    assert float(loss.detach()) == pytest.approx((1 - 0.6) / 0.5, abs=1e-12)
    assert float(torch.autograd.grad(loss, a)[0][0] @ a[1].detach()) < 0  # descending turns a_0 towards a_1


def test_with_equal_cells_fscl_plus_is_fscl_but_for_a_constant():
    target, group = [0, 0, 1, 1] * 3, [0, 1, 0, 1] * 3  # m = 6 views in each of the 4 cells
    views = noise(12)
    plain, plus = (float(fscl(views, target, group, group_norm=norm)[0].detach()) for norm in (False, True))
    assert plus / plain == pytest.approx((2 * 6 - 1) / (2 * (6 - 1)), abs=1e-12)


@pytest.mark.parametrize("plus", [False, True])
def test_fscl_does_not_depend_on_the_names_of_classes_and_groups(plus):
    target, group, _ = CELLS[0]
    views = noise(6)
    one = fscl(views, target, group, group_norm=plus)[0]
    other = fscl(views, [1 - y for y in target], [1 - a for a in group], group_norm=plus)[0]
    assert float(one.detach()) == pytest.approx(float(other.detach()), abs=1e-12)


@pytest.mark.parametrize("scale", [0.0, 1e4, 1e30])
@pytest.mark.parametrize("plus", [False, True])
def test_fscl_is_finite_for_extreme_vectors_in_half_precision(scale, plus):
    views = [(scale * view.detach()).to(torch.bfloat16).float().requires_grad_() for view in noise(6)]
    loss, _ = fscl(views, *CELLS[0], group_norm=plus, temperature=0.02)
    assert loss.dtype == torch.float32 and loss.isfinite()
    assert all(g.isfinite().all() for g in torch.autograd.grad(loss, views))


def test_ccl_alone_is_the_heads_loss_on_its_own_projection_of_the_annotated_images():
    backbone = encoder()
    part = build("objective", "ccl", context(backbone)).double().eval()
    f, group = noise(5, harness.D), [0, 1, 0, 1, 4]
    batch = given(f, group=group)
    batch.project = part.project
    found = part({"annotated": batch}).primal["ccl"]
    wanted = nt_xent([part.projector(x) for x in f], 0.3, torch.tensor(group))
    assert float(found.detach()) == pytest.approx(float(wanted.detach()), abs=1e-10)
    by_loops = losses.nt_xent(*lists([part.projector(x) for x in f]), 0.3, group)
    assert float(found.detach()) == pytest.approx(by_loops, abs=1e-9)
    assert part.streams == {"annotated"} and part.sees == {"group"}


def mmd(f: list[Tensor], group: Any, n_groups: int = 2, **params: Any) -> tuple[Tensor, float]:
    out = build("head", "mmd", context(n_groups=n_groups), **params)({"annotated": given(f, group=group)})
    return out.primal["mmd2"], float(out.log["n_absent"])


def test_mmd_has_the_given_values():
    case = CASES["mmd2_biased"]
    x, y = torch.tensor(case["x"], dtype=torch.float64), torch.tensor(case["y"], dtype=torch.float64)
    group = [0] * len(x) + [1] * len(y)
    for gammas, wanted in ((case["gammas"], case["value"]), ([0.5, 1, 2], case["value_mixture_0_5_1_2"])):
        found, absent = mmd([torch.cat([x, y])], group, gammas=gammas, bandwidth="fixed")
        assert float(found) == pytest.approx(wanted, abs=1e-12) and absent == 0
    assert float(mmd([torch.cat([x, x])], group, bandwidth="fixed")[0]) == pytest.approx(case["self"], abs=1e-12)


@pytest.mark.parametrize(
    ("group", "n_groups"),
    [([0, 1, 0, 1, 1, 0], 2), ([0, 1, 2, 3, 4, 4], 5), ([0, 1, 4, 1, 1, 4], 5), ([2, 2, 2, 2, 2, 2], 3)],
)
@pytest.mark.parametrize("bandwidth", ["median", "fixed"])
def test_mmd_and_its_gradient_equal_the_loops(group, n_groups, bandwidth):
    f = noise(6)
    loss, absent = mmd(f, group, n_groups, bandwidth=bandwidth)
    rows = torch.cat(f).tolist()
    scale = representation.median_square(rows) if bandwidth == "median" else 1.0  # held constant

    def reference(moved):
        return representation.group_mmd2(moved, group + group, n_groups, [0.5, 1, 2], scale)

    assert float(loss.detach()) == pytest.approx(reference(rows), abs=1e-10)
    assert absent == n_groups - len(set(group))
    found = torch.cat(torch.autograd.grad(loss, f))
    torch.testing.assert_close(
        found, torch.tensor(losses.slope(reference, rows), dtype=torch.float64), rtol=0, atol=1e-7
    )


def test_mmd_of_a_batch_without_one_of_two_groups_is_nothing():
    f = noise(4)
    loss, absent = mmd(f, [1, 1, 1, 1])
    assert float(loss.detach()) == 0 and absent == 1
    assert not any(g.any() for g in torch.autograd.grad(loss, f))


@pytest.mark.parametrize("n_groups", [2, 5])
def test_mmd_does_not_depend_on_place_scale_or_names(n_groups):
    f, group = noise(10), [i % n_groups for i in range(10)]
    wanted = float(mmd(f, group, n_groups)[0].detach())
    moved = [1000 * x - 7 for x in f]
    assert float(mmd(moved, group, n_groups)[0].detach()) == pytest.approx(wanted, abs=1e-9)
    renamed = [n_groups - 1 - a for a in group]
    assert float(mmd(f, renamed, n_groups)[0].detach()) == pytest.approx(wanted, abs=1e-12)
    assert 0 < wanted <= 2


def test_mmd_tells_distributions_of_equal_mean_apart():
    x = torch.linspace(-1, 1, 20, dtype=torch.float64)[:, None]
    group = [0] * 20 + [1] * 20
    same = float(mmd([torch.cat([x, x])], group)[0])
    wider = float(mmd([torch.cat([x, 4 * x])], group)[0])
    assert same == pytest.approx(0, abs=1e-12) and wider > 0.05


@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e4, 1e30])
def test_mmd_is_finite_for_extreme_vectors_in_half_precision(scale):
    f = [(scale * x.detach()).to(torch.bfloat16).float().requires_grad_() for x in noise(4)]
    loss, _ = mmd(f, [0, 1, 0, 1])
    assert loss.dtype == torch.float32 and loss.isfinite()
    assert all(g.isfinite().all() for g in torch.autograd.grad(loss, f))


def vae(**params: Any) -> tuple[nn.Module, Any]:
    backbone = encoder()
    return backbone, build("objective", "vae", context(backbone), **{"latent_dim": 5, **params})


def test_the_autoencoders_loss_by_loops(monkeypatch):
    backbone, part = vae(sigma=0.3, beta=0.7)
    backbone, part = backbone.double().eval(), part.double().eval()
    monkeypatch.setattr(torch, "randn_like", lambda x: torch.full_like(x, -0.5))
    batch = images()
    batch.views = [view.double() for view in batch.views]
    encoded = harness.encode(batch, backbone, part)
    found = part({"all": encoded}).primal
    n_pixels, squares, divergences = 3 * 8 * 8, [], []
    for view, h in zip(batch.views, encoded.h, strict=True):
        mu, raw = part.mu(h), part.log_variance(h)
        s = 10 * torch.tanh(raw / 10)
        decoded = part.decoder(mu - 0.5 * torch.exp(s / 2))
        squares += (view - decoded).square().flatten(1).sum(1).tolist()
        divergences += [representation.divergence(m, v) for m, v in zip(mu.tolist(), s.tolist(), strict=True)]
    mean = sum(squares) / len(squares)
    assert float(found["reconstruction"].detach()) == pytest.approx(mean / (2 * 0.3**2) / n_pixels, abs=1e-10)
    mean = sum(divergences) / len(divergences)
    assert float(found["divergence"].detach()) == pytest.approx(0.7 * mean / n_pixels, abs=1e-12)


def test_a_code_that_is_the_prior_has_no_divergence_and_one_that_is_not_has_it_by_hand():
    _, part = vae(beta=1.0)
    for module in (part.mu, part.log_variance):
        nn.init.zeros_(module.weight)
        nn.init.zeros_(module.bias)
    batch = images()
    batch.h = [torch.zeros(6, harness.D)] * 2
    batch.f = [part.represent(h) for h in batch.h]
    assert float(part({"all": batch}).primal["divergence"].detach()) == 0
    nn.init.constant_(part.mu.bias, 2.0)  # mu^2 / 2 = 2 in each of 5 entries
    batch.f = [part.represent(h) for h in batch.h]
    assert float(part({"all": batch}).primal["divergence"].detach()) == pytest.approx(5 * 2 / 192, abs=1e-6)


@pytest.mark.parametrize("value", [100.0, -100.0, 1e30, -1e30, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_any_log_variance_gives_a_finite_loss_and_is_counted(value, dtype):
    _, part = vae()
    nn.init.zeros_(part.log_variance.weight)
    part.log_variance.bias.data[:3] = value
    part.log_variance.bias.data[3:] = 1.0
    batch = images()
    batch.h = [torch.randn(6, harness.D, generator=torch.Generator().manual_seed(0)) for _ in range(2)]
    batch.f = [part.represent(h) for h in batch.h]
    with networks_in_bf16(dtype is torch.bfloat16):
        out = part({"all": batch})
    loss = sum(out.primal.values())
    assert loss.isfinite() and float(out.log["n_bounded"]) == 2 * 6 * 3
    gradients = torch.autograd.grad(loss, list(part.parameters()))
    assert all(g.isfinite().all() for g in gradients)


@pytest.mark.parametrize("size", [16, 24, 32, 50, 64, 128])
@pytest.mark.parametrize("width", [128, 512])
def test_the_decoder_draws_every_size(size, width):
    ctx = context(feature_dim=width)
    part = build("objective", "vae", type(ctx)(**{**vars(ctx), "image_shape": (3, size, size)}))
    with torch.no_grad():
        assert part.decoder.eval()(torch.zeros(1, 128)).shape == (1, 3, size, size)
    assert part.feature_dim == 128 and part.represent(torch.zeros(2, width)).shape == (2, 128)
    channels = [m.out_channels for m in part.decoder.modules() if isinstance(m, nn.Conv2d)]
    n_stages = min(5, int(math.log2(size)))
    assert channels == [*[width // 2, width // 4, width // 8, width // 8, width // 8][:n_stages], 3]


def test_the_autoencoder_learns_to_draw_what_it_saw():
    backbone, part = vae(sigma=0.1)
    gen = torch.Generator().manual_seed(0)
    shades = torch.rand(6, 3, 1, 1, generator=gen) * 2 - 1
    batch = images()
    batch.views = [shades.expand(6, 3, 8, 8).clone()]
    optimizer = torch.optim.Adam([*backbone.parameters(), *part.parameters()], lr=1e-2)
    torch.manual_seed(0)
    for _ in range(150):
        loss, _, _ = harness.terms(batch, backbone, part)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    _, _, out = harness.terms(batch, backbone, part)
    error = float(out.primal["reconstruction"].detach()) * 2 * 0.1**2
    assert error < 0.1 * float(shades.var())
    found = harness.encode(batch, backbone, part).f[0]
    assert float(torch.pdist(found.detach()).min()) > 0.1  # the codes tell the images apart


def reached(loss: Tensor, modules: dict[str, nn.Module]) -> set[str]:
    names = {}
    for prefix, module in modules.items():
        for child, part in module.named_children() if prefix == "objective" else [("", module)]:
            names[f"{prefix}.{child}".rstrip(".")] = list(part.parameters())
    found = set()
    for name, parameters in names.items():
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True, retain_graph=True)
        if any(g is not None and g.any() for g in gradients):
            found.add(name)
    return found


def test_vfae_trains_the_decoder_by_the_images_alone_and_mmd_moves_mu_alone():
    backbone, part = vae()
    head = build("head", "mmd", context(backbone, feature_dim=5))
    encoded = harness.encode(images(), backbone, part)
    own, extra = part({"all": encoded}), head({"annotated": encoded})
    modules = {"encoder": backbone, "objective": part}
    assert reached(own.primal["reconstruction"], modules) == {
        *("encoder", "objective.mu", "objective.log_variance", "objective.decoder"),
    }
    assert reached(own.primal["divergence"], modules) == {"encoder", "objective.mu", "objective.log_variance"}
    assert reached(extra.primal["mmd2"], modules) == {"encoder", "objective.mu"}
    assert not list(head.parameters()) and not extra.dual


@pytest.mark.parametrize("name", ["ccl", "fscl"])
def test_contrast_moves_encoder_and_projector_by_the_annotated_images_alone(name):
    backbone = encoder()
    part = build("objective", name, context(backbone))
    encoded = harness.encode(images(), backbone, part)
    (loss,) = part({"annotated": encoded}).primal.values()
    assert reached(loss, {"encoder": backbone, "objective": part}) == {"encoder", "objective.projector"}


def features(n: int = 400, width: int = 6, n_groups: int = 2, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Correlated features whose means, and only they, depend on the group."""
    rng = np.random.default_rng(seed)
    group = rng.integers(0, n_groups, n)
    x = (
        rng.standard_normal((n, width)) @ rng.standard_normal((width, width))
        + 3 * rng.standard_normal((n_groups, width))[group]
    )
    return torch.from_numpy(x).float(), torch.from_numpy(group)


def erase(x: Tensor, group: Tensor, **params: Any) -> Any:
    head = build("head", "leace", context(feature_dim=x.shape[1]), **params)
    return head.fit(Embeddings(x, None, group))


def gap(x: Tensor, group: Tensor) -> float:
    """Largest distance between two groups' means in any feature, in that feature's standard deviations."""
    means = torch.stack([x[group == code].double().mean(0) for code in torch.unique(group)])
    return float(((means.amax(0) - means.amin(0)) / x.double().std(0).clamp_min(1e-12)).max())


@pytest.mark.parametrize("n_groups", [2, 5])
def test_leace_is_the_closed_form_without_square_roots(n_groups):
    x, group = features(n_groups=n_groups)
    matrix, mean = representation.leace(x.double().numpy(), group.numpy())
    wanted = mean + (x.double().numpy() - mean) @ matrix.T
    found = erase(x, group)(x)
    assert found.dtype == torch.float32 and found.shape == x.shape
    np.testing.assert_allclose(found.numpy(), wanted, atol=1e-4)
    assert np.linalg.matrix_rank(np.eye(6) - matrix, tol=1e-8) == n_groups - 1


@pytest.mark.parametrize("n_groups", [2, 5])
def test_after_leace_the_groups_means_coincide_and_a_linear_probe_is_at_chance(n_groups):
    from sklearn.linear_model import LogisticRegression

    x, group = features(n_groups=n_groups)
    assert gap(x, group) > 1

    def accuracy(f):
        f = ((f - f.mean(0)) / f.std(0)).numpy()
        return LogisticRegression(C=1e4, max_iter=2000).fit(f, group.numpy()).score(f, group.numpy())

    erased = erase(x, group)(x)
    majority = float(torch.bincount(group).max() / len(group))
    assert gap(erased, group) < 1e-5
    assert accuracy(x) > majority + 0.2
    assert accuracy(erased) == pytest.approx(majority, abs=1e-6)


def test_leace_moves_the_features_least_of_all_that_erase():
    x, group = features()
    found = erase(x, group)(x).double()
    moved = float((found - x).square().sum())
    z = group.double() - group.double().mean()
    covariance = (x.double() - x.double().mean(0)).T @ z
    rng = torch.Generator().manual_seed(0)
    for _ in range(20):
        change = 0.1 * torch.randn(6, 6, generator=rng, dtype=torch.float64)
        change -= torch.outer(change @ covariance, covariance) / (covariance @ covariance)  # erases just as well
        other = found + (x.double() - x.double().mean(0)) @ change.T
        assert gap(other, group) < 1e-5 and float((other - x).square().sum()) > moved
    # As the norm is free, so is the unit of each feature.
    scale = torch.tensor([1.0, 2.0, 0.5, 100.0, 0.01, 3.0])
    torch.testing.assert_close(erase(x * scale, group)(x * scale) / scale, found.float(), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("shrinkage", [0.0, 0.3])
@pytest.mark.parametrize(("n", "width"), [(12, 40), (30, 30), (200, 20)])
def test_leace_erases_with_fewer_images_than_features_and_with_dependent_features(n, width, shrinkage):
    x, group = features(n + 50, width)
    x[:, 1] = 2 * x[:, 0]
    x[:, 2] = 5.0  # says nothing
    x[:, 3] = 1e-4 * group + 1e-4 * x[:, 0]  # hardly varies, and tells the group
    (x, fresh), group = x.split([n, 50]), group[:n]
    transform = erase(x, group, shrinkage=shrinkage)
    erased = transform(x)
    assert gap(erased, group) < 1e-3 and erased.isfinite().all()
    torch.testing.assert_close(erased[:, 2], x[:, 2])
    assert float(transform(fresh).abs().max()) < 10 * float(fresh.abs().max())
    torch.testing.assert_close(transform(erased), erased, rtol=1e-3, atol=1e-3)  # nothing is left to erase


def test_leace_learns_from_the_annotated_images_alone():
    x, group = features()
    known = torch.where(torch.arange(400) < 100, group, -1)
    transform = erase(x, known)
    other = x.clone()
    other[100:] += 7
    torch.testing.assert_close(erase(other, known)(x), transform(x), rtol=0, atol=0)
    assert gap(transform(x)[:100], group[:100]) < 1e-5
    assert gap(transform(x)[100:], group[100:]) < gap(x[100:], group[100:]) / 4  # as far as 100 images tell
    np.testing.assert_allclose(erase(x[:100], group[:100])(x).numpy(), transform(x).numpy(), rtol=0, atol=1e-6)


def test_leace_does_not_depend_on_names_and_takes_a_group_that_is_missing():
    x, group = features(n_groups=5)
    for renamed in (4 - group, 10 * group):
        torch.testing.assert_close(erase(x, renamed)(x), erase(x, group)(x), rtol=0, atol=1e-4)
    three = group < 3
    assert gap(erase(x[three], group[three])(x[three]), group[three]) < 1e-5


def test_leace_with_equal_means_leaves_everything_as_it_is():
    x, _ = features(n=50)
    both, group = torch.cat([x, x]), torch.arange(100) // 50
    assert torch.equal(erase(both, group)(both), both)


def test_leace_refuses_what_it_cannot_do():
    x, group = features()
    with pytest.raises(UserError, match="leace has 1 group"):
        erase(x, torch.zeros_like(group))
    with pytest.raises(UserError, match=r"leace\.weight: leace erases all or nothing.*got '0\.5'|got 0\.5"):
        build("head", "leace", weight=0.5)
    head = build("head", "leace")
    assert not head.streams and head.sees == {"group"} and not head.state_dict()


def values(spec: Any, trainer: Any) -> tuple[Any, list[float]]:
    found = small.judged(spec, trainer)
    return found.test, found.outcome.score.tolist()


def test_cells_that_share_a_pretraining_keep_their_own_heads_and_annotated_images():
    specs = [small.run_of(m).spec for m in ("simclr", "simclr+leace")]
    specs.append(small.run_of("simclr+leace", annotated=0.8).spec)
    specs.append(small.run_of("simclr+leace", sets=("leace.shrinkage=0.5",)).spec)
    assert len({spec.pretrain_key for spec in specs}) == 1
    trainer = small.trainer(specs[1])
    trainer.run()
    found = []
    for spec in specs:
        own = small.trainer(spec)
        own.model.load(trainer.model.tensors())
        found.append(values(spec, trainer))
        assert found[-1] == values(spec, own)
    assert all(a != b for i, a in enumerate(found) for b in found[:i])


def test_the_untrained_encoder_takes_no_step_and_is_scored():
    spec = small.run_of("random").spec
    trainer = small.trainer(spec)
    before = harness.snapshot(trainer.model.encoder)[0]
    trainer.run()
    assert trainer.n_steps == 0 and trainer.history.rows == []
    assert all(torch.equal(value, before[name]) for name, value in trainer.model.encoder.state_dict().items())
    assert spec.method.target == spec.method.group == "none"
    outcome = small.judged(spec, trainer).outcome
    assert len(set(outcome.score)) > 10


def test_every_method_trains_and_gives_scores_of_its_own():
    found = set()
    for name in ("random", "random+leace", "ccl", "fscl", "fscl+", "vae", "vfae"):
        spec = small.run_of(name).spec
        trainer = small.trainer(spec)
        trainer.run()
        assert len(trainer.history.rows) == (0 if name.startswith("random") else 2)
        assert all(math.isfinite(value) for row in trainer.history.rows for value in row.values())
        assert not any(row.get("vae.n_bounded", 0) for row in trainer.history.rows)
        found.add(tuple(small.judged(spec, trainer).outcome.score))
    assert len(found) == 7


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("vfae", (False, False, "none", "annotated", False, False)),  # the row of Louizos et al., unsupervised
        ("ccl", (False, True, "none", "annotated", False, False)),
        ("fscl", (False, True, "annotated", "annotated", False, False)),
        ("fscl_plus", (False, True, "annotated", "annotated", False, False)),
        ("random", (False, False, "none", "none", False, False)),
    ],
)
def test_the_columns_of_the_papers_first_table(name, wanted):
    m = kinds.methods.get(name)
    assert (m.adversarial, m.contrastive, m.target, m.group, m.generator, m.theory) == wanted


def test_what_the_methods_are_made_of():
    assert dict(parse_method("fscl+").params) == {"group_norm": True} and parse_method("fscl+").objective == "fscl"
    assert list(parse_method("vfae").heads) == ["mmd"] and parse_method("vfae").objective == "vae"
    assert list(parse_method("simclr+leace").heads) == ["leace"]
    assert not kinds.objectives.get("random").trains
