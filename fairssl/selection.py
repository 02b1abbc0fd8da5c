"""Choosing settings on validation data: the same number of trials for every method, and a rule with a name.

Nothing here reads or prints a test value before the choice is made.

Optuna proposes the trials by ask and tell; each is a run in the store like any other, so that a search
goes on where it stopped, and the chosen runs can be looked up.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from fairssl import kinds
from fairssl.benchmark import (
    Result,
    checked_plan,
    failures_of,
    report_failures,
    result_of,
    tell_broken_metrics,
    tell_without_effect,
)
from fairssl.execute.loggers import need
from fairssl.plan.request import METHODS, Request, check_request, check_seeds, seeds_up_to
from fairssl.plan.resolve import Plan, Run
from fairssl.registry import did_you_mean
from fairssl.spec.method import WEIGHTS, parse_method, same_setting, sweep, weights_in
from fairssl.store.runs import RunStore
from fairssl.types import UserError

if TYPE_CHECKING:
    from fairssl.execute.options import Options
    from fairssl.execute.reporting import Reporter
    from fairssl.execute.signals import GracefulStop
    from fairssl.store.record import Record

Setting = tuple[tuple[str, Any], ...]  # (name as --set writes it, value), by name
Where = tuple[str, str, str, str]  # method, dataset, target, attribute
RULES = ("paper", "accuracy", "constrained:K", "worst_group")  # as a user types them
RATES = (1e-3, 1e-4, 1e-5)  # the learning rates of the SoFCLR paper
BAND = 0.01  # accuracy that the paper's rule may give up
DECIMALS = 9  # to which values are compared: fewer than the last bits of a sum, more than any test set tells apart


@dataclass(frozen=True)
class Trial:
    """A setting with its validation values, means over the seeds it was tried with, as fractions; None: undefined."""

    setting: Setting
    values: Mapping[str, float | None]

    def value(self, symbol: str, worst: float) -> float:
        """The value, or `worst` where it is undefined, to nine decimals: an ED of 7.5 points may be 0.07500000000000004."""
        found = self.values.get(symbol)
        return worst if found is None else round(found, DECIMALS)


@dataclass(frozen=True)
class Choice:
    """What a rule has chosen among the trials of one method. `flag` says where no trial met the rule's condition; `search`
    how they were found: `reference` (of rule paper), `asked` (trials), `space` (settings that there are), `trial_seeds`."""

    trial: Trial
    rule: str
    n_trials: int  # that ended well
    flag: str = ""
    search: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As it stands beside the records of the chosen runs."""
        found = {"rule": self.rule, "trials": self.n_trials, "chosen": dict(self.trial.setting), **self.search}
        return {**found, **({"flag": self.flag} if self.flag else {})}


def choose(rule: str, trials: Sequence[Trial], reference: float | None = None) -> Choice:
    """The trial that a rule takes, by validation values alone; ties go to the more accurate, then to the first setting.

    `accuracy`: the most accurate. `worst_group`: the one whose worst target x group cell is best. `paper`: among those at
    most a point less accurate than the `reference` (the accuracy of the baseline), the one of least ED. `constrained:k`:
    among those whose ED is at most k points, the most accurate. Where none meets the condition, `paper` takes the most
    accurate and `constrained` the fairest, and the choice is flagged. Values are compared to nine decimals.
    """
    name, bound = _rule(rule)
    if not trials:
        raise UserError("no trial ended well: there is nothing to choose from; --retry-failed runs them again")

    def accuracy(trial: Trial) -> float:
        return trial.value("Acc", -math.inf)

    def gap(trial: Trial) -> float:
        return trial.value("ED", math.inf)

    def best(among: Iterable[Trial], *keys: Callable[[Trial], float]) -> Trial:
        return min(among, key=lambda trial: (*(key(trial) for key in keys), -accuracy(trial), str(trial.setting)))

    def chosen(trial: Trial, flag: str = "") -> Choice:
        return Choice(trial, rule, len(trials), flag)

    if name == "accuracy":
        return chosen(best(trials))
    if name == "worst_group":
        return chosen(best(trials, lambda trial: -trial.value("WorstGroupAcc", -math.inf)))
    if name == "constrained":
        limit = round(limit_of(rule) / 100, DECIMALS)
        fair = [trial for trial in trials if gap(trial) <= limit]
        if fair:
            return chosen(best(fair))
        return chosen(best(trials, gap), f"no setting has a validation ED of at most {bound}; the fairest was taken")
    if reference is None:
        raise UserError("--rule paper needs a reference: the validation accuracy of the baseline")
    near = [trial for trial in trials if accuracy(trial) >= round(reference - BAND, DECIMALS)]
    if near:
        return chosen(best(near, gap))
    flag = f"no setting comes within 1 point of the reference's {100 * reference:.2f}; the most accurate was taken"
    return chosen(best(trials), flag)


