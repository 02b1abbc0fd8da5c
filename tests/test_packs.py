"""Image files, fingerprints, packs: same content same key, whole or not there, corrupt images counted."""

from __future__ import annotations

import io
import multiprocessing
import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from fairssl.data import decoded
from fairssl.data.decoded import decode, decoded_images
from fairssl.data.files import ImageFiles, hashed_order, short_id
from fairssl.data.places import data_root
from fairssl.types import UserError


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FAIRSSL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FAIRSSL_DATA", raising=False)
    return tmp_path / "cache"


def encode(array: np.ndarray, **options) -> bytes:
    out = io.BytesIO()
    Image.fromarray(array).save(out, **{"format": "PNG", **options})
    return out.getvalue()


def noise(seed: int, height: int = 12, width: int = 10) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def folder_of(root: Path, n: int, sub: str = "") -> Path:
    (root / sub).mkdir(parents=True)
    for i in range(n):
        (root / sub / f"{i:03d}.png").write_bytes(encode(noise(i)))
    return root


def zip_of(path: Path, folder: Path, prefix: str = "") -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(folder.rglob("*"), reverse=True):
            if file.is_file():
                archive.write(file, prefix + file.relative_to(folder).as_posix())
    return path


def built(cache: Path) -> list[str]:
    return sorted(p.name for p in (cache / "packs").iterdir()) if (cache / "packs").exists() else []


# --------------------------------------------------------------------------- names and fingerprints


def test_a_zip_and_its_folder_have_one_fingerprint_wherever_they_lie(tmp_path):
    here = folder_of(tmp_path / "a_1" / "deep" / "25_0_1", 5)
    there = folder_of(tmp_path / "b", 5, sub="UTK")
    archive = zip_of(tmp_path / "x.zip", here, prefix="some/where/")
    prints = {ImageFiles(p).fingerprint() for p in (here, there, there / "UTK", archive)}
    assert len(prints) == 1
    assert list(ImageFiles(archive).names) == [f"{i:03d}.png" for i in range(5)]
    assert ImageFiles(archive).read("003.png") == (here / "003.png").read_bytes()


def test_the_fingerprint_is_of_names_sizes_and_content(tmp_path):
    root = folder_of(tmp_path / "a", 3)
    first = ImageFiles(root).fingerprint()
    (root / "notes.txt").write_text("no image")
    (root / "._000.png").write_bytes(b"hidden")
    assert ImageFiles(root).fingerprint() == first
    (root / "000.png").rename(root / "9.png")
    renamed = ImageFiles(root).fingerprint()
    (root / "9.png").write_bytes((root / "9.png").read_bytes()[:-1] + b"!")
    changed = ImageFiles(root).fingerprint()
    assert len({first, renamed, changed}) == 3


def test_the_second_fingerprint_of_a_folder_reads_no_file(tmp_path, monkeypatch):
    root = folder_of(tmp_path / "a", 4)
    first = ImageFiles(root).fingerprint()
    monkeypatch.setattr(ImageFiles, "read", lambda self, name: pytest.fail("read a file"))
    assert ImageFiles(root).fingerprint() == first


def test_a_folder_within_wins_over_what_lies_beside_it(tmp_path):
    root = folder_of(tmp_path / "a", 2, sub="utkface")
    folder_of(root / "crop_part1", 3)
    archive = zip_of(tmp_path / "a.zip", root)
    for path in (root, archive):
        assert list(ImageFiles(path, within="UTKFace").names) == ["000.png", "001.png"]
        assert len(ImageFiles(path)) == 5
    assert len(ImageFiles(root, depth=0)) == 0


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"<!DOCTYPE html><html><title>Google Drive - Quota exceeded</title>" + b"x" * 2000, "web page"),
        (b"PK\x03\x04" + b"\0" * 500, "cut off"),
        (b"", "empty"),
        (b"\x89garbage", "damaged"),
    ],
)
def test_what_is_no_zip_is_named_with_its_first_bytes(tmp_path, content, reason):
    path = tmp_path / "img_align_celeba.zip"
    path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        ImageFiles(path)
    message = str(caught.value)
    assert "img_align_celeba.zip" in message and reason in message and repr(content[:40]) in message
    assert "\n" not in message


