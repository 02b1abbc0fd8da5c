"""UTKFace: labels from names, duplicates, the paper's counts, splits that depend on names and split_seed alone."""

from __future__ import annotations

import os
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
from reference.utkface_files import image, people, write_faces

from fairssl import kinds
from fairssl.data.files import short_id
from fairssl.types import Splits, UserError

PARTS = ("train", "val", "test")
MALFORMED = ("61_3_20170109150557335.jpg", "53__0_20170116184028385.jpg", "39_1_20170116174525125.jpg.chip.jpg")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRSSL_CACHE", str(tmp_path / "cache"))


def build(**params):
    return kinds.datasets.build("utkface", params)


def cells(splits: Splits, part: str) -> list[list[int]]:
    """Counts by (female, male) x group."""
    split = getattr(splits, part)
    return [[int(((split.target == y) & (split.group == a)).sum()) for a in range(len(splits.groups))] for y in (0, 1)]


def ids(splits: Splits) -> dict[str, tuple[str, ...]]:
    return {part: tuple(getattr(splits, part).ids) for part in PARTS}


def check_disjoint(splits: Splits) -> None:
    seen = [name for part in PARTS for name in getattr(splits, part).ids]
    assert len(seen) == len(set(seen))
    content = [image.tobytes() for part in PARTS for image in getattr(splits, part).images]
    assert len(content) == len(set(content))


EVEN = {(30, g, r): 40 for g in (0, 1) for r in (0, 2)}


def test_malformed_names_are_skipped_listed_and_counted(tmp_path):
    root = write_faces(tmp_path / "utk", [*people(EVEN), *MALFORMED])
    facts = build().inspect(root)
    splits = build().load(root, "gender", "ethnicity", 10)
    assert facts.n_images == 160
    assert splits.groups == ("Caucasian", "others")
    (note,) = [note for note in splits.notes if note.startswith("malformed")]
    assert note.startswith("malformed: 3 names") and all(name in note for name in MALFORMED)
    assert set(splits.train.group) == {0, 1}


def test_odd_tails_are_valid_names(tmp_path):
    odd = ["24_0_1_20170116220224657 .jpg.chip.jpg", "55_0_0_20170116232725357jpg.chip.jpg", "9_1_4_1.jpg"]
    labels = build().labels(write_faces(tmp_path / "utk", odd))
    assert labels["gender"].tolist() == [1, 1, 0]  # in the names, 0 is male; for us, y = 1 is
    assert labels["ethnicity"].tolist() == [1, 0, 1]
    assert labels["ethnicity5"].tolist() == [1, 0, 4]
    assert labels["age"].tolist() == [0, 1, 0]
    assert labels["age4"].tolist() == [1, 2, 0]


@pytest.mark.parametrize(
    ("age", "two", "four"), [(20, 0, 0), (21, 0, 1), (35, 0, 1), (36, 1, 2), (60, 1, 2), (61, 1, 3), (116, 1, 3)]
)
def test_ages_are_cut_after_20_35_and_60(tmp_path, age, two, four):
    labels = build().labels(write_faces(tmp_path, [f"{age}_0_0_1.jpg"]))
    assert (labels["age"].tolist(), labels["age4"].tolist()) == ([two], [four])


def test_where_the_images_lie_does_not_matter(tmp_path):
    """A folder, one named like an image, UTKFace/ in a folder, a zip, a zip in a folder, parts: the same splits."""
    plain = write_faces(tmp_path / "DATA" / "25_0_1" / "UTK", people(EVEN))
    inside = tmp_path / "in"
    shutil.copytree(plain, inside / "UTKFace")
    zipped = tmp_path / "z"
    zipped.mkdir()
    with zipfile.ZipFile(zipped / "utkface-small.zip", "w") as archive:
        for path in sorted(plain.iterdir(), reverse=True):  # another order of the files
            archive.write(path, f"UTKFace/{path.name}")
    roots = [plain, inside, inside / "UTKFace", zipped, zipped / "utkface-small.zip"]
    facts = {build().inspect(root) for root in roots}
    assert len(facts) == 1
    want = build().load(plain, "gender", "ethnicity", 10)
    for root in roots[1:]:
        got = build().load(root, "gender", "ethnicity", 10)
        assert ids(got) == ids(want)
        assert (got.test.images == want.test.images).all()


def test_the_order_of_the_files_does_not_matter_and_the_split_seed_does(tmp_path):
    names = people(EVEN)
    first = build().load(write_faces(tmp_path / "a", names), "gender", "ethnicity", 10)
    parts = tmp_path / "b"  # the same files in two folders: they sort otherwise
    for seed, name in enumerate(names):
        folder = parts / f"part{seed % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        image(folder / name, seed)
    again = build().load(parts, "gender", "ethnicity", 10)
    other = build().load(tmp_path / "a", "gender", "ethnicity", 10, split_seed=1)
    assert ids(again) == ids(first)
    assert set(other.test.ids) != set(first.test.ids)
    assert cells(other, "test") == cells(first, "test")
    assert (again.train.images == first.train.images).all()


