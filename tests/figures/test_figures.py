"""Figures: drawn from what is stored, the same bytes each time, by hand-checked numbers where there are any."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reference import scored, small

from fairssl import cli
from fairssl.board.load import tables_of
from fairssl.evaluate.during import on_validation
from fairssl.figures.choose import Choice
from fairssl.figures.pareto import weight_of
from fairssl.figures.scores import bucket_shares_of
from fairssl.figures.style import plain, save
from fairssl.figures.tsne import perplexity_for
from fairssl.store.record import Predictions
from fairssl.store.runs import RunStore
from fairssl.train.rng import get_rng_state
from fairssl.types import UserError

pytest.importorskip("matplotlib", reason="matplotlib is not here: the extra `plot`")
WORDS = [
    "--seeds",
    "1",
    "--epochs",
    "2",
    "--image-size",
    "16",
    "--batch-size",
    "16",
    "--annotated",
    "0.3",
    "--workers",
    "1",
]
SETS = [word for text in small.SETS for word in ("--set", text)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two small encoders, the validation split judged after each epoch."""
    root = tmp_path_factory.mktemp("trained")
    call = ["bench", *WORDS, *SETS, "--method", "sogclr,sofclr", "--eval-every", "1", "--out", str(root)]
    assert cli.run(call) == 0
    return root


def pictures(folder: Path) -> set[str]:
    for path in folder.iterdir():
        head = path.read_bytes()[:5]
        assert head == (b"%PDF-" if path.suffix == ".pdf" else b"\x89PNG\r"), path
    return {path.name for path in folder.iterdir()}


def test_scores_and_pareto_are_drawn_from_the_runs_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scored.fill(tmp_path / "runs", ("simclr", "sofclr"), seeds=2)
    for words in (["scores"], ["pareto", "--metric", "DP"]):
        assert cli.run(["plot", *words, str(tmp_path / "runs"), "--out", str(tmp_path / "one")]) == 0
        assert cli.run(["plot", *words, str(tmp_path / "runs"), "--out", str(tmp_path / "two")]) == 0
    place = "synthfaces-attractive-male"
    assert pictures(tmp_path / "one") == {f"{w}-{place}.{k}" for w in ("scores", "pareto_DP") for k in ("png", "pdf")}
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()
    assert str(tmp_path / "one" / f"scores-{place}.png") in capsys.readouterr().out


def test_scores_are_drawn_of_a_board_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same picture as of its runs; what needs more of the runs says so, and writes nothing."""
    scored.fill(tmp_path / "runs", ("simclr",), seeds=1)
    board = tmp_path / "board"
    assert cli.run(["board", "build", str(tmp_path / "runs"), "--out", str(board)]) == 0
    for name in ("runs", "board"):
        assert cli.run(["plot", "scores", str(tmp_path / name)]) == 0
    names = pictures(board / "figures")
    assert len(names) == 2
    for name in names:
        assert (board / "figures" / name).read_bytes() == (tmp_path / "runs" / "figures" / name).read_bytes()
    assert cli.run(["board", "verify", str(board)]) == 0  # a figure beside it is no fault
    capsys.readouterr()
    for what, holds_no in (("curves", "history of the trainings"), ("tsne", "encoders")):
        assert cli.run(["plot", what, str(board), "--out", str(tmp_path / "none")]) == 2
        err = capsys.readouterr().err
        assert f"{board} is a board, which holds no {holds_no}; name the folder that" in err and err.count("\n") == 1
    for path in (board / "predictions").iterdir():
        path.unlink()
    assert cli.run(["plot", "scores", str(board), "--out", str(tmp_path / "none")]) == 2
    assert f"{board} has no predictions of these runs; name the folder" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures that commands save."""
    found: list[Any] = []

    def keep(figure: Any, *rest: Any) -> list[Path]:
        found.append(figure)
        return save(figure, *rest)

    for name in ("scores", "curves", "sheet"):
        monkeypatch.setattr(f"fairssl.figures.{name}.save", keep)
    return found


