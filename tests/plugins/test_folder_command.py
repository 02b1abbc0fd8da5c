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
