"""From the features of a trained encoder to scores, metrics and diagnostics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairssl.data.sampling import balanced
from fairssl.data.splits import RunData
from fairssl.evaluate import thresholds
from fairssl.evaluate.embed import Features
from fairssl.evaluate.leakage import leakage
from fairssl.evaluate.probe import Scorer, fit_probe
from fairssl.evaluate.thresholds import Adjust
from fairssl.scoring import Floor, Interval, bootstrap, check_outcome, noise_floor
from fairssl.scoring import evaluate as all_metrics
from fairssl.spec.keys import derive_seed
from fairssl.spec.run import RunSpec
from fairssl.train.build import build_after_training
from fairssl.train.collapse import Spread, spread
from fairssl.train.model import Model
from fairssl.types import Embeddings, Outcome, Split, Splits, Value


@dataclass(frozen=True)
class Evaluation:
    """What one run says: values on test and validation, the test predictions, and the diagnostics beside them."""

    test: Mapping[str, Value]
    val: Mapping[str, Value]
    outcome: Outcome  # of the test split, in its order, the images of known group
    known: np.ndarray  # int64 (n,): their positions in the test split
    leakage: Mapping[str, Any]
    spread: Spread  # of the training features, as the encoder gives them
    intervals: Mapping[str, Interval]  # over resampled test rows
    noise_floor: Mapping[str, Floor]  # with the groups permuted


def evaluate(spec: RunSpec, model: Model, features: Features, data: RunData) -> Evaluation:
    """Score validation and test as the method says, and judge. Nothing is chosen on either.

    The model may be another run's that shares the pretraining: its annotated images, its heads that act after training
    and its attribute need not be those of the run to evaluate.
    """
    found = spread(features["train"])
    features = transformed(spec, model, features, data)
    score = scorer(spec, model, features["train"], data)
    adjust = group_thresholds(spec, score, features["train"], data)
    splits = data.splits
    val, test = (
        outcome_of_split(score, features[name], getattr(splits, name), splits.groups, adjust)
        for name in ("val", "test")
    )
    known = np.flatnonzero(splits.test.group >= 0)
    how: Any = {"pairs": pairs_of(spec, data.splits)}
    return Evaluation(
        test=all_metrics(test, **how),
        val=all_metrics(val, **how),
        outcome=test,
        known=known,
        leakage=leakage(features["train"], splits.train.group, features["test"], splits.test.group, spec.seed),
        spread=found,
        intervals=bootstrap(test, **how),
        noise_floor=noise_floor(test, **how),
    )


def pairs_of(spec: RunSpec, splits: Splits) -> str:
    """How the run's groups are compared: as asked for, else adjacent ones where their order means something, else all."""
    return spec.pairs or ("adjacent" if splits.ordered else "all")


def outcome_of_split(
    score: Scorer, f: Tensor, split: Split, groups: tuple[str, ...], adjust: Adjust | None = None
) -> Outcome:
    """The scores of a split's features (N, F), of the images whose group is known."""
    known = split.group >= 0  # an image of unknown group cannot be compared with another
    found, group = score(f).double().cpu().numpy()[known], split.group[known]
    return check_outcome(found if adjust is None else adjust(found, group), split.target[known], group, groups)


def group_thresholds(spec: RunSpec, score: Scorer, f: Tensor, data: RunData) -> Adjust | None:
    """What moves scores so that each group has a threshold of its own, chosen on the annotated training images; None if the
    spec asks for none. It reads the group of every image that it judges."""
    if spec.probe.thresholds == "none":
        return None
    rows, train = data.annotated, data.splits.train
    found = score(f[torch.from_numpy(rows).to(f.device)]).double().cpu().numpy()
    rules = thresholds.fit(found, train.target[rows], train.group[rows], data.splits.groups, spec.probe.thresholds)
    seed = derive_seed("thresholds", spec.seed)
    return lambda scores, group: thresholds.adjusted(scores, group, rules, seed)


def transformed(spec: RunSpec, model: Model, features: Features, data: RunData) -> Features:
    """The features of each split after what the spec's heads fit on those of the training images, in the order of the
    heads' names. A head sees the labels that it declares, of annotated images alone."""
    train, rows, n_groups = data.splits.train, data.annotated, len(data.splits.groups)
    target = np.full(len(train), -1, dtype=np.int64)
    target[rows] = train.target[rows]
    for head in spec.method.heads:
        part: Any = model.parts.get(head.name)
        if part is None:
            part = build_after_training(spec, head, model, len(train), len(rows), n_groups)
        seen = Embeddings(
            features["train"],
            target=torch.from_numpy(target) if "target" in part.sees else None,
            group=torch.from_numpy(data.visible_group) if "group" in part.sees else None,
        )
        transform = part.eval().fit(seen)
        if transform is not None:
            features = {split: transform(f) for split, f in features.items()}
    return features


def scorer(spec: RunSpec, model: Model, f: Tensor, data: RunData) -> Scorer:
    """What scores features: the method's own classifier, or a probe fitted on the training features (N, F)."""
    if spec.method.scored_by == "own":
        return _own_scorer(spec, model)
    target = torch.from_numpy(data.splits.train.target)
    rows = probed(spec, data)
    if rows is not None:
        f, target = f[rows.to(f.device)], target[rows]
    return fit_probe(f, target, spec.probe, spec.seed)


def probed(spec: RunSpec, data: RunData) -> Tensor | None:
    """Which training images the probe is fitted on, as positions; None: all of them, in their order."""
    if spec.method.scored_by not in ("annotated_head", "balanced_head"):
        return None
    rows, train = torch.from_numpy(data.annotated), data.splits.train
    if spec.method.scored_by == "balanced_head":
        rows = balanced(rows, torch.from_numpy(train.target), torch.from_numpy(train.group), spec.seed)
    return rows


def _own_scorer(spec: RunSpec, model: Model) -> Scorer:
    own = model.objective.scores

    def score(f: Tensor) -> Tensor:
        with torch.inference_mode():
            found = own(f)
        if found is None:
            raise TypeError(f"objective {spec.method.objective.name!r} says it scores by itself, but returned None")
        return found

    return score
