"""Faults of real files and real machines, found the way a user finds them: by `fairssl` on drawn images."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import stat
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from reference.celeba_layout import COLUMNS, values, write_celeba
from reference.command import SMALL, fairssl
from reference.plugin_package import write_package

from fairssl.cli.new import plugin_and_test

pytestmark = pytest.mark.slow  # a process or two each; the same values are tested fast beside what they are of
SIZE = ("--image-size", "16")
NOT_UTF8 = os.fsdecode(b"caf\xe9_portrait.jpg")
SHOWN = r"caf\xe9_portrait.jpg"


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No data of the user's, and a cache that anybody may write."""
    cache = tmp_path / "cache"
    cache.mkdir()
    cache.chmod(0o777)
    made = 3 if "PYTEST_XDIST_WORKER" in os.environ else 2  # folders of pytest's own above the test's
    for folder in (tmp_path, *tmp_path.parents[:made]):
        folder.chmod(folder.stat().st_mode | 0o055)
    monkeypatch.setenv("FAIRSSL_CACHE", str(cache))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "nothing"))
    monkeypatch.delenv("FAIRSSL_DATA", raising=False)


def celeba(root: Path, n: int = 60, **options) -> Path:
    root.mkdir(parents=True)
    write_celeba(root, n, **options)
    return root


