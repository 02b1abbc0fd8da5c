"""Batches made by hand and the smallest training step, for tests of objectives and heads."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import Any

import torch
from reference import checkout
from torch import Tensor, nn

from fairssl import kinds
from fairssl.nn import at_least_float32, in_network_precision
from fairssl.types import Batch, Context, Terms

CASES: dict[str, Any] = json.loads((checkout.CASES / "ssl_cases.json").read_text())
N_TRAIN, SHAPE, D = 20, (3, 8, 8), 16


def encoder(seed: int = 0) -> nn.Module:
    """A tiny backbone with batch norm, (B, 3, 8, 8) -> (B, 16)."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(3, D, 3, 2, 1), nn.BatchNorm2d(D), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def context(
    backbone: nn.Module | None = None, n_train: int = N_TRAIN, n_groups: int = 2, feature_dim: int = D
) -> Context:
    return Context(
        encoder=backbone or encoder(),
        feature_dim=feature_dim,
        image_shape=SHAPE,
        n_train=n_train,
        n_annotated=n_train,
        n_targets=2,
        n_groups=n_groups,
        n_steps=10,
    )


def build(kind: str, name: str, ctx: Context | None = None, **params: Any) -> Any:
    """A part with fixed random weights."""
    ctx = ctx or context()
    torch.manual_seed(1)
    return kinds.by_kind(kind).build(name, params, ctx=ctx)


def given(z: list[Tensor], index: Any = None, group: Any = None, target: Any = None) -> Batch:
    """A batch whose backbone features, representations and contrastive vectors are the given views, V x (B, P)."""
    n = len(z[0])
    return Batch(
        views=[torch.zeros(n, *SHAPE)] * len(z),
        index=torch.arange(n) if index is None else torch.as_tensor(index),
        target=None if target is None else torch.as_tensor(target),
        group=None if group is None else torch.as_tensor(group),
        h=z,
        f=z,
        project=lambda f: f,
    )


def images(n: int = 6, seed: int = 2, n_groups: int = 2) -> Batch:
    """A batch of two noise views per image, every label filled in; not encoded yet."""
    gen = torch.Generator().manual_seed(seed)
    views = [torch.randn(n, *SHAPE, generator=gen) for _ in range(2)]
    number = torch.arange(n)
    return Batch(views=views, index=number * 3 % N_TRAIN, target=number // 2 % 2, group=number % n_groups)


def reorder(batch: Batch, order: Tensor) -> Batch:
    """The same images in another order; not encoded yet."""
    return Batch(
        views=[view[order] for view in batch.views],
        index=batch.index[order],
        target=None if batch.target is None else batch.target[order],
        group=None if batch.group is None else batch.group[order],
    )


def encode(batch: Batch, backbone: nn.Module, objective: Any) -> Batch:
    def project(f: Tensor) -> Tensor:
        if objective.gives == "logits":
            return objective.project(f)
        with in_network_precision(f.device):
            return at_least_float32(objective.project(f))

    with in_network_precision(batch.index.device):
        h = at_least_float32(backbone(torch.cat(batch.views)))
        f = at_least_float32(objective.represent(h))
    n_views = len(batch.views)
    return replace(batch, h=list(h.chunk(n_views)), f=list(f.chunk(n_views)), project=project)


def terms(batch: Batch, backbone: nn.Module, objective: Any, head: Any = None) -> tuple[Tensor, Tensor | None, Terms]:
    """Total primal, total dual, and the terms of the part under test (the head where there is one)."""
    encoded = encode(batch, backbone, objective)
    streams = {"all": encoded, "annotated": encoded}
    own = objective(streams)
    primal = sum(own.primal.values())
    if head is None:
        return primal, None, own
    extra = head(streams)
    primal = primal + head.config.weight * sum(extra.primal.values())
    return primal, sum(extra.dual.values()) if extra.dual else None, extra


def step(batch: Batch, backbone: nn.Module, objective: Any, head: Any = None, progress: float = 0.1) -> float:
    """One plain gradient step on everything that moves, primal and dual at the old values; the primal loss it had."""
    primal, dual, _ = terms(batch, backbone, objective, head)
    parts = [p for p in (objective, head) if p is not None]
    duals = [p for part in parts for p in part.dual_parameters()]
    ours = [p for module in (backbone, *parts) for p in module.parameters() if p.requires_grad]
    ours = [p for p in ours if not any(p is d for d in duals)]
    moves = list(zip(ours, torch.autograd.grad(primal, ours, allow_unused=True, retain_graph=True), strict=True))
    if dual is not None:
        moves += zip(duals, torch.autograd.grad(dual, duals), strict=True)
    with torch.no_grad():
        for parameter, gradient in moves:
            if gradient is not None:
                parameter -= 0.1 * gradient
        for part in parts:
            part.after_step(backbone, torch.tensor(progress))
    return float(primal.detach())


def snapshot(*modules: nn.Module) -> list[dict[str, Tensor]]:
    return [copy.deepcopy(module.state_dict()) for module in modules]
