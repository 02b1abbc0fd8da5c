"""From a request to the runs it means, everything checked. Decodes no image."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fairssl import kinds
from fairssl.data.overview import card_at, check_memory, inspect, root_of
from fairssl.data.splits import check_outline
from fairssl.interfaces import Dataset, check_label, combined, groups_of, in_card_order
from fairssl.plan.request import DATASETS, METHODS, Request, check_request, seeds_up_to
from fairssl.registry import configure
from fairssl.spec.config import ProbeConfig, TrainConfig, precision_of
from fairssl.spec.keys import canonical
from fairssl.spec.method import (
    check_set,
    check_weights,
    compose,
    encoder_spec,
    parse_method,
    parse_set,
    same_setting,
    sweep,
    unread_of_encoder,
    unread_of_part,
)
from fairssl.spec.run import DataSpec, EncoderSpec, MethodSpec, RunSpec
from fairssl.spec.unread import reads_annotated, unread_in_probe, unread_in_train, without
from fairssl.types import Card, DataFacts, Method, Progress, UserError, silent


@dataclass(frozen=True)
class Run:
    """One run of the grid: the name the user gave its method, and its spec."""

    label: str
    spec: RunSpec

    @property
    def name(self) -> str:
        """What the run is called in messages."""
        data = self.spec.data
        trained = f" from {self.spec.pretrain.dataset}" if self.spec.pretrain else ""
        return f"{self.label} {data.dataset}/{data.target}/{data.attribute}{trained} seed {self.spec.seed}"


@dataclass
class Setting:
    """What a user set, by `--set` or a flag: its values in the order of a sweep, the methods it was said to, and whether any
    of their runs reads it."""

    values: list[str] = field(default_factory=list)
    methods: list[str] = field(default_factory=list)
    is_read: bool = False
    said: str = ""  # what stands before the values, as `--set train.lr=` or `--epochs `

    def take(self, other: Setting) -> None:
        """Another request's word of the same setting."""
        self.values = list(dict.fromkeys([*self.values, *other.values]))
        self.methods = list(dict.fromkeys([*self.methods, *other.methods]))
        self.is_read |= other.is_read
        self.said = other.said


@dataclass
class Plan:
    """The grid resolved: every run, and where each dataset lies. `absent`: datasets that are not on this machine."""

    runs: list[Run]
    roots: dict[str, Path | None]
    absent: dict[str, str] = field(default_factory=dict)  # dataset -> what to do about it
    weights: dict[tuple[str, str], str] = field(default_factory=dict)  # (encoder, hash of weights) -> their file
    # Setting or flag as the user wrote it, `train.lr`, `epochs` -> its values, and whether any run reads it.
    settings: dict[str, Setting] = field(default_factory=dict)

    def take(self, other: Plan) -> None:
        """What another plan has beside its runs."""
        self.roots.update(other.roots)
        self.absent.update(other.absent)
        self.weights.update(other.weights)
        for name, one in other.settings.items():
            self.settings.setdefault(name, Setting()).take(one)

    @property
    def without_effect(self) -> list[str]:
        """A line for each setting and flag that no run of the plan reads."""
        return [
            f"{one.said}{','.join(one.values)} has no effect: no run reads it ({', '.join(one.methods)})"
            for one in self.settings.values()
            if not one.is_read
        ]

    def pretrainings(self) -> dict[str, list[Run]]:
        """pretrain key -> the runs that share it, in the grid's order."""
        found: dict[str, list[Run]] = {}
        for run in self.runs:
            found.setdefault(run.spec.pretrain_key, []).append(run)
        return found


