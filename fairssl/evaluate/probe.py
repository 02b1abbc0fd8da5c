"""Linear evaluation and kNN on frozen features."""

from __future__ import annotations

import math
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
    """Linear evaluation by Adam on the cross-entropy: the paper's 20 epochs, the rate divided by 10 at half of them, and at
    least `min_steps` steps. The bias starts at the log-odds of the training targets: on few or skewed images Adam would
    not have moved it to the base rate before the last epoch."""
    gen = torch.Generator().manual_seed(derive_seed("probe", seed))
    y = target.to(x.device, x.dtype)
    x = F.pad(x, (0, 1), value=1.0)  # the last weight is the bias
    weight = torch.zeros(x.shape[1], device=x.device)
    weight[-1] = _log_odds(y)
    optimizer = torch.optim.Adam([weight], lr=config.lr, fused=True)
    n_epochs = max(config.epochs, math.ceil(config.min_steps / math.ceil(len(x) / config.batch_size)))
    decay_epoch = round(config.decay_epoch * n_epochs / config.epochs)
    for epoch in range(n_epochs):
        if epoch == decay_epoch:
            for group in optimizer.param_groups:
                group["lr"] = config.lr / 10
        order = torch.randperm(len(x), generator=gen).to(x.device)
        for rows in order.split(config.batch_size):
            batch = x[rows]
            # The gradient of the mean cross-entropy, written out: autograd would take most of so small a step's time.
            weight.grad = batch.T @ (torch.sigmoid(batch @ weight) - y[rows]) / len(rows)
            optimizer.step()
    return lambda new: torch.sigmoid((new @ weight[:-1] + weight[-1]).double())


def _log_odds(y: Tensor) -> Tensor:
    """(N,) of 0 and 1 -> 0-d log odds of 1, as if half an example of each class had been seen besides."""
    n_positive = y.sum() + 0.5
    return torch.log(n_positive / (len(y) + 1 - n_positive))


def _lbfgs(x: Tensor, target: Tensor, config: ProbeConfig, seed: int) -> Scorer:
    """L2-regularised logistic regression solved to convergence (scikit-learn, L-BFGS)."""
    model = fit_logistic(x, target, config.l2)
    return lambda new: torch.from_numpy(model.predict_proba(new.cpu().double().numpy())[:, 1])


def fit_logistic(x: Tensor, codes: Tensor, l2: float, solver: str = "lbfgs", max_iter: int = 500) -> Any:
    """scikit-learn's `LogisticRegression` on (N, F) features and (N,) class codes, by one thread in float64."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from threadpoolctl import threadpool_limits

    # Its products are too small to share: with several threads it took twice to ten times as long, the more the busier
    # the machine, and other threads would give other bits.
    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore", ConvergenceWarning)  # a cap on the time; `converged` says whether it was met
        model = LogisticRegression(C=1 / l2, solver=solver, max_iter=max_iter)
        return model.fit(x.cpu().double().numpy(), codes.cpu().numpy())


def _knn(x: Tensor, target: Tensor, config: ProbeConfig, seed: int) -> Scorer:
    """Share of the votes for y = 1 among the nearest training features by cosine similarity, each vote weighing
    exp(cosine / temperature), as in Wu, Xiong, Yu, Lin: Unsupervised Feature Learning via Non-Parametric Instance
    Discrimination, CVPR 2018. Plain votes of an even number of neighbours would often tie; a score of exactly 0.5 counts as
    y = 0, here as everywhere."""
    bank = F.normalize(x, dim=1)
    k = min(config.neighbours, len(bank))
    y = target.to(x.device).double()

    def scores(new: Tensor) -> Tensor:
        return torch.cat([votes(chunk) for chunk in new.split(1024)])

    def votes(new: Tensor) -> Tensor:
        similarity, nearest = (F.normalize(new, dim=1) @ bank.T).topk(k)
        weight = (similarity.double() / config.vote_temperature).softmax(1)
        return (weight * y[nearest]).sum(1).clamp(0, 1)

    return scores
