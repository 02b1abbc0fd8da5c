"""Evaluation on frozen features: embed, linear evaluation, kNN, and how well a fresh classifier finds the group."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairssl import world
from fairssl.data import normalise
from fairssl.spec import ProbeConfig, derive_seed
from fairssl.types import Progress, Split, silent

Scorer = Callable[[Tensor], Tensor]  # (N, F) -> (N,) probability of y = 1


@torch.inference_mode()
def embed(
    encoder: nn.Module,
    represent: Callable[[Tensor], Tensor],
    split: Split,
    device: torch.device,
    batch_size: int = 256,
    progress: Progress = silent,
) -> Tensor:
    """(N, F) float32 representation of every image, in order: evaluation mode, no augmentation, float32 throughout.

    Of several processes each embeds its rows, every image once, and all get the whole.
    """
    encoder.eval()
    mine, rows = world.rows(len(split)), []
    with _whole_float32():
        for start in range(mine.start, mine.stop, batch_size):
            stop = min(start + batch_size, mine.stop)
            images = torch.from_numpy(np.array(split.images[start:stop])).to(device)
            x = normalise(images).contiguous(memory_format=torch.channels_last)
            rows.append(represent(encoder(x)).float())
            progress("embed", stop - mine.start, mine.stop - mine.start)
    return world.gather_with_grad(torch.cat(rows), len(split)).clone()


@contextmanager
def _whole_float32() -> Iterator[None]:
    """Within it convolutions on a GPU keep all bits of their operands, and no algorithms are tried out for a last batch."""
    cudnn = torch.backends.cudnn
    before = cudnn.allow_tf32, cudnn.benchmark
    cudnn.allow_tf32 = cudnn.benchmark = False
    try:
        yield
    finally:
        cudnn.allow_tf32, cudnn.benchmark = before


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
    model = _logistic(x, target, config.l2)
    return lambda new: torch.from_numpy(model.predict_proba(new.cpu().double().numpy())[:, 1])


def _logistic(x: Tensor, codes: Tensor, l2: float) -> Any:
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


def leakage(
    train: Tensor, train_group: np.ndarray, test: Tensor, test_group: np.ndarray
) -> dict[str, float | str | bool | None]:
    """How well a fresh linear classifier, trained on all training features, finds the group on the test features.

    An adversary at chance is no proof of a fair representation (Elazar and Goldberg 2018). `accuracy` and
    `balanced_accuracy` (mean recall over groups) in [0, 1], beside the `majority` share of the test groups and `chance`,
    one over the number of groups. A diagnostic: no part of a method sees its labels.
    """
    known, judged = train_group >= 0, test_group >= 0
    present = np.unique(train_group[known])
    if len(present) < 2 or not judged.any():
        return {"accuracy": None, "reason": "fewer than two groups are known"}
    train, test = train.cpu(), test.cpu()
    standardise = Standardise(train)
    model = _logistic(standardise(train)[torch.from_numpy(known)], torch.from_numpy(train_group[known]), 1.0)
    guess = model.predict(standardise(test).double().numpy()[judged])
    truth = test_group[judged]
    recalls = [float((guess[truth == code] == code).mean()) for code in np.unique(truth)]
    return {
        "accuracy": float((guess == truth).mean()),
        "balanced_accuracy": math.fsum(recalls) / len(recalls),
        "majority": float(np.bincount(truth).max() / len(truth)),
        "chance": 1 / len(present),
        "converged": bool(model.n_iter_.max() < model.max_iter),
    }
