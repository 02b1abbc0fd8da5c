"""The straight line: spec -> data -> pretrain -> embed -> probe -> metrics -> record. No stage calls back."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairssl import registry
from fairssl.plugin import Dataset
from fairssl.registry import configure, near
from fairssl.spec import (
    DataSpec,
    ProbeConfig,
    RunSpec,
    TrainConfig,
    check_set,
    check_share,
    encoder_spec,
    method_spec,
    metric_versions,
    parse_method,
    parse_set,
)
from fairssl.types import DataFacts, Embeddings, Outcome, Progress, Split, Splits, UserError, Value, first_line, silent

if TYPE_CHECKING:
    import torch

    from fairssl.probe import Scorer
    from fairssl.scoring import Floor, Interval
    from fairssl.train import Trainer

PRESETS = ("smoke", "quick", "paper")
MAX_SEEDS = 10_000


@dataclass(frozen=True)
class Request:
    """What a user asked of `fairssl bench`; None: as the dataset's card says."""

    methods: Sequence[str] = ("simclr", "sogclr", "sofclr")
    datasets: Sequence[str] = ("synthfaces",)
    attributes: Sequence[str] = ()
    targets: Sequence[str] = ()
    seeds: int | None = None
    encoder: str | None = None
    preset: str | None = None
    epochs: int | None = None
    image_size: int | None = None
    batch_size: int | None = None
    annotated: float | None = None
    assignments: Sequence[str] = ()
    data_dir: Path | None = None


@dataclass(frozen=True)
class Cell:
    """One run of the grid: the name the user gave its method, and its spec."""

    label: str
    spec: RunSpec


@dataclass
class Plan:
    """The grid resolved: every cell, and where each dataset lies. `absent`: datasets that are not on this machine."""

    cells: list[Cell]
    roots: dict[str, Path | None]
    absent: dict[str, str] = field(default_factory=dict)  # dataset -> what to do about it

    def pretrainings(self) -> dict[str, list[Cell]]:
        """pretrain key -> the cells that share it, in the grid's order."""
        found: dict[str, list[Cell]] = {}
        for cell in self.cells:
            found.setdefault(cell.spec.pretrain_key, []).append(cell)
        return found


# --------------------------------------------------------------------------- grids in files

GRIDS = "fairssl_grids"  # the package of the grids that come with fairssl
_FIELDS = {  # key in a TOML file -> field of a request
    "methods": "methods",
    "datasets": "datasets",
    "attributes": "attributes",
    "targets": "targets",
    "set": "assignments",
    **{name: name for name in ("seeds", "encoder", "preset", "epochs", "image_size", "batch_size", "annotated")},
}


def grid_names() -> dict[str, Path]:
    """name -> file of every grid that comes with fairssl."""
    import importlib.util

    found = importlib.util.find_spec(GRIDS)
    folders = [Path(p) for p in (found.submodule_search_locations or ())] if found else []
    return {path.stem: path for folder in folders for path in sorted(folder.glob("*.toml"))}


def load_grid(name: str) -> list[Request]:
    """The requests of a grid: a TOML file's path, or the name of one that comes with fairssl.

    A file is one request, or several under `[[grid]]` whose cells are joined; what stands at the top is shared by all.
    """
    import tomllib

    path = Path(name)
    if not path.is_file():
        known = grid_names()
        if name not in known:
            raise UserError(f"--grid {name!r} is no file and no grid of fairssl's{near(name, known)}")
        path = known[name]
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"--grid {path}: not TOML: {error}") from error
    blocks = content.pop("grid", [{}])
    return [_request(path, {**content, **block}) for block in blocks]


