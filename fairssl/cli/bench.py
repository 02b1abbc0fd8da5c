"""`fairssl bench`: train a grid, judge it, print the table."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fairssl.cli._help import DATA, OUTPUT, TRAINING, WHAT, WHERE
from fairssl.cli._paths import parse_path
from fairssl.cli._table import echo_hanging
from fairssl.machine import eager_asked
from fairssl.plan.estimate import format_duration
from fairssl.progress import reporter
from fairssl.types import UserError, counted

if TYPE_CHECKING:
    from fairssl.benchmark import Result
    from fairssl.execute.options import Options
    from fairssl.execute.reporting import Reporter
    from fairssl.plan.resolve import Plan
    from fairssl.store.runs import RunStore

MANY = "Comma-separated or repeated."
QUOTED = f"{MANY} A name with a comma in it stands in quotes, as '\"a,b\"'."


def bench(
    method: list[str] = typer.Option(
        [], "--method", help=f"simclr, sofclr, byol+adversary:0.3, ... {MANY}", metavar="NAME", rich_help_panel=WHAT
    ),
    dataset: list[str] = typer.Option(
        [],
        "--dataset",
        help=f"synthfaces, colored_digits, utkface, celeba, fairface, folder. {MANY}",
        metavar="NAME",
        rich_help_panel=WHAT,
    ),
    attr: list[str] = typer.Option(
        [], "--attr", help=f"Sensitive attribute. {QUOTED}", metavar="NAME", rich_help_panel=WHAT
    ),
    target: list[str] = typer.Option(
        [], "--target", help=f"What is predicted. {QUOTED}", metavar="NAME", rich_help_panel=WHAT
    ),
    seeds: str | None = typer.Option(
        None,
        "--seeds",
        help="How many, as 4 for seeds 0 to 3; or which, as 3,7; '3,' is one. Default: the card's.",
        metavar="N",
        rich_help_panel=WHAT,
    ),
    encoder: str | None = typer.Option(
        None, "--encoder", help="resnet18, small_cnn, or any timm model.", metavar="NAME", rich_help_panel=WHAT
    ),
    weights: Path | None = typer.Option(
        None,
        "--weights",
        help="A file of weights that the encoder begins with: safetensors or .pth.",
        metavar="FILE",
        parser=parse_path,
        rich_help_panel=WHAT,
    ),
    grid: str | None = typer.Option(
        None,
        "--grid",
        help="A TOML file, or a grid of fairssl's. It names the methods.",
        metavar="NAME",
        rich_help_panel=WHAT,
    ),
    preset: str | None = typer.Option(
        None, "--preset", help="smoke (minutes on a CPU), quick (a tenth), paper.", metavar="NAME", rich_help_panel=WHAT
    ),
    epochs: int | None = typer.Option(
        None, "--epochs", help="Default: the card's, by the preset.", metavar="N", rich_help_panel=TRAINING
    ),
    image_size: int | None = typer.Option(
        None, "--image-size", help="Pixels, at most the stored size.", metavar="N", rich_help_panel=DATA
    ),
    batch_size: int | None = typer.Option(
        None, "--batch-size", help="Images of a step. Default: the card's.", metavar="N", rich_help_panel=TRAINING
    ),
    annotated: float | None = typer.Option(
        None,
        "--annotated",
        help="Share of training images whose group is known.",
        metavar="SHARE",
        rich_help_panel=DATA,
    ),
    set_: list[str] = typer.Option(
        [],
        "--set",
        help="part.parameter=value, as adversary.weight=0.5. Repeat it.",
        metavar="PART.NAME=VALUE",
        rich_help_panel=TRAINING,
    ),
    equal_views: bool | None = typer.Option(
        None,
        "--equal-views/--no-equal-views",
        help="Every method sees as many augmented images per step.",
        rich_help_panel=TRAINING,
    ),
    pairs: str | None = typer.Option(
        None,
        "--pairs",
        help="More than two groups: adjacent, all or max. Default: adjacent if ordered, else all.",
        metavar="NAME",
        rich_help_panel=WHAT,
    ),
    data_dir: Path | None = typer.Option(
        None,
        "--data-dir",
        parser=parse_path,
        metavar="PATH",
        help="Folder or archive. Default: FAIRSSL_DATA, else a per-user folder.",
        rich_help_panel=DATA,
    ),
    pretrain_dataset: str | None = typer.Option(
        None,
        "--pretrain-dataset",
        help="Train encoders on this dataset, and judge them on --dataset. Default: the same.",
        metavar="NAME",
        rich_help_panel=DATA,
    ),
    pretrain_target: str | None = typer.Option(
        None, "--pretrain-target", help="Default: that dataset's card.", metavar="NAME", rich_help_panel=DATA
    ),
    pretrain_attr: str | None = typer.Option(
        None, "--pretrain-attr", help="Default: that dataset's card.", metavar="NAME", rich_help_panel=DATA
    ),
    out: Path = typer.Option(
        Path("runs"),
        "--out",
        parser=parse_path,
        help="Where runs and table.md go.",
        metavar="DIR",
        rich_help_panel=OUTPUT,
    ),
    board: Path | None = typer.Option(
        None,
        "--board",
        parser=parse_path,
        help="Also write the board of all runs in --out to this folder, as `fairssl board build` does.",
        metavar="DIR",
        rich_help_panel=OUTPUT,
    ),
    device: str = typer.Option(
        "auto", "--device", help="auto, cpu, cuda, cuda:1.", metavar="NAME", rich_help_panel=WHERE
    ),
    executor: str = typer.Option(
        "local", "--executor", help="local, ray, slurm.", metavar="NAME", rich_help_panel=WHERE
    ),
    workers: int | None = typer.Option(
        None,
        "--workers",
        help="Processes at once. Default: one per GPU; on a CPU one per core if it pays; Ray: cores, Slurm: 8.",
        metavar="N",
        rich_help_panel=WHERE,
    ),
    pack: str = typer.Option(
        "auto",
        "--pack",
        help="Seeds of a run that share a device: a number, or auto, as many as fill a GPU.",
        metavar="N",
        rich_help_panel=WHERE,
    ),
    devices: int = typer.Option(
        1, "--devices", help="GPUs, or CPU processes, that train each run together.", metavar="N", rich_help_panel=WHERE
    ),
    num_gpus: float | None = typer.Option(
        None, "--num-gpus", help="GPUs per Ray task, as 0.25. Default: 1 if any.", metavar="N", rich_help_panel=WHERE
    ),
    submit: list[str] = typer.Option(
        [],
        "--submit",
        help="A parameter of submitit for Slurm, as timeout_min=600, slurm_partition=gpu, or a list or mapping in JSON: "
        "slurm_setup='[\"module load cuda\"]'. Repeat it.",
        metavar="NAME=VALUE",
        rich_help_panel=WHERE,
    ),
    checkpoint_minutes: float = typer.Option(
        1.0, "--checkpoint-minutes", help="At most that much work is lost.", metavar="N", rich_help_panel=WHERE
    ),
    checkpoint_epochs: int = typer.Option(
        0, "--checkpoint-epochs", help="Also after every so many epochs; 0: not.", metavar="N", rich_help_panel=WHERE
    ),
    eval_every: int = typer.Option(
        0,
        "--eval-every",
        help="Judge the validation split after every so many epochs, for `fairssl plot curves`; changes no result.",
        metavar="N",
        rich_help_panel=WHERE,
    ),
    log: list[str] = typer.Option(
        [], "--log", help=f"tensorboard, wandb, mlflow, besides the CSV. {MANY}", metavar="NAME", rich_help_panel=OUTPUT
    ),
    dry_run: bool = typer.Option(
        False, "--dry-run", help="Print what would run, and run nothing.", rich_help_panel=WHERE
    ),
    estimate: bool = typer.Option(
        False, "--estimate", help="As --dry-run, with the time from a few timed steps.", rich_help_panel=WHERE
    ),
    retry_failed: bool = typer.Option(
        False, "--retry-failed", help="Also run the failed and diverged runs again.", rich_help_panel=WHERE
    ),
    force: bool = typer.Option(
        False, "--force", help="Train and judge everything again, also what is there.", rich_help_panel=WHERE
    ),
    eager: bool = typer.Option(
        False,
        "--eager",
        help="On a GPU, capture and compile nothing, for debugging; as FAIRSSL_EAGER=1 does.",
        rich_help_panel=WHERE,
    ),
    compile_: bool = typer.Option(
        False,
        "--compile",
        help="Compile the augmentation on a CPU too, as on a GPU: for runs of many minutes; needs a C++ compiler.",
        rich_help_panel=WHERE,
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the rows as JSON.", rich_help_panel=OUTPUT),
    all_columns: bool = typer.Option(
        False,
        "--all-columns",
        help="On a terminal too narrow for the table: its other columns too, below it.",
        rich_help_panel=OUTPUT,
    ),
) -> None:
    """Train a grid of methods, datasets, targets and attributes over seeds, and print accuracy and fairness.

    Without arguments: simclr, sogclr and sofclr on the embedded synthfaces. The same call again trains nothing.

    Examples:

        fairssl bench
        fairssl bench --method simclr,sofclr --dataset celeba --attr male,young
        fairssl bench --method byol+adversary:0.3 --set adversary.hidden_dim=256
        fairssl bench --grid paper_celeba --dry-run

    What --set reaches: `fairssl show method NAME`, `fairssl show train`, `fairssl show probe`.
    """
    from fairssl.benchmark import checked_plan, requests_of, tell_without_effect
    from fairssl.execute.options import Options
    from fairssl.execute.submission import parse_submit
    from fairssl.plan.request import Request, parse_seeds, replaced_settings
    from fairssl.store.runs import RunStore

    request = Request(
        methods=names_of("--method", method),
        datasets=names_of("--dataset", dataset),
        attributes=names_of("--attr", attr),
        targets=names_of("--target", target),
        seeds=None if seeds is None else parse_seeds(seeds),
        encoder=encoder,
        preset=preset,
        epochs=epochs,
        image_size=image_size,
        batch_size=batch_size,
        annotated=annotated,
        assignments=set_ or None,
        pretrain_dataset=pretrain_dataset,
        pretrain_target=pretrain_target,
        pretrain_attribute=pretrain_attr,
        equal_views=equal_views,
        pairs=pairs,
        data_dir=data_dir,
        weights=weights,
    )
    if str(out) == ".":
        raise UserError("--out is the current folder itself; name a folder for the runs, as --out runs")
    options = Options(
        device=device,
        executor=executor,
        workers=workers,
        devices=devices,
        pack=_pack(pack),
        num_gpus=num_gpus,
        submit=parse_submit(submit),
        checkpoint_minutes=checkpoint_minutes,
        checkpoint_epochs=checkpoint_epochs,
        eval_every=eval_every,
        loggers=tuple(names_of("--log", log) or ()),
        retry_failed=retry_failed,
        force=force,
        eager=eager or eager_asked(),
        compile=compile_,
    )
    store = RunStore(out)
    requests = requests_of(request, grid)
    with _under_torchrun(options, store, alone=dry_run or estimate) as ours:
        if ours is None:
            return
        with reporter() as log_:
            plan = checked_plan(requests, ours, log_, allow_absent=dry_run or estimate)
            tell_without_effect(plan, log_)
            if dry_run or estimate:
                from fairssl.execute.dry_run import dry_run as describe

                replaced = [] if grid is None else replaced_settings(grid, request)
                for line in replaced:
                    log_.note(line)
                content = {**describe(plan, store, ours, log_, timed=estimate), "replaced": replaced}
                _print_plan(content, as_json)
                return
            result = _run(plan, ours, store, log_)
        print_result(result, as_json, board, all_columns)
    if result.n_failed:
        raise typer.Exit(1)


@contextmanager
def _under_torchrun(options: Options, store: RunStore, alone: bool) -> Iterator[Options | None]:
    """The options; under torchrun as `launch.under_torchrun` gives them."""
    from fairssl.execute.torchrun import torchrun

    if torchrun() is None:
        yield options
        return
    from fairssl.execute.launch import under_torchrun

    with under_torchrun(options, store, alone) as ours:
        yield ours


def _run(plan: Plan, options: Options, store: RunStore, log: Reporter) -> Result:
    """The plan, done; a stop or a lost device ends the command with the code that says so."""
    from fairssl.benchmark import failures_of, report_failures, run_plan
    from fairssl.execute.signals import GracefulStop
    from fairssl.execute.worker import WorkerBroken
    from fairssl.train.trainer import Stopped

    stop = GracefulStop()
    try:
        return run_plan(plan, options, store, log, stop)
    except (Stopped, KeyboardInterrupt) as error:
        print(f"fairssl: {str(error) or 'stopped'}; the same command goes on from here", file=sys.stderr)
        raise typer.Exit(stop.exit_code) from error
    except WorkerBroken as error:
        without = " without --retry-failed" if options.retry_failed else ""
        report_failures(failures_of(plan.runs, store), log)
        print(f"fairssl: {error}; the same command{without} goes on with the rest", file=sys.stderr)
        raise typer.Exit(1) from error


def print_result(result: Result, as_json: bool, board: Path | None = None, all_columns: bool = False) -> None:
    """The table on stdout, as JSON if asked for; `board` is a folder to build a board in. Then where each was written."""
    from fairssl.board.json import to_json_rows
    from fairssl.board.terminal import show

    written = [result.store.root / "table.md"]
    if board is not None:
        from fairssl.board.build import build_folder

        built = build_folder(result.store.root, board)
        written += built.files
        if built.left_out:
            print(built.left_out, file=sys.stderr)
    if as_json:
        typer.echo(json.dumps(to_json_rows(*result.table), indent=2, ensure_ascii=False))
    else:
        show(result.table, whole=all_columns)
    for path in written if sys.stdout.isatty() or board is not None else ():
        print(path, file=sys.stdout if sys.stdout.isatty() else sys.stderr)


def names_of(flag: str, values: list[str]) -> list[str] | None:
    """`["a,b", "c"]` -> `["a", "b", "c"]`, `['"a,b"']` -> `["a,b"]`; None where the flag was not given."""
    from fairssl.spec.method import split_names

    names = [name for value in values for name in split_names(value)]
    if "" in names:
        raise UserError(f"{flag} {','.join(values)!r} names nothing in one place; leave the flag or the comma out")
    return names or None


def _pack(text: str) -> int | None:
    """`--pack` as a number, None for auto."""
    if text == "auto":
        return None
    if not text.isdecimal():
        raise UserError(f"--pack {text!r}: a number of seeds, at least 1, or auto")
    return int(text)


def _print_plan(content: dict[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(content, indent=2))
        return
    echo_hanging(
        "",
        f"{counted(content['runs'], 'run')}, {counted(content['pretrainings'], 'distinct pretraining')}; {content['done']} done, "
        f"{content['failed']} failed or diverged, {content['left']} to run, {content['to_train']} to train",
    )
    for row in content["methods"]:
        echo_hanging(
            f"  {row['method']:16} {row['dataset']:14} ",
            f"{counted(row['pretrainings'], 'pretraining'):>19} -> "
            f"{counted(row['runs'], 'run'):>11} ({row['pairs']} target x attribute, {counted(row['seeds'], 'seed')}); "
            f"{row['left']} to run, {row['to_train']} to train",
        )
    found = content["estimate"]
    timed = found["from"] == "timed steps"
    some = found["unknown"] and found["seconds"] is not None
    without = f", without {counted(found['unknown'], 'pretraining')} of unknown time" if some else ""
    source = "from a few timed steps, training alone" if timed else "from earlier records"
    hint = "; --estimate times a few steps" if found["unknown"] and not timed else ""
    how = f" ({source}, {found['at_once']} at once{without})" if found["seconds"] is not None else ""
    echo_hanging("", f"Estimated time: {format_duration(found['seconds'])}{how}{hint}")
    for dataset, reason in content["absent"].items():
        echo_hanging("", f"{dataset} is not on this machine, its keys are provisional: {reason}")
