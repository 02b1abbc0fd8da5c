"""The supervised methods: given values, slow references, properties, gradients, and RandAugment against torchvision."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torchvision.transforms.functional as reference_ops
from reference import losses, small, supervised
from reference.harness import CASES, D, build, context, encode, encoder, given, images, terms
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torchvision.transforms import InterpolationMode

from fairssl import kinds
from fairssl.data.augment import augment, random_numbers
from fairssl.data.randaugment import RAND_OPS, rand_augment, rand_op
from fairssl.data.sampling import balanced
from fairssl.nn import GradientGuard, group_gap
from fairssl.spec.config import ProbeConfig, TrainConfig
from fairssl.spec.method import method_spec, parse_method
from fairssl.train.trainer import Trainer
from fairssl.types import Batch, UserError

GIVEN = CASES["regularisers"]
METHODS = ("ce", "ce_eod", "ce_dpr", "ce_eql", "ml_afl", "max_ent", "erm", "dfr", "grl")
PENALTIES = ("eod", "dpr", "eql")
DISCRIMINATORS = ("adversary", "max_entropy", "grl")


def logits(p: Any) -> Tensor:
    return torch.logit(torch.tensor(p, dtype=torch.float64)).requires_grad_()


def labelled(z: list[Tensor], target: Any, group: Any) -> Batch:
    batch = given(z, group=group)
    batch.target = torch.as_tensor(target)
    return batch


def penalty(name: str, z: Tensor, target: Any, group: Any, n_groups: int = 2, **params: Any) -> tuple[Tensor, int]:
    """Value and how many cells were empty, of logits (B,)."""
    head = build("head", name, context(n_groups=n_groups), **params)
    found = head({"annotated": labelled([z], target, group)})
    return found.primal[name], int(found.log["empty_cells"])


@pytest.mark.parametrize(("name", "key"), [("eod", "EOD_sum"), ("dpr", "DPR"), ("eql", "EQL")])
def test_the_penalties_have_the_given_values(name, key):
    value, empty = penalty(name, logits(GIVEN["p"]), GIVEN["y"], GIVEN["group"])
    assert float(value.detach()) == pytest.approx(GIVEN[key], abs=1e-12) and empty == 0


def test_cross_entropy_has_the_given_value():
    for name, stream in (("ce", "annotated"), ("erm", "all")):
        found = build("objective", name)({stream: labelled([logits(GIVEN["p"])], GIVEN["y"], GIVEN["group"])})
        assert float(found.primal["cross_entropy"].detach()) == pytest.approx(GIVEN["CE"], abs=1e-12)
        assert float(found.log["accuracy"]) == 0.75  # 0.4 of y = 1 and 0.7 of y = 0 are on the wrong side
    assert supervised.cross_entropy(GIVEN["p"], GIVEN["y"]) == pytest.approx(GIVEN["CE"], abs=1e-12)


def test_equalised_loss_of_the_positive_class_by_hand():
    p, y, a = [0.5, 0.25, 0.9, 0.125], [1, 1, 0, 1], [0, 1, 1, 1]
    value, _ = penalty("eql", logits(p), y, a, eql_on="positive")
    assert float(value.detach()) == pytest.approx(1.5 * math.log(2), abs=1e-12)  # (2 + 3)/2 bits against 1


# targets and groups: all cells; a group without positives; a group missing; one group alone
BATCHES = {
    "whole": ([0, 1, 0, 1, 0, 1, 1, 0, 1, 0], lambda k: [i // 2 % k for i in range(10)]),
    "no positives of group 1": ([0, 1, 0, 0, 1, 0, 1, 1, 0, 0], lambda k: [0, 0, 1, 1, 0, 1, 0, 0, 1, 0]),
    "group 0 missing": ([0, 1, 0, 1, 1, 0, 1, 0, 1, 1], lambda k: [1 + i % (k - 1) for i in range(10)]),
    "one group": ([0, 1, 0, 1, 1, 0, 1, 0, 1, 1], lambda k: [1] * 10),
}


@pytest.mark.parametrize("n_groups", [2, 5])
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("name", [*PENALTIES, "eql positive"])
def test_the_penalties_and_their_gradients_equal_the_loops(name, batch, n_groups):
    target, group = BATCHES[batch][0], BATCHES[batch][1](n_groups)
    gen = torch.Generator().manual_seed(3)
    z = torch.randn(10, dtype=torch.float64, generator=gen).requires_grad_()

    def slow(rows: list[list[float]]) -> tuple[float, int]:
        p = [supervised.probability(row[0]) for row in rows]
        if name == "eod":
            return supervised.eod(p, target, group, n_groups)
        if name == "dpr":
            return supervised.dpr(p, group, n_groups)
        return supervised.eql(p, target, group, n_groups, positive=name.endswith("positive"))

    params = {"eql_on": "positive"} if name.endswith("positive") else {}
    value, empty = penalty(name.split()[0], z, target, group, n_groups, **params)
    rows = [[x] for x in z.tolist()]
    wanted, wanted_empty = slow(rows)
    assert float(value.detach()) == pytest.approx(wanted, abs=1e-12) and empty == wanted_empty
    (gradient,) = torch.autograd.grad(value, z)
    slope = torch.tensor(losses.slope(lambda r: slow(r)[0], rows), dtype=torch.float64)[:, 0]
    torch.testing.assert_close(gradient, slope, rtol=0, atol=1e-8)


@pytest.mark.parametrize("name", PENALTIES)
def test_a_penalty_ignores_the_names_of_two_groups_and_the_number_of_copies(name):
    z, target, group = logits(GIVEN["p"]), torch.tensor(GIVEN["y"]), torch.tensor(GIVEN["group"])
    value = float(penalty(name, z, target, group)[0].detach())
    assert float(penalty(name, z, target, 1 - group)[0].detach()) == pytest.approx(value, abs=1e-12)
    order = torch.tensor([6, 1, 3, 0, 7, 5, 2, 4])
    assert float(penalty(name, z[order], target[order], group[order])[0].detach()) == pytest.approx(value, abs=1e-12)

    head = build("head", name)  # a second view of the same logits changes nothing
    twice = head({"annotated": labelled([z, z], target, group)}).primal[name]
    assert float(twice.detach()) == pytest.approx(value, abs=1e-12)


def test_group_gap_leaves_out_what_has_no_group_or_is_infinite_elsewhere():
    value = torch.tensor([1.0, 3.0, 4.0, math.inf], requires_grad=True)
    gap, empty = group_gap(value, torch.tensor([0, 0, 1, -1]), 2)
    assert float(gap.detach()) == 2.0 and int(empty) == 0
    assert torch.autograd.grad(gap, value)[0].tolist() == [-0.5, -0.5, 1.0, 0.0]


@pytest.mark.parametrize("name", PENALTIES)
def test_a_penalty_is_finite_and_float32_when_the_classifier_is_sure_and_wrong(name):
    z = torch.tensor([1e38, -1e38, 0.0, 88.0], requires_grad=True)
    value, _ = penalty(name, z, [0, 1, 0, 1], [0, 0, 1, 1])
    assert value.dtype == torch.float32 and value.isfinite()
    assert torch.autograd.grad(value, z)[0].isfinite().all()


@pytest.mark.parametrize("name", PENALTIES)
def test_a_penalty_moves_the_encoder_and_the_classifier_and_has_nothing_of_its_own(name):
    backbone = encoder()
    objective, head = build("objective", "ce", context(backbone)), build("head", name)
    assert not list(head.parameters()) and not head.state_dict()
    batch = encode(images(), backbone, objective)
    gradients = torch.autograd.grad(
        head({"annotated": batch}).primal[name], [*backbone.parameters(), *objective.parameters()], allow_unused=True
    )
    bias = gradients[-1]
    assert all(g is not None and g.isfinite().all() for g in gradients)
    assert all(g.abs().max() > 0 for g in gradients[:-1] if g.ndim > 1) and bias is not None


def test_a_penalty_needs_a_classifier_and_says_so():
    with pytest.raises(UserError, match=r"'eod' needs an objective that gives logits, 'simclr' gives embeddings"):
        method_spec("simclr+eod", {})


def test_the_classifier_is_a_dot_product_kept_in_float32_and_its_scores_are_sigmoids():
    for name in ("ce", "erm"):
        part = build("objective", name)
        f = torch.randn(5, D, generator=torch.Generator().manual_seed(0))
        logit = part.project(f)
        weight, bias = part.classifier.weight[0].tolist(), float(part.classifier.bias.detach())
        wanted = [losses.dot(weight, row) + bias for row in f.tolist()]
        assert logit.shape == (5,) and logit.dtype == torch.float32
        assert logit.tolist() == pytest.approx(wanted, abs=1e-6)
        scores = part.scores(f)
        assert scores.dtype == torch.float64
        assert scores.tolist() == pytest.approx([supervised.probability(x) for x in wanted], abs=1e-6)
    assert part.scores(1e30 * f).isfinite().all()


@pytest.mark.parametrize(("name", "stream"), [("ce", "annotated"), ("erm", "all")])
def test_an_objective_reads_its_own_stream_alone(name, stream):
    part = build("objective", name)
    assert part.streams == {stream} and part.sees == {"target"} and part.n_views == 1 and part.gives == "logits"
    part({stream: labelled([logits(GIVEN["p"])], GIVEN["y"], GIVEN["group"])})


@pytest.mark.parametrize("name", ["ce", "erm"])
def test_the_cross_entropy_is_the_mean_over_views_and_moves_all(name):
    backbone = encoder()
    part = build("objective", name, context(backbone))
    loss, _, _ = terms(images(), backbone, part)
    gradients = torch.autograd.grad(loss, [*backbone.parameters(), *part.parameters()])
    assert all(g.isfinite().all() and g.abs().max() > 0 for g in (gradients[0], gradients[-2], gradients[-1]))

    z = [logits([0.2, 0.7]), logits([0.4, 0.9])]
    found = part({"all": labelled(z, [0, 1], [0, 1]), "annotated": labelled(z, [0, 1], [0, 1])})
    wanted = (supervised.cross_entropy([0.2, 0.7], [0, 1]) + supervised.cross_entropy([0.4, 0.9], [0, 1])) / 2
    assert float(found.primal["cross_entropy"].detach()) == pytest.approx(wanted, abs=1e-12)


def noise(n: int, width: int = 3, seed: int = 0) -> list[Tensor]:
    gen = torch.Generator().manual_seed(seed)
    return [torch.randn(n, width, generator=gen, dtype=torch.float64).requires_grad_() for _ in range(2)]


def discriminator(name: str, n_groups: int = 2, width: int = 3, **params: Any) -> Any:
    return build("head", name, context(n_groups=n_groups, feature_dim=width), hidden_dim=7, **params).double()


def layers(head: Any) -> tuple[Any, Any]:
    first, _, second = head.discriminator
    return (first.weight.tolist(), first.bias.tolist()), (second.weight.tolist(), second.bias.tolist())


@pytest.mark.parametrize("seen", ["normalized", "raw"])
@pytest.mark.parametrize("n_groups", [2, 5])
@pytest.mark.parametrize("missing", [False, True])
def test_max_entropy_and_its_gradients_equal_the_loops(seen, n_groups, missing):
    head = discriminator("max_entropy", n_groups, input=seen)
    f = noise(6)
    group = [0] * 6 if missing else [k % n_groups for k in range(6)]
    found = head({"annotated": given(f, group=group)})
    first, second = layers(head)

    def rows_seen(rows):
        return rows if seen == "raw" else [losses.unit(row) for row in rows]

    both = torch.cat(f).tolist()
    value, likelihood = found.primal["negative_entropy"], found.dual["cross_entropy"]
    wanted = supervised.negative_entropy(rows_seen(both), first, second)
    assert float(value.detach()) == pytest.approx(wanted, abs=1e-12)
    assert -math.log(n_groups) <= wanted <= 0
    wanted = losses.cross_entropy(rows_seen(both), first, second, group + group)
    assert float(likelihood.detach()) == pytest.approx(wanted, abs=1e-12)

    gradient = torch.cat(torch.autograd.grad(value, f, retain_graph=True))
    slope = losses.slope(lambda r: supervised.negative_entropy(rows_seen(r), first, second), both)
    torch.testing.assert_close(gradient, torch.tensor(slope, dtype=torch.float64), rtol=0, atol=1e-8)

    dual = list(head.dual_parameters())
    assert len(dual) == 4 == len(list(head.parameters()))
    by_weight = torch.autograd.grad(likelihood, dual[0])[0]

    def moved(weight):
        return losses.cross_entropy(rows_seen(both), (weight, first[1]), second, group + group)

    slope = torch.tensor(losses.slope(moved, first[0]), dtype=torch.float64)
    torch.testing.assert_close(by_weight, slope, rtol=0, atol=1e-8)


def test_an_undecided_discriminator_gives_minus_log_g_whatever_the_groups_shares():
    head = discriminator("max_entropy", 5)
    with torch.no_grad():
        head.discriminator[2].weight.zero_()
        head.discriminator[2].bias.fill_(0.3)
    found = head({"annotated": given(noise(6), group=[0, 0, 0, 0, 0, 1])})
    assert float(found.primal["negative_entropy"].detach()) == pytest.approx(-math.log(5), abs=1e-12)


@pytest.mark.parametrize("seen", ["normalized", "raw"])
@pytest.mark.parametrize("n_groups", [2, 5])
def test_gradient_reversal_lowers_the_discriminators_loss_and_raises_it_for_the_encoder(seen, n_groups):
    head = discriminator("grl", n_groups, input=seen)
    f, group = noise(6), [k % n_groups for k in range(6)]
    loss = head({"annotated": given(f, group=group)}).primal["cross_entropy"]
    first, second = layers(head)

    def slow(rows, weight=None):
        rows = rows if seen == "raw" else [losses.unit(row) for row in rows]
        return losses.cross_entropy(rows, first if weight is None else (weight, first[1]), second, group + group)

    both = torch.cat(f).tolist()
    assert float(loss.detach()) == pytest.approx(slow(both), abs=1e-12)
    parameters = list(head.parameters())
    *by_view, by_weight = torch.autograd.grad(loss, [*f, parameters[0]])
    reversed_slope = -torch.tensor(losses.slope(slow, both), dtype=torch.float64)
    torch.testing.assert_close(torch.cat(by_view), reversed_slope, rtol=0, atol=1e-8)
    slope = torch.tensor(losses.slope(lambda weight: slow(both, weight), first[0]), dtype=torch.float64)
    torch.testing.assert_close(by_weight, slope, rtol=0, atol=1e-8)
    assert list(head.dual_parameters()) == []


@pytest.mark.parametrize("name", DISCRIMINATORS)
@pytest.mark.parametrize("scale", [0.0, 1.0, 1e4, 1e30])
@pytest.mark.parametrize("seen", ["normalized", "raw"])
def test_a_discriminator_is_finite_and_float32_when_it_is_sure_and_wrong(name, scale, seen):
    head = discriminator(name, input=seen).float()
    f = [(scale * x.detach()).to(torch.bfloat16).float().requires_grad_() for x in noise(4)]
    out = head({"annotated": given(f, group=[0, 1, 0, 1])})
    (loss,) = out.primal.values()
    assert loss.dtype == torch.float32 and loss.isfinite()
    gradients = torch.autograd.grad(loss, [*f, *head.parameters()], allow_unused=True)
    assert all(g.isfinite().all() for g in gradients if g is not None)


def test_the_guard_passes_scales_and_reverses_what_is_finite_and_drops_and_counts_what_is_not():
    guard = GradientGuard()
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    y = guard(x, factor=-0.5)
    assert torch.equal(y, x)
    assert torch.autograd.grad(y.sum(), x)[0].tolist() == [-0.5, -0.5]
    assert float(guard.count()) == 0
    for bad in (math.inf, -math.inf, math.nan):
        found = torch.autograd.grad((guard(x) * torch.tensor([1.0, bad])).sum() + x.sum(), x)[0]
        assert found.tolist() == [1.0, 1.0]  # the other use of x is not touched
    assert float(guard.count()) == 3 and float(guard.count()) == 0
    constant = torch.ones(2)
    assert guard(constant) is constant and not guard.state_dict()


def rows(trainer: Trainer) -> dict[str, Tensor]:
    return {name: stream.steps(0, 1)[0] for name, stream in trainer.streams.items()}


def weights(trainer: Trainer) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in trainer.model.tensors().items()}


class Overflowing:
    """Makes the gradient that reaches a head's guard infinite until removed: that of its input, or of its last layer."""

    def __init__(self, head: Any, where: str):
        self.head, self.guard = head, head.guard.forward
        self.wanted = head.discriminator[2].weight if where == "discriminator" else None
        head.guard.forward = self

    def __call__(self, x: Tensor, factor: float = 1.0) -> Tensor:
        y = self.guard(x, factor)
        if x is self.wanted or (self.wanted is None and not isinstance(x, nn.Parameter)):
            y = y.view_as(y)
            y.register_hook(lambda g: torch.full_like(g, math.inf))
        return y

    def remove(self) -> None:
        del self.head.guard.forward


