"""The main job on files: UTKFace where it is (FAIRSSL_DATA), CelebA's two layouts with generated images."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from reference.celeba_layout import write_celeba

from fairssl.cli import run
from fairssl.store.runs import RunStore

REAL = Path(os.environ.get("FAIRSSL_DATA", "nowhere"))
HEADLINE = ("Acc", "ED", "EO", "DP", "IntraAUC", "InterAUC", "GAUC", "WD", "KL")


@pytest.mark.slow
@pytest.mark.skipif(not list(REAL.glob("utkface*.zip")), reason="FAIRSSL_DATA holds no utkface*.zip")
def test_utkface_end_to_end_at_reduced_size(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "--method", "sofclr", "--dataset", "utkface", "--attr", "ethnicity", "--target", "gender"]
    words += ["--data-dir", str(REAL), "--preset", "smoke", "--encoder", "small_cnn", "--seeds", "2"]
    words += ["--out", str(tmp_path), "--json"]
    assert run(words) == 0
    (row,) = json.loads(capfd.readouterr().out)
    assert row["n_seeds"] == 2 and row["failed"] == 0 and "undefined" not in row
    assert all(row[symbol]["sd"] is not None for symbol in HEADLINE)
    assert (
        row["Acc"]["mean"] > 0.6
    )  # one epoch at 32 px already finds gender better than chance, by twenty standard errors
    records = list(RunStore(tmp_path).records())
    facts = records[0].facts
    assert facts["n_train"] == 10_000 and facts["n_annotated"] == 500 and facts["positive"] == "male"
    assert facts["groups"] == ["Caucasian", "others"]
    cells = {n for row in records[0].cells.values() for n in row.values()}
    assert len(cells) == 1 and cells.pop() >= 670  # balanced, as large as is feasible
    assert any("skipped" in note or "malformed" in note for note in records[0].notes)


@pytest.mark.parametrize("form", ["torchvision", "kaggle"])
def test_celeba_end_to_end_on_either_layout(form: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Equal images and labels in two layouts: one fingerprint, so one result, also for a grid of two attributes."""
    write_celeba(tmp_path / "data", 160, form=form)
    words = ["bench", "--method", "simclr,sofclr", "--dataset", "celeba", "--attr", "male,young"]
    words += ["--target", "attractive", "--data-dir", str(tmp_path / "data"), "--encoder", "small_cnn"]
    words += ["--preset", "smoke", "--image-size", "16", "--batch-size", "32", "--annotated", "0.2"]
    words += ["--set", "data.min_cell=1", "--seeds", "1", "--out", str(tmp_path / "runs"), "--json"]
    assert run(words) == 0
    rows = json.loads(capfd.readouterr().out)
    assert [(row["method"], row["attr"]) for row in rows] == [
        ("simclr", "male"),
        ("sofclr", "male"),
        ("simclr", "young"),
        ("sofclr", "young"),
    ]
    assert len(list((tmp_path / "runs" / "pretrain").iterdir())) == 3  # simclr once for both attributes
    fingerprints = {r.spec["data"]["fingerprint"] for r in RunStore(tmp_path / "runs").records()}
    assert len(fingerprints) == 1
    FINGERPRINTS.append(fingerprints.pop())
    assert len(set(FINGERPRINTS)) == 1


FINGERPRINTS: list[str] = []