def resolve_all(requests: Sequence[Request], allow_absent: bool = False, progress: Progress = silent) -> Plan:
    """One plan of several requests; a run that two of them name is there once. Where `--set` gives a setting several
    values, there is a run for each."""
    single = [
        replace(request, assignments=assignments)
        for request in _each_with_its_own(requests)
        for assignments in sweep(request.assignments or (), request.called("assignments"))
    ]
    found: dict[str, DataFacts] = {}
    outlined: set[str] = set()
    plans = [resolve(request, allow_absent, progress, found, outlined) for request in single]
    runs = {(run.label, run.spec.key): run for plan in plans for run in plan.runs}
    joined = Plan(runs=list(runs.values()), roots={})
    for plan in plans:
        joined.take(plan)
    return joined


def _each_with_its_own(requests: Sequence[Request]) -> list[Request]:
    """Of several requests, each without the settings of parts that only methods of the others have: what is said beside a
    grid file with several sections is said to those that it concerns."""
    if len(requests) == 1:
        return list(requests)
    parts = []
    for request in requests:
        with _naming(request, "methods"):
            methods = [parse_method(text) for text in request.methods or METHODS]
        parts.append({name for method in methods for name in (method.objective, *method.heads)})
    anywhere = set().union(*parts)
    found = []
    for request, own in zip(requests, parts, strict=True):
        kept = [
            text
            for text in request.assignments or ()
            for part in [text.partition("=")[0].strip().rpartition(".")[0]]
            if part in own or part not in anywhere
        ]
        found.append(replace(request, assignments=kept if request.assignments is not None else None))
    return found


def resolve(
    request: Request,
    allow_absent: bool = False,
    progress: Progress = silent,
    inspected: dict[str, DataFacts] | None = None,
    outlined: set[str] | None = None,
) -> Plan:
    """Check everything the user wrote, then find the data, then write down every run. Decodes no image.

    With `allow_absent`, a dataset that is not here is planned with an unknown fingerprint and listed in `Plan.absent`.
    `inspected` keeps what was found of datasets from one call to the next, `outlined` whose splits have been checked.
    """
    inspected = {} if inspected is None else inspected
    outlined = set() if outlined is None else outlined
    values = parse_set(request.assignments or (), request.called("assignments"))
    check_request(request)
    with _naming(request, "methods"):
        methods = {text: parse_method(text) for text in request.methods or METHODS}
    check_set(values, list(methods.values()), request.called_setting)
    for text in methods:
        check_weights(text, values, request.called_setting)
    with _naming(request, "assignments"):
        composed = {text: _Composed(text, method, values) for text, method in methods.items()}
    with _naming(request, "datasets", "assignments"):
        judged = {name: kinds.datasets.build(name, values.get("data", {})) for name in request.datasets or DATASETS}
    cards = {name: source.card for name, source in judged.items()}
    for name, card in cards.items():
        if card.targets:  # else they are known once the data is found
            _pairs(request, name, card)
    pretrain = _pretrain_pair(request)

    asked: Any = request.pairs  # one of PAIRS: it has been checked
    plan = Plan(runs=[], roots={})
    facts: dict[str, DataFacts | None] = {}
    sources = {**judged, **({} if pretrain is None else {pretrain[0]: kinds.datasets.build(pretrain[0], {})})}
    for name, source in sources.items():
        plan.roots[name], facts[name], cards[name] = _find(
            source, request.data_dir, plan, allow_absent, inspected, progress
        )
    pairs = [(name, *pair) for name in judged for pair in _pairs(request, name, cards[name])]
    encoders: dict[str, EncoderSpec] = {}
    trains: dict[
        tuple[str, str], TrainConfig
    ] = {}  # (dataset, method); runs share their parts, and so the work on them
    for name, target, attribute in pairs:
        home = name if pretrain is None else pretrain[0]  # whose card says how encoders are trained
        card = cards[home]
        preset = request.preset or card.defaults.preset
        encoder = request.encoder or card.defaults.encoder
        if encoder not in encoders:
            with _naming(request, "encoder", "assignments", "weights"):
                encoders[encoder] = _encoder(request, encoder, values.get("encoder", {}), plan)
        size = _image_size(request, home, card, preset, facts[home])
        trained_on = None if pretrain is None else _data_spec(sources[home], facts[home], size, *pretrain[1:])
        if pretrain is not None:
            size = _at_most_stored(size, facts[name])
        for drawn in dict.fromkeys((home, name)):
            if cards[drawn].embedded:
                check_memory(drawn, facts[drawn], size)
        data = _data_spec(sources[name], facts[name], size, target, attribute)
        for asked_of, one_data in ((home, trained_on), (name, data)):
            if one_data is not None and facts[asked_of] is not None and one_data.canonical_json not in outlined:
                check_outline(sources[asked_of], cards[asked_of], one_data, plan.roots[asked_of], progress=progress)
                outlined.add(one_data.canonical_json)
        share = card.defaults.annotated if request.annotated is None else request.annotated
        for text, one in composed.items():
            if (home, text) not in trains:
                with _naming(request, "assignments"):
                    train = _train(request, card, preset, one.method.train, values.get("train", {}))
                unread = unread_in_train(one.spec, train)
                one.unread["train"] = one.unread.get("train", unread) & unread
                train = without(train, unread)
                equal_views = request.equal_views and "batch_size" not in unread
                trains[home, text] = _with_equal_views(train, one.spec) if equal_views else train
            for seed in request.seed_list or seeds_up_to(card.defaults.seeds):
                spec = RunSpec(
                    method=one.spec,
                    data=data,
                    pretrain=trained_on,
                    annotated=share if reads_annotated(one.spec, one.probe) else None,
                    encoder=encoders[encoder],
                    train=trains[home, text],
                    probe=one.probe,
                    pairs=None if len(groups_of(cards[name], attribute)) == 2 else asked,
                    seed=seed,
                )
                plan.runs.append(Run(text, spec))
    plan.settings = {**_settings(request, composed, encoders.values()), **_flags(request, composed, plan.runs)}
    return plan