def _request(path: Path, values: Mapping[str, Any]) -> Request:
    many = {"methods", "datasets", "attributes", "targets", "set"}
    whole = {"seeds", "epochs", "image_size", "batch_size"}
    for key, value in values.items():
        if key not in _FIELDS:
            raise UserError(f"--grid {path}: unknown key {key!r}{near(key, _FIELDS)}")
        if key in many:
            fits = isinstance(value, list) and all(isinstance(item, str) for item in value)
        elif key in whole:
            fits = isinstance(value, int) and not isinstance(value, bool)
        else:
            fits = isinstance(value, float | int) if key == "annotated" else isinstance(value, str)
        if not fits:
            raise UserError(f"--grid {path}: {key} = {value!r} is not of the right type")
    return Request(**{_FIELDS[key]: value for key, value in values.items()})


def resolve_all(requests: Sequence[Request], allow_absent: bool = False, progress: Progress = silent) -> Plan:
    """One plan of several requests; a cell that two of them name is there once."""
    plans = [resolve(request, allow_absent, progress) for request in requests]
    cells = {(cell.label, cell.spec.key): cell for plan in plans for cell in plan.cells}
    joined = Plan(cells=list(cells.values()), roots={})
    for plan in plans:
        joined.roots.update(plan.roots)
        joined.absent.update(plan.absent)
    return joined


# --------------------------------------------------------------------------- resolve


def resolve(request: Request, allow_absent: bool = False, progress: Progress = silent) -> Plan:
    """Check everything the user wrote, then find the data, then write down every run. Reads no image.

    With `allow_absent`, a dataset that is not here is planned with an unknown fingerprint and listed in `Plan.absent`.
    """
    values = parse_set(request.assignments)
    _check_numbers(request)
    methods = {text: parse_method(text) for text in request.methods}
    check_set(values, list(methods.values()))
    if request.preset is not None and request.preset not in PRESETS:
        raise UserError(f"unknown --preset {request.preset!r}{near(request.preset, PRESETS)}")
    specs = {text: method_spec(text, values) for text in methods}
    sources = {name: _dataset(name, values.get("data", {})) for name in request.datasets}
    asked = [(name, *pair) for name in sources for pair in _pairs(request, name, sources[name])]

    plan = Plan(cells=[], roots={})
    facts: dict[str, DataFacts | None] = {}
    for name, source in sources.items():
        plan.roots[name], facts[name] = _find(source, request.data_dir, plan, allow_absent)
    encoders: dict[str, Any] = {}
    versions = metric_versions()
    probes = {
        text: configure(_Named(ProbeConfig), "probe", {**method.probe_params, **values.get("probe", {})})
        for text, method in methods.items()
    }
    trains: dict[
        tuple[str, str], TrainConfig
    ] = {}  # (dataset, method); cells share their parts, and so the work on them
    for name, target, attribute in asked:
        source, card, fact = sources[name], sources[name].card, facts[name]
        preset = request.preset or card.defaults.preset
        encoder = request.encoder or card.defaults.encoder
        if encoder not in encoders:
            encoders[encoder] = encoder_spec(encoder, values.get("encoder", {}))
        data = DataSpec(
            dataset=name,
            version=source.version,
            params=source.config.params(),
            fingerprint=fact.fingerprint if fact else None,
            image_size=_image_size(request, name, card, preset, fact),
            target=target,
            attribute=attribute,
        )
        for text, method in specs.items():
            if (name, text) not in trains:
                trains[name, text] = _train(request, card, preset, methods[text].train, values.get("train", {}))
            for seed in range(request.seeds if request.seeds is not None else card.defaults.seeds):
                spec = RunSpec(
                    method=method,
                    data=data,
                    annotated=card.defaults.annotated if request.annotated is None else request.annotated,
                    encoder=encoders[encoder],
                    train=trains[name, text],
                    probe=probes[text],
                    metrics=versions,
                    seed=seed,
                )
                plan.cells.append(Cell(text, spec))
    return plan