def utkface(root: Path, per_cell: int = 20) -> Path:
    """`per_cell` images of each gender x (White, Black), ages 20 to 59."""
    root.mkdir(parents=True)
    for i in range(4 * per_cell):
        name = f"{20 + i % 40}_{i % 2}_{i // 2 % 2}_2017{i:08d}.jpg"
        pixels = np.random.default_rng(i).integers(0, 256, (16, 16, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(root / name, "PNG")
    return root


def verify(name: str, root: Path, *words: object, **options) -> tuple[int, str, str]:
    return fairssl("data", "verify", name, "--data-dir", root, *SIZE, *words, **options)


def one_line(err: str) -> bool:
    return err.startswith("fairssl: error: ") and err.count("\n") == 1


def test_a_csv_with_row_numbers_before_the_names_is_read(tmp_path):
    """As pandas' `to_csv` writes it; also with every field in quotes."""
    plain, odd = celeba(tmp_path / "a"), celeba(tmp_path / "b")
    (odd / "list_attr_celeba.txt").unlink()
    with (odd / "list_attr_celeba.csv").open("w", newline="") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL)
        writer.writerow(["", "image_id", *COLUMNS])
        writer.writerows([i, f"{i + 1:06d}.jpg", *row] for i, row in enumerate(values(60)))
    (code, first, _), (again, second, _) = (verify("celeba", root) for root in (plain, odd))
    assert code == again == 0 and "no fault" in first and first == second
    code, out, _ = fairssl("data", "list", "--data-dir", odd)
    assert code == 0 and "60 images" in out


def test_a_folder_that_may_not_be_read_is_one_line_and_stops_no_list(tmp_path):
    root = celeba(tmp_path / "a")
    (root / "img_align_celeba").chmod(0)
    try:
        code, _, err = verify("celeba", root, nobody=True)
        assert code == 2 and one_line(err) and "img_align_celeba" in err and "Permission denied" in err
        assert "img_align_celeba/img_align_celeba" not in err
        code, out, _ = fairssl("data", "list", "--data-dir", root, nobody=True)
        assert code == 0 and "Permission denied" in out and "synthfaces" in out
        code, out, _ = fairssl("doctor", nobody=True, env={"FAIRSSL_DATA": str(root)})
        assert code == 0 and "Permission denied" in out and "5,400 images" in out
    finally:
        (root / "img_align_celeba").chmod(0o755)


@pytest.mark.parametrize("name", ["list_eval_partition.txt", "list_attr_celeba.txt"])
def test_a_list_that_was_cut_off_is_refused(tmp_path, name):
    root = celeba(tmp_path / "a")
    (root / name).write_text("".join((root / name).read_text().splitlines(True)[:50]))
    code, out, err = verify("celeba", root)
    assert code == 2 and out == "" and one_line(err) and name in err and "cut off" in err


def test_a_partition_that_is_not_used_is_said_by_every_command_that_shows_the_splits(tmp_path):
    root = celeba(tmp_path / "a", part=[0] * 60, identity=np.arange(60) // 3)
    path = root / "identity_CelebA.txt"
    code, out, err = verify("celeba", root)
    assert code == 2 and out == "" and one_line(err) and "is val or test in" in err and "data.split=drawn" in err
    drawn = ("--set", "data.split=drawn")
    said = "departure: not the official partition: data.split=drawn, 80/10/10 by identity"
    assert said in verify("celeba", root, *drawn)[1]
    path.write_text("".join(path.read_text().splitlines(True)[:-1]))
    _, out, _ = verify("celeba", root, *drawn)
    assert "80/10/10 by image (identity_CelebA.txt lacks 1 of the images (000060.jpg), so" in out
    words = ("--data-dir", root, *SIZE, "--set", "data.min_cell=0", *drawn, "--json")
    _, out, _ = fairssl("data", "prepare", "celeba", *words)
    assert "80/10/10 by image" in json.loads(out)["departures"][0]


def test_a_partition_that_is_not_used_stands_in_the_caption_of_the_first_and_of_the_second_table(tmp_path):
    root = celeba(tmp_path / "a", 160, part=[0] * 160)
    words = ("bench", "--method", "simclr", "--dataset", "celeba", "--data-dir", root, *SMALL, *SIZE)
    words += ("--set", "data.min_cell=1", "--out", tmp_path / "runs")
    code, out, err = fairssl(*words)
    assert code == 2 and out == "" and one_line(err) and "data.split=drawn" in err and not (tmp_path / "runs").exists()
    for _ in range(2):
        code, out, _ = fairssl(*words, "--set", "data.split=drawn")
        assert code == 0 and "80/10/10 by image" in out
        assert "80/10/10 by image" in (tmp_path / "runs" / "table.md").read_text()
    (record,) = (tmp_path / "runs" / "results").glob("*/record.json")
    assert "80/10/10" in json.loads(record.read_text())["facts"]["departures"][0]


def test_an_identity_file_that_is_not_needed_is_no_part_of_the_fingerprint(tmp_path):
    without, with_it = celeba(tmp_path / "a"), celeba(tmp_path / "b", identity=np.arange(60))
    assert verify("celeba", without)[1] == verify("celeba", with_it)[1]


def test_the_authors_own_folders_are_read(tmp_path):
    root, theirs = celeba(tmp_path / "a", identity=np.arange(60)), tmp_path / "b" / "CelebA"
    for folder, names in {
        "Img": ["img_align_celeba"],
        "Anno": ["list_attr_celeba.txt", "identity_CelebA.txt"],
        "Eval": ["list_eval_partition.txt"],
    }.items():
        (theirs / folder).mkdir(parents=True)
        for name in names:
            shutil.copytree(root / name, theirs / folder / name) if "." not in name else shutil.copy(
                root / name, theirs / folder
            )
    expected = verify("celeba", root)
    assert expected[0] == 0 and expected == verify("celeba", theirs) == verify("celeba", tmp_path / "b")


def test_another_word_for_an_attribute_is_understood_in_the_message():
    code, _, err = fairssl("bench", "--dataset", "celeba", "--attr", "gender", "--dry-run")
    assert code == 2 and one_line(err) and "did you mean 'male'?" in err
    code, _, err = fairssl("data", "prepare", "utkface", "--attr", "race")
    assert code == 2 and one_line(err) and "did you mean 'ethnicity'?" in err


@pytest.mark.parametrize("packing", ["zip", "tar.gz"])
def test_of_a_half_unpacked_folder_and_the_whole_archive_the_fuller_one_counts(tmp_path, packing):
    root = celeba(tmp_path / "a")
    folder = root / "img_align_celeba"
    shutil.make_archive(str(folder), {"zip": "zip", "tar.gz": "gztar"}[packing], root, folder.name)
    whole = verify("celeba", root)
    assert whole[0] == 0 and "is used" not in whole[1]
    for path in sorted(folder.iterdir())[30:]:
        path.unlink()
    code, out, _ = verify("celeba", root)
    assert code == 0 and f"img_align_celeba.{packing}' is used, which holds 60 images listed" in out
    assert out.splitlines()[1:3] == whole[1].splitlines()[1:3]  # fingerprint and splits


def pack(path: Path, folder: Path, prefix: str) -> Path:
    """`folder` as the zip or tar that the path's name says."""
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            for file in sorted(folder.iterdir()):
                archive.write(file, prefix + file.name)
    else:
        with tarfile.open(path, f"w:{path.suffix[1:].removesuffix('tar').replace('tgz', 'gz')}") as archive:
            for file in sorted(folder.iterdir(), reverse=True):
                archive.add(file, prefix + file.name)
    return path


@pytest.mark.parametrize("name", ["UTKFace.tar.gz", "UTKFace.tgz", "UTKFace.tar", "faces.tar.bz2", "x.tar.xz", "x.zip"])
def test_an_archive_is_what_its_folder_is(tmp_path, name):
    folder = utkface(tmp_path / "UTKFace")
    archive = pack(tmp_path / name, folder, "./UTKFace/")
    expected = verify("utkface", folder)
    assert expected[0] == 0 and verify("utkface", archive) == expected


def test_names_that_lead_out_of_an_archive_touch_nothing(tmp_path):
    folder = utkface(tmp_path / "in" / "UTKFace")
    archive = pack(tmp_path / "in" / "UTKFace.tar.gz", folder, "../../../UTKFace/")
    before = sorted(path for path in tmp_path.rglob("*") if "cache" not in path.parts)
    assert verify("utkface", archive)[1:] == verify("utkface", folder)[1:]
    assert sorted(path for path in tmp_path.rglob("*") if "cache" not in path.parts) == before


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("one.jpg", "is one image (PNG); name the folder or the archive"),
        ("faces.7z", "is a 7z archive, which fairssl does not read; unpack it"),
        ("notes.tar.gz", "is a gzip file that holds no tar"),
        ("notes.txt", "is not a folder or an archive of images"),
        ("pipe", "is neither a folder nor a file"),
    ],
)
def test_what_is_sound_is_called_what_it_is_and_is_never_to_be_deleted(tmp_path, name, says):
    path = tmp_path / name
    if name == "one.jpg":
        shutil.copy(next(utkface(tmp_path / "u").iterdir()), path)
    elif name == "faces.7z":
        path.write_bytes(b"7z\xbc\xaf\x27\x1c" + bytes(100))
    elif name == "notes.tar.gz":
        import gzip

        path.write_bytes(gzip.compress(b"a note\n" * 1000))
    elif name == "pipe":
        os.mkfifo(path)
    else:
        path.write_text("a note\n")
    code, _, err = verify("utkface", path)
    assert code == 2 and one_line(err) and says in err and "elete" not in err


