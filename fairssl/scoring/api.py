"""`fairssl.score`: every metric of predictions that are at hand as arrays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, get_args

from fairssl.registry import did_you_mean
from fairssl.scoring.counts import (
    accuracies,
    auc,
    cell_counts,
    false_positive_rates,
    one_class,
    positive_rates,
    true_positive_rates,
)
from fairssl.scoring.groups import Pairs, PartialMean, WhenUndefined, default_pairs, describe_pairs
from fairssl.scoring.metrics import columns, evaluate, readings
from fairssl.scoring.outcome import check_outcome, group_codes
from fairssl.scoring.resampling import Floor, Interval, bootstrap, check_replicates, inside_floor, noise_floor
from fairssl.types import Outcome, Progress, Undefined, UserError, Value, counted, silent

if TYPE_CHECKING:
    import pandas

    from fairssl.interfaces import Metric


@dataclass(frozen=True)
class TextTable:
    """Cells as text; the columns at the positions `left` stand left, the others right, and those in `wraps` may wrap."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: tuple[int, ...]
    wraps: tuple[int, ...] = ()


@dataclass(frozen=True)
class Scores:
    """What `score` finds; all numbers are fractions. Prints as a table.

    `values` symbol -> float or `Undefined`; `intervals` and `floors` are empty unless asked for; `pairs` is how more than
    two groups became one number, and `pairs_chosen` whether the caller said so.
    """

    outcome: Outcome
    values: Mapping[str, Value]
    intervals: Mapping[str, Interval] = field(default_factory=dict)
    floors: Mapping[str, Floor] = field(default_factory=dict)
    pairs: Pairs = "all"
    pairs_chosen: bool = False
    when_undefined: WhenUndefined = "propagate"
    notes: tuple[str, ...] = ()
    named: tuple[str, str, str] = ("score", "target", "group")

    @property
    def n(self) -> int:
        """Number of predictions."""
        return len(self.outcome.score)

    @property
    def metrics(self) -> dict[str, float | None]:
        """Symbol -> value, None where it is undefined."""
        return {symbol: _null(value) for symbol, value in self.values.items()}

    @property
    def undefined(self) -> dict[str, str]:
        """Symbol -> why it has no value, for those that have none."""
        return {symbol: value.reason for symbol, value in self.values.items() if isinstance(value, Undefined)}

    @property
    def partial(self) -> dict[str, str]:
        """Symbol -> of how many parts the value is made, where undefined ones were left out as `omit` asks for."""
        return {
            symbol: f"{value.what} of {value.n_defined} of {value.n_parts} parts, the others undefined"
            for symbol, value in self.values.items()
            if isinstance(value, PartialMean)
        }

    @property
    def groups(self) -> dict[str, int]:
        """Label of each group -> number of its examples."""
        cells = cell_counts(self.outcome)
        return {label: sum(n) for label, n in zip(self.outcome.groups, cells, strict=True)}

    @cached_property
    def by_group(self) -> dict[str, dict[str, float | None]]:
        """What the metrics compare: label of each group -> its rates and AUCs, None where undefined."""
        rows = _rates_by_group(self.outcome)
        return {label: {name: _null(value) for name, value in row.items()} for label, row in rows.items()}

    @cached_property
    def readings(self) -> dict[str, dict[str, float | None]]:
        """The other readings in use of each notion: symbol -> reading -> value."""
        found = readings(self.outcome, pairs=self.pairs, undefined=self.when_undefined)
        return {symbol: {name: _null(v) for name, v in named.items()} for symbol, named in found.items()}

    @property
    def caption(self) -> tuple[str, ...]:
        """What was scored, and how more than two groups became one number."""
        score, target, group = self.named
        lines = [f"{counted(self.n, 'prediction')}: target {target}, {score} > 0.5 predicts 1, groups by {group}"]
        how = describe_pairs(len(self.outcome.groups), self.pairs)
        if how and not self.pairs_chosen:
            how += "; groups are taken as nominal unless said to be ordered (--ordered, ordered=True)"
        return (*lines, *([how] if how else []))

    def to_pandas(self) -> pandas.DataFrame:
        """A row per metric: value, interval, noise floor (its 95 % quantile) and whether the value lies inside it, and why
        what is undefined is so."""
        import pandas

        rows = []
        for one in self._columns:
            interval, floor = self.intervals.get(one.symbol), self.floors.get(one.symbol)
            rows.append(
                {
                    "metric": one.symbol,
                    "value": _null(self.values[one.symbol]),
                    "low": None if interval is None else _null(interval.low),
                    "high": None if interval is None else _null(interval.high),
                    "floor": None if floor is None else _null(floor.high),
                    "inside_floor": None if floor is None else inside_floor(self.values[one.symbol], floor),
                    "better": one.better,
                    "undefined": self.undefined.get(one.symbol),
                }
            )
        frame = pandas.DataFrame(rows)
        numbers = ["value", "low", "high", "floor"]
        return frame.astype(dict.fromkeys(numbers, "float64"))

    def to_dict(self, with_readings: bool = False) -> dict[str, Any]:
        """JSON values: what `fairssl score --json` prints."""
        found: dict[str, Any] = {
            "n": self.n,
            "groups": self.groups,
            "metrics": self.metrics,
            "undefined": self.undefined,
        }
        if self.partial:
            found["partial"] = self.partial
        if len(self.outcome.groups) > 2:
            found["pairs"] = self.pairs
        if self.notes:
            found["notes"] = list(self.notes)
        if self.intervals:
            found["intervals"] = {symbol: _interval_values(one) for symbol, one in self.intervals.items()}
        if self.floors:
            found["noise_floor"] = {
                symbol: {"mean": _null(one.mean), "high": _null(one.high), "permuted_within": one.within}
                for symbol, one in self.floors.items()
            }
        if with_readings:
            found["readings"] = {**self.readings, "by_group": self.by_group}
        return found

    def __str__(self) -> str:
        return self.text()

    def text(self, with_readings: bool = False) -> str:
        """Plain tables, one below the other, whatever their width."""
        lines = [*self.caption, self.scale, ""]
        blocks = ["\n".join(_aligned(table)) for table in self.tables(with_readings)]
        remarks = "\n".join(self.remarks)
        first, *rest = blocks
        after = [ROC_LEGEND] if with_readings else []
        return "\n".join(lines) + "\n\n".join([first, *([remarks] if remarks else []), *rest, *after])

    @property
    def scale(self) -> str:
        """Which metrics are printed x 100."""
        return f"{', '.join(one.symbol for one in self._columns if one.percent)}: x 100"

    @property
    def remarks(self) -> tuple[str, ...]:
        """What a reader must know of single values: why they are undefined, what is not to be relied upon."""
        found = [*self.notes]
        found += [f"{symbol}: undefined, {reason}" for symbol, reason in self.undefined.items()]
        found += [f"{symbol}: {note}" for symbol, note in self.partial.items()]
        without: dict[str, list[str]] = {}
        for symbol, one in self.intervals.items():
            if one.caution:
                found.append(f"{symbol}: interval unreliable, {one.caution}")
            elif isinstance(one.low, Undefined) and symbol not in self.undefined:
                without.setdefault(one.low.reason, []).append(symbol)
        found += [f"{', '.join(symbols)}: no interval, {reason}" for reason, symbols in without.items()]
        high = [s for s, one in self.intervals.items() if one.method == "reversed" and one.high == self.values[s]]
        if high:
            found.append(f"{', '.join(high)}: too high on a set of this size, which the interval is corrected for")
        inside = [symbol for symbol, floor in self.floors.items() if inside_floor(self.values[symbol], floor)]
        if inside:
            found.append(f"{', '.join(inside)}: no larger than chance measures on this test set (95 % of permutations)")
        return tuple(found)

    def tables(self, with_readings: bool = False) -> list[TextTable]:
        """The metrics, the other readings if asked for, and the rates of each group."""
        tables = [self._metric_table(), *([self._readings_table()] if with_readings else [])]
        tables.append(self._group_table(("Acc", "positive_rate", "TPR", "FPR"), with_sizes=True))
        if with_readings:
            names = [name for name in next(iter(self.by_group.values())) if name.startswith("AUC")]
            tables.append(self._group_table(tuple(names), with_sizes=False))
        return tables

    def _metric_table(self) -> TextTable:
        from fairssl import kinds

        head = ["metric", "value"]
        head += ["95 % interval"] if self.intervals else []
        head += ["by chance"] if self.floors else []
        rows = []
        for one in self._columns:
            row = [one.symbol, _shown(self.values[one.symbol], one)]
            if self.intervals:
                interval = self.intervals[one.symbol]
                low, high = _shown(interval.low, one), _shown(interval.high, one)
                row.append("-" if low == "-" else f"{low} to {high}")
            if self.floors:
                floor = self.floors.get(one.symbol)
                row.append("-" if floor is None else _shown(floor.high, one))
            rows.append((*row, kinds.metrics.summary(one.name)))
        return TextTable((*head, "what it is"), tuple(rows), left=(0, len(head)), wraps=(len(head),))

    def _readings_table(self) -> TextTable:
        by_symbol = {one.symbol: one for one in self._columns}
        rows = [
            (f"{symbol}, {name}", "-" if value is None else _shown(value, by_symbol[symbol]))
            for symbol, named in self.readings.items()
            for name, value in named.items()
        ]
        return TextTable(("other readings", "value"), tuple(rows), left=(0,))

    def _group_table(self, names: tuple[str, ...], with_sizes: bool) -> TextTable:
        rows = []
        for label, (negatives, positives) in zip(self.outcome.groups, cell_counts(self.outcome), strict=True):
            sizes = (str(negatives + positives), str(negatives), str(positives)) if with_sizes else ()
            values = (self.by_group[label][name] for name in names)
            rows.append((label, *sizes, *("-" if value is None else f"{value:.4f}" for value in values)))
        head = ("group", *(("n", "n(y=0)", "n(y=1)") if with_sizes else ()), *names)
        return TextTable(head, tuple(rows), left=(0,))

    @cached_property
    def _columns(self) -> list[Metric]:
        return [one for one in columns() if one.symbol in self.values]


