"""Trained encoders outside of fairssl's own loop: as frozen modules, and as files for any other program."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from safetensors.torch import save
from torch import Tensor, nn

from fairssl.data.augment import normalise
from fairssl.data.decoded import to_square
from fairssl.data.device import DeviceSplit
from fairssl.machine import user_path
from fairssl.registry import did_you_mean
from fairssl.spec.run import RunSpec
from fairssl.store.files import whole_file
from fairssl.store.runs import RunStore
from fairssl.train.build import build_model
from fairssl.train.model import Model
from fairssl.types import UserError


class FrozenEncoder(nn.Module):
    """A trained encoder with its preprocessing, in evaluation mode, without gradients.

    Calling it maps images uint8 (N, 3, H, W) to features float32 (N, F): the representation that fairssl's probe has seen.
    `image_size` in pixels; `dim` is F; `spec` is what made it. `preprocess` turns an image of any size into such a row.
    """

    def __init__(self, model: Model, spec: RunSpec, key: str) -> None:
        super().__init__()
        self.encoder, self._objective = model.encoder, model.objective
        self.spec, self.key = spec, key
        self.image_size = spec.pretrain_data.image_size
        self.dim = int(model.objective.feature_dim or model.encoder.dim)
        self.requires_grad_(False).eval()

    def train(self, mode: bool = True) -> FrozenEncoder:
        """Stays in evaluation mode."""
        return super().train(False)

    def preprocess(self, image: Image.Image | str | Path) -> Tensor:
        """An image, or its file, -> uint8 (3, S, S): orientation from EXIF, shorter side resized to S, centre crop."""
        opened = image if isinstance(image, Image.Image) else Image.open(image)
        return torch.from_numpy(to_square(opened, self.image_size))

    @torch.no_grad()
    def forward(self, images: Tensor | Sequence[Image.Image]) -> Tensor:
        """uint8 (N, 3, H, W) at `image_size` pixels, or a list of images of any size -> float32 (N, F)."""
        x = images if isinstance(images, Tensor) else torch.stack([self.preprocess(image) for image in images])
        if x.dtype != torch.uint8 or x.ndim != 4 or x.shape[1:] != (3, self.image_size, self.image_size):
            raise ValueError(
                f"images are {x.dtype} {tuple(x.shape)}; give uint8 (N, 3, {self.image_size}, {self.image_size}), as "
                "`preprocess` makes them"
            )
        device = next(self.encoder.parameters()).device
        features: Tensor = self._objective.represent(self.encoder(normalise(x.to(device))))
        return features.float()


def load_encoder(runs: Path | str | Any, row: str, seed: int | None = None) -> FrozenEncoder:
    """The encoder of a run as a frozen module, on the CPU.

    `runs`: a runs folder, or what `fairssl.bench` gave. `row`: a run's key, a pretraining's key, or a method as its row is
    named; then `seed` says which of its seeds, the lowest if left out. Nothing there, or several that fit: `UserError`.
    """
    store = runs.store if hasattr(runs, "store") else RunStore(user_path(runs))
    found = _find(store, row, seed)
    spec = found.spec
    shape = DeviceSplit(
        torch.empty(0), torch.zeros(found.n_train), torch.empty(0), torch.zeros(found.n_annotated, dtype=torch.int64)
    )
    with torch.random.fork_rng(devices=[]):
        model = build_model(spec, shape, found.n_groups, 0, pretrained=False)
    saved = store.read_pretrain(found.key)
    assert saved is not None  # `_find` has seen it
    model.load(saved[0])
    return FrozenEncoder(model, spec, found.key)


def export(runs: Path | str | Any, row: str, to: Path | str, seed: int | None = None) -> Path:
    """Write the backbone's plain state dict as safetensors, for use without fairssl; the file's path.

    For a timm encoder the names are timm's own:

        model = timm.create_model("resnet18", num_classes=0); model.load_state_dict(safetensors.torch.load_file(path))

    The file's metadata says the architecture, image size, mean and scale of the pixels, and what made it. `runs`, `row` and
    `seed` as for `load_encoder`.
    """
    encoder = load_encoder(runs, row, seed)
    backbone: nn.Module = getattr(encoder.encoder, "net", encoder.encoder)
    tensors = {name: value.contiguous().clone() for name, value in backbone.state_dict().items()}
    about = {
        "architecture": str(encoder.spec.encoder.params.get("model", encoder.spec.encoder.name)),
        "image_size": str(encoder.image_size),
        "pixel_mean": "0.5",
        "pixel_scale": "0.5",
        "pretrain_key": encoder.key,
        "spec": json.dumps(encoder.spec.model_dump(mode="json"), sort_keys=True),
    }
    path = user_path(to)
    with whole_file(path) as file:
        file.write(save(tensors, metadata=about))
    return path


@dataclass(frozen=True)
class _Found:
    key: str
    spec: RunSpec
    n_train: int
    n_annotated: int
    n_groups: int


def _find(store: RunStore, row: str, seed: int | None) -> _Found:
    """The pretraining that a key or a row's name means."""
    if not store.root.is_dir():
        raise UserError(f"no folder {store.root}; name the one that `fairssl bench` wrote to")
    key = row if _is_key(store, row) else _key_of(store, row, seed)
    if not store.has_pretrain(key):
        raise UserError(f"the encoder {key} is not in {store.root}; the bench command that made it makes it again")
    content = json.loads((store.pretrain_dir(key) / "spec.json").read_text(encoding="utf-8"))
    sizes = {name: int(content[name]) for name in ("n_train", "n_annotated", "n_groups")}
    return _Found(key, RunSpec.model_validate(content["spec"]), **sizes)


def _is_key(store: RunStore, text: str) -> bool:
    try:
        return store.has_pretrain(text)
    except ValueError:  # a row's name, as simclr+ccl
        return False


def _key_of(store: RunStore, row: str, seed: int | None) -> str:
    names: set[str] = set()
    fitting: dict[tuple[int, str], str] = {}  # (seed, pretrain key) -> what it is of
    for record in store.records():
        spec = RunSpec.model_validate(record.spec)
        names.add(spec.method.name)
        if record.key == row:
            return spec.pretrain_key
        if spec.method.name == row and seed in (None, spec.seed):
            data = spec.pretrain_data
            fitting[spec.seed, spec.pretrain_key] = f"{data.dataset}/{data.target}/{data.attribute}"
    if not fitting:
        which = row if seed is None else f"{row} seed {seed}"
        raise UserError(f"no run of {which!r} in {store.root}{did_you_mean(row, names)}; a run's key is fine too")
    lowest = min(number for number, _ in fitting)
    chosen = {key: what for (number, key), what in fitting.items() if number == lowest}
    if len(chosen) > 1:
        ways = ", ".join(f"{key} ({what})" for key, what in sorted(chosen.items()))
        raise UserError(
            f"{row!r} seed {lowest} has {len(chosen)} encoders in {store.root}; name one by its key: {ways}"
        )
    return next(iter(chosen))