@pytest.mark.parametrize("name", ["UTKFace.tar.gz", "UTKFace.tar", "UTKFace.zip", "UTKFace.tar.xz"])
@pytest.mark.parametrize("share", [0.2, 0.7])
def test_an_archive_that_was_cut_off_is_said_to_be(tmp_path, name, share):
    archive = pack(tmp_path / name, utkface(tmp_path / "UTKFace"), "UTKFace/")
    os.truncate(archive, int(archive.stat().st_size * share))
    code, _, err = verify("utkface", archive)
    assert code == 2 and one_line(err) and "the download was cut off" in err and "Delete it and download it" in err


def test_the_folder_above_and_a_zip_of_another_name_are_found_and_else_it_is_said_what_is_there(tmp_path):
    expected = verify("utkface", utkface(tmp_path / "O" / "utkface_aligned_cropped" / "UTKFace"))
    assert expected[0] == 0 and verify("utkface", tmp_path / "O") == expected
    kaggle = tmp_path / "K"
    kaggle.mkdir()
    pack(
        kaggle / "archive.zip",
        tmp_path / "O" / "utkface_aligned_cropped" / "UTKFace",
        "utkface_aligned_cropped/UTKFace/",
    )
    assert verify("utkface", kaggle) == expected
    (tmp_path / "E" / "faces" / "deeper" / "still").mkdir(parents=True)
    (tmp_path / "E" / "faces.7z").write_bytes(b"")
    (tmp_path / "E" / "readme.txt").write_text("")
    code, _, err = verify("utkface", tmp_path / "E")
    assert code == 2 and one_line(err)
    assert "holds no images (it holds the folder faces; the archive faces.7z; 1 other file)" in err
    code, _, err = verify("celeba", kaggle)
    assert code == 2 and one_line(err) and "(it holds the archive archive.zip)" in err


