"""A user's own images with a table, and FairFace: how tables are read, what becomes of their columns, splits, messages."""

from __future__ import annotations

import shutil
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from reference.own_images import drawn, labels, write_folder, write_table

from fairssl import kinds
from fairssl.data.columns import make_column, make_target
from fairssl.data.decoded import decode
from fairssl.data.describe import describe, table_below
from fairssl.data.files import random_parts, short_id
from fairssl.data.tables import match, read_table
from fairssl.plan.request import Request
from fairssl.plan.resolve import resolve
from fairssl.types import Splits, UserError

PARTS = ("train", "val", "test")


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRSSL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FAIRSSL_DATA", raising=False)


def build(**params):
    return kinds.datasets.build("folder", params)


def load(root: Path, target: str = "smiling", attribute: str = "gender", seed: int = 0, **params) -> Splits:
    return build(**params).load(root, target, attribute, 12, split_seed=seed)


def same(a: Splits, b: Splits) -> bool:
    return all(
        getattr(a, part).ids == getattr(b, part).ids and (getattr(a, part).images == getattr(b, part).images).all()
        for part in PARTS
    )


def test_each_image_has_its_own_labels_and_missing_ones_are_left_out_or_unknown(tmp_path):
    names = write_folder(tmp_path / "d", 100)
    columns = labels(100)
    splits = load(tmp_path / "d")
    by_id = {short_id(name, folders=True): i for i, name in enumerate(names)}
    seen = []
    for part in PARTS:
        split = getattr(splits, part)
        assert isinstance(split.images, np.memmap)  # a slice of the pack: no copy
        for k, name in enumerate(split.ids):
            i = by_id[name]
            seen.append(i)
            assert split.target[k] == ["no", "yes"].index(columns["smiling"][i])
            assert split.group[k] == ["", "Female", "Male"].index(columns["gender"][i]) - 1
            assert (split.images[k] == decode(drawn(i), 12)).all()
    assert sorted(seen) == [i for i in range(100) if i % 19]
    assert splits.groups == ("Female", "Male")
    assert "missing values: 6 of 100 images have no smiling and are left out" in splits.notes
    assert "missing values: 6 of 100 images have no gender and are of unknown group" in splits.notes
    assert "splits: train 80, val 10, test 10, drawn by image" in splits.notes


def test_the_table_and_the_archive_move_together_and_nothing_changes(tmp_path):
    """A folder, the same moved, a zip with the table in it, a tar.gz with it beside, the table itself, Parquet."""
    root = tmp_path / "d"
    write_folder(root, 60)
    first, facts = load(root), build().inspect(root)
    places = [tmp_path / "moved", tmp_path / "x.zip", tmp_path / "t" / "x.tar.gz", root / "faces.csv", tmp_path / "p"]
    shutil.copytree(root, places[0])
    with zipfile.ZipFile(places[1], "w") as archive:
        for path in sorted(root.rglob("*.*")):
            archive.write(path, f"faces/{path.relative_to(root)}")
    places[2].parent.mkdir()
    with tarfile.open(places[2], "w:gz") as archive:
        for path in sorted(root.rglob("*.png"), reverse=True):
            archive.add(path, path.relative_to(root))
    shutil.copy(root / "faces.csv", places[2].parent)
    shutil.copytree(root, places[4])
    table = pd.read_csv(places[4] / "faces.csv")
    (places[4] / "faces.csv").unlink()
    table.to_parquet(places[4] / "faces.parquet")
    for place in places:
        assert same(load(place), first), place
        assert build().inspect(place) == facts, place
    assert build(table="faces.csv").inspect(root) == facts and build(images="a").inspect(root) != facts


def test_a_label_or_an_image_changed_changes_the_fingerprint_and_a_column_renamed_too(tmp_path):
    root = tmp_path / "d"
    names = write_folder(root, 12)
    prints = {build().inspect(root).fingerprint}
    columns = labels(12)
    write_table(root / "faces.csv", names, {**columns, "race": ["White"] * 12})
    prints.add(build().inspect(root).fingerprint)
    write_table(root / "faces.csv", names, {("mood" if k == "smiling" else k): v for k, v in columns.items()})
    prints.add(build().inspect(root).fingerprint)
    write_table(root / "faces.csv", names, columns)
    (root / names[0]).write_bytes(drawn(99))
    prints.add(build().inspect(root).fingerprint)
    assert len(prints) == 4


