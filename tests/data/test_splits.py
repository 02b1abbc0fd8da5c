"""What the core asks of every dataset's splits, whoever wrote it, and what it adds to them."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from reference.command import SMALL, fairssl
from reference.plugin_package import known, write_package
from reference.utkface_files import people, write_faces

from fairssl.cli.new import plugin_and_test
from fairssl.data.splits import check_splits, crossed, load_splits, small_cell, smallest_cell
from fairssl.interfaces import MIN_CELL, DatasetConfig, PluginConfig
from fairssl.spec.run import DataSpec
from fairssl.types import Split, Splits, UserError


def spec(dataset: str = "synthfaces", target: str = "attractive", attribute: str = "male", **options) -> DataSpec:
    params = options.pop("params", {"n_train": 64, "n_val_per_cell": 10, "n_test_per_cell": 10})
    return DataSpec(
        dataset=dataset,
        version=1,
        params=params,
        fingerprint=None,
        **{"image_size": 8, "target": target, "attribute": attribute, **options},
    )


def split(part: str, target: list[int], group: list[int]) -> Split:
    n = len(target)
    ids = tuple(f"{part}{i}" for i in range(n))
    return Split(np.zeros((n, 3, 8, 8), np.uint8), np.array(target), np.array(group), ids)


def sound(**parts: Split) -> Splits:
    cells = [0, 0, 1, 1] * 3, [0, 1, 0, 1] * 3
    found = {part: split(part, *cells) for part in ("train", "val", "test")}
    return Splits(**{**found, **parts}, groups=("a", "b"))


def test_sound_splits_pass_also_with_groups_unknown_in_each():
    check_splits(spec(), sound(), min_cell=3)
    some = {part: split(part, [0, 0, 1, 1, 0, 1], [0, 1, 0, 1, -1, -1]) for part in ("train", "val", "test")}
    check_splits(spec(), sound(**some), min_cell=1)


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({"test": ([0, 1, 2], [0, 1, 1])}, r"target 'attractive' has 3 values \(0, 1, 2\); a target is 0 or 1"),
        ({"train": (list(range(12)), [0, 1] * 6)}, r"has 12 values \(0, 1, .* 9, \.\.\.\)"),
        ({"train": ([-1, 1], [0, 1])}, r"has 3 values \(-1, 0, 1\)"),
        ({"train": ([1, 1], [0, 1])}, r"one value \(1\) in the 2 training images"),
        ({"val": ([], [])}, "the val split holds no image"),
        ({"val": ([0, 1], [0, 2])}, "has the group 2 in the val split; groups are 0 to 1, and -1 where unknown"),
        ({"test": ([0, 1, 0], [0, 0, -1])}, r"fewer than two known groups in the test split \(3 images\)"),
        ({"train": ([0, 1, 0], [-1, -1, -1])}, "fewer than two known groups in the train split"),
    ],
)
def test_what_no_run_can_do_without_is_refused_in_one_line(parts, says):
    with pytest.raises(UserError, match=says) as caught:
        check_splits(spec(), sound(**{part: split(part, *labels) for part, labels in parts.items()}))
    assert "\n" not in str(caught.value) and str(caught.value).startswith("synthfaces: ")


def test_lengths_that_disagree_and_ids_given_twice_are_refused():
    one = sound()
    short = replace(one.val, ids=one.val.ids[1:])
    with pytest.raises(UserError, match="the val split has 12 images, 12 targets, 12 groups and 11 ids"):
        check_splits(spec(), replace(one, val=short))
    with pytest.raises(UserError, match="the id 'train0' is there twice; splits must be disjoint"):
        check_splits(spec(), replace(one, val=replace(one.val, ids=("train0", *one.val.ids[1:]))))


def test_the_smallest_cell_of_the_test_split_is_told_and_its_limit_is_the_users():
    test = split("test", [0, 0, 0, 1, 1, 1, 1], [0, 0, 1, 0, 1, 1, -1])
    splits = sound(test=test)
    assert smallest_cell(splits) == (1, 0, 1)
    check_splits(spec(), splits, min_cell=1)
    with pytest.raises(UserError, match=r"has 1 image of attractive = 0 and male = 'b', fewer than 2: .* 100 points"):
        check_splits(spec(), splits, min_cell=2)
    assert "--set data.min_cell=4" in small_cell(spec(), 4, 0, "b", 10) and "25 points" in small_cell(
        spec(), 4, 0, "b", 10
    )


def test_the_limit_comes_from_the_datasets_parameters():
    few = {"n_train": 64, "n_val_per_cell": 4, "n_test_per_cell": 9}
    with pytest.raises(UserError, match="fewer than 10"):
        load_splits(spec(params=few), None)
    assert len(load_splits(spec(params={**few, "min_cell": 9}), None).test) == 36
    assert len(load_splits(spec(params=few), None, min_cell=0).test) == 36


def test_a_parameter_that_came_later_is_in_no_key_at_its_default():
    assert MIN_CELL == 10 and DatasetConfig().params() == {} and DatasetConfig(min_cell=3).params() == {"min_cell": 3}

    class Config(DatasetConfig):
        n: int = 4

    assert Config().params() == {"n": 4} and Config(**Config(min_cell=1).params()) == Config(min_cell=1)
    assert PluginConfig().params() == {}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"target": "smile"}, r"target 'smile': synthfaces has no such target; .*known: attractive"),
        ({"target": "atractive"}, r"did you mean 'attractive'\?"),
        ({"attribute": "gender"}, r"attribute 'gender': synthfaces has no such attribute"),
        ({"target": ""}, "target is needed: synthfaces has no default; it has male, young"),
        ({"target": "male"}, "target 'male' and attribute 'male' look at the same label; choose two"),
        ({"split_seed": -1}, "split_seed -1 is negative"),
    ],
)
def test_what_is_asked_for_is_checked_once_for_every_dataset(change, says):
    with pytest.raises(UserError, match=says):
        load_splits(spec(**change), None)


def test_the_card_tells_what_y_means_and_whether_the_groups_are_ordered():
    splits = load_splits(spec(), None)
    assert splits.positive == "attractive" and splits.ordered is False
    from fairssl import kinds

    card = kinds.datasets.get("utkface").card
    assert card.ordered == {"age", "age4"} and kinds.datasets.get("celeba").card.ordered == frozenset()


DATASET = plugin_and_test("dataset", "odd")[0]


def test_names_of_files_are_escaped_in_ids_groups_notes_and_departures_of_any_dataset(tmp_path):
    name = os.fsdecode(b"caf\xe9")
    text = DATASET.replace('f"{part}{i:05d}"', 'f"{part}{i:05d}caf\\udce9"').replace(
        "            groups=GROUPS,",
        '            groups=("a\\udce9", "b"), notes=("caf\\udce9\\n",), departures=("\\udce9",),',
    )
    assert text.count("udce9") == 4
    write_package(tmp_path, "stranger", {"datasets/odd.py": text})
    with known(tmp_path):
        splits = load_splits(spec("odd", "corner", "tint", params={"n_eval": 64}), None)
    assert splits.train.ids[0] == r"train00000caf\xe9" and splits.groups == (r"a\xe9", "b")
    assert splits.notes[0] == r"caf\xe9\x0a" and splits.departures == (r"\xe9",)
    assert name.encode("utf-8", "surrogateescape") == b"caf\xe9"


def test_a_file_that_may_not_be_read_is_the_users_error(tmp_path):
    text = DATASET.replace(
        "        rng = np.random",
        '        raise PermissionError(13, "Permission denied", "/x/y.jpg")\n        rng = np.random',
    )
    write_package(tmp_path, "stranger", {"datasets/odd.py": text})
    with known(tmp_path), pytest.raises(UserError, match=r"odd: cannot read '/x/y.jpg': Permission denied"):
        load_splits(spec("odd", "corner", "tint", params={}), None)


def test_data_can_be_looked_at_without_torch(tmp_path: Path):
    import subprocess
    import sys

    code = (
        "import sys\nfrom fairssl.cli import run\n"
        "assert run(['data', 'prepare', 'synthfaces', '--image-size', '8', '--set', 'data.n_train=64']) == 0\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_a_combination_has_the_groups_of_both_crossed() -> None:
    params = {"n_train": 64, "n_val_per_cell": 20, "n_test_per_cell": 40}
    one, both = (load_splits(spec(attribute=a, params=params), None) for a in ("male", "male+young"))
    assert both.groups == ("not male & not young", "not male & young", "male & not young", "male & young")
    assert not both.ordered
    for part in ("train", "val", "test"):
        plain, joint = getattr(one, part), getattr(both, part)
        assert plain.ids == joint.ids
        np.testing.assert_array_equal(joint.group // 2, plain.group)
        np.testing.assert_array_equal(joint.group % 2, plain.attributes["young"])
    assert any(note.startswith("smallest test cell: ") for note in both.notes)


def test_who_has_one_of_two_groups_unknown_is_in_no_combination() -> None:
    codes = np.array([0, 1, -1, 1])
    found = crossed(replace(split("a", [0] * 4, [1, -1, 0, 1]), attributes={"young": codes}), "young", 2, spec())
    assert found.group.tolist() == [2, -1, -1, 3]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--attr", "male+yuong"), "--attr 'male+yuong': synthfaces has no attribute 'yuong'; did you mean 'young'?"),
        (("--attr", "male+male"), "--attr 'male+male' names male twice"),
        (("--attr", "male+young", "--target", "young"), "a target cannot be its own sensitive attribute"),
        (("--attr", "male+young", "--set", "data.min_cell=40"), "fewer than 40"),
    ],
)
@pytest.mark.slow
def test_a_combination_that_cannot_be_is_one_line(words: tuple[str, ...], says: str, tmp_path: Path) -> None:
    sizes = ("--set", "data.n_train=64", "--set", "data.n_val_per_cell=20", "--set", "data.n_test_per_cell=40")
    code, out, err = fairssl("bench", "--method", "random", *SMALL, *sizes, *words, "--out", tmp_path / "runs")
    assert (code, out) == (2 if "min_cell" not in words[-1] else code, "") and says in err


def test_a_combination_of_too_few_drawn_images_is_refused_by_a_dry_run(tmp_path: Path) -> None:
    sizes = ("--set", "data.n_train=64", "--set", "data.n_test_per_cell=20")
    code, out, err = fairssl("bench", "--attr", "male+young", *sizes, "--dry-run", "--out", tmp_path / "runs")
    assert (code, out) == (
        2,
        "",
    ) and "the test split has 9 images of attractive = 0 and male+young = 'male & young'" in err


def test_attributes_of_which_one_follows_from_the_other_are_refused(tmp_path: Path) -> None:
    """No image is 35 at most and 36 to 60: known from the names, so a dry run says it too."""
    faces = write_faces(tmp_path / "UTKFace", people({(age, g, 0): 12 for age in (10, 30, 50, 70) for g in (0, 1)}))
    env = {"FAIRSSL_CACHE": str(tmp_path / "cache")}
    words = ("utkface", "--attr", "age+age4", "--data-dir", faces, "--image-size", "8")
    for command in (("data", "prepare"), ("bench", "--dry-run", "--out", tmp_path / "runs", "--dataset")):
        code, out, err = fairssl(*command, *words, env=env)
        assert (code, out.strip()) == (2, "") and err.splitlines()[-1] == (
            "fairssl: error: utkface: no test image is of gender = 0 and age+age4 = '<=35 & 36-60', so no gap over all groups is "
            "defined; combine other attributes, or choose one of them"
        )


def test_a_combination_is_not_said_to_be_balanced(tmp_path: Path) -> None:
    """Only the groups of the first attribute are; of the others the counts are told as they are."""
    sizes = {(age, g, r): 40 + age for age in (30, 50) for g in (0, 1) for r in (0, 2)}
    faces = write_faces(tmp_path / "UTKFace", people(sizes))
    few = [word for text in ("n_train=40", "n_eval=20", "min_cell=1") for word in ("--set", f"data.{text}")]
    words = ("--attr", "ethnicity+age", "--data-dir", faces, "--image-size", "8", *few)
    code, out, err = fairssl("data", "prepare", "utkface", *words, "--json", env={"FAIRSSL_CACHE": str(tmp_path / "c")})
    assert code == 0, err
    found = json.loads(out)
    assert found["notes"][-3].endswith("validation and test: 20 of each gender x ethnicity")
    assert found["departures"][-1].endswith("data.n_eval=20 asks for 20 of each gender x ethnicity instead of 800")
    counts = {
        part: [n for of_y in found["splits"][part]["cells"].values() for n in of_y.values()] for part in ("val", "test")
    }
    val, test = (f"{min(counts[part])} to {max(counts[part])}" for part in ("val", "test"))
    assert len(set(counts["test"])) > 1
    assert found["notes"][-2] == (
        f"combination: {val} validation images and {test} test images of each gender x ethnicity+age"
    )


@pytest.mark.slow
def test_both_spellings_of_a_combination_are_one_run_with_four_groups(tmp_path: Path) -> None:
    sizes = ("--image-size", "16", "--set", "data.n_test_per_cell=80")
    words = ("bench", "--method", "sogclr", *SMALL, *sizes, "--json", "--out", tmp_path / "runs")
    code, first, err = fairssl(*words, "--attr", "young+male")
    assert code == 0, err
    assert "smallest test cell: " in err
    code, second, err = fairssl(*words, "--attr", "male+young")
    assert code == 0, err
    (row,) = json.loads(first)
    assert row["attr"] == "male+young" and row["ED"]["mean"] > 0
    assert second == first and len(list((tmp_path / "runs" / "results").iterdir())) == 1
