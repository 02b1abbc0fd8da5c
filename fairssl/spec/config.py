"""Settings of the training loop and of the probe."""

from __future__ import annotations

from functools import cached_property
from typing import ClassVar, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from fairssl.interfaces import PluginConfig
from fairssl.spec.keys import canonical
from fairssl.types import UserError


class CanonicalModel:
    """A frozen model that keeps its canonical JSON: the cells of a grid share their parts, and a key is made of them."""

    @cached_property
    def canonical_json(self) -> str:
        return canonical(self.model_dump(mode="json"))  # type: ignore[attr-defined]


class TrainConfig(CanonicalModel, PluginConfig):
    """The training loop and the augmentation, one recipe for every method but those that say otherwise (`erm`).

    The paper fixes Adam, 100 epochs and the batch sizes. Where it is silent: constant learning rates, weight decay 1e-6,
    and the contrastive recipe of FSCL (Park et al. 2022) for the augmentation, whose colour jitter acts on skin tone.
    """

    added: ClassVar = frozenset({"crop_max"})

    loop: Literal[2] = 2  # version of the loop and the augmentation; raised when results change
    epochs: int = Field(100, ge=1)  # passes over the objective's own stream
    min_steps: int = Field(0, ge=0)  # a run takes at least that many steps, in whole epochs
    batch_size: int = Field(128, ge=2)  # images; each has the objective's number of views
    annotated_batch_size: int = Field(0, ge=0)  # images of the annotated stream; 0: as `batch_size`
    lr: float = Field(1e-3, gt=0)
    dual_lr: float = Field(1e-3, gt=0)
    weight_decay: float = Field(1e-6, ge=0)
    schedule: Literal["constant", "cosine"] = "constant"  # of both learning rates
    dual_optimizer: Literal["adam", "sgd"] = "adam"
    clip_norm: float = Field(0.0, ge=0)  # of the primal gradient; 0: off
    precision: Literal["float32", "bf16"] = "bf16"  # of the networks; losses are float32
    join_streams: bool = False  # one forward pass, shared batch statistics
    # After crop and flip: jitter, gray and blur; or RandAugment (Cubuk et al. 2020) in their place.
    recipe: Literal["contrastive", "randaugment"] = "contrastive"
    crop_min: float = Field(0.2, gt=0, le=1)  # smallest area of a random resized crop, as a share
    crop_max: float = Field(1.0, gt=0, le=1)  # largest
    flip: float = Field(0.5, ge=0, le=1)  # probability
    jitter: float = Field(0.8, ge=0, le=1)  # probability
    brightness: float = Field(0.4, ge=0)
    contrast: float = Field(0.4, ge=0)
    saturation: float = Field(0.4, ge=0)
    hue: float = Field(0.1, ge=0, le=0.5)  # turns
    gray: float = Field(0.2, ge=0, le=1)  # probability
    blur: float = Field(0.0, ge=0, le=1)  # probability; sigma 0.1 to 2 pixels
    rand_ops: int = Field(2, ge=1, le=8)  # RandAugment's N: operations per image
    rand_magnitude: float = Field(9.0, ge=0, le=30)  # RandAugment's M

    @model_validator(mode="after")
    def _crops_have_an_area(self) -> TrainConfig:
        if self.crop_max < self.crop_min:
            raise PydanticCustomError("crop", "crop_max is below crop_min ({low}); raise it", {"low": self.crop_min})
        return self

    def batch_of(self, stream: str) -> int:
        """Images that a step takes of a stream that has as many."""
        return (self.annotated_batch_size if stream == "annotated" else 0) or self.batch_size


class ProbeConfig(CanonicalModel, PluginConfig):
    """Evaluation on frozen features. Linear: the paper's 20 epochs with the rate divided by 10 at epoch 10."""

    version: Literal[1] = 1  # raised when results change
    kind: Literal["linear", "lbfgs", "knn"] = "linear"
    epochs: int = Field(20, ge=1)
    lr: float = Field(1e-3, gt=0)  # Adam
    decay_epoch: int = Field(10, ge=1)
    batch_size: int = Field(256, ge=1)
    l2: float = Field(1.0, gt=0)  # lbfgs: inverse of scikit-learn's C
    neighbours: int = Field(20, ge=1)  # knn, cosine


def check_share(stream: str, batch_size: int, n_devices: int) -> None:
    """Refuse a batch that would leave one of several devices without an image."""
    if batch_size < n_devices:
        raise UserError(
            f"{n_devices} devices: a step of the {stream!r} stream has {batch_size} images; at most as many devices"
        )
