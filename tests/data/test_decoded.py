"""Image files, fingerprints, packs: same content same key, whole or not there, corrupt images counted."""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import subprocess
import sys
import tarfile
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


def tar_of(path: Path, folder: Path, prefix: str = "") -> Path:
    with tarfile.open(path, f"w:{'' if path.suffix == '.tar' else path.suffix[1:]}") as archive:
        for file in sorted(folder.rglob("*"), reverse=True):
            if file.is_file():
                archive.add(file, prefix + file.relative_to(folder).as_posix())
    return path


@pytest.mark.parametrize("ending", ["tar", "tar.gz", "tar.bz2", "tar.xz"])
def test_a_tar_is_its_folder_and_is_unpacked_once(tmp_path, cache, monkeypatch, ending):
    root = folder_of(tmp_path / "a", 5, sub="deep")
    archive = tar_of(tmp_path / f"x.{ending}", root, prefix="./some/../where/")
    with ImageFiles(archive) as files:
        assert files.fingerprint() == ImageFiles(root).fingerprint()
        assert files.names.tolist() == [f"{i:03d}.png" for i in range(5)]
        assert files.read("003.png") == (root / "deep" / "003.png").read_bytes()
        assert files.shorter_side() == 10
    monkeypatch.setattr("fairssl.data.archives.unpacked", lambda *_: pytest.fail("unpacked"))
    with ImageFiles(archive) as files:
        assert files.fingerprint() == ImageFiles(root).fingerprint() and files.shorter_side() == 10
        if ending == "tar":
            assert (decoded_images(files, files.names, 8, "x").images[2] == decode(encode(noise(2)), 8)).all()
    assert not any(path.name.startswith(".") for path in cache.rglob("*"))


def test_links_in_a_tar_count_as_the_files_they_lead_to(tmp_path):
    root = folder_of(tmp_path / "a", 2)
    os.link(root / "000.png", root / "hard.png")
    os.symlink("001.png", root / "soft.png")
    with ImageFiles(tar_of(tmp_path / "x.tar", root)) as files, ImageFiles(root) as folder:
        assert len(files) == 4 and files.fingerprint() == folder.fingerprint()
        assert files.read("soft.png") == (root / "001.png").read_bytes()


def test_of_two_files_of_one_name_in_an_archive_the_later_counts(tmp_path):
    root = folder_of(tmp_path / "a", 2)
    for path, opened in ((tmp_path / "x.tar", tarfile.open), (tmp_path / "x.zip", zipfile.ZipFile)):
        with pytest.warns() if opened is zipfile.ZipFile else contextlib.nullcontext(), opened(path, "w") as archive:
            for name in ("000.png", "001.png"):
                add = archive.add if hasattr(archive, "add") else archive.write
                add(root / name, "same.png")
        with ImageFiles(path) as files:
            assert files.names.tolist() == ["same.png"] and files.read("same.png") == (root / "001.png").read_bytes()


def test_a_tar_with_a_damaged_header_is_not_read_in_part(tmp_path):
    archive = tar_of(tmp_path / "x.tar", folder_of(tmp_path / "a", 3))
    with tarfile.open(archive) as whole:
        second = whole.getmembers()[1].offset
    data = bytearray(archive.read_bytes())
    data[second + 5] ^= 0xFF
    archive.write_bytes(bytes(data))
    with pytest.raises(UserError, match=r"x.tar' is not a whole tar of images: it is damaged.*See that it is"):
        ImageFiles(archive)


def test_folders_count_down_to_the_depth_asked_for(tmp_path):
    root = tmp_path / "a"
    for sub in ("", "b", "b/c", "b/c/d", ".hidden"):
        (root / sub).mkdir(exist_ok=True)
        (root / sub / f"{len(sub)}.png").write_bytes(encode(noise(len(sub))))
    os.symlink(root, root / "b" / "loop")
    found = {depth: ImageFiles(root, depth=depth).names.tolist() for depth in (0, 1, 2, None)}
    every = ["0.png", "b/1.png", "b/c/3.png", "b/c/d/5.png"]
    assert found == {0: every[:1], 1: every[:2], 2: every[:3], None: every}
    assert len(ImageFiles(root)) == 2


def test_two_folders_of_the_name_looked_for_are_told_apart_by_the_user(tmp_path):
    for above in ("x", "y"):
        folder_of(tmp_path / "a" / above / "UTKFace", 1)
    with pytest.raises(UserError, match=r"a' holds x/UTKFace and y/UTKFace; name one of them"):
        ImageFiles(tmp_path / "a", within="utkface")


def test_names_that_are_no_utf8_are_the_same_in_a_folder_a_tar_and_a_zip(tmp_path):
    root = folder_of(tmp_path / "a", 2)
    name = os.fsdecode(b"caf\xe9.png")
    (root / name).write_bytes(encode(noise(7)))
    tar = tar_of(tmp_path / "x.tar", root)
    archive = zip_of(tmp_path / "x.zip", folder_of(tmp_path / "b", 2))
    with zipfile.ZipFile(archive, "a") as whole:
        whole.writestr("cafX.png", encode(noise(7)))
    archive.write_bytes(archive.read_bytes().replace(b"cafX.png", b"caf\xe9.png"))  # as programs for Unix write it
    assert ImageFiles(tar).fingerprint() == ImageFiles(archive).fingerprint() == ImageFiles(root).fingerprint()
    for path in (root, tar, archive):
        files = ImageFiles(path)
        assert name in files.names.tolist() and files.read(name) == encode(noise(7))
        assert files.notes == (r"odd names: 1 file name is not UTF-8, and shown escaped: caf\xe9.png",)
    assert hashed_order([name, "a"], 0).tolist() in ([0, 1], [1, 0]) and short_id(name) != short_id("caf\u00e9.png")


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
    assert "\n" not in message and ("Delete it" in message) == (reason != "damaged")