def test_an_empty_data_dir_is_refused(tmp_path):
    utkface(tmp_path / "UTKFace")
    for words in (("data", "verify", "utkface"), ("bench", "--dataset", "utkface"), ("bench",)):
        code, _, err = fairssl(*words, "--data-dir", "", cwd=tmp_path, env={"FAIRSSL_DATA": "/nonexistent"})
        assert code == 2 and one_line(err) and "'--data-dir': the path is empty" in err
    assert not (tmp_path / "runs").exists()


def test_a_tilde_is_expanded_wherever_a_path_is_given(tmp_path):
    utkface(tmp_path / "faces")
    for words, env in ((("--data-dir=~/faces",), {}), ((), {"FAIRSSL_DATA": "~/faces"})):
        env = {"HOME": str(tmp_path), "FAIRSSL_CACHE": "~/kept", **env}
        code, out, _ = fairssl("data", "verify", "utkface", *words, *SIZE, env=env)
        assert code == 0 and "no fault" in out
    assert (tmp_path / "kept" / "packs").is_dir()


def test_too_few_test_images_are_refused_and_the_limit_may_be_lowered(tmp_path):
    root = utkface(tmp_path / "UTKFace", per_cell=10)
    for words in (("bench", "--method", "simclr", "--out", tmp_path / "runs"), ("data", "prepare", "utkface")):
        choice = ("--dataset", "utkface") if words[0] == "bench" else ()
        code, _, err = fairssl(*words, *choice, "--data-dir", root, *SIZE)
        assert code == 2 and "fairssl: error: utkface: the test split has 1 image of gender = 0 and ethnicity" in err
        assert "fewer than 10" in err and "--set data.min_cell=1" in err
    assert not (tmp_path / "runs").exists()
    code, _, _ = fairssl("data", "prepare", "utkface", "--data-dir", root, *SIZE, "--set", "data.min_cell=1")
    assert code == 0
    code, out, _ = verify("utkface", root)  # the files are sound
    assert code == 0 and "note: too small to be judged: utkface: the test split has 1 image of" in out


def test_a_name_that_is_not_utf8_is_named_and_escaped(tmp_path):
    root = utkface(tmp_path / "UTKFace")
    shutil.copy(root / next(iter(os.listdir(root))), root / NOT_UTF8)
    code, out, _ = verify("utkface", root)
    assert code == 0 and "note: odd names: 1 file name is not UTF-8" in out and r"caf\xe9_portrait.jpg" in out
    code, out, _ = verify("utkface", root, "--json")
    assert any(r"caf\xe9_portrait.jpg" in note for note in json.loads(out)["notes"])
    moved = tmp_path / os.fsdecode(b"caf\xe9")
    root.rename(moved)
    assert verify("utkface", moved)[0] == 0
    code, out, _ = fairssl("data", "list", "--data-dir", moved, "--json")
    assert code == 0 and any((row["root"] or "").endswith(r"caf\xe9") for row in json.loads(out))
    code, _, err = fairssl("data", "verify", "utkface", "--data-dir", str(moved) + "x")
    assert code == 2 and one_line(err)
    archive = pack(tmp_path / "UTKFace.tar.gz", moved, "UTKFace/")
    assert verify("utkface", archive)[1] == verify("utkface", moved)[1]


