"""The representation shall not depend on the group: the Hilbert-Schmidt independence criterion.

Gretton, Bousquet, Smola, Schölkopf: Measuring Statistical Dependence with Hilbert-Schmidt Norms, ALT 2005, eq. 9; as a
fairness regulariser in Quadrianto, Sharmanska, Thomas: Discovering Fair Representations in the Data Domain, CVPR 2019.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field
from torch import Tensor

from fairssl.api import Batch, Context, Head, HeadConfig, Stream, Terms
from fairssl.nn import gaussian_kernel, one_hot


class HSIC(Head):
    """weight * trace(K H L H) / n^2 over the n annotated views, at least 0, with K the kernel of the representations f, L
    that of the groups (1 for two of one group, else 0) and H the centring matrix: the biased estimate with n instead of
    n - 1.

    K is the Gaussian kernel of the head `mmd`. For two groups of shares p and 1 - p this is 2 p^2 (1 - p)^2 MMD^2: an
    eighth of MMD^2 where they are equally large. Of more groups it compares all with all, weighed by their sizes, and a
    group that the batch lacks does not matter. It needs no network, and goes with every objective.
    """

    sees = frozenset({"group"})
    streams = frozenset({"annotated"})
    n_views = 1

    class Config(HeadConfig):
        weight: float = Field(10.0, ge=0)
        """Multiplies the head's primal terms; 0 drops the head."""
        gammas: tuple[float, ...] = Field((0.5, 1.0, 2.0), min_length=1)
        """Widths of the kernels that are averaged, exp(-gamma d^2 / m)."""
        bandwidth: Literal["median", "fixed"] = "median"
        """What m is: the median of the squared distances in the batch, or 1."""

    def __init__(self, config: Config, ctx: Context) -> None:
        super().__init__(config, ctx)
        self.n_groups = ctx.n_groups

    def forward(self, batches: Mapping[Stream, Batch]) -> Terms:
        batch = batches["annotated"]
        kernel = gaussian_kernel(batch.flat_f(), self.config.gammas, self.config.bandwidth == "median")
        member = one_hot(batch.group_of_views(), self.n_groups, kernel.dtype)  # (n, G), and L = member @ member.T
        return Terms(primal={"hsic": _dependence(kernel, member)})


def _dependence(kernel: Tensor, member: Tensor) -> Tensor:
    """trace(K H L H) / n^2 for L = M M^T: the sum of the diagonal of (H M)^T K (H M)."""
    centred = member - member.mean(0)
    return ((kernel @ centred) * centred).sum() / len(member) ** 2