@contextmanager
def _naming(request: Request, *names: str) -> Iterator[None]:
    """Let an error about a field, or one of several, begin with the grid file that says it, where one does."""
    try:
        yield
    except UserError as error:
        told = [request.called(name) for name in names if name in request.files]
        if not told or "--grid " in str(error) or "--weights" in str(error):
            raise
        raise UserError(f"{told[0]}: {error}") from error


def _settings(
    request: Request, composed: Mapping[str, _Composed], encoders: Collection[EncoderSpec]
) -> dict[str, Setting]:
    """Every setting that the request says, and whether any of its runs reads it."""
    found = {}
    for text in request.assignments or ():
        name, _, value = (word.strip() for word in text.partition("="))
        part, _, key = name.rpartition(".")
        methods = [label for label, one in composed.items() if part in one.parts or part in ("data", "encoder")]
        if part == "encoder":
            is_read = any(key not in unread_of_encoder(spec) for spec in encoders)
        else:
            is_read = part == "data" or any(composed[label].reads(part, key) for label in methods)
        found[name] = Setting([value], methods, is_read, f"{request.called_setting(same_setting(name))} {name}=")
    return found


def _flags(request: Request, composed: Mapping[str, _Composed], runs: Sequence[Run]) -> dict[str, Setting]:
    """The flags that the request says and some runs do not read, and whether any of its runs does."""
    is_read = {
        **{name: any(one.reads("train", name) for one in composed.values()) for name in ("epochs", "batch_size")},
        "annotated": any(run.spec.annotated is not None for run in runs),
        "pairs": any(run.spec.pairs is not None for run in runs),
    }
    return {
        name: Setting([str(getattr(request, name))], list(composed), read, request.before_value(name))
        for name, read in is_read.items()
        if getattr(request, name) is not None
    }


