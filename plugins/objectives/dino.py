"""Small crops and large ones are assigned to prototypes as a slowly moving teacher assigns the large ones.

Caron, Touvron, Misra, Jegou, Mairal, Bojanowski, Joulin: Emerging Properties in Self-Supervised Vision Transformers, ICCV
2021, eqs. 1 to 4 and Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from pydantic import Field
from torch import Tensor, nn

from fairssl.api import Batch, Context, Crops, Objective, PluginConfig, Stream, Terms
from fairssl.nn import ema_update, mlp, momentum_copy, momentum_rate, normalize, sharded


class DINO(Objective):
    """L = mean over the images, the two usual views g and all other views v of -sum over k of P_k(g) log Q_k(v), at least 0.

    Q, the student, is the softmax over the K prototypes of cosines / student_temperature; P, the teacher, of (cosines -
    centre) / teacher_temperature, a constant. The other views are the usual one and `n_small` small crops, each
    `small_share` as wide as the image and showing a twentieth to two fifths of it; the method's row sets the usual views'
    smallest area to two fifths. The teacher follows the student by a moving average whose rate rises from `momentum` to 1;
    the centre follows the mean of the teacher's cosines, with `center_momentum` of it left after each step.

    A small form: three linear layers D-512-512-256 with batch norm (theirs: GELU, none with a vision transformer), 1,024
    prototypes of unit length instead of 65,536. The teacher's temperature does not rise, and the last layer is not held
    still in the first epoch. An encoder made for one image size cannot take small crops: `dino.n_small=0`.
    """

    sees = frozenset({"views"})  # the teacher encodes the usual ones too

    class Config(PluginConfig):
        n_small: int = Field(4, ge=0)
        """Small crops of each image."""
        small_share: float = Field(0.5, gt=0, le=1)
        """Side of a small crop, as a share of the image's."""
        student_temperature: float = Field(0.1, gt=0)
        """The student's cosines are divided by it."""
        teacher_temperature: float = Field(0.04, gt=0)
        """The teacher's are; the smaller, the surer it is."""
        momentum: float = Field(0.99, ge=0, le=1)
        """Share of the teacher that stays at the first step; it rises to 1. The paper's is 0.996 for 300 epochs."""
        center_momentum: float = Field(0.9, ge=0, lt=1)
        """Share of the centre that stays after a step."""
        n_prototypes: int = Field(1024, ge=2)
        """K."""
        hidden_dim: int = Field(512, ge=1)
        """Width of the projector's hidden layers."""
        projection_dim: int = Field(256, ge=1)
        """P, width of the vector that is compared with the prototypes."""

    center: Tensor

    def __init__(self, config: Config, ctx: Context) -> None:
        super().__init__(config, ctx)
        self.small_size = max(8, round(config.small_share * ctx.image_shape[1]))
        self.projector = mlp(ctx.feature_dim, config.hidden_dim, config.hidden_dim, config.projection_dim)
        self.prototypes = nn.Linear(config.projection_dim, config.n_prototypes, bias=False)
        self.teacher_encoder = momentum_copy(ctx.encoder)
        self.teacher_projector = momentum_copy(self.projector)
        self.teacher_prototypes = momentum_copy(self.prototypes)
        self.register_buffer("center", torch.zeros(config.n_prototypes))

    def crops(self) -> Sequence[Crops]:
        n = self.config.n_small
        return [Crops(n, self.small_size, (0.05, 0.4))] if n else []

    def project(self, f: Tensor) -> Tensor:
        return self.projector(f)

    def forward(self, batches: Mapping[Stream, Batch]) -> Terms:
        batch = batches["all"]
        student = [(_cosines(z, self.prototypes) / self.config.student_temperature).log_softmax(1) for z in batch.z]
        with torch.no_grad():
            pixels = torch.cat(batch.views[:2]).contiguous(memory_format=torch.channels_last)
            found = _cosines(self.teacher_projector(sharded(self.teacher_encoder, pixels)), self.teacher_prototypes)
            teacher = ((found - self.center) / self.config.teacher_temperature).softmax(1).chunk(2)
            kept = self.config.center_momentum
            self.center.copy_(kept * self.center + (1 - kept) * found.mean(0))
        pairs = [
            -(p * q).sum(1).mean() for at, p in enumerate(teacher) for other, q in enumerate(student) if other != at
        ]
        assigned = torch.stack(teacher).mean((0, 1))
        return Terms(
            primal={"cross_entropy": torch.stack(pairs).mean()},
            log={"entropy": torch.special.entr(assigned).sum()},  # of how the teacher uses the prototypes; 0: collapsed
        )

    def after_step(self, encoder: nn.Module, progress: Tensor) -> None:
        rate = momentum_rate(self.config.momentum, progress)
        ema_update(self.teacher_encoder, encoder, rate)
        ema_update(self.teacher_projector, self.projector, rate)
        ema_update(self.teacher_prototypes, self.prototypes, rate)


def _cosines(z: Tensor, prototypes: nn.Linear | nn.Module) -> Tensor:
    """(B, P) -> (B, K): cosines with the prototypes."""
    assert isinstance(prototypes, nn.Linear)
    return normalize(z) @ normalize(prototypes.weight).T
