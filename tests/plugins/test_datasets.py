"""Coloured digits, what every embedded dataset must hold, and the `data` command."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from reference.celeba_layout import write_celeba
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import matthews_corrcoef

from fairssl import cli, kinds
from fairssl.cli.data import association
from fairssl.types import Split, Splits

PARTS = ("train", "val", "test")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FAIRSSL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "nothing"))
    monkeypatch.delenv("FAIRSSL_DATA", raising=False)
    return tmp_path / "cache"


def digits(size: int = 16, seed: int = 0, **params) -> Splits:
    return kinds.datasets.build("colored_digits", params).load(None, "large", "color", size, split_seed=seed)


def cells(split: Split) -> list[list[int]]:
    return [[int(((split.target == y) & (split.group == a)).sum()) for a in (0, 1)] for y in (0, 1)]


def test_digits_are_split_once_each_and_balanced_where_they_are_judged():
    splits = digits()
    assert [len(getattr(splits, part)) for part in PARTS] == [997, 400, 400]
    assert cells(splits.val) == cells(splits.test) == [[100, 100], [100, 100]]
    sources = [name.partition("-")[0] for part in PARTS for name in getattr(splits, part).ids]
    assert len(set(sources)) == len(sources) == 1797


def test_digits_agree_in_the_share_that_was_set():
    assert cells(digits(correlation=0.8).train) == [[401, 100], [99, 397]]  # of 501 and 496
    assert cells(digits(correlation=0.5).train) == [[250, 251], [248, 248]]
    assert cells(digits(correlation=1.0).train) == [[501, 0], [0, 496]]


def test_digits_keep_their_labels_and_colours():
    from sklearn.datasets import load_digits

    digit = load_digits().target
    for part in PARTS:
        split = getattr(digits(correlation=0.9, hue_sd=0.0), part)
        for i, name in enumerate(split.ids):
            source, color = name.removeprefix("digit").split("-")
            assert split.target[i] == (digit[int(source)] >= 5)
            assert ("red", "green")[split.group[i]] == color
        red, green = split.images[:, 0].mean((1, 2)), split.images[:, 1].mean((1, 2))
        assert ((green > red) == (split.group == 1)).all()


def test_digits_are_the_same_for_the_same_split_seed():
    one, two, other = digits(), digits(), digits(seed=1)
    for part in PARTS:
        assert getattr(one, part).ids == getattr(two, part).ids != getattr(other, part).ids
        assert (getattr(one, part).images == getattr(two, part).images).all()


def test_digits_look_alike_at_every_size():
    small, large = digits(16), digits(48)
    assert small.val.ids == large.val.ids and large.val.images.shape == (400, 3, 48, 48)
    blocks = large.val.images.reshape(400, 3, 16, 3, 16, 3).mean((3, 5))
    assert abs(blocks - small.val.images).mean() < 3


def linear(splits: Splits, what: str) -> np.ndarray:
    """Predictions on test of a linear classifier of pixels trained on train."""
    train, test = ((s.images / 255.0).reshape(len(s), -1) for s in (splits.train, splits.test))
    return LogisticRegression(C=0.1, max_iter=500).fit(train, getattr(splits.train, what)).predict(test)


def gap(splits: Splits, predicted: np.ndarray) -> float:
    """Equalized odds difference, by hand: mean over y of the gap between colours in the share predicted large."""
    test = splits.test
    rate = [[predicted[(test.target == y) & (test.group == a)].mean() for a in (0, 1)] for y in (0, 1)]
    return float(np.mean([abs(r[0] - r[1]) for r in rate]))


def test_digits_discriminate():
    """A linear classifier of pixels is right more often than not and unfair; without the correlation it is fair and better."""
    biased, neutral = digits(correlation=0.8), digits(correlation=0.5)
    unfair, fair = linear(biased, "target"), linear(neutral, "target")
    assert 0.75 < (unfair == biased.test.target).mean() < 0.88
    assert 0.86 < (fair == neutral.test.target).mean() < 0.95
    assert gap(biased, unfair) > 0.15 > 0.08 > gap(neutral, fair)
    assert 0.93 < (linear(biased, "group") == biased.test.group).mean() < 1.0  # distinct, and not trivially


def run(capsys, *args: str) -> tuple[int, str, str]:
    code = cli.run(["data", *map(str, args)])
    return code, *capsys.readouterr()


def test_list_says_what_is_here_and_what_to_do_where_it_is_not(capsys, tmp_path):
    write_celeba(tmp_path / "d" / "celeba", 10)
    code, out, _ = run(capsys, "list", "--json", "--data-dir", tmp_path / "d")
    rows = {row["name"]: row for row in json.loads(out)}
    assert code == 0 and {"celeba", "colored_digits", "synthfaces", "utkface"} <= set(rows)
    assert rows["celeba"]["found"] and rows["celeba"]["images"] == 10
    assert rows["colored_digits"]["found"] and rows["colored_digits"]["embedded"]
    assert rows["utkface"]["found"] is False and "UTKFace.tar.gz" in rows["utkface"]["missing"]
    assert rows["utkface"]["attributes"]["age"] == ["<=35", ">35"]
    _, out, _ = run(capsys, "list")
    assert all(name in out for name in rows) and "non-commercial" in out


def test_prepare_prints_counts_notes_and_correlations(capsys, tmp_path):
    (tmp_path / "d").mkdir()
    write_celeba(tmp_path / "d", 40)
    words = ("prepare", "celeba", "--data-dir", tmp_path / "d", "--image-size", "16", "--set", "data.min_cell=0")
    code, out, err = run(capsys, *words)
    assert code == 0 and err == ""  # no bar where stderr is not a terminal
    lines = [line.split() for line in out.splitlines()]
    assert ["split", "attractive", "not", "male", "male", "all"] in lines
    assert ["train", "1", "12", "4", "16"] in lines  # of eight in turn, four are attractive, one of them male
    assert ["male", "-0.500"] in lines  # a quarter agree, three disagree, by construction
    assert "departure: not all images of the official partition: train 32 of 162,770" in out
    code, out, _ = run(capsys, *words, "--json")
    row = json.loads(out)
    assert row["departures"][0].startswith("not all images") and len(row["notes"]) == 1
    assert row["notes"][0].startswith("smallest test cell: no image of attractive = 0 and male = not male")
    assert row["splits"]["train"]["cells"]["1"] == {"not male": 12, "male": 4}
    assert row["correlation"]["attractive"]["male"] == pytest.approx(-0.5)
    assert len(row["correlation"]) == 41


def test_prepare_of_embedded_data(capsys):
    code, out, _ = run(capsys, "prepare", "colored_digits", "--image-size", "8")
    assert code == 0 and "over the 997 training images" in out and "+0.300" in out


def test_verify_finds_an_image_in_two_splits(capsys, tmp_path):
    """Numbers 1 and 2 of train again as 29 (test) and 27 (val): fault D6."""
    root = tmp_path / "d"
    root.mkdir()
    write_celeba(root, 30)
    args = ("verify", "celeba", "--data-dir", root, "--image-size", "16")
    assert run(capsys, *args)[0] == 0
    folder = root / "img_align_celeba"
    shutil.copy(folder / "000001.jpg", folder / "000029.jpg")
    shutil.copy(folder / "000002.jpg", folder / "000027.jpg")
    code, out, _ = run(capsys, *args, "--json")
    row = json.loads(out)
    assert code == 1 and len(row["faults"]) == 2
    # 29th row: 28 % 8 = 4, not attractive and male; 27th: 26 % 8 = 2, the same
    assert row["cross_split_duplicates"]["train and test"]["n"] == {"not male": 0, "male": 1}
    assert row["cross_split_duplicates"]["train and val"]["n"] == {"not male": 0, "male": 1}
    code, out, _ = run(capsys, *args)
    assert code == 1 and "fault: duplicates: 1 image is in train and test (not male 0, male 1)" in out


def test_verify_finds_corrupt_images(capsys, tmp_path):
    root = tmp_path / "d"
    root.mkdir()
    write_celeba(root, 30)
    (root / "img_align_celeba" / "000003.jpg").write_bytes(b"no image")
    code, out, _ = run(capsys, "verify", "celeba", "--data-dir", root, "--image-size", "16")
    assert code == 1 and "fault: corrupt: 1 image" in out and "000003.jpg" in out


def test_verify_finds_a_cache_that_is_not_what_the_files_say(capsys, tmp_path, cache):
    root = tmp_path / "d"
    root.mkdir()
    write_celeba(root, 30)
    args = ("verify", "celeba", "--data-dir", root, "--image-size", "16")
    assert run(capsys, *args)[0] == 0
    (pack,) = (cache / "packs").iterdir()
    with (pack / "images.npy").open("r+b") as file:
        file.seek(-1, 2)
        last = file.read(1)
        file.seek(-1, 2)
        file.write(bytes([last[0] ^ 1]))
    code, out, _ = run(capsys, *args)
    assert code == 1 and "cached images or splits differ" in out
    assert len(list((cache / "packs").iterdir())) == 1  # nothing of the second decoding is left


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("prepare", "utkfase"), "did you mean 'utkface'"),
        (("prepare", "utkface"), "utkface is not at"),
        (("prepare", "celeba", "--data-dir", "/no/such"), "--data-dir '/no/such' does not exist"),
        (("prepare", "colored_digits", "--attr", "colour"), "did you mean 'color'"),
        (("verify", "colored_digits", "--target", "small"), "--target 'small'"),
        (("prepare", "colored_digits", "--image-size", "4"), "--image-size 4: must be at least 8"),
    ],
)
def test_mistakes_are_one_line(capsys, args, message):
    code, out, err = run(capsys, *args)
    assert code == 2 and out == "" and message in err and err.count("\n") == 1


def test_no_image_size_above_the_stored_one(capsys, tmp_path):
    write_celeba(tmp_path, 30)
    code, _, err = run(capsys, "prepare", "celeba", "--data-dir", tmp_path, "--image-size", "45")
    assert code == 2 and "stored at 44 px" in err
    code, out, _ = run(capsys, "prepare", "celeba", "--data-dir", tmp_path, "--set", "data.min_cell=0")
    assert code == 0 and "44 px" in out


def test_association_is_phi_and_cramers_v():
    rng = np.random.default_rng(0)
    y, a = rng.integers(0, 2, 200), rng.integers(0, 2, 200)
    assert association(y, a) == pytest.approx(matthews_corrcoef(y, a))
    assert association(y, y) == pytest.approx(1) and association(y, 1 - y) == pytest.approx(-1)
    assert association(y, np.zeros(200, int)) is None and association(np.ones(200, int), a) is None
    assert association(y, np.where(y == 1, 2, a)) == pytest.approx(1)  # the group tells the target
    assert association(np.array([0, 0, 0, 1, 1, 1]), np.array([0, 1, 2, 0, 1, 2])) == pytest.approx(0)
    assert association(np.array([0, 1, 0, 1]), np.array([0, 1, -1, -1])) == pytest.approx(1)  # unknown groups left out


def test_datasets_need_no_torch():
    code = (
        "import sys; from fairssl import kinds\n"
        "for name in kinds.datasets.where(): kinds.datasets.build(name, {})\n"
        "assert not {'torch', 'sklearn'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
