"""Four stride-2 convolutions: fast on a CPU at 32 pixels, for the demo and for tests."""

from __future__ import annotations

from itertools import pairwise

from pydantic import Field
from torch import Tensor, nn

from fairssl.api import Encoder, PluginConfig


class SmallCNN(Encoder):
    """Four 3x3 convolutions of stride 2, each with batch norm and ReLU, and a global mean. D = 4 x width."""

    class Config(PluginConfig):
        width: int = Field(32, ge=1)
        """Channels of the first layer; the others have 1, 2 and 4 times as many."""

    def __init__(self, config: Config, image_shape: tuple[int, int, int]) -> None:
        super().__init__(config, image_shape)
        width = config.width
        channels = (image_shape[0], width, width, 2 * width, 4 * width)
        self.dim = channels[-1]
        layers: list[nn.Module] = []
        for fan_in, fan_out in pairwise(channels):
            layers += [
                nn.Conv2d(fan_in, fan_out, 3, stride=2, padding=1, bias=False),
                nn.BatchNorm2d(fan_out),
                nn.ReLU(inplace=True),
            ]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, D)."""
        return self.layers(x).mean((2, 3))
