"""The straight line of values: spec -> splits -> trainer -> steps -> features -> metrics -> record.

`run` is the whole of it for one run, in this process and without a store. The executors (`fairssl.execute`) call the same
functions in the same order; what they add is sharing a pretraining between runs, resuming, and several devices.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy
import timm
import torch
import torchvision

import fairssl
from fairssl import kinds
from fairssl.data.device import device_name, pick_device
from fairssl.data.files import data_root
from fairssl.data.splits import RunData, load_splits, run_data
from fairssl.evaluate.embed import embed_splits
from fairssl.evaluate.judge import Evaluation, evaluate
from fairssl.process_state import preserved_process, preserved_torch
from fairssl.spec.run import DataSpec, RunSpec
from fairssl.store.record import Measured, Predictions, Record
from fairssl.train.rng import preserved
from fairssl.train.trainer import build_trainer
from fairssl.types import Progress, Splits, Undefined, silent


def run(spec: RunSpec, data_dir: Path | str | None = None, device: str = "auto", progress: Progress = silent) -> Record:
    """Train and judge one run: what it came to, its metrics as fractions.

    `data_dir`: where datasets are looked for; else FAIRSSL_DATA, else the per-user folder. Nothing is written but decoded
    images in the cache folder. Errors: `UserError` for data or a device that is not here; `Diverged`.
    """
    where = pick_device(device)
    with preserved_process(), preserved_torch(), preserved(where):
        trained_on = _load(spec, spec.pretrain_data, data_dir, progress)
        trainer = build_trainer(spec, trained_on, where)
        trainer.run(progress=progress)
        judged_on = trained_on if spec.pretrain is None else _load(spec, spec.data, data_dir, progress)
        started = time.perf_counter()
        features = embed_splits(trainer.model, judged_on.splits, progress)
        found = evaluate(spec, trainer.model, features, judged_on)
        timings = {"train_seconds": trainer.seconds, "evaluate_seconds": time.perf_counter() - started}
        return ok_record(spec, found, judged_on, where, timings)


def _load(spec: RunSpec, data: DataSpec, data_dir: Path | str | None, progress: Progress) -> RunData:
    card = kinds.datasets.get(data.dataset).card
    root = None if card.embedded else data_root(None if data_dir is None else Path(data_dir), data.dataset)
    return run_data(load_splits(data, root, progress), data.attribute, spec.annotated, spec.seed)


def predictions_of(found: Evaluation, splits: Splits) -> Predictions:
    """What the run predicts for each test image."""
    outcome = found.outcome
    return Predictions(splits.test.ids, outcome.score, outcome.target, outcome.group)


def ok_record(
    spec: RunSpec, found: Evaluation, data: RunData, device: torch.device, timings: Mapping[str, float]
) -> Record:
    """The record of a run that ended well."""
    outcome = found.outcome
    cells = {
        str(target): {
            label: int(((outcome.target == target) & (outcome.group == code)).sum())
            for code, label in enumerate(outcome.groups)
        }
        for target in (0, 1)
    }
    return Record(
        **_frame(spec, data, device),
        **_values(found.test),
        state="ok",
        cells=cells,
        validation=Measured(**_values(found.val)),
        leakage=dict(found.leakage),
        intervals=_plain(found.intervals),
        noise_floor=_plain(found.noise_floor),
        metric_versions={one.symbol: one.version for one in _metrics()},
        timings=dict(timings),
    )


def ended_badly(spec: RunSpec, state: Any, error: str, data: RunData, device: torch.device) -> Record:
    """The record of a run that failed or diverged, with its error."""
    return Record(**_frame(spec, data, device), state=state, error=error)


def _metrics() -> list[Any]:
    return [kinds.metrics.get(name) for name in kinds.metrics.where()]


def _plain(found: Mapping[str, Any]) -> dict[str, Any]:
    """Intervals or floors as JSON: None where no replicate had a value."""

    def value(one: Any, name: str) -> Any:
        found = getattr(one, name)
        return None if isinstance(found, Undefined) else found

    return {symbol: {f.name: value(one, f.name) for f in fields(one)} for symbol, one in found.items()}


def _values(values: Any) -> dict[str, Any]:
    """Values as a record holds them: None where undefined, and the reasons apart."""
    return {
        "metrics": {k: None if isinstance(v, Undefined) else float(v) for k, v in values.items()},
        "undefined": {k: v.reason for k, v in values.items() if isinstance(v, Undefined)},
    }


def _frame(spec: RunSpec, data: RunData, device: torch.device) -> dict[str, Any]:
    """What every record has, however it ended."""
    return {
        "spec": spec.model_dump(mode="json"),
        "key": spec.key,
        "facts": facts(spec, data),
        "notes": list(data.splits.notes),
        "env": environment(device),
    }


def facts(spec: RunSpec, data: RunData) -> dict[str, Any]:
    """What a table's heading needs and the spec does not hold."""
    card = kinds.datasets.get(spec.data.dataset).card
    splits = data.splits
    return {
        "groups": list(splits.groups),
        "positive": card.positive.get(spec.data.target, spec.data.target),
        "n_train": len(splits.train),
        "n_val": len(splits.val),
        "n_test": len(splits.test),
        "n_annotated": len(data.annotated),
    }


def environment(device: torch.device) -> dict[str, str]:
    """Versions and hardware, for the record; no part of a key."""
    return {
        "fairssl": fairssl.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
        "timm": timm.__version__,
        "numpy": numpy.__version__,
        "device": device_name(device),
        "threads": str(torch.get_num_threads()),
    }