def test_roots_in_order_of_precedence(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "xdg"))
    assert data_root(None, "utkface") == tmp_path / "xdg" / "fairssl"
    (tmp_path / "env").mkdir()
    monkeypatch.setenv("FAIRSSL_DATA", str(tmp_path / "env"))
    assert data_root(None, "utkface") == tmp_path / "env"
    (tmp_path / "dir").mkdir()
    assert data_root(tmp_path / "dir", "utkface") == tmp_path / "dir"
    with pytest.raises(UserError, match=r"utkface: --data-dir .*nowhere.* does not exist"):
        data_root(tmp_path / "nowhere", "utkface")
    monkeypatch.setenv("FAIRSSL_DATA", str(tmp_path / "gone"))
    with pytest.raises(UserError, match=r"FAIRSSL_DATA .*gone"):
        data_root(None, "utkface")


def test_ids_and_order_depend_on_names_alone():
    assert short_id("UTKFace/1_0_0_2.jpg") == short_id("elsewhere/1_0_0_2.jpg") != short_id("1_0_0_3.jpg")
    assert short_id("e\u0301.jpg") == short_id("\u00e9.jpg")  # as macOS writes it, and as others do
    ids = [f"{i:02d}" for i in range(40)]
    order = [ids[i] for i in hashed_order(ids, 0)]
    assert sorted(order) == ids != order
    shuffled = ids[::-1]
    assert [shuffled[i] for i in hashed_order(shuffled, 0)] == order
    assert [ids[:-1][i] for i in hashed_order(ids[:-1], 0)] == [i for i in order if i != "39"]
    assert [ids[i] for i in hashed_order(ids, 1)] != order


# --------------------------------------------------------------------------- decoding


def test_decode_by_hand():
    wide = np.zeros((4, 8, 3), np.uint8)
    wide[:, 2:6] = (10, 20, 30)  # the middle square
    assert (decode(encode(wide), 4) == np.array([10, 20, 30], np.uint8)[:, None, None]).all()
    assert (
        decode(encode(noise(1, 6, 6)), 6) == noise(1, 6, 6).transpose(2, 0, 1)
    ).all()  # no resampling at its own size
    checks = np.indices((8, 8)).sum(0) % 2 * 200
    halved = decode(encode(np.repeat(checks[..., None], 3, 2).astype(np.uint8)), 4)
    assert abs(halved.astype(int)[:, 1:3, 1:3] - 100).max() <= 2  # antialiased: the mean, not every other pixel


def test_decode_turns_as_exif_says_and_makes_rgb():
    image = noise(3, 5, 5)
    exif = Image.Exif()
    exif[0x0112] = 6  # shown after a quarter turn clockwise
    out = io.BytesIO()
    Image.fromarray(image).save(out, "PNG", exif=exif)
    assert (decode(out.getvalue(), 5) == np.rot90(image, -1).transpose(2, 0, 1)).all()
    grey = decode(encode(image[..., 0]), 5)
    assert grey.shape == (3, 5, 5) and (grey == image[..., 0]).all()


# --------------------------------------------------------------------------- packs


def test_a_pack_holds_the_images_in_the_order_asked_for(tmp_path, cache):
    files = ImageFiles(folder_of(tmp_path / "a", 6))
    names = [files.names[i] for i in (4, 0, 5)]
    calls = []
    got = decoded_images(files, names, 8, files.fingerprint(), lambda *args: calls.append(args))
    assert got.images.shape == (3, 3, 8, 8) and got.images.dtype == np.uint8 and isinstance(got.images, np.memmap)
    for image, seed in zip(got.images, (4, 0, 5), strict=True):
        assert (image == decode(encode(noise(seed)), 8)).all()
    assert got.kept.tolist() == [0, 1, 2] and got.corrupt == () == got.notes
    assert calls[-1] == ("decoding", 3, 3)
    assert len(built(cache)) == 1


