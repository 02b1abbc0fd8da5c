"""`fairssl new`: a working plugin with its test, to be changed into what you want."""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping
from pathlib import Path
from string import Template

import typer

from fairssl.cli._paths import parse_path
from fairssl.types import KINDS, UserError

TEMPLATED = ("method", "objective", "head", "metric", "dataset")


def new(
    kind: str = typer.Argument(..., help="method, objective, head, metric or dataset; plural too."),
    name: str = typer.Argument(..., help="What users will type: lower_snake_case."),
    into: Path = typer.Option(
        Path("."),
        "--into",
        parser=parse_path,
        help="A fairssl checkout, a plugin package made by this command, or any folder.",
    ),
) -> None:
    """Write a working plugin and its test.

    In a fairssl checkout: plugins/KIND/NAME.py and tests/test_NAME.py. In a plugin package: the same inside it. Anywhere
    else: a new plugin package in a folder fairssl-NAME, to be installed with pip install -e.
    """
    from fairssl import kinds

    one = kinds.by_kind(kind).one
    if one not in TEMPLATED:
        raise UserError(f"there is no template for an {one}; there are {', '.join(TEMPLATED)}")
    _check_name(one, name)
    if not into.is_dir():
        raise UserError(f"--into {str(into)!r} is not a folder; make it first")
    files = _files(one, name, into)
    _write_all(files)
    for path in files:
        typer.echo(f"wrote {path}")
    if Path(next(iter(files))).name == "pyproject.toml":
        typer.echo(f"make it known: pip install -e {next(iter(files)).parent}")
    test = next(path for path in files if path.name == f"test_{name}.py")
    typer.echo(f"then: fairssl check {one} {name}; python -m pytest {test}")


def _check_name(one: str, name: str) -> None:
    """A Python module's name that nothing else in the same grammar has."""
    from fairssl import kinds, registry
    from fairssl.spec.method import CORE_PARTS

    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise UserError(f"{name!r} cannot name a plugin: lower case letters, digits and _, as in my_{one}")
    if name in CORE_PARTS:
        raise UserError(f"{name!r} cannot name a plugin: --set calls a part of the core so; take another name")
    rivals = ("methods", "objectives", "heads") if one in ("method", "objective", "head") else (f"{one}s",)
    for kind in rivals:
        rival = kinds.by_kind(kind)
        if name in rival.offers():
            path = rival.offers()[name][0].path
            raise UserError(f"there is a {rival.one} {name!r} already ({path}); take another name")
    if one in ("method", "objective"):
        for other in kinds.methods.where():
            try:
                aliases = kinds.methods.get(other).aliases
            except registry.BrokenPlugin:
                continue
            if name in aliases:
                raise UserError(f"{name!r} is an alias of method {other!r} already; take another name")
    if one == "metric":
        symbol = _camel(name)
        for other in kinds.metrics.where():
            if kinds.metrics.get(other).symbol == symbol:
                raise UserError(f"metric {other!r} has the symbol {symbol!r} already; take another name")


def _files(one: str, name: str, into: Path) -> dict[Path, str]:
    """Path -> text, the project's own file first where there is one."""
    words = {"name": name, "Name": _camel(name), "kind": one}
    plugin = Template(PLUGINS[one]).substitute(words)
    test = Template(TESTS[one]).substitute(words)
    if all((into / "plugins" / kind).is_dir() for kind in KINDS):
        return {into / "plugins" / f"{one}s" / f"{name}.py": plugin, into / "tests" / f"test_{name}.py": test}
    package = _package_of(into)
    if package is not None:
        root, found = into, {}
    else:
        root, package = into / f"fairssl-{name.replace('_', '-')}", f"fairssl_{name}"
        if root.exists():
            raise UserError(f"{str(root)!r} exists already; nothing is overwritten: take another name or --into")
        project = Template(PYPROJECT).substitute(project=root.name, package=package)
        found = {
            root / "pyproject.toml": project,
            root / package / "__init__.py": f'"""Plugins for fairssl: {name}."""\n',
        }
    folder = root / package / f"{one}s"
    if not (folder / "__init__.py").exists():
        found[folder / "__init__.py"] = ""
    return {**found, folder / f"{name}.py": plugin, root / "tests" / f"test_{name}.py": test}