ROC_LEGEND = "AUC(P, N): how often a score of P is above one of N, ties a half; rest: all other groups"


def score(
    score: Any,
    target: Any,
    group: Any,
    groups: Sequence[object] | None = None,
    *,
    ordered: bool | None = None,
    pairs: Pairs | None = None,
    undefined: WhenUndefined = "propagate",
    n_bootstrap: int = 0,
    n_permutations: int = 0,
    seed: int = 0,
    named: tuple[str, str, str] = ("score", "target", "group"),
    progress: Progress = silent,
) -> Scores:
    """Accuracy and every fairness metric of predictions given as arrays (N,): NumPy, pandas, torch, lists.

    `score` is the probability of y = 1, in [0, 1]; above 0.5 it predicts 1. `target` is 0 or 1. `group` holds the values
    of the sensitive attribute, numbers or strings; `groups` are all of them in order, of which some may be absent (left
    out: those found, in numeric or alphabetical order).

    Gaps of more than two groups are means over adjacent pairs where `ordered` is true (age), else over all pairs
    (ethnicity; numbers too may name unordered groups, so nothing is guessed from labels); `pairs` says it outright:
    "adjacent", "all", or "max" for the largest. `undefined="omit"` averages over the parts that exist.
    `n_bootstrap` replicates (1000 is usual, 100 the least) give 95 % intervals, `n_permutations` (200 is usual, 20 the
    least) what chance measures.
    Raises `UserError` for what cannot be scored: NaN, scores outside [0, 1], other targets, a group that is missing or not
    declared, arrays of different length.
    """
    members = _values(group)
    if any(isinstance(one, list | tuple) for one in members):
        raise UserError(f"{named[2]} holds lists; give one value per example")
    codes, labels = group_codes(members, None if groups is None else list(groups), named=named[2])
    outcome = check_outcome(_values(score), _values(target), codes, labels, named=named)
    return score_outcome(
        outcome,
        ordered=ordered,
        pairs=pairs,
        undefined=undefined,
        n_bootstrap=n_bootstrap,
        n_permutations=n_permutations,
        seed=seed,
        named=named,
        progress=progress,
    )