def test_what_is_listed_and_not_there_and_the_other_way_round_is_counted(tmp_path):
    root = tmp_path / "d"
    names = write_folder(root, 40)
    (root / names[3]).unlink()
    (root / "a" / "other.png").write_bytes(drawn(1000))
    notes = build().inspect(root).notes
    assert notes == (
        "missing: 1 of the 40 files listed are not there: b/c/00003.png",
        "unlisted: 1 image has no row and is left out: a/other.png",
    )
    (root / names[5]).unlink()
    (root / "a" / "others.png").write_bytes(drawn(1001))
    notes = build().inspect(root).notes
    assert notes == (
        "missing: 2 of the 40 files listed are not there: b/c/00003.png, ...",
        "unlisted: 2 images have no row and are left out: a/other.png, ...",
    )


def test_files_of_one_name_in_two_folders_keep_their_labels_and_ids(tmp_path):
    root = tmp_path / "d"
    names = [f"{folder}/{i}.png" for folder in ("train", "val") for i in range(20)]
    for i, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(drawn(i))
    write_table(root / "t.csv", names, {"y": ["0", "1"] * 20, "a": (["u"] * 2 + ["v"] * 2) * 10})
    splits = load(root, "y", "a")
    assert len({name for part in PARTS for name in getattr(splits, part).ids}) == 40


@pytest.mark.parametrize(
    ("given", "paths", "expected"),
    [
        (["a/1.jpg", "./b/1.jpg", r"b\2.jpg"], ["a/1.jpg", "b/1.jpg", "b/2.jpg"], [0, 1, 2]),
        (["1.jpg", "2.jpg"], ["x/1.jpg", "x/y/2.jpg"], [0, 1]),
        (["/data/faces/x/1.jpg"], ["x/1.jpg", "y/1.jpg"], [0]),
        (["1.jpg"], ["x/1.jpg", "y/1.jpg"], [-1]),  # one of two: nobody can know which
        (["1", "y/2"], ["x/1.jpg", "y/2.png"], [0, 1]),
        (["3.jpg"], ["x/1.jpg"], [-1]),
        (["caf\u00e9.jpg"], ["cafe\u0301.jpg"], [0]),
    ],
)
def test_files_are_found_by_as_much_of_their_path_as_is_needed(given, paths, expected):
    from fairssl.data.tables import plain

    assert match([plain(name) for name in given], paths).tolist() == expected


def test_byte_identical_images_are_kept_once_or_dropped_whole(tmp_path):
    root = tmp_path / "d"
    columns = {
        "y": ["0", "1"] * 20,
        "a": (["u"] * 2 + ["v"] * 2) * 10,
        "split": ["train"] * 30 + ["val"] * 5 + ["test"] * 5,
    }
    names = write_folder(root, 40, columns)
    (root / names[36]).write_bytes(drawn(0))  # equal rows but for the split: training and test; the test image stays
    (root / names[1]).write_bytes(drawn(2))  # rows that differ
    splits = load(root, "y", "a")
    ids = {part: set(getattr(splits, part).ids) for part in PARTS}
    of = {i: short_id(names[i], folders=True) for i in (0, 1, 2, 36)}
    assert of[36] in ids["test"] and not set.union(*ids.values()) & {of[0], of[1], of[2]}
    (note,) = [note for note in splits.notes if note.startswith("duplicates")]
    assert "2 groups of byte-identical images; the 1 whose rows differ" in note and "37 of 40 images remain" in note


