"""Checked outcomes, group codes, averages over groups, bootstrap intervals, noise floors."""

import json
import pickle
import subprocess
import sys
import time
from typing import Literal

import numpy as np
import pytest
from reference.checkout import CASES

from fairssl import scoring
from fairssl.interfaces import metric
from fairssl.scoring.groups import PartialMean
from fairssl.scoring.resampling import Interval
from fairssl.types import Outcome, Undefined, UserError

FLOORS = json.loads((CASES / "noise_floor.json").read_text())


def scored(cells, seed=0, gap=0.0):
    """An outcome with n examples in each cell (group, target), logits normal around +-1, group g's moved by g x gap."""
    rng = np.random.default_rng(seed)
    group = np.repeat([g for g, _ in cells], list(cells.values()))
    target = np.repeat([y for _, y in cells], list(cells.values()))
    logit = rng.normal(size=len(group)) + 2 * target - 1 + gap * group
    n_groups = 1 + max(g for g, _ in cells)
    return scoring.check_outcome(1 / (1 + np.exp(-logit)), target, group, [str(g) for g in range(n_groups)])


def square(n, n_groups=2):
    return {(g, y): n for g in range(n_groups) for y in (0, 1)}


def test_an_outcome_from_any_types():
    o = scoring.check_outcome([np.float32(0.1), 1], [True, False], [1.0, 0.0], ["f", "m"])
    assert (o.score.dtype, o.target.dtype, o.group.dtype) == (np.float64, np.int64, np.int64)
    assert o.score[0] == float(np.float32(0.1))  # not 0.1: nothing is rounded on the way
    assert (o.target.tolist(), o.group.tolist(), o.groups) == ([1, 0], [1, 0], ("f", "m"))


@pytest.mark.parametrize(
    ("score", "target", "group", "groups", "message"),
    [
        ([0.5, np.nan], [0, 1], [0, 1], "ab", "p is NaN in 1 of 2 rows, first in row 2"),
        ([0.5, 1.2], [0, 1], [0, 1], "ab", "p is outside [0, 1] in 1 of 2 rows, first 1.2 in row 2"),
        ([-0.1, 1.2], [0, 1], [0, 1], "ab", "p is outside [0, 1] in 2 of 2 rows, first -0.1 in row 1"),
        ([0.5, np.inf], [0, 1], [0, 1], "ab", "p is outside [0, 1]"),
        ([0.5, 0.5], [-1, 1], [0, 1], "ab", "y is not 0 or 1 in 1 of 2 rows, first -1 in row 1"),
        ([0.5, 0.5], [0, np.nan], [0, 1], "ab", "y is not 0 or 1"),
        ([0.5, 0.5], [0, 1], [0, 2], "ab", "a is no known group in 1 of 2 rows, first 2 in row 2"),
        ([0.5, 0.5], [0, 1], [0, np.nan], "ab", "a is no known group"),
        ([0.5, 0.5], [0, 1], [0, 0.5], "ab", "a is no known group"),
        ([0.5, 0.5], [0, 1], [0, 0], "a", "a has one group, 'a', but a gap needs two"),
        ([0.5, 0.5], [0, 1], [0, 0], "aa", "group 'a' is declared twice"),
        ([], [], [], "ab", "p is empty"),
        ([0.5], [0, 1], [0, 1], "ab", "p has 1, y has 2, a has 2"),
        ([[0.5], [0.5]], [0, 1], [0, 1], "ab", "p has shape (2, 1)"),
        (["x", 0.5], [0, 1], [0, 1], "ab", "p holds something that is not a number"),
    ],
)
def test_what_is_refused(score, target, group, groups, message):
    with pytest.raises(UserError) as error:
        scoring.check_outcome(score, target, group, groups, named=("p", "y", "a"))
    assert message in str(error.value) and "\n" not in str(error.value)


def test_metrics_refuse_an_unchecked_outcome_too():
    wrong = Outcome(np.array([0.1, 1.5]), np.array([0, 1]), np.array([0, 1]), ("0", "1"))
    with pytest.raises(UserError, match="outside"):
        scoring.evaluate(wrong)


