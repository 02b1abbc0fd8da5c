"""Stages of one run, in seconds, and what a run costs outside its training loop; with `--table`, a slice of a whole table.

    python benchmarks/perf/stages.py --method sofclr [--dataset utkface --data-dir DIR] [--json stages.json]
    python benchmarks/perf/stages.py --shape utkface      drawn images of UTKFace's numbers and size
    python benchmarks/perf/stages.py --table [--shape utkface]

Without `--table`, three parts:
each stage by itself, through the pipeline's own functions, with what a process pays once (imports, kernels chosen);
the same run once more, as `fairssl bench` does it (`Worker.run`: claim, training, evaluation, every file);
`outside` = data opened again + that whole run - its training loop. Opened again means: from the pack that is there; drawn
datasets have none and are drawn anew, so theirs is left out.
Compiling and capturing are in the first epoch, and so in no `outside`.

`--table`: five methods x 4 seeds by `fairssl bench` itself, one attribute and few epochs, and from its records the
time of 2 attributes and 100 epochs: extrapolated, not measured.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from outcome import Outcome, arguments, count, now, script, timed

from fairssl import scoring
from fairssl.data.device import pick_device
from fairssl.data.places import fresh_cache
from fairssl.data.splits import SplitsCache, run_data
from fairssl.evaluate.embed import embed_splits
from fairssl.evaluate.leakage import leakage
from fairssl.evaluate.probe import fit_probe
from fairssl.execute.jobs import Job
from fairssl.execute.options import Settings
from fairssl.execute.reporting import SilentReporter
from fairssl.execute.signals import GracefulStop
from fairssl.execute.worker import Worker
from fairssl.plan.request import Request
from fairssl.plan.resolve import Plan, Run, resolve
from fairssl.store.record import Record
from fairssl.store.runs import RunStore
from fairssl.train.trainer import Trainer, build_trainer

UTKFACE = ("data.n_train=10000", "data.n_val_per_cell=676", "data.n_test_per_cell=676")
TABLE = "simclr,sogclr,byol,simclr+ccl,sofclr"
TABLE_ATTRIBUTES, TABLE_EPOCHS = 2, 100


def request(options: argparse.Namespace) -> Request:
    shaped = options.shape == "utkface"
    return Request(
        (options.method,),
        ("synthfaces" if shaped else options.dataset,),
        (options.attr,) if options.attr else (),
        seeds=1,
        encoder=options.encoder,
        epochs=options.epochs,
        image_size=64 if shaped else options.image_size,
        batch_size=options.batch_size,
        annotated=0.05 if shaped else None,
        assignments=(*(UTKFACE if shaped else ()), f"train.precision={options.precision}", *options.set),
        data_dir=options.data_dir,
    )


def epochs_of(trainer: Trainer, device: torch.device) -> list[float]:
    """Seconds of each epoch. The end of one reads its sums back, so the clock is right without waiting more often."""
    seconds, started, steps = [], now(device), trainer.advance()
    for _ in range(trainer.n_epochs):
        for _ in itertools.islice(steps, trainer.steps_per_epoch):
            pass
        seconds.append(now(device) - started)
        started += seconds[-1]
    return seconds


def by_itself(plan: Plan, device: torch.device, outcome: Outcome) -> tuple[SplitsCache, dict[str, float]]:
    """Every stage of the plan's one run, a row each; the data."""
    spec = plan.runs[0].spec
    found: dict[str, float] = {}

    def row(stage: str, seconds: float, note: str = "") -> None:
        found[stage] = seconds
        outcome.add(stage=stage, seconds=seconds, note=note)

    cache = SplitsCache(plan.roots)
    embedded_data = plan.roots[spec.data.dataset] is None
    first = "drawn" if embedded_data else "decoded"
    row("load, first", timed(lambda: cache.get(spec.data))[0], first)
    if not embedded_data:
        cache = SplitsCache(plan.roots)
        row("load, again", timed(lambda: cache.get(spec.data))[0], "from the pack")
    splits = cache.get(spec.data)
    data = run_data(splits, spec.data.attribute, spec.annotated, spec.seed)
    seconds, trainer = timed(lambda: build_trainer(spec, data, device), device)
    row("build", seconds, "networks, optimisers, images to the device")
    epochs = epochs_of(trainer, device)
    row("epoch, first", epochs[0], "with warm-up and capture")
    row("epoch, later", statistics.median(epochs[1:]), f"median of {len(epochs) - 1}, {trainer.steps_per_epoch} steps")
    seconds, f = timed(lambda: embed_splits(trainer.model, splits), device)
    row("embed", seconds, f"{len(splits.train):,} + {len(splits.val):,} + {len(splits.test):,} images")
    seconds, score = timed(lambda: fit_probe(f["train"], torch.from_numpy(splits.train.target), spec.probe, 0), device)
    row("probe", seconds, f"{spec.probe.kind}, {f['train'].shape[1]} features")
    predicted = score(f["test"]).double().cpu().numpy()
    judged = scoring.check_outcome(predicted, splits.test.target, splits.test.group, splits.groups)
    groups = splits.train.group, splits.test.group
    row(
        "leakage", timed(lambda: leakage(f["train"], groups[0], f["test"], groups[1]), device)[0], "logistic regression"
    )
    row("metrics", timed(lambda: scoring.evaluate(judged))[0])
    row("bootstrap", timed(lambda: scoring.bootstrap(judged))[0], "1,000 replicates")
    row("noise floor", timed(lambda: scoring.noise_floor(judged))[0], "200 permutations")
    return cache, found