CASES_OF_INFINITY = [("sofclr", "adversary"), ("ml_afl", "adversary"), ("max_ent", "max_entropy"), ("grl", "grl")]


@pytest.mark.parametrize(("method", "name"), CASES_OF_INFINITY)
@pytest.mark.parametrize("where", ["encoder", "discriminator"])
def test_an_infinite_adversary_gradient_neither_stops_nor_poisons_the_encoder(method, name, where):
    trainer = small.trainer(small.run_of(method).spec)
    head: Any = trainer.model.parts[name]
    before = weights(trainer)
    # An infinite gradient of a finite loss, as an overflow in the discriminator's backward pass makes it.
    if where == "encoder" or name == "grl":
        hook: Any = Overflowing(head, where)
    else:
        hook = head.discriminator[2].weight.register_hook(lambda g: torch.full_like(g, math.inf))
    found = trainer.step(rows(trainer))
    hook.remove()
    assert found["loss"].isfinite()
    after = weights(trainer)
    assert all(value.isfinite().all() for value in after.values())
    moved = {key for key, value in after.items() if not torch.equal(value, before[key])}
    assert any(key.startswith("encoder.") and key.endswith("weight") for key in moved)  # it went on
    if where == "discriminator" and name != "grl":
        assert float(found["dual_skipped"]) == 1
        assert not any("discriminator" in key for key in moved)
    else:
        assert float(head.guard.count()) >= 1  # and the next step's log says so
    for _ in range(2):
        assert trainer.step(rows(trainer))["loss"].isfinite()


