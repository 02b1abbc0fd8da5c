"""Linear evaluation and kNN on frozen features."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fairssl.spec.config import ProbeConfig
from fairssl.spec.keys import derive_seed

Scorer = Callable[[Tensor], Tensor]  # (N, F) -> (N,) probability of y = 1


class Standardise:
    """(x - mean) / sd with the training features' mean and sd; a constant feature becomes 0."""

    def __init__(self, train: Tensor):
        self.mean = train.mean(0)
        sd = train.std(0)
        self.scale = torch.where(sd > 1e-6, 1 / sd.clamp(min=1e-6), 0.0)

    def __call__(self, f: Tensor) -> Tensor:
        return (f - self.mean) * self.scale


def fit_probe(f: Tensor, target: Tensor, config: ProbeConfig, seed: int) -> Scorer:
    """A probe of the configured kind on (N, F) features and (N,) targets of 0 and 1; returns what scores new features."""
    standardise = Standardise(f)
    x = standardise(f)
    fit = {"linear": _linear, "lbfgs": _lbfgs, "knn": _knn}[config.kind]
    scorer = fit(x, target, config, seed)
    return lambda new: scorer(standardise(new))


def _linear(x: Tensor, target: Tensor, config: ProbeConfig, seed: int) -> Scorer:
    """Linear evaluation by Adam on the cross-entropy, as in the paper: 20 epochs, the rate divided by 10 at epoch 10."""
    gen = torch.Generator().manual_seed(derive_seed("probe", seed))
    weight = torch.zeros(x.shape[1], device=x.device, requires_grad=True)
    bias = torch.zeros((), device=x.device, requires_grad=True)
    optimizer = torch.optim.Adam([weight, bias], lr=config.lr)
    y = target.to(x.device, x.dtype)
    for epoch in range(config.epochs):
        if epoch == config.decay_epoch:
            for group in optimizer.param_groups:
                group["lr"] = config.lr / 10
        order = torch.randperm(len(x), generator=gen).to(x.device)
        for rows in order.split(config.batch_size):
            loss = F.binary_cross_entropy_with_logits(x[rows] @ weight + bias, y[rows])
            weight.grad, bias.grad = torch.autograd.grad(loss, [weight, bias])
            optimizer.step()
    w, b = weight.detach(), bias.detach()
    return lambda new: torch.sigmoid((new @ w + b).double())


def _lbfgs(x: Tensor, target: Tensor, config: ProbeConfig, seed: int) -> Scorer:
    """L2-regularised logistic regression solved to convergence (scikit-learn, L-BFGS)."""
    model = fit_logistic(x, target, config.l2)
    return lambda new: torch.from_numpy(model.predict_proba(new.cpu().double().numpy())[:, 1])


def fit_logistic(x: Tensor, codes: Tensor, l2: float) -> Any:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from threadpoolctl import threadpool_limits

    # Its products are too small to share: with several threads it took twice to ten times as long, the more the busier
    # the machine, and other threads would give other bits.
    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore", ConvergenceWarning)  # a cap on the time; `converged` says whether it was met
        return LogisticRegression(C=1 / l2, max_iter=500).fit(x.cpu().double().numpy(), codes.cpu().numpy())


def _knn(x: Tensor, target: Tensor, config: ProbeConfig, seed: int) -> Scorer:
    """Share of positives among the nearest training features by cosine similarity."""
    bank = F.normalize(x, dim=1)
    k = min(config.neighbours, len(bank))
    y = target.to(x.device).double()

    def scores(new: Tensor) -> Tensor:
        found = [y[(F.normalize(chunk, dim=1) @ bank.T).topk(k).indices].mean(1) for chunk in new.split(1024)]
        return torch.cat(found)

    return scores
