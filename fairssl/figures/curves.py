"""Training curves: losses, u, and what the validation split gave on the way."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from fairssl.board.names import printed_name
from fairssl.board.table import Row, Table
from fairssl.figures.style import colour, figures, file_name, grid_of, legend_below, line, marker, plain, save
from fairssl.spec.run import RunSpec
from fairssl.store.runs import RunStore
from fairssl.types import UserError

Curve = list[tuple[float, float]]  # epoch, value
Histories = Sequence[tuple[RunSpec, list[dict[str, float]], list[dict[str, float]]]]  # with validation, by seed
FEW = 20  # epochs of which each is marked
_NO_LOSS = ("u", "accuracy", "skipped", "gcl_surrogate")


def curves(tables: Sequence[Table], store: RunStore, folder: Path) -> list[Path]:
    """A figure per table: the objective's loss, the adversary's, SogCLR's `u`, and accuracy and leakage on validation.

    Each line is a row's mean over its seeds. The last two are there where `bench --eval-every` stored them.
    """
    paths: list[Path] = []
    for table in tables:
        rows = [(row, _histories(row, store)) for row in table.rows]
        panels = {
            title: [(row, found) for row, h in rows if (found := _mean(h, pick))] for title, pick in _PANELS.items()
        }
        panels = {title: lines for title, lines in panels.items() if lines}
        if panels:
            paths += _draw(table, panels, folder, file_name("curves", table, tables))
    if not paths:
        raise UserError(f"{store.root} holds no history of these runs; the pretrainings lie in the folder of the runs")
    return paths


def _histories(row: Row, store: RunStore) -> Histories:
    """Spec, history and validation of each seed that has them."""
    found = []
    for key in row.keys.values():
        record = store.read_record(key)
        if record is None or record.state != "ok":
            continue
        try:
            spec = RunSpec.model_validate(record.spec)
        except ValidationError:  # of a protocol that is no more
            continue
        history = store.read_history(spec.pretrain_key)
        if history:
            found.append((spec, history, store.read_validation(spec.pretrain_key)))
    return found


Picked = Mapping[float, float]  # epoch -> value


def _objective(spec: RunSpec, history: Sequence[Mapping[str, float]], validation: object) -> Picked:
    """The objective's loss: of its terms the first that is one, `gcl` for SogCLR, whose own term is a surrogate."""
    prefix = f"{spec.method.objective.name}."
    terms = [n for n in history[0] if n.startswith(prefix) and n.removeprefix(prefix) not in _NO_LOSS]
    return _column(history, terms[0]) if terms else {}


def _column(history: Sequence[Mapping[str, float]], name: str) -> Picked:
    return {row["epoch"]: row[name] for row in history if name in row and math.isfinite(row[name])}


def _of_history(suffix: str) -> Callable[..., Picked]:
    def pick(spec: RunSpec, history: Sequence[Mapping[str, float]], validation: object) -> Picked:
        name = next((n for n in history[0] if n.endswith(suffix)), None)
        return {} if name is None else _column(history, name)

    return pick


def _of_validation(name: str) -> Callable[..., Picked]:
    def pick(spec: RunSpec, history: object, validation: Sequence[Mapping[str, float]]) -> Picked:
        return {epoch: 100 * value for epoch, value in _column(validation, name).items()}

    return pick


_PANELS: Mapping[str, Callable[..., Picked]] = {
    "Loss of the objective": _objective,
    "Adversarial loss (cross-entropy of D)": _of_history("adversary.cross_entropy"),
    "u (mean over images)": _of_history(".u"),
    "Accuracy on validation (x 100)": _of_validation("Acc"),
    "Leakage on validation (x 100)": _of_validation("Leak"),
}


def _mean(histories: Histories, pick: Callable[..., Picked]) -> Curve:
    """The mean over the seeds at each epoch that all of them have."""
    each = [found for spec, history, validation in histories if (found := pick(spec, history, validation))]
    epochs = sorted(set.intersection(*(set(found) for found in each))) if each else []
    return [(epoch, math.fsum(found[epoch] for found in each) / len(each)) for epoch in epochs]


def _draw(table: Table, panels: Mapping[str, Sequence[tuple[Row, Curve]]], folder: Path, name: str) -> list[Path]:
    labels = list(dict.fromkeys(row.label for lines in panels.values() for row, _ in lines))
    with figures() as figure_of:
        down, across = grid_of(len(panels), most=3)
        figure = figure_of(figsize=(3.3 * across, 2.6 * down + 0.6), layout="constrained")
        places = list(figure.subplots(down, across, squeeze=False).flat)
        for axes in places[len(panels) :]:
            axes.remove()
        for axes, (title, lines) in zip(places, panels.items(), strict=False):
            for row, curve in lines:
                at = labels.index(row.label)
                points = marker(at) if len(curve) <= FEW else ""
                xs, ys = [x for x, _ in curve], [y for _, y in curve]
                axes.plot(
                    xs,
                    ys,
                    color=colour(at),
                    linestyle=line(at),
                    marker=points,
                    markersize=4,
                    label=plain(printed_name(row.label)),
                )
            axes.set_title(title, fontsize=9)
            axes.set_xlabel("epoch")
            axes.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
        legend_below(figure)
        figure.suptitle(plain(table.title), fontsize=9)
        return save(figure, folder, name)
