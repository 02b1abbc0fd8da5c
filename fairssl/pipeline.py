"""The straight line of values: spec -> splits -> trainer -> steps -> features -> metrics -> record.

`run` is the whole of it for one run, in this process and without a store. The executors (`fairssl.execute`) call the same
functions in the same order; what they add is sharing a pretraining between runs, resuming, and several devices.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from fairssl import kinds, scoring
from fairssl.data.device import device_name, pick_device
from fairssl.data.overview import root_of
from fairssl.data.splits import RunData, load_splits, run_data
from fairssl.evaluate.embed import embed_splits
from fairssl.evaluate.judge import Evaluation, evaluate, pairs_of, probed
from fairssl.machine import eager_asked
from fairssl.process_state import preserved_process, preserved_torch
from fairssl.provenance import environment, sources
from fairssl.spec.run import DataSpec, RunSpec
from fairssl.store.record import ColumnFacts, Measured, Predictions, Record, State, resampled_json
from fairssl.train.cudagraph import NotCaptured
from fairssl.train.rng import preserved
from fairssl.train.trainer import Trainer, build_trainer
from fairssl.types import Progress, Splits, Undefined, UserError, silent


def run(spec: RunSpec, data_dir: Path | str | None = None, device: str = "auto", progress: Progress = silent) -> Record:
    """Train and judge one run: what it came to, its metrics as fractions.

    `data_dir`: where datasets are looked for; else FAIRSSL_DATA, else the per-user folder. Nothing is written but decoded
    images in the cache folder. Errors: `UserError` for data or a device that is not here; `Diverged`.
    """
    where = pick_device(device)
    with preserved_process(), preserved_torch(), preserved(where):
        trained_on = _load(spec, spec.pretrain_data, data_dir, progress)
        trainer = build_trainer(spec, trained_on, where, eager=eager_asked())
        try:
            trainer.run(progress=progress)
        except NotCaptured as error:  # it may have left the GPU unfit for this process
            raise UserError(
                f"{spec.method.name}: a GPU cannot capture its step: {error}; set FAIRSSL_EAGER=1, or call fairssl.bench, "
                "which goes on eagerly by itself"
            ) from error
        judged_on = trained_on if spec.pretrain is None else _load(spec, spec.data, data_dir, progress)
        started = time.perf_counter()
        features = embed_splits(trainer.model, judged_on.splits, progress)
        found = evaluate(spec, trainer.model, features, judged_on)
        timings = {"train_seconds": trainer.seconds, "evaluate_seconds": time.perf_counter() - started}
        return ok_record(spec, found, trainer, judged_on, where, timings)


def _load(spec: RunSpec, data: DataSpec, data_dir: Path | str | None, progress: Progress) -> RunData:
    root = root_of(kinds.datasets.build(data.dataset, data.params), data_dir)
    return run_data(load_splits(data, root, progress), data.attribute, spec.annotated, spec.seed)


def predictions_of(found: Evaluation, splits: Splits) -> Predictions:
    """What the run predicts for each test image."""
    outcome = found.outcome
    ids = [splits.test.ids[row] for row in found.known]
    return Predictions(ids, outcome.score, outcome.target, outcome.group)


def ok_record(
    spec: RunSpec,
    found: Evaluation,
    trainer: Trainer,
    data: RunData,
    device: torch.device,
    timings: Mapping[str, float],
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
        **_frame(spec, data, device, {**trainer.facts(), **_of_test(found, data), **_of_probe(spec, data)}),
        **_values(found.test),
        state="ok",
        cells=cells,
        validation=Measured(**_values(found.val)),
        leakage=dict(found.leakage),
        intervals=resampled_json(found.intervals),
        noise_floor=resampled_json(found.noise_floor),
        timings=dict(timings),
    )


def _of_test(found: Evaluation, data: RunData) -> dict[str, Any]:
    """How many test images are left out, the class that all predictions are of, if they are of one, and whether the encoder
    tells images apart."""
    only = scoring.one_class(found.outcome)
    return {
        "n_unknown": len(data.splits.test) - len(found.known),
        **({} if only is None else {"one_class": only}),
        "feature_sd": found.spread.feature_sd,
        "effective_rank": found.spread.effective_rank,
        "collapsed": found.spread.collapsed,
    }


def _of_probe(spec: RunSpec, data: RunData) -> dict[str, Any]:
    """How many neighbours vote: all training images where there are fewer than were asked for."""
    if spec.probe.kind != "knn" or spec.method.scored_by == "own":
        return {}
    rows = probed(spec, data)
    return {"n_neighbours": min(spec.probe.neighbours, len(data.splits.train) if rows is None else len(rows))}


def ended_badly(spec: RunSpec, state: State, error: str, data: RunData, device: torch.device) -> Record:
    """The record of a run that failed or diverged, with its error."""
    return Record(**_frame(spec, data, device, {}), state=state, error=error)


def lost_record(spec: RunSpec, error: str) -> Record:
    """The record of a run whose process was lost."""
    spec_, columns = spec.model_dump(mode="json"), all_columns()
    return Record(spec=spec_, key=spec.key, state="failed", error=error, columns=columns, sources=sources(spec))


def all_columns() -> dict[str, ColumnFacts]:
    """Symbol -> what a table must know of it, for every installed metric."""
    return {one.symbol: ColumnFacts.of(one) for one in scoring.columns()}


def _values(values: Any) -> dict[str, Any]:
    """Values as a record holds them: None where undefined, and the reasons apart."""
    return {
        "metrics": {k: None if isinstance(v, Undefined) else float(v) for k, v in values.items()},
        "undefined": {k: v.reason for k, v in values.items() if isinstance(v, Undefined)},
    }


def _frame(spec: RunSpec, data: RunData, device: torch.device, of_training: Mapping[str, Any]) -> dict[str, Any]:
    """What every record has, however it ended."""
    return {
        "spec": spec.model_dump(mode="json"),
        "key": spec.key,
        "facts": {**facts(spec, data), **of_training},
        "notes": list(data.splits.notes),
        "env": environment(device_name(device), torch.get_num_threads()),
        "sources": sources(spec),
        "columns": all_columns(),
    }


def facts(spec: RunSpec, data: RunData) -> dict[str, Any]:
    """What a table tells of the data, and the spec does not hold; see `Record`."""
    splits = data.splits
    annotated = {} if spec.annotated is None else {"n_annotated": len(data.annotated)}
    return {
        "groups": list(splits.groups),
        "ordered": splits.ordered,
        "pairs": pairs_of(spec, splits) if len(splits.groups) > 2 else None,
        "positive": splits.positive,
        "n_train": len(splits.train),
        "n_val": len(splits.val),
        "n_test": len(splits.test),
        **annotated,
        "departures": list(splits.departures),
        "split_hash": data.split_hash,
        "annotated_hash": data.annotated_hash,
    }
