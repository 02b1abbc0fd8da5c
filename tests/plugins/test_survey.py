"""Parts of the survey's systems and of those after it: against plain loops, values by hand, and what must not change them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from reference import harness, small
from reference.harness import build, context, given
from torch import Tensor, nn

from fairssl.nn import WorstGroups, another_group, contrast_within_groups, gaussian_kernel
from fairssl.train.step import visible_to
from fairssl.types import Batch


def noise(n: int, width: int, seed: int, n_views: int = 2) -> list[Tensor]:
    gen = torch.Generator().manual_seed(seed)
    return [torch.randn(n, width, generator=gen, dtype=torch.float64) for _ in range(n_views)]


def dot(a: list[float], b: list[float]) -> float:
    """The cosine of two vectors."""
    return sum(x * y for x, y in zip(a, b, strict=True)) / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


def codes(n: int, k: int, seed: int) -> Tensor:
    return torch.randint(0, k, (n,), generator=torch.Generator().manual_seed(seed))


def eps_sup(rows: list[list[float]], target: list[int], tau: float, epsilon: float) -> float:
    total, counted = 0.0, 0
    for i in range(len(rows)):
        s = [dot(rows[i], row) / tau for row in rows]
        positives = [p for p in range(len(rows)) if p != i and target[p] == target[i]]
        negatives = sum(math.exp(s[n]) for n in range(len(rows)) if target[n] != target[i])
        if positives:
            counted += 1
            total += sum(math.log(math.exp(s[p] - epsilon) + negatives) - s[p] for p in positives) / len(positives)
    return total / max(1, counted)


@pytest.mark.parametrize("target", [[0, 1, 1, 0, 1], [1, 1, 1, 1, 1], [0, 1, 1, 1, 1]])
def test_supervised_contrast_with_a_margin_equals_the_loops(target: list[int]) -> None:
    views = noise(5, 3, 0)
    part = build("objective", "eps_sup_infonce", temperature=0.5, epsilon=0.3)
    terms = part({"annotated": given(views, target=target)}).primal
    wanted = eps_sup(torch.cat(views).tolist(), target * 2, 0.5, 0.3)
    assert float(terms["eps_sup_infonce"]) == pytest.approx(wanted, rel=1e-6)


def fair_kl(rows: list[list[float]], image: list[int], target: list[int], group: list[int]) -> tuple[float, float]:
    def distances(same_class: bool, same_group: bool) -> list[float]:
        return [
            1 - dot(rows[i], rows[j])
            for i in range(len(rows))
            for j in range(len(rows))
            if image[i] != image[j] and (target[i] == target[j]) == same_class and (group[i] == group[j]) == same_group
        ]

    def divergence(a: list[float], b: list[float]) -> float:
        if min(len(a), len(b)) < 2:
            return 0.0
        (m, v), (n, w) = ((sum(x) / len(x), sum((y - sum(x) / len(x)) ** 2 for y in x) / len(x)) for x in (a, b))
        v, w = max(v, 1e-4), max(w, 1e-4)
        return (v / w + (m - n) ** 2 / w - math.log(v / w) - 1) / 2

    return tuple(divergence(distances(c, True), distances(c, False)) for c in (True, False))  # type: ignore[return-value]


@pytest.mark.parametrize("n_groups", [2, 5])
def test_fair_kl_equals_the_loops(n_groups: int) -> None:
    views, target, group = noise(8, 3, 1), codes(8, 2, 2), codes(8, n_groups, 3)
    terms = build("head", "fair_kl")({"annotated": given(views, target=target, group=group)}).primal
    wanted = fair_kl(torch.cat(views).tolist(), list(range(8)) * 2, target.tolist() * 2, group.tolist() * 2)
    assert [float(terms[name]) for name in ("positives", "negatives")] == pytest.approx(wanted, rel=1e-6)


def test_fair_kl_of_a_batch_with_one_group_is_zero_and_says_so() -> None:
    out = build("head", "fair_kl")({"annotated": given(noise(6, 3, 1), target=codes(6, 2, 2), group=[1] * 6)})
    assert float(sum(out.primal.values())) == 0 and float(out.log["empty_kinds"]) == 2


@pytest.mark.parametrize("n_groups", [2, 5])
def test_hsic_equals_the_trace_of_the_centred_kernels(n_groups: int) -> None:
    (f,), group = noise(9, 4, 0, 1), codes(9, n_groups, 1)
    head = build("head", "hsic", context(n_groups=n_groups), bandwidth="fixed", gammas=(0.5, 2.0))
    found = float(head({"annotated": given([f], group=group)}).primal["hsic"])
    k = torch.tensor(
        [[sum(math.exp(-g * float((a - b).square().sum())) for g in (0.5, 2.0)) / 2 for b in f] for a in f],
        dtype=torch.float64,
    )
    same = (group[:, None] == group[None, :]).double()
    h = torch.eye(9, dtype=torch.float64) - 1 / 9
    assert found == pytest.approx(float(torch.trace(k @ h @ same @ h)) / 81, rel=1e-9)


def test_hsic_of_two_equal_groups_is_an_eighth_of_mmd() -> None:
    (f,), group = noise(10, 4, 2, 1), torch.arange(10) % 2
    hsic = float(build("head", "hsic", bandwidth="fixed")({"annotated": given([f], group=group)}).primal["hsic"])
    k = gaussian_kernel(f, (0.5, 1.0, 2.0), median=False)
    a, b = group == 0, group == 1
    mmd = k[a][:, a].mean() + k[b][:, b].mean() - 2 * k[a][:, b].mean()
    assert hsic == pytest.approx(float(mmd) / 8, rel=1e-9)


def test_hsic_is_zero_where_groups_have_the_same_features_or_there_is_one() -> None:
    (f,) = noise(5, 3, 3, 1)
    head = build("head", "hsic", context(n_groups=5))
    twice = given([torch.cat([f, f])], group=[0] * 5 + [3] * 5)
    assert float(head({"annotated": twice}).primal["hsic"]) == pytest.approx(0, abs=1e-12)
    assert float(head({"annotated": given([f], group=[4] * 5)}).primal["hsic"]) == pytest.approx(0, abs=1e-12)


def test_group_dro_by_hand() -> None:
    worst = WorstGroups(3)
    loss, group = torch.tensor([1.0, 3.0, 5.0]), torch.tensor([0, 0, 2])
    for _ in range(2):
        value, log = worst(loss, group, rate=0.5)
    # q after two batches: weights exp(2 * 0.5 * (2, 0, 5)).
    powers = [math.exp(2.0), 1.0, math.exp(5.0)]
    q = [p / sum(powers) for p in powers]
    assert worst.q.tolist() == pytest.approx(q)
    assert float(value) == pytest.approx(q[0] * 2 + q[2] * 5)
    assert float(log["empty_groups"]) == 1 and float(log["largest_weight"]) == pytest.approx(q[2])


def test_group_dro_as_objective_and_as_head_takes_cells_of_target_and_group() -> None:
    logit, target, group = torch.tensor([2.0, -1.0, 0.5, 0.0]), torch.tensor([1, 1, 0, 0]), torch.tensor([0, 1, 0, 4])
    loss = [math.log1p(math.exp(-2)), math.log1p(math.exp(1)), math.log1p(math.exp(0.5)), math.log(2)]
    for kind in ("objective", "head"):
        part = build(kind, "group_dro", context(n_groups=5), rate=1.0)
        out = part({"annotated": given([logit], target=target, group=group)})
        powers = [math.exp(x) for x in loss] + [1.0] * 6
        assert float(out.primal["group_dro"].detach()) == pytest.approx(
            sum(p * x for p, x in zip(powers, loss, strict=False)) / sum(powers), rel=1e-5
        )


def test_lff_weighs_what_the_biased_network_fails_at() -> None:
    part = build("objective", "lff", momentum=0.5)
    batch = given([torch.zeros(3, 16)], index=[4, 7, 9], target=[0, 0, 1])
    first = part.weights(batch, torch.tensor([2.0, 1.0, 3.0]), torch.tensor([1.0, 4.0, 3.0]))
    # Divided by the class's largest: B (1, .5, 1), own (.25, 1, 1).
    assert first.tolist() == pytest.approx([1 / 1.25, 0.5 / 1.5, 0.5])
    again = part.weights(batch, torch.tensor([0.0, 3.0, 1.0]), torch.tensor([3.0, 0.0, 3.0]))
    # Running means: B (1, 2 | 2), own (2, 2 | 3).
    assert again.tolist() == pytest.approx([0.5 / 1.5, 0.5, 0.5])


@pytest.mark.parametrize("q", [0.5, 1.0])
def test_lffs_generalised_cross_entropy_is_one_minus_a_power_of_the_probability(q: float) -> None:
    trainer = small.trainer(small.run_of("lff", sets=(f"lff.q={q}",)).spec)
    part = trainer.model.objective
    batch = trainer.step.encode(trainer.step.draw({n: s.steps(0, 1)[0] for n, s in trainer.streams.items()}))["all"]
    seen = visible_to(batch, part)
    found = float(part({"all": seen}).primal["generalised"].detach())
    with torch.no_grad():
        logit = part.biased_classifier(part.biased_encoder(seen.flat_views()))
    p = torch.sigmoid(torch.where(seen.target_of_views() == 1, logit, -logit)).tolist()
    assert found == pytest.approx(sum((1 - x**q) / q for x in p) / len(p), rel=1e-4)


def within_groups(views: list[list[list[float]]], shown: list[list[int]], tau: float) -> float:
    places = [(v, i) for v in range(len(views)) for i in range(len(views[0]))]
    total, count = 0.0, 0
    for v, i in places:
        negatives = [
            math.exp(dot(views[v][i], views[w][j]) / tau) for w, j in places if j != i and shown[w][j] == shown[v][i]
        ]
        for w in range(len(views)):
            if w != v:
                own = math.exp(dot(views[v][i], views[w][i]) / tau)
                total -= math.log(own / (own + sum(negatives)))
                count += 1
    return total / count


@pytest.mark.parametrize("n_groups", [2, 5])
def test_contrast_within_groups_equals_the_loops(n_groups: int) -> None:
    views = noise(5, 3, 0, 3)
    shown = [codes(5, n_groups, 1), codes(5, n_groups, 1), codes(5, n_groups, 2)]
    wanted = within_groups([v.tolist() for v in views], [s.tolist() for s in shown], 0.4)
    assert float(contrast_within_groups(views, shown, 0.4)) == pytest.approx(wanted, rel=1e-9)


def test_a_view_alone_in_its_group_has_no_loss() -> None:
    views, shown = noise(3, 3, 0), torch.arange(3)
    assert float(contrast_within_groups(views, [shown, shown], 0.3)) == pytest.approx(0, abs=1e-9)


def test_another_group_is_another_and_all_are_met() -> None:
    index = torch.arange(40)
    for k in (2, 5):
        group = index // 8 % k
        other = another_group(group, index, k)
        assert (other != group).all() and ((other >= 0) & (other < k)).all()
        assert {(int(a), int(b)) for a, b in zip(group, other, strict=True)} == {
            (a, b) for a in range(k) for b in range(k) if a != b
        }
        assert torch.equal(other, another_group(group, index, k))


@pytest.mark.parametrize("method", ["fair_cl", "dual_fair"])
def test_their_networks_are_trained_before_the_first_step_and_still_after_it(method: str) -> None:
    trainer = small.trainer(small.run_of(method, epochs=1).spec)
    part = trainer.model.objective
    network = part.editor if method == "fair_cl" else part.generator
    drawn = {name: value.clone() for name, value in network.state_dict().items()}
    part.prepare(trainer.data, trainer.step.gen)
    prepared = {name: value.clone() for name, value in network.state_dict().items()}
    assert any(not torch.equal(drawn[name], prepared[name]) for name in drawn)
    trainer.prepared = True
    trainer.run()
    assert all(torch.equal(prepared[name], value) for name, value in network.state_dict().items())


def test_fair_cl_keeps_the_groups_that_are_known_and_guesses_the_others() -> None:
    trainer = small.trainer(small.run_of("fair_cl", epochs=1).spec)
    part, data = trainer.model.objective, trainer.data
    part.prepare(data, trainer.step.gen)
    known = data.group >= 0
    assert 0 < int(known.sum()) < len(known)
    assert torch.equal(part.group_of[known], data.group[known])
    assert ((part.group_of >= 0) & (part.group_of < 2)).all()


def test_moyersdivergence_of_pairs_equals_the_loops() -> None:
    module = __import__("fairssl_plugins.objectives.moyer", fromlist=["divergence_of_pairs"])
    mu, s = noise(4, 3, 5)
    total = 0.0
    for i in range(4):
        for j in range(4):
            for k in range(3):
                a, b = float(s[i, k]), float(s[j, k])
                total += (math.exp(a - b) + float(mu[i, k] - mu[j, k]) ** 2 / math.exp(b) - a + b - 1) / 2
    assert float(module.divergence_of_pairs(mu, s)) == pytest.approx(total / 16, rel=1e-9)
    same = torch.ones(3, 2)
    assert float(module.divergence_of_pairs(same, same)) == pytest.approx(0, abs=1e-7)


def test_chai_wangs_weights_are_the_agreement_of_gradients_at_the_last_layer() -> None:
    """Each image's gradient by itself, as the authors' code takes them, against one derivative for all of them."""
    sets = ("chai_wang.top_share=0.5", "chai_wang.temperature=0.4")
    trainer = small.trainer(small.run_of("chai_wang", sets=sets).spec)
    index = {name: stream.steps(0, 1)[0] for name, stream in trainer.streams.items()}
    batches = trainer.step.encode(trainer.step.draw(index))
    part: Any = trainer.model.objective
    shown = {name: visible_to(batch, part) for name, batch in batches.items()}
    out = part(shown)

    from fairssl.nn import nt_xent_of_views

    first, second = nt_xent_of_views(shown["all"].z, 0.4).chunk(2)
    contrast = (first + second) / 2
    last = [part.last.weight, part.last.bias]
    judged = shown["annotated"]
    logit, target = part.classifier(judged.flat_f()), judged.target_of_views()
    loss = torch.nn.functional.binary_cross_entropy_with_logits(logit, target.to(logit.dtype), reduction="none")
    upper = torch.autograd.grad(loss.topk(math.ceil(len(loss) / 2)).values.mean(), last, retain_graph=True)
    agreement = []
    for one in contrast:
        mine = torch.autograd.grad(one, last, retain_graph=True)
        agreement.append(sum(float((a * b).sum()) for a, b in zip(mine, upper, strict=True)))
    helpful = [max(a, 0.0) for a in agreement]
    n = len(helpful)
    wanted = sum(n * h / sum(helpful) * float(c.detach()) for h, c in zip(helpful, contrast, strict=True)) / n
    assert float(out.primal["weighted_nt_xent"].detach()) == pytest.approx(wanted, rel=2e-3)
    assert float(out.log["share_of_images"]) == pytest.approx(sum(h > 0 for h in helpful) / n)


def test_elazars_discriminators_differ_and_their_losses_are_summed() -> None:
    trainer = small.trainer(small.run_of("elazar").spec)
    part = trainer.model.parts["grl"]
    first = [part.discriminator, *part.others]
    assert len(first) == 3 and not torch.equal(next(first[0].parameters()), next(first[1].parameters()))
    batch = visible_to(
        trainer.step.encode(trainer.step.draw({n: s.steps(0, 1)[0] for n, s in trainer.streams.items()}))["annotated"],
        part,
    )
    x, group = part.seen(batch), batch.group_of_views()
    wanted = sum(float(-one(x).gather(1, group[:, None]).mean().detach()) for one in first)
    assert float(part({"annotated": batch}).primal["cross_entropy"].detach()) == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("alfr", "ce+adversary+reconstruction"),
        ("vfae_semi", "vae+classifier+mmd"),
        ("moyer_supervised", "moyer+classifier"),
        ("resample", "ce"),
        ("elazar", "ce+grl"),
        ("fair_kl", "eps_sup_infonce+fair_kl"),
    ],
)
def test_what_the_surveys_systems_are_made_of(name: str, parts: str) -> None:
    spec = small.run_of(name).spec
    assert "+".join([spec.method.objective.name, *(head.name for head in spec.method.heads)]) == parts
    assert spec.method.target == spec.method.group == "annotated"


def test_chai_wang_is_told_targets_of_annotated_images_alone_and_no_group() -> None:
    trainer = small.trainer(small.run_of("chai_wang").spec)
    drawn = trainer.step.draw({name: stream.steps(0, 1)[0] for name, stream in trainer.streams.items()})
    part: Any = trainer.model.objective
    shown = {name: visible_to(batch, part) for name, batch in drawn.items()}
    assert shown["annotated"].target is not None and shown["all"].target is None
    assert all(batch.group is None for batch in shown.values())


def test_reconstruction_is_the_mean_square_by_loops_0_for_what_is_drawn_right_and_blind_to_order() -> None:
    backbone = harness.encoder()
    part = build("head", "reconstruction", context(backbone)).double().eval()
    backbone = backbone.double().eval()
    objective = build("objective", "simclr", context(backbone)).double().eval()
    batch = harness.images()
    batch.views = [view.double() for view in batch.views]

    def error(given: Batch) -> float:
        return float(part({"all": harness.encode(given, backbone, objective)}).primal["squared_error"].detach())

    squares = []
    for view in batch.views:
        drawn = part.decoder(backbone(view).detach())
        squares += [(a - b) ** 2 for a, b in zip(view.flatten().tolist(), drawn.flatten().tolist(), strict=True)]
    assert error(batch) == pytest.approx(sum(squares) / len(squares), rel=1e-9)
    assert error(harness.reorder(batch, torch.tensor([3, 0, 5, 1, 4, 2]))) == pytest.approx(error(batch), rel=1e-9)
    nn.init.zeros_(part.decoder.stages[-1].weight)
    nn.init.constant_(part.decoder.stages[-1].bias, 0.25)  # an image of one gray, whatever the representation
    assert error(replace(batch, views=[torch.full_like(view, 0.25) for view in batch.views])) == 0
    assert error(replace(batch, views=[torch.full_like(view, 2.25) for view in batch.views])) == pytest.approx(4)


def test_the_target_classifier_is_the_cross_entropy_by_hand_and_moves_the_encoder() -> None:
    """f = (1, 2) and (-1, 0), weights (1, -1), bias .5: logits -.5 and -.5; y = 1 and 0."""
    part = build("head", "classifier", context(feature_dim=2)).double()
    with torch.no_grad():
        part.classifier.weight.copy_(torch.tensor([[1.0, -1.0]]))
        part.classifier.bias.fill_(0.5)
    f = torch.tensor([[1.0, 2.0], [-1.0, 0.0]], dtype=torch.float64, requires_grad=True)
    out = part({"annotated": given([f, f], target=[1, 0])})
    p = 1 / (1 + math.exp(0.5))
    assert float(out.primal["cross_entropy"].detach()) == pytest.approx(-(math.log(p) + math.log(1 - p)) / 2, rel=1e-6)
    assert float(out.log["accuracy"]) == 0.5 and not out.dual
    (gradient,) = torch.autograd.grad(out.primal["cross_entropy"], f)
    by_hand = [[(p - 1) / 2, (1 - p) / 2], [p / 2, -p / 2]]  # (p - y) w / n
    assert [x for row in gradient.tolist() for x in row] == pytest.approx([x for row in by_hand for x in row], rel=1e-6)
    both = part({"annotated": given([f.flip(0)] * 2, target=[0, 1])}).primal["cross_entropy"]
    assert float(both.detach()) == pytest.approx(float(out.primal["cross_entropy"].detach()), rel=1e-12)