def test_the_callers_arrays_are_not_shared():
    score = np.array([0.2, 0.8])
    o = scoring.check_outcome(score, [0, 1], [0, 1], "ab")
    score[:] = 0
    assert o.score.tolist() == [0.2, 0.8]


@pytest.mark.parametrize(
    ("values", "declared", "codes", "labels"),
    [
        (["10", "9", "10"], None, [1, 0, 1], ("9", "10")),  # numeric
        (["b", "a", "10"], None, [2, 1, 0], ("10", "a", "b")),  # alphabetical
        ([0, "0.0", 1.0, " 1 "], None, [0, 0, 1, 1], ("0", "1")),
        (["0.5", "-1.50"], None, [1, 0], ("-1.5", "0.5")),
        (["m", "f"], ["m", "f", "x"], [0, 1], ("m", "f", "x")),  # as declared
        (["1.0", "0"], ["1", "0.0"], [0, 1], ("1", "0")),
        (["NA", "x"], ["x", "NA"], [1, 0], ("x", "NA")),  # declared, so it is a group
        ([True, False], None, [1, 0], ("False", "True")),
    ],
)
def test_group_codes(values, declared, codes, labels):
    found, names = scoring.group_codes(values, declared)
    assert (found.tolist(), found.dtype, names) == (codes, np.int64, labels)


@pytest.mark.parametrize(
    ("values", "declared", "message"),
    [
        (["a", "", "b", None], None, "a has no group in 2 of 4 rows, first in row 2 ('')"),
        (["a", float("nan"), "b"], None, "first in row 2 ('nan')"),
        (["a", "c", "c"], ["a", "b"], "a has the value 'c' in 2 of 3 rows, outside the declared groups a, b"),
        (["0", "1"], ["0", "1", "0.0"], "group '0' is declared twice"),
        (["a", "a"], None, "a has one group, 'a', but a gap needs two"),
        (range(101), None, "a has 101 different values, more than 100"),
    ],
)
def test_group_codes_refused(values, declared, message):
    with pytest.raises(UserError) as error:
        scoring.group_codes(list(values), declared, named="a")
    assert message in str(error.value)


def test_average_propagates_or_omits():
    why = Undefined("because")
    assert scoring.average([1.0, 2.0]) == 1.5
    assert scoring.average([1.0, why, 3.0]) == why
    part = scoring.average([1.0, why, 3.0], "omit")
    assert (part, part.n_defined, part.n_parts) == (2.0, 2, 3)
    assert scoring.average([why, Undefined("other")], "omit") == why
    assert type(scoring.average([1.0], "omit")) is float
    again = pickle.loads(pickle.dumps(part))
    assert (again, again.n_defined, again.n_parts, type(again)) == (2.0, 2, 3, PartialMean)


def test_the_largest_part():
    why = Undefined("because")
    assert scoring.largest([1.0, 3.0, 2.0]) == 3.0
    assert scoring.largest([1.0, why]) == why
    part = pickle.loads(pickle.dumps(scoring.largest([1.0, why, 3.0], "omit")))
    assert (part, part.n_defined, part.n_parts, part.what) == (3.0, 2, 3, "largest")


def test_what_a_caption_says_of_pairs():  # A9
    assert scoring.describe_pairs(2, "adjacent") == scoring.describe_pairs(2, "all") == ""
    assert "means over the 3 adjacent pairs" in scoring.describe_pairs(4, "adjacent")
    assert "4 tasks of one group against the rest" in scoring.describe_pairs(4, "adjacent")
    assert scoring.describe_pairs(4, "all") == "4 groups: gaps are means over all 6 pairs of groups"
    assert scoring.describe_pairs(4, "max") == "4 groups: gaps are the largest over all 6 pairs of groups"
    assert (scoring.default_pairs(True), scoring.default_pairs(False)) == ("adjacent", "all")


def test_group_pairs():
    with pytest.raises(UserError, match="over_pairs"):
        scoring.group_pairs(4, "max")
    assert scoring.group_pairs(4) == [(0, 1), (1, 2), (2, 3)]
    assert scoring.group_pairs(4, "all") == [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]


