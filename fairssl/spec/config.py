"""Settings of the training loop and of the probe."""

from __future__ import annotations

from functools import cached_property
from typing import Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from fairssl.interfaces import PluginConfig
from fairssl.spec.keys import canonical
from fairssl.types import UserError


class CanonicalModel:
    """A frozen model that keeps its canonical JSON: the runs of a grid share their parts, and a key is made of them."""

    @cached_property
    def canonical_json(self) -> str:
        return canonical(self.model_dump(mode="json"))  # type: ignore[attr-defined]


class TrainConfig(CanonicalModel, PluginConfig):
    """The training loop and the augmentation, one recipe for every method but those that say otherwise (`erm`).

    The paper fixes Adam, 100 epochs and the batch sizes. Where it is silent: constant learning rates, weight decay 1e-6,
    and the contrastive recipe of FSCL (Park et al. 2022) for the augmentation, whose colour jitter acts on skin tone.
    """

    loop: Literal[2] = 2
    """Version of the loop and the augmentation; raised when results change."""
    epochs: int = Field(100, ge=1)
    """Passes over the objective's own stream. The default comes from the dataset's card and the preset."""
    min_steps: int = Field(0, ge=0)
    """A run takes at least that many steps, in whole epochs."""
    batch_size: int = Field(128, ge=2)
    """Images of a step; each has the objective's number of views. The default comes from the dataset's card."""
    annotated_batch_size: int = Field(0, ge=0)
    """Images of the annotated stream; 0: as `batch_size`."""
    optimizer: Literal["adam", "adamw", "sgd", "lars"] = Field("adam", json_schema_extra={"added": True})
    """What moves everything that is not dual: Adam with the L2 penalty in its gradient, AdamW with weight decay beside it, SGD
    with momentum, or LARS, SGD whose rate each layer scales by its weights' and its gradient's length."""
    momentum: float = Field(0.9, ge=0, lt=1, json_schema_extra={"added": True})
    """Of sgd and lars."""
    lars_trust: float = Field(1e-3, gt=0, json_schema_extra={"added": True})
    """LARS's trust coefficient: a step is at most this share of a layer's weights, times the learning rate."""
    lr: float = Field(1e-3, gt=0)
    """Learning rate for everything that is not dual. The default is Adam's; sgd and lars want a larger one."""
    dual_lr: float = Field(1e-3, gt=0)
    """Learning rate of the dual parameters, an adversary's say."""
    weight_decay: float = Field(1e-6, ge=0)
    """L2 penalty in both optimisers; with adamw the share of the weights that a step of rate 1 takes off."""
    decay_all: bool = Field(True, json_schema_extra={"added": True})
    """False: norms and biases, all parameters of one dimension, have no weight decay and no LARS scale."""
    warmup: float = Field(0.0, ge=0, lt=1, json_schema_extra={"added": True})
    """Share of the steps in which both learning rates rise evenly from 0; the schedule follows, 0.1 say."""
    schedule: Literal["constant", "cosine"] = "constant"
    """Of both learning rates; cosine: down to 0 at the last step."""
    dual_optimizer: Literal["adam", "sgd"] = "adam"
    """What moves the dual parameters; sgd has no momentum."""
    clip_norm: float = Field(0.0, ge=0)
    """Largest norm of the primal gradient; 0: it is not clipped."""
    precision: Literal["float32", "bf16"] = "bf16"
    """Of the networks; losses are float32. Preset smoke: float32."""
    join_streams: bool = False
    """The streams of a step go through the encoder in one forward pass and share batch statistics."""
    recipe: Literal["contrastive", "randaugment"] = "contrastive"
    """After crop and flip: jitter, gray and blur; or RandAugment (Cubuk et al. 2020) in their place."""
    crop_min: float = Field(0.2, gt=0, le=1)
    """Smallest area of a random resized crop, as a share of the image."""
    crop_max: float = Field(1.0, gt=0, le=1, json_schema_extra={"added": True})
    """Largest area of it."""
    flip: float = Field(0.5, ge=0, le=1)
    """Probability that a view is mirrored."""
    jitter: float = Field(0.8, ge=0, le=1)
    """Probability that a view's colours are jittered."""
    brightness: float = Field(0.4, ge=0)
    """Largest change of the brightness, as a share of it."""
    contrast: float = Field(0.4, ge=0)
    """Largest change of the contrast, as a share of it."""
    saturation: float = Field(0.4, ge=0)
    """Largest change of the saturation, as a share of it."""
    hue: float = Field(0.1, ge=0, le=0.5)
    """Largest turn of the hue, in whole turns of the colour circle."""
    gray: float = Field(0.2, ge=0, le=1)
    """Probability that a view loses its colours."""
    blur: float = Field(0.0, ge=0, le=1)
    """Probability of a Gaussian blur, whose sigma is 0.1 to 2 pixels."""
    rand_ops: int = Field(2, ge=1, le=8)
    """RandAugment's N: operations per image."""
    rand_magnitude: float = Field(9.0, ge=0, le=30)
    """RandAugment's M: strength of each operation."""

    @model_validator(mode="after")
    def _crops_have_an_area(self) -> TrainConfig:
        if self.crop_max < self.crop_min:
            raise PydanticCustomError("crop", "crop_max is below crop_min ({low}); raise it", {"low": self.crop_min})
        return self

    def batch_of(self, stream: str) -> int:
        """Images that a step takes of a stream that has as many."""
        return (self.annotated_batch_size if stream == "annotated" else 0) or self.batch_size


def precision_of(preset: str) -> str:
    """The precision that a preset trains in where nobody sets another."""
    return "float32" if preset == "smoke" else "bf16"


class ProbeConfig(CanonicalModel, PluginConfig):
    """Evaluation on frozen features. Linear: the paper's 20 epochs with the rate divided by 10 at half of them, or as many
    epochs as 2,000 steps take on a small training set, so that the probe has converged."""

    version: Literal[2] = 2
    """Raised when results change."""
    kind: Literal["linear", "lbfgs", "knn"] = "linear"
    """Logistic regression by Adam, as in the paper; the same solved to convergence; nearest neighbours."""
    epochs: int = Field(20, ge=1)
    """linear: passes over the training features."""
    lr: float = Field(1e-3, gt=0)
    """linear: learning rate of Adam."""
    decay_epoch: int = Field(10, ge=1)
    """linear: the rate is divided by 10 after that many of `epochs`; later in proportion where `min_steps` adds epochs."""
    min_steps: int = Field(2000, ge=0)
    """linear: at least that many steps are taken, in whole epochs."""
    batch_size: int = Field(256, ge=1)
    """linear: features of a step."""
    l2: float = Field(1.0, gt=0)
    """lbfgs: weight of the L2 penalty, the inverse of scikit-learn's C."""
    neighbours: int = Field(20, ge=1)
    """knn: how many of the nearest training features vote, by cosine similarity."""
    vote_temperature: float = Field(0.07, gt=0)
    """knn: a neighbour's vote weighs exp(cosine / this)."""
    thresholds: Literal["none", "odds", "opportunity", "parity"] = Field("none", json_schema_extra={"added": True})
    """A threshold for each group instead of 0.5, chosen on the annotated training images (Hardt et al. 2016), so that true
    and false positive rates are equal, or the true positive rates, or the shares of y = 1. Reads the group of every image
    that is judged."""


def check_share(stream: str, batch_size: int, n_devices: int) -> None:
    """Refuse a batch that would leave one of several devices without an image."""
    if batch_size < n_devices:
        raise UserError(
            f"{n_devices} devices: a step of the {stream!r} stream has {batch_size} images; at most as many devices"
        )
