"""The torch-free contracts: how a configuration behaves, what a dataset is, what a metric is."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

from fairssl.registry import did_you_mean
from fairssl.types import Card, DataFacts, Outcome, Progress, Splits, UserError, Value, silent

MIN_CELL = 10  # images; see `DatasetConfig`

if TYPE_CHECKING:
    import numpy as np


class PluginConfig(BaseModel):
    """Base of every plugin's parameters: frozen, nothing unknown accepted. Every default is part of a run's key.

    Give each field a default, and below it a docstring that says what it is and in which unit: `fairssl show` prints it.

        class Config(PluginConfig):
            temperature: float = Field(0.3, gt=0)
            \"\"\"Tau: similarities are divided by it.\"\"\"

    A field that came after the first results, `Field(..., json_schema_extra={"added": True})`, is written nowhere while it
    has its default, which must be what was done before: so the results from before keep their keys.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True, use_attribute_docstrings=True
    )
    aliases: ClassVar[Mapping[str, str]] = {}  # another spelling -> the field, as `alpha` for an adversary's `weight`

    def params(self) -> dict[str, Any]:
        """Every parameter, defaults written in, as JSON values; an added field at its default is left out."""
        return self.model_dump(mode="json")

    @classmethod
    def added(cls) -> dict[str, Any]:
        """The defaults of the fields that came after the first results."""
        return {
            name: declared.get_default(call_default_factory=True)
            for name, declared in cls.model_fields.items()
            if isinstance(declared.json_schema_extra, Mapping) and declared.json_schema_extra.get("added")
        }

    @model_serializer(mode="wrap")
    def _without_added(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        found: dict[str, Any] = handler(self)
        for name, default in self.added().items():
            if getattr(self, name) == default:
                found.pop(name, None)
        return found

    def unread(self) -> frozenset[str]:
        """Names of the parameters that have no effect at the present values of the others, as a schedule's end where the
        schedule is constant. They are set to their defaults, so that a run has one key. Default: none."""
        return frozenset()


class DatasetConfig(PluginConfig):
    """A dataset's parameters; `--set data.NAME=VALUE` sets them.

    `min_cell`: a test split that has fewer images of some target x group is refused. In a cell of n images one image moves
    a rate by 1/n, and chance alone by about 0.5/sqrt(n): at 10 these are 10 and 16 points, more than methods differ by.
    """

    min_cell: int = Field(MIN_CELL, ge=0, json_schema_extra={"added": True})
    """Fewest test images of a target x group; a test split with fewer is refused."""


class Dataset:
    """A source of images with a binary target and a sensitive attribute.

    `root` is the folder or archive that the user pointed at; None for embedded data. Splits must not depend on the run's
    seed, only on `split_seed`, and are disjoint by content. Whoever calls `load` has checked what is asked for against the
    card, and checks what comes back: see `fairssl.data.splits.load_splits`.
    """

    name: ClassVar[str]  # the file's name, set by the registry
    version: ClassVar[int] = 1  # raise it when images, labels or splits change
    card: ClassVar[Card]

    class Config(DatasetConfig):
        pass

    def __init__(self, config: Any) -> None:
        self.config = config

    def card_for(self, root: Path | None) -> Card:
        """The card, with the targets and attributes of the data at `root`: `card` itself, unless the user's own files say
        which labels there are. Errors as `inspect`."""
        return self.card

    def inspect(self, root: Path | None) -> DataFacts:
        """Find the data and fingerprint its content, decoding nothing. Missing or empty: `UserError` with what to do."""
        raise NotImplementedError(f"{type(self).__module__}.{type(self).__name__} has no inspect")

    def load(
        self,
        root: Path | None,
        target: str,
        attribute: str,
        image_size: int,
        split_seed: int = 0,
        progress: Progress = silent,
    ) -> Splits:
        """The three splits at `image_size` pixels, 8 or more.

        `target` and `attribute` are two different names from the card. Every image has a target, 0 or 1; a group may be
        unknown, -1, in every split. Say in `Splits.departures` where the splits are not the ones that the dataset's
        authors fixed. `progress` may be told of what is done.
        """
        raise NotImplementedError(f"{type(self).__module__}.{type(self).__name__} has no load")

    def outline(
        self,
        root: Path | None,
        target: str,
        attribute: str,
        split_seed: int = 0,
        unreadable: Collection[str] = (),
        progress: Progress = silent,
    ) -> Splits | None:
        """What `load` gives, without pixels: images uint8 (N, 0), and none is decoded. `unreadable`: names of files that do
        not decode, where that is known; where it is not, `load` may give fewer images.

        With it, a plan whose splits cannot be used is refused before anything runs. None: they are known once loaded.
        """
        return None

    def labels(self, root: Path | None) -> Mapping[str, np.ndarray] | None:
        """Codes int64 (N,) of every target and attribute over all images found, by name, decoding nothing; -1 is unknown.

        None: they are only known once the images are loaded, and `load` is asked for each pair.
        """
        return None


def check_label(flag: str, dataset: str, card: Card, what: Literal["target", "attribute"], value: str) -> None:
    """Refuse a target or an attribute that the card lacks, with what was probably meant. `flag` begins the message."""
    known = card.targets if what == "target" else tuple(card.attributes)
    if not value:
        raise UserError(f"{flag} is needed: {dataset} has no default; it has {', '.join(known) or 'none'}")
    names = (value,) if what == "target" else combined(card, value)
    refused = card.refused.get(what, {})
    for name in names:
        if name in refused:
            raise UserError(f"{flag} {name!r}: {refused[name]}")
        if name not in known:
            which = f"such {what}" if len(names) == 1 else f"{what} {name!r}"
            raise UserError(f"{flag} {value!r}: {dataset} has no {which}{did_you_mean(name, known, card.synonyms)}")
        if names.count(name) > 1:
            raise UserError(f"{flag} {value!r} names {name} twice; name it once")


def combined(card: Card, attribute: str) -> tuple[str, ...]:
    """The attributes whose combinations are the groups of `attribute`: `male+young` has the groups of both, crossed."""
    return (attribute,) if attribute in card.attributes else tuple(attribute.split("+"))


def in_card_order(card: Card, attribute: str) -> str:
    """One spelling of a combination: `young+male` is `male+young` where the card has them in that order."""
    place = list(card.attributes).index
    return "+".join(sorted(combined(card, attribute), key=place))


def groups_of(card: Card, attribute: str) -> tuple[str, ...]:
    """The label of each group code of an attribute or a combination, whose last attribute changes fastest."""
    labels = (card.attributes[name] for name in combined(card, attribute))
    return tuple(" & ".join(one) for one in itertools.product(*labels))


IntervalKind = Literal["symmetric", "reversed", "none"]


class Metric(Protocol):
    """A metric as the registry gives it: a function of an `Outcome` with what a table must know of it."""

    name: str  # the file's name
    symbol: str  # the key in JSON
    heading: str  # of the column
    better: Literal["higher", "lower"]
    percent: bool  # printed x 100
    headline: bool  # one of the nine columns of the paper's tables
    order: int  # place among the columns
    given_target: bool  # conditions on the target: its noise floor keeps the size of every group-by-target cell
    symmetric: bool  # two groups may exchange their codes; False: it depends on which is declared first
    interval: IntervalKind  # which bootstrap interval suits it, see `fairssl.scoring.resampling`
    version: int

    def __call__(self, outcome: Outcome, /, **settings: Any) -> Value: ...


F = TypeVar("F", bound=Callable[[Outcome], Value])


def metric(
    symbol: str,
    *,
    better: Literal["higher", "lower"],
    heading: str = "",
    percent: bool = False,
    headline: bool = False,
    order: int = 100,
    given_target: bool = False,
    symmetric: bool = True,
    interval: IntervalKind = "symmetric",
    version: int = 1,
) -> Callable[[F], F]:
    """Make a function of an `Outcome` a metric. It returns a float (a fraction, never a percentage) or `Undefined(reason)`.

    A `headline` metric is a column of every printed table, at its place in the `order`, under its `heading` (default: the
    symbol); others stand in the exports. A new or newer metric is computed for stored runs when a table is built.

    `interval` says which bootstrap interval suits it. "reversed" is for a statistic whose bias grows as the data shrink
    and hardly depends on its value, so that resampling adds the same bias once more (KL): its interval is reflected at the
    value. "none" is for one that no bootstrap interval covers as it should. `python benchmarks/perf/coverage.py` measures it.
    """

    def mark(function: F) -> F:
        vars(function).update(
            symbol=symbol,
            heading=heading or symbol,
            better=better,
            percent=percent,
            headline=headline,
            order=order,
            given_target=given_target,
            symmetric=symmetric,
            interval=interval,
            version=version,
        )
        return function

    return mark