def _check_numbers(request: Request) -> None:
    for flag, value, low in (
        ("--seeds", request.seeds, 1),
        ("--epochs", request.epochs, 1),
        ("--image-size", request.image_size, 8),
        ("--batch-size", request.batch_size, 2),
    ):
        if value is not None and value < low:
            raise UserError(f"{flag} {value}: must be at least {low}")
    if request.seeds is not None and request.seeds > MAX_SEEDS:
        raise UserError(f"--seeds {request.seeds}: it is a number of runs; at most {MAX_SEEDS}")
    for flag, name in (("--encoder", request.encoder), ("--preset", request.preset)):
        if name == "":
            raise UserError(f"{flag} is empty; leave it out for the default")
    if request.annotated is not None and not 0 < request.annotated <= 1:
        raise UserError(f"--annotated {request.annotated}: must be a share in (0, 1], as in --annotated 0.05")
    for flag, names in (
        ("--method", request.methods),
        ("--dataset", request.datasets),
        ("--attr", request.attributes),
        ("--target", request.targets),
    ):
        twice = [name for i, name in enumerate(names) if name in names[:i]]
        if twice:
            raise UserError(f"{flag} names {twice[0]!r} twice; name it once")


def _dataset(name: str, params: Mapping[str, Any]) -> Dataset:
    return registry.datasets.build(name, params)


def _pairs(request: Request, name: str, source: Dataset) -> list[tuple[str, str]]:
    """(target, attribute) of every grid cell for one dataset, checked against its card."""
    card = source.card
    targets = list(request.targets) or [card.defaults.target]
    attributes = list(request.attributes) or [card.defaults.attribute]
    for flag, asked, known in (("--target", targets, card.targets), ("--attr", attributes, card.attributes)):
        for value in asked:
            if value not in known:
                word = "target" if flag == "--target" else "attribute"
                raise UserError(f"{flag} {value!r}: {name} has no such {word}{near(value, known)}")
    pairs = [(target, attribute) for target in targets for attribute in attributes if target != attribute]
    if not pairs:
        raise UserError(f"--target {targets[0]} --attr {attributes[0]}: a target cannot be its own sensitive attribute")
    return pairs


def _find(
    source: Dataset, data_dir: Path | None, plan: Plan, allow_absent: bool
) -> tuple[Path | None, DataFacts | None]:
    if source.card.embedded:
        return None, source.inspect(None)
    from fairssl.packs import data_root

    try:
        root = data_root(data_dir, source.name)
        facts = source.inspect(root)
    except UserError as error:
        if not allow_absent:
            raise
        plan.absent[source.name] = str(error)
        return None, None
    return root, facts


def _image_size(request: Request, name: str, card: Any, preset: str, facts: DataFacts | None) -> int:
    """The asked size, never above the stored one; a default is lowered to it."""
    stored = facts.max_image_size if facts else None
    if request.image_size is not None:
        if stored is not None and request.image_size > stored:
            raise UserError(
                f"--image-size {request.image_size}: the images of {name} are stored at {stored} px; at most that"
            )
        return request.image_size
    size = card.defaults.image_size if preset != "smoke" or card.embedded else min(32, card.defaults.image_size)
    return size if stored is None else min(size, stored)


def _train(request: Request, card: Any, preset: str, ours: Mapping[str, Any], user: Mapping[str, Any]) -> TrainConfig:
    """Preset, then what the method sets, then --set, then the flags; a flag and a --set that disagree are refused."""
    epochs = card.defaults.epochs
    if preset == "quick":
        epochs = max(1, epochs // 10)
    elif preset == "smoke" and not card.embedded:
        epochs = 1
    values: dict[str, Any] = {
        "epochs": epochs,
        "batch_size": card.defaults.batch_size,
        "precision": "float32" if preset == "smoke" else "bf16",
        **ours,
        **user,
    }
    for name, flag in (("epochs", request.epochs), ("batch_size", request.batch_size)):
        if flag is not None:
            if name in user and int(user[name]) != flag:
                raise UserError(f"train.{name} is {user[name]} by --set and {flag} by its own flag; give one")
            values[name] = flag
    return configure(_Named(TrainConfig), "train", values)


@dataclass(frozen=True)
class _Named:
    """A bare config where `configure` expects a plugin."""

    Config: type


# --------------------------------------------------------------------------- run


def pick_device(name: str = "auto") -> torch.device:
    """`auto`: a GPU if there is one. A device that is not here is an error, never replaced."""
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"--device {name!r} cannot be used: {first_line(error)}; try --device cpu or auto") from error
    return device


