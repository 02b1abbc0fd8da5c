"""The smallest real runs: a few dozen drawn faces of 16 pixels and a narrow encoder, seconds for a whole grid."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from fairssl.data import annotated_subset, to_device
from fairssl.pipeline import Cell, Plan, Request, SplitsCache, resolve
from fairssl.spec import RunSpec
from fairssl.train import Trainer
from fairssl.types import Splits

SETS = ("data.n_train=48", "data.n_val_per_cell=6", "data.n_test_per_cell=10", "encoder.width=8")


def request(*methods: str, sets: tuple[str, ...] = (), **kwargs: Any) -> Request:
    defaults: dict[str, Any] = {"seeds": 1, "epochs": 2, "image_size": 16, "batch_size": 16, "annotated": 0.3}
    return Request(methods=methods, assignments=(*SETS, *sets), **{**defaults, **kwargs})


def plan(*methods: str, sets: tuple[str, ...] = (), **kwargs: Any) -> Plan:
    return resolve(request(*methods, sets=sets, **kwargs))


def cell(method: str, sets: tuple[str, ...] = (), **kwargs: Any) -> Cell:
    return plan(method, sets=sets, **kwargs).cells[0]


@cache
def _splits(data_json: str, spec_json: str) -> Splits:
    spec = RunSpec.model_validate_json(spec_json)
    return SplitsCache({spec.data.dataset: None}).get(spec.data)


def splits(spec: RunSpec) -> Splits:
    return _splits(spec.data.model_dump_json(), spec.model_dump_json())


def trainer(spec: RunSpec, dtype: torch.dtype = torch.float32) -> Trainer:
    found = splits(spec)
    n_groups = len(found.groups)
    rows = annotated_subset(found.train.group, n_groups, spec.annotated, spec.data.attribute, spec.seed)
    return Trainer(spec, to_device(found.train, rows, torch.device("cpu")), n_groups)
