"""What a training is worth before it has ended: the validation split, judged between two epochs."""

from __future__ import annotations

from typing import Any

from fairssl.data.splits import RunData
from fairssl.evaluate.embed import embed
from fairssl.evaluate.judge import group_thresholds, outcome_of_split, pairs_of, scorer, transformed
from fairssl.evaluate.leakage import leakage
from fairssl.scoring import evaluate as all_metrics
from fairssl.spec.run import RunSpec
from fairssl.train.model import Model
from fairssl.train.rng import preserved
from fairssl.types import Progress, Undefined, silent

LEAK = "Leak"  # balanced accuracy of a classifier that looks for the group in the features


def on_validation(
    spec: RunSpec, model: Model, data: RunData, judge: bool = True, progress: Progress = silent
) -> dict[str, float]:
    """Every metric by its symbol, and `Leak`, on the validation split, as the run would be judged now; fractions, without
    what is undefined.

    Training goes on as if this had not been called: the global generators, the networks' modes and so their batch
    statistics are as before. Of several processes each embeds its rows, and those that do not `judge` get an empty result.
    """
    modes = [(module, module.training) for root in model.modules().values() for module in root.modules()]
    with preserved(model.device):
        model.train(False)
        try:
            named = {"train": data.splits.train, "val": data.splits.val}
            features = {
                name: embed(model.encoder, model.objective.represent, split, model.device, progress=progress)
                for name, split in named.items()
            }
            if not judge:
                return {}
            train, val = features["train"], features["val"]
            found = leakage(train, data.splits.train.group, val, data.splits.val.group, mlp=False)
            features = transformed(spec, model, features, data)
            score = scorer(spec, model, features["train"], data)
            adjust = group_thresholds(spec, score, features["train"], data)
            outcome = outcome_of_split(score, features["val"], data.splits.val, data.splits.groups, adjust)
        finally:
            for module, mode in modes:
                module.training = mode
    how: Any = {"pairs": pairs_of(spec, data.splits)}
    values = {
        symbol: value for symbol, value in all_metrics(outcome, **how).items() if not isinstance(value, Undefined)
    }
    leak = found.get("balanced_accuracy")
    return {**values, **({} if leak is None else {LEAK: float(leak)})}
