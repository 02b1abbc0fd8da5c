"""What an executor is handed: jobs, each a pretraining and the runs that need it, and how they are run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from fairssl import kinds
from fairssl.data.device import to_device
from fairssl.data.splits import SplitsCache, run_data
from fairssl.execute.options import Settings
from fairssl.plan.resolve import Plan, Run
from fairssl.plan.status import Survey
from fairssl.spec.config import check_share
from fairssl.spec.run import DataSpec, RunSpec
from fairssl.train.build import index_streams
from fairssl.types import Splits, UserError


class NothingStarted(UserError):
    """An executor that was refused before any job began: what was written for it is taken away again."""


@dataclass(frozen=True)
class Job:
    """A pretraining and the runs that need it."""

    key: str
    runs: tuple[Run, ...] = field(repr=False)


def jobs_of(found: Survey) -> list[Job]:
    """What is due, as jobs: what has still to be trained first, of those the longest, so that workers end together."""
    jobs = [Job(key, tuple(runs)) for key, runs in found.due.items()]

    def length(job: Job) -> int:
        spec = job.runs[0].spec
        return spec.train.epochs * len(spec.method.streams)

    return sorted(jobs, key=lambda job: (job.key not in found.to_train, -length(job)))


FULL = 4 * 1024 * 1024  # pixels of the views of a step that fill a large GPU: 1,024 views of 64 px
MOST = 8  # runs in a pack; unasked


def packs_of(jobs: Sequence[Job], settings: Settings, n_devices: int) -> list[tuple[Job, ...]]:
    """The jobs in packs that train together on one device: seeds of one run, which share its images and its shapes.

    With `settings.pack` 0, alone on a CPU and on a GPU as many as fill it, unless that would leave another GPU idle.
    """
    alike: dict[str, list[Job]] = {}
    for job in jobs:
        alike.setdefault(job.runs[0].spec.seeds_key, []).append(job)
    packs = []
    for group in alike.values():
        n = settings.pack or _filling(group[0], settings.device, math.ceil(len(jobs) / n_devices))
        packs += [tuple(group[i : i + n]) for i in range(0, len(group), n)]
    return packs


def _filling(job: Job, device: str, at_most: int) -> int:
    if not device.startswith("cuda"):
        return 1
    spec = job.runs[0].spec
    heads = [head for head in (kinds.heads.get(head.name) for head in spec.method.heads) if head.streams]
    n_views = max(part.n_views for part in [kinds.objectives.get(spec.method.objective.name), *heads])
    n_images = spec.train.batch_size * len(spec.method.streams)
    pixels = n_images * n_views * spec.pretrain_data.image_size**2
    return max(1, min(MOST, at_most, FULL // pixels))


def check_devices(plan: Plan, n: int) -> None:
    """Refuse a batch that cannot be divided among `n` devices, before any data is read."""
    for run in plan.runs:
        for stream in run.spec.method.streams:
            check_share(stream, run.spec.train.batch_of(stream), n)


def check_data(splits: SplitsCache, jobs: Sequence[Job], n_devices: int) -> None:
    """Read every dataset once: a mistake in the last one, and a set too small for its batches, is told before the first
    hour of training."""
    specs = {data.canonical_json: (data, dict[object, RunSpec]()) for job in jobs for data in _datasets(job)}
    for job in jobs:
        for spec in (run.spec for run in job.runs):
            batches = tuple((name, spec.train.batch_of(name)) for name in spec.method.streams)
            alike = specs[spec.pretrain_data.canonical_json][1]
            alike.setdefault((batches, spec.method.sampler, spec.annotated), spec)
    for data, trained in specs.values():
        found = splits.get(data)
        for spec in trained.values():
            _check_streams(spec, found, n_devices)


def _datasets(job: Job) -> list[DataSpec]:
    return [data for run in job.runs for data in (run.spec.pretrain_data, run.spec.data)]


def _check_streams(spec: RunSpec, splits: Splits, n_devices: int) -> None:
    """Refuse a training split that has too few images for a batch on each device."""
    data = run_data(splits, spec.pretrain_data.attribute, spec.annotated, spec.seed)
    for name, stream in index_streams(spec, to_device(data, torch.device("cpu"), images=torch.empty(0))).items():
        check_share(name, stream.batch_size, n_devices)