def test_a_second_call_decodes_nothing_and_cannot_change_the_file(tmp_path, monkeypatch):
    files = ImageFiles(folder_of(tmp_path / "a", 3))
    first = decoded_images(files, files.names, 8, files.fingerprint())
    before = first.images.copy()
    first.images[:] = 0
    archive = ImageFiles(zip_of(tmp_path / "moved.zip", tmp_path / "a"))
    monkeypatch.setattr(decoded, "decode", lambda *_: pytest.fail("decoded"))
    again = decoded_images(archive, archive.names, 8, archive.fingerprint())
    assert (again.images == before).all()


def test_size_names_and_content_make_other_packs(tmp_path, cache):
    files = ImageFiles(folder_of(tmp_path / "a", 3))
    for names, size, print_ in (
        (files.names, 8, "x"),
        (files.names[:2], 8, "x"),
        (files.names, 9, "x"),
        (files.names, 8, "y"),
    ):
        decoded_images(files, names, size, print_)
    assert len(built(cache)) == 4


def test_corrupt_images_are_named_counted_and_left_out(tmp_path):
    root = folder_of(tmp_path / "a", 5)
    (root / "001.png").write_bytes((root / "001.png").read_bytes()[:60])
    (root / "003.png").write_bytes(b"<html>not found</html>")
    (root / "004.png").write_bytes(b"")
    files = ImageFiles(root)
    for _ in range(2):  # built, then reopened
        got = decoded_images(files, files.names, 8, files.fingerprint())
        assert got.kept.tolist() == [0, 2] and got.images.shape == (2, 3, 8, 8) and got.sha256.shape == (2, 32)
        assert (got.images[1] == decode(encode(noise(2)), 8)).all()
        assert [entry.partition(":")[0] for entry in got.corrupt] == ["001.png", "003.png", "004.png"]
        assert got.notes[0].startswith("corrupt: 3 images") and "003.png: not an image" in got.notes[0]


def test_a_damaged_member_of_a_zip_is_corrupt(tmp_path):
    archive = zip_of(tmp_path / "a.zip", folder_of(tmp_path / "a", 3))
    data = bytearray(archive.read_bytes())
    with zipfile.ZipFile(archive) as whole:
        entry = whole.getinfo("001.png")
    at = entry.header_offset + 30 + len("001.png") + entry.compress_size // 2
    data[at] ^= 0xFF
    archive.write_bytes(bytes(data))
    with ImageFiles(archive) as files:
        got = decoded_images(files, files.names, 8, files.fingerprint())
    assert got.kept.tolist() == [0, 2]


def test_where_no_image_decodes_no_pack_is_left(tmp_path, cache):
    root = tmp_path / "a"
    root.mkdir()
    for i in range(3):
        (root / f"{i}.jpg").write_bytes(b"<html>quota</html>")
    files = ImageFiles(root)
    with pytest.raises(UserError, match=r"none of the 3 images in .* decodes \(not an image\)"):
        decoded_images(files, files.names, 8, files.fingerprint())
    assert built(cache) == []
    with pytest.raises(UserError, match="none of the 3 images"):
        files.shorter_side()


def test_an_empty_list_is_the_users_error(tmp_path):
    (tmp_path / "a").mkdir()
    files = ImageFiles(tmp_path / "a")
    with pytest.raises(UserError, match="holds no image"):
        decoded_images(files, files.names, 8, files.fingerprint())


def test_identical_bytes_have_identical_hashes(tmp_path):
    root = folder_of(tmp_path / "a", 2)
    (root / "9.png").write_bytes((root / "000.png").read_bytes())
    files = ImageFiles(root)
    got = decoded_images(files, files.names, 8, files.fingerprint())
    assert (got.sha256[0] == got.sha256[2]).all() and (got.sha256[0] != got.sha256[1]).any()