def test_a_name_that_is_not_utf8_is_no_fault_of_celeba(tmp_path):
    """Where pandas keeps its strings in pyarrow, too: file names from the disk go into none of them."""
    root = celeba(tmp_path / "celeba")
    (root / "img_align_celeba" / "000003.jpg").rename(root / "img_align_celeba" / NOT_UTF8)
    code, out, _ = verify("celeba", root)
    assert code == 0 and "note: odd names: 1 file name is not UTF-8" in out
    assert rf"note: unlisted: 1 image has no labels and is left out: {SHOWN}" in out
    assert "note: missing: 1 of the 60 images listed are not there" in out
    code, out, _ = fairssl("data", "prepare", "celeba", "--data-dir", root, *SIZE, "--set", "data.min_cell=0")
    assert code == 0 and SHOWN in out
    code, out, _ = fairssl("data", "list", "--data-dir", root, "--json")
    (row,) = [row for row in json.loads(out) if row["name"] == "celeba"]
    assert code == 0 and row["images"] == 59 and row["broken"] is None
    pack(tmp_path / "celeba" / "img_align_celeba.tar.gz", root / "img_align_celeba", "")
    shutil.rmtree(root / "img_align_celeba")
    assert verify("celeba", root)[0] == 0


def test_a_bench_over_a_folder_with_such_names_works_to_the_end(tmp_path):
    """One name without labels, one with: it is trained and judged on, and its id is in the predictions."""
    root = utkface(tmp_path / "UTKFace", per_cell=60)
    shutil.copy(root / min(os.listdir(root)), root / NOT_UTF8)
    for path in sorted(root.glob("2?_*.jpg")):
        path.rename(path.with_name(path.name.replace(".jpg", os.fsdecode(b"\xe9.jpg"))))
    words = ("bench", "--method", "simclr", "--dataset", "utkface", "--data-dir", root, *SMALL, *SIZE, "--json")
    sets = ("--set", "data.n_train=40", "--set", "data.n_eval=20")
    for _ in range(2):
        code, out, err = fairssl(*words, *sets, "--out", tmp_path / "runs")
        assert code == 0 and json.loads(out)[0]["failed"] == 0, err
    (record,) = (tmp_path / "runs" / "results").glob("*/record.json")
    assert any(r"caf\xe9_portrait.jpg" in note for note in json.loads(record.read_text())["notes"])


def test_what_a_group_shares_keeps_the_groups_modes(tmp_path):
    cache = tmp_path / "cache"
    cache.chmod(0o2775)
    root = utkface(tmp_path / "UTKFace")
    words = ("data", "prepare", "utkface", *SIZE, "--set", "data.min_cell=1", "--data-dir")
    assert fairssl(*words, root, umask=0o002)[0] == 0
    archive = pack(tmp_path / "UTKFace.tar", root, "UTKFace/")
    assert fairssl(*words, archive, umask=0o002)[0] == 0
    made = list(cache.rglob("*"))
    assert {path.relative_to(cache).parts[0] for path in made} == {"checksums", "listings", "packs", "sides"}
    for path in made:
        mode = stat.S_IMODE(path.stat().st_mode) & 0o777
        assert mode == (0o775 if path.is_dir() else 0o664), path


def test_a_cache_of_somebody_elses_is_one_line_and_is_not_to_be_deleted(tmp_path):
    cache, root = tmp_path / "cache", utkface(tmp_path / "UTKFace")
    words = ("data", "prepare", "utkface", *SIZE, "--set", "data.min_cell=1", "--data-dir", root)
    cache.chmod(0o755)
    code, _, err = fairssl(*words, nobody=True, env={"FAIRSSL_CACHE": str(cache / "x" if os.geteuid() else cache)})
    if os.geteuid() == 0:
        assert code == 2 and one_line(err) and f"cannot write the cache folder '{cache}" in err and "elete" not in err
    assert fairssl(*words)[0] == 0
    if os.geteuid() == 0:
        assert fairssl(*words, nobody=True)[0] == 0  # it is all there, and may be read
    (folder,) = (cache / "packs").iterdir()
    folder.chmod(0)
    try:
        code, _, err = fairssl(*words, nobody=True)
    finally:
        folder.chmod(0o755)
    assert code == 2 and one_line(err) and "cannot be read: Permission denied" in err
    assert ("another user's" in err and "elete" not in err) or os.geteuid() != 0