def test_the_tables_own_splits_are_used_and_what_is_missing_of_them_is_drawn(tmp_path):
    root = tmp_path / "d"
    split = ["train"] * 60 + ["Validation"] * 10 + ["TEST"] * 20 + [""] * 10
    names = write_folder(root, 100, {**labels(100), "split": split})
    splits = load(root, "race", "age", bin="age:40", positive="race:White")
    ids = [set(getattr(splits, part).ids) for part in PARTS]
    expected = [{short_id(name, folders=True) for name in names[a:b]} for a, b in ((0, 60), (60, 70), (70, 90))]
    assert ids == expected and "splits: 10 rows have none and are left out" in splits.notes
    write_table(root / "faces.csv", names, {**labels(100), "partition": ["0"] * 80 + ["2"] * 20})
    splits = load(root, "race", "age", bin="age:40", positive="race:White")
    assert [len(getattr(splits, part)) for part in PARTS] == [72, 8, 20]
    assert "splits: 8 training images, drawn by image, are the validation split" in splits.notes
    write_table(root / "faces.csv", names, {**labels(100), "set": ["a"] * 80 + ["b"] * 20})
    with pytest.raises(UserError, match="split column 'set' holds 'a'; it may hold train, val and test"):
        load(root, split="set")
    with pytest.raises(UserError, match=r"no column 'sets' \(data.split\); did you mean 'set'"):
        load(root, split="sets")


def test_nobody_is_in_two_splits(tmp_path):
    root = tmp_path / "d"
    people = [f"p{i // 4}" if i else "" for i in range(100)]
    names = write_folder(root, 100, {**labels(100), "who": people})
    splits = load(root, "race", "age", identity="who", bin="age:40", positive="race:White")
    person = {short_id(name, folders=True): who for name, who in zip(names, people, strict=True)}
    found = [{person[name] for name in getattr(splits, part).ids} - {""} for part in PARTS]
    assert len(set.union(*found)) == 25 == sum(map(len, found))
    assert any("drawn by who" in note for note in splits.notes)
    write_table(root / "faces.csv", names, {**labels(100), "person": people})
    assert any("drawn by person" in note for note in load(root).notes)
    assert "person" not in build().card_for(root).attributes


def test_splits_depend_on_the_seed_and_on_names_and_not_on_the_order_of_the_rows(tmp_path):
    root = tmp_path / "d"
    names = write_folder(root, 60)
    first = load(root)
    assert not same(first, load(root, seed=1))
    columns = labels(60)
    write_table(root / "faces.csv", names[::-1], {name: values[::-1] for name, values in columns.items()})
    assert same(first, load(root))


def test_random_parts_share_out_whole_units():
    units = [f"u{i // 5}" for i in range(1000)]
    parts = random_parts(units, 0)
    counts = np.bincount(parts)
    assert abs(counts[1] - 100) <= 5 and abs(counts[2] - 100) <= 5
    for part in range(3):
        assert not {u for u, p in zip(units, parts, strict=True) if p == part} & {
            u for u, p in zip(units, parts, strict=True) if p != part
        }
    assert sorted(np.bincount(random_parts(["a", "b", "c"], 0))) == [1, 1, 1]
    assert np.bincount(random_parts(["a", "b", "c"], 0, 0.1, 0)).tolist() == [2, 1]
    with pytest.raises(UserError, match="2 images of 2 people or files cannot be split in 3"):
        random_parts(["a", "b"], 0)


def column(*values, cuts=None, order=None):
    return make_column("c", np.array([None if v == "" else v for v in values], dtype=object), cuts, order)


@pytest.mark.parametrize(
    ("values", "groups", "codes", "true", "positive"),
    [
        (("yes", "no", "", "yes"), ("no", "yes"), [1, 0, -1, 1], 1, "c"),
        (("1", "0", "1"), ("0", "1"), [1, 0, 1], 1, "c"),
        (("1", "-1", "1"), ("-1", "1"), [1, 0, 1], 1, "c"),
        (("True", "False"), ("False", "True"), [1, 0], 1, "c"),
        (("Male", "Female", ""), ("Female", "Male"), [1, 0, -1], None, "Male"),
        (("10", "9", "10"), ("9", "10"), [1, 0, 1], None, "10"),
    ],
)
def test_two_values_are_a_target_and_which_is_one_is_said(values, groups, codes, true, positive):
    found = column(*values)
    assert (found.groups, found.codes.tolist(), found.true, found.ordered) == (groups, codes, true, False)
    target, reason = make_target(found, None)
    assert target.codes.tolist() == codes and target.positive == positive and not reason
    assert found.labels == (("not c", "c") if true else groups)


