"""Which runs a grid means, also where its data are not on this machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from fairssl.board.names import seeds_named
from fairssl.plan.request import load_grid
from fairssl.plan.resolve import Run, resolve_all
from fairssl.spec.keys import digest


class Wanted:
    """The runs of a grid, told by all of their spec but the content of the data."""

    def __init__(self, grid: str, runs: Sequence[Run]) -> None:
        self.grid = grid
        self.labels = tuple(dict.fromkeys(run.label for run in runs))
        self._runs = {identity_of(run.spec.model_dump(mode="json")): run for run in runs}

    def has(self, spec: Mapping[str, Any]) -> bool:
        return identity_of(spec) in self._runs

    def label_of(self, spec: Mapping[str, Any]) -> str | None:
        """What the grid calls its method."""
        run = self._runs.get(identity_of(spec))
        return None if run is None else run.label

    def n_runs(self, place: tuple[str, str, str] | None = None) -> int:
        """How many runs it has, in all or of a dataset, target and attribute."""
        return sum(place in (None, _place(run)) for run in self._runs.values())

    def missing(self, there: Collection[str], place: tuple[str, str, str] | None = None) -> dict[str, str]:
        """Identity -> name, of runs whose `identity_of` is not among those that are there, in all or of a dataset, target and
        attribute. Not their keys: these depend on the content of the data, and a board is the same on a machine that has no
        data."""
        return {
            identity: run.name
            for identity, run in self._runs.items()
            if identity not in there and place in (None, _place(run))
        }


def wanted_of_grid(grid: str) -> Wanted:
    """The runs of a grid file, or of a grid that comes with fairssl."""
    return Wanted(grid, resolve_all(load_grid(grid), allow_absent=True).runs)


def not_run(names: Iterable[str]) -> Iterator[str]:
    """A line for the runs of a row that are not there, by their names: those of a sweep, which share a name, together."""
    seeds: dict[str, list[str]] = {}
    for name, n in Counter(names).items():
        row, _, seed = name.rpartition(" seed ")
        seeds.setdefault(row or name, []).append(f"{seed} ({n} settings)" if n > 1 else seed)
    for row, missing in sorted(seeds.items()):
        missing.sort(key=lambda text: (len(text.split()[0]), text) if text else (0, ""))
        yield f"not run: {row}" + (f", {seeds_named(missing)}" if any(missing) else "")


def _place(run: Run) -> tuple[str, str, str]:
    data = run.spec.data
    return data.dataset, data.target, data.attribute


def identity_of(spec: Mapping[str, Any]) -> str:
    """A digest of a spec without the fingerprints of its data and the name of its method."""
    content = {name: value for name, value in spec.items() if value is not None}
    for name in ("data", "pretrain"):
        if isinstance(content.get(name), Mapping):
            content[name] = {key: value for key, value in content[name].items() if key != "fingerprint"}
    if isinstance(content.get("method"), Mapping):
        content["method"] = {key: value for key, value in content["method"].items() if key != "name"}
    return digest(content)