def score_outcome(
    outcome: Outcome,
    *,
    ordered: bool | None = None,
    pairs: Pairs | None = None,
    undefined: WhenUndefined = "propagate",
    n_bootstrap: int = 0,
    n_permutations: int = 0,
    seed: int = 0,
    named: tuple[str, str, str] = ("score", "target", "group"),
    notes: Sequence[str] = (),
    progress: Progress = silent,
) -> Scores:
    """As `score`, for predictions that are an `Outcome` already; `notes` are put before its own."""
    _check_choice("pairs", pairs, (None, *get_args(Pairs)))
    _check_choice("undefined", undefined, get_args(WhenUndefined))
    if ordered is False and pairs == "adjacent":
        raise UserError("pairs 'adjacent' need groups in order, but they are said to be nominal; drop one of the two")
    check_replicates("bootstrap", n_bootstrap, "bootstrap")
    check_replicates("permutations", n_permutations, "permutations")
    chosen = pairs or default_pairs(bool(ordered))
    how: dict[str, Any] = {"pairs": chosen, "undefined": undefined}
    only = one_class(outcome)
    if only is not None:
        notes = [
            *notes,
            f"all {len(outcome.score)} predictions are class {only}: gaps of decisions are 0 for that reason",
        ]
    if len(outcome.groups) == 2 and (pairs is not None or ordered is not None):
        said = [name for name, value in (("pairs", pairs), ("ordered", ordered)) if value is not None]
        notes = [
            *notes,
            f"two groups are one pair: {' and '.join(said)} {'has' if len(said) == 1 else 'have'} no effect",
        ]
    return Scores(
        outcome,
        evaluate(outcome, **how),
        bootstrap(outcome, n_bootstrap, seed, **how, progress=progress) if n_bootstrap else {},
        noise_floor(outcome, n_permutations, seed, **how, progress=progress) if n_permutations else {},
        pairs=chosen,
        pairs_chosen=pairs is not None or ordered is not None,
        when_undefined=undefined,
        notes=tuple(notes),
        named=named,
    )