NO_HOME = """
import os, pwd, sys
def getpwuid(uid):
    raise KeyError(uid)
pwd.getpwuid = getpwuid
os.environ.pop("HOME", None)
from fairssl.cli import run
sys.exit(run(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("doctor", 1),
        ("data list", 0),
        ("data prepare utkface", 2),
        ("bench --dataset utkface --dry-run", 0),
        ("list", 0),
    ],
)
def test_a_user_without_a_home_is_told_in_one_line(tmp_path, words, code):
    import subprocess
    import sys

    env = {k: v for k, v in os.environ.items() if k not in ("HOME", "FAIRSSL_CACHE", "FAIRSSL_DATA", "XDG_DATA_HOME")}
    call = [sys.executable, "-c", NO_HOME, *words.split()]
    done = subprocess.run(call, capture_output=True, text=True, env=env, cwd=tmp_path)
    text = done.stdout + done.stderr
    assert done.returncode == code and "Traceback" not in text, text
    assert words == "list" or "this user has no home folder (HOME is not set): set FAIRSSL_DATA" in text
    assert words != "doctor" or "problem: this user has no home folder (HOME is not set): set FAIRSSL_CACHE" in text


SQUARES = plugin_and_test("dataset", "squares")[0]
TARGETS = "target = np.arange(n, dtype=np.int64) % 2"
N = "        n = self.config.n_train + 2 * self.config.n_eval\n"
SPLIT = "    return Split(images, target, group,"


def stranger(tmp_path: Path, *changes: tuple[str, str]) -> dict[str, str]:
    """The environment in which a package offers the template's dataset with these changes."""
    text = SQUARES
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    write_package(tmp_path / "site", "stranger", {"datasets/squares.py": text})
    return {"PYTHONPATH": str(tmp_path / "site")}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ((N, "        return 1 // 0\n"), "ZeroDivisionError: integer division or modulo by zero"),
        ((N, "        raise SystemExit('gone')\n"), "SystemExit: gone"),
        ((N, "        return None\n"), "inspect must return DataFacts"),
        (("    card = Card(", "    card = dict("), "its card is a dict, not a Card"),
        (('fingerprint="squares-1"', 'finger="x"'), "unexpected keyword argument 'finger'"),
    ],
)
def test_whatever_a_dataset_raises_it_is_listed_with_its_cause(tmp_path, change, says):
    env = stranger(tmp_path, change)
    for words in (("data", "list"), ("doctor",)):
        code, out, _ = fairssl(*words, env=env)
        assert code == 0 and "broken: " in out and says in out and "5,400 images" in out
    code, out, _ = fairssl("data", "list", "--json", env=env)
    (row,) = [row for row in json.loads(out) if row["name"] == "squares"]
    assert says in row["broken"] and not row["found"]
    code, _, err = (
        fairssl("data", "prepare", "squares", env=env) if "card" not in says else (2, "", "fairssl: error: x\n")
    )
    assert code == 2 and one_line(err)


@pytest.mark.parametrize("change", [(N, "        raise MemoryError\n"), (SPLIT, "    raise MemoryError\n" + SPLIT)])
def test_a_dataset_that_finds_no_memory_is_one_line(tmp_path, change):
    env = stranger(tmp_path, change)
    for words in (
        ("data", "prepare", "squares"),
        ("bench", "--dataset", "squares", *SMALL, "--out", tmp_path / "runs"),
    ):
        code, out, err = fairssl(*words, *SIZE, env=env)
        assert code == 2 and out == "" and one_line(err) and "squares: its images" in err, err
        assert "take more memory than there is" in err and "smaller --image-size or fewer images" in err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("name", ["synthfaces", "colored_digits"])