def as_bench_does(run: Run, cache: SplitsCache, settings: Settings, folder: Path, outcome: Outcome) -> float:
    """The run by a `Worker` into an empty folder; seconds outside its training loop."""
    store = RunStore(folder / "runs")
    store.create()
    worker = Worker(store, settings, SilentReporter(), GracefulStop())
    worker.splits = cache
    whole, _ = timed(lambda: worker.run([Job(run.spec.pretrain_key, (run,))]), worker.device)
    record, predictions = store.read_record(run.spec.key), store.read_predictions(run.spec.key)
    if record is None or record.state != "ok":
        raise SystemExit(f"the run did not end well: {record.error if record else 'no record'}")
    training = record.timings["train_seconds"]
    outcome.add(stage="whole run", seconds=whole, note="by a worker, the data being there")
    outcome.add(stage="of it, training loop", seconds=training, note="with warm-up and capture")
    outcome.add(stage="of it, the rest", seconds=whole - training, note="")
    weights = store.read_pretrain(run.spec.pretrain_key)
    assert weights is not None
    again = RunStore(folder / "again")
    again.create()
    writing = timed(lambda: again.write_pretrain(run.spec.pretrain_key, {"spec": {}}, *weights))[0]
    writing += timed(lambda: again.write_result(record, predictions))[0]
    outcome.add(stage="of the rest, writing", seconds=writing, note="encoder, history, record, predictions")
    return whole - training


def one_run(options: argparse.Namespace) -> None:
    device = pick_device(options.device)
    outcome = Outcome(__file__, options, device)
    with tempfile.TemporaryDirectory() as folder, fresh_cache():
        seconds, plan = timed(lambda: resolve(request(options)))
        outcome.add(stage="plan", seconds=seconds, note="the data found, its fingerprint")
        run = plan.runs[0]
        outcome.say(
            run={
                "method": run.label,
                "dataset": run.spec.data.dataset,
                "encoder": run.spec.encoder.name,
                "image_size": run.spec.data.image_size,
                "batch_size": run.spec.train.batch_size,
                "precision": run.spec.train.precision,
            }
        )
        cache, found = by_itself(plan, device, outcome)
        settings = Settings(plan.roots, device=str(device))
        rest = as_bench_does(run, cache, settings, Path(folder), outcome)
        outcome.say(outside=rest + found.get("load, again", 0.0))


# --------------------------------------------------------------------------- the table