def test_a_truncated_pack_is_made_again(tmp_path, cache):
    files = ImageFiles(folder_of(tmp_path / "a", 3))
    want = np.array(decoded_images(files, files.names, 8, "x").images)
    (folder,) = (cache / "packs").iterdir()
    os.truncate(folder / "images.npy", 200)
    assert (decoded_images(files, files.names, 8, "x").images == want).all()
    assert built(cache) == [folder.name]


def test_interrupted_while_decoding_nothing_is_left(tmp_path, cache):
    files = ImageFiles(folder_of(tmp_path / "a", 3))

    def stop(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        decoded_images(files, files.names, 8, "x", stop)
    assert built(cache) == []


def test_the_remains_of_a_killed_process_are_swept_up_and_a_live_ones_are_not(tmp_path, cache):
    files = ImageFiles(folder_of(tmp_path / "a", 3))
    dead, alive = cache / "packs" / ".building-dead", cache / "packs" / ".building-alive"
    for folder in (dead, alive):
        folder.mkdir(parents=True)
        (folder / "images.npy").write_bytes(b"half")
    long_ago = time.time() - 2 * decoded.STALE
    for path in (dead / "images.npy", dead):
        os.utime(path, (long_ago, long_ago))
    decoded_images(files, files.names, 8, "x")
    assert not dead.exists() and alive.exists()


def _race(root: str, start) -> None:
    files = ImageFiles(Path(root))
    start.wait()
    assert len(decoded_images(files, files.names, 8, files.fingerprint())) == 40


def test_two_processes_at_once_make_one_pack(tmp_path, cache):
    root = folder_of(tmp_path / "a", 40)
    spawn = multiprocessing.get_context("spawn")
    start = spawn.Event()
    both = [spawn.Process(target=_race, args=(str(root), start)) for _ in range(2)]
    for process in both:
        process.start()
    start.set()
    for process in both:
        process.join(60)
    assert [process.exitcode for process in both] == [0, 0]
    assert len(built(cache)) == 1 and not built(cache)[0].startswith(".")


def test_a_cache_that_cannot_be_written_is_the_users_error(tmp_path, monkeypatch):
    files = ImageFiles(folder_of(tmp_path / "a", 2))
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("FAIRSSL_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(UserError, match=r"cannot write the cache folder .* set FAIRSSL_CACHE"):
        decoded_images(files, files.names, 8, "x")


def test_too_little_room_is_said_before_anything_is_written(tmp_path, cache, monkeypatch):
    files = ImageFiles(folder_of(tmp_path / "a", 2))
    monkeypatch.setattr(decoded.shutil, "disk_usage", lambda _: SimpleNamespace(free=10))
    with pytest.raises(UserError, match=r"needs 0\.0 GB .* FAIRSSL_CACHE"):
        decoded_images(files, files.names, 8, "x")
    assert built(cache) == []


MEMORY = """
import resource, sys, zipfile
from pathlib import Path
from fairssl.data.decoded import decoded_images
from fairssl.data.files import ImageFiles
with ImageFiles(Path(sys.argv[1])) as files:
    decoded_images(files, files.names[:64], 128, "few")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    whole = decoded_images(files, files.names, 128, "all")
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(len(whole), after - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in kB on Linux only")
def test_memory_does_not_grow_with_the_number_of_images(tmp_path):
    n = 2000  # 98 MB decoded
    data = encode(noise(0, 16, 16))
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for i in range(n):
            archive.writestr(f"{i}.png", data)
    run = subprocess.run(
        [sys.executable, "-c", MEMORY, str(tmp_path / "a.zip")], capture_output=True, text=True, check=True
    )
    decoded, grown = map(int, run.stdout.split())
    assert decoded == n
    assert grown < 50_000  # kB
