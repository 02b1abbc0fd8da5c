"""Every metric against the given cases, a slow version, other libraries, and the identities between them."""

import json
import math
from itertools import pairwise

import numpy as np
import pytest
from reference import metrics as slow
from reference.checkout import CASES

from fairssl import kinds, scoring
from fairssl.types import Outcome, Undefined, UserError

GIVEN = json.loads((CASES / "metric_cases.json").read_text())
HEADLINE = ["Acc", "ED", "EO", "DP", "IntraAUC", "InterAUC", "GAUC", "WD", "KL"]
SYMBOLS = [*HEADLINE, "TPRGap", "FPRGap", "WorstGroupAcc", "AUC", "BalAcc", "ECEGap"]
HIGHER = {"Acc", "WorstGroupAcc", "AUC", "BalAcc"}
FILES = {m.symbol: m for m in scoring.columns()}
GAPS = [s for s in SYMBOLS if s not in HIGHER]


def outcome(score, target, group, n_groups=2):
    arrays = np.asarray(score, float), np.asarray(target), np.asarray(group)
    return Outcome(*arrays, groups=tuple(str(k) for k in range(n_groups)))


def given(name):
    d = GIVEN["datasets"][name]
    return outcome(d["score"], d["y"], d["group"], d["n_groups"])


def random_outcome(seed, n=400, n_groups=2, ties=True):
    """Scores that depend on target and group, rounded so that many tie, some lie on bucket edges and on 0.5."""
    rng = np.random.default_rng(seed)
    target, group = rng.integers(0, 2, n), rng.integers(0, n_groups, n)
    score = 1 / (1 + np.exp(-(rng.normal(size=n) * 1.3 + 1.2 * target - 0.6 + 0.5 * group)))
    return outcome(np.round(score, 2) if ties else score, target, group, n_groups)


def number(value):
    return None if isinstance(value, Undefined) else value


@pytest.mark.parametrize("case", GIVEN["cases"], ids=lambda c: c["id"])
def test_given_case(case):
    value = scoring.evaluate(given(case["dataset"]))[case["metric"]]
    assert number(value) == (None if case["expected"] is None else pytest.approx(case["expected"], abs=1e-9))


def test_all_cases_are_there():
    assert len(GIVEN["cases"]) == 96


READINGS = {
    ("ED", "max"): {"reading": "max"},
    ("ED", "sum"): {"reading": "sum"},
    ("GAUC", "two_auc_minus_1"): {"reading": "difference"},
    ("KL", "reverse"): {"reading": "reversed"},
    ("KL", "mean_of_both"): {"reading": "mean"},
}


@pytest.mark.parametrize("case", [c for c in GIVEN["cases"] if "other_readings" in c], ids=lambda c: c["id"])
def test_given_other_readings(case):
    for name, expected in case["other_readings"].items():
        general = {"all_pairs": {"pairs": "all"}, "omit_undefined": {"undefined": "omit"}}
        how = general.get(name, READINGS.get((case["metric"], name)))
        if how is None:  # a reading we do not offer: signed mean, exact samples, another eps
            continue
        value = FILES[case["metric"]](given(case["dataset"]), **how)
        assert number(value) == (None if expected is None else pytest.approx(expected, abs=1e-9)), name


@pytest.mark.parametrize("pairs", ["adjacent", "all", "max"])
@pytest.mark.parametrize("n_groups", [2, 3, 5])
@pytest.mark.parametrize("symbol", SYMBOLS)
def test_agrees_with_the_slow_version(symbol, n_groups, pairs):
    for seed in range(3):
        o = random_outcome(seed, n=150, n_groups=n_groups)
        expected = slow.ALL[symbol](o.score.tolist(), o.target.tolist(), o.group.tolist(), n_groups, pairs)
        assert number(scoring.evaluate(o, pairs=pairs)[symbol]) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("symbol", SYMBOLS)
def test_agrees_with_the_slow_version_on_tiny_data_with_empty_cells(symbol):
    undefined = 0
    for seed in range(60):
        o = random_outcome(seed, n=7, n_groups=3)
        pairs = ("adjacent", "all", "max")[seed % 3]
        expected = slow.ALL[symbol](o.score.tolist(), o.target.tolist(), o.group.tolist(), 3, pairs)
        undefined += expected is None
        value = number(scoring.evaluate(o, pairs=pairs)[symbol])
        assert value == (None if expected is None else pytest.approx(expected, abs=1e-12))
    assert undefined > 0 or symbol in ("Acc", "AUC", "BalAcc")


