"""CelebA: torchvision's and Kaggle's layouts give equal labels; parts of the images; splits by identity."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from reference.celeba_layout import COLUMNS, picture, values, write_celeba

from fairssl import kinds
from fairssl.data.decoded import decode
from fairssl.data.files import short_id
from fairssl.types import Splits, UserError

PARTS = ("train", "val", "test")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRSSL_CACHE", str(tmp_path / "cache"))


def load(
    root: Path, target: str = "attractive", attribute: str = "male", size: int = 16, split: str = "official", **options
) -> Splits:
    return kinds.datasets.build("celeba", {"split": split}).load(root, target, attribute, size, **options)


def inspect(root: Path):
    return kinds.datasets.build("celeba", {}).inspect(root)


def made(root: Path, n: int = 30, **options) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    write_celeba(root, n, **options)
    return root


def same(a: Splits, b: Splits) -> bool:
    return all(
        getattr(a, part).ids == getattr(b, part).ids
        and (getattr(a, part).target == getattr(b, part).target).all()
        and (getattr(a, part).group == getattr(b, part).group).all()
        and (getattr(a, part).images == getattr(b, part).images).all()
        for part in PARTS
    )


@pytest.mark.parametrize(
    "options",
    [{"form": "kaggle"}, {"newline": "\r\n"}, {"form": "kaggle", "newline": "\r\n"}, {"zipped": True}],
    ids=["csv", "crlf", "csv-crlf", "zip"],
)
def test_every_layout_gives_equal_labels_splits_and_fingerprints(tmp_path, options):
    ours, theirs = made(tmp_path / "a"), made(tmp_path / "b", **options)
    assert same(load(ours), load(theirs))
    assert inspect(ours) == inspect(theirs)


def test_the_folder_above_will_do(tmp_path):
    root = made(tmp_path / "a" / "CelebA")
    assert same(load(tmp_path / "a"), load(root))


def test_as_many_images_out_as_in_each_with_its_own_labels(tmp_path):
    n = 30
    splits = load(made(tmp_path / "a", n))
    assert [len(getattr(splits, part)) for part in PARTS] == [24, 3, 3]
    table = (values(n) > 0).astype(int)
    row = 0
    for part in PARTS:
        split = getattr(splits, part)
        for i in range(len(split)):
            assert split.ids[i] == short_id(f"{row + 1:06d}.jpg")
            assert (split.target[i], split.group[i]) == (table[row, 2], table[row, 20])
            row += 1
    assert row == n
    assert splits.groups == ("not male", "male") and splits.notes == ()
    assert splits.departures == (
        "not all images of the official partition: train 24 of 162,770, val 3 of 19,867, test 3 of 19,962",
    )


def test_all_images_of_the_official_partition_are_no_departure(tmp_path, monkeypatch):
    monkeypatch.setattr("fairssl_plugins.datasets.celeba.OFFICIAL", (24, 3, 3))
    splits = load(made(tmp_path / "a", 30))
    assert splits.departures == () and splits.notes == ("the official partition: train 24, val 3, test 3",)


def test_images_are_the_files_and_are_memory_mapped(tmp_path):
    root = made(tmp_path / "a", 10)
    splits = load(root, size=44)
    first = (root / "img_align_celeba" / "000009.jpg").read_bytes()
    assert (splits.val.images[0] == decode(first, 44)).all()
    assert abs(splits.val.images[0].astype(int) - np.asarray(picture(9)).transpose(2, 0, 1)[:, 5:49]).mean() < 6
    assert all(isinstance(getattr(splits, part).images, np.memmap) for part in PARTS)


def test_all_forty_attributes_are_targets_and_groups(tmp_path):
    dataset = kinds.datasets.build("celeba", {})
    root = made(tmp_path / "a", 30)
    assert list(dataset.card.targets) == [name.lower() for name in COLUMNS] == list(dataset.card.attributes)
    labels = dataset.labels(root)
    for i, name in enumerate(COLUMNS):
        assert labels[name.lower()].tolist() == (values(30)[:, i] > 0).astype(int).tolist()
    splits = load(root, "big_nose", "young")
    assert splits.train.target.tolist() == labels["big_nose"][:24].tolist()
    assert splits.train.group.tolist() == labels["young"][:24].tolist()


def test_neither_target_nor_attribute_nor_seed_moves_the_official_partition(tmp_path):
    root = made(tmp_path / "a")
    first, other = load(root), load(root, "smiling", "young", split_seed=3)
    assert [getattr(first, part).ids for part in PARTS] == [getattr(other, part).ids for part in PARTS]
    assert kinds.datasets.get("celeba").card.train_depends_on == frozenset()


def test_missing_images_are_counted(tmp_path):
    splits = load(made(tmp_path / "a", missing=(1, 2, 30)))
    assert [len(getattr(splits, part)) for part in PARTS] == [22, 3, 2]
    assert "missing: 3 of the 30 images listed are not there" in splits.notes
    assert splits.train.ids[0] == short_id("000003.jpg")


def test_images_without_labels_are_counted(tmp_path):
    root = made(tmp_path / "a")
    picture(99).save(root / "img_align_celeba" / "999999.jpg")
    splits = load(root)
    assert sum(len(getattr(splits, part)) for part in PARTS) == 30
    assert any(note.startswith("unlisted: 1 image has no labels") for note in splits.notes)


def test_corrupt_images_are_left_out_of_their_split(tmp_path):
    root = made(tmp_path / "a")
    (root / "img_align_celeba" / "000026.jpg").write_bytes(b"<html>")
    splits = load(root)
    assert [len(getattr(splits, part)) for part in PARTS] == [24, 2, 3]
    assert splits.val.ids == (short_id("000025.jpg"), short_id("000027.jpg"))
    assert splits.val.target.tolist() == (values(30)[[24, 26], 2] > 0).astype(int).tolist()
    assert any(note.startswith("corrupt: 1 image") and "000026.jpg" in note for note in splits.notes)


def test_where_the_partition_leaves_a_split_empty_it_is_refused_and_80_10_10_if_asked_for(tmp_path):
    root = made(tmp_path / "a", 40, part=[0] * 40)
    says = (
        r"none of the 40 images in .*a/img_align_celeba' is val or test in .*list_eval_partition.txt'.*data.split=drawn"
    )
    for refused in (load, inspect):
        with pytest.raises(UserError, match=says):
            refused(root)
    splits = load(root, split="drawn")
    assert [len(getattr(splits, part)) for part in PARTS] == [32, 4, 4]
    (departure,) = splits.departures
    assert departure.startswith("not the official partition: data.split=drawn, 80/10/10 by image (")
    assert "there is no identity_CelebA.txt, so one person may be in two splits" in departure
    assert len({name for part in PARTS for name in getattr(splits, part).ids}) == 40
    assert same(load(root, split="drawn"), splits) and not same(load(root, split_seed=1, split="drawn"), splits)


def test_by_identity_where_the_file_is_there(tmp_path):
    who = np.arange(60) // 3  # twenty people, three images each
    root = made(tmp_path / "a", 60, part=[2] * 60, identity=who)
    splits = load(root, split="drawn")
    person = {short_id(f"{i + 1:06d}.jpg"): int(w) for i, w in enumerate(who)}
    people = [{person[name] for name in getattr(splits, part).ids} for part in PARTS]
    assert [len(p) for p in people] == [16, 2, 2] and len(set.union(*people)) == 20
    (departure,) = splits.departures
    assert "data.split=drawn, 80/10/10 by identity: train" in departure


def test_too_few_people_is_the_users_error(tmp_path):
    root = made(tmp_path / "a", 10, part=[0] * 10, identity=[1] * 5 + [2] * 5)
    with pytest.raises(UserError, match=r"10 images of 2 people or files cannot be split in 3; add images"):
        load(root, split="drawn")


@pytest.mark.parametrize("n_people", [3, 4, 7])
def test_every_split_has_a_person_however_few(tmp_path, n_people):
    root = made(tmp_path / "a", 28, part=[0] * 28, identity=np.arange(28) % n_people)
    assert all(len(getattr(load(root, split="drawn"), part)) for part in PARTS)


@pytest.mark.parametrize("name", ["list_attr_celeba.txt", "list_eval_partition.txt"])
def test_a_page_saved_as_a_list_is_recognised(tmp_path, name):
    root = made(tmp_path / "a")
    page = b"<!DOCTYPE html>\n<html><head><title>Google Drive - Quota exceeded</title></head>\n<body>x</body></html>\n"
    (root / name).write_bytes(page * 20)
    with pytest.raises(UserError, match=rf"{name}.* it is a web page .*it begins with b'<!DOCTYPE html>"):
        inspect(root)


def test_a_page_saved_as_the_zip_is_recognised(tmp_path):
    root = made(tmp_path / "a", zipped=True)
    (root / "img_align_celeba.zip").write_bytes(b"<html>" + b"x" * 2000)
    with pytest.raises(UserError, match=r"img_align_celeba.zip.*web page"):
        inspect(root)


@pytest.mark.parametrize("name", ["list_attr_celeba.txt", "list_eval_partition.txt", "img_align_celeba"])
def test_what_is_missing_is_named_with_the_way_out(tmp_path, name):
    root = made(tmp_path / "a")
    (root / name).rename(tmp_path / "away")
    with pytest.raises(UserError, match=rf"{name}.*mmlab.ie.cuhk.edu.hk"):
        inspect(root)


def test_nothing_there_says_where_to_get_it(tmp_path):
    with pytest.raises(UserError, match=r"celeba is not at .*nowhere.*download img_align_celeba.zip"):
        inspect(tmp_path / "nowhere")
    with pytest.raises(
        UserError, match=r"neither .* nor its celeba/ holds list_attr_celeba.txt \(it is empty\): download"
    ):
        inspect(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace("Male", "Sex"), "has no column 'male'"),
        (
            lambda text: text.replace("000002.jpg -1", "000002.jpg  5").replace("000002.jpg  1", "000002.jpg  5"),
            "value 5",
        ),
        (lambda text: text.replace("000002.jpg", "000001.jpg"), "lists '000001.jpg' twice"),
        (lambda text: text.replace("000002.jpg", "000002.jpg x"), "is not a CelebA list .* line 4 has 42 fields"),
        (lambda text: text[: text.index("000029.jpg") + 30], "is not a CelebA list .* line 31 has 7 fields.* cut off"),
    ],
)
def test_a_damaged_list_is_the_users_error(tmp_path, change, message):
    path = made(tmp_path / "a") / "list_attr_celeba.txt"
    path.write_text(change(path.read_text()))
    with pytest.raises(UserError, match=message):
        inspect(tmp_path / "a")


@pytest.mark.parametrize("form", ["torchvision", "kaggle"])
@pytest.mark.parametrize(("cut", "whole"), [("list_attr_celeba", "eval"), ("list_eval_partition", "attr")])
def test_a_list_cut_at_a_row_is_refused(tmp_path, form, cut, whole):
    path = next(made(tmp_path / "a", form=form).glob(f"{cut}.*"))
    path.write_text("".join(path.read_text().splitlines(True)[:-2]))
    says = rf"{cut}\.\w+' lacks 2 of the images that list_{whole}.* it was cut off"
    if (form, cut) == ("torchvision", "list_attr_celeba"):
        says = r"list_attr_celeba.txt' announces 30 rows and holds 28: it was cut off"
    with pytest.raises(UserError, match=says):
        inspect(tmp_path / "a")


def test_a_partition_of_other_values_is_named(tmp_path):
    path = made(tmp_path / "a") / "list_eval_partition.txt"
    path.write_text(path.read_text().replace("000003.jpg 0", "000003.jpg 3"))
    with pytest.raises(UserError, match=r"holds the value 3 for '000003.jpg'; parts are 0, 1 and 2"):
        inspect(tmp_path / "a")
