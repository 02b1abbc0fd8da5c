"""Any architecture of PyTorch Image Models by its name, from random weights or from those of a file.

Wightman: PyTorch Image Models, 2019, https://github.com/huggingface/pytorch-image-models.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import timm
import torch
import torch.nn.functional as F
from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError
from torch import Tensor, nn

from fairssl.api import Encoder, PluginConfig, UserError


class Timm(Encoder):
    """A timm model without its classifier: its pooled feature, whose width D is read off a blank image.

    A model made for one image size is built for the size at hand. The standard stem of a ResNet divides the
    resolution by 4 before its first block; `stem="small"`, a 3x3 convolution of stride 1 and no max-pool, keeps it, at
    about 15 times the cost.

    With `weights` the network begins with those of a file (`fairssl bench --weights FILE`), and sees what it was trained on:
    images enlarged or reduced to the size that timm says of the model, bicubic, with the mean and scale that timm says.
    """

    class Config(PluginConfig):
        model: str = "resnet18"
        """A name of timm.list_models(), without a pretraining tag."""
        stem: Literal["standard", "small"] = "standard"
        """small: a 3x3 convolution of stride 1 without max-pool; ResNets only."""
        weights: str = Field("", pattern="^([0-9a-f]{20})?$", json_schema_extra={"added": True})
        """Weights to begin with: the first 20 digits of their file's SHA-256, which --weights FILE finds out."""
        partial: bool = Field(False, json_schema_extra={"added": True})
        """Take of the weights what fits, and draw the rest at random; else what does not fit is refused."""
        input_size: int = Field(0, ge=0, json_schema_extra={"added": True})
        """With weights: pixels, square, to which images are resized; 0: what timm says of the model."""
        pixels: Literal["timm", "half"] = Field("timm", json_schema_extra={"added": True})
        """With weights: mean and scale of the pixels as timm says of the model, or 0.5 and 0.5, as fairssl trains."""

        def unread(self) -> frozenset[str]:
            return frozenset() if self.weights else frozenset({"partial", "input_size", "pixels"})

        @model_validator(mode="before")
        @classmethod
        def with_size(cls, given: Any) -> Any:
            """With weights the size of their images is written down, so that a table can say it."""
            if not isinstance(given, Mapping) or not given.get("weights") or int(given.get("input_size") or 0):
                return given
            model = str(given.get("model", "resnet18"))
            usual = timm.models.get_pretrained_cfg(model) if timm.is_model(model.partition(".")[0]) else None
            return given if usual is None else {**given, "input_size": usual.input_size[-1]}

        @field_validator("model")
        @classmethod
        def known(cls, model: str) -> str:
            plain, _, tag = model.partition(".")
            if not timm.is_model(plain):
                near = difflib.get_close_matches(plain, timm.list_models(), n=3, cutoff=0.5)
                hint = f"did you mean {' or '.join(map(repr, near))}?" if near else "see timm.list_models()"
                raise _error(f"timm {timm.__version__} has no such model; {hint}")
            if tag:
                raise _error(
                    f"a tag names weights to download, and none are; write {plain!r}, and name a file: --weights FILE"
                )
            return model

        @model_validator(mode="after")
        def stem_is_replaceable(self) -> Timm.Config:
            if self.stem == "small" and not timm.models.is_model_in_modules(self.model, ["resnet"]):
                raise _error(f"the small stem is for ResNets, and {self.model!r} is none; write stem=standard")
            return self

    pixel_mean: Tensor
    pixel_scale: Tensor

    @classmethod
    def accepts(cls, name: str) -> Mapping[str, Any] | None:
        return {"model": name} if timm.is_model(name) else None

    @classmethod
    def models(cls) -> Iterable[str]:
        return timm.list_models()

    def __init__(self, config: Config, image_shape: tuple[int, int, int]) -> None:
        super().__init__(config, image_shape)
        channels, *size = image_shape
        usual = timm.models.get_pretrained_cfg(config.model)
        self.resized: tuple[int, int] | None = None
        if config.weights:
            size = [config.input_size, config.input_size] if config.input_size else size
            self.resized = (size[0], size[1])
            half = (0.5,) * channels
            mean, std = (half, half) if config.pixels == "half" or usual is None else (usual.mean, usual.std)
            for name, values in (("pixel_mean", mean), ("pixel_scale", std)):
                value = torch.tensor(values).view(1, channels, 1, 1)
                self.register_buffer(name, value, persistent=False)
        image_shape = (channels, size[0], size[1])
        shape: dict[str, Any] = {"in_chans": channels, "num_classes": 0}
        if usual is not None and usual.fixed_input_size:
            shape["img_size"] = tuple(size)
        try:
            net: Any = timm.create_model(config.model, pretrained=False, **shape)
            if config.stem == "small":
                net.conv1 = nn.Conv2d(channels, net.bn1.num_features, 3, padding=1, bias=False)
                nn.init.kaiming_normal_(net.conv1.weight, mode="fan_out", nonlinearity="relu")
                net.maxpool = nn.Identity()
            self.net = net
            self.dim = _width(net, image_shape)
        except (
            AssertionError,
            RuntimeError,
            TypeError,
            ValueError,
        ) as error:  # each architecture refuses in its own way
            cause = f"{type(error).__name__}: {error}".splitlines()[0]
            raise UserError(
                f"timm model {config.model!r} does not take {channels} x {size[0]} x {size[1]} images: {cause}; "
                "choose another image size or encoder"
            ) from error

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, D)."""
        return self.net(x if self.resized is None else self._as_trained(x, self.resized))

    def _as_trained(self, x: Tensor, size: tuple[int, int]) -> Tensor:
        """Pixels of mean and scale 0.5 -> those of the weights' own training."""
        if x.shape[2:] != size:
            smaller = x.shape[2] > size[0]
            x = F.interpolate(x, size, mode="bicubic", antialias=smaller).clamp(-1, 1)
        return ((x / 2 + 0.5) - self.pixel_mean) / self.pixel_scale


@torch.no_grad()
def _width(net: nn.Module, image_shape: tuple[int, int, int]) -> int:
    """D, from one blank image in evaluation mode: timm has no attribute that holds it for every architecture."""
    feature = net.eval()(torch.zeros(1, *image_shape))
    net.train()
    if feature.ndim != 2:
        raise ValueError(f"its feature has shape {tuple(feature.shape)}, not (B, D)")
    return int(feature.shape[1])


def _error(message: str) -> PydanticCustomError:
    return PydanticCustomError("timm", "{message}", {"message": message})
