"""The representation tells nothing of the group: a penalty on their dependence, measured by kernels.

Gretton, Bousquet, Smola, Schölkopf: Measuring Statistical Dependence with Hilbert-Schmidt Norms, ALT 2005, the empirical
criterion; as a penalty for fair regression in Pérez-Suay and others: Fair Kernel Learning, ECML PKDD 2017.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from pydantic import Field
from torch import Tensor

from fairssl.api import Batch, Context, Head, HeadConfig, Stream, Terms
from fairssl.nn import normalize


class HSIC(Head):
    """weight * tr(K H L H) / (n - 1)^2 over the n views of the annotated batch, at least 0; 0 where f and group are independent.

    K_ij = exp(-gamma |f_i - f_j|^2) with f at unit length, L_ij = 1 where the two groups are the same and 0 elsewhere, H the
    matrix that takes the mean away. A batch of one group alone costs nothing.
    """

    version = 1
    sees = frozenset({"group"})
    streams = frozenset({"annotated"})
    n_views = 1  # as many as the objective draws

    class Config(HeadConfig):
        gamma: float = Field(1.0, gt=0)
        """Inverse width of the kernel: squared distances of unit vectors are multiplied by it."""

    def __init__(self, config: Config, ctx: Context) -> None:
        super().__init__(config, ctx)

    def forward(self, batches: Mapping[Stream, Batch]) -> Terms:
        batch = batches["annotated"]
        f, group = normalize(batch.flat_f()), batch.group_of_views()  # (V B, F), (V B,)
        return Terms(primal={"hsic": hsic(f, group, self.config.gamma)})


def hsic(f: Tensor, group: Tensor, gamma: float) -> Tensor:
    """(n, F) of unit length and codes (n,) -> 0-d."""
    k = torch.exp(-gamma * (2 - 2 * f @ f.T))
    same = (group[:, None] == group[None, :]).to(f.dtype)
    centred = same - same.mean(0) - same.mean(1, keepdim=True) + same.mean()  # H L H
    return (k * centred).sum() / max(len(f) - 1, 1) ** 2
