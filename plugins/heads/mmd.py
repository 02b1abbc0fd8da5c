"""The groups' representations shall have one distribution: maximum mean discrepancy with a Gaussian kernel.

Gretton, Borgwardt, Rasch, Schölkopf, Smola: A Kernel Two-Sample Test, JMLR 2012, eq. 5; as the regulariser of Louizos,
Swersky, Li, Welling, Zemel: The Variational Fair Autoencoder, ICLR 2016, eq. 11.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from pydantic import Field

from fairssl.api import Batch, Context, Head, HeadConfig, Stream, Terms
from fairssl.nn import gaussian_kernel


class MMD(Head):
    """weight * MMD^2 between the representations f of the annotated images' groups, in 0..2.

    The biased estimate, mean k(x, x') + mean k(y, y') - 2 mean k(x, y), with k the mean over `gammas` of
    exp(-gamma d^2 / m) and m the median of the squared distances d^2 between the batch's rows, through which no gradient
    flows (bandwidth "median"), or m = 1 ("fixed"). Two groups are compared with each other; of more, each with all
    annotated rows, and the mean over the groups is taken. A group that the batch lacks contributes 0 and is counted
    (`n_absent`). All views are rows.

    Louizos et al. approximate the kernel by 500 random features and sum over the groups; here it is exact.
    """

    sees = frozenset({"group"})
    streams = frozenset({"annotated"})

    class Config(HeadConfig):
        gammas: tuple[float, ...] = Field((0.5, 1.0, 2.0), min_length=1)
        """Widths of the Gaussian kernels whose mean is taken."""
        bandwidth: Literal["median", "fixed"] = "median"
        """Unit of the squared distances: their median in the batch, or 1."""

    def __init__(self, config: Config, ctx: Context) -> None:
        super().__init__(config, ctx)
        self.n_groups = ctx.n_groups

    def forward(self, batches: Mapping[Stream, Batch]) -> Terms:
        batch = batches["annotated"]
        x = batch.flat_f()
        kernel = gaussian_kernel(x, self.config.gammas, self.config.bandwidth == "median")
        codes = torch.arange(self.n_groups, device=x.device)
        member = (batch.group_of_views()[None, :] == codes[:, None]).to(x.dtype)  # (G, n)
        size = member.sum(1, keepdim=True)
        share = member / size.clamp_min(1)
        present = size[:, 0] > 0
        if self.n_groups == 2:
            gap, valid = share[:1] - share[1:], present.all(0, keepdim=True)
        else:
            gap, valid = share - member.sum(0) / size.sum().clamp_min(1), present
        squared = ((gap @ kernel) * gap).sum(1)
        return Terms(
            primal={"mmd2": torch.where(valid, squared, 0.0).mean()},
            log={"n_absent": (~present).sum().float()},
        )
