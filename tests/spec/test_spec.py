"""The method grammar, --set, and what is in a key."""

from __future__ import annotations

import pytest
from reference import small

from fairssl.plan.resolve import resolve
from fairssl.spec.keys import derive_seed, digest
from fairssl.spec.method import method_spec, parse_method, parse_set
from fairssl.types import UserError


def test_names_come_first_then_objective_plus_heads() -> None:
    assert parse_method("sofclr").objective == "sogclr"
    assert list(parse_method("sofclr").heads) == ["adversary"]
    assert dict(parse_method("byol+adversary:0.3").heads) == {"adversary": {"weight": "0.3"}}
    assert parse_method("vicreg").objective == "vicreg"  # an objective is a method of its own name
    assert set(parse_method("sofclr+ccl:0.5").heads) == {"adversary", "ccl"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("simclar", "did you mean 'simclr'"),
        ("simclr+adversry", "did you mean 'adversary'"),
        ("simclr+", "unknown head ''"),
        ("adversary", "is no method and no objective"),
        ("", "is no method and no objective"),
    ],
)
def test_a_wrong_method_is_one_line_with_what_is_near(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message.replace("(", r"\(")):
        parse_method(text)


def test_a_weight_must_be_a_number() -> None:
    with pytest.raises(UserError, match=r"adversary\.weight.*'much'"):
        method_spec("simclr+adversary:much", {})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ccl+ccl", "objective and head are both called 'ccl'"),
        ("random+adversary", "'random' is never trained, so head 'adversary' would do nothing"),
        ("simclr+eod", "head 'eod' needs an objective that gives logits"),
    ],
)
def test_parts_that_do_not_go_together_are_refused(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        method_spec(text, {})


def test_an_objective_and_a_head_of_one_name_keep_their_own_parameters() -> None:
    assert method_spec("ccl", {"ccl": {"temperature": "0.7"}}).objective.params["temperature"] == 0.7
    assert method_spec("random+leace", {}).heads[0].name == "leace"


def test_what_a_method_sees_is_written_down() -> None:
    assert (method_spec("sogclr", {}).group, method_spec("sogclr", {}).target) == ("none", "none")
    assert (method_spec("sofclr", {}).group, method_spec("sofclr", {}).streams) == ("annotated", ("all", "annotated"))


def test_set_reaches_the_part_it_names_under_either_spelling() -> None:
    for text in ("adversary.weight=0.25", "adversary.alpha=0.25"):
        spec = method_spec("sofclr", parse_set([text]))
        assert spec.heads[0].params["weight"] == 0.25
    assert method_spec("sofclr+ccl", parse_set(["ccl.lambda=0.1"])).heads[1].params["weight"] == 0.1


@pytest.mark.parametrize("text", ["adversary", "adversary.weight", "weight=1", ".x=1", "a.=1"])
def test_a_malformed_set_says_the_form(text: str) -> None:
    with pytest.raises(UserError, match=r"is not of the form part\.parameter=value"):
        parse_set([text])


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (("advresary.weight=1",), "no selected method has a part 'advresary'; did you mean 'adversary'"),
        (("ccl.weight=1",), "no selected method has a part 'ccl'"),
        (("adversary.wieght=1",), "adversary has no parameter 'wieght'; did you mean 'weight'"),
        (("train.learning_rat=1",), "train has no parameter 'learning_rat'"),
        (("train.precision=fp8",), "train.precision"),
        (("adversary.weight=1", "adversary.alpha=2"), "adversary.weight is set twice"),
        (("adversary.weight=1", "adversary.weight=2"), "is given twice"),
        (("train.epochs=3",), "train.epochs is 3 by --set and 2 by --epochs"),
        (("sogclr.temperature=nan",), "sogclr.temperature"),
    ],
)
def test_a_wrong_set_is_refused(sets: tuple[str, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        small.plan("sofclr", sets=sets)


@pytest.mark.parametrize(("text", "value"), [("False", False), ("no", False), ("0", False), ("true", True)])
def test_booleans_mean_what_they_say(text: str, value: bool) -> None:
    spec = small.run_of("sofclr", sets=(f"train.join_streams={text}",)).spec
    assert spec.train.join_streams is value


def test_a_word_that_is_no_boolean_is_refused() -> None:
    with pytest.raises(UserError, match=r"train\.join_streams.*'nope'"):
        small.plan("simclr", sets=("train.join_streams=nope",))


def test_weight_zero_is_sogclr_by_key() -> None:
    zero = small.run_of("sofclr", sets=("adversary.weight=0",)).spec
    plain = small.run_of("sogclr").spec
    assert zero.key == plain.key and zero.pretrain_key == plain.pretrain_key


def test_two_spellings_of_one_composition_have_one_key() -> None:
    assert small.run_of("sofclr").spec.key == small.run_of("sogclr+adversary:1.0").spec.key
    a, b = small.run_of("simclr+ccl+adversary").spec, small.run_of("simclr+adversary+ccl").spec
    assert a.key == b.key


@pytest.mark.parametrize(
    "change",
    [
        {"epochs": 3},
        {"batch_size": 8},
        {"image_size": 24},
        {"annotated": 0.4},
        {"attributes": ("young",)},
        {"sets": ("train.lr=0.002",)},
        {"sets": ("adversary.hidden_dim=64",)},
        {"sets": ("data.correlation=0.6",)},
        {"sets": ("train.jitter=0.5",)},
    ],
)
def test_whatever_moves_the_encoder_moves_both_keys(change: dict) -> None:
    before, after = small.run_of("sofclr").spec, small.run_of("sofclr", **change).spec
    assert before.key != after.key and before.pretrain_key != after.pretrain_key


def test_what_only_the_probe_sees_moves_the_result_alone() -> None:
    before, after = small.run_of("sofclr").spec, small.run_of("sofclr", sets=("probe.kind=knn",)).spec
    assert before.key != after.key and before.pretrain_key == after.pretrain_key


def test_a_group_blind_method_does_not_depend_on_the_annotated_share() -> None:
    before, after = small.run_of("simclr").spec, small.run_of("simclr", annotated=0.5).spec
    assert before.pretrain_key == after.pretrain_key


def test_a_head_that_acts_after_training_shares_its_objectives_pretraining() -> None:
    pytest.importorskip("fairssl_plugins.heads.leace")
    plain, erased = small.run_of("simclr").spec, small.run_of("simclr+leace").spec
    assert plain.pretrain_key == erased.pretrain_key and plain.key != erased.key


def test_the_papers_celeba_tables_need_28_pretrainings() -> None:
    """5 methods x 3 targets x 2 attributes x 4 seeds: group-blind methods train once for everything, also without data."""
    request = small.request("simclr", "sogclr", "byol", "simclr+ccl", "sofclr")
    plan = resolve(
        type(request)(
            methods=request.methods,
            datasets=("celeba",),
            targets=("attractive", "big_nose", "bags_under_eyes"),
            attributes=("male", "young"),
            seeds=4,
            data_dir=None,
        ),
        allow_absent=True,
    )
    assert len(plan.runs) == 120
    assert len(plan.pretrainings()) == 28


def test_keys_are_hashes_of_content_alone() -> None:
    assert digest({"b": 1, "a": [1.0]}) == digest({"a": [1.0], "b": 1})
    assert derive_seed("a", 1) == derive_seed("a", 1) != derive_seed("a", 2)
    spec = small.run_of("sofclr").spec
    again = type(spec).model_validate_json(spec.model_dump_json())
    assert again.key == spec.key and again.pretrain_key == spec.pretrain_key