def _encoder(request: Request, name: str, params: Mapping[str, Any], plan: Plan) -> EncoderSpec:
    """The encoder; with --weights their file is read, kept by its content, and tried on the encoder."""
    if request.weights is None:
        return encoder_spec(name, params)
    from fairssl.train.pretrained import take  # with torch

    found = encoder_spec(name, {key: value for key, value in params.items() if key not in ("source", "licence")})
    config = kinds.encoders.get(found.name).Config
    if "weights" not in config.model_fields:
        raise UserError(f"--weights {request.weights}: encoder {name} is drawn at random only; name a timm model")
    if "weights" in params:
        raise UserError("--weights and --set encoder.weights name weights twice; give one")
    weights = take(Path(request.weights).expanduser())
    pixels = {"pixels": "half"} if weights.half_pixels and "pixels" in config.model_fields else {}
    spec = encoder_spec(name, {**pixels, **params, "weights": weights.digest})
    plan.weights[spec.name, weights.digest] = str(request.weights)
    return spec


class _Composed:
    """A method that the user named, with `--set` applied."""

    def __init__(self, text: str, method: Method, values: Mapping[str, Mapping[str, Any]]) -> None:
        self.method = method
        spec: MethodSpec = compose(text, method, values)
        probe: ProbeConfig = configure(ProbeConfig, "probe", {**method.probe_params, **values.get("probe", {})})
        # part -> what the method's runs cannot read of it; of the training loop it is added once the dataset is known
        self.unread: dict[str, frozenset[str]] = {"probe": unread_in_probe(spec, probe)}
        self.probe = without(probe, self.unread["probe"])
        self.spec = spec if probe.thresholds == "none" else spec.model_copy(update={"group": "annotated"})
        self.parts = {"train", "probe", method.objective, *method.heads}
        kept = {head.name for head in spec.heads}
        for kind, name, ours in (
            (kinds.objectives, method.objective, method.params),
            *((kinds.heads, name, params) for name, params in method.heads.items()),
        ):
            if kind is kinds.heads and name not in kept:  # of weight 0
                self.unread[name] = frozenset(kinds.heads.get(name).Config.model_fields) - {"weight"}
            else:
                self.unread[name] = unread_of_part(kind, name, ours, values)

    def reads(self, part: str, key: str) -> bool:
        """Whether a run of the method reads what `--set part.key` sets."""
        return same_setting(f"{part}.{key}").rpartition(".")[2] not in self.unread.get(part, ())


def _data_spec(source: Dataset, facts: DataFacts | None, image_size: int, target: str, attribute: str) -> DataSpec:
    return DataSpec(
        dataset=source.name,
        version=source.version,
        params=source.config.params(),
        fingerprint=facts.fingerprint if facts else None,
        image_size=image_size,
        target=target,
        attribute=attribute,
    )


def _pairs(request: Request, name: str, card: Card) -> list[tuple[str, str]]:
    """(target, attribute) of the grid for one dataset, checked against its card."""
    targets = list(request.targets or [card.defaults.target])
    attributes = list(request.attributes or [card.defaults.attribute])
    for target in targets:
        check_label(request.called("targets"), name, card, "target", target)
    for attribute in attributes:
        check_label(request.called("attributes"), name, card, "attribute", attribute)
    attributes = list(dict.fromkeys(in_card_order(card, attribute) for attribute in attributes))
    pairs = [(y, a) for y in targets for a in attributes if y not in combined(card, a)]
    if not pairs:
        where = f"{request.called('targets')} {targets[0]} and {request.called('attributes')} {attributes[0]}"
        raise UserError(f"{where}: a target cannot be its own sensitive attribute")
    for attribute in attributes:
        _check_order(request, name, card, attribute)
    return pairs


def _check_order(request: Request, name: str, card: Card, attribute: str) -> None:
    """Refuse `--pairs adjacent` of more than two groups that are in no order."""
    n_groups = len(groups_of(card, attribute))
    if request.pairs == "adjacent" and n_groups > 2 and attribute not in card.ordered:
        raise UserError(
            f"{request.said('pairs')} needs groups in order, and the {n_groups} groups of {name}'s {attribute} are nominal; "
            "use all or max, or leave it out"
        )


