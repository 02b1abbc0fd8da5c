"""Erase the group from finished features by the smallest affine change after which no linear classifier finds it.

Belrose, Schneider-Joseph, Ravfogel, Cotterell, Raff, Biderman: LEACE: Perfect Linear Concept Erasure in Closed Form,
NeurIPS 2023, theorem 4.3.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError
from torch import Tensor

from fairssl.api import Embeddings, Head, HeadConfig, UserError


class LEACE(Head):
    """r(x) = x - W^+ P W (x - E[x]), with W = Cov(x)^(-1/2) and P onto the columns of W Cov(x, z), z the group one-hot.

    Fitted on the annotated images' features: there the groups' means coincide, and therefore no linear classifier beats
    the best constant one; among all affine maps with that property r moves the features least. On other images it holds
    up to what the annotated ones tell of the covariances. It takes no part in training, so that `simclr+leace` shares
    SimCLR's pretraining. `weight` is 1, or 0 to leave it out.

    With fewer annotated images than features, or features that depend linearly on each other, the covariance has no
    inverse. Everything is computed in float64 on standardised features, so that units do not matter, and eigenvalues
    below `tolerance` times the largest are raised to that: where the annotated images do not vary at all this is the
    pseudo-inverse, and where they hardly do, the means still coincide, which cutting such directions off would spoil.
    `shrinkage` > 0 puts (1 - shrinkage) Cov + shrinkage I in W, steadier on few images; the means stay equal, the change
    is no longer the smallest.
    """

    sees = frozenset({"group"})
    streams = frozenset()

    class Config(HeadConfig):
        tolerance: float = Field(1e-6, gt=0, lt=1)
        """Smallest eigenvalue of the covariance, relative to the largest."""
        shrinkage: float = Field(0.0, ge=0, lt=1)
        """How far the covariance is moved towards the identity; 0: not at all, 1: the identity."""

        @field_validator("weight")
        @classmethod
        def all_or_nothing(cls, weight: float) -> float:
            if weight not in (0, 1):
                raise PydanticCustomError("leace", "leace erases all or nothing; write 1, or 0 to leave it out")
            return weight

    def fit(self, embeddings: Embeddings) -> Callable[[Tensor], Tensor]:
        """(N, F) -> (N, F) float32. Fewer than two groups annotated: `UserError`."""
        group = embeddings.group_of_images().to(embeddings.f.device)
        known = group >= 0
        x, codes = embeddings.f[known].double(), group[known]
        groups = torch.unique(codes)
        if len(groups) < 2:
            raise UserError(
                f"leace has {len(groups)} group(s) among {len(x)} annotated images, nothing to erase; raise --annotated"
            )
        mean, sd = x.mean(0), x.std(0, correction=0)
        sd = torch.where(sd > 0, sd, 1.0)
        x = (x - mean) / sd
        z = (codes[:, None] == groups[None, :]).double()
        cross = x.T @ (z - z.mean(0)) / len(x)  # (F, G)
        take, give = _projection(x.T @ x / len(x), cross, self.config.tolerance, self.config.shrinkage)

        def erase(f: Tensor) -> Tensor:
            found = ((f.double() - mean) / sd) @ take
            return (f.double() - (found @ give.T) * sd).to(f.dtype)

        return erase


def _projection(covariance: Tensor, cross: Tensor, tolerance: float, shrinkage: float) -> tuple[Tensor, Tensor]:
    """(F, F), (F, G) -> W U and W^-1 U, both (F, r), with U an orthonormal basis of the columns of W cross; r < G."""
    n_features, n_groups = cross.shape
    eye = torch.eye(n_features, dtype=covariance.dtype, device=covariance.device)
    values, vectors = torch.linalg.eigh((1 - shrinkage) * covariance + shrinkage * eye)
    root = values.clamp_min(tolerance * values[-1].clamp_min(torch.finfo(values.dtype).tiny)).sqrt()
    left, singular, _ = torch.linalg.svd(vectors @ ((vectors.T @ cross) / root[:, None]), full_matrices=False)
    # The one-hot columns sum to 1, so the centred ones to 0: at most G - 1 directions. The rest is rounding.
    basis = left[:, : n_groups - 1][:, singular[: n_groups - 1] > 1e-9]
    coordinates = vectors.T @ basis
    return vectors @ (coordinates / root[:, None]), vectors @ (coordinates * root[:, None])