def test_numbers_are_cut_into_ordered_groups():
    found = column("20", "21", "35", "36", "60", "61", "", "35.0", cuts=(20, 35, 60))
    assert found.groups == ("<=20", "21-35", "36-60", ">60") and found.ordered
    assert found.codes.tolist() == [0, 1, 1, 2, 2, 3, -1, 1] and found.n_missing == 1
    assert column("0.5", "1.5", cuts=(1,)).groups == ("<=1", ">1")
    assert column("0.5", "1.5", "2.5", cuts=(1, 2)).groups == ("<=1", ">1..2", ">2")
    assert make_target(column("30", "40", cuts=(35,)), None)[0].positive == ">35"
    with pytest.raises(UserError, match=r"data.bin=c:...: the column holds 'old', which is no number"):
        column("30", "old", cuts=(35,))


def test_groups_are_ordered_where_it_is_said():
    ages = ("3-9", "20-29", "10-19", "0-2", "more than 70", "60-69")
    assert column(*ages).groups == tuple(sorted(ages)) and not column(*ages).ordered
    found = column(*ages, order=())
    assert found.groups == ("0-2", "3-9", "10-19", "20-29", "60-69", "more than 70") and found.ordered
    assert column("s", "l", "m", order=("s", "m", "l")).groups == ("s", "m", "l")
    with pytest.raises(UserError, match="leaves 'l' out; name all of l, m, s"):
        column("s", "l", "m", order=("s", "m"))
    with pytest.raises(UserError, match=r"'l' has no number to order it by; give the order, as data.ordered=c:l\+m"):
        column("l", "m", order=())


def test_several_values_are_groups_and_a_target_only_where_it_is_said_which_are_one():
    found = column("White", "Black", "Asian", "White", "")
    assert found.groups == ("Asian", "Black", "White")
    target, reason = make_target(found, None)
    assert target is None and "has 3 values (Asian, Black, White), and a target needs two" in reason
    assert "--set data.positive=c:White" in reason
    assert "--set 'data.positive=c:more than 70'" in make_target(column("0-2", "3-9", "more than 70"), None)[1]
    target, _ = make_target(found, ("White", "Asian"))
    assert target.codes.tolist() == [1, 0, 1, 1, -1] and target.positive == "c White or Asian"
    assert make_target(column("C+", "A", "B"), ("C", ""))[0].codes.tolist() == [
        1,
        0,
        0,
    ]  # a value with a plus of its own
    for chosen, says in ((("Red",), "has no value 'Red'"), (("White", "Black", "Asian"), "leaves one class")):
        with pytest.raises(UserError, match=says):
            make_target(found, chosen)


def test_many_values_are_no_groups():
    ages = column(*map(str, range(60)))
    assert ages.refused == "column 'c' has 60 values; make groups of its numbers: --set data.bin=c:29.5"
    assert make_target(ages, None) == (None, ages.refused)
    assert "too many for groups" in column(*(f"w{i}" for i in range(60))).refused
    assert "has one value" in column("a", "a", "").refused and "is empty" in column("", "").refused
    assert column(*map(str, range(20))).groups == tuple(map(str, range(20)))  # by size, not by letter