def test_drawn_images_larger_than_the_memory_are_refused_before_any_is_drawn(tmp_path, name):
    """Also in a plan. Without the check, the system ends a process that takes its memory bit by bit."""
    size = ("--image-size", "100000")
    sets = ("--encoder", "small_cnn", "--epochs", "1", "--seeds", "1", "--out", tmp_path / "runs")
    for words in (
        ("data", "prepare", name, *size),
        ("bench", "--dataset", name, *sets, *size),
        ("bench", "--dataset", name, *sets, *size, "--dry-run"),
    ):
        code, out, err = fairssl(*words)
        assert code == 2 and out == "" and one_line(err), err
        assert f"{name}: " in err and "images of 100000 px take" in err and "use a smaller --image-size" in err
    assert not (tmp_path / "runs").exists()


def test_more_drawn_images_than_the_memory_holds_are_refused(tmp_path):
    sets = ("--set", "data.n_train=100000000000", "--out", tmp_path / "runs")
    code, _, err = fairssl("bench", *SMALL, *SIZE, *sets)
    assert code == 2 and one_line(err) and "100,000,003,000 images of 16 px" in err and "fewer images" in err
    assert not (tmp_path / "runs").exists()


def test_a_target_of_three_classes_is_refused_before_anything_is_written(tmp_path):
    """And no class of it is dropped in silence."""
    change = ("np.arange(n, dtype=np.int64) % 2", "np.arange(n, dtype=np.int64) % 3")
    env = stranger(
        tmp_path, change, ("target, 1 - target)", "target % 2, 1 - target % 2)"), ("y * half", "y % 2 * half")
    )
    says = (
        "squares: target 'corner' has 3 values (0, 1, 2); a target is 0 or 1 for every image: choose another --target"
    )
    code, out, err = fairssl("data", "prepare", "squares", env=env)
    assert code == 2 and out == "" and one_line(err) and says in err
    code, out, err = fairssl("bench", "--dataset", "squares", *SMALL, *SIZE, "--out", tmp_path / "runs", env=env)
    assert code == 2 and out == "" and says in err
    assert not (tmp_path / "runs").exists()


def test_unknown_groups_are_legal_in_every_split_and_counted(tmp_path):
    env = stranger(tmp_path, (SPLIT, "    group[n // 2 :][:5] = -1\n" + SPLIT))
    code, out, _ = fairssl("data", "prepare", "squares", *SIZE, env=env)
    assert code == 0 and out.splitlines()[1].split() == ["split", "corner", "red", "blue", "unknown", "all"]
    sets = ("--set", "data.n_train=64", "--set", "data.n_eval=64", "--out", tmp_path / "runs")
    code, out, _ = fairssl("bench", "--method", "sofclr", "--dataset", "squares", *SMALL, *SIZE, *sets, env=env)
    assert code == 0 and "5 test images of unknown group" in out


def test_a_split_with_fewer_than_two_known_groups_is_refused(tmp_path):
    env = stranger(tmp_path, (SPLIT, "    group[(group == 1) & (part == 'test')] = -1\n" + SPLIT))
    code, _, err = fairssl("data", "prepare", "squares", *SIZE, env=env)
    assert code == 2 and one_line(err) and "fewer than two known groups in the test split" in err


def test_images_of_more_than_eight_bits_are_read_by_their_range_or_named(tmp_path):
    """A float image outside 0..1 is left out by name; the 16-bit ramp is a ramp."""
    root = utkface(tmp_path / "UTKFace")
    for name, array in {
        "30_0_0_1.png": np.linspace(0, 65535, 256).reshape(16, 16).astype(np.uint16),
        "30_0_0_2.tif": np.linspace(0, 1, 256).reshape(16, 16).astype(np.float32),
        "30_0_0_3.tif": np.linspace(0, 255, 256).reshape(16, 16).astype(np.float32),
        "30_0_0_4.tif": np.arange(256).reshape(16, 16).astype(np.int32),
    }.items():
        out = io.BytesIO()
        Image.fromarray(array).save(out, {"png": "PNG", "tif": "TIFF"}[name[-3:]])
        (root / name).write_bytes(out.getvalue())
    code, out, _ = verify("utkface", root)
    assert code == 1 and "fault: corrupt: 2 images do not decode" in out
    assert "30_0_0_3.tif: floating point from 0 to 255, outside 0..1" in out
    assert "30_0_0_4.tif: whole numbers of 32 bits, or with a sign" in out