def _check_choice(what: str, value: object, known: Sequence[object]) -> None:
    if value not in known:
        raise UserError(
            f"{what} {value!r} is unknown{did_you_mean(str(value), [str(k) for k in known if k is not None])}"
        )


def _values(values: Any) -> list[Any]:
    """An array of any sort as a list of Python values."""
    if hasattr(values, "detach"):  # a torch tensor, on whatever device; NumPy has no bfloat16
        values = values.detach().cpu()
        values = values.float() if values.is_floating_point() and values.element_size() < 4 else values
    if hasattr(values, "tolist"):
        values = values.tolist()
    return [values] if isinstance(values, str | bytes) or not isinstance(values, Iterable) else list(values)


def _rates_by_group(outcome: Outcome) -> dict[str, dict[str, Value]]:
    rates = {
        "Acc": accuracies(outcome),
        "positive_rate": positive_rates(outcome),
        "TPR": true_positive_rates(outcome),
        "FPR": false_positive_rates(outcome),
    }
    found: dict[str, dict[str, Value]] = {}
    for code, label in enumerate(outcome.groups):
        own, rest = (code,), [g for g in range(len(outcome.groups)) if g != code]
        found[label] = {name: by_group[code] for name, by_group in rates.items()} | {
            "AUC(pos, neg)": auc(outcome, (own, 1), (own, 0)),
            "AUC(pos, rest neg)": auc(outcome, (own, 1), (rest, 0)),
            "AUC(rest pos, neg)": auc(outcome, (rest, 1), (own, 0)),
            "AUC(all, rest)": auc(outcome, (own, None), (rest, None)),
        }
    return found


def _interval_values(one: Interval) -> dict[str, Any]:
    found: dict[str, Any] = {
        "low": _null(one.low),
        "high": _null(one.high),
        "undefined_replicates": one.n_undefined,
    }
    if isinstance(one.low, Undefined):
        found["reason"] = one.low.reason
    if one.caution:
        found["unreliable"] = one.caution
    return found


def _null(value: Value) -> float | None:
    return None if isinstance(value, Undefined) else float(value)


def _shown(value: Value, one: Metric) -> str:
    if isinstance(value, Undefined):
        return "-"
    return f"{100 * value:.2f}" if one.percent else f"{value:.4f}"


def _aligned(table: TextTable) -> list[str]:
    """Aligned columns, a rule under the head."""
    rows = [table.head, *table.rows]
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]

    def line(row: Sequence[str]) -> str:
        cells = (
            c.ljust(w) if i in table.left else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))
        )
        return "  ".join(cells).rstrip()

    return [line(rows[0]), "  ".join("-" * w for w in widths), *(line(row) for row in rows[1:])]