def _package_of(folder: Path) -> str | None:
    """The import package that a project in `folder` offers as plugins; None if there is no such project."""
    import tomllib

    project = folder / "pyproject.toml"
    if not project.is_file():
        return None
    try:
        content = tomllib.loads(project.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{project} cannot be read: {error}") from error
    points: Mapping[str, str] = content.get("project", {}).get("entry-points", {}).get("fairssl.plugins", {})
    return next(iter(points.values()), None)


def _write_all(files: Mapping[Path, str]) -> None:
    """All files or none; a file that is there already is never touched."""
    for path in files:
        if path.exists():
            raise UserError(f"{path} exists already; nothing is overwritten: take another name or move it")
    canonical_json: list[Path] = []
    try:
        for path, text in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "x", encoding="utf-8") as file:
                canonical_json.append(path)
                file.write(text)
    except OSError as error:
        for path in canonical_json:
            path.unlink(missing_ok=True)
        raise UserError(f"cannot write {path}: {error.strerror or error}; nothing was left behind") from error


def _camel(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))


# --------------------------------------------------------------------------- templates

PYPROJECT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "$project"
version = "0.1.0"
description = "Plugins for fairssl."
requires-python = ">=3.11"
dependencies = ["fairssl"]

[project.entry-points."fairssl.plugins"]
$package = "$package"

[tool.setuptools.packages.find]
include = ["$package*"]
"""

PLUGINS = {
    "method": '''\
"""$Name: SimCLR with contrast inside each group of the annotated part, at half the usual weight."""

from fairssl.api import Method

METHOD = Method(
    summary="SimCLR and half a CCL",  # one line for `fairssl list`
    paper="Authors. Title. Venue, year.",
    objective="simclr",
    heads={"ccl": {"weight": 0.5}},  # head -> the parameters that differ from its defaults
    contrastive=True,
    group="annotated",  # whose group the parts see: none, annotated, all
    notes="Where your reading differs from the paper, and the search space.",
)
''',
    "objective": '''\
"""Two views of an image agree, and all images spread over the sphere; no labels.

Wang, Isola: Understanding Contrastive Representation Learning through Alignment and Uniformity on the Hypersphere,
ICML 2020, eqs. 7 and 8.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from pydantic import Field
from torch import Tensor

from fairssl.api import Batch, Context, Objective, PluginConfig, Stream, Terms
from fairssl.nn import full_precision, mlp, normalize


class $Name(Objective):
    """L = mean of |z - z'|^2 + uniformity * log of the mean of exp(-2 |z - z~|^2) over pairs of different images."""

    class Config(PluginConfig):
        uniformity: float = Field(1.0, ge=0)  # weight of the spread
        projection_dim: int = Field(128, ge=1)  # P

    def __init__(self, config: Config, ctx: Context) -> None:
        super().__init__(config, ctx)
        self.projector = mlp(ctx.feature_dim, 256, config.projection_dim)

    def project(self, f: Tensor) -> Tensor:
        return self.projector(f)

    def forward(self, batches: Mapping[Stream, Batch]) -> Terms:
        z, z_ = (normalize(view) for view in batches["all"].z)  # (B, P) each
        spread = (_uniformity(z) + _uniformity(z_)) / 2
        return Terms(
            primal={"alignment": (z - z_).square().sum(1).mean(), "uniformity": self.config.uniformity * spread}
        )


def _uniformity(z: Tensor) -> Tensor:
    """Unit vectors (B, P) -> 0-d, in -8..0; small when they spread."""
    with full_precision(z):
        distance = 2 - 2 * z @ z.T  # squared
    own = torch.eye(len(z), dtype=torch.bool, device=z.device)
    pairs = len(z) * (len(z) - 1)
    return (-2 * distance).masked_fill(own, -torch.inf).flatten().logsumexp(0) - math.log(pairs)
''',
    "head": '''\