def test_labels_and_images_belong_together(tmp_path):
    names = people(EVEN)
    root = write_faces(tmp_path / "a", names)
    by_id = {short_id(name): (seed, name) for seed, name in enumerate(names)}
    splits = build().load(root, "gender", "ethnicity", 10)
    for part in PARTS:
        split = getattr(splits, part)
        for i, name in enumerate(split.ids):
            seed, file = by_id[name]
            _, gender, race, _ = file.split("_")
            assert split.target[i] == (gender == "0") and split.group[i] == (race != "0")
            pixels = np.random.default_rng(seed).integers(0, 256, (10, 10, 3), dtype=np.uint8)
            assert (split.images[i] == pixels.transpose(2, 0, 1)).all()


def test_identical_images_are_kept_once_or_dropped_whole(tmp_path):
    root = write_faces(tmp_path / "a", people(EVEN))
    first, agrees, differs = "30_0_0_1.jpg", "30_0_0_2.jpg", "31_0_0_9.jpg"
    for name in (first, agrees):
        image(root / name, 10_000)
    for name in (differs, "31_1_0_9.jpg"):
        image(root / name, 10_001)
    splits = build(n_train=150, n_eval=1).load(root, "gender", "ethnicity", 10)
    (note,) = [note for note in splits.notes if note.startswith("duplicates")]
    assert "2 groups of byte-identical images; the 1 whose names disagree" in note
    assert "161 of 164 images remain" in note
    check_disjoint(splits)
    everyone = {name for part in PARTS for name in getattr(splits, part).ids}
    assert not everyone & {short_id(agrees), short_id(differs), short_id("31_1_0_9.jpg")}


def test_two_groups_follow_the_papers_skew_and_balance_the_rest(tmp_path):
    root = write_faces(tmp_path / "a", people({(30, 0, 0): 60, (30, 0, 1): 60, (30, 1, 0): 60, (30, 1, 1): 60}))
    splits = build(n_train=100, n_eval=8).load(root, "gender", "ethnicity", 10)
    assert cells(splits, "train") == [[10, 40], [40, 10]]
    assert cells(splits, "val") == cells(splits, "test") == [[8, 8], [8, 8]]
    counts = "training: female/Caucasian 10, female/others 40, male/Caucasian 40, male/others 10"
    assert splits.notes == (f"{counts}; validation and test: 8 of each gender x group",)
    assert splits.departures == (  # fewer than the paper's are asked for
        "training: data.n_train=100 asks for 100 images instead of 10,000",
        "validation and test: data.n_eval=8 asks for 8 of each gender x group instead of 800",
    )
    check_disjoint(splits)


def test_by_age_too(tmp_path):
    root = write_faces(tmp_path / "a", people({(a, g, 0): 20 for a in (30, 50) for g in (0, 1)}))
    splits = build(n_train=40, n_eval=3).load(root, "gender", "age", 10)
    assert cells(splits, "train") == [[13, 7], [7, 13]]
    assert cells(splits, "val") == cells(splits, "test") == [[3, 3], [3, 3]]


def test_validation_and_test_shrink_first(tmp_path):
    """Male/Caucasian has 50 = 40 + 2 x 5, of the 56 = 40 + 2 x 8 wanted."""
    root = write_faces(tmp_path / "a", people({(30, 0, 0): 50, (30, 0, 1): 60, (30, 1, 0): 60, (30, 1, 1): 60}))
    splits = build(n_train=100, n_eval=8).load(root, "gender", "ethnicity", 10)
    assert cells(splits, "train") == [[10, 40], [40, 10]]
    assert cells(splits, "val") == cells(splits, "test") == [[5, 5], [5, 5]]
    assert "5 of each gender x group instead of 8: male/Caucasian has 50 different images" in splits.departures[0]


def test_with_few_images_all_counts_shrink_in_proportion(tmp_path):
    """Half of the 56 that male/Caucasian needs: half of everything."""
    root = write_faces(tmp_path / "a", people({(30, 0, 0): 28, (30, 0, 1): 60, (30, 1, 0): 60, (30, 1, 1): 60}))
    splits = build(n_train=100, n_eval=8).load(root, "gender", "ethnicity", 10)
    assert cells(splits, "train") == [[5, 20], [20, 5]]
    assert cells(splits, "val") == cells(splits, "test") == [[4, 4], [4, 4]]
    assert "scaled by 0.500: male/Caucasian has 28 different images of 56" in splits.departures[0]
    check_disjoint(splits)


def test_more_groups_leave_the_rest_to_training(tmp_path):
    sizes = {(30, g, r): 10 + 5 * r for g in (0, 1) for r in range(5)}
    splits = build().load(write_faces(tmp_path / "a", people(sizes)), "gender", "ethnicity5", 10)
    assert splits.groups == ("White", "Black", "Asian", "Indian", "Others")
    assert cells(splits, "val") == cells(splits, "test") == [[2] * 5] * 2  # a fifth of 10
    assert cells(splits, "train") == [[6, 11, 16, 21, 26]] * 2
    assert "2 of each gender x group, a fifth of female/White, which has 10 images" in splits.departures[0]