def test_tables_are_read_with_any_separator_as_texts():
    for text in (
        "file,y\na.jpg,1\nb.jpg,\n",
        "file;y\r\na.jpg;1\r\nb.jpg;\r\n",
        "\ufefffile\ty\na.jpg\t1\nb.jpg\tNA\n",
    ):
        table = read_table("t.csv", text.encode())
        assert table.columns.tolist() == ["file", "y"] and table["file"].tolist() == ["a.jpg", "b.jpg"]
        assert table["y"].tolist() == ["1", None]
    table = read_table("t.csv", b',file,"a, b",y\n0,a.jpg," x ",1.0\n1,b.jpg,007,\n2,c.jpg,x,0.0\n')
    assert table.columns.tolist() == ["file", "a, b", "y"]  # without the row numbers that pandas writes
    assert table["a, b"].tolist() == ["x", "007", "x"] and table["y"].tolist() == ["1", None, "0"]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"file,y\n", "holds no row"),
        (b"", "holds no row|cannot be read"),
        (b"file,y,y\na.jpg,1,2\n", "two columns called 'y'"),
        (b"file,y\na.jpg,1\nb.jpg,1,2\n", "cannot be read as CSV: .*line 3"),
        (b"file,y\na.jpg,1,9\nb.jpg,1,9\n", "cannot be read as CSV"),
        (b'file,note\na.jpg,"blurry\nb.jpg,x\nc.jpg,"\nd.jpg,x\n', "row 1: a quote in column 'note' is not closed"),
        (b'file,note\na.jpg,x\nb.jpg,"blurry\nc.jpg,x\n', "cannot be read as CSV: .*EOF inside string"),
        (b"file,y\na.jpg,caf\xe9\n", r"not UTF-8 \(line 2\)"),
        (b"PAR1 no", "cannot be read as Parquet"),
    ],
)
def test_a_table_that_would_be_misread_is_refused(data, says):
    with pytest.raises(UserError, match=says) as caught:
        read_table("faces.csv", data)
    assert "faces.csv" in str(caught.value) and "\n" not in str(caught.value)


def test_parquet_keeps_its_types_as_texts(tmp_path):
    frame = pd.DataFrame(
        {"file": ["a", "b"], "n": [1, 2], "f": [1.0, None], "b": [True, False], "c": pd.Categorical(["x", None])}
    )
    frame.to_parquet(tmp_path / "t.parquet")
    table = read_table("t.parquet", (tmp_path / "t.parquet").read_bytes())
    assert table.to_dict("list") == {
        "file": ["a", "b"],
        "n": ["1", "2"],
        "f": ["1", None],
        "b": ["True", "False"],
        "c": ["x", None],
    }


def test_the_card_is_the_tables(tmp_path):
    root = tmp_path / "d"
    write_folder(root, 60)
    card = build().card_for(root)
    assert card.targets == ("smiling", "gender") and card.positive == {"smiling": "smiling", "gender": "Male"}
    assert card.attributes == {
        "smiling": ("not smiling", "smiling"),
        "gender": ("Female", "Male"),
        "race": ("Asian", "Black", "White"),
    }
    assert "make groups of its numbers: --set data.bin=age:" in card.refused["attribute"]["age"]
    card = build(bin="age:35+60", positive="race:White", ordered="race:Black+White+Asian").card_for(root)
    assert card.targets == ("smiling", "gender", "race") and card.ordered == {"age", "race"}
    assert card.attributes["race"] == ("Black", "White", "Asian") and card.positive["race"] == "race White"
    assert kinds.datasets.get("folder").card.targets == ()


def request(root: Path, **options) -> Request:
    return Request(methods=["simclr"], datasets=["folder"], seeds=1, data_dir=root, **options)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "--target is needed: folder has no default; it has smiling, gender"),
        ({"targets": ["smiling"]}, "--attr is needed: folder has no default; it has smiling, gender, race"),
        ({"targets": ["smilin"], "attributes": ["race"]}, "--target 'smilin': .*did you mean 'smiling'"),
        ({"targets": ["race"], "attributes": ["gender"]}, "--target 'race': .*--set data.positive=race:White"),
        ({"targets": ["smiling"], "attributes": ["age"]}, "--attr 'age': .*--set data.bin=age:"),
        ({"assignments": ["data.bin=ages:35"]}, r"no column 'ages' \(data.bin\); did you mean 'age'"),
        ({"assignments": ["data.bin=age:60+35"]}, "must be there and ascend, as age:35\\+60"),
        ({"assignments": ["data.bin=age:old"]}, "folder.bin.age.*should be a valid number"),
        (
            {"assignments": ["data.table=face.csv"]},
            r"there is no table .*face.csv'; it holds the folders a, b; 1 other file",
        ),
        ({"assignments": ["data.table=../x.csv"]}, "must lie below .* a folder that holds it and a link to the images"),
        ({"assignments": ["data.file=image"]}, r"has no column 'image' \(data.file\)"),
    ],
)
def test_mistakes_are_found_before_anything_is_read(tmp_path, options, says):
    write_folder(tmp_path / "d", 30)
    with pytest.raises(UserError, match=says) as caught:
        resolve(request(tmp_path / "d", **options))
    assert "\n" not in str(caught.value)