"""The groups' mean representations meet: a penalty on the distance of each group's mean from the mean of all.

The linear case of maximum mean discrepancy (Gretton and others: A Kernel Two-Sample Test, JMLR 2012).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fairssl.api import Batch, Context, Head, HeadConfig, Stream, Terms
from fairssl.nn import normalize


class $Name(Head):
    """weight * mean over the groups in the batch of |mean of their f - mean of all f|^2, f at unit length; in 0..4.

    A group that is not in the batch adds nothing.
    """

    sees = frozenset({"group"})  # of "target", "group", "views": the rest is withheld
    streams = frozenset({"annotated"})  # where the group is known

    class Config(HeadConfig):  # `weight` comes with it
        pass

    def __init__(self, config: Config, ctx: Context) -> None:
        super().__init__(config, ctx)
        self.n_groups = ctx.n_groups

    def forward(self, batches: Mapping[Stream, Batch]) -> Terms:
        batch = batches["annotated"]
        assert batch.group is not None  # declared in `sees`
        f = normalize(torch.cat(batch.f))  # (V B, F)
        group = batch.group.repeat(len(batch.f))  # (V B,)
        return Terms(primal={"mean_gap": mean_gap(f, group, self.n_groups)})


def mean_gap(f: Tensor, group: Tensor, n_groups: int) -> Tensor:
    """(N, F) and codes (N,) -> 0-d, by a product with one-hot rows, which reads nothing back."""
    member = (group[:, None] == torch.arange(n_groups, device=f.device)).to(f.dtype)  # (N, G)
    count = member.sum(0)
    mean = (member.T @ f) / count.clamp(min=1)[:, None]
    distance = (mean - f.mean(0)).square().sum(1)
    present = (count > 0).to(f.dtype)
    return (distance * present).sum() / present.sum().clamp(min=1)
''',
    "metric": '''\
"""Largest difference between two groups' accuracies."""

from fairssl import scoring
from fairssl.api import Outcome, Undefined, Value, metric


@metric(symbol="$Name", better="lower", percent=True)
def $name(outcome: Outcome) -> Value:
    """max over groups of P(1[s > 0.5] = y | group) minus the min over groups, in [0, 1]; 0 is fair.

    Undefined if a declared group has no examples.
    """
    accuracies = scoring.accuracies(outcome)
    numbers = [value for value in accuracies if not isinstance(value, Undefined)]
    if len(numbers) < len(accuracies):
        return next(value for value in accuracies if isinstance(value, Undefined))
    return max(numbers) - min(numbers)
''',
    "dataset": '''\
"""A square on noise: its corner is the target, its tint the group, and the two go together in training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from pydantic import Field

from fairssl.api import Card, DataFacts, Dataset, Defaults, PluginConfig, Progress, Split, Splits, UserError, silent

GROUPS = ("red", "blue")


class $Name(Dataset):
    """Drawn images, no files. For images on disk see fairssl.api.ImageFiles and pack, and set card.obtain."""

    version = 1  # raise it when images, labels or splits change
    card = Card(
        title="Squares on noise",
        licence="CC0",
        source="drawn by this file",
        citation="none",
        targets=("corner",),
        attributes={"tint": GROUPS},
        positive={"corner": "at the bottom"},
        defaults=Defaults(
            target="corner",
            attribute="tint",
            image_size=32,
            batch_size=64,
            epochs=4,
            encoder="small_cnn",
            annotated=0.1,
            seeds=2,
            preset="smoke",
        ),
        embedded=True,
        train_depends_on=frozenset({"target", "attribute"}),  # what moves the training split
    )

    class Config(PluginConfig):
        n_train: int = Field(512, ge=8)  # images
        n_eval: int = Field(128, ge=8)  # images in validation, and as many in test
        correlation: float = Field(0.8, ge=0, le=1)  # share of training images whose tint goes with their corner

    def inspect(self, root: Path | None) -> DataFacts:
        n = self.config.n_train + 2 * self.config.n_eval
        return DataFacts(fingerprint="$name-1", n_images=n, max_image_size=None)

    def load(
        self,
        root: Path | None,
        target: str,
        attribute: str,
        image_size: int,
        split_seed: int = 0,
        progress: Progress = silent,
    ) -> Splits:
        """The three splits, images uint8 (N, 3, S, S); never the run's seed, only `split_seed`."""
        if target not in self.card.targets:
            raise UserError(f"{self.name} has no target {target!r}; it has {', '.join(self.card.targets)}")
        if attribute not in self.card.attributes:
            raise UserError(f"{self.name} has no attribute {attribute!r}; it has {', '.join(self.card.attributes)}")
        rng = np.random.Generator(np.random.PCG64(split_seed))
        agree = self.config.correlation
        return Splits(
            _draw("train", self.config.n_train, agree, image_size, rng),
            _draw("val", self.config.n_eval, 0.5, image_size, rng),
            _draw("test", self.config.n_eval, 0.5, image_size, rng),
            groups=GROUPS,
        )