class SplitsCache:
    """The splits of the last (dataset, target, attribute, size): a grid is run in that order."""

    def __init__(self, roots: Mapping[str, Path | None], progress: Progress = silent):
        self.roots, self.progress = roots, progress
        self._key: object = None
        self._splits: Splits | None = None

    def get(self, data: DataSpec) -> Splits:
        key = data.model_dump_json()
        if self._splits is None or key != self._key:
            self._splits = None  # free the last one first
            source = _dataset(data.dataset, data.params)
            root = self.roots[data.dataset]
            self._splits = source.load(
                root, data.target, data.attribute, data.image_size, data.split_seed, self.progress
            )
            self._key = key
            check_splits(data, self._splits)
        return self._splits


def check_splits(data: DataSpec, splits: Splits) -> None:
    """What no run can do without: both classes in training, two groups in the test set."""
    import numpy as np

    targets = np.unique(splits.train.target)
    if len(targets) < 2:
        raise UserError(f"target {data.target!r} has one value ({targets[0]}) in the training split of {data.dataset}")
    groups = np.unique(splits.train.group[splits.train.group >= 0])
    if len(groups) < 2:
        raise UserError(
            f"attribute {data.attribute!r} has one value in the training split of {data.dataset}; nothing to compare"
        )


def check_streams(spec: RunSpec, splits: Splits, n_devices: int) -> None:
    """Refuse a training split that has too few images for a batch on each device."""
    import torch

    from fairssl.data import to_device
    from fairssl.train import index_streams

    rows = annotated_rows(spec, splits).numpy()
    data = to_device(splits.train, rows, torch.device("cpu"), images=torch.empty(0))
    for name, stream in index_streams(spec, data).items():
        check_share(name, stream.batch_size, n_devices)


def prepare(spec: RunSpec, splits: Splits, device: torch.device, images: torch.Tensor | None = None) -> Trainer:
    """The trainer of a spec at its first step: encoder, parts, optimisers, all from the spec's seed. `images`: the
    training images as `place` has put them, if they are to be shared."""
    from fairssl.data import to_device
    from fairssl.train import Trainer

    data = to_device(splits.train, annotated_rows(spec, splits).numpy(), device, images)
    return Trainer(spec, data, len(splits.groups))


def annotated_rows(spec: RunSpec, splits: Splits) -> torch.Tensor:
    """(n_annotated,) positions in the training split, ascending, of the images whose group the spec's parts may see."""
    import torch

    from fairssl.data import annotated_subset

    found = annotated_subset(splits.train.group, len(splits.groups), spec.annotated, spec.data.attribute, spec.seed)
    return torch.from_numpy(found)


@dataclass(frozen=True)
class Evaluation:
    """What one run says: values on test and validation, the test predictions, and the diagnostics beside them."""

    test: Mapping[str, Value]
    val: Mapping[str, Value]
    outcome: Outcome  # of the test split, in its order
    leakage: Mapping[str, Any]
    intervals: Mapping[str, Interval]  # over resampled test rows
    noise_floor: Mapping[str, Floor]  # with the groups permuted