def test_why_several_groups_have_nothing():
    o = scoring.check_outcome(
        [0.1, 0.9, 0.2, 0.3],
        [0, 1, 0, 0],
        [0, 0, 1, 2],
        (
            "a",
            "b",
            "c",
        ),
    )
    assert scoring.evaluate(o)["IntraAUC"] == Undefined("groups b, c have no positive")
    o = scoring.check_outcome([0.1, 0.9], [0, 1], [0, 0], ("a", "b", "c"))
    assert scoring.evaluate(o)["GAUC"] == Undefined("groups b, c have 0 samples")


def registered(monkeypatch, function, name="mine"):
    function.name = name
    known = scoring.columns()
    for module in (scoring.metrics, scoring.resampling):
        monkeypatch.setattr(module, "columns", lambda: [*known, function])
    return function


def test_a_metric_that_returns_nan_is_an_error(monkeypatch):
    registered(monkeypatch, metric(symbol="X", better="lower")(lambda o: float("nan")))
    with pytest.raises(ValueError, match=r"'mine' returned nan; a value that does not exist is Undefined\(reason\)"):
        scoring.evaluate(scored(square(3)))


def test_any_metric_can_be_resampled(monkeypatch):
    mean = registered(monkeypatch, metric(symbol="X", better="lower")(lambda o: float(np.mean(o.score))))
    o = scored(square(200))
    interval, floor = scoring.bootstrap(o, 400)["X"], scoring.noise_floor(o, 5)["X"]
    within = np.mean([o.score[o.target == y].var() for y in (0, 1)])  # the cells keep their sizes
    error = np.sqrt(within / len(o.score))
    assert interval.low == pytest.approx(mean(o) - 1.96 * error, abs=0.35 * error)
    assert interval.high == pytest.approx(mean(o) + 1.96 * error, abs=0.35 * error)
    assert interval.low <= mean(o) <= interval.high
    assert floor.mean == pytest.approx(mean(o))  # it does not look at the groups
    assert not scoring.is_balanced(scored({(0, 0): 9, (0, 1): 1, (1, 0): 1, (1, 1): 9}))


def test_a_metric_of_the_first_version_is_not_told_max_behind_its_back(monkeypatch):
    def mine(o, *, pairs: Literal["adjacent", "all"] = "adjacent"):
        """A gap as 0.1.0's documentation had it written."""
        rates = scoring.positive_rates(o)
        return scoring.average([scoring.gap(rates[i], rates[j]) for i, j in scoring.group_pairs(len(o.groups), pairs)])

    registered(monkeypatch, metric(symbol="X", better="lower")(mine))
    o = scored(square(20, 3), gap=0.5)
    for pairs in ("adjacent", "all"):
        values = scoring.evaluate(o, pairs=pairs)
        assert values["X"] == values["DP"]
    reason = Undefined("metric 'mine' has no pairs='max', only adjacent, all")
    assert scoring.evaluate(o, pairs="max")["X"] == reason
    assert scoring.bootstrap(o, 3, pairs="max")["X"].low == Undefined("undefined in all 3 replicates")
    assert not isinstance(scoring.evaluate(o, pairs="max")["DP"], Undefined)


def test_scoring_imports_neither_torch_nor_sklearn():
    code = "import fairssl.scoring as s, sys; s.columns(); print({'torch', 'sklearn', 'pandas'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


KL_OF_HALF_A_UNIT = 0.0668  # of the buckets of two groups whose logits lie half a unit apart


def by_hand(value, replicates, kind="symmetric", correction=2):
    """An interval of the module's two kinds, from its description."""
    low, high = np.quantile(replicates, (0.025, 0.975))
    bias = np.mean(replicates) - value
    if kind == "reversed":
        return max(0, min(value, 2 * value - high)), max(value, 2 * value - low)
    half = max(high - value, value - low)
    low, high = value - half - correction * max(bias, 0), value + half - correction * min(bias, 0)
    return max(low, 0), min(high, 1)


