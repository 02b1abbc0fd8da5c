"""Two rows beside each other: what the command prints is scipy's test of the records, whichever is named first."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from reference import scored
from reference.checkout import ROOT
from reference.command import fairssl
from scipy import stats

from fairssl.board.load import tables_of
from fairssl.store.runs import RunStore

DEMO = ROOT / "leaderboards" / "demo"


def compared(folder: Path, a: str, b: str, *words: str) -> list[dict[str, Any]]:
    code, out, err = fairssl("board", "compare", folder, "--row", a, "--row", b, "--json", *words)
    assert (code, err) == (0, ""), err
    found: list[dict[str, Any]] = json.loads(out)
    return found


def of_records(method: str, metric: str) -> list[float]:
    """Values by seed, as the records of the demo have them."""
    records = [json.loads(line) for line in (DEMO / "records.jsonl").read_text(encoding="utf-8").splitlines()]
    ours = {r["spec"]["seed"]: r["metrics"][metric] for r in records if r["spec"]["method"]["name"] == method}
    return [ours[seed] for seed in sorted(ours)]


def holm_by_hand(p: list[float]) -> list[float]:
    """The k-th smallest of m times m - k + 1, none below a smaller one's, none above 1."""
    order = sorted(range(len(p)), key=lambda i: p[i])
    found = [0.0] * len(p)
    for rank, i in enumerate(order):
        found[i] = min(1.0, max(p[j] * (len(p) - k) for k, j in enumerate(order[: rank + 1])))
    return found


def test_the_command_gives_scipys_paired_test_of_the_records_corrected_by_holm() -> None:
    found = compared(DEMO, "sogclr", "sofclr")
    assert [one["metric"] for one in found][:2] == ["Acc", "ED"] and len(found) == 9
    for one in found:
        scale = 100 if one["metric"] in ("Acc", "ED", "EO", "DP") else 1
        a, b = of_records("sogclr", one["metric"]), of_records("sofclr", one["metric"])
        test = stats.ttest_rel(a, b)
        interval = test.confidence_interval(0.95)
        assert one["p"] == pytest.approx(test.pvalue) and one["seeds"] == [0, 1, 2, 3]
        assert one["difference"] == pytest.approx(scale * sum(x - y for x, y in zip(a, b, strict=True)) / 4)
        assert (one["low"], one["high"]) == pytest.approx((scale * interval.low, scale * interval.high))
        assert one["mean_a"] == pytest.approx(scale * sum(a) / 4) and one["p_samples"] == {}
    assert [one["p_holm"] for one in found] == pytest.approx(holm_by_hand([one["p"] for one in found]))


def test_exchanging_the_names_changes_the_signs_and_nothing_else() -> None:
    found, other = (compared(DEMO, *names, "--samples", "30") for names in (("simclr", "sofclr"), ("sofclr", "simclr")))
    for one, back in zip(found, other, strict=True):
        assert one["difference"] == pytest.approx(-back["difference"])
        assert (one["low"], one["high"]) == pytest.approx((-back["high"], -back["low"]))
        assert (one["p"], one["p_holm"]) == pytest.approx((back["p"], back["p_holm"]))
        assert list(one["p_samples"]) == ["0", "1", "2", "3"] and one["p_samples"] == back["p_samples"]
        assert all(1 / 31 <= p <= 1 for p in one["p_samples"].values())


def test_the_table_says_what_its_columns_are() -> None:
    code, out, err = fairssl("board", "compare", DEMO, "--row", "sogclr", "--row", "sofclr", "--samples", "20")
    assert code == 0, err
    assert "## synthfaces: target attractive, attribute male: sogclr and sofclr\n" in out
    assert "Difference: sogclr less sofclr, over seeds 0, 1, 2, 3, with a t interval." in out
    assert "Holm: corrected for the 9 metrics. p by samples, of seeds 0, 1, 2, 3:" in out
    assert "| Metric | sogclr | sofclr | Difference | 95 % interval | p | p (Holm) | p by samples |\n" in out
    assert "| ΔED | 15.30 | 10.90 | +4.40 | " in out


def test_one_common_seed_has_no_test_and_the_reason(tmp_path: Path) -> None:
    scored.fill(tmp_path / "runs", ("simclr",), seeds=2)
    scored.fill(tmp_path / "runs", ("sofclr",), seeds=1)
    found = compared(tmp_path / "runs", "simclr", "sofclr")
    assert all(one["p"] is None and one["p_holm"] is None and one["seeds"] == [0] for one in found)
    assert all(one["reason"] == "1 common seed; a paired test needs two" for one in found)
    code, out, _ = fairssl("board", "compare", tmp_path / "runs", "--row", "simclr", "--row", "sofclr")
    assert code == 0 and "over seed 0, with" in out and "- 1 common seed; a paired test needs two." in out


def test_rows_of_a_sweep_are_named_as_the_table_does() -> None:
    folder = ROOT / "leaderboards" / "utkface_cpu_input"
    raw, normalized = "sofclr (adversary.input=raw)", "sofclr (adversary.input=normalized)"
    ed = next(one for one in compared(folder, normalized, raw) if one["metric"] == "ED")
    assert ed["difference"] == pytest.approx(3.79, abs=0.01) and ed["p"] == pytest.approx(0.038, abs=0.001)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--row", "simclr"), "--row: name two different rows, as --row simclr --row sofclr (not simclr)"),
        (("--row", "simclr", "--row", "simclr"), "--row: name two different rows"),
        (("--row", "simclr", "--row", "sofcl"), "--row 'sofcl' is in no table; did you mean 'sofclr'"),
        (("--samples", "9", "--paper"), "--samples 9 belongs to --row; leave it out"),
        (("--paper", "--row", "simclr", "--row", "sofclr"), "name what to compare: --paper, or two rows"),
        ((), "name what to compare: --paper, or two rows, as --row simclr --row sofclr"),
    ],
)
def test_mistakes_are_one_line(words: tuple[str, ...], message: str) -> None:
    code, out, err = fairssl("board", "compare", DEMO, *words)
    assert (code, out) == (2, "") and err.startswith("fairssl: error: ") and err.count("\n") == 1
    assert message in err


def test_a_method_of_several_rows_is_asked_for_by_label() -> None:
    code, _, err = fairssl(
        "board", "compare", ROOT / "leaderboards" / "utkface_cpu_input", "--row", "sofclr", "--row", "simclr"
    )
    assert code == 2 and "--row 'sofclr' may be sofclr (adversary.input=normalized) or" in err


def test_other_test_images_are_not_compared_sample_by_sample(tmp_path: Path) -> None:
    scored.fill(tmp_path / "runs", ("simclr", "sofclr"), seeds=2)
    store = RunStore(tmp_path / "runs")
    (table,) = tables_of(tmp_path / "runs")
    key = next(row.keys[0] for row in table.rows if row.label == "simclr")
    kept = store.read_predictions(key)
    assert kept is not None
    path = store.result_dir(key) / "predictions.csv.gz"
    path.write_bytes(replace(kept, ids=[f"other{i}" for i in range(len(kept.ids))]).to_csv_gz())
    words = ("board", "compare", tmp_path / "runs", "--row", "simclr", "--row", "sofclr", "--samples", "5")
    code, _, err = fairssl(*words)
    assert code == 2 and "were judged on different test images with seed 0; leave --samples out" in err