@pytest.mark.parametrize("method", METHODS)
def test_a_step_moves_the_networks_of_the_method_and_nothing_is_infinite_under_bf16(method):
    trainer = small.trainer(small.run_of(method, sets=("train.precision=bf16",)).spec)
    before = weights(trainer)
    found = trainer.step(rows(trainer))
    after = weights(trainer)
    assert trainer.step.n_views == 1
    assert all(value.isfinite() for value in found.values())
    assert all(value.isfinite().all() for value in after.values())
    wanted = {"classifier", *({"discriminator"} if trainer.model.parts.keys() & set(DISCRIMINATORS) else set())}
    for network in wanted:
        assert any(f".{network}." in key and not torch.equal(value, before[key]) for key, value in after.items())
    assert not torch.equal(next(iter(after.values())), next(iter(before.values())))


def test_the_weight_of_a_head_reaches_the_encoder_and_zero_is_plain_ce():
    zero, plain = small.run_of("ce+eql:0").spec, small.run_of("ce").spec
    assert zero.method.heads == () and plain.method.heads == ()
    found = []
    for weight in ("0.1", "1"):
        trainer = small.trainer(small.run_of(f"ce+dpr:{weight}").spec)
        trainer.step(rows(trainer))
        found.append(weights(trainer))
    assert any(not torch.equal(found[0][key], found[1][key]) for key in found[0] if key.startswith("encoder."))


