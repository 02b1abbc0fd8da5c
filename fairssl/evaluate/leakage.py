"""How well a fresh classifier finds the group in frozen features."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from fairssl.evaluate.probe import Standardise, fit_logistic

VERSION = (
    2  # raised when the figures change; 1: two groups by L-BFGS, which often had not converged after 500 iterations
)


def leakage(
    train: Tensor, train_group: np.ndarray, test: Tensor, test_group: np.ndarray
) -> dict[str, float | str | bool | None]:
    """How well a fresh linear classifier, trained on all training features, finds the group on the test features.

    An adversary at chance is no proof of a fair representation (Elazar and Goldberg 2018). `accuracy` and
    `balanced_accuracy` (mean recall over groups) in [0, 1], beside the `majority` share of the test groups and `chance`,
    one over the number of groups. A diagnostic: no part of a method sees its labels.

    Two groups are told apart by Newton's method, which takes a few iterations, more of them by L-BFGS; `converged` says
    whether its limit on iterations sufficed.
    """
    known, judged = train_group >= 0, test_group >= 0
    present = np.unique(train_group[known])
    if len(present) < 2 or not judged.any():
        return {"accuracy": None, "reason": "fewer than two groups are known", "version": VERSION}
    train, test = train.cpu(), test.cpu()
    standardise = Standardise(train)
    solver, most = ("newton-cholesky", 100) if len(present) == 2 else ("lbfgs", 500)
    codes = torch.from_numpy(train_group[known])
    model = fit_logistic(standardise(train)[torch.from_numpy(known)], codes, 1.0, solver, most)
    guess = model.predict(standardise(test).double().numpy()[judged])
    truth = test_group[judged]
    recalls = [float((guess[truth == code] == code).mean()) for code in np.unique(truth)]
    return {
        "accuracy": float((guess == truth).mean()),
        "balanced_accuracy": math.fsum(recalls) / len(recalls),
        "majority": float(np.bincount(truth).max() / len(truth)),
        "chance": 1 / len(present),
        "converged": bool(model.n_iter_.max() < model.max_iter),
        "version": VERSION,
    }
