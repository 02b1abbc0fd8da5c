"""Data packing: a folder or a zip of image files decoded into a pack, and the pack opened again.

    python benchmarks/perf/data.py [--image-size 64] [--json data.json]
    python benchmarks/perf/data.py --root UTKFace.zip

Without `--root`, JPEG files of CelebA's aligned size are drawn into a temporary folder. Every figure comes from a process
of its own with an empty cache; the files themselves are in memory, having been written or read a moment before.
`peak_gb` includes the interpreter and its libraries, which alone take `bare_gb`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from outcome import Outcome, arguments, count, peak_gb, script, spread, timed

WIDTH, HEIGHT = 178, 218


def draw(folder: Path, n: int) -> None:
    """n JPEG files: a gradient in a random direction, under noise."""
    from PIL import Image

    rng = np.random.default_rng(0)
    across, down = np.linspace(0, 1, WIDTH)[None, :, None], np.linspace(0, 1, HEIGHT)[:, None, None]
    for number in range(n):
        colours = rng.uniform(0, 120, (2, 1, 1, 3))
        pixels = across * colours[0] + down * colours[1] + rng.normal(0, 6, (HEIGHT, WIDTH, 1))
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / f"{number:06d}.jpg", quality=90)


def zipped(folder: Path) -> Path:
    path = folder.with_suffix(".zip")
    with zipfile.ZipFile(path, "w") as file:
        for image in sorted(folder.iterdir()):
            file.write(image, image.name)
    return path


def stage(root: Path, image_size: int) -> dict[str, float]:
    """List the files, take their fingerprint, pack them or open their pack: seconds of each, in this process."""
    from fairssl.data.decoded import decoded_images
    from fairssl.data.files import ImageFiles

    bare = peak_gb()
    list_seconds, files = timed(lambda: ImageFiles(root))
    with files:
        fingerprint_seconds, fingerprint = timed(files.fingerprint)
        pack_seconds, found = timed(lambda: decoded_images(files, files.names, image_size, fingerprint))
    return {
        "images": len(found),
        "pack_gb": found.images.nbytes / 1e9,
        "list_seconds": list_seconds,
        "fingerprint_seconds": fingerprint_seconds,
        "pack_seconds": pack_seconds,
        "bare_gb": bare,
        "peak_gb": peak_gb(),
    }


def measured(root: Path, image_size: int, cache: str) -> dict[str, float]:
    """One stage in a process of its own."""
    call = [sys.executable, __file__, "--stage", "--root", str(root), "--image-size", str(image_size)]
    done = subprocess.run(call, env={**os.environ, "FAIRSSL_CACHE": cache}, stdout=subprocess.PIPE, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def row(what: str, root: Path, image_size: int, repeats: int) -> dict[str, Any]:
    runs, again = [], []
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as cache:
            runs.append(measured(root, image_size, cache))
            again.append(measured(root, image_size, cache))
    decode = [found["fingerprint_seconds"] + found["pack_seconds"] for found in runs]
    return {
        "source": what,
        "images": runs[0]["images"],
        "seconds": spread(decode),
        "images_per_second": spread([runs[0]["images"] / seconds for seconds in decode]),
        "again_seconds": spread([found["fingerprint_seconds"] + found["pack_seconds"] for found in again]),
        "peak_gb": spread([found["peak_gb"] for found in runs]),
        "bare_gb": runs[0]["bare_gb"],
        "pack_gb": runs[0]["pack_gb"],
    }


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--root", type=Path, help="a folder or zip of images; default: drawn ones, as both")
    parser.add_argument("--n", type=count, default=2000, help="drawn images")
    parser.add_argument("--image-size", type=count, default=64, help="pixels of the pack")
    parser.add_argument("--repeats", type=count, default=3)
    parser.add_argument("--stage", action="store_true", help="print the figures of one pass as JSON, and nothing else")
    options = parser.parse_args()
    if options.stage:
        print(json.dumps(stage(options.root, options.image_size)))
        return
    import torch

    outcome = Outcome(__file__, options, torch.device("cpu"))
    if options.root is not None:
        outcome.add(**row(options.root.name, options.root, options.image_size, options.repeats))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "images"
        folder.mkdir()
        draw(folder, options.n)
        for what, root in (("folder", folder), ("zip", zipped(folder))):
            outcome.add(**row(what, root, options.image_size, options.repeats))


if __name__ == "__main__":
    script(main)