def facts(name: str) -> tuple[bool, bool, str, str, bool, bool]:
    m = kinds.methods.get(name)
    return m.adversarial, m.contrastive, m.target, m.group, m.generator, m.theory


@pytest.mark.parametrize(
    ("name", "wanted", "scored_by"),
    [
        ("ce", (False, False, "annotated", "none", False, False), "own"),
        ("ce_eod", (False, False, "annotated", "annotated", False, False), "own"),
        ("ce_dpr", (False, False, "annotated", "annotated", False, False), "own"),
        ("ce_eql", (False, False, "annotated", "annotated", False, False), "own"),
        ("ml_afl", (True, False, "annotated", "annotated", False, False), "annotated_head"),
        ("max_ent", (True, False, "annotated", "annotated", False, False), "annotated_head"),
        ("erm", (False, False, "all", "none", False, False), "own"),
        ("dfr", (False, False, "all", "annotated", False, False), "balanced_head"),
        ("grl", (True, False, "all", "annotated", False, False), "own"),
    ],
)
def test_the_columns_of_the_supervised_methods_agree_with_their_specs(name, wanted, scored_by):
    m = kinds.methods.get(name)
    assert facts(name) == wanted and m.scored_by == scored_by
    spec = method_spec(name, {})
    assert (spec.target, spec.group, spec.scored_by) == (m.target, m.group, m.scored_by)
    assert "Extra networks" in m.notes and "search space" in m.notes.lower() and m.paper
    TrainConfig(**m.train)
    ProbeConfig(**m.probe_params)


