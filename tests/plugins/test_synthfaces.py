"""The drawn faces: what stays fixed, what the correlation does, and that plain classifiers tell the cues apart."""

from __future__ import annotations

import inspect
import itertools
import math

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from fairssl import kinds
from fairssl.types import Split, Splits, UserError

NAMES = ("male", "young", "attractive", "big_nose", "bags_under_eyes")
SMALL = {"n_train": 64, "n_val_per_cell": 4, "n_test_per_cell": 5}


def load(target="attractive", attribute="male", size=32, split_seed=0, **params) -> Splits:
    return kinds.datasets.build("synthfaces", params).load(None, target, attribute, size, split_seed)


def parts(splits: Splits) -> tuple[Split, Split, Split]:
    return splits.train, splits.val, splits.test


def cells(split: Split) -> list[int]:
    return np.bincount(2 * split.target + split.group, minlength=4).tolist()


def test_shapes_and_types():
    splits = load(size=24, **SMALL)
    assert [len(s) for s in parts(splits)] == [64, 16, 20]
    for split in parts(splits):
        assert split.images.dtype == np.uint8
        assert split.images.shape == (len(split), 3, 24, 24)
        assert split.target.dtype == split.group.dtype == np.int64
        assert split.images.std(axis=(1, 2, 3)).min() > 10  # no face is blank
    assert splits.groups == ("not male", "male")


def test_same_bytes_on_every_call_and_other_faces_from_another_seed():
    first, second, other = load(**SMALL), load(**SMALL), load(split_seed=1, **SMALL)
    for a, b, c in zip(parts(first), parts(second), parts(other), strict=True):
        assert a.images.tobytes() == b.images.tobytes()
        assert a.target.tolist() == b.target.tolist() and a.group.tolist() == b.group.tolist()
        assert list(a.ids) == list(b.ids)
        assert not np.array_equal(a.images, c.images) and not set(a.ids) & set(c.ids)


def test_more_training_images_leave_the_first_ones_and_the_test_set_alone():
    # 100 and 200 are no multiples of the chunk that is drawn at once
    few, many = load(**SMALL | {"n_train": 100}), load(**SMALL | {"n_train": 200})
    assert np.array_equal(few.train.images, many.train.images[:100])
    assert few.train.target.tolist() == many.train.target[:100].tolist()
    assert list(few.train.ids) == list(many.train.ids[:100])
    for a, b in zip(parts(few)[1:], parts(many)[1:], strict=True):
        assert np.array_equal(a.images, b.images) and list(a.ids) == list(b.ids)


def test_the_outline_is_what_is_loaded_without_pixels(monkeypatch):
    monkeypatch.setattr(inspect.getmodule(kinds.datasets.get("synthfaces")), "OUTLINED", 7)  # other chunks than load's
    whole, outline = load(**SMALL), kinds.datasets.build("synthfaces", SMALL).outline(None, "attractive", "male")
    for a, b in zip(parts(whole), parts(outline), strict=True):
        assert b.images.shape == (len(a), 0) and list(a.ids) == list(b.ids)
        assert a.target.tolist() == b.target.tolist() and a.group.tolist() == b.group.tolist()
        assert all(np.array_equal(a.attributes[name], b.attributes[name]) for name in NAMES)


def test_ids_are_unique_and_no_face_is_in_two_splits():
    splits = load(n_train=500, n_val_per_cell=50, n_test_per_cell=50)
    ids = [i for split in parts(splits) for i in split.ids]
    faces = {image.tobytes() for split in parts(splits) for image in split.images}
    assert len(set(ids)) == len(ids) == len(faces) == 900


@pytest.mark.parametrize("large", [64, 96])
def test_every_size_shows_the_same_faces(large):
    small = load(size=32, **SMALL).train.images.astype(float)
    factor = large // 32
    big = load(size=large, **SMALL).train.images.astype(float)
    big = big.reshape(64, 3, 32, factor, 32, factor).mean(axis=(3, 5))
    same = np.abs(small - big).mean(axis=(1, 2, 3))
    another = np.abs(small - np.roll(big, 1, axis=0)).mean(axis=(1, 2, 3))
    assert same.max() < 5  # of 255: edges only
    assert another.min() > 3 * same.max()


def test_validation_and_test_are_balanced_exactly():
    splits = load(n_train=16, n_val_per_cell=7, n_test_per_cell=9)
    assert cells(splits.val) == [7] * 4
    assert cells(splits.test) == [9] * 4
    card = kinds.datasets.get("synthfaces")
    assert card.Config().n_test_per_cell >= 500


@pytest.mark.parametrize(
    ("target", "attribute", "sign"), [("attractive", "male", -1), ("young", "attractive", 1), ("male", "big_nose", 1)]
)
@pytest.mark.parametrize("correlation", [0.5, 0.8, 0.95])
def test_training_has_the_correlation_that_was_asked_for(target, attribute, sign, correlation):
    n = 4000
    train = load(target, attribute, size=8, **SMALL | {"n_train": n, "correlation": correlation}).train
    agree = (train.target == train.group) if sign > 0 else (train.target != train.group)
    tolerance = 4 * math.sqrt(0.25 / (n / 2))  # four standard errors within a group
    assert train.group.mean() == pytest.approx(0.5, abs=tolerance)
    for g in (0, 1):
        assert agree[train.group == g].mean() == pytest.approx(correlation, abs=tolerance)


