"""How well fresh classifiers find the group in frozen features: a linear one and a perceptron."""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fairssl.evaluate.probe import Standardise, fit_logistic
from fairssl.spec.keys import derive_seed

# The perceptron's training. Its steps are those of 20 passes, within bounds: a small set is seen often enough, and a large
# one costs seconds.
HIDDEN, LR, WEIGHT_DECAY, BATCH = 256, 1e-3, 1e-4, 256
PASSES, LEAST_STEPS, MOST_STEPS = 20, 500, 5000

# Raised when the figures change. 1: two groups by L-BFGS, which often had not converged after 500 iterations.
VERSION = 2


def leakage(
    train: Tensor, train_group: np.ndarray, test: Tensor, test_group: np.ndarray, seed: int = 0, mlp: bool = True
) -> dict[str, float | str | bool | None]:
    """How well a fresh classifier, trained on all training features, finds the group on the test features.

    An adversary at chance is no proof of a fair representation: Elazar and Goldberg (Adversarial Removal of Demographic
    Attributes from Text Data, EMNLP 2018) found the attribute again with a classifier trained afterwards. Two are trained:
    a logistic regression with an L2 penalty of 1, `accuracy` and `balanced_accuracy` (mean recall over groups), by Newton's
    method for two groups and by L-BFGS for more (`converged`: within a limit on iterations); and a perceptron with one
    hidden layer of 256 ReLU units, `mlp_accuracy` and `mlp_balanced_accuracy`, by AdamW at 1e-3 with
    weight decay 1e-4 on batches of 256 for 20 passes, at least 500 and at most 5,000 steps, from weights drawn by `seed`,
    without early stopping. Both see the features standardised by the training mean and standard deviation. All values lie
    in [0, 1], beside the `majority` share of the test groups and `chance`, one over the number of groups. A diagnostic: no
    part of a method sees its labels.
    """
    known, judged = train_group >= 0, test_group >= 0
    present = np.unique(train_group[known])
    if len(present) < 2 or not judged.any():
        return {"accuracy": None, "mlp_accuracy": None, "reason": "fewer than two groups are known", "version": VERSION}
    standardise = Standardise(train)
    x, group = standardise(train)[_rows(known, train)], train_group[known]
    unseen, truth = standardise(test)[_rows(judged, test)], test_group[judged]
    solver, most = ("newton-cholesky", 100) if len(present) == 2 else ("lbfgs", 500)
    linear = fit_logistic(x.cpu(), torch.from_numpy(group), 1.0, solver, most)
    code = torch.from_numpy(np.searchsorted(present, group))  # 0..G-1, whichever groups are there
    found = _agreement(linear.predict(unseen.cpu().double().numpy()), truth)
    if mlp:
        guess = present[_fitted_mlp(x, code.to(x.device), len(present), seed)(unseen).cpu().numpy()]
        found |= {f"mlp_{name}": value for name, value in _agreement(guess, truth).items()}
    return {
        **found,
        "majority": float(np.bincount(truth).max() / len(truth)),
        "chance": 1 / len(present),
        "converged": bool(linear.n_iter_.max() < linear.max_iter),
        "version": VERSION,
    }


def _rows(chosen: np.ndarray, like: Tensor) -> Tensor:
    return torch.from_numpy(np.flatnonzero(chosen)).to(like.device)


def _agreement(guess: np.ndarray, truth: np.ndarray) -> dict[str, float]:
    recalls = [float((guess[truth == code] == code).mean()) for code in np.unique(truth)]
    return {"accuracy": float((guess == truth).mean()), "balanced_accuracy": math.fsum(recalls) / len(recalls)}


class _MLP:
    """(n, F) -> (n,) the likeliest of K classes; one hidden layer."""

    def __init__(self, n_features: int, n_classes: int, gen: torch.Generator, device: torch.device) -> None:
        def uniform(fan_in: int, *shape: int) -> Tensor:
            values = (2 * torch.rand(*shape, generator=gen) - 1) / math.sqrt(fan_in)
            return values.to(device).requires_grad_()

        self.weights = [
            *(uniform(n_features, HIDDEN, n_features), uniform(n_features, HIDDEN)),
            *(uniform(HIDDEN, n_classes, HIDDEN), uniform(HIDDEN, n_classes)),
        ]

    def logits(self, x: Tensor) -> Tensor:
        first, first_bias, second, second_bias = self.weights
        return F.linear(F.relu(F.linear(x, first, first_bias)), second, second_bias)

    def __call__(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return self.logits(x).argmax(1)


def _fitted_mlp(x: Tensor, code: Tensor, n_classes: int, seed: int) -> _MLP:
    gen = torch.Generator().manual_seed(derive_seed("leakage", seed))
    model = _MLP(x.shape[1], n_classes, gen, x.device)
    optimizer = torch.optim.AdamW(model.weights, lr=LR, weight_decay=WEIGHT_DECAY, fused=True)
    batch = min(BATCH, len(x))
    per_pass = len(x) // batch
    n_steps = min(MOST_STEPS, max(LEAST_STEPS, PASSES * per_pass))
    for step in range(n_steps):
        if step % per_pass == 0:
            order = torch.randperm(len(x), generator=gen).to(x.device)
        rows = order[step % per_pass * batch :][:batch]
        loss = F.cross_entropy(model.logits(x[rows]), code[rows])
        for weight, gradient in zip(model.weights, torch.autograd.grad(loss, model.weights), strict=True):
            weight.grad = gradient
        optimizer.step()
    return model