def test_the_papers_names_mean_the_method_files_also_with_a_weight():
    for name, head in (("ce+eod", "eod"), ("ce+dpr", "dpr"), ("ce+eql", "eql")):
        assert parse_method(name).sampler == "cell_balanced"
        weighted = parse_method(f"{name}:0.3")
        assert weighted.sampler == "cell_balanced" and weighted.scored_by == "own"
        (params,) = weighted.heads.values()
        assert params == {"weight": "0.3"} and next(iter(weighted.heads)).endswith(head)
    more = method_spec("ce+eod:0.3+dpr:0.5", {})
    assert more.sampler == "cell_balanced"
    assert {head.name.rpartition(":")[2]: head.params["weight"] for head in more.heads} == {"eod": 0.3, "dpr": 0.5}
    assert parse_method("simclr+ccl:0.5").summary == parse_method("simclr_ccl").summary
    assert parse_method("ml-afl") == parse_method("ml_afl") == parse_method("max-afl")
    assert parse_method("max-ent") == parse_method("max_ent")


def test_dfr_shares_the_pretraining_of_erm_and_nothing_else_does():
    keys = {name: small.run_of(name).spec.pretrain_key for name in METHODS}
    assert keys["dfr"] == keys["erm"]
    assert len(set(keys.values())) == len(METHODS) - 1
    assert small.run_of("dfr").spec.key != small.run_of("erm").spec.key


