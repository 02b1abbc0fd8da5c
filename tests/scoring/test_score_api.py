"""`fairssl.score` for arrays of any sort."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

import fairssl
from fairssl import scoring
from fairssl.types import UserError

SCORE = [0.9, 0.2, 0.7, 0.6, 0.4, 0.3, 0.8, 0.1]
TARGET = [1, 0, 1, 0, 1, 0, 1, 0]
GROUP = ["f", "f", "f", "f", "m", "m", "m", "m"]


def test_lists() -> None:
    found = fairssl.score(SCORE, TARGET, GROUP)
    expected = scoring.evaluate(scoring.check_outcome(SCORE, TARGET, [0] * 4 + [1] * 4, ("f", "m")))
    assert found.metrics == expected and found.metrics["EO"] == 0.5
    assert (found.n, found.groups, found.undefined) == (8, {"f": 4, "m": 4}, {})
    assert found.intervals == found.floors == {}
    assert found.by_group["m"] == {
        "Acc": 0.75, "positive_rate": 0.25, "TPR": 0.5, "FPR": 0.0, "AUC(pos, neg)": 1.0,
        "AUC(pos, rest neg)": 0.75, "AUC(rest pos, neg)": 1.0, "AUC(all, rest)": 5 / 16,
    }  # fmt: skip
    assert found.readings["ED"] == {"max": 0.5, "sum": 1.0}


def test_arrays_of_every_sort_give_the_same() -> None:
    import pandas as pd
    import torch

    expected = fairssl.score(SCORE, TARGET, GROUP)
    codes = [0] * 4 + [1] * 4
    frame = pd.DataFrame({"p": SCORE, "y": np.array(TARGET, dtype=bool), "a": pd.Categorical(GROUP)})
    assert fairssl.score(frame["p"], frame["y"], frame["a"]).metrics == expected.metrics
    assert fairssl.score(np.array(SCORE), np.array(TARGET, np.uint8), np.array(GROUP)).metrics == expected.metrics
    nullable = pd.Series(TARGET, dtype="Int64"), pd.Series(GROUP, dtype="string")
    assert fairssl.score(tuple(SCORE), *nullable).metrics == expected.metrics
    as_tensors = [torch.tensor(values, requires_grad=i == 0) for i, values in enumerate((SCORE, TARGET, codes))]
    found = fairssl.score(*as_tensors)
    assert found.groups == {"0": 4, "1": 4}
    exact = fairssl.score(np.array(SCORE, np.float32), TARGET, codes)  # float32 scores, not rounded any further
    assert found.metrics == exact.metrics
    half = fairssl.score(torch.tensor(SCORE, dtype=torch.bfloat16), TARGET, codes)
    assert half.metrics["EO"] == 0.5
    assert fairssl.score(iter(SCORE), TARGET, GROUP).metrics == expected.metrics


def test_undefined_is_none_with_a_reason() -> None:
    found = fairssl.score([0.8, 0.2, 0.6, 0.3], [1, 0, 0, 0], [0, 0, 1, 1], groups=[0, 1, 2])
    assert found.metrics["DP"] is None and found.undefined["DP"] == "group 2 has 0 samples"
    assert found.by_group["1"]["TPR"] is None and found.by_group["2"]["Acc"] is None
    partial = fairssl.score([0.8, 0.2, 0.6, 0.3], [1, 0, 0, 0], [0, 0, 1, 1], groups=[0, 1, 2], undefined="omit")
    assert partial.metrics["DP"] == 0 and partial.partial["DP"] == "mean of 1 of 3 parts, the others undefined"


def four_groups(n: int = 400) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    target, group = np.arange(n) % 2, np.arange(n) // 2 % 4
    return (
        1 / (1 + np.exp(-(rng.normal(size=n) + 2 * target - 1 + [0, 1, 0, 2] @ (group == np.arange(4)[:, None])))),
        target,
        group,
    )


def test_more_than_two_groups_are_nominal_unless_said_to_be_ordered() -> None:  # A9
    arrays = four_groups()
    nominal, ordered = fairssl.score(*arrays), fairssl.score(*arrays, ordered=True)
    assert nominal.metrics == fairssl.score(*arrays, pairs="all").metrics
    assert ordered.metrics == fairssl.score(*arrays, pairs="adjacent").metrics
    assert ordered.metrics["DP"] > nominal.metrics["DP"]  # type: ignore[operator]
    assert fairssl.score(*arrays, pairs="max", ordered=True).metrics["DP"] > ordered.metrics["DP"]  # type: ignore[operator]
    assert "nominal unless said to be ordered" in str(nominal) and "3 adjacent pairs" in str(ordered)
    assert "unless" not in str(fairssl.score(*arrays, ordered=False))


def test_intervals_and_floors_as_a_table() -> None:
    found = fairssl.score(*four_groups(), n_bootstrap=100, n_permutations=40)
    frame = found.to_pandas().set_index("metric")
    assert list(frame.columns) == ["value", "low", "high", "floor", "inside_floor", "better", "undefined"]
    assert (frame["value"].dtype, frame["low"].dtype) == (np.float64, np.float64)
    assert frame.loc["DP", "low"] == found.intervals["DP"].low < frame.loc["DP", "value"] < frame.loc["DP", "high"]
    assert frame.loc["GAUC", "floor"] == found.floors["GAUC"].high
    assert frame.loc["GAUC", "inside_floor"] is False and frame.loc["Acc", "inside_floor"] is None
    assert np.isnan(frame.loc["ECEGap", "low"])
    empty = fairssl.score([0.8, 0.2], [1, 0], [0, 0], groups=[0, 1]).to_pandas().set_index("metric")
    assert np.isnan(empty.loc["DP", "value"]) and empty.loc["DP", "undefined"] == "group 1 has 0 samples"


def test_dictionary_is_json_and_text_is_a_table() -> None:
    found = fairssl.score(*four_groups(), n_bootstrap=100, n_permutations=20)
    values = json.loads(json.dumps(found.to_dict(with_readings=True), allow_nan=False))
    assert values["metrics"] == found.metrics and values["pairs"] == "all"
    assert values["readings"]["by_group"]["3"] == found.by_group["3"]
    text = str(found)
    assert text.startswith("400 predictions: target target, score > 0.5 predicts 1, groups by group\n")
    dp = next(line for line in text.splitlines() if line.startswith("DP "))
    assert dp.split()[1] == f"{100 * found.metrics['DP']:.2f}"  # type: ignore[operator]
    assert "other readings" not in text and "other readings" in found.text(with_readings=True)


def test_the_same_seed_gives_the_same_intervals() -> None:
    first, again, other = (fairssl.score(*four_groups(), n_bootstrap=100, n_permutations=20, seed=s) for s in (1, 1, 2))
    assert (first.intervals, first.floors) == (again.intervals, again.floors)
    assert first.intervals != other.intervals and first.floors != other.floors


@pytest.mark.parametrize(
    ("arguments", "more", "said"),
    [
        (([0.5, 1.5], [0, 1], [0, 1]), {}, "score is outside [0, 1] in 1 of 2 rows"),
        (([0.5, None], [0, 1], [0, 1]), {}, "score is NaN in 1 of 2 rows"),
        (([0.5, 0.4], [0, 2], [0, 1]), {}, "target is not 0 or 1"),
        (([0.5, 0.4], [0, 1], [0]), {}, "group has one group, '0'"),
        (([0.5, 0.4], [0, 1], [0, 1, 0]), {}, "score has 2, target has 2, group has 3"),
        (([0.5, 0.4], [0, 1], ["a", float("nan")]), {}, "group has no group in 1 of 2 rows"),
        (([0.5, 0.4], [0, 1], ["a", "b"]), {"groups": ["a"]}, "group has one group, 'a'"),
        (([0.5, 0.4], [0, 1], ["a", "b"]), {"groups": ["a", "c"]}, "outside the declared groups a, c"),
        (([[0.5, 0.5], [0.4, 0.6]], [0, 1], [0, 1]), {}, "score has shape (2, 2)"),
        (([0.5, 0.4], [0, 1], [[0], [1]]), {}, "group holds lists"),
        ((0.5, 1, 0), {}, "group has one group"),
        (([0.5, 0.4], [0, 1], [0, 1]), {"pairs": "al"}, "pairs 'al' is unknown; did you mean 'all'?"),
        (([0.5, 0.4], [0, 1], [0, 1]), {"undefined": "skip"}, "undefined 'skip' is unknown"),
        (
            ([0.5, 0.4], [0, 1], [0, 1]),
            {"pairs": "adjacent", "ordered": False},
            "pairs 'adjacent' need groups in order",
        ),
        (([0.5, 0.4], [0, 1], [0, 1]), {"n_bootstrap": -1}, "bootstrap -1 is no number"),
        (([0.5, 0.4], [0, 1], [0, 1]), {"n_bootstrap": 5}, "bootstrap 5: too few for the ends of a 95 % interval"),
        (([0.5, 0.4], [0, 1], [0, 1]), {"n_permutations": 5}, "permutations 5: too few for the 95 % quantile"),
    ],
)
def test_what_cannot_be_scored(arguments: tuple[object, ...], more: dict[str, object], said: str) -> None:
    with pytest.raises(UserError) as error:
        fairssl.score(*arguments, **more)  # type: ignore[arg-type]
    assert said in str(error.value) and "\n" not in str(error.value)


def test_it_is_found_lazily_and_loads_no_torch() -> None:
    code = (
        "import fairssl, sys; assert 'numpy' not in sys.modules; "
        "print(fairssl.score([.9, .1, .4, .6], [1, 0, 1, 0], list('aabb')).metrics['Acc'], "
        "{'torch', 'sklearn', 'pandas', 'scipy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0.5 set()"