def bench(options: argparse.Namespace, runs: Path) -> list[str]:
    """The command of a user who wants the slice."""
    shaped = options.shape == "utkface"
    asked = {
        "method": TABLE,
        "dataset": "synthfaces" if shaped else options.dataset,
        "attr": options.attr,
        "seeds": options.seeds,
        "encoder": options.encoder,
        "epochs": options.epochs,
        "image-size": 64 if shaped else options.image_size,
        "batch-size": options.batch_size,
        "annotated": 0.05 if shaped else None,
        "data-dir": options.data_dir,
        "device": options.device,
        "pack": options.pack,
        "out": runs,
    }
    flags = [word for name, value in asked.items() if value is not None for word in (f"--{name}", str(value))]
    sets = (*(UTKFACE if shaped else ()), f"train.precision={options.precision}", *options.set)
    return [sys.executable, "-m", "fairssl", "bench", *flags, *(w for text in sets for w in ("--set", text)), "--json"]


def table(options: argparse.Namespace) -> None:
    device = pick_device(options.device)
    outcome = Outcome(__file__, options, device)
    with tempfile.TemporaryDirectory() as folder:
        runs = Path(folder) / "runs"
        command = bench(options, runs)
        whole, code = timed(lambda: ended(command, options.limit))
        records = [record for record in RunStore(runs).records() if record.state == "ok"] if runs.exists() else []
    training = longer = 0.0
    for method in TABLE.split(","):
        own = [record for record in records if record.spec["method"]["name"] == method]
        if not own:
            continue
        seconds = sum(record.timings["train_seconds"] for record in own)
        training += seconds
        longer += sum(of_epochs(record, TABLE_EPOCHS) for record in own)
        outcome.add(
            method=method,
            runs=len(own),
            packed=max(int(record.timings.get("packed", 1)) for record in own),
            epochs=options.epochs,
            training_seconds=seconds,
            evaluation_seconds=sum(record.timings["evaluate_seconds"] for record in own),
        )
    if code != 0 or len(records) != 5 * options.seeds:  # what there is has been told
        raise SystemExit(f"the slice did not end well (exit {code}), {len(records)} runs did: {' '.join(command)}")
    rest = whole - training
    outcome.say(slice_seconds=whole, training_seconds=training, other_seconds=rest)
    outcome.say(
        extrapolated_to=f"{TABLE_ATTRIBUTES} attributes, {TABLE_EPOCHS} epochs: extrapolated, not measured",
        extrapolated_seconds=TABLE_ATTRIBUTES * (longer + rest),
    )


def ended(command: list[str], limit: float | None) -> int:
    """The command's exit code; asked to stop once `limit` seconds have passed."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        process.terminate()
        return process.wait()


def of_epochs(record: Record, n: int) -> float:
    """Seconds of the record's training if it had n epochs. What the first one pays once is not multiplied where the record
    tells it apart; else the result is too high."""
    took, epochs = record.timings["train_seconds"], record.spec["train"]["epochs"]
    first = record.timings.get("first_epoch_seconds", took / epochs)
    return first + (took - first) / (epochs - 1) * (n - 1)


def main() -> None:
    on_gpu = torch.cuda.is_available()
    parser = arguments(__doc__)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--limit", type=float, help="seconds after which the table's slice is cut off")
    parser.add_argument("--method", default="sofclr", help="of the one run; its probe must be the linear one")
    parser.add_argument("--dataset", default="synthfaces")
    parser.add_argument("--shape", choices=["utkface"], help="draw as many and as large images as UTKFace gives")
    parser.add_argument("--attr")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--encoder", default="resnet18" if on_gpu else "small_cnn")
    parser.add_argument("--precision", choices=["bf16", "float32"], default="bf16" if on_gpu else "float32")
    parser.add_argument("--image-size", type=count)
    parser.add_argument("--batch-size", type=count, default=128 if on_gpu else None)
    parser.add_argument("--epochs", type=count, help="default: 3 for one run, 10 on a GPU and 2 on a CPU for the table")
    parser.add_argument("--seeds", type=count, default=4, help="of the table")
    parser.add_argument("--pack", help="of the table: seeds at once, as bench takes it")
    parser.add_argument("--set", action="append", default=[], help="as bench takes it")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    if options.epochs is None:
        options.epochs = (10 if on_gpu else 2) if options.table else 3
    if options.epochs < 2:
        parser.error("--epochs 1: at least 2, since the first one also compiles and captures")
    if options.table:
        table(options)
    else:
        one_run(options)


if __name__ == "__main__":
    script(main)