def test_balanced_batches_and_balanced_heads_take_equally_many_of_each_cell():
    trainer = small.trainer(small.run_of("ce+eod", batch_size=8, annotated=1.0).spec)
    index = trainer.streams["annotated"].steps(0, 5)
    for batch in index:
        cell = trainer.data.group[batch] * 2 + trainer.data.target[batch]
        assert cell.bincount(minlength=4).tolist() == [2, 2, 2, 2]
    target, group = torch.tensor([0, 0, 0, 1, 1, 0, 1, 1]), torch.tensor([0, 0, 0, 0, 0, 1, 1, 1])
    chosen = balanced(torch.arange(8), target, group, seed=0)
    assert (group[chosen] * 2 + target[chosen]).bincount().tolist() == [1, 1, 1, 1]


def picture(seed: int = 0) -> Tensor:
    """uint8 (3, 32, 40), wider than high; its channels have different ranges."""
    gen = torch.Generator().manual_seed(seed)
    noise = torch.randint(0, 256, (3, 32, 40), dtype=torch.uint8, generator=gen)
    return noise // torch.tensor([1, 2, 3], dtype=torch.uint8)[:, None, None] + 20 * torch.arange(3)[:, None, None].to(
        torch.uint8
    )


def theirs(name: str, x: Tensor, level: float) -> Tensor:
    """torchvision's operation on a uint8 image at `level` of the full strength, as its RandAugment calls it."""
    unit, bilinear = x.float() / 255, InterpolationMode.BILINEAR

    def affine(shear: tuple[float, float] = (0.0, 0.0), shift: tuple[int, int] = (0, 0), center: Any = None) -> Tensor:
        return reference_ops.affine(unit, 0.0, list(shift), 1.0, list(shear), bilinear, center=center)

    slope = math.degrees(math.atan(0.3 * level))
    height, width = x.shape[1:]
    calls: dict[str, Callable[[], Tensor]] = {
        "identity": lambda: unit,
        "shear_x": lambda: affine(shear=(slope, 0.0), center=[0, 0]),
        "shear_y": lambda: affine(shear=(0.0, slope), center=[0, 0]),
        "translate_x": lambda: affine(shift=(int(150 / 331 * width * level), 0)),
        "translate_y": lambda: affine(shift=(0, int(150 / 331 * height * level))),
        "rotate": lambda: reference_ops.rotate(unit, 30 * level, bilinear),
        "brightness": lambda: reference_ops.adjust_brightness(unit, 1 + 0.9 * level),
        "color": lambda: reference_ops.adjust_saturation(unit, 1 + 0.9 * level),
        "contrast": lambda: reference_ops.adjust_contrast(unit, 1 + 0.9 * level),
        "sharpness": lambda: reference_ops.adjust_sharpness(unit, 1 + 0.9 * level),
        "posterize": lambda: reference_ops.posterize(x, 8 - round(4 * abs(level))).float() / 255,
        "solarize": lambda: reference_ops.solarize(unit, 1 - abs(level)),
        "autocontrast": lambda: reference_ops.autocontrast(unit),
        "equalize": lambda: reference_ops.equalize(x).float() / 255,
    }
    return calls[name]()


