"""The door of the whole: a grid of methods, trained and judged, as tables and data frames.

`fairssl bench` calls `run_plan`; Python and notebooks call `fairssl.bench`. Imports torch only once something is run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairssl.machine import user_path
from fairssl.plan.request import Request, load_grid
from fairssl.plan.resolve import Plan, Run, resolve_all
from fairssl.process_state import preserved_process
from fairssl.progress import reporter
from fairssl.store.runs import RunStore
from fairssl.types import UserError, counted

if TYPE_CHECKING:
    import pandas as pd

    from fairssl.board.table import Table
    from fairssl.execute.options import Options
    from fairssl.execute.reporting import Reporter
    from fairssl.execute.signals import GracefulStop
    from fairssl.store.record import Record

Names = str | Iterable[str] | None


@dataclass(frozen=True)
class Tables(Sequence[Any]):
    """The tables of a grid, one per dataset, target and attribute; printed, they are Markdown."""

    items: tuple[Table, ...]

    def __getitem__(self, at: Any) -> Any:
        return self.items[at]

    def __len__(self) -> int:
        return len(self.items)

    def __str__(self) -> str:
        from fairssl.board.markdown import to_markdown

        return to_markdown(*self.items)

    def _repr_markdown_(self) -> str:
        return str(self)


@dataclass(frozen=True)
class Failure:
    """A run that failed or diverged, why in one line, and the file that has the whole error."""

    name: str
    state: str
    reason: str
    record: Path

    def __str__(self) -> str:
        return f"{self.name} {self.state}: {self.reason} (see {self.record})"


@dataclass(frozen=True)
class Result:
    """What a grid came to. `failures`: its runs that failed or diverged."""

    plan: Plan
    store: RunStore
    table: Tables
    failures: tuple[Failure, ...] = ()

    @property
    def n_failed(self) -> int:
        return len(self.failures)

    def records(self) -> list[Record]:
        """The record of every run of the grid, in its order."""
        return [record for run in self.plan.runs if (record := self.store.read_record(run.spec.key)) is not None]

    def runs(self) -> pd.DataFrame:
        """A row per run: method, dataset, target, attribute, seed, state, key, and every metric by its symbol, as fractions
        (missing where undefined)."""
        import pandas as pd

        rows = []
        for run in self.plan.runs:
            record = self.store.read_record(run.spec.key)
            if record is None:
                continue
            data = run.spec.data
            rows.append(
                {
                    "method": run.label,
                    "dataset": data.dataset,
                    "target": data.target,
                    "attribute": data.attribute,
                    "seed": run.spec.seed,
                    "state": record.state,
                    "key": record.key,
                    **record.metrics,
                }
            )
        return pd.DataFrame(rows)

    def to_pandas(self) -> pd.DataFrame:
        """A row per method and metric: mean, sample sd, interval, how many seeds, why it is undefined if so, and the other
        columns of `table.csv`. Fractions."""
        import pandas as pd

        from fairssl.board.json import to_long_rows

        return pd.DataFrame(to_long_rows(*self.table.items))


def bench(
    methods: Names = None,
    dataset: Names = None,
    attribute: Names = None,
    target: Names = None,
    seeds: int | Iterable[int] | None = None,
    *,
    encoder: str | None = None,
    weights: Path | str | None = None,
    preset: str | None = None,
    epochs: int | None = None,
    image_size: int | None = None,
    batch_size: int | None = None,
    annotated: float | None = None,
    settings: Mapping[str, Any] | None = None,
    grid: str | Path | None = None,
    pretrain_dataset: str | None = None,
    pretrain_target: str | None = None,
    pretrain_attribute: str | None = None,
    equal_views: bool | None = None,
    pairs: str | None = None,
    data_dir: Path | str | None = None,
    out: Path | str = "runs",
    **options: Any,
) -> Result:
    """Train and judge a grid; all that is left out is as in `fairssl bench`. The same call again trains nothing.

    Each of `methods`, `dataset`, `attribute` and `target` is one name or several; the grid is their product, over `seeds`
    (a number N for seeds 0 to N - 1, or the seeds). `settings` is what `--set` sets: {"adversary.weight": 0.5}. `options`
    are the fields of `fairssl.execute.options.Options`: device, workers, executor, pack, devices, retry_failed and so on.
    Runs and `table.md` go into the folder `out`. Progress is shown on a terminal and in a notebook. Ctrl-C raises
    KeyboardInterrupt and leaves checkpoints, so that the same call goes on. Generators, torch's settings, signal handlers
    and the environment are afterwards what they were. Errors: `UserError`, in one line.
    """
    from fairssl.execute.options import Options
    from fairssl.execute.signals import GracefulStop

    request = Request(
        methods=_names(methods),
        datasets=_names(dataset),
        attributes=_names(attribute),
        targets=_names(target),
        seeds=seeds if seeds is None or isinstance(seeds, int) else tuple(seeds),
        encoder=encoder,
        preset=preset,
        epochs=epochs,
        image_size=image_size,
        batch_size=batch_size,
        annotated=annotated,
        assignments=None if settings is None else [f"{name}={_written(value)}" for name, value in settings.items()],
        pretrain_dataset=pretrain_dataset,
        pretrain_target=pretrain_target,
        pretrain_attribute=pretrain_attribute,
        equal_views=equal_views,
        pairs=pairs,
        data_dir=data_dir,
        weights=weights,
    )
    stop = GracefulStop()
    with preserved_process(), reporter() as log:
        try:
            how, store = Options(**options), RunStore(user_path(out))
            plan = checked_plan(requests_of(request, grid), how, log)
            tell_without_effect(plan, log)
            return run_plan(plan, how, store, log, stop)
        except RuntimeError as error:
            if stop():  # a stop with a checkpoint, as after Ctrl-C
                raise KeyboardInterrupt(f"{error}; the same call goes on from here") from error
            raise


def requests_of(request: Request, grid: str | Path | None = None) -> list[Request]:
    """The request, or those of a grid file with everything that the request says in place of what the file says; settings
    are replaced one by one."""
    return [request] if grid is None else load_grid(str(grid), request)


def checked_plan(requests: Sequence[Request], options: Options, log: Reporter, allow_absent: bool = False) -> Plan:
    """The plan of the requests; batches that the options' devices cannot divide are refused, before any data is read.

    A mistake of the user's also lets those go that torchrun started beside this process.
    """
    from fairssl.execute.torchrun import torchrun

    place = torchrun()
    n_devices = options.devices if place is None else place[0]
    if n_devices == 1:  # as nearly always; a mistake is told before torch is loaded
        plan = resolve_all(requests, allow_absent, log.stage)
        _try_weights(plan, log)
        return plan
    from fairssl.execute.jobs import check_devices
    from fairssl.execute.launch import followers_released

    with followers_released():
        plan = resolve_all(requests, allow_absent, log.stage)
        check_devices(plan, n_devices)
        _try_weights(plan, log)
    return plan


def tell_without_effect(plan: Plan, log: Reporter) -> None:
    """Name each setting that no run of the plan reads."""
    for line in plan.without_effect:
        log.note(line)


def _try_weights(plan: Plan, log: Reporter) -> None:
    """Put each file of weights into its encoder once, so that one that does not fit is refused before anything is trained,
    and say what was found in it."""
    if not plan.weights:
        return
    import torch

    from fairssl.train.build import build_encoder
    from fairssl.train.pretrained import load

    tried = set[str]()
    for run in plan.runs:
        encoder = run.spec.encoder
        file = plan.weights.get((encoder.name, str(encoder.params.get("weights"))))
        if file is None or encoder.canonical_json in tried:
            continue
        tried.add(encoder.canonical_json)
        with torch.random.fork_rng(devices=[]):
            drawn = build_encoder(run.spec, pretrained=False)
        found = load(drawn, encoder.params["weights"], bool(encoder.params.get("partial")), file)
        log.note(f"weights {file}: {found}")


def run_plan(plan: Plan, options: Options, store: RunStore, log: Reporter, stop: GracefulStop) -> Result:
    """Do what is left of a plan and write `table.md` beside the runs; what `fairssl bench` does.

    Runs that failed or diverged, now or in an earlier call, are named at the end with the way out.
    """
    from fairssl.execute.launch import launch

    tell_broken_metrics(log)
    store.unmark_trials(run.spec.key for run in plan.runs)
    launch(plan, store, options, log, stop)
    result = result_of(plan, store, log)
    report_failures(result.failures, log)
    return result


def tell_broken_metrics(log: Reporter) -> None:
    """Name each metric that cannot be imported."""
    from fairssl import kinds

    for cause in kinds.metrics.broken().values():
        log.note(f"left out of the results: {cause}")


MOST_FAILURES = 10  # named one by one


def failures_of(runs: Iterable[Run], store: RunStore) -> list[Failure]:
    """Those of the runs that have a record and did not end well."""
    records = ((run, store.read_record(run.spec.key)) for run in runs)
    return [_failure(run, record, store) for run, record in records if record is not None and record.state != "ok"]


def _failure(run: Run, record: Record, store: RunStore) -> Failure:
    return Failure(run.name, record.state, record.reason, store.result_dir(record.key) / "record.json")


def report_failures(failures: Sequence[Failure], log: Reporter) -> None:
    """Name the runs that failed or diverged, and say how to run them again."""
    if not failures:
        return
    for failure in failures[:MOST_FAILURES]:
        log.note(str(failure))
    more = f" ({len(failures) - MOST_FAILURES} more than are named here)" if len(failures) > MOST_FAILURES else ""
    log.note(
        f"{counted(len(failures), 'run')} failed or diverged{more}; the same command with "
        "--retry-failed (in Python: retry_failed=True) runs them again"
    )


def result_of(
    plan: Plan,
    store: RunStore,
    log: Reporter,
    selections: Mapping[tuple[str, str], Mapping[str, Any]] | None = None,
) -> Result:
    """The tables of a plan whose runs have all ended; writes `table.md`. Says which runs another source code has made.

    A metric that is newer than a record is computed from the run's predictions. `selections`: (label, key) -> by which
    rule a search has just chosen the settings, to be told in place of what earlier searches have noted.
    """
    from fairssl import scoring
    from fairssl.board.markdown import to_markdown
    from fairssl.board.recompute import brought_up_to_date, outdated
    from fairssl.board.rows import Board
    from fairssl.provenance import changed
    from fairssl.store.files import whole_file

    made_otherwise: dict[tuple[str, ...], int] = {}
    metrics = scoring.columns()
    board = Board(order=list(dict.fromkeys(run.label for run in plan.runs)), root=str(store.root))
    failures: list[Failure] = []
    for run in plan.runs:
        record = store.read_record(run.spec.key)
        if record is None:
            raise UserError(f"the result {run.spec.key} is not in {store.root}; run the same command again")
        if record.state != "ok":
            failures.append(_failure(run, record, store))
        names = tuple(changed(record.sources, run.spec))
        made_otherwise[names] = made_otherwise.get(names, 0) + 1
        if outdated(record, metrics) and (kept := store.read_predictions(record.key)) is not None:
            record = brought_up_to_date(record, kept, metrics)
        if selections is not None:
            own = [dict(selections[run.label, run.spec.key])]
            record = record.model_copy(update={"facts": {**record.facts, "selection": own}})
        board.add(record, run.label)
    for names, n in sorted(made_otherwise.items()):
        if names:
            log.note(
                f"{n} of {len(plan.runs)} results were made by other source code of {', '.join(names)}, with the same "
                "version; --force makes them anew, or raise the version where results change"
            )
    tables = tuple(board.tables())
    with whole_file(store.root / "table.md") as file:
        file.write(to_markdown(*tables).encode())
    return Result(plan, store, Tables(tables), tuple(failures))


def _names(value: Names) -> Sequence[str] | None:
    return None if value is None else [value] if isinstance(value, str) else list(value)


def _written(value: Any) -> str:
    """A setting as `--set` writes it."""
    if isinstance(value, list | tuple | Mapping):
        return json.dumps(value)
    return str(value).lower() if isinstance(value, bool) else str(value)