def test_what_a_folder_lacks_is_said(tmp_path):
    root = tmp_path / "d"
    names = write_folder(root, 30)
    (root / "other.csv").write_text("file,y\n")
    with pytest.raises(
        UserError, match=r"holds 2 tables \(faces.csv, other.csv\); name one with --set data.table=FILE"
    ):
        build().inspect(root)
    (root / "other.csv").unlink()
    write_table(root / "faces.csv", [f"x{name}" for name in names], labels(30))
    with pytest.raises(
        UserError, match=r"none of the 30 files that column 'file' of 'faces.csv' names \(as 'xa/00000.png'"
    ):
        build().inspect(root)
    write_table(root / "faces.csv", [*names[:-1], names[0]], labels(30))
    with pytest.raises(UserError, match=r"more than one row for 'a/00000.png'"):
        build().inspect(root)
    write_table(root / "faces.csv", ["", *names[1:]], labels(30))
    with pytest.raises(UserError, match=r"row 1 of 'faces.csv' names no file \(column 'file'\)"):
        build().inspect(root)
    write_table(root / "faces.csv", range(30), labels(30), heading="id")
    with pytest.raises(UserError, match=r"no column of 'faces.csv' holds names of image files; say which .* it has id"):
        build().inspect(root)
    (root / "faces.csv").unlink()
    with pytest.raises(UserError, match="holds no CSV or Parquet table"):
        build().inspect(root)
    with pytest.raises(UserError, match=r"is one image \(PNG\)"):
        build().inspect(root / names[0])


def test_settings_are_in_the_key_where_they_change_something(tmp_path):
    write_folder(tmp_path / "d", 60)

    def key(*sets):
        options = {"targets": ["smiling"], "attributes": ["gender"], "assignments": ["data.min_cell=0", *sets]}
        return resolve(request(tmp_path / "d", **options)).runs[0].spec.key

    assert key("data.bin=age:35+60") == key('data.bin={"age": [35, 60]}') != key()
    assert key() != key("data.positive=gender:Female")
    shutil.copytree(tmp_path / "d", tmp_path / "e")
    before = key()
    shutil.rmtree(tmp_path / "d")
    (tmp_path / "e").rename(tmp_path / "d")
    assert key() == before


def test_describe_says_what_is_there_and_proposes_a_command(tmp_path):
    root = tmp_path / "my faces"
    names = write_folder(root, 60)
    (root / names[5]).write_bytes(b"no image")
    (root / names[7]).write_bytes(drawn(6))
    found = describe(build(bin="age:35+60"), root)
    assert (found["rows"], found["images"], found["shorter_side"]) == (60, 60, 12)
    assert found["unreadable"] == {"n": 1, "examples": ["b/c/00005.png: not an image"]}
    assert found["duplicates"] == {"groups": 1, "images": 2, "examples": [["a/00006.png", "b/c/00007.png"]]}
    columns = {column["name"]: column for column in found["columns"]}
    assert columns["smiling"]["values"] == {"no": 28, "yes": 28} and columns["smiling"]["missing"] == 4
    assert columns["age"]["ordered"] and list(columns["age"]["values"]) == ["<=35", "36-60", ">60"]
    pair = next(p for p in found["pairs"] if (p["target"], p["attribute"]) == ("smiling", "gender"))
    by_hand = pd.DataFrame(labels(60)).query("smiling != '' and gender != ''").groupby(["smiling", "gender"]).size()
    assert pair["cells"] == {
        str(i): {g: int(by_hand[y, g]) for g in ("Female", "Male")} for i, y in enumerate(("no", "yes"))
    }
    assert pair["unknown"] == 60 - by_hand.sum()
    assert found["command"] == (
        f"fairssl bench --dataset folder --data-dir '{root}' --set data.min_cell=0 --set data.bin=age:35+60 "
        "--target smiling --attr gender"
    )
    assert (
        "--set data.ordered=race:White+Black+Asian "
        in describe(build(ordered="race:White+Black+Asian"), root)["command"]
    )
    assert describe(build(), root, "gender", "race")["command"].endswith("--target gender --attr race")