def _draw(part: str, n: int, agree: float, size: int, rng: np.random.Generator) -> Split:
    target = np.arange(n, dtype=np.int64) % 2
    group = np.where(rng.permutation(n) < agree * n, target, 1 - target)
    images = rng.integers(0, 128, size=(n, 3, size, size), dtype=np.uint8)
    half, side = size // 2, max(1, size // 3)
    for image, y, a in zip(images, target, group, strict=True):
        top, left = y * half + rng.integers(half - side + 1), rng.integers(size - side + 1)
        image[2 * a, top : top + side, left : left + side] = 255
    return Split(images, target, group, tuple(f"{part}{i:05d}" for i in range(n)))
''',
}

TESTS = {
    "method": '''\
"""What $name is made of."""

from fairssl import testing
from fairssl.spec.method import method_spec


def test_contract():
    testing.assert_contract("method", "$name")


def test_its_parts():
    spec = method_spec("$name", {})
    assert (spec.objective.name, [head.name for head in spec.heads]) == ("simclr", ["ccl"])
    assert spec.heads[0].params["weight"] == 0.5
''',
    "objective": '''\
"""$name against values worked out by hand."""

import math

import pytest
import torch

from fairssl import kinds, testing
from fairssl.types import Batch, Context


def test_contract():
    testing.assert_contract("objective", "$name")


def test_two_opposite_images_whose_views_agree():
    ctx = Context(torch.nn.Identity(), 8, (3, 32, 32), n_train=2, n_annotated=2, n_targets=2, n_groups=2, n_steps=1)
    objective = kinds.objectives.build("$name", {}, ctx=ctx)
    z = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    batch = Batch(views=[], index=torch.arange(2), f=[z, z], project=lambda f: f)
    terms = objective({"all": batch}).primal
    assert terms["alignment"].item() == pytest.approx(0.0, abs=1e-6)
    assert terms["uniformity"].item() == pytest.approx(math.log(math.exp(-2 * 4)), rel=1e-5)
''',
    "head": '''\
"""$name against values worked out by hand."""

import pytest
import torch

from fairssl import kinds, testing
from fairssl.types import Batch, Context


def penalty(f, group):
    ctx = Context(torch.nn.Identity(), 2, (3, 32, 32), n_train=4, n_annotated=4, n_targets=2, n_groups=2, n_steps=1)
    head = kinds.heads.build("$name", {}, ctx=ctx)
    batch = Batch(views=[], index=torch.arange(len(f)), group=torch.tensor(group), f=[torch.tensor(f)])
    return head({"annotated": batch}).primal["mean_gap"].item()


def test_contract():
    testing.assert_contract("head", "$name")


def test_equal_groups_cost_nothing():
    assert penalty([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]], [0, 0, 1, 1]) == pytest.approx(0.0, abs=1e-7)


def test_opposite_groups():
    # The mean of all is 0, each group's mean has length 1.
    assert penalty([[1.0, 0.0], [-1.0, 0.0]], [0, 1]) == pytest.approx(1.0)


def test_a_missing_group_adds_nothing():
    assert penalty([[1.0, 0.0], [0.0, 1.0]], [1, 1]) == pytest.approx(0.0, abs=1e-7)
''',
    "metric": '''\
"""$name against values worked out by hand."""

import pytest

from fairssl import kinds, testing
from fairssl.scoring import check_outcome
from fairssl.types import Undefined


def test_contract():
    testing.assert_contract("metric", "$name")


def test_three_of_four_right_against_one_of_four():
    score, target = [0.9, 0.9, 0.1, 0.9, 0.9, 0.9, 0.1, 0.1], [1, 1, 0, 0, 1, 0, 1, 1]
    outcome = check_outcome(score, target, [0] * 4 + [1] * 4, ["0", "1"])
    assert kinds.metrics.get("$name")(outcome) == pytest.approx(3 / 4 - 1 / 4)


def test_a_group_without_examples():
    outcome = check_outcome([0.9], [1], [0], ["0", "1"])
    assert isinstance(kinds.metrics.get("$name")(outcome), Undefined)
''',
    "dataset": '''\
"""$name: its splits, and how its labels go together."""

import numpy as np

from fairssl import kinds, testing


def test_contract():
    testing.assert_contract("dataset", "$name")


def test_the_tint_goes_with_the_corner_in_training_alone():
    splits = kinds.datasets.build("$name", {}).load(None, "corner", "tint", 16)
    assert np.mean(splits.train.target == splits.train.group) == np.ceil(0.8 * 512) / 512
    assert np.mean(splits.test.target == splits.test.group) == 0.5
''',
}
