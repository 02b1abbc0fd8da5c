"""What is trained, kept and evaluated: an encoder and the parts of its method."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fairssl.parts import Encoder, Part


@dataclass
class Model:
    """An encoder with the parts that take part in its training, the objective first. Heads without a stream, which only
    act on finished features, are not among them: a pretraining is the same with and without such a head."""

    encoder: Encoder
    parts: dict[str, Part]

    @property
    def objective(self) -> Any:
        return next(iter(self.parts.values()))

    @property
    def device(self) -> torch.device:
        return next(self.encoder.parameters()).device

    def modules(self) -> dict[str, nn.Module]:
        """What has a state dict, by the prefix it is stored under."""
        return {"encoder": self.encoder, **{f"part.{name}": part for name, part in self.parts.items()}}

    def to(self, device: torch.device) -> Model:
        """Move everything, and lay the encoder's weights out for fast convolutions."""
        # Channels-last is 1.25 to 2 times as fast for convolutions and, being always on, part of no key.
        self.encoder = self.encoder.to(device).to(memory_format=torch.channels_last)
        for part in self.parts.values():
            part.to(device)
        return self

    def train(self, mode: bool = True) -> Model:
        """All networks in training mode, or in evaluation mode."""
        for module in self.modules().values():
            module.train(mode)
        return self

    def tensors(self) -> dict[str, Tensor]:
        """Every parameter and persistent buffer by name: what a finished pretraining keeps."""
        return {
            f"{prefix}.{name}": value.detach().contiguous()
            for prefix, module in self.modules().items()
            for name, value in module.state_dict().items()
        }

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """The inverse of `tensors`; names of neither encoder nor a part are passed over."""
        for prefix, module in self.modules().items():
            module.load_state_dict({k[len(prefix) + 1 :]: v for k, v in tensors.items() if k.startswith(prefix + ".")})