def test_a_table_named_from_anywhere_is_named_from_the_data(tmp_path, monkeypatch):
    root = tmp_path / "d"
    write_folder(root, 10)
    (root / "deep").mkdir()
    shutil.copy(root / "faces.csv", root / "deep" / "t.csv")
    shutil.copy(root / "faces.csv", tmp_path / "t.csv")
    monkeypatch.chdir(tmp_path)
    assert table_below(root, "faces.csv") == "faces.csv" == table_below(root, "d/faces.csv")
    assert table_below(root, str(root / "deep" / "t.csv")) == "deep/t.csv" == table_below(root, "deep/t.csv")
    for name, says in (("t.csv", "lies outside of"), ("none.csv", "there is no such file")):
        with pytest.raises(UserError, match=says):
            table_below(root, name)


def test_an_archive_beside_that_holds_more_of_the_files_is_used(tmp_path):
    root = tmp_path / "d"
    names = write_folder(root, 40)
    first = load(root)
    with zipfile.ZipFile(root / "images.zip", "w") as archive:
        for name in names:
            archive.write(root / name, name)
    for name in names[20:]:
        (root / name).unlink()
    again = load(root)
    assert same(first, again) and any("images.zip' is used, which holds 40 of the files" in n for n in again.notes)
    shutil.rmtree(root / "a")
    shutil.rmtree(root / "b")
    assert same(first, load(root))


AGES = ("0-2", "3-9", "10-19", "20-29", "30-39", "40-49", "50-59", "60-69", "more than 70")
RACES = ("White", "Black", "Latino_Hispanic", "East Asian", "Southeast Asian", "Indian", "Middle Eastern")


