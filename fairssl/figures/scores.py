"""Score distributions per group and class, in the 100 buckets that WD and KL see."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fairssl.board.names import printed_name
from fairssl.board.table import Row, Table
from fairssl.figures.choose import first_seed
from fairssl.figures.style import colour, figures, file_name, line, plain, save
from fairssl.scoring import EDGES
from fairssl.store.record import Predictions
from fairssl.store.runs import RunStore
from fairssl.types import UserError

CLASSES = (("all", None), ("y = 0", 0), ("y = 1", 1))


def scores(tables: Sequence[Table], store: RunStore, folder: Path, seed: int | None = None) -> list[Path]:
    """A figure per table: a column per row of it, of one seed; rows for all test images, y = 0 and y = 1.

    What WD and KL compare are the lines at the top: the share of a group's images in each bucket of the score.
    """
    paths: list[Path] = []
    for table in tables:
        found = []
        for row in table.rows:
            at = first_seed(row, seed)
            kept = None if at is None else store.read_predictions(row.keys[at])
            if at is not None and kept is not None:
                found.append((row, at, kept))
        if found:
            paths += _draw(table, found, folder, file_name("scores", table, tables))
    if not paths:
        raise UserError(
            f"{store.root} has no predictions{f' of seed {seed}' if seed is not None else ''}; nothing to draw"
        )
    return paths


def bucket_shares_of(kept: Predictions, code: int, target: int | None) -> np.ndarray:
    """(100,): the share of a group's images, of one class or of both, in each bucket; the last is closed on both sides."""
    chosen = (kept.group == code) & (True if target is None else kept.target == target)
    counts, _ = np.histogram(kept.score[chosen], bins=EDGES)
    return counts / max(int(chosen.sum()), 1)


def _draw(table: Table, found: Sequence[tuple[Row, int, Predictions]], folder: Path, name: str) -> list[Path]:
    with figures() as figure_of:
        figure = figure_of(figsize=(2.6 * len(found) + 0.6, 5.4), layout="constrained")
        panels = figure.subplots(3, len(found), squeeze=False, sharex=True, sharey="row")
        for across, (row, seed, kept) in enumerate(found):
            groups = [str(label) for label in row.facts.get("groups", [])]
            for down, (title, target) in enumerate(CLASSES):
                axes = panels[down][across]
                for code, label in enumerate(groups):
                    shares = bucket_shares_of(kept, code, target)
                    axes.stairs(shares, EDGES, color=colour(code), linestyle=line(code), label=plain(label))
                if across == 0:
                    axes.set_ylabel(f"share of the group, {title}")
                if down == 0:
                    axes.set_title(plain(f"{printed_name(row.label)}, seed {seed}"), fontsize=9)
            panels[-1][across].set_xlabel("score of y = 1")
        panels[0][0].legend(fontsize=8)
        figure.suptitle(plain(table.title), fontsize=9)
        return save(figure, folder, name)