@pytest.mark.parametrize("seed", range(4))
def test_agrees_with_fairlearn(seed):
    from fairlearn import metrics as fairlearn

    o = random_outcome(seed, n=1000)
    decision, values = o.score > 0.5, scoring.evaluate(o)
    arguments = {"y_true": o.target, "y_pred": decision, "sensitive_features": o.group}
    assert values["DP"] == pytest.approx(fairlearn.demographic_parity_difference(**arguments), abs=1e-12)
    assert values["EO"] == pytest.approx(fairlearn.equal_opportunity_difference(**arguments), abs=1e-12)
    assert values["ED"] == pytest.approx(fairlearn.equalized_odds_difference(**arguments, agg="mean"), abs=1e-12)
    worst = fairlearn.equalized_odds_difference(**arguments)
    assert FILES["ED"](o, reading="max") == pytest.approx(worst, abs=1e-12)
    assert values["FPRGap"] == pytest.approx(fairlearn.false_positive_rate_difference(**arguments), abs=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_the_largest_gap_of_many_groups_is_fairlearns(seed):
    from fairlearn import metrics as fairlearn

    o = random_outcome(seed, n=1000, n_groups=5)
    arguments = {"y_true": o.target, "y_pred": o.score > 0.5, "sensitive_features": o.group}
    values = scoring.evaluate(o, pairs="max")
    assert values["DP"] == pytest.approx(fairlearn.demographic_parity_difference(**arguments), abs=1e-12)
    assert values["EO"] == pytest.approx(fairlearn.equal_opportunity_difference(**arguments), abs=1e-12)
    assert values["FPRGap"] == pytest.approx(fairlearn.false_positive_rate_difference(**arguments), abs=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_agrees_with_scikit_learn(seed):
    from sklearn.metrics import accuracy_score, balanced_accuracy_score, roc_auc_score

    o = random_outcome(seed, n=1000)
    values = scoring.evaluate(o)
    assert values["Acc"] == pytest.approx(accuracy_score(o.target, o.score > 0.5), abs=1e-12)
    assert values["BalAcc"] == pytest.approx(balanced_accuracy_score(o.target, o.score > 0.5), abs=1e-12)
    assert values["AUC"] == pytest.approx(roc_auc_score(o.target, o.score), abs=1e-12)
    assert values["GAUC"] == pytest.approx(abs(roc_auc_score(o.group == 0, o.score) - 0.5), abs=1e-12)
    within = [roc_auc_score(o.target[o.group == k], o.score[o.group == k]) for k in (0, 1)]
    assert values["IntraAUC"] == pytest.approx(abs(within[0] - within[1]), abs=1e-12)
    across = []
    for k in (0, 1):
        keep = (o.group == k) == (o.target == 1)  # positives of k, negatives of the other
        across.append(roc_auc_score(o.target[keep], o.score[keep]))
    assert values["InterAUC"] == pytest.approx(abs(across[0] - across[1]), abs=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_agrees_with_scipy(seed):
    from scipy.stats import entropy, wasserstein_distance

    o = random_outcome(seed, n=1000, ties=seed % 2 == 0)
    values = scoring.evaluate(o)
    centres = (np.arange(100) + 0.5) / 100
    p, q = scoring.bucket_shares(o)
    assert values["WD"] == pytest.approx(wasserstein_distance(centres, centres, p, q), abs=1e-12)
    assert values["KL"] == pytest.approx(entropy((p + 1e-4) / 1.01, (q + 1e-4) / 1.01), abs=1e-12)
    exact = wasserstein_distance(o.score[o.group == 0], o.score[o.group == 1])
    assert abs(values["WD"] - exact) <= 0.01


@pytest.mark.parametrize("seed", range(10))
def test_bounds_and_identities(seed):
    o = random_outcome(seed, n=60, ties=seed % 2 == 0)
    v = scoring.evaluate(o)
    largest, total = (FILES["ED"](o, reading=r) for r in ("max", "sum"))
    assert v["EO"] / 2 <= v["ED"] <= largest <= total == pytest.approx(2 * v["ED"])
    assert v["TPRGap"] == v["EO"] and v["ED"] == pytest.approx((v["TPRGap"] + v["FPRGap"]) / 2)
    p, q = scoring.bucket_shares(o)
    if not (o.score == 0.5).any():
        assert v["DP"] <= np.abs(p - q).sum() / 2 + 1e-12  # 0.5 is a bucket edge
        smooth = 1.01  # Pinsker, for the smoothed shares
        assert v["KL"] >= 2 * (v["DP"] / smooth) ** 2 - 1e-12
    assert 0 <= v["GAUC"] <= 0.5
    assert FILES["GAUC"](o, reading="difference") == pytest.approx(2 * v["GAUC"])


@pytest.mark.parametrize("seed", range(4))
def test_exchanging_the_groups_changes_only_kl(seed):
    o = random_outcome(seed)
    swapped = outcome(o.score, o.target, 1 - o.group)
    before, after = scoring.evaluate(o), scoring.evaluate(swapped)
    for symbol in set(SYMBOLS) - {"KL"}:
        assert after[symbol] == pytest.approx(before[symbol], abs=1e-12)
    assert after["KL"] == pytest.approx(FILES["KL"](o, reading="reversed"), abs=1e-12)
    assert after["KL"] != pytest.approx(before["KL"], abs=1e-3)


def test_order_of_the_rows_does_not_matter():
    o = random_outcome(3)
    order = np.random.default_rng(0).permutation(len(o.score))
    assert scoring.evaluate(outcome(o.score[order], o.target[order], o.group[order])) == scoring.evaluate(o)


@pytest.mark.parametrize("transform", [np.sqrt, lambda s: s**3, lambda s: 0.2 + s / 10])
def test_increasing_transforms_leave_the_auc_metrics(transform):
    o = random_outcome(1)
    before = scoring.evaluate(o)
    after = scoring.evaluate(outcome(transform(o.score), o.target, o.group))
    for symbol in ("IntraAUC", "InterAUC", "GAUC", "AUC"):
        assert after[symbol] == before[symbol]


def test_codes_of_nominal_groups_may_be_permuted():  # A9
    o = random_outcome(4, n=600, n_groups=4)
    for code in ([1, 0, 2, 3], [3, 1, 0, 2]):
        other = outcome(o.score, o.target, np.array(code)[o.group], 4)
        for pairs in ("all", "max"):
            before, after = scoring.evaluate(o, pairs=pairs), scoring.evaluate(other, pairs=pairs)
            for symbol in set(SYMBOLS) - {"KL"}:
                assert after[symbol] == pytest.approx(before[symbol], abs=1e-12)
        assert scoring.evaluate(other)["ED"] != pytest.approx(scoring.evaluate(o)["ED"], abs=1e-3)


def test_the_largest_over_the_defined_pairs():
    o = outcome([0.9, 0.1, 0.9, 0.9, 0.1, 0.9], [1, 0, 1, 0, 0, 1], [0, 0, 1, 1, 2, 2], 4)
    value = scoring.evaluate(o, pairs="max", undefined="omit")["FPRGap"]
    assert (value, value.n_defined, value.n_parts, value.what) == (1, 3, 6, "largest")
    assert scoring.evaluate(o, pairs="max")["FPRGap"] == Undefined("group 3 has 0 samples")


def test_auc_between_groups_is_the_weighted_mean_of_its_four_blocks():
    o = random_outcome(2, n=301)
    (n0, p0), (n1, p1) = scoring.cell_counts(o)
    blocks = {(y, z): scoring.auc(o, ((0,), y), ((1,), z)) for y in (0, 1) for z in (0, 1)}
    sizes = {0: (n0, p0), 1: (n1, p1)}
    mean = sum(blocks[y, z] * sizes[0][y] * sizes[1][z] for y, z in blocks) / ((n0 + p0) * (n1 + p1))
    assert scoring.auc(o, ((0,), None), ((1,), None)) == pytest.approx(mean, abs=1e-12)


@pytest.mark.parametrize("pairs", ["adjacent", "all", "max"])
def test_two_groups_as_one_against_the_rest_or_as_all_pairs(pairs):
    o = random_outcome(5)
    first, second = (
        [
            scoring.gap(scoring.auc(o, (a, 1), (a, 0)), scoring.auc(o, (b, 1), (b, 0))),
            scoring.gap(scoring.auc(o, (a, 1), (b, 0)), scoring.auc(o, (b, 1), (a, 0))),
            scoring.gap(scoring.auc(o, (a, None), (b, None)), 0.5),
        ]
        for a, b in (((0,), (1,)), ((1,), (0,)))
    )
    assert first == pytest.approx(second, abs=1e-12)
    v = scoring.evaluate(o, pairs=pairs)
    assert [v["IntraAUC"], v["InterAUC"], v["GAUC"]] == pytest.approx(first, abs=1e-12)
    assert v == pytest.approx(scoring.evaluate(o), abs=1e-12)


def test_perfect_reversed_and_constant_scores():
    target, group = [0, 1, 0, 1], [0, 0, 1, 1]
    perfect = scoring.evaluate(outcome([0.0, 1.0, 0.0, 1.0], target, group))
    reverse = scoring.evaluate(outcome([1.0, 0.0, 1.0, 0.0], target, group))
    constant = scoring.evaluate(outcome([0.3] * 4, target, group))
    assert (perfect["Acc"], reverse["Acc"], constant["Acc"]) == (1, 0, 0.5)
    # M6: no entry of a perfect classifier's table may be 0
    assert (perfect["WorstGroupAcc"], reverse["WorstGroupAcc"], constant["WorstGroupAcc"]) == (1, 0, 0)
    assert (perfect["AUC"], reverse["AUC"], constant["AUC"]) == (1, 0, 0.5)
    assert (perfect["BalAcc"], reverse["BalAcc"], constant["BalAcc"]) == (1, 0, 0.5)
    for values in (perfect, reverse, constant):
        assert all(values[symbol] == 0 for symbol in GAPS)


def test_groups_that_share_nothing():
    v = scoring.evaluate(outcome([0, 0, 1, 1], [0, 1, 0, 1], [0, 0, 1, 1]))
    assert (v["ED"], v["EO"], v["DP"], v["GAUC"], v["WD"]) == (1, 1, 1, 0.5, 0.99)
    assert v["KL"] == pytest.approx(1 / 1.01 * math.log(1.0001 / 0.0001))  # the largest it can be


def test_a_score_of_exactly_one_half_predicts_zero():
    assert scoring.evaluate(outcome([0.5, 0.5], [0, 1], [0, 1]))["Acc"] == 0.5
    assert scoring.positive_rates(outcome([0.5, np.nextafter(0.5, 1)], [0, 1], [0, 1])) == [0, 1]


def test_bucket_edges_belong_to_the_bucket_above():
    edges = np.arange(101) / 100  # floor(100 s) is wrong for 0.29, 0.57, 0.58
    shares = scoring.bucket_shares(outcome(np.tile(edges, 2), np.zeros(202, int), np.repeat([0, 1], 101)))
    assert (shares[0] * 101).round().tolist() == [1] * 99 + [2]
    below = scoring.bucket_shares(outcome(np.nextafter(edges[1:], 0), np.zeros(100, int), np.arange(100) % 2))
    assert (below[0] + below[1]).tolist() == pytest.approx([1 / 50] * 100)


def test_equal_shares_of_unequal_size_have_no_divergence():
    s = [0.1, 0.1, 0.9]
    v = scoring.evaluate(outcome(s + s * 7, [0, 1, 1] * 8, [0] * 3 + [1] * 21))
    assert v["KL"] == 0 and v["WD"] == 0 and v["GAUC"] == 0


def test_calibration_error_of_scores_of_exactly_zero_and_one():  # M9
    o = outcome([0.95, 1.0, 0.0, 0.0], [1, 0, 0, 1], [0, 0, 1, 1])
    assert scoring.calibration_errors(o) == pytest.approx([0.475, 0.5], abs=1e-15)
    assert scoring.evaluate(o)["ECEGap"] == pytest.approx(0.025, abs=1e-15)
    assert scoring.calibration_errors(o, n_bins=1) == pytest.approx([0.475, 0.5], abs=1e-15)
    with pytest.raises(UserError, match="n_bins 0"):
        scoring.calibration_errors(o, n_bins=0)


@pytest.mark.parametrize("n_bins", [1, 7, 10, 100])
def test_calibration_error_agrees_with_the_slow_version(n_bins):
    o = random_outcome(n_bins, n=300)
    for group, found in enumerate(scoring.calibration_errors(o, n_bins)):
        rows = [(s, y) for s, y, g in zip(o.score.tolist(), o.target.tolist(), o.group, strict=True) if g == group]
        assert found == pytest.approx(slow.calibration_error(rows, n_bins), abs=1e-12)


def test_one_class_of_all_groups_has_no_ranking():  # M10
    for target, absent in ((0, "positive"), (1, "negative")):
        v = scoring.evaluate(outcome([0.2, 0.7, 0.4, 0.9], [target] * 4, [0, 0, 1, 1]))
        assert v["AUC"] == v["BalAcc"] == Undefined(f"no {absent} in any group")
        assert v["ECEGap"] == pytest.approx(0.2)


def test_predictions_of_one_class_are_told():  # D17
    assert scoring.one_class(outcome([0.5, 0.1], [0, 1], [0, 1])) == 0
    assert scoring.one_class(outcome([0.51, 0.9], [0, 1], [0, 1])) == 1
    assert scoring.one_class(outcome([0.5, 0.9], [0, 1], [0, 1])) is None


def test_absent_group_is_undefined_with_the_reason():  # M1
    v = scoring.evaluate(outcome([0.9, 0.8, 0.2, 0.6], [1, 1, 0, 0], [0, 0, 0, 0]))
    assert v["Acc"] == 0.75
    assert (v["AUC"], v["BalAcc"]) == (1, 0.75)
    for symbol in [*GAPS, "WorstGroupAcc"]:
        assert v[symbol] == Undefined("group 1 has 0 samples")


def test_positives_in_one_group_only():  # M1, M10
    v = scoring.evaluate(outcome([0.9, 0.2, 0.8, 0.3], [1, 0, 0, 0], [0, 0, 1, 1]))
    for symbol in ("EO", "TPRGap", "ED", "IntraAUC", "InterAUC", "WorstGroupAcc"):
        assert v[symbol] == Undefined("group 1 has no positive")
    assert (v["DP"], v["FPRGap"], v["GAUC"]) == (0, 0.5, 0)


def test_opposite_gaps_do_not_cancel():  # M3
    o = outcome([0.9, 0.1, 0.1, 0.9], [1, 0, 1, 0], [0, 0, 1, 1])
    v = scoring.evaluate(o)
    assert (v["TPRGap"], v["FPRGap"], v["ED"]) == (1, 1, 1)
    assert (FILES["ED"](o, reading="max"), FILES["ED"](o, reading="sum")) == (1, 2)


def test_two_groups_and_a_third_empty_one_have_equal_gaps():  # M5
    two = random_outcome(7)
    three = outcome(two.score, two.target, two.group, 3)
    omitted = scoring.evaluate(three, undefined="omit")
    before = scoring.evaluate(two)
    for symbol in GAPS:
        assert omitted[symbol] == pytest.approx(before[symbol], abs=1e-12)
        assert isinstance(omitted[symbol], scoring.PartialMean)
        assert scoring.evaluate(three)[symbol] == Undefined("group 2 has 0 samples")
    assert (omitted["ED"].n_defined, omitted["ED"].n_parts) == (1, 2)
    assert (omitted["GAUC"].n_defined, omitted["GAUC"].n_parts) == (2, 3)


def test_group_labels_with_a_hole():  # M11
    codes, labels = scoring.group_codes([0, 1, 3, 3, 0, 1])
    assert (codes.tolist(), labels) == ([0, 1, 2, 2, 0, 1], ("0", "1", "3"))
    v = scoring.evaluate(Outcome(np.array([0.9, 0.1] * 3), np.array([1, 0, 1, 0, 0, 1]), codes, labels))
    assert v["DP"] == (abs(1 - 0) + abs(0 - 0.5)) / 2


def test_unknown_groups_are_refused_not_coerced():  # D9
    with pytest.raises(UserError, match="group is no known group in 1 of 4 rows"):
        scoring.evaluate(outcome([0.1, 0.2, 0.3, 0.4], [0, 1, 0, 1], [0, 1, -1, 1]))


def test_columns_are_the_papers_then_ours():
    assert [m.symbol for m in scoring.columns()][: len(SYMBOLS)] == SYMBOLS
    assert [m.symbol for m in scoring.columns() if m.headline] == HEADLINE
    assert {m.symbol for m in scoring.columns() if m.percent and m.headline} == {"Acc", "ED", "EO", "DP"}
    assert {m.symbol for m in scoring.columns() if m.better == "higher"} == HIGHER
    orders = [m.order for m in scoring.columns()]
    assert all(a < b for a, b in pairwise(orders))


@pytest.mark.parametrize("name", kinds.metrics.where())
def test_every_metric_says_when_it_is_undefined(name):
    doc = kinds.metrics.get(name).__doc__
    assert "ndefined" in doc and "in [0, " in doc
    assert len(kinds.metrics.summary(name)) <= 60  # it is a column of `fairssl score`
