"""The groups' features vary alike: a penalty on the distance of their covariances.

Sun, Saenko: Deep CORAL: Correlation Alignment for Deep Domain Adaptation, ECCV Workshops 2016, eq. 1, with groups in place of
domains.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

import torch
from pydantic import Field
from torch import Tensor

from fairssl.api import Batch, Context, Head, HeadConfig, Stream, Terms
from fairssl.nn import normalize


class Coral(Head):
    """weight * scale * mean over the pairs of groups of |C_a - C_b|^2 (Frobenius), f at unit length; at least 0.

    C is the covariance of a group's features in the annotated batch. A group with fewer than two views there adds nothing. The
    paper divides by 4 F^2 and leaves the length of the features; at unit length `scale` takes its place.
    """

    version = 1
    sees = frozenset({"group"})
    streams = frozenset({"annotated"})
    n_views = 1  # as many as the objective draws

    class Config(HeadConfig):
        scale: float = Field(10.0, gt=0)
        """Multiplies the squared distance, which is small between features of unit length."""

    def __init__(self, config: Config, ctx: Context) -> None:
        super().__init__(config, ctx)
        self.n_groups = ctx.n_groups

    def forward(self, batches: Mapping[Stream, Batch]) -> Terms:
        batch = batches["annotated"]
        f, group = normalize(batch.flat_f()), batch.group_of_views()  # (V B, F), (V B,)
        return Terms(primal={"coral": self.config.scale * coral(f, group, self.n_groups)})


def coral(f: Tensor, group: Tensor, n_groups: int) -> Tensor:
    """(n, F) and codes (n,) -> 0-d. No branch looks at the codes, so that a GPU can replay the step."""
    member = (group == torch.arange(n_groups, device=f.device)[:, None]).to(f.dtype)  # (G, n)
    count = member.sum(1)
    centred = (f - (member @ f / count.clamp(min=1)[:, None])[:, None]) * member[:, :, None]  # (G, n, F)
    covariance = centred.transpose(1, 2) @ centred / (count - 1).clamp(min=1)[:, None, None]  # (G, F, F)
    enough = (count >= 2).to(f.dtype)
    distances = [
        enough[a] * enough[b] * (covariance[a] - covariance[b]).square().sum()
        for a, b in combinations(range(n_groups), 2)
    ]
    return torch.stack(distances).mean()
