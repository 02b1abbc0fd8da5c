"""A user's own images through the command line, few and many: what is printed, how long it takes again, how much memory."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from reference.command import SMALL, fairssl
from reference.own_images import drawn, labels, write_folder, write_table

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRSSL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FAIRSSL_DATA", raising=False)


def test_described_and_benched_by_the_command_that_is_proposed(tmp_path):
    root = tmp_path / "my faces"
    write_folder(root, 600)
    code, out, err = fairssl("data", "describe", root, "--table", root / "faces.csv", "--set", "data.bin=age:45")
    assert code == 0 and err == ""
    lines = out.splitlines()
    assert lines[0] == f"{root}, faces.csv: 600 rows, 600 with an image, shorter side 12 px"
    assert "  smiling: no 284, yes 284; 32 missing" in lines and "    target, y = 1 is smiling; attribute" in lines
    assert any(line.startswith("  age (ordered): <=45 ") for line in lines)
    assert lines[-1] == (
        f"fairssl bench --dataset folder --data-dir '{root}' --set data.table=faces.csv --set data.bin=age:45 "
        "--target smiling --attr gender"
    )
    words = shlex.split(lines[-1])[1:]
    for _ in range(2):
        code, out, err = fairssl(*words, "--method", "simclr", *SMALL, "--out", tmp_path / "runs")
        assert code == 0, err
    assert "## folder: target smiling, attribute gender" in out and "y = 1 is smiling. Groups: 0 Female, 1 Male." in out
    assert "test images of unknown group are left out" in out and "table=faces.csv" in out
    (record,) = (tmp_path / "runs" / "results").glob("*/record.json")
    notes = json.loads(record.read_text())["notes"]
    assert "missing values: 32 of 600 images have no smiling and are left out" in notes
    words[words.index("gender")] = "age"
    code, out, err = fairssl(*words, "--method", "simclr", *SMALL, "--out", tmp_path / "runs", "--json")
    assert code == 0 and json.loads(out)[0]["failed"] == 0, err
    records = [json.loads(path.read_text()) for path in (tmp_path / "runs" / "results").glob("*/record.json")]
    assert sorted((r["facts"]["ordered"], len(r["facts"]["groups"])) for r in records) == [(False, 2), (True, 2)]
    assert len(list((tmp_path / "runs" / "pretrain").iterdir())) == 1  # simclr sees no group: trained once for both


def test_mistakes_are_one_line_and_leave_nothing(tmp_path):
    write_folder(tmp_path / "d", 30)
    bench = ("bench", "--dataset", "folder", "--data-dir", tmp_path / "d", "--out", tmp_path / "runs")
    for words, says in (
        ((*bench, "--target", "race", "--attr", "gender"), "--set data.positive=race:White"),
        ((*bench, "--target", "smiling"), "--attr is needed"),
        ((*bench[:3], "--data-dir", tmp_path / "d" / "a" / "00000.png"), "is one image (PNG)"),
        (("data", "describe", tmp_path / "nowhere"), "does not exist"),
        (("data", "describe", tmp_path), "holds no CSV or Parquet table"),
        (("data", "describe", tmp_path / "d", "--target", "smile"), "did you mean 'smiling'"),
    ):
        code, out, err = fairssl(*words)
        assert code == 2 and out == "" and err.count("\n") == 1 and says in err, err
    assert not (tmp_path / "runs").exists()


def proposed(root, *words):
    """The lines that `data describe` prints, and the words of the command that it ends with."""
    code, out, err = fairssl("data", "describe", root, "--table", "faces.csv", *words)
    assert code == 0 and err == "", err
    lines = out.splitlines()
    return lines, shlex.split(lines[-1])[1:]


def runs(tmp_path, words):
    code, out, err = fairssl(*words, "--method", "random", *SMALL, "--out", tmp_path / "runs", "--json")
    assert code == 0 and [row["failed"] for row in json.loads(out)] == [0], err


def test_where_a_test_cell_is_too_small_a_command_is_proposed_that_runs(tmp_path):
    root = tmp_path / "own"
    write_folder(root, 402)
    lines, words = proposed(root)
    assert lines[-2].startswith(
        "note: folder: the test split has 6 images of smiling = 0 and gender = 'Female', fewer than"
    )
    assert lines[-2].endswith("The command below has data.test=0.2, and runs")
    assert words[-6:] == ["--set", "data.test=0.2", "--target", "smiling", "--attr", "gender"]
    assert "    fewest of them in the test split: 6 of smiling = 0, Female" in lines
    runs(tmp_path, words)
    plain = [*words[:-6], *words[-4:], "--out", tmp_path / "none"]
    for dry in ([], ["--dry-run"]):
        code, out, err = fairssl(*plain, *dry)
        assert code == 2 and out == "" and err.count("\n") == 1
        assert lines[-2].startswith(f"note: {err.removeprefix('fairssl: error: ').rstrip()}")
    assert not (tmp_path / "none").exists()


def test_an_image_that_does_not_decode_counts_in_no_cell(tmp_path):
    root = tmp_path / "d"
    n = 60
    i = np.arange(n)
    columns = {"y": i % 2, "a": np.array(["u", "v"])[i // 2 % 2], "split": ["train"] * 8 + ["val"] * 8 + ["test"] * 44}
    names = write_folder(root, n, columns)
    assert not proposed(root)[0][-2] and "data.min_cell" not in proposed(root)[0][-1]  # eleven in each cell
    for k in (16, 20):  # y = 0, a = u
        (root / names[k]).write_bytes(b"no image")
    lines, words = proposed(root)
    assert "the test split has 9 images" in lines[-2] and "data.min_cell=9" in words
    runs(tmp_path, words)


def test_describe_proposes_other_columns_or_says_why_nothing_runs(tmp_path):
    n = 120
    i = np.arange(n)
    split = ["train"] * 40 + ["val"] * 20 + ["test"] * 60
    lone = np.where(i < 60, np.array(["u", "v"])[i % 2], "u")  # one group in the test split
    write_folder(
        tmp_path / "d", n, {"y": i // 2 % 2, "gender": lone, "other": np.array(["p", "q"])[i % 2], "split": split}
    )
    lines, words = proposed(tmp_path / "d", "--target", "y")
    assert "fewer than two known groups in the test split" in lines[-2]
    assert lines[-2].endswith("The command below has --attr other, and runs")  # 30 of v are too few for any drawn split
    assert words[-4:] == ["--target", "y", "--attr", "other"]
    runs(tmp_path, words)
    write_folder(tmp_path / "e", 6, {"y": [0, 1] * 3, "a": list("uuuvvv")})
    lines, _ = proposed(tmp_path / "e")
    assert lines[-1].startswith("no command: folder: ")
    found = json.loads(fairssl("data", "describe", tmp_path / "e", "--json")[1])
    assert found["command"] is None and found["command_note"] == lines[-1].removeprefix("no command: ")


def test_a_column_name_with_a_comma_in_it_can_be_typed(tmp_path):
    root = tmp_path / "d"
    i = np.arange(600)
    columns = {"g h": i % 2, "a,b": np.array(["u", "v"])[i // 2 % 2], "c": np.array(["p", "q"])[i // 4 % 2]}
    columns["age,years"] = 20 + i % 50
    write_folder(root, 600, columns)
    lines, words = proposed(root, "--target", "g h", "--attr", "a,b", "--set", 'data.bin={"age,years": [45]}')
    assert lines[-1].endswith("--target 'g h' --attr '\"a,b\"'")
    runs(tmp_path, words)
    code, out, _ = fairssl(*words[:-1], '"a,b",c', "--set", "train.epochs=1", "--dry-run", "--json")
    assert code == 0 and json.loads(out)["methods"][0]["pairs"] == 2
    code, _, err = fairssl(*words[:-1], "a,b", "--dry-run")
    assert code == 2 and "did you mean 'a,b'" in err
    grid = tmp_path / "grid.toml"
    grid.write_text('methods = ["random"]\ndatasets = ["folder"]\ntargets = ["g h"]\nattributes = ["a,b"]\n')
    code, out, err = fairssl("bench", "--grid", grid, "--data-dir", root, "--dry-run", "--json")
    assert code == 0 and json.loads(out)["methods"][0]["pairs"] == 1, err
    shutil.move(root / "faces.csv", root / "a,b.csv")
    code, out, err = fairssl(*words, "--dry-run")
    assert code == 2 and "there is no table" in err
    words[words.index("data.table=faces.csv")] = 'data.table="a,b.csv"'
    assert fairssl(*words, "--dry-run")[0] == 0
    assert '"a,b"' in fairssl("bench", "--help")[1]


def test_control_characters_in_a_column_name_are_escaped_and_proposed_in_no_command(tmp_path):
    i = np.arange(600)
    columns = {
        "gender\nline": np.array(["u", "v"])[i // 2 % 2],
        "y": i % 2,
        "z\x1b[1m": np.array(["p", "q"])[i // 4 % 2],
    }
    write_folder(tmp_path / "d", 600, columns)
    lines, _ = proposed(tmp_path / "d")
    assert any(line.startswith("  gender\\x0aline: u 300") for line in lines)
    assert any(line.startswith("  z\\x1b[1m: p 300") for line in lines) and "\x1b" not in "".join(lines)
    assert lines[-1].startswith("no command: the name of the column 'gender\\x0aline' ") or "z\\x1b" in lines[-1]


def test_given_splits_are_never_thrown_away(tmp_path):
    root = tmp_path / "d"
    write_folder(root, 600, {**labels(600), "split": ["train"] * 600})
    bench = ("bench", "--dataset", "folder", "--data-dir", root, "--target", "smiling", "--attr", "gender")
    bench = (*bench, "--method", "random", *SMALL, "--out", tmp_path / "runs")
    for more in ((), ("--set", "data.min_cell=0"), ("--dry-run",)):
        code, out, err = fairssl(*bench, *more)
        assert code == 2 and out == "" and err.count("\n") == 1 and not (tmp_path / "runs").exists()
        assert "has val or test in the split column 'split'" in err and "--set data.split=drawn" in err
    code, out, err = fairssl(*bench, "--set", "data.split=drawn")
    assert code == 0 and "split=drawn" in out, err


def test_prepare_and_verify_count_what_is_unknown(tmp_path):
    write_folder(tmp_path / "d", 600)
    words = ("folder", "--data-dir", tmp_path / "d", "--target", "smiling", "--attr", "gender", "--image-size", "12")
    code, out, _ = fairssl("data", "prepare", *words, "--json")
    counts = json.loads(out)["splits"]
    assert code == 0 and sum(part["n"] for part in counts.values()) == 568
    assert sum(n for part in counts.values() for cells in part["cells"].values() for n in cells.values()) == 568
    assert "unknown" in counts["train"]["cells"]["0"]
    shutil.copy(tmp_path / "d" / "a" / "00000.png", tmp_path / "d" / "a" / "extra.png")
    code, out, _ = fairssl("data", "verify", *words)
    assert code == 0 and "no fault" in out and "unlisted: 1 image has no row" in out


def test_fairface_through_the_command_line(tmp_path):
    root = tmp_path / "fairface"
    for part, n in (("train", 900), ("val", 600)):
        (root / part).mkdir(parents=True)
        names = [f"{part}/{i + 1}.jpg" for i in range(n)]
        for i, name in enumerate(names):
            (root / name).write_bytes(drawn(i + 10_000 * (part == "val"), form="JPEG"))
        races = ("White", "Black", "Latino_Hispanic", "East Asian", "Southeast Asian", "Indian", "Middle Eastern")
        columns = {
            "age": [("20-29", "more than 70")[i % 2] for i in range(n)],
            "gender": [("Male", "Female")[i // 2 % 2] for i in range(n)],
            "race": [races[i // 4 % 7] for i in range(n)],
            "service_test": ["False"] * n,
        }
        write_table(root / f"fairface_label_{part}.csv", names, columns)
    code, out, err = fairssl("bench", "--dataset", "fairface", "--data-dir", root, "--method", "simclr", *SMALL)
    assert code == 0, err
    assert "## fairface: target gender, attribute race" in out and "6 White" in out
    assert "ot all images of the official splits: train 810 of 78,069, val 90 of 8,675, test 600 of 10,954" in out
    shutil.move(root / "train", tmp_path / "away")
    bench = (
        "bench",
        "--dataset",
        "fairface",
        "--data-dir",
        root,
        "--set",
        "data.min_cell=0",
        "--method",
        "simclr",
        *SMALL,
    )
    for says in (
        "none of the images of train/ that fairface_label_train.csv lists is in",
        "lacks fairface_label_train.csv",
    ):
        code, out, err = fairssl(*bench, "--out", tmp_path / "none")
        assert code == 2 and out == "" and err.count("\n") == 1 and says in err and "--set data.split=drawn" in err
        assert not (tmp_path / "none").exists()
        (root / "fairface_label_train.csv").unlink(missing_ok=True)
    code, out, err = fairssl(*bench, "--set", "data.split=drawn", "--out", tmp_path / "drawn")
    assert (
        code == 0 and "ot the official splits: data.split=drawn, drawn by image: train 480, val 60, test 60" in out
    ), err


PREPARE = ("--target", "smiling", "--attr", "gender", "--image-size", "16")


def measured(*words: object) -> tuple[float, int, str]:
    """Seconds, peak memory in MB and stdout of a `fairssl data` command."""
    code = (
        "import resource, sys\nfrom fairssl.cli import run\n"
        "code = run(sys.argv[1:])\n"
        "print('peak', resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, file=sys.stderr)\nsys.exit(code)"
    )
    started = time.monotonic()
    call = [sys.executable, "-c", code, "data", *map(str, words)]
    done = subprocess.run(call, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    return time.monotonic() - started, int(done.stderr.split("peak ")[1]), done.stdout


def write_many(root: Path, n: int, form: str, side: int) -> None:
    """n images of few different sizes and all different content, in a hundred folders, and their table."""
    rng = np.random.default_rng(0)
    names = [f"{i % 100:02d}/{i // 100:04d}.{form.lower()}" for i in range(n)]
    for folder in range(100):
        (root / f"{folder:02d}").mkdir(parents=True)
    for name in names:
        Image.fromarray(rng.integers(0, 256, (side, side, 3), dtype=np.uint8)).save(root / name)
    write_table(root / "faces.csv", names, labels(n))


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in kB on Linux only")
@pytest.mark.parametrize(("n", "form", "side"), [(10_000, "JPEG", 48), (70_000, "PNG", 8)])
def test_many_images_take_bounded_memory_and_open_again_in_seconds(tmp_path, n, form, side):
    few, many = tmp_path / "few", tmp_path / "many"
    write_many(few, 1_000, form, side)
    write_many(many, n, form, side)
    size = ("--image-size", str(min(side, 32)))
    _, base, _ = measured("prepare", "folder", "--data-dir", few, *PREPARE[:4], *size)
    first, peak, out = measured("prepare", "folder", "--data-dir", many, *PREPARE[:4], *size)
    again, peak_again, _ = measured("prepare", "folder", "--data-dir", many, *PREPARE[:4], *size)
    missing = len(range(0, n, 19))
    assert f"missing values: {missing:,} of {n:,} images have no smiling and are left out" in out
    # Names, labels and one chunk of images, not the images: 10,000 at 32 px are 31 MB, the bound is for 70,000 names.
    assert max(peak, peak_again) - base < 60 + n / 500, (base, peak, peak_again)
    assert again < max(20.0, first / 2), (first, again)
    _, peak, out = measured("describe", many)
    assert f"{n:,} rows, {n:,} with an image" in out and "every image decodes, none is there twice" in out
    assert peak - base < 60 + n / 500


def test_progress_is_told_while_files_are_read_and_decoded(tmp_path):
    from fairssl import kinds
    from fairssl.data.overview import inspect

    write_many(tmp_path / "d", 2_000, "PNG", 8)
    seen: list[tuple[str, int, int]] = []
    source = kinds.datasets.build("folder", {})
    inspect(source, tmp_path / "d", lambda *told: seen.append(told))
    assert ("reading", 2_000, 2_000) in seen and len(seen) >= 3
    source.load(tmp_path / "d", "smiling", "gender", 8, progress=lambda *told: seen.append(told))
    assert any(what == "decoding" and done == total for what, done, total in seen)


def test_a_zip_of_many_is_as_good(tmp_path):
    write_many(tmp_path / "d", 2_000, "PNG", 8)
    with zipfile.ZipFile(tmp_path / "d.zip", "w") as archive:
        for path in sorted((tmp_path / "d").rglob("*.*")):
            archive.write(path, path.relative_to(tmp_path / "d"))
    words = ("--target", "smiling", "--attr", "gender", "--image-size", "8")
    outs = [fairssl("data", "prepare", "folder", "--data-dir", tmp_path / name, *words)[1] for name in ("d", "d.zip")]
    assert outs[0] == outs[1] != ""