@pytest.mark.parametrize(("target", "attribute"), [*itertools.permutations(NAMES, 2)])
def test_every_pair_works(target, attribute):
    splits = load(target, attribute, size=16, **SMALL)
    assert cells(splits.test) == [5] * 4
    assert min(cells(splits.train)) > 0
    assert splits.groups == (f"not {attribute}", attribute)


@pytest.mark.parametrize("name", NAMES)
def test_target_shows_and_cue_noise_hides_it(name):
    """The mean face of the positives differs from the others' less and less as the cue drowns."""
    attribute = "male" if name != "male" else "young"

    def contrast(noise: float) -> float:
        s = load(name, attribute, n_train=16, n_val_per_cell=1, n_test_per_cell=150, cue_noise=noise).test
        x = s.images.astype(float)
        return float(np.abs(x[s.target == 1].mean(0) - x[s.target == 0].mean(0)).max())

    clear, drowned = contrast(0.2), contrast(20.0)
    assert clear > 1.5 * drowned


def test_inspect_tells_configurations_apart_and_needs_no_files(tmp_path):
    build = kinds.datasets.build
    facts = build("synthfaces", {}).inspect(None)
    assert facts == build("synthfaces", {}).inspect(tmp_path / "missing")
    assert facts.max_image_size is None
    assert facts.n_images == sum(map(len, parts(load(size=8))))
    others = [{"n_train": 100}, {"correlation": 0.8}, {"cue_noise": 0.3}, {"group_noise": 0.1}, {"cue_size": 0.9}]
    assert len({facts.fingerprint, *(build("synthfaces", p).inspect(None).fingerprint for p in others)}) == 6


def test_the_note_says_what_was_drawn():
    (note,) = load(**SMALL).notes
    assert "64 training" in note and "P(not attractive | male) = 0.7" in note
    assert "4 x 4" in note and "4 x 5" in note
    assert "84.1%" in load(**SMALL | {"cue_noise": 1.0}).notes[0]  # Phi(1) by the table


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"correlation": 1.2}, r"synthfaces.correlation: .*1\.2"),
        ({"n_trains": 5}, "no parameter 'n_trains'; did you mean 'n_train'"),
    ],
)
def test_mistakes_are_one_line(change, says):
    with pytest.raises(UserError, match=says) as caught:
        load(**change)
    assert "\n" not in str(caught.value)


def test_progress_counts_to_the_end():
    seen = []
    data = kinds.datasets.build("synthfaces", SMALL)
    data.load(None, "attractive", "male", 32, progress=lambda what, done, total: seen.append((done, total)))
    assert seen[-1] == (100, 100)
    assert [d for d, _ in seen] == sorted(d for d, _ in seen)


def features(images: np.ndarray) -> np.ndarray:
    """(N, 3, 32, 32) -> (N, 256): luminance and its slopes, averaged over 4 x 4 pixels."""
    grey = np.tensordot(images.astype(np.float32), np.array([0.3, 0.59, 0.11], np.float32), axes=([1], [0])) / 255
    across = np.diff(grey, axis=2, append=grey[:, :, -1:])
    along = np.diff(grey, axis=1, append=grey[:, -1:])
    planes = (grey, np.abs(across), np.abs(along), np.maximum(along, 0))
    return np.concatenate([p.reshape(-1, 8, 4, 8, 4).mean((2, 4)).reshape(len(grey), -1) for p in planes], axis=1)


def probe(correlation: float, target: str = "attractive", attribute: str = "male") -> dict[str, float]:
    """A linear probe on plain features: accuracy, ED (mean of TPR gap and FPR gap), and how well it finds the group."""
    splits = load(target, attribute, correlation=correlation)
    train, test = features(splits.train.images), features(splits.test.images)

    def fit_predict(labels: np.ndarray) -> np.ndarray:
        return make_pipeline(StandardScaler(), LogisticRegression(C=0.01)).fit(train, labels).predict(test)

    said, y, g = fit_predict(splits.train.target), splits.test.target, splits.test.group
    gaps = [abs(said[(y == k) & (g == 0)].mean() - said[(y == k) & (g == 1)].mean()) for k in (0, 1)]
    return {
        "acc": float((said == y).mean()),
        "ed": float(np.mean(gaps)),
        "group": float((fit_predict(splits.train.group) == g).mean()),
    }


def test_correlated_training_makes_a_probe_unfair_and_less_accurate():
    fair, unfair = probe(0.5), probe(0.8)
    assert 0.72 < fair["acc"] < 0.88  # the fair cue is enough, and is not everything
    assert 0.68 < unfair["acc"] < fair["acc"] - 0.01  # the group misleads on a balanced test set
    assert fair["ed"] < 0.08
    assert unfair["ed"] > fair["ed"] + 0.10
    assert fair["group"] > 0.90 and unfair["group"] > 0.90  # the group is there to be leaned on
