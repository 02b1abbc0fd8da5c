"""Every option of every command, as a user types it: one session of real processes in one folder, and a count of them."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import timm
import torch
import typer
from reference.command import fairssl
from safetensors.torch import save_file

from fairssl.cli import application

SIZES = ("data.n_train=120", "data.n_val_per_cell=20", "data.n_test_per_cell=40", "encoder.width=4")
SETS = " ".join(f"--set {one}" for one in SIZES)
TINY = f"--encoder small_cnn --preset smoke --epochs 2 --image-size 16 --batch-size 24 --annotated 0.25 {SETS}"
FACES = "--dataset synthfaces --target attractive --attr male"
BENCH = f"bench --method simclr,sofclr {FACES} --seeds 2 {TINY}"


@dataclass(frozen=True)
class Step:
    """A command line, and what is then to be seen of it."""

    words: str
    shows: tuple[str, ...] = ()  # in stdout
    makes: tuple[str, ...] = ()  # files; a star stands for anything
    says: tuple[str, ...] = ()  # in stderr
    code: int = 0
    stdout_json: bool = False


SESSION = (
    Step(
        f"{BENCH} --no-equal-views --pairs all --device cpu --executor local --workers 2 --pack 1 --devices 1 "
        "--checkpoint-minutes 0.5 --checkpoint-epochs 1 --eval-every 1 --eager --log tensorboard --out runs --board boards/mine",
        ("| simclr", "| sofclr"),
        ("runs/table.md", "boards/mine/index.html", "boards/mine/manifest.json", "runs/logs/tensorboard/*"),
    ),
    Step(f"{BENCH} --pairs all --out runs --all-columns", ("| simclr", "WD")),
    Step(f"{BENCH} --pairs all --out runs --compile", ("| simclr",)),
    Step(f"{BENCH} --pairs all --out runs --retry-failed --json", ('"method": "simclr"',), stdout_json=True),
    Step(f"bench --method simclr {FACES} --seeds 0, {TINY} --pairs all --out runs --force", ("| simclr",)),
    Step(f"{BENCH} --out runs --dry-run --estimate", ("4 runs",), says=()),
    Step(
        f"bench --method simclr {FACES} --seeds 1 {TINY} --out other --pretrain-dataset synthfaces --pretrain-target big_nose "
        "--pretrain-attr young --equal-views --dry-run --json",
        ('"runs": 1',),
        stdout_json=True,
    ),
    Step("bench --grid smoke --dry-run --out other", ("12 runs",)),
    Step(
        "bench --dataset utkface --data-dir missing --method simclr --out other",
        says=("--data-dir", "missing"),
        code=2,
    ),
    Step(
        f"bench --method random {FACES} --seeds 1 --encoder resnet10t --weights resnet10t.safetensors --image-size 16 "
        "--set data.n_train=120 --set data.n_val_per_cell=20 --set data.n_test_per_cell=40 --out weights",
        ("resnet10t",),
    ),
    Step("bench --executor ray --num-gpus -1 --out other", says=("--num-gpus -1",), code=2),
    Step("bench --executor slurm --submit nothing --out other", says=("--submit",), code=2),
    Step("status runs", ("4",)),
    Step("status runs --json", stdout_json=True),
    Step(
        "board build runs --out boards/again --all-columns",
        ("boards/again/table.md",),
        ("boards/again/table.tex", "boards/again/table.csv"),
    ),
    Step("board build runs --out boards/grid --grid smoke", says=("smoke",), code=2),
    Step("board verify boards/again", ("no fault",)),
    Step("board verify boards/again --resample --json", stdout_json=True),
    Step("board export runs --out bundle.zip", makes=("bundle.zip",)),
    Step("board export runs --out grid.zip --grid smoke", says=("smoke",), code=2),
    Step("board add bundle.zip --runs taken", makes=("taken/*",)),
    Step("board compare boards/again --paper", ("no row of boards/again",)),
    Step("board compare boards/again --paper --json", stdout_json=True),
    Step("board compare boards/again --row simclr --row sofclr --samples 20", ("Difference: simclr less sofclr",)),
    Step("board index boards --readme readme.md", makes=("boards/README.md",)),
    Step(
        "plot pareto runs --metric DP --dataset synthfaces --target attractive --attr male --method simclr,sofclr --out figures",
        makes=("figures/*pareto*.png", "figures/*pareto*.pdf"),
    ),
    Step(
        "plot curves runs --dataset synthfaces --target attractive --attr male --method sofclr --out figures",
        makes=("figures/*curves*.png",),
    ),
    Step(
        "plot scores runs --seed 1 --dataset synthfaces --target attractive --attr male --method simclr --out figures",
        makes=("figures/*scores*.png",),
    ),
    Step(
        "plot tsne runs --images 60 --seed 1 --data-dir here --dataset synthfaces --target attractive --attr male "
        "--method simclr --out figures",
        makes=("figures/*tsne*.png",),
    ),
    Step("data list", ("synthfaces",)),
    Step("data list --data-dir here --json", stdout_json=True),
    Step(
        f"data prepare synthfaces --data-dir here --target attractive --attr male --image-size 16 --set {SIZES[0]} --json",
        stdout_json=True,
    ),
    Step(f"data verify synthfaces --target big_nose --attr young --image-size 16 --set {SIZES[0]}", ("synthfaces",)),
    Step("data verify synthfaces --data-dir here --json", stdout_json=True),
    Step(
        f"data show synthfaces --data-dir here --target attractive --attr male --image-size 16 --set {SIZES[0]} --images 3 "
        "--out figures",
        makes=("figures/*synthfaces*.png",),
    ),
    Step("data describe faces --table faces/labels.csv --target smiling --attr gender", ("smiling", "gender")),
    Step("data describe faces --set data.bin=age:35+60 --json", stdout_json=True),
    Step(
        "score predictions.csv --target y --score p --group a --groups a,b,c --ordered --pairs adjacent --undefined omit "
        "--bootstrap 100 --noise-floor 20 --readings",
        ("ED", "Acc"),
    ),
    Step("score predictions.csv --target y --score p --group a --nominal --pairs max --json", stdout_json=True),
    Step(
        f"tune --method simclr {FACES} --trials 2 --rule paper --reference simclr --tune-seeds 1 --seeds 1 --retry-failed {TINY} "
        "--data-dir here --device cpu --workers 1 --out tuned --json",
        ('"choices"',),
        stdout_json=True,
    ),
    Step("board build tuned --out tuned_board --trials", makes=("tuned_board/table.md",)),
    Step("list methods", ("sofclr",)),
    Step("list --json", stdout_json=True),
    Step("show method sofclr", ("annotated",)),
    Step("show metric ed --json", stdout_json=True),
    Step("new head mine --into here", makes=("here/*",)),
    Step("check metric ed --only json", code=2, says=("no check 'json'",)),
    Step("check dataset synthfaces --data-dir here", code=2, says=("--data-dir", "reads no files")),
    Step("check metric ed --json", stdout_json=True),
    Step("doctor", ("torch",)),
    Step(
        "doctor --gpu",
        ("captured",) if torch.cuda.is_available() else ("torch finds no GPU",),
        code=0 if torch.cuda.is_available() else 1,
    ),
    Step("doctor --json", stdout_json=True),
    Step("--version", ("fairssl ",)),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the session happens: predictions, a folder of images with a table, an empty data folder, a README with markers."""
    from PIL import Image

    root = tmp_path_factory.mktemp("session")
    rng = np.random.default_rng(0)
    pd.DataFrame({"y": rng.integers(0, 2, 90), "p": rng.random(90).round(3), "a": ["a", "b", "c"] * 30}).to_csv(
        root / "predictions.csv", index=False
    )
    (root / "faces").mkdir()
    (root / "here").mkdir()
    with (root / "faces" / "labels.csv").open("w", newline="") as file:
        write = csv.writer(file)
        write.writerow(["file", "smiling", "gender", "age"])
        for i in range(40):
            Image.fromarray(rng.integers(0, 255, (24, 24, 3), dtype=np.uint8)).save(root / "faces" / f"{i}.png")
            write.writerow([f"{i}.png", ["yes", "no"][i % 2], ["woman", "man"][i // 2 % 2], 20 + i])
    save_file(timm.create_model("resnet10t", num_classes=0).state_dict(), root / "resnet10t.safetensors")
    (root / "readme.md").write_text("<!-- board mine -->\n<!-- end of board -->\n")
    return root


def commands(group: typer.core.TyperGroup | object, path: str = "") -> Iterator[tuple[str, list[list[str]]]]:
    """Each command with its options, each option with all its spellings."""
    for name, command in sorted(getattr(group, "commands", {}).items()):
        if getattr(command, "commands", None):
            yield from commands(command, f"{path}{name} ")
        else:
            options = [one for one in command.params if one.param_type_name == "option"]
            yield f"{path}{name}", [[flag] for one in options for flag in (one.opts[0], *one.secondary_opts)]


def test_the_session_has_every_option_of_every_command() -> None:
    typed = [set(step.words.split()) for step in SESSION]
    missing = []
    for command, options in commands(typer.main.get_command(application())):
        words = set(command.split())
        steps = [
            one for step, one in zip(SESSION, typed, strict=True) if step.words.startswith(command) and words <= one
        ]
        assert steps, f"no step of the session has {command}"
        missing += [
            f"{command} {flag}" for (flag,) in options if flag != "--help" and not any(flag in one for one in steps)
        ]
    assert not missing


@pytest.mark.slow
@pytest.mark.parametrize("step", SESSION, ids=lambda step: step.words[:60])
def test_a_step_of_the_session(step: Step, folder: Path) -> None:
    code, out, err = fairssl(*step.words.split(), cwd=folder)
    assert code == step.code, err or out
    for text in step.shows:
        assert text in out
    for text in step.says:
        assert text in err
    for pattern in step.makes:
        assert list(folder.glob(pattern)), f"no {pattern}"
    if step.stdout_json:
        json.loads(out)
    if step.code == 2:
        assert len(err.splitlines()) == 1