def test_bootstrap_equals_resampling_by_hand():
    o = scored(square(60), gap=0.5)
    rng = np.random.default_rng(3)
    cells = [np.flatnonzero((o.group == g) & (o.target == y)) for g in (0, 1) for y in (0, 1)]
    values, drawn = scoring.evaluate(o), []
    for _ in range(50):
        rows = np.concatenate([cell[rng.integers(0, 60, 60)] for cell in cells])
        drawn.append(scoring.evaluate(Outcome(o.score[rows], o.target[rows], o.group[rows], o.groups)))
    assert scoring.replicates(o, 50, seed=3)["ED"] == pytest.approx([v["ED"] for v in drawn], abs=1e-12)
    found = scoring.bootstrap(o, 50, seed=3)
    for symbol in set(found) - {"KL", "ECEGap"}:
        expected = by_hand(values[symbol], [v[symbol] for v in drawn])
        assert (found[symbol].low, found[symbol].high) == pytest.approx(expected, abs=1e-12), symbol
        assert (found[symbol].n_undefined, found[symbol].n_replicates, found[symbol].caution) == (0, 50, "")
        assert found[symbol].low <= values[symbol] <= found[symbol].high
    nothing = Undefined("no bootstrap interval of this metric holds the truth often enough")
    assert found["ECEGap"] == Interval(nothing, nothing, 0, 50, "none")


def test_interval_of_kl_holds_its_value_and_the_truth():  # A6
    held = []
    for seed in range(8):
        o = scored(square(250), seed=seed, gap=0.5)
        value, interval = scoring.evaluate(o)["KL"], scoring.bootstrap(o, 100)["KL"]
        replicates = scoring.replicates(o, 100)["KL"]
        assert np.quantile(replicates, 0.025) > value  # a percentile interval leaves out its own value, and the truth
        assert interval.method == "reversed"
        assert (interval.low, interval.high) == pytest.approx(by_hand(value, replicates, "reversed"))
        assert interval.low <= value <= interval.high
        held.append(interval.low <= KL_OF_HALF_A_UNIT <= interval.high)
    assert sum(held) >= 7


def test_kl_of_too_few_examples_has_no_interval():  # A6
    interval = scoring.bootstrap(scored(square(25)), 100)["KL"]
    assert isinstance(interval.low, Undefined) and interval.low == interval.high
    assert interval.low.reason.startswith("too few examples to correct the bias: ")
    assert isinstance(scoring.bootstrap(scored(square(800)), 100)["KL"].low, float)


def test_gaps_of_fair_sets_have_intervals_that_reach_zero():
    missed = dict.fromkeys(("DP", "EO", "GAUC", "WD"), 0)
    for seed in range(20):
        intervals = scoring.bootstrap(scored(square(50), seed=seed), 100)
        for symbol in missed:
            missed[symbol] += intervals[symbol].low > 0
    assert all(n <= 4 for n in missed.values())  # 1 on average; a percentile interval of WD misses all 20


def test_equal_replicates_give_no_interval():
    o = scoring.check_outcome([0.1, 0.9] * 40, [0, 1] * 40, [0, 0, 1, 1] * 20, ("0", "1"))
    found = scoring.bootstrap(o, 20)
    nothing = Undefined("all 20 replicates equal the value, which tells nothing of its spread")
    assert found["Acc"] == Interval(nothing, nothing, 0, 20)  # 100 % right of 80 is no proof of 100 %


def test_bootstrap_is_a_function_of_its_seed():
    o = scored(square(30))
    assert scoring.bootstrap(o, 20, seed=1) == scoring.bootstrap(o, 20, seed=1) != scoring.bootstrap(o, 20, seed=2)


def test_interval_of_accuracy_is_the_binomial_one():
    o = scored(square(250))
    acc = scoring.evaluate(o)["Acc"]
    half = 1.96 * np.sqrt(acc * (1 - acc) / 1000)
    interval = scoring.bootstrap(o, 1000)["Acc"]
    assert (interval.low, interval.high) == pytest.approx((acc - half, acc + half), abs=0.1 * half)


def test_group_of_two_in_two_hundred():  # M8
    o = scored({(0, 0): 99, (0, 1): 99, (1, 0): 1, (1, 1): 1}, seed=3)
    intervals = scoring.bootstrap(o, 200)
    for symbol, caution in {
        "Acc": "",
        "EO": "group 1 has 1 positive",
        "FPRGap": "group 1 has 1 negative",
        "ED": "group 1 has 1 negative; group 1 has 1 positive",
    }.items():
        assert intervals[symbol].caution == caution
        assert intervals[symbol].low <= intervals[symbol].high