def _rule(rule: str) -> tuple[str, str]:
    """The name of a rule that there is, and what stands behind its colon."""
    name, _, bound = rule.partition(":")
    if name not in {known.partition(":")[0] for known in RULES}:
        raise UserError(f"unknown --rule {rule!r}{did_you_mean(name, RULES)}")
    return name, bound


def limit_of(rule: str) -> float:
    """k of `constrained:k`, in points."""
    _, _, bound = rule.partition(":")
    try:
        limit = float(bound)
    except ValueError:
        limit = math.nan
    if not 0 <= limit <= 100:
        raise UserError(f"--rule {rule!r}: say how large ED may be, 0 to 100 points, as constrained:5")
    return limit


def search_space(method: str) -> dict[str, tuple[Any, ...]]:
    """Setting -> the values to try: what the method's file says, else the paper's learning rates and head weights. A weight
    that stands in the method's name, as in `byol+adversary:0.3`, is not searched."""
    found = parse_method(method)
    fixed = {f"{head}.weight" for head in weights_in(method)}
    stated: Mapping[str, Sequence[Any]] = getattr(found, "search", {})
    if stated:
        return {name: tuple(values) for name, values in sorted(stated.items()) if same_setting(name) not in fixed}
    space: dict[str, tuple[Any, ...]] = {}
    if kinds.objectives.get(found.objective).trains:
        space["train.lr"] = RATES
    for head in found.heads:
        if kinds.heads.get(head).streams and f"{head}.weight" not in fixed:
            space[f"{head}.weight"] = WEIGHTS
    return dict(sorted(space.items()))


@dataclass(frozen=True)
class Tuned:
    """What a search came to. `choices`: (method, dataset, target, attribute) -> what was chosen; `result`: the chosen
    settings, run with all seeds."""

    choices: Mapping[Where, Choice]
    result: Result


def tune(
    request: Request,
    options: Options,
    store: RunStore,
    log: Reporter,
    stop: GracefulStop,
    *,
    rule: str = "paper",
    n_trials: int = 12,
    tune_seeds: int | Sequence[int] = 1,
    reference: str | None = None,
) -> Tuned:
    """Search each method's space with `n_trials` trials on validation data, choose by the rule, and run the chosen settings
    with the request's seeds.

    The choice is made for each dataset, target and attribute by itself. `reference`: the method whose best validation
    accuracy the paper's rule refers to; default `ce` if it is among the methods, else `simclr`; other rules have none. A
    space with fewer settings than `n_trials` is tried whole. Mistakes, `UserError`: before anything is trained.
    """
    from fairssl.execute.launch import launch  # loads torch

    methods = list(request.methods or METHODS)
    trial_seeds = seeds_up_to(tune_seeds, f"--tune-seeds {tune_seeds}") if isinstance(tune_seeds, int) else tune_seeds
    _check(request, rule, n_trials, trial_seeds, methods, reference)
    reference = next(iter(_reference(rule, methods, reference)), None)
    trial_request = replace(request, seeds=trial_seeds)
    names = [*methods, *([reference] if reference is not None and reference not in methods else [])]
    tell_broken_metrics(log)
    studies = {name: _Study(name, n_trials) for name in names}
    trials: dict[Where, list[Trial]] = {}
    everything = Plan(runs=[], roots={})
    while any(study.open for study in studies.values()):
        asked = {name: study.ask() for name, study in studies.items() if study.open}
        plan = _joined(_plan(trial_request, name, setting, options, log) for name, setting in asked.items())
        everything.take(plan)
        everything.runs.extend(plan.runs)
        told = {name: _trial_told(studies[name], setting) for name, setting in asked.items()}
        launch(plan, store, options, _TrialReporter(log, told), stop, trials=True)
        for name, setting in asked.items():
            found = _validated(plan, store, name)
            for place, values in found.items():
                trials.setdefault((name, *place), []).append(Trial(setting, values))
            studies[name].tell(found.values())
    report_failures(failures_of(everything.runs, store), log)
    choices = {}
    for where, tried in trials.items():
        if where[0] in methods:
            search = {"asked": n_trials, "space": studies[where[0]].size, "trial_seeds": list(trial_seeds)}
            baseline = None
            if reference is not None:
                search["reference"] = reference
                baseline = _best_accuracy(trials.get((reference, *where[1:]), []))
            choices[where] = replace(choose(rule, tried, baseline), search=search)
    own = {text.partition("=")[0].strip() for text in request.assignments or ()}
    everything.settings = {name: one for name, one in everything.settings.items() if name in own}
    tell_without_effect(everything, log)
    final = _joined(_final_plans(request, choices, options, log))
    launch(final, store, options, log, stop, trials=True)  # until they are all there and say how they were chosen
    selections = {}
    for run in final.runs:
        data = run.spec.data
        selection = choices[run.label, data.dataset, data.target, data.attribute].to_json()
        selections[run.label, run.spec.key] = selection
        store.write_selection(run.spec.key, selection)
    store.unmark_trials(run.spec.key for run in final.runs)
    result = result_of(final, store, log, selections)
    report_failures(result.failures, log)
    return Tuned(choices, result)