def _pretrain_pair(request: Request) -> tuple[str, str, str] | None:
    """(dataset, target, attribute) that encoders are trained on, where the user named a dataset for it."""
    name = request.pretrain_dataset
    if name is None:
        return None
    with _naming(request, "pretrain_dataset"):
        card = kinds.datasets.get(name).card
    target = request.pretrain_target or card.defaults.target
    attribute = request.pretrain_attribute or card.defaults.attribute
    check_label(request.called("pretrain_target"), name, card, "target", target)
    check_label(request.called("pretrain_attribute"), name, card, "attribute", attribute)
    if target in combined(card, attribute):
        where = f"{request.called('pretrain_target')} {target} and {request.called('pretrain_attribute')} {attribute}"
        raise UserError(f"{where}: they must be different")
    return name, target, in_card_order(card, attribute)


def _find(
    source: Dataset,
    data_dir: Path | str | None,
    plan: Plan,
    allow_absent: bool,
    inspected: dict[str, DataFacts],
    progress: Progress,
) -> tuple[Path | None, DataFacts | None, Card]:
    """Where a dataset lies, what is there, and its card for that."""
    try:
        root = root_of(source, data_dir)
        name = canonical([source.name, source.config.params(), str(root)])
        if name not in inspected:
            inspected[name] = inspect(source, root, progress)
        return root, inspected[name], card_at(source, root)
    except UserError as error:
        if not allow_absent or source.card.embedded or not source.card.targets:  # which only the data can tell
            raise
        plan.absent[source.name] = str(error)
        return None, None, source.card


def _image_size(request: Request, name: str, card: Card, preset: str, facts: DataFacts | None) -> int:
    """The asked size, never above the stored one; a default is lowered to it."""
    stored = facts.max_image_size if facts else None
    if request.image_size is not None:
        if stored is not None and request.image_size > stored:
            raise UserError(
                f"{request.said('image_size')}: the images of {name} are stored at {stored} px; at most that"
            )
        return request.image_size
    size = card.defaults.image_size if preset != "smoke" or card.embedded else min(32, card.defaults.image_size)
    return _at_most_stored(size, facts)


def _at_most_stored(size: int, facts: DataFacts | None) -> int:
    stored = facts.max_image_size if facts else None
    return size if stored is None else min(size, stored)


def _train(request: Request, card: Card, preset: str, ours: Mapping[str, Any], user: Mapping[str, Any]) -> TrainConfig:
    """Preset, then what the method sets, then --set, then the flags; a flag and a --set that disagree are refused."""
    epochs = card.defaults.epochs
    if preset == "quick":
        epochs = max(1, epochs // 10)
    elif preset == "smoke" and not card.embedded:
        epochs = 1
    values: dict[str, Any] = {
        "epochs": epochs,
        "batch_size": card.defaults.batch_size,
        "precision": precision_of(preset),
        **ours,
        **user,
    }
    for name, flag in (("epochs", request.epochs), ("batch_size", request.batch_size)):
        if flag is not None:
            if name in user and int(user[name]) != flag:
                how = request.called_setting(f"train.{name}")
                raise UserError(f"train.{name} is {user[name]} by {how} and {flag} by {request.called(name)}; give one")
            values[name] = flag
    config: TrainConfig = configure(TrainConfig, "train", values)
    return config


def _with_equal_views(train: TrainConfig, method: MethodSpec) -> TrainConfig:
    """The batch with which a step of the method takes as many augmented images as one of two views per image with both
    streams: the annotated batch is otherwise extra training for those that have one."""
    heads = [head for head in (kinds.heads.get(head.name) for head in method.heads) if head.streams]
    n_views = max(part.n_views for part in (kinds.objectives.get(method.objective.name), *heads))
    wanted = 2 * (train.batch_size + (train.annotated_batch_size or train.batch_size))
    if len(method.streams) == 2 and n_views == 2:
        return train
    n_images = wanted // (n_views * len(method.streams))
    return train.model_copy(update={"batch_size": n_images, "annotated_batch_size": 0})
