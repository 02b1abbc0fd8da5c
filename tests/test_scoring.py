"""Checked outcomes, group codes, averages over groups, bootstrap intervals, noise floors."""

import json
import pickle
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from fairssl import scoring
from fairssl.interfaces import metric
from fairssl.scoring.groups import PartialMean
from fairssl.scoring.resampling import Interval
from fairssl.types import Outcome, Undefined, UserError

FLOORS = json.loads((Path(__file__).parent / "reference/cases/noise_floor.json").read_text())


def scored(cells, seed=0, gap=0.0):
    """An outcome with n examples in each cell (group, target), logits normal around +-1, group g's moved by g x gap."""
    rng = np.random.default_rng(seed)
    group = np.repeat([g for g, _ in cells], list(cells.values()))
    target = np.repeat([y for _, y in cells], list(cells.values()))
    logit = rng.normal(size=len(group)) + 2 * target - 1 + gap * group
    return scoring.check_outcome(1 / (1 + np.exp(-logit)), target, group, ("0", "1"))


def square(n):
    return {(g, y): n for g in (0, 1) for y in (0, 1)}


# --------------------------------------------------------------------------- check_outcome


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


# --------------------------------------------------------------------------- group_codes


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


# --------------------------------------------------------------------------- averages


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


def test_group_pairs():
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


# --------------------------------------------------------------------------- the registered metrics


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
    error = o.score.std() / np.sqrt(len(o.score))
    assert interval.low == pytest.approx(mean(o) - 1.96 * error, abs=0.3 * error)
    assert interval.high == pytest.approx(mean(o) + 1.96 * error, abs=0.3 * error)
    assert floor.mean == pytest.approx(mean(o))  # it does not look at the groups


def test_scoring_imports_neither_torch_nor_sklearn():
    code = "import fairssl.scoring as s, sys; s.columns(); print({'torch', 'sklearn', 'pandas'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


# --------------------------------------------------------------------------- bootstrap


def test_bootstrap_equals_resampling_by_hand():
    o = scored(square(20), gap=0.5)
    rng, by_hand = np.random.default_rng(3), []
    for _ in range(50):
        rows = rng.integers(0, 80, 80)
        by_hand.append(scoring.evaluate(Outcome(o.score[rows], o.target[rows], o.group[rows], o.groups)))
    for symbol, interval in scoring.bootstrap(o, 50, seed=3).items():
        low, high = np.quantile([v[symbol] for v in by_hand], (0.025, 0.975))
        assert interval == Interval(pytest.approx(low, abs=1e-12), pytest.approx(high, abs=1e-12), 0, 50)


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
    o = scored({(0, 0): 99, (0, 1): 99, (1, 0): 1, (1, 1): 1})
    intervals = scoring.bootstrap(o, 1000)
    lost = {"Acc": 0.0, "DP": 0.99**200, "EO": 0.995**200, "ED": 2 * 0.995**200 - 0.99**200}
    for symbol, share in lost.items():
        error = np.sqrt(1000 * share * (1 - share))
        assert intervals[symbol].n_undefined == pytest.approx(1000 * share, abs=4 * error)
        assert intervals[symbol].low <= intervals[symbol].high


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


# --------------------------------------------------------------------------- noise floor

KEYS = {"Intra": "IntraAUC", "Inter": "InterAUC"}


@pytest.mark.parametrize(("name", "n"), [("UTKFace test 4x800", 800), ("synthetic 4x100", 100)])
def test_floor_of_a_balanced_test_set(name, n):
    floors = scoring.noise_floor(scored(square(n)), within="target")
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