def _reference(rule: str, methods: Sequence[str], reference: str | None) -> list[str]:
    """The method that the paper's rule refers to; other rules have none."""
    return [reference or ("ce" if "ce" in methods else "simclr")] if rule == "paper" else []


def _best_accuracy(trials: Iterable[Trial]) -> float | None:
    """The highest validation accuracy of the trials; None without any."""
    return max((value for trial in trials if (value := trial.values.get("Acc")) is not None), default=None)


@dataclass(frozen=True)
class _TrialReporter:
    """Reports the runs of trials by their settings and validation values, where others are reported by test values."""

    log: Reporter
    told: Mapping[str, str]  # method -> which trial it is, with its setting

    def stage(self, what: str, done: int, total: int) -> None:
        self.log.stage(what, done, total)

    def overall(self, what: str, done: float, total: int) -> None:
        self.log.overall(what, done, total)

    def note(self, text: str, detail: str = "") -> None:
        self.log.note(text, detail)

    def done(self, run: Run, record: Record) -> None:
        name = f"{run.name}, {self.told[run.label]}"
        if record.state != "ok":
            self.log.note(f"{name} {record.state}: {record.reason}")
            return
        found = {} if record.validation is None else record.validation.metrics
        values = [f"{symbol} {100 * value:.1f}" for symbol in ("Acc", "ED") if (value := found.get(symbol)) is not None]
        self.log.note(f"{name}: validation {', '.join(values) or 'values undefined'}")


def _trial_told(study: _Study, setting: Setting) -> str:
    words = ", ".join(f"{name}={value}" for name, value in setting)
    return f"trial {study.n_trials - study.left + 1} of {study.n_trials}{f' ({words})' if words else ''}"


def _check(
    request: Request, rule: str, n_trials: int, seeds: Sequence[int], methods: Sequence[str], reference: str | None
) -> None:
    if n_trials < 1:
        raise UserError(f"--trials {n_trials}: must be at least 1")
    name, _ = _rule(rule)
    if name == "constrained":
        limit_of(rule)
    if reference is not None and name != "paper":
        raise UserError(f"--reference {reference} belongs to --rule paper alone; leave it out with --rule {rule}")
    if rule != name and name != "constrained":
        raise UserError(f"--rule {rule!r}: {name} takes no number; write --rule {name}")
    names = [*methods, *_reference(rule, methods, reference)]
    for method in names:
        parse_method(method)
    check_request(request)
    check_seeds(seeds, "--tune-seeds")
    if len(sweep(request.assignments or ())) > 1:
        several = next(text for text in request.assignments or () if len(sweep([text])) > 1)
        raise UserError(f"--set {several}: a search takes one value of each setting; give one")
    for text in request.assignments or ():
        setting = same_setting(text.partition("=")[0].strip())
        spaces = {m: {same_setting(key): tried for key, tried in search_space(m).items()} for m in names}
        searching = {method: space[setting] for method, space in spaces.items() if setting in space}
        if searching:
            tried = ", ".join(map(str, next(iter(searching.values()))))
            raise UserError(
                f"--set {text}: the search itself sets {setting} for {', '.join(searching)} ({tried}); leave it out, or "
                "train that one value with fairssl bench"
            )