def test_undefined_replicates_are_counted(monkeypatch):  # M8
    def precision(o):
        predicted = o.score > 0.5
        return float(o.target[predicted].mean()) if predicted.any() else Undefined("nobody is predicted 1")

    registered(monkeypatch, metric(symbol="X", better="higher")(precision))
    score = np.full(40, 0.2)
    score[[1, 3]] = 0.9  # in two cells of 10
    o = scoring.check_outcome(score, np.arange(40) % 2, np.arange(40) % 4 // 2, ("0", "1"))
    interval = scoring.bootstrap(o, 1000)["X"]
    share = 0.9**20
    assert interval.n_undefined == pytest.approx(1000 * share, abs=4 * np.sqrt(1000 * share))
    assert isinstance(interval.low, Undefined)  # the others are all 1
    score[0] = 0.9
    o = scoring.check_outcome(score, np.arange(40) % 2, np.arange(40) % 4 // 2, ("0", "1"))
    interval = scoring.bootstrap(o, 1000)["X"]
    assert interval.caution == f"{interval.n_undefined} of 1000 replicates undefined" and interval.n_undefined > 0
    assert interval.low <= precision(o) <= interval.high


def test_nothing_defined_gives_no_interval():
    o = scoring.check_outcome([0.1, 0.9], [0, 1], [0, 0], ("0", "1"))
    nothing = Undefined("undefined in all 7 replicates")
    assert scoring.bootstrap(o, 7)["DP"] == Interval(nothing, nothing, 7, 7)
    assert scoring.noise_floor(o, 7)["DP"].mean == nothing


def test_progress_and_bad_counts():
    seen = []
    scoring.bootstrap(scored(square(3)), 4, progress=lambda *step: seen.append(step))
    assert seen == [("bootstrap", i, 4) for i in (1, 2, 3, 4)]
    with pytest.raises(UserError, match="at least 1 replicate, not 0"):
        scoring.bootstrap(scored(square(3)), 0)
    with pytest.raises(UserError, match="at least 1 permutation, not 0"):
        scoring.noise_floor(scored(square(3)), 0)


def test_bootstrap_is_fast():
    o = scored(square(5000), gap=0.3)
    start = time.process_time()
    scoring.bootstrap(o, 100)
    assert time.process_time() - start < 2.5  # 0.15 s alone; 1000 replicates must take at most 5 s on two cores


KEYS = {"Intra": "IntraAUC", "Inter": "InterAUC"}


@pytest.mark.parametrize(("name", "n"), [("UTKFace test 4x800", 800), ("synthetic 4x100", 100)])
def test_floor_of_a_balanced_test_set(name, n):  # A5
    floors = scoring.noise_floor(scored(square(n)))
    assert {floor.within for floor in floors.values()} == {"target"}
    for key, (mean, high) in FLOORS[name].items():
        floor = floors[KEYS.get(key, key)]
        within = 0.06 if key == "KL" else 0.3  # 200 simulations of another scorer; KL's floor is a matter of size
        assert (floor.mean, floor.high) == pytest.approx((mean, high), rel=within), key


def test_floor_of_celeba_sized_data_does_not_charge_the_base_rates():
    o = scored({(0, 0): 4550, (0, 1): 7697, (1, 0): 5500, (1, 1): 2215})
    floors = scoring.noise_floor(o, 100)
    for key, (mean, high) in FLOORS["CelebA test, Attractive/Male"].items():
        floor = floors[KEYS.get(key, key)]
        within = 0.06 if key == "KL" else 0.45
        assert (floor.mean, floor.high) == pytest.approx((mean, high), rel=within), key
    assert scoring.evaluate(o)["DP"] > 10 * floors["DP"].high  # blind to groups given the target, and yet
    assert scoring.evaluate(o)["ED"] < 1.5 * floors["ED"].high


@pytest.mark.parametrize(
    ("cells", "balanced"),
    [
        (square(800), True),
        (square(3, 4), True),
        ({(0, 0): 30, (0, 1): 60, (1, 0): 10, (1, 1): 20}, True),  # unlike sizes, one share of positives
        ({(0, 0): 31, (0, 1): 60, (1, 0): 10, (1, 1): 20}, True),  # less than one example off
        ({(0, 0): 800, (0, 1): 800, (1, 0): 795, (1, 1): 800}, True),  # a quarter of the standard deviation is 3.5
        ({(0, 0): 800, (0, 1): 800, (1, 0): 780, (1, 1): 800}, False),
        ({(0, 0): 4550, (0, 1): 7697, (1, 0): 5500, (1, 1): 2215}, False),
        ({(0, 0): 5, (1, 0): 9}, True),  # one class
        ({(0, 0): 2, (1, 1): 2}, False),
    ],
)
def test_which_test_sets_are_balanced(cells, balanced):  # A5
    o = scored(cells)
    assert scoring.is_balanced(o) is balanced
    assert scoring.noise_floor(o, 2)["DP"].within == ("target" if balanced else "data")
    assert scoring.noise_floor(o, 2, within="data")["ED"].within == "data"
    assert scoring.noise_floor(o, 2)["ED"].within == "target"


def test_permuting_within_the_target_keeps_every_cell_and_over_all_rows_does_not():
    o = scored(square(50))
    cells = scoring.cell_counts(o)
    from fairssl.scoring.resampling import permuted

    assert all(scoring.cell_counts(drawn) == cells for drawn in permuted(o, "target", 5, 0))
    assert any(scoring.cell_counts(drawn) != cells for drawn in permuted(o, "data", 5, 0))


def test_a_value_inside_the_floor():
    floor = scoring.noise_floor(scored(square(100)), 50)["DP"]
    assert scoring.inside_floor(floor.high, floor) and not scoring.inside_floor(floor.high + 1e-9, floor)
    assert scoring.inside_floor(0.02, {"mean": 0.01, "high": 0.02}) and not scoring.inside_floor(0.03, {"high": 0.02})
    for value, none in ((Undefined("x"), floor), (None, floor), (0.0, None), (0.0, {"high": None}), (0.0, {})):
        assert not scoring.inside_floor(value, none)


@pytest.mark.slow
@pytest.mark.parametrize(("n_groups", "pairs"), [(2, "adjacent"), (4, "adjacent"), (4, "all")])
def test_five_in_a_hundred_fair_sets_exceed_the_floor(n_groups, pairs):  # A5
    exceeded = dict.fromkeys(("DP", "ED", "EO", "IntraAUC", "InterAUC", "GAUC", "WD", "KL", "ECEGap"), 0)
    for seed in range(200):
        o = scored(square(100, n_groups), seed=seed)
        values, floors = scoring.evaluate(o, pairs=pairs), scoring.noise_floor(o, 100, seed=seed, pairs=pairs)
        for symbol in exceeded:
            exceeded[symbol] += not scoring.inside_floor(values[symbol], floors[symbol])
    for symbol, n in exceeded.items():
        assert 2 <= n <= 20, (symbol, n)  # 10 on average, standard deviation 3.1


def test_floor_keeps_the_cells_of_metrics_that_condition_on_the_target():
    o = scored({(0, 0): 500, (0, 1): 500, (1, 0): 500, (1, 1): 4})
    floors = scoring.noise_floor(o, 100)
    assert floors["EO"].mean > 3 * scoring.noise_floor(o, 100, within="data")["EO"].mean
    p = scoring.true_positive_rates(o)[0]
    assert floors["EO"].mean == pytest.approx(0.8 * np.sqrt(p * (1 - p) / 4), rel=0.4)
    assert "Acc" not in floors and "WorstGroupAcc" not in floors


def test_floor_lies_far_below_a_real_gap():
    o = scored(square(500), gap=1.0)
    values, floors = scoring.evaluate(o), scoring.noise_floor(o, 100)
    for symbol in ("ED", "EO", "DP", "InterAUC", "GAUC", "WD", "KL"):
        assert values[symbol] > 2 * floors[symbol].high
    assert floors == scoring.noise_floor(o, 100) != scoring.noise_floor(o, 100, seed=1)
