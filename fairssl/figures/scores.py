"""Score distributions per group and class, in the 100 buckets that WD and KL see."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from fairssl.board.names import printed_name
from fairssl.board.table import Row, Table
from fairssl.figures.choose import first_seed
from fairssl.figures.style import colour, figures, file_name, legend_below, line, plain, save, wrapped
from fairssl.scoring import EDGES
from fairssl.store.record import Predictions
from fairssl.types import UserError

CLASSES = (None, 0, 1)
OfRun = Callable[[str], Predictions | None]


def scores(
    tables: Sequence[Table], predictions_of: OfRun, where: Path, folder: Path, seed: int | None = None
) -> list[Path]:
    """A figure per table: a column per row of it, of one seed; rows for all test images, y = 0 and y = 1.

    `predictions_of` gives those of a run by its key, None where there are none; they lie in `where`, which errors name.

    What WD and KL compare are the lines at the top: the share of a group's images in each bucket of the score.
    """
    paths: list[Path] = []
    for table in tables:
        found = []
        for row in table.rows:
            at = first_seed(row, seed)
            kept = None if at is None else predictions_of(row.keys[at])
            if at is not None and kept is not None:
                found.append((row, at, kept))
        if found:
            paths += _draw(table, found, folder, file_name("scores", table, tables))
    if not paths:
        raise UserError(
            f"{where} has no predictions{f' of seed {seed}' if seed is not None else ''} of these runs; "
            "name the folder of the runs, or a board with predictions"
        )
    return paths


def bucket_shares_of(kept: Predictions, code: int, target: int | None) -> np.ndarray:
    """(100,): the share of a group's images, of one class or of both, in each bucket; the last is closed on both sides."""
    chosen = (kept.group == code) & (True if target is None else kept.target == target)
    counts, _ = np.histogram(kept.score[chosen], bins=EDGES)
    return counts / max(int(chosen.sum()), 1)


def class_name(target: int | None, positive: object) -> str:
    """`y = 1 (attractive)`, short enough for the side of a panel."""
    if target is None:
        return "all test images"
    return f"y = {target}" + (f"\n({wrapped(str(positive), 20)})" if target == 1 and positive else "")


def _draw(table: Table, found: Sequence[tuple[Row, int, Predictions]], folder: Path, name: str) -> list[Path]:
    with figures() as figure_of:
        figure = figure_of(figsize=(2.6 * len(found) + 0.8, 5.8), layout="constrained")
        panels = figure.subplots(3, len(found), squeeze=False, sharex=True, sharey="row")
        for across, (row, seed, kept) in enumerate(found):
            groups = [str(label) for label in row.facts.get("groups", [])]
            for down, target in enumerate(CLASSES):
                axes = panels[down][across]
                for code, label in enumerate(groups):
                    shares = bucket_shares_of(kept, code, target)
                    axes.stairs(shares, EDGES, color=colour(code), linestyle=line(code), label=plain(label))
                if across == 0:
                    axes.set_ylabel(class_name(target, row.facts.get("positive")))
                if down == 0:
                    axes.set_title(wrapped(f"{printed_name(row.label)}, seed {seed}", 32), fontsize=9)
            panels[-1][across].set_xlabel("score of y = 1")
        figure.supylabel("share of the group's images in a bucket", fontsize=9)
        legend_below(figure)
        figure.suptitle(plain(table.title), fontsize=9)
        return save(figure, folder, name)