def _plan(request: Request, method: str, setting: Setting, options: Options, log: Reporter) -> Plan:
    words = [f"{name}={value!r}" if not isinstance(value, str) else f"{name}={value}" for name, value in setting]
    chosen = replace(request, methods=[method], assignments=[*(request.assignments or ()), *words])
    return checked_plan([chosen], options, log)


def _final_plans(request: Request, choices: Mapping[Where, Choice], options: Options, log: Reporter) -> Iterable[Plan]:
    for (method, dataset, target, attribute), choice in choices.items():
        place = replace(request, datasets=[dataset], targets=[target], attributes=[attribute])
        yield _plan(place, method, choice.trial.setting, options, log)


def _joined(plans: Iterable[Plan]) -> Plan:
    joined = Plan(runs=[], roots={})
    seen: set[tuple[str, str]] = set()
    for plan in plans:
        joined.take(plan)
        for run in plan.runs:
            if (run.label, run.spec.key) not in seen:
                seen.add((run.label, run.spec.key))
                joined.runs.append(run)
    return joined


def _validated(plan: Plan, store: RunStore, method: str) -> dict[tuple[str, str, str], dict[str, float | None]]:
    """(dataset, target, attribute) -> validation values of the method's runs, means over their seeds; a setting of which a
    seed has not ended well has none."""
    records: dict[tuple[str, str, str], list[tuple[Run, Record | None]]] = {}
    for run in plan.runs:
        if run.label == method:
            data = run.spec.data
            place = data.dataset, data.target, data.attribute
            records.setdefault(place, []).append((run, store.read_record(run.spec.key)))
    found = {}
    for place, listed in records.items():
        measured = [r.validation.metrics for _, r in listed if r is not None and r.validation is not None]
        if len(measured) == len(listed):
            found[place] = {symbol: _mean([one.get(symbol) for one in measured]) for symbol in measured[0]}
    return found


def _mean(values: Sequence[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return math.fsum(numbers) / len(numbers) if len(numbers) == len(values) else None


class _Study:
    """Optuna's proposals for one method: accuracy up and ED down, over every dataset and attribute at once."""

    def __init__(self, method: str, n_trials: int) -> None:
        optuna = need("optuna", "fairssl tune", "tune")
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.space = search_space(method)
        self.size = math.prod(len(values) for values in self.space.values())
        self.n_trials = self.left = min(n_trials, self.size)
        sampler = optuna.samplers.TPESampler(seed=0)
        self.study = optuna.create_study(directions=["maximize", "minimize"], sampler=sampler)
        if self.size <= n_trials:  # all of them, in order
            for values in itertools.product(*self.space.values()):
                self.study.enqueue_trial(dict(zip(self.space, values, strict=True)))
        self._state = optuna.trial.TrialState
        self._asked: Any = None
        self._tried: set[Setting] = set()

    @property
    def open(self) -> bool:
        """Whether trials are left."""
        return self.left > 0

    def ask(self) -> Setting:
        """The next setting, one that has not been tried."""
        for _ in range(1000):
            self._asked = self.study.ask()
            values = {name: self._asked.suggest_categorical(name, list(known)) for name, known in self.space.items()}
            setting = tuple(sorted(values.items()))
            if setting not in self._tried:
                break
            self.study.tell(self._asked, state=self._state.FAIL)
        self._tried.add(setting)
        return setting

    def tell(self, values: Iterable[Mapping[str, float | None]]) -> None:
        """The validation values of the setting asked for last, one mapping per dataset, target and attribute."""
        self.left -= 1
        pairs = [(one.get("Acc"), one.get("ED")) for one in values]
        if not pairs or any(value is None for pair in pairs for value in pair):
            self.study.tell(self._asked, state=self._state.FAIL)
            return
        means = [_mean([pair[i] for pair in pairs]) for i in (0, 1)]
        self.study.tell(self._asked, means)
