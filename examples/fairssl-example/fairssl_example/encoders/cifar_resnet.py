"""The small residual networks for images of 32 pixels: three stages of 16, 32 and 64 channels.

He, Zhang, Ren, Sun: Deep Residual Learning for Image Recognition, CVPR 2016, section 4.2.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError
from torch import Tensor, nn

from fairssl.api import Encoder, PluginConfig

DEPTHS = (8, 14, 20, 26, 32, 44, 56, 110)  # 6 n + 2, those of the paper and the small ones


class CifarResNet(Encoder):
    """A 3x3 convolution, three stages of n blocks each, and a global mean; depth = 6 n + 2 with the paper's classifier,
    which is left away. D = 4 x width.

    Where a stage halves the resolution, the shortcut is a 1x1 convolution (the paper's option B).
    """

    version = 1

    class Config(PluginConfig):
        depth: int = Field(8, ge=8)
        """Layers, the paper's count: 6 n + 2 for n blocks in each stage."""
        width: int = Field(16, ge=1)
        """Channels of the first stage; the others have 2 and 4 times as many."""

        @field_validator("depth")
        @classmethod
        def six_n_and_two(cls, depth: int) -> int:
            if (depth - 2) % 6:
                raise PydanticCustomError("depth", "depth is 6 n + 2, as 8, 14 or 20")
            return depth

    def __init__(self, config: Config, image_shape: tuple[int, int, int]) -> None:
        super().__init__(config, image_shape)
        n, width = (config.depth - 2) // 6, config.width
        layers: list[nn.Module] = [_convolution(image_shape[0], width), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
        fan_in = width
        for stage in range(3):
            fan_out = width * 2**stage
            for block in range(n):
                layers.append(_Block(fan_in, fan_out, stride=2 if stage and not block else 1))
                fan_in = fan_out
        self.layers = nn.Sequential(*layers)
        self.dim = fan_in

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, D)."""
        return self.layers(x).mean((2, 3))

    @classmethod
    def accepts(cls, name: str) -> Mapping[str, Any] | None:
        """`--encoder cifar_resnet20` is `cifar_resnet` with depth 20."""
        found = re.fullmatch(r"cifar_resnet(\d+)", name)
        return {"depth": int(found.group(1))} if found and int(found.group(1)) in DEPTHS else None

    @classmethod
    def models(cls) -> Iterable[str]:
        return [f"cifar_resnet{depth}" for depth in DEPTHS]


class _Block(nn.Module):
    def __init__(self, fan_in: int, fan_out: int, stride: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            _convolution(fan_in, fan_out, stride),
            nn.BatchNorm2d(fan_out),
            nn.ReLU(inplace=True),
            _convolution(fan_out, fan_out),
            nn.BatchNorm2d(fan_out),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or fan_in != fan_out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(fan_in, fan_out, 1, stride=stride, bias=False), nn.BatchNorm2d(fan_out)
            )

    def forward(self, x: Tensor) -> Tensor:
        return (self.residual(x) + self.shortcut(x)).relu()


def _convolution(fan_in: int, fan_out: int, stride: int = 1) -> nn.Module:
    return nn.Conv2d(fan_in, fan_out, 3, stride=stride, padding=1, bias=False)
