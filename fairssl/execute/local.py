"""Jobs in this process."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from fairssl.data.splits import SplitsCache
from fairssl.execute.jobs import Job, packs_of
from fairssl.execute.options import Settings
from fairssl.execute.reporting import Reporter
from fairssl.execute.signals import GracefulStop
from fairssl.execute.worker import Worker
from fairssl.store.runs import RunStore
from fairssl.types import counted

POLL_SECONDS = 0.5  # how often a job that another process holds is looked at again


def run_here(
    jobs: Sequence[Job],
    store: RunStore,
    settings: Settings,
    log: Reporter,
    stop: GracefulStop,
    wait: bool = True,
    n_workers: int = 1,
    splits: SplitsCache | None = None,
) -> None:
    """Do the jobs in this process, a pack at a time.

    `wait`: come back to jobs that another process is at until they are done; else leave those to it. `n_workers`: how many
    processes, this one among them, were given these jobs. `splits`: loaded datasets to begin with.
    """
    worker = Worker(store, settings, log, stop, splits)
    left, finished = list(jobs), 0
    while left:
        claimed_elsewhere = []
        for pack in packs_of(left, replace(settings, device=str(worker.device)), n_workers):
            more = f" and {counted(len(pack) - 1, 'more seed')}" if len(pack) > 1 else ""
            what = f"{pack[0].runs[0].name}{more}"
            log.overall(f"{what} ({finished + 1} of {len(jobs)})", finished, len(jobs))
            not_done = worker.run(pack)
            finished += len(pack) - len(not_done)
            claimed_elsewhere += not_done
        if len(claimed_elsewhere) == len(left):
            if not wait:
                return
            log.overall("waiting for another fairssl", finished, len(jobs))
            time.sleep(POLL_SECONDS)
        left = claimed_elsewhere
