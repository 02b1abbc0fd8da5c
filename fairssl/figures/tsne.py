"""t-SNE of test features: what the encoder tells apart, the target or the group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import ValidationError

from fairssl.board.names import printed_name
from fairssl.board.table import Row, Table
from fairssl.figures.choose import first_seed
from fairssl.figures.style import colour, figures, file_name, grid_of, marker, plain, save
from fairssl.spec.run import DataSpec, RunSpec
from fairssl.store.runs import RunStore
from fairssl.types import Progress, Splits, UserError, silent

PERPLEXITY = 30.0


@dataclass(frozen=True)
class Features:
    """Of one row and seed: `f` (N, F), `target` and `group` (N,), and the labels of the groups."""

    row: Row
    seed: int
    f: np.ndarray
    target: np.ndarray
    group: np.ndarray
    groups: tuple[str, ...]


def tsne(
    tables: Sequence[Table],
    store: RunStore,
    folder: Path,
    data_dir: Path | None = None,
    n: int = 1000,
    seed: int | None = None,
    progress: Progress = silent,
) -> list[Path]:
    """A figure per table, a panel per row: `n` test images by t-SNE of what the probe sees; colour is the group, shape the
    target, as in the paper's figure. The stored encoder embeds the images; nothing is trained. The dataset must be here.
    """
    paths: list[Path] = []
    for table in tables:
        found = []
        for row in table.rows:
            at = first_seed(row, seed)
            one = None if at is None else features_of(row, at, store, data_dir, n, progress)
            if one is not None:
                found.append(one)
        if found:
            paths += _draw(table, found, folder, file_name("tsne", table, tables))
    if not paths:
        raise UserError(f"{store.root} has no encoder of these runs; the pretrainings lie in the folder of the runs")
    return paths


def features_of(
    row: Row, seed: int, store: RunStore, data_dir: Path | None, n: int, progress: Progress = silent
) -> Features | None:
    """The representation of `n` test images of known group, the same for every method; None without a stored encoder."""
    import torch

    from fairssl import kinds
    from fairssl.data.overview import root_of
    from fairssl.data.splits import load_splits, run_data
    from fairssl.evaluate.embed import embed
    from fairssl.evaluate.judge import transformed
    from fairssl.train.rng import preserved
    from fairssl.train.trainer import build_trainer
    from fairssl.types import Split

    record = store.read_record(row.keys[seed])
    try:
        spec = None if record is None else RunSpec.model_validate(record.spec)
    except ValidationError:  # of a protocol that is no more
        spec = None
    kept = None if spec is None else store.read_pretrain(spec.pretrain_key)
    if spec is None or kept is None:
        return None

    def load(which: DataSpec) -> Splits:
        source = kinds.datasets.build(which.dataset, which.params)
        return load_splits(which, root_of(source, data_dir), progress)

    device = torch.device("cpu")
    splits = load(spec.data)
    data = run_data(splits, spec.data.attribute, spec.annotated, spec.seed)
    with preserved(device):
        trained_on = data
        if spec.pretrain is not None:
            trained_on = run_data(load(spec.pretrain), spec.pretrain.attribute, spec.annotated, spec.seed)
        model = build_trainer(spec, trained_on, device).model
        model.load(kept[0])
        model.train(False)
        known = np.flatnonzero(splits.test.group >= 0)
        rows = np.sort(np.random.default_rng(0).permutation(known)[:n])
        test = splits.test
        some = Split(test.images[rows], test.target[rows], test.group[rows], [test.ids[i] for i in rows])
        features = {"test": embed(model.encoder, model.objective.represent, some, device, progress=progress)}
        if any(not kinds.heads.get(head.name).streams for head in spec.method.heads):  # fitted after training
            features["train"] = embed(model.encoder, model.objective.represent, splits.train, device, progress=progress)
            features = transformed(spec, model, features, data)
    return Features(row, seed, features["test"].numpy(), some.target, some.group, splits.groups)


def perplexity_for(n: int) -> float:
    """30, or less for few samples: a third of the others, as the method needs three times as many neighbours."""
    return min(PERPLEXITY, max(1.0, (n - 1) / 3))


def _draw(table: Table, found: Sequence[Features], folder: Path, name: str) -> list[Path]:
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    n_rows, n_columns = grid_of(len(found))
    with figures() as figure_of:
        figure = figure_of(figsize=(2.7 * n_columns, 2.7 * n_rows + 0.7), layout="constrained")
        panels = figure.subplots(n_rows, n_columns, squeeze=False).ravel()
        said = ""
        for axes, one in zip(panels, found, strict=False):
            perplexity = perplexity_for(len(one.f))
            said = f"{len(one.f)} test images, perplexity {perplexity:g}"
            if perplexity < PERPLEXITY:
                said += f" (reduced from {PERPLEXITY:g}: few images)"
            with threadpool_limits(1):
                start = "pca" if min(one.f.shape) >= 2 and one.f.std() > 0 else "random"
                flat = TSNE(perplexity=perplexity, init=start, random_state=0).fit_transform(one.f.astype(np.float32))
            for code, label in enumerate(one.groups):
                for target in (0, 1):
                    at = (one.group == code) & (one.target == target)
                    style = {"color": colour(code), "marker": marker(target), "s": 8, "alpha": 0.65, "linewidths": 0}
                    axes.scatter(flat[at, 0], flat[at, 1], label=plain(f"{label}, y = {target}"), **style)
            axes.set_title(plain(f"{printed_name(one.row.label)}, seed {one.seed}"), fontsize=9)
            axes.set_xticks([])
            axes.set_yticks([])
        for axes in panels[len(found) :]:
            axes.set_visible(False)
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=min(4, len(labels)), markerscale=2)
        figure.suptitle(plain(f"{table.title}; {said}"), fontsize=9)
        return save(figure, folder, name)