def test_the_labels_of_scores_fit_their_panels(tmp_path: Path, drawn: list[Any]) -> None:
    scored.fill(tmp_path, ("simclr", "sofclr", "erm"), seeds=1)
    assert cli.run(["plot", "scores", str(tmp_path)]) == 0
    (figure,) = drawn
    sides = [axes for axes in figure.axes if axes.get_ylabel()]
    labels = [axes.yaxis.label for axes in sides]
    assert [label.get_text() for label in labels] == ["all test images", "y = 0", "y = 1\n(attractive)"]
    boxes = [label.get_window_extent() for label in labels]
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
    assert all(box.height < axes.get_window_extent().height for axes, box in zip(sides, boxes, strict=True))
    titles = [axes.title.get_window_extent() for axes in figure.axes if axes.title.get_text()]
    assert len(titles) == 3 and not any(a.overlaps(b) for i, a in enumerate(titles) for b in titles[:i])


def test_bucket_shares_by_hand() -> None:
    """A score of 1 is in the last bucket, one on an edge in the bucket above it."""
    kept = Predictions(["a", "b", "c", "d"], np.array([0.0, 0.5, 1.0, 0.255]), np.array([0, 1, 1, 0]), np.zeros(4, int))
    shares = bucket_shares_of(kept, 0, None)
    assert shares[[0, 25, 50, 99]].tolist() == [0.25] * 4 and shares.sum() == 1
    assert bucket_shares_of(kept, 0, 1)[[50, 99]].tolist() == [0.5, 0.5]
    assert bucket_shares_of(kept, 1, None).sum() == 0