def test_four_groups_on_the_split_of_two(tmp_path):
    """The paper's table of four ages has the images of its table of two."""
    root = write_faces(tmp_path / "a", people({(a, g, 0): 20 for a in (10, 30, 50, 70) for g in (0, 1)}))
    two = build(n_train=40, n_eval=3).load(root, "gender", "age", 10)
    four = build(n_train=40, n_eval=3, split_by="age").load(root, "gender", "age4", 10)
    assert four.groups == ("<=20", "21-35", "36-60", ">60")
    for part in PARTS:
        coarse, fine = getattr(two, part), getattr(four, part)
        assert fine.ids == coarse.ids
        np.testing.assert_array_equal(fine.group >= 2, coarse.group == 1)
        assert len(np.unique(fine.group)) > 2
    assert four.notes[-1].endswith("validation and test: 3 of each gender x age")  # and not of each of the four
    assert four.departures[-1].endswith("asks for 3 of each gender x age instead of 800")


@pytest.mark.parametrize("attribute", ["ethnicity", "age", "ethnicity5"])
def test_a_group_too_small_for_every_split_is_the_users_error(tmp_path, attribute):
    root = write_faces(tmp_path / "a", people({(30, 0, 0): 30, (30, 0, 1): 30, (30, 1, 0): 30, (30, 1, 1): 1}))
    with pytest.raises(UserError, match=r"utkface: (male|female)/.* has \d+ different images?, too few"):
        build().load(root, "gender", attribute, 10)


def test_what_is_not_there_says_where_to_get_it(tmp_path):
    with pytest.raises(UserError, match=r"utkface is not at .*nowhere.*UTKFace.tar.gz"):
        build().inspect(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"holds no images \(it is empty\); download"):
        build().inspect(tmp_path / "empty")
    write_faces(tmp_path / "other", ["holiday.jpg"])
    with pytest.raises(UserError, match=r"has a name like .*holiday.jpg"):
        build().inspect(tmp_path / "other")
    for name in ("utkface-a.zip", "utkface-b.zip"):
        (tmp_path / "empty" / name).write_bytes(b"")
    with pytest.raises(UserError, match=r"utkface-a.zip and utkface-b.zip; point --data-dir at one"):
        build().inspect(tmp_path / "empty")


def test_a_page_saved_as_the_zip_is_recognised(tmp_path):
    (tmp_path / "utkface.zip").write_bytes(b"<!DOCTYPE html><html>Too many users have viewed this file</html>")
    with pytest.raises(UserError, match=r"utkface.zip.*is not an archive of images: it is a web page.*<!DOCTYPE html>"):
        build().inspect(tmp_path)


def test_a_corrupt_image_is_left_out_and_the_others_stay_where_they_were(tmp_path):
    root = write_faces(tmp_path / "a", people(EVEN))
    before = build(n_train=50, n_eval=5).load(root, "gender", "ethnicity", 10)
    spoilt = root / people(EVEN)[0]
    spoilt.write_bytes(b"no image")
    after = build(n_train=50, n_eval=5).load(root, "gender", "ethnicity", 10)
    assert any(note.startswith("corrupt: 1 image") and spoilt.name in note for note in after.notes)
    moved = sum(len(set(getattr(before, part).ids) ^ set(getattr(after, part).ids)) for part in PARTS)
    assert moved <= 6  # one image out and, at most, one in, per split


@pytest.fixture
def real() -> Path:
    root = os.environ.get("FAIRSSL_DATA")
    if not root or not any(Path(root).glob("utkface*.zip")):
        pytest.skip("set FAIRSSL_DATA to a folder that holds the complete UTKFace as utkface*.zip")
    return Path(root)


def test_the_real_names(real):
    facts = build().inspect(real)
    labels = build().labels(real)
    assert facts.n_images == 23_705 and "malformed: 3 names" in facts.notes[0]
    male = labels["gender"] == 1
    assert np.bincount(labels["ethnicity5"][male]).tolist() == [5477, 2318, 1575, 2261, 760]
    assert np.bincount(labels["ethnicity5"][~male]).tolist() == [4601, 2208, 1859, 1714, 932]
    assert np.bincount(labels["age"][male]).tolist() == [6889, 5502]
    assert np.bincount(labels["age"][~male]).tolist() == [8218, 3096]


@pytest.mark.slow
def test_the_real_splits(real):
    expected = {
        "ethnicity": ([[1000, 4000], [4000, 1000]], 676),
        "age": ([[3250, 1750], [1750, 3250]], 630),
    }
    for attribute, (train, n) in expected.items():
        splits = build().load(real, "gender", attribute, 16)
        assert cells(splits, "train") == train
        assert cells(splits, "val") == cells(splits, "test") == [[n, n], [n, n]]
        seen = [name for part in PARTS for name in getattr(splits, part).ids]
        assert len(seen) == len(set(seen))
        (note,) = [note for note in splits.notes if note.startswith("duplicates")]
        assert "375 groups" in note and "the 259 whose names disagree" in note and "23,056 of 23,705" in note
