"""The torch-free contracts: how a configuration behaves, what a dataset is, what a metric is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, model_serializer

from fairssl.types import Card, DataFacts, Outcome, Progress, Splits, Value, silent

if TYPE_CHECKING:
    import numpy as np


class PluginConfig(BaseModel):
    """Base of every plugin's parameters: frozen, nothing unknown accepted. Give each field a default and its unit in a comment.

    Every default is part of a run's key, but for fields in `added`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True)
    aliases: ClassVar[Mapping[str, str]] = {}  # another spelling -> the field, as `alpha` for an adversary's `weight`
    # Fields that came after results were published, whose defaults do what was done before: at its default such a field
    # is written nowhere, so that published results keep their keys.
    added: ClassVar[frozenset[str]] = frozenset()

    def params(self) -> dict[str, Any]:
        """Every parameter as JSON values, defaults written in unless the field is an `added` one."""
        return self.model_dump(mode="json")

    @classmethod
    def completed(cls, params: Mapping[str, Any]) -> dict[str, Any]:
        """What `params` gave, with the defaults of the `added` fields that it left out."""
        fields = {name: cls.model_fields[name].get_default(call_default_factory=True) for name in sorted(cls.added)}
        return {**fields, **params}

    @model_serializer(mode="wrap")
    def _without_added(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        found: dict[str, Any] = handler(self)
        for name in self.added & found.keys():
            if getattr(self, name) == type(self).model_fields[name].get_default(call_default_factory=True):
                del found[name]
        return found

    def unread(self) -> frozenset[str]:
        """Names of the parameters that have no effect at the present values of the others, as a schedule's end where the
        schedule is constant. They are set to their defaults, so that a run has one key. Default: none."""
        return frozenset()


class Dataset:
    """A source of images with a binary target and a sensitive attribute.

    `root` is the folder, or zip, that the user pointed at; None for embedded data. Splits must not depend on the run's
    seed, only on `split_seed`, and are disjoint by content.
    """

    name: ClassVar[str]  # the file's name, set by the registry
    version: ClassVar[int] = 1  # raise it when images, labels or splits change
    card: ClassVar[Card]

    class Config(PluginConfig):
        pass

    def __init__(self, config: Any) -> None:
        self.config = config

    def inspect(self, root: Path | None) -> DataFacts:
        """Find the data and fingerprint its content, decoding nothing. Missing or empty: `UserError` with what to do."""
        raise NotImplementedError

    def load(
        self,
        root: Path | None,
        target: str,
        attribute: str,
        image_size: int,
        split_seed: int = 0,
        progress: Progress = silent,
    ) -> Splits:
        """The three splits at `image_size` pixels. `target` and `attribute` are names from the card."""
        raise NotImplementedError

    def labels(self, root: Path | None) -> Mapping[str, np.ndarray] | None:
        """Codes int64 (N,) of every target and attribute over all images found, by name, decoding nothing.

        None: they are only known once the images are loaded, and `load` is asked for each pair.
        """
        return None


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
    version: int = 1,
) -> Callable[[F], F]:
    """Make a function of an `Outcome` a metric. It returns a float (a fraction, never a percentage) or `Undefined(reason)`.

    A `headline` metric is a column of every printed table, at its place in the `order`, under its `heading` (default: the
    symbol); others stand in the exports. A new or newer metric is computed for stored runs when a table is built.
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
            version=version,
        )
        return function

    return mark