def test_axes_of_percentages_stay_where_percentages_can_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two seeds: a t interval of 13 standard errors on either side."""
    from fairssl.figures import pareto as module

    seen = []
    save = module.save
    monkeypatch.setattr(module, "save", lambda figure, *rest: seen.append(figure.axes[0]) or save(figure, *rest))
    scored.fill(tmp_path, ("simclr", "sofclr"), seeds=2)
    assert cli.run(["plot", "pareto", str(tmp_path)]) == 0
    for low, high in (seen[0].get_xlim(), seen[0].get_ylim()):
        assert -2 <= low < high <= 102


def test_rows_of_one_method_are_in_order_of_their_weight(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    for weight in ("0", "0.5", "2"):
        for run in small.plan(f"sogclr+adversary:{weight}", seeds=2).runs:
            found = scored.predictions(run.spec, 1.0, 1.0 - 0.4 * float(weight))
            store.write_result(scored.record(run.spec, found), found)
    (table,) = tables_of(tmp_path)
    assert sorted(weight_of(row) or 0.0 for row in table.rows) == [0.0, 0.5, 2.0]
    assert cli.run(["plot", "pareto", str(tmp_path)]) == 0
    assert len(pictures(tmp_path / "figures")) == 2


def test_few_samples_have_a_smaller_perplexity() -> None:
    assert [perplexity_for(n) for n in (1000, 91, 40, 4)] == [30.0, 30.0, 13.0, 1.0]


def test_names_that_the_font_lacks_are_drawn() -> None:
    assert plain("a$b_é漢\n\ue123") == "a$b_é? ?"


def test_a_choice_that_has_no_runs_is_told(tmp_path: Path) -> None:
    scored.fill(tmp_path, ("simclr",), seeds=1)
    tables = tables_of(tmp_path)
    with pytest.raises(UserError, match="--method 'simclx' has no runs here; did you mean"):
        Choice(methods=["simclx"]).tables(tables)
    with pytest.raises(UserError, match="--dataset 'celeba' has no runs here"):
        Choice(dataset="celeba").tables(tables)


def test_a_missing_matplotlib_is_told_with_the_way_out(tmp_path: Path) -> None:
    scored.fill(tmp_path / "runs", ("simclr",), seeds=1)
    (tmp_path / "matplotlib.py").write_text("raise ImportError('no')")
    call = [sys.executable, "-m", "fairssl", "plot", "scores", "runs"]
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(call, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "pip install 'fairssl[plot]'" in done.stderr


@pytest.mark.slow
def test_tsne_and_curves_are_drawn_and_train_nothing(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drawn: list[Any]
) -> None:
    monkeypatch.setattr("fairssl.train.step.TrainStep.__call__", None)  # training anything would now fail
    before = {p: p.stat().st_mtime_ns for p in trained.rglob("*") if p.is_file()}
    assert cli.run(["plot", "tsne", str(trained), "--out", str(tmp_path), "--images", "30"]) == 0
    assert cli.run(["plot", "curves", str(trained), "--out", str(tmp_path)]) == 0
    assert len(pictures(tmp_path)) == 4
    figure = drawn[-1]
    assert figure.get_figwidth() < 11 and len(figure.axes) == 5 and len(figure.legends) == 1
    for axes in figure.axes:
        low, high = axes.get_xlim()
        assert all(float(tick).is_integer() for tick in axes.get_xticks() if low <= tick <= high)
    assert before == {p: p.stat().st_mtime_ns for p in trained.rglob("*") if p.is_file()}


@pytest.mark.slow
def test_looking_at_the_validation_split_changes_no_bit(trained: Path, tmp_path: Path) -> None:
    """Encoder, history, predictions and keys are those of a training that was left alone."""
    assert cli.run(["bench", *WORDS, *SETS, "--method", "sogclr,sofclr", "--out", str(tmp_path)]) == 0

    def kept(root: Path, *names: str) -> dict[str, bytes]:
        return {p.relative_to(root).as_posix(): p.read_bytes() for name in names for p in root.rglob(name)}

    names = ("encoder.safetensors", "history.csv", "predictions.csv.gz")
    assert kept(trained, *names) == kept(tmp_path, *names) and len(kept(tmp_path, *names)) == 6
    metrics = {root: {r.key: r.metrics for r in RunStore(root).records()} for root in (trained, tmp_path)}
    assert metrics[trained] == metrics[tmp_path]
    assert len(kept(trained, "validation.csv")) == 2 and not kept(tmp_path, "validation.csv")
    store = RunStore(trained)
    rows = store.read_validation(next(p.name for p in (trained / "pretrain").iterdir()))
    assert [row["epoch"] for row in rows] == [1.0, 2.0]
    assert all(0 <= row["Acc"] <= 1 and 0 <= row["Leak"] <= 1 for row in rows)
    last = {r.key: r.validation for r in store.records()}
    found = sorted(v.metrics["Acc"] for v in last.values() if v is not None and v.metrics["Acc"] is not None)
    ends = sorted(store.read_validation(p.name)[-1]["Acc"] for p in (trained / "pretrain").iterdir())
    assert ends == found  # after the last epoch it is what the record has


def test_a_look_leaves_modes_statistics_and_generators_alone() -> None:
    spec = small.run_of("sofclr").spec
    trainer = small.trainer(spec)
    model = trainer.model
    model.train()
    model.encoder.eval()  # a mode that is not that of training
    modes = [m.training for root in model.modules().values() for m in root.modules()]
    tensors = {name: value.clone() for name, value in model.tensors().items()}
    states = [s.clone() for s in get_rng_state(model.device)]
    found = on_validation(spec, model, small.data(spec))
    assert {"Acc", "ED", "Leak"} <= set(found)
    assert [m.training for root in model.modules().values() for m in root.modules()] == modes
    assert all((value == tensors[name]).all() for name, value in model.tensors().items())
    assert all((a == b).all() for a, b in zip(get_rng_state(model.device), states, strict=True))


def test_a_sheet_of_training_images(tmp_path: Path, capsys: pytest.CaptureFixture[str], drawn: list[Any]) -> None:
    words = ["data", "show", "colored_digits", "--image-size", "16", "--images", "2", "--out", str(tmp_path)]
    assert cli.run(words) == 0
    assert len(pictures(tmp_path)) == 2
    (figure,) = drawn
    said = [text.get_text() for text in figure.texts]
    assert "y = 1 is " in said[-1] and "plain and, below it, augmented" in said[-1]
    boxes = sorted({(round(a.get_position().y0, 6), round(a.get_position().y1, 6)) for a in figure.axes}, reverse=True)
    gaps = [above[0] - below[1] for above, below in pairwise(boxes)]
    assert len(boxes) % 2 == 0 and max(gaps[::2]) < min(gaps[1::2]) / 3  # within a pair, and between pairs
    assert cli.run(["data", "show", "synthfaces", "--attr", "mall"]) == 2
    assert "--attr 'mall': synthfaces has no such attribute" in capsys.readouterr().err


def test_eval_every_below_zero_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["bench", "--eval-every", "-1", "--out", str(tmp_path / "x")]) == 2
    assert "--eval-every -1: must be at least 0" in capsys.readouterr().err