@pytest.mark.parametrize("level", [0.0, 0.3, -0.3, 0.77, -1.0])
def test_every_operation_is_torchvisions_and_a_batch_may_mix_them(level):
    x = picture()
    n = len(RAND_OPS)
    found = rand_op(x.float().expand(n, -1, -1, -1) / 255, torch.arange(n), torch.full((n,), level))
    for number, name in enumerate(RAND_OPS):
        difference = (found[number] - theirs(name, x, level)).abs()
        assert difference.max() < 1e-4, name


def test_each_image_keeps_its_own_operation_and_strength():
    x = torch.stack([picture(seed) for seed in range(6)]).float() / 255
    op, level = torch.tensor([1, 5, 6, 10, 11, 13]), torch.tensor([0.3, -1.0, 0.5, 0.9, -0.4, 0.1])
    batched = rand_op(x, op, level)
    for i in range(6):
        torch.testing.assert_close(batched[i : i + 1], rand_op(x[i : i + 1], op[i : i + 1], level[i : i + 1]))


def test_operations_are_drawn_with_equal_chance_and_either_sign():
    config = TrainConfig(recipe="randaugment", rand_ops=1, rand_magnitude=30)
    gen = torch.Generator().manual_seed(0)
    x = 0.2 + 0.6 * torch.rand(2800, 3, 8, 8, generator=gen)
    y = rand_augment(x, config, torch.rand(1, 2, 2800, generator=gen))
    assert y.min() >= 0 and y.max() <= 1

    def share(wanted: Tensor) -> int:
        return int(((y - wanted).abs().amax((1, 2, 3)) < 1e-6).sum())

    assert share(x) == pytest.approx(200, abs=56)  # identity: one in fourteen, sd 13.6
    assert share(1 - x) == pytest.approx(200, abs=56)  # solarize at full strength
    assert share(0.1 * x) == pytest.approx(100, abs=40)  # brightness, sd 9.8
    assert share((1.9 * x).clamp(0, 1)) == pytest.approx(100, abs=40)
    assert not torch.equal(y, rand_augment(x, config, torch.rand(1, 2, 2800, generator=gen)))


def test_the_recipe_keeps_crop_and_flip_and_leaves_out_jitter_and_gray():
    images = torch.stack([picture(seed) for seed in range(4)])
    still = {"crop_min": 1.0, "flip": 0.0, "rand_magnitude": 0.0}
    plain = TrainConfig(recipe="randaugment", jitter=1.0, gray=1.0, **still)
    u = random_numbers(4, plain, torch.Generator().manual_seed(3))
    out = augment(images, 32, plain, u)
    assert out.shape == (4, 3, 32, 32) and out.dtype == torch.float32
    assert (out[:, 0] - out[:, 1]).abs().max() > 0.1  # not gray
    with torch.autocast("cpu", dtype=torch.bfloat16):
        x = images[:, :, :, :32].float() / 255
        full = rand_augment(x, plain, u["rand_ops"])
    assert full.dtype == torch.float32
    assert torch.equal(full, rand_augment(x, plain, u["rand_ops"]))


def test_the_recipe_reads_no_tensor_back():
    with FakeTensorMode():  # no values: a branch on one, or .item(), is an error
        out = rand_op(torch.rand(4, 3, 32, 32), torch.zeros(4, dtype=torch.long), torch.rand(4))
    assert out.shape == (4, 3, 32, 32)