class Embedded:
    """The features of one trained encoder on one dataset's splits.

    The trainer may be another cell's that shares the pretraining: its annotated images, its heads that act after
    training and its attribute need not be those of the cell to evaluate.
    """

    def __init__(self, trainer: Trainer, splits: Splits, progress: Progress = silent):
        from fairssl.probe import embed

        self.trainer, self.splits = trainer, splits
        represent = trainer.objective.represent
        for part in trainer.parts.values():
            part.eval()
        self.features = {
            name: embed(trainer.encoder, represent, getattr(splits, name), trainer.device, progress=progress)
            for name in ("train", "val", "test")
        }

    def transformed(self, spec: RunSpec) -> dict[str, torch.Tensor]:
        """The features of each split, (N, F), after what the spec's heads fit on them, in the order of their names."""
        import torch

        from fairssl.train import build_parts

        rows = annotated_rows(spec, self.splits)
        group = torch.full((len(self.splits.train),), -1)
        group[rows] = torch.from_numpy(self.splits.train.group)[rows]
        parts = self.trainer.parts
        if any(not registry.heads.get(head.name).streams for head in spec.method.heads):
            # Another cell's trainer may lack them, or have them with other parameters.
            data = replace(self.trainer.data, annotated=rows)
            fresh = build_parts(spec, self.trainer.encoder, data, len(self.splits.groups), self.trainer.n_steps)
            parts = {**parts, **{name: part for name, part in fresh.items() if not part.streams}}
        found = self.features
        for head in spec.method.heads:
            part: Any = parts[head.name].to(self.trainer.device).eval()
            transform = part.fit(Embeddings(found["train"], self.splits.train.target, group))
            if transform is not None:
                found = {split: transform(f) for split, f in found.items()}
        return found

    def evaluate(self, spec: RunSpec) -> Evaluation:
        """Score validation and test as the method says, and judge. Nothing is chosen on either."""
        from fairssl.probe import leakage
        from fairssl.scoring import bootstrap, check_outcome, evaluate, noise_floor

        features = self.transformed(spec)
        score = self._scorer(spec, features["train"])
        outcomes = {}
        for name in ("val", "test"):
            split: Split = getattr(self.splits, name)
            outcomes[name] = check_outcome(
                score(features[name]).double().cpu().numpy(), split.target, split.group, self.splits.groups
            )
        return Evaluation(
            test=evaluate(outcomes["test"]),
            val=evaluate(outcomes["val"]),
            outcome=outcomes["test"],
            leakage=leakage(features["train"], self.splits.train.group, features["test"], self.splits.test.group),
            intervals=bootstrap(outcomes["test"]),
            noise_floor=noise_floor(outcomes["test"]),
        )

    def _scorer(self, spec: RunSpec, f: torch.Tensor) -> Scorer:
        import torch

        from fairssl.data import balanced
        from fairssl.probe import fit_probe

        if spec.method.probe == "own":
            own = self.trainer.objective.scores

            def score(f: torch.Tensor) -> torch.Tensor:
                with torch.inference_mode():
                    found = own(f)
                if found is None:
                    raise TypeError(
                        f"objective {spec.method.objective.name!r} says it scores by itself, but returned None"
                    )
                return found

            return score
        target = torch.from_numpy(self.splits.train.target)
        if spec.method.probe in ("annotated_head", "balanced_head"):
            rows = annotated_rows(spec, self.splits)
            if spec.method.probe == "balanced_head":
                rows = balanced(rows, target, torch.from_numpy(self.splits.train.group), spec.seed)
            f, target = f[rows.to(f.device)], target[rows]
        return fit_probe(f, target, spec.probe, spec.seed)


def device_name(device: torch.device) -> str:
    import torch

    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"{device.type} ({platform.machine()})"


def environment(device: torch.device) -> dict[str, str]:
    """Versions and hardware, for the record; no part of a key."""
    import numpy
    import timm
    import torch
    import torchvision

    import fairssl

    return {
        "fairssl": fairssl.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
        "timm": timm.__version__,
        "numpy": numpy.__version__,
        "device": device_name(device),
        "threads": str(torch.get_num_threads()),
    }


def facts(spec: RunSpec, splits: Splits) -> dict[str, Any]:
    """What a table's heading needs and the spec does not hold."""
    card = registry.datasets.get(spec.data.dataset).card
    return {
        "groups": list(splits.groups),
        "positive": card.positive.get(spec.data.target, spec.data.target),
        "n_train": len(splits.train),
        "n_val": len(splits.val),
        "n_test": len(splits.test),
        "n_annotated": len(annotated_rows(spec, splits)),
    }