def fairface(root: Path, n_train: int = 200, n_val: int = 60, heading: str = "file") -> Path:
    for part, n, start in (("train", n_train, 0), ("val", n_val, 100_000)):
        (root / part).mkdir(parents=True)
        names = [f"{part}/{i + 1}.jpg" for i in range(n)]
        for i, name in enumerate(names):
            (root / name).write_bytes(drawn(start + i, form="JPEG"))
        columns = {
            "age": [AGES[i % 9] for i in range(n)],
            "gender": [("Male", "Female")[i % 2] for i in range(n)],
            "race": [RACES[i // 2 % 7] for i in range(n)],
            "service_test": [str(i % 3 == 0) for i in range(n)],
        }
        write_table(root / f"fairface_label_{part}.csv", names, columns, heading=heading)
    return root


def build_fairface(**params):
    return kinds.datasets.build("fairface", params)


def fair(root: Path, attribute: str = "race", **params) -> Splits:
    return build_fairface(**params).load(root, "gender", attribute, 12)


@pytest.mark.parametrize("heading", ["file", "file_name"])
def test_fairface_is_judged_on_its_validation_images(tmp_path, heading):
    root = fairface(tmp_path / "fairface", heading=heading)
    splits = fair(root)
    assert [len(getattr(splits, part)) for part in PARTS] == [180, 20, 60]
    assert set(splits.test.ids) == {short_id(f"val/{i + 1}.jpg", folders=True) for i in range(60)}
    assert splits.groups == tuple(sorted(RACES))
    by_id = {short_id(f"val/{i + 1}.jpg", folders=True): i for i in range(60)}
    for k, name in enumerate(splits.test.ids):
        i = by_id[name]
        assert splits.test.target[k] == (i % 2 == 0) and splits.groups[splits.test.group[k]] == RACES[i // 2 % 7]
    (departure,) = splits.departures
    assert departure.startswith(
        "not all images of the official splits: train 180 of 78,069, val 20 of 8,675, test 60 of"
    )
    assert fair(tmp_path).test.ids == splits.test.ids  # the folder above
    card = kinds.datasets.build("fairface", {}).card_for(root)
    assert card.targets == ("gender",) and card.ordered == {"age"} and card.attributes["age"] == AGES
    assert set(card.attributes) == {"race", "age", "gender"} and card.licence == "CC BY 4.0"
    assert fair(root, "age").groups == AGES
    assert kinds.datasets.build("fairface", {}).config.params() == {"val": 0.1, "test": 0.1}


def test_fairface_without_its_training_images_is_refused_and_drawn_if_asked_for(tmp_path):
    root = fairface(tmp_path / "f")
    shutil.rmtree(root / "train")
    for refused in (fair, build_fairface().inspect):
        with pytest.raises(
            UserError, match=r"none of the images of train/ that fairface_label_train.csv lists is in .*/f'"
        ):
            refused(root)
    (root / "fairface_label_train.csv").unlink()
    with pytest.raises(UserError, match=r"/f' lacks fairface_label_train.csv, .*--set data.split=drawn"):
        fair(root, min_cell=0)
    (departure,) = fair(root, split="drawn").departures
    assert departure == "not the official splits: data.split=drawn, drawn by image: train 48, val 6, test 6"
    with pytest.raises(UserError, match=r"holds neither fairface_label_train.csv nor .*it is empty"):
        (tmp_path / "e").mkdir()
        fair(tmp_path / "e")


def test_fairface_without_its_test_images_or_by_a_column_of_the_users(tmp_path):
    root = fairface(tmp_path / "f")
    whole = fair(root, split="drawn")
    assert [len(getattr(whole, part)) for part in PARTS] == [208, 26, 26]
    columns = {"gender": ["Male", "Female"] * 30, "race": ["White", "White", "Black", "Black"] * 15}
    own = {**columns, "mine": ["test", "train", "train"] * 20}
    write_table(root / "fairface_label_val.csv", [f"val/{i + 1}.jpg" for i in range(60)], own)
    splits = fair(root, split="mine")
    assert len(splits.test) == 20 and splits.departures == ("not the official splits: those of the column 'mine'",)
    shutil.rmtree(root / "val")
    with pytest.raises(UserError, match=r"none of the images of val/ that fairface_label_val.csv lists is in"):
        fair(root)


def test_given_splits_of_which_one_is_empty_are_refused_and_drawn_if_asked_for(tmp_path):
    root = tmp_path / "d"
    names = write_folder(root, 60, {**labels(60), "split": ["train"] * 60})
    says = r"none of the 60 images there has val or test in the split column 'split': complete it, .*--set data.split=drawn"
    for refused in (load, build().inspect):
        with pytest.raises(UserError, match=says):
            refused(root)
    splits = load(root, split="drawn")
    assert "splits: train 48, val 6, test 6, drawn by image" in splits.notes and not splits.departures
    assert "split" not in build(split="drawn").card_for(root).attributes
    write_table(root / "faces.csv", names, {**labels(60), "split": ["test"] * 30 + [""] * 30})
    with pytest.raises(UserError, match="none of the 60 images there has train in the split column 'split'"):
        load(root)
    write_table(root / "faces.csv", names, {**labels(60), "drawn": (["train"] * 4 + ["test"]) * 12})
    assert len(load(root, split="drawn").test) == 11  # one has no smiling; the column that is called so
    write_table(root / "faces.csv", names, labels(60))
    assert same(load(root), load(root, split="drawn"))


def test_fairface_in_its_zip_beside_the_tables(tmp_path):
    root = fairface(tmp_path / "f")
    first = fair(root)
    with zipfile.ZipFile(root / "fairface-img-margin025-trainval.zip", "w") as archive:
        for path in sorted(root.rglob("*.jpg")):
            archive.write(path, path.relative_to(root))
    shutil.rmtree(root / "train")
    shutil.rmtree(root / "val")
    assert same(first, fair(root))


def test_fairfaces_ages_may_be_a_target(tmp_path):
    dataset = kinds.datasets.build("fairface", {"positive": "age:0-2+3-9+10-19"})
    root = fairface(tmp_path / "f")
    assert dataset.card_for(root).targets == ("gender", "age")
    splits = dataset.load(root, "age", "gender", 12)
    assert splits.test.target.sum() == sum(i % 9 < 3 for i in range(60))
