"""Images decoded once into one memory-mapped array that later runs only open."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import shutil
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from fairssl.data.files import (
    CHUNK,
    UNREADABLE,
    ImageFiles,
    Names,
    decode_reason,
    map_ahead,
    n_threads,
    none_decodes,
)
from fairssl.data.places import cache_fault, cache_folder, fresh_start, new_folder, writable_folder
from fairssl.types import Progress, UserError, counted, printable, silent

DECODER = 2  # raise it when `decode` gives other pixels
BITS_PER_SAMPLE, PHOTOMETRIC, WHITE_IS_ZERO = 258, 262, 0  # TIFF 6.0, section 8
STALE = 3600  # seconds without a write after which a half-built pack is a dead process's


def decode(data: bytes, image_size: int) -> np.ndarray:
    """uint8 (3, S, S) RGB: orientation from EXIF applied, shorter side resized to S, centre crop.

    Every mode is brought to 8 bits a channel: of 16 unsigned bits the higher 8 count (12: of 12), in grey as in colour;
    floating point must lie in 0..1 and is multiplied by 255 and rounded. Whole numbers of 32 bits, or with a sign, and
    floats outside 0..1 are refused: their type does not say which value is white. Grey is repeated, a palette looked up,
    CMYK converted without a colour profile, and alpha left out. Of several frames or pages the first counts.
    Pillow's bilinear filter, whose support grows with the reduction (antialiased), on the fully decoded image: no
    `draft`, no `reducing_gap`, which are faster and give other pixels. Errors: one of `UNREADABLE`.
    """
    with Image.open(io.BytesIO(data)) as file:
        return to_square(file, image_size)


def to_square(image: Image.Image, image_size: int) -> np.ndarray:
    """An opened image -> uint8 (3, S, S) RGB, as `decode` makes it."""
    file, image = image, ImageOps.exif_transpose(image)
    if image.mode.startswith(("I", "F")):
        image = _eight_bits(image, file)
    image = image.convert("RGB")
    width, height = image.size
    shorter = min(width, height)
    if shorter != image_size:
        wanted = (round(width * image_size / shorter), round(height * image_size / shorter))
        image = image.resize(wanted, Image.Resampling.BILINEAR)
        width, height = wanted
    left, top = (width - image_size) // 2, (height - image_size) // 2
    image = image.crop((left, top, left + image_size, top + image_size))
    return np.ascontiguousarray(np.asarray(image).transpose(2, 0, 1))


def _eight_bits(image: Image.Image, file: Image.Image) -> Image.Image:
    """A grey image of more than 8 bits, in 8 by the range of its type; `file` is what it was read from.

    `Image.convert` would cut everything above 255 off.
    """
    values = np.asarray(image)
    tags = getattr(file, "tag_v2", {})  # of a TIFF
    if image.mode == "F":
        low, high = values.min(), values.max()
        if not (low >= 0 and high <= 1):  # also of NaN
            raise ValueError(f"floating point from {low:g} to {high:g}, outside 0..1; save it with 8 bits a channel")
        grey = np.round(values * 255).astype(np.uint8)
    elif image.mode.startswith("I;16") or file.format in (
        "PNG",
        "PPM",
    ):  # whose 16 bits older releases of Pillow call "I"
        grey = (values >> (4 if tags.get(BITS_PER_SAMPLE) == (12,) else 8)).astype(np.uint8)
    else:
        raise ValueError("whole numbers of 32 bits, or with a sign, have no known white; save it with 8 bits a channel")
    return Image.fromarray(255 - grey if tags.get(PHOTOMETRIC) == WHITE_IS_ZERO else grey)


@dataclass(frozen=True)
class DecodedImages:
    """Decoded images. N of the n names that were asked for; the others do not decode.

    `images` uint8 (N, 3, S, S), memory-mapped: writing to it changes this process's copy, never the file. A slice of it
    costs nothing; `images[rows]` with an array of positions copies these images into memory, so ask for the names in an
    order in which every split is a slice.
    `kept` int64 (N,) position of each image among the names asked for; `sha256` uint8 (N, 32) of each file's bytes.
    `corrupt` is `name: reason` for every image left out.
    """

    images: np.ndarray
    kept: np.ndarray
    sha256: np.ndarray
    corrupt: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.kept)

    @property
    def notes(self) -> tuple[str, ...]:
        """One line that names and counts what was left out; nothing if nothing was."""
        if not self.corrupt:
            return ()
        shown = "; ".join(map(printable, self.corrupt[:5])) + ("; ..." if len(self.corrupt) > 5 else "")
        left_out = counted(
            len(self.corrupt), "image does not decode and is left out", "images do not decode and are left out"
        )
        return (f"corrupt: {left_out}: {shown}",)


def decoded_images(
    files: ImageFiles, names: Names, image_size: int, fingerprint: str, progress: Progress = silent
) -> DecodedImages:
    """The images called `names`, in that order, at `image_size` pixels; decoded the first time, then only opened.

    The key is (`fingerprint` of the files' content, names, size, decoder version). A pack appears whole by an atomic
    rename; two processes may build the same one. `progress` is told of images done.
    Errors: `UserError` if there is no image, none decodes, or the cache cannot be written; nothing is left behind.
    """
    if image_size < 1:
        raise UserError(f"image size {image_size} is not a number of pixels; use 1 or more")
    if not len(names):
        raise UserError(f"{str(files.root)!r} holds no image that can be used")
    listing = hashlib.sha256("\0".join(names).encode("utf-8", "surrogateescape")).hexdigest()
    key = hashlib.sha256(json.dumps([DECODER, image_size, fingerprint, listing]).encode()).hexdigest()[:32]
    folder = cache_folder() / "packs"
    final = folder / key
    opened = _open(final, image_size)
    if opened is not None:
        return opened
    writable_folder(folder)
    _sweep(folder)
    needed, free = len(names) * 3 * image_size**2, shutil.disk_usage(folder).free
    if needed > free:
        raise UserError(
            f"a pack of {counted(len(names), 'image')} at {image_size} px needs {needed / 1e9:.1f} GB and {str(folder)!r} has "
            f"{free / 1e9:.1f} GB; set FAIRSSL_CACHE to another folder or use a smaller --image-size"
        )
    temporary: Path | None = None
    try:
        temporary = new_folder(folder, ".building-")
        _build(temporary, files, names, image_size, progress)
        if final.exists() and _open(final, image_size) is None:  # damaged, not built by another process meanwhile
            shutil.rmtree(final, ignore_errors=True)
        with contextlib.suppress(OSError):  # somebody else's is there: as good as ours
            os.replace(temporary, final)
    except OSError as error:
        raise cache_fault(folder, error) from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
    opened = _open(final, image_size)
    if opened is None:
        raise UserError(f"the pack {str(final)!r} is damaged and cannot be replaced: {fresh_start(final)}")
    return opened


def _build(folder: Path, files: ImageFiles, names: Names, image_size: int, progress: Progress) -> None:
    """Fill `folder` with images.npy, kept.npy, sha256.npy and pack.json."""

    def one(name: str) -> tuple[np.ndarray, bytes] | str:
        try:
            data = files.read(name)
            return decode(data, image_size), hashlib.sha256(data).digest()
        except UNREADABLE as error:
            return decode_reason(error)

    kept: list[int] = []
    digests = bytearray()
    corrupt: list[str] = []
    shape = (3, image_size, image_size)
    # warnings of PIL's about odd files; `corrupt` says what matters
    with (
        (folder / "images.npy").open("wb") as file,
        ThreadPoolExecutor(n_threads()) as pool,
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", module=r"PIL\.")
        start = _write_header(file, (len(names), *shape))
        for i, result in enumerate(map_ahead(pool, one, names)):
            if isinstance(result, str):
                corrupt.append(f"{names[i]}: {result}")
            else:
                file.write(result[0].data)
                kept.append(i)
                digests += result[1]
            if (i + 1) % CHUNK == 0 or i + 1 == len(names):
                progress("decoding", i + 1, len(names))
        if not kept:
            raise none_decodes(files, len(names), corrupt[0].rpartition(": ")[2])
        file.seek(0)
        if _write_header(file, (len(kept), *shape)) != start:
            raise RuntimeError("the header of a shorter array has another length")
        file.flush()
        os.fsync(file.fileno())
    np.save(folder / "kept.npy", np.array(kept, dtype=np.int64))
    np.save(folder / "sha256.npy", np.frombuffer(bytes(digests), dtype=np.uint8).reshape(-1, 32))
    about = {"decoder": DECODER, "image_size": image_size, "n": len(kept), "corrupt": corrupt}
    (folder / "pack.json").write_text(json.dumps(about), encoding="utf-8")


def _write_header(file: Any, shape: tuple[int, ...]) -> int:
    """Write the head of a .npy file of uint8 in C order; where the data begins. Its length does not depend on N."""
    np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
    return int(file.tell())


def _open(folder: Path, image_size: int) -> DecodedImages | None:
    """The pack in `folder`; None if there is none, or one that is not whole. One that may not be read is a `UserError`."""
    try:
        about = json.loads((folder / "pack.json").read_text(encoding="utf-8"))
        images = np.load(folder / "images.npy", mmap_mode="c")
        kept, sha256 = np.load(folder / "kept.npy"), np.load(folder / "sha256.npy")
    except PermissionError as error:
        raise UserError(f"the pack {str(folder)!r} cannot be read: {error.strerror}; {fresh_start(folder)}") from error
    except (OSError, ValueError, EOFError):
        return None
    if (
        images.shape != (about["n"], 3, image_size, image_size)
        or len(kept) != len(images)
        or len(sha256) != len(images)
    ):
        return None
    return DecodedImages(images, kept, sha256, tuple(about["corrupt"]))


def _sweep(folder: Path) -> None:
    """Remove what killed processes left half-built."""
    for left in folder.glob(".building-*"):
        with contextlib.suppress(OSError):
            newest = max(p.stat().st_mtime for p in (left, *left.rglob("*")))
            if time.time() - newest > STALE:
                shutil.rmtree(left, ignore_errors=True)
