"""The smallest real runs: a few dozen drawn faces of 16 pixels and a narrow encoder, seconds for a whole grid."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from fairssl.data.splits import RunData, SplitsCache, run_data
from fairssl.evaluate.embed import embed_splits
from fairssl.evaluate.judge import Evaluation, evaluate
from fairssl.plan.request import Request
from fairssl.plan.resolve import Plan, Run, resolve
from fairssl.spec.run import RunSpec
from fairssl.train.trainer import Trainer, build_trainer
from fairssl.types import Splits

SETS = ("data.n_train=48", "data.n_val_per_cell=6", "data.n_test_per_cell=10", "encoder.width=8")


def request(*methods: str, sets: tuple[str, ...] = (), **kwargs: Any) -> Request:
    defaults: dict[str, Any] = {"seeds": 1, "epochs": 2, "image_size": 16, "batch_size": 16, "annotated": 0.3}
    return Request(methods=methods, assignments=(*SETS, *sets), **{**defaults, **kwargs})


def plan(*methods: str, sets: tuple[str, ...] = (), **kwargs: Any) -> Plan:
    return resolve(request(*methods, sets=sets, **kwargs))


def run_of(method: str, sets: tuple[str, ...] = (), **kwargs: Any) -> Run:
    return plan(method, sets=sets, **kwargs).runs[0]


@cache
def _splits(data_json: str, spec_json: str) -> Splits:
    spec = RunSpec.model_validate_json(spec_json)
    return SplitsCache({spec.data.dataset: None}).get(spec.data)


def splits(spec: RunSpec) -> Splits:
    return _splits(spec.data.model_dump_json(), spec.model_dump_json())


def trainer(spec: RunSpec, dtype: torch.dtype = torch.float32) -> Trainer:
    return build_trainer(spec, data(spec), torch.device("cpu"))


def data(spec: RunSpec) -> RunData:
    return run_data(splits(spec), spec.data.attribute, spec.annotated, spec.seed)


def judged(spec: RunSpec, trainer: Trainer) -> Evaluation:
    """What a trained model is worth by a spec that may be another's that shares the pretraining."""
    found = data(spec)
    return evaluate(spec, trainer.model, embed_splits(trainer.model, found.splits), found)
