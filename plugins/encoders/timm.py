"""Any architecture of PyTorch Image Models by its name, from random weights.

Wightman: PyTorch Image Models, 2019, https://github.com/huggingface/pytorch-image-models.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import timm
import torch
from pydantic import field_validator, model_validator
from pydantic_core import PydanticCustomError
from torch import Tensor, nn

from fairssl.api import Encoder, PluginConfig, UserError


class Timm(Encoder):
    """A timm model without its classifier: its pooled feature, whose width D is read off a blank image.

    A model made for one image size is built for the size at hand. The standard stem of a ResNet divides the
    resolution by 4 before its first block; `stem="small"`, a 3x3 convolution of stride 1 and no max-pool, keeps it, at
    about 15 times the cost.
    """

    class Config(PluginConfig):
        model: str = "resnet18"
        """A name of timm.list_models(), without a pretraining tag."""
        stem: Literal["standard", "small"] = "standard"
        """small: a 3x3 convolution of stride 1 without max-pool; ResNets only."""

        @field_validator("model")
        @classmethod
        def known(cls, model: str) -> str:
            plain, _, tag = model.partition(".")
            if not timm.is_model(plain):
                near = difflib.get_close_matches(plain, timm.list_models(), n=3, cutoff=0.5)
                hint = f"did you mean {' or '.join(map(repr, near))}?" if near else "see timm.list_models()"
                raise _error(f"timm {timm.__version__} has no such model; {hint}")
            if tag:
                raise _error(f"a tag names pretrained weights, and encoders start from random ones; write {plain!r}")
            return model

        @model_validator(mode="after")
        def stem_is_replaceable(self) -> Timm.Config:
            if self.stem == "small" and not timm.models.is_model_in_modules(self.model, ["resnet"]):
                raise _error(f"the small stem is for ResNets, and {self.model!r} is none; write stem=standard")
            return self

    @classmethod
    def accepts(cls, name: str) -> Mapping[str, Any] | None:
        return {"model": name} if timm.is_model(name) else None

    @classmethod
    def models(cls) -> Iterable[str]:
        return timm.list_models()

    def __init__(self, config: Config, image_shape: tuple[int, int, int]) -> None:
        super().__init__(config, image_shape)
        channels, *size = image_shape
        fixed = timm.models.get_pretrained_cfg(config.model)
        shape: dict[str, Any] = {"in_chans": channels, "num_classes": 0}
        if fixed is not None and fixed.fixed_input_size:
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
        return self.net(x)


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