def test_roots_in_order_of_precedence(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "xdg"))
    assert data_root(None, "utkface") == tmp_path / "xdg" / "fairssl"
    (tmp_path / "env").mkdir()
    monkeypatch.setenv("FAIRSSL_DATA", str(tmp_path / "env"))
    assert data_root(None, "utkface") == tmp_path / "env"
    (tmp_path / "dir").mkdir()
    assert data_root(tmp_path / "dir", "utkface") == data_root(str(tmp_path / "dir"), "utkface") == tmp_path / "dir"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_root("~/dir", "utkface") == tmp_path / "dir"
    monkeypatch.setenv("FAIRSSL_DATA", "~/env")
    assert data_root(None, "utkface") == tmp_path / "env"
    with pytest.raises(UserError, match="--data-dir is empty"):
        data_root("", "utkface")
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


RAMP = np.linspace(0, 1, 64).reshape(8, 8)  # black to white, every value its own
ONES = (np.indices((8, 8)).sum(0) % 2).astype(np.uint8)


def palette() -> Image.Image:
    image = Image.fromarray(ONES, "P")
    image.putpalette([10, 20, 30, 200, 100, 50])
    return image


@pytest.mark.parametrize(
    ("image", "form", "expected"),
    [
        (Image.fromarray((RAMP * 65535).astype(np.uint16)), "PNG", (RAMP * 65535).astype(np.uint16) >> 8),
        (Image.fromarray((RAMP * 65535).astype(np.uint16)), "TIFF", (RAMP * 65535).astype(np.uint16) >> 8),
        (Image.fromarray((RAMP * 65535).astype(np.uint16)), "PPM", (RAMP * 65535).astype(np.uint16) >> 8),
        (Image.fromarray(RAMP.astype(np.float32)), "TIFF", np.round(RAMP.astype(np.float32) * 255)),
        (Image.fromarray(ONES * 255).convert("1"), "PNG", ONES * 255),
        (Image.fromarray(ONES * 255).convert("1"), "TIFF", ONES * 255),
        (Image.fromarray((RAMP * 255).astype(np.uint8)), "PNG", (RAMP * 255).astype(np.uint8)),
        (
            Image.merge("LA", [Image.fromarray((RAMP * 255).astype(np.uint8)), Image.fromarray(ONES * 255)]),
            "PNG",
            (RAMP * 255).astype(np.uint8),
        ),
        (palette(), "PNG", np.array([[10, 20, 30], [200, 100, 50]])[ONES].transpose(2, 0, 1)),
        (palette(), "GIF", np.array([[10, 20, 30], [200, 100, 50]])[ONES].transpose(2, 0, 1)),
        (Image.fromarray(noise(5, 8, 8)).convert("RGBA"), "PNG", noise(5, 8, 8).transpose(2, 0, 1)),
        (Image.fromarray(np.zeros((8, 8, 4), np.uint8), "CMYK"), "TIFF", 255),
        (Image.fromarray(np.full((8, 8, 4), (0, 0, 0, 255), np.uint8), "CMYK"), "TIFF", 0),
    ],
    ids="png16 tiff16 pgm16 float png1 tiff1 grey greyalpha palette gif rgba cmykwhite cmykblack".split(),  # noqa: SIM905
)
def test_every_mode_is_brought_to_eight_bits_by_its_range(image, form, expected):
    out = io.BytesIO()
    image.save(out, form)
    found = decode(out.getvalue(), 8)
    assert found.dtype == np.uint8 and found.shape == (3, 8, 8)
    assert (found == np.broadcast_to(np.asarray(expected).astype(np.uint8), (3, 8, 8))).all()


def test_sixteen_bits_in_colour_are_as_those_in_grey(tmp_path):
    """By hand, as few programs write it: a PNG of 16 bits a channel."""
    import struct
    import zlib

    values = (RAMP * 65535).astype(">u2")
    rows = b"".join(b"\0" + np.repeat(row[:, None], 3, 1).tobytes() for row in values)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", 8, 8, 16, 2, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    assert (decode(data, 8) == (values >> 8).astype(np.uint8)).all()


def test_a_tiff_whose_zero_is_white_is_turned_round():
    out = io.BytesIO()
    Image.fromarray((RAMP * 65535).astype(np.uint16)).save(out, "TIFF")
    data = bytearray(out.getvalue())
    at = data.index(b"\x06\x01\x03\x00\x01\x00\x00\x00\x01")  # tag 262, a short: 1, black is zero
    data[at + 8] = 0
    assert (decode(bytes(data), 8) == 255 - ((RAMP * 65535).astype(np.uint16) >> 8)).all()


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (RAMP.astype(np.float32) * 255, "floating point from 0 to 255, outside 0..1"),
        (RAMP.astype(np.float32) - 0.5, "floating point from -0.5 to 0.5"),
        (np.full((8, 8), np.nan, np.float32), "floating point from nan"),
        ((RAMP * 1000).astype(np.int32), "whole numbers of 32 bits"),
    ],
)
def test_what_has_no_known_white_is_refused_by_name(tmp_path, array, reason):
    root = folder_of(tmp_path / "a", 2)
    (root / "001.tif").write_bytes(encode(array, format="TIFF"))
    files = ImageFiles(root)
    got = decoded_images(files, files.names, 8, files.fingerprint())
    assert got.kept.tolist() == [0, 1] and f"001.tif: {reason}" in got.notes[0]


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
