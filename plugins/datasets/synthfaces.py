"""Faces drawn from a seed, with CelebA's attribute names and a spurious correlation that the user sets.

Every face is a handful of numbers, drawn before any pixel, so that 32 px and 128 px show the same faces and more images
never change the first ones. Five binary attributes (`male`, `young`, `attractive`, `big_nose`, `bags_under_eyes`) show
through a strength each, `2 a - 1 + noise * normal`, that moves shapes and shades; all else (pose, light, skin, hair
colour, background) is independent of them. What a name means here is a convention of the drawing: `male` is short hair,
a wide jaw, thick brows and stubble; `young` hair with colour and a face without lines; `attractive` a smile, open eyes,
freckles and a striped top.

For the chosen target and attribute there are two cues. The *fair* cue is the target's own strength: the same in every
group, so noisy (`cue_noise`) that the best classifier that sees nothing else is right in Phi(1 / cue_noise) of the
cases, and more or less easy to see (`cue_size`). The *unfair* cue is the group itself, large and clear (`group_noise`):
in the training split it goes with the target (`correlation`), in validation and test, balanced over target x group, it
says nothing. A probe that leans on it is wrong about whole groups, and loses accuracy.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from statistics import NormalDist

import numpy as np
from pydantic import Field

from fairssl.api import Card, DataFacts, Dataset, DatasetConfig, Defaults, Progress, Split, Splits, silent

NAMES = ("male", "young", "attractive", "big_nose", "bags_under_eyes")
FLATTERING = {"young", "attractive"}  # in CelebA these two go together, and against the other three
OTHER_NOISE = 0.5  # of the attributes that are neither target nor group
CHUNK_PIXELS = 1 << 16  # drawn at once: a chunk's float32 planes then stay in the cache
OUTLINED = 1 << 14  # faces whose labels are drawn at once
STREAMS = {"train": 0, "val": 1, "test": 3}  # 2 was the test split while the drawing was made; 3 was seen by no choice
N_COLUMNS = 80  # uniform numbers set aside per face


class SynthFaces(Dataset):
    """Drawn faces: any size, any number, any pair of the five attributes as target and group."""

    version = 2
    card = Card(
        title="SynthFaces: faces drawn from a seed",
        licence="MIT, as fairssl",
        source="drawn by fairssl",
        citation="fairssl, plugins/datasets/synthfaces.py",
        targets=NAMES,
        attributes={name: (f"not {name}", name) for name in NAMES},
        defaults=Defaults(
            target="attractive",
            attribute="male",
            image_size=32,
            batch_size=64,
            epochs=12,
            encoder="small_cnn",
            annotated=0.5,  # with a tenth, 200 faces, the discriminator learns them by heart
            seeds=4,
            preset="smoke",
        ),
        positive={name: name for name in NAMES},
        embedded=True,
        train_depends_on=frozenset({"target", "attribute"}),
    )

    class Config(DatasetConfig):
        n_train: int = Field(2400, ge=16)
        """Training images."""
        n_val_per_cell: int = Field(250, ge=1)
        """Validation images per target x group."""
        n_test_per_cell: int = Field(500, ge=1)
        """Test images per target x group."""
        correlation: float = Field(0.7, ge=0.0, le=1.0)
        """Probability in training that the target is its group's usual value; 0.5: they do not go together."""
        cue_noise: float = Field(1.0, ge=0.0)
        """Standard deviation of the target's strength about -1 or +1."""
        cue_size: float = Field(1.0, ge=0.0, le=1.0)
        """How far the target's strength moves the picture."""
        group_noise: float = Field(0.25, ge=0.0)
        """As `cue_noise`, for the attribute."""

    def inspect(self, root: Path | None) -> DataFacts:
        """Nothing to find: the fingerprint hashes this version and configuration. `root` is not looked at."""
        c = self.config
        return DataFacts(
            fingerprint=_hash(f"synthfaces {self.version} {c.model_dump_json(exclude={'min_cell'})}", 16),
            n_images=c.n_train + 4 * (c.n_val_per_cell + c.n_test_per_cell),
            max_image_size=None,
        )

    def load(
        self,
        root: Path | None,
        target: str,
        attribute: str,
        image_size: int,
        split_seed: int = 0,
        progress: Progress = silent,
    ) -> Splits:
        """Draw the three splits, images uint8 (N, 3, image_size, image_size).

        Training draws group and target at random, validation and test hold every cell exactly equally often.
        """
        counts = self._counts()
        total, done = sum(counts.values()), 0
        images, labels = {}, {}
        for part, n in counts.items():
            images[part] = np.empty((n, 3, image_size, image_size), np.uint8)
            labels[part] = np.empty((n, len(NAMES)), np.int64)
            step = max(1, CHUNK_PIXELS // image_size**2)
            for rows, draw in _chunks(part, split_seed, n, step):
                some = self._labels(draw, rows, target, attribute, balanced=part != "train")
                look = _look(self._strengths(draw, some, target, attribute), draw)
                labels[part][rows], images[part][rows] = some, _render(look, image_size)
                done += len(rows)
                progress("drawing faces", done, total)
        return self._splits(images, labels, target, attribute, split_seed)

    def outline(
        self,
        root: Path | None,
        target: str,
        attribute: str,
        split_seed: int = 0,
        unreadable: Collection[str] = (),
        progress: Progress = silent,
    ) -> Splits:
        """As `Dataset.outline`: every face's labels are drawn before its pixels."""
        images, labels = {}, {}
        for part, n in self._counts().items():
            images[part] = np.empty((n, 0), np.uint8)
            labels[part] = np.empty((n, len(NAMES)), np.int64)
            for rows, draw in _chunks(part, split_seed, n, OUTLINED):
                labels[part][rows] = self._labels(draw, rows, target, attribute, balanced=part != "train")
        return self._splits(images, labels, target, attribute, split_seed)

    def _counts(self) -> dict[str, int]:
        """How many faces each split has."""
        c = self.config
        return {"train": c.n_train, "val": 4 * c.n_val_per_cell, "test": 4 * c.n_test_per_cell}

    def _splits(
        self,
        images: Mapping[str, np.ndarray],
        labels: Mapping[str, np.ndarray],
        target: str,
        attribute: str,
        split_seed: int,
    ) -> Splits:
        """The splits of images uint8 (n, ...) and labels int64 (n, 5) of each part."""
        c = self.config
        place = f"{self.version} {split_seed} {target} {attribute} {c.correlation} {c.cue_noise} {c.cue_size} {c.group_noise}"
        train, val, test = (
            Split(
                images=images[part],
                target=labels[part][:, NAMES.index(target)].copy(),
                group=labels[part][:, NAMES.index(attribute)].copy(),
                ids=tuple(_hash(f"synthfaces {place} {part}-{i:05d}", 12) for i in range(n)),
                attributes={name: labels[part][:, i].copy() for i, name in enumerate(NAMES)},
            )
            for part, n in self._counts().items()
        )
        return Splits(train, val, test, groups=self.card.attributes[attribute], notes=(self._note(target, attribute),))

    def _labels(self, draw: _Draw, rows: np.ndarray, target: str, attribute: str, balanced: bool) -> np.ndarray:
        """(n, 5) of 0 and 1: fair coins, but for the target: tied to the group, or both set by the row's cell."""
        labels = np.stack([draw.uniform() < 0.5 for _ in NAMES], axis=1).astype(np.int64)
        coin = draw.uniform()
        if balanced:
            group, y = rows % 2, rows // 2 % 2
        else:
            group = labels[:, NAMES.index(attribute)]
            usual = group if _together(target, attribute) else 1 - group
            y = np.where(coin < self.config.correlation, usual, 1 - usual)
        labels[:, NAMES.index(attribute)] = group
        labels[:, NAMES.index(target)] = y
        return labels

    def _strengths(self, draw: _Draw, labels: np.ndarray, target: str, attribute: str) -> dict[str, np.ndarray]:
        """How strongly each attribute shows: (n,) about -1 (absent) or +1 (present), cut at +-2.5 to stay a face."""
        noise = dict.fromkeys(NAMES, OTHER_NOISE) | {target: self.config.cue_noise, attribute: self.config.group_noise}
        shown = {
            name: np.clip(2 * labels[:, i] - 1 + noise[name] * draw.normal(), -2.5, 2.5) for i, name in enumerate(NAMES)
        }
        return shown | {target: self.config.cue_size * shown[target]}

    def _note(self, target: str, attribute: str) -> str:
        c = self.config
        usual = target if _together(target, attribute) else f"not {target}"
        best = NormalDist().cdf(1 / c.cue_noise) if c.cue_noise > 0 else 1.0
        return (
            f"{c.n_train} training images with P({usual} | {attribute}) = {c.correlation:g}; "
            f"validation 4 x {c.n_val_per_cell}, test 4 x {c.n_test_per_cell}, balanced; "
            f"the target's own cue allows {best:.1%} accuracy"
        )


def _chunks(part: str, split_seed: int, n: int, step: int) -> Iterator[tuple[np.ndarray, _Draw]]:
    """Positions of at most `step` of a split's n faces, and their numbers, which are the same whatever `step` is."""
    bits = np.random.PCG64(np.random.SeedSequence((split_seed, STREAMS[part])))
    for start in range(0, n, step):
        rows = np.arange(start, min(start + step, n))
        yield rows, _Draw(bits, len(rows))


def _hash(text: str, length: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def _together(a: str, b: str) -> bool:
    """Whether a present `a` makes `b` likelier; the signs are CelebA's."""
    return (a in FLATTERING) == (b in FLATTERING)


class _Draw:
    """Numbers for n faces, one row of raw bits each, taken column by column.

    Raw bits, because numpy keeps a bit generator's stream for ever and a distribution's not.
    """

    def __init__(self, bits: np.random.PCG64, n: int) -> None:
        raw = np.asarray(bits.random_raw(n * N_COLUMNS), np.uint64).reshape(n, N_COLUMNS)
        self._columns = iter(((raw >> np.uint64(11)) * 2.0**-53).T)  # 53 bits, in [0, 1)

    def uniform(self, low: float = 0.0, high: float = 1.0) -> np.ndarray:
        return low + (high - low) * next(self._columns)

    def normal(self) -> np.ndarray:
        """By Box and Muller."""
        return np.sqrt(-2 * np.log1p(-self.uniform())) * np.cos(2 * np.pi * self.uniform())


def _mix(a: np.ndarray | float, b: np.ndarray | float, share: np.ndarray) -> np.ndarray:
    return a + (b - a) * share


def _look(s: Mapping[str, np.ndarray], draw: _Draw) -> dict[str, np.ndarray]:
    """What n faces look like: lengths (n,) in face units (a head is about 1.0 by 1.3), colours (n, 3) in 0..1.

    Face coordinates: x to the right, y down, the origin in the middle of the head.
    """
    u = draw.uniform
    male, young, attractive, nose, bags = (s[name] for name in NAMES)

    def colour(*channels: np.ndarray) -> np.ndarray:
        return np.stack(channels, axis=1)

    def tone(light: tuple[float, float, float], dark: tuple[float, float, float], share: np.ndarray) -> np.ndarray:
        return _mix(np.array(light), np.array(dark), share[:, None])

    age = np.clip(0.5 - 0.5 * young, 0, 1.5)
    skin = tone((0.97, 0.80, 0.68), (0.52, 0.35, 0.26), u()) * colour(u(0.96, 1.04), u(0.96, 1.04), u(0.93, 1.07))
    pigment = tone((0.62, 0.43, 0.20), (0.07, 0.05, 0.05), u() ** 0.5)
    grey = u(0.62, 0.84)[:, None] * np.array((1.0, 0.99, 0.97))
    hair = _mix(pigment, grey, np.clip(1.1 * age, 0, 1)[:, None])
    ground = colour(u(), u(), u()) * 0.2 + u(0.2, 0.7)[:, None]
    lip = skin * np.array((0.85, 0.52, 0.52)) * u(0.9, 1.05)[:, None]
    wide = u(0.47, 0.54)
    return {
        # pose
        "centre_x": u(-0.10, 0.10),
        "centre_y": u(-0.12, 0.06),
        "scale": u(0.92, 1.10),
        "tilt": 0.09 * draw.normal(),
        "yaw": u(-0.07, 0.07),
        # light and ground
        "light_x": 0.14 * draw.normal(),
        "light_y": 0.10 * draw.normal(),
        "exposure": u(0.86, 1.12),
        "ground": ground,
        "ground_to": np.clip(ground + (colour(u(), u(), u()) - 0.5) * 0.3, 0, 1),
        "ground_angle": u(0, 2 * np.pi),
        "wave_size": u(0.0, 0.04),
        "wave_kx": u(-9, 9),
        "wave_ky": u(-9, 9),
        "wave_at": u(0, 2 * np.pi),
        "clothes": colour(u(), u(), u()) * 0.3 + u(0.25, 0.55)[:, None],
        "stripes": np.clip(0.3 + 0.28 * attractive, 0, 0.85),
        "stripes_at": u(0, 2 * np.pi),
        "collar": u(0.12, 0.32),
        # head
        "skin": np.clip(skin, 0, 1),
        "wide": wide,
        "high": u(0.62, 0.70),
        "jaw": 0.10 * male - 0.06 + u(-0.06, 0.06),
        "beard": np.clip(0.11 + 0.12 * male, 0, 0.4),
        # hair
        "hair": hair,
        "hair_wide": wide + u(0.07, 0.15) - 0.03 * male,
        "hair_high": u(0.70, 0.82),
        "hair_end": 0.22 - 0.52 * male + u(-0.10, 0.10),
        "fringe": u(-0.46, -0.32) - 0.03 * male,
        "fringe_slope": u(-0.25, 0.25),
        "fringe_bend": u(-0.1, 0.5),
        # eyes and brows
        "eye_x": u(0.19, 0.235),
        "eye_y": u(-0.12, -0.05),
        "eye_wide": u(0.085, 0.10) + 0.016 * attractive,
        "eye_high": u(0.050, 0.058) + 0.018 * attractive,
        "gaze": u(-0.035, 0.035),
        "iris": tone((0.35, 0.55, 0.70), (0.20, 0.10, 0.05), u()),
        "brow_y": u(0.13, 0.17),
        "brow_half": 0.026 + 0.010 * male,
        "brow_slope": u(-0.25, 0.15),
        "brow_bend": u(0.5, 2.0),
        # marks
        "bags": np.clip(0.24 + 0.26 * bags, 0, 0.75),
        "bags_high": 0.085 + 0.015 * bags,
        "lines": np.clip(0.45 * age, 0, 0.6),
        "freckles": np.clip(0.21 + 0.19 * attractive, 0, 0.65),
        "freckles_at": u(0, 2 * np.pi),
        "freckles_kx": u(15, 19),
        "freckles_ky": u(15, 19),
        "glow": np.clip(0.10 + 0.08 * attractive, 0, 0.35),
        # nose
        "nose_y": u(0.13, 0.19),
        "nose_wide": 0.125 + 0.055 * nose + u(-0.006, 0.006),
        "nose_high": 0.085 + 0.028 * nose,
        "nose_shade": u(0.16, 0.24) + 0.05 * nose,
        "nose_side": np.where(u() < 0.5, -1.0, 1.0),
        # mouth
        "mouth_y": u(0.37, 0.42),
        "mouth_wide": u(0.21, 0.235) + 0.04 * attractive,
        "smile": 0.015 + 0.048 * attractive,
        "lip": lip,
        "lip_high": u(0.058, 0.064) + 0.022 * attractive,
        "open": np.clip(0.030 + 0.025 * attractive, 0.006, 0.1),
        "teeth": np.clip(0.45 + 0.3 * attractive, 0, 1),
    }


def _render(look: Mapping[str, np.ndarray], size: int) -> np.ndarray:
    """(n,) and (n, 3) parameters -> uint8 (n, 3, size, size). An edge is a ramp one pixel wide about its outline."""
    p = {k: v.astype(np.float32).reshape(len(v), *v.shape[1:], 1, 1) for k, v in look.items()}
    grid = ((np.arange(size, dtype=np.float32) + 0.5) * (2 / size) - 1)[None, None]  # pixel centres in -1..1
    right, down = grid, grid.swapaxes(1, 2)
    cos, sin = np.cos(p["tilt"]) / p["scale"], np.sin(p["tilt"]) / p["scale"]
    dx, dy = right - p["centre_x"], down - p["centre_y"]
    x, y = cos * dx + sin * dy, cos * dy - sin * dx
    per_unit = p["scale"] * np.float32(size / 2)  # pixels per face unit

    def inside(d: np.ndarray) -> np.ndarray:
        """Cover of the region d < 0, d a distance in face units."""
        return np.clip(0.5 - d * per_unit, 0, 1)

    def band(d: np.ndarray, half: np.ndarray | float) -> np.ndarray:
        """Cover of |d| < half, right also where that is thinner than a pixel."""
        return np.clip(0.5 + (half - d) * per_unit, 0, 1) - np.clip(0.5 - (half + d) * per_unit, 0, 1)

    def ellipse(px: np.ndarray, py: np.ndarray, rx: np.ndarray | float, ry: np.ndarray | float) -> np.ndarray:
        # (q - 1) to first order about the outline, without a root
        return inside(((px / rx) ** 2 + (py / ry) ** 2 - 1) * (0.5 * np.minimum(rx, ry)))

    picture = np.empty((len(x), 3, size, size), np.float32)

    def paint(cover: np.ndarray, colour: np.ndarray | float) -> None:
        picture[...] += cover[:, None] * (colour - picture)

    def shade(cover: np.ndarray, by: np.ndarray | float) -> None:
        """Darker by the share `by` where covered; lighter where negative."""
        picture[...] *= (1 - by * cover)[:, None]

    along = 0.5 + 0.35 * (np.cos(p["ground_angle"]) * right + np.sin(p["ground_angle"]) * down)
    picture[...] = _mix(p["ground"], p["ground_to"], along[:, None])
    picture[...] += (p["wave_size"] * np.sin(p["wave_kx"] * right + p["wave_ky"] * down + p["wave_at"]))[:, None]

    body = ellipse(x, y - 1.3, 1.0, 0.62)
    paint(body, p["clothes"])
    shade(body * np.sin(14 * (y - 0.25 * np.abs(x)) + p["stripes_at"]), p["stripes"])
    side = np.abs(x)
    outer = (x / p["hair_wide"]) ** 2 + (np.minimum(y, 0) / p["hair_high"]) ** 2 - 1  # an arch: straight below y = 0
    paint(inside(outer * (0.5 * p["hair_wide"])) * inside(y - p["hair_end"] + 0.6 * x**2), p["hair"])
    paint(inside(side - 0.19) * inside(-y) * inside(y - 0.72 - p["collar"] + side), p["skin"] * 0.82)
    paint(ellipse(side - p["wide"], y - 0.02, 0.06, 0.11) * inside(p["hair_end"] - 0.15 - y), p["skin"] * 0.88)

    width = p["wide"] * (1 + p["jaw"] * np.clip(y * 2, 0, 1))
    head = ((x / width) ** 2 + (y / p["high"]) ** 2 - 1) * (0.5 * p["wide"])
    head_cover = inside(head)
    paint(head_cover, p["skin"])
    shade(head_cover, -p["light_x"] * 1.6 * x)

    wave = np.sin(p["freckles_kx"] * x + p["freckles_at"]) * np.sin(p["freckles_ky"] * y - p["freckles_at"])
    shade(head_cover * np.clip(2 * wave - 0.4, 0, 1), p["freckles"])

    fx = x - p["yaw"]  # features turn with the head
    side, sign = np.abs(fx), np.sign(fx)
    mouth_at = y - p["mouth_y"]
    shade(head_cover * np.clip((y - 0.16 + 0.35 * side) * 5, 0, 1), p["beard"])
    shade(ellipse(side - 0.26, y - 0.14, 0.13, 0.10), -p["glow"])
    for level in (-0.34, -0.26):
        shade(band(y - level - 0.15 * fx**2, 0.014) * inside(side - 0.26), p["lines"])
    shade(band(side - 0.13 - 0.45 * (y - 0.16), 0.016) * inside(np.abs(y - 0.28) - 0.12), p["lines"])

    edge = (
        y
        - p["fringe"]
        - p["fringe_slope"] * x
        + p["fringe_bend"] * (0.12 - x**2)
        - 0.9 * np.maximum(np.abs(x) - 0.3, 0)
    )
    paint(inside(head - 0.02) * inside(edge), p["hair"] * 0.92)

    ex, ey = side - p["eye_x"], y - p["eye_y"]
    shade(ellipse(ex, ey - 0.075, 0.125, p["bags_high"]), p["bags"])
    paint(ellipse(ex, ey, p["eye_wide"] + 0.015, p["eye_high"] + 0.015), p["skin"] * 0.62)
    eye = ellipse(ex, ey, p["eye_wide"], p["eye_high"])
    paint(eye, 0.96)
    look_at = ex - p["gaze"] * sign
    paint(ellipse(look_at, ey, 0.055, 0.055) * eye, p["iris"])
    paint(ellipse(look_at, ey, 0.027, 0.027) * eye, 0.04)
    brow = ey + p["brow_y"] + p["brow_slope"] * ex + p["brow_bend"] * ex**2
    paint(band(brow, p["brow_half"]) * inside(np.abs(ex) - 0.115), p["hair"] * 0.65)

    ny = y - p["nose_y"]
    shade(
        band(fx - p["nose_side"] * (0.045 + 0.15 * (ny + 0.1)), 0.02) * inside(np.abs(ny + 0.12) - 0.12),
        p["nose_shade"],
    )
    shade(ellipse(fx, ny, p["nose_wide"], p["nose_high"]), p["nose_shade"])
    shade(ellipse(fx, ny + 0.02, p["nose_wide"] * 0.55, p["nose_high"] * 0.6), -1.1 * p["nose_shade"])
    shade(ellipse(side - 0.5 * p["nose_wide"], ny - 0.03, p["nose_wide"] * 0.24, 0.02), 0.55)

    across = 1 - (fx / p["mouth_wide"]) ** 2
    middle = np.abs(mouth_at - p["smile"] * np.maximum(across, -0.3))
    paint(inside(middle - p["lip_high"] * across), p["lip"])
    gap = inside(middle - p["open"] * across)
    paint(gap, _mix(0.18, 0.97, p["teeth"][:, None]))

    picture *= (p["exposure"] * (1 + p["light_x"] * right + p["light_y"] * down))[:, None]
    return np.clip(picture * 255 + 0.5, 0, 255).astype(np.uint8)
