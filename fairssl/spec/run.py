"""What a run is, as data, and its keys: hashes of everything that can change the result, and of nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, Literal

from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
)

from fairssl import kinds
from fairssl.spec.config import CanonicalModel, ProbeConfig, TrainConfig
from fairssl.spec.keys import canonical, digest_fields
from fairssl.types import Sampler, ScoredBy

Seen = Literal["none", "annotated", "all"]


class Spec(CanonicalModel, BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class PartSpec(Spec):
    """A plugin with its version and every parameter, defaults written in."""

    name: str
    version: int
    params: dict[str, Any]


class EncoderSpec(PartSpec):
    """An encoder; of weights that somebody else has trained, also where they are from and under which licence. These two
    are what the user says, for tables, and no part of a key."""

    source: str = ""
    licence: str = ""

    @model_serializer(mode="wrap")
    def _said(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        found: dict[str, Any] = handler(self)
        return {name: value for name, value in found.items() if value or name not in ("source", "licence")}

    @cached_property
    def canonical_json(self) -> str:
        content = self.model_dump(mode="json")
        return canonical({name: value for name, value in content.items() if name not in ("source", "licence")})


class MethodSpec(Spec):
    """A composition. `name` is what the user typed and no part of a key."""

    model_config = ConfigDict(serialize_by_alias=True)

    name: str
    objective: PartSpec
    heads: tuple[PartSpec, ...] = ()  # by name; a head of weight 0 is not here
    sampler: Sampler = "shuffle"
    # What scores; in records and keys it is called `probe`.
    scored_by: ScoredBy = Field(
        "linear", validation_alias=AliasChoices("scored_by", "probe"), serialization_alias="probe"
    )
    streams: tuple[str, ...] = ("all",)  # what is drawn, the objective's own first
    target: Seen = "none"
    group: Seen = "none"

    @cached_property
    def canonical_json(self) -> str:
        content = self.model_dump(mode="json")
        del content["name"]
        return canonical(content)

    @cached_property
    def training(self) -> tuple[str, frozenset[str]]:
        """What of it can change the trained encoder, as canonical JSON, and the labels that training sees."""
        heads = [h for h in self.heads if kinds.heads.get(h.name).streams]
        parts = [kinds.objectives.get(self.objective.name), *(kinds.heads.get(h.name) for h in heads)]
        sees = {label for part in parts for label in part.sees - {"views"}}
        if self.sampler == "cell_balanced":
            sees.add("target")
        if "annotated" in self.streams:
            sees.add("group")
        content = {
            "objective": self.objective.model_dump(mode="json"),
            "heads": [h.model_dump(mode="json") for h in heads],
            "sampler": self.sampler,
        }
        return canonical(content), frozenset(sees)


class DataSpec(Spec):
    """Which images, which labels. `fingerprint` is of content; None: the data is not on this machine."""

    dataset: str
    version: int
    params: dict[str, Any]
    fingerprint: str | None
    image_size: int = Field(ge=8)  # pixels, square
    split_seed: int = 0
    target: str
    attribute: str

    @cached_property
    def training(self) -> dict[frozenset[str], str]:
        """Canonical JSON of what can change the trained encoder, by the labels that training sees."""
        depends = kinds.datasets.get(self.dataset).card.train_depends_on
        found = {}
        for sees in (frozenset(), frozenset({"target"}), frozenset({"group"}), frozenset({"target", "group"})):
            content = self.model_dump(mode="json")
            if "target" not in depends and "target" not in sees:
                del content["target"]
            if "attribute" not in depends and "group" not in sees:
                del content["attribute"]
            found[sees] = canonical(content)
        return found


class RunSpec(Spec):
    """One run of a grid, with one seed: everything that can change its result."""

    method: MethodSpec
    data: DataSpec  # what is judged: the probe's training images, and the test set
    pretrain: DataSpec | None = None  # what the encoder is trained on, where it is not what is judged
    annotated: float | None = Field(None, gt=0, le=1)  # share of the training images; None: nothing reads which
    encoder: EncoderSpec
    train: TrainConfig
    probe: ProbeConfig
    # How more than two groups are compared; None: adjacent ones if their order means something, else all.
    pairs: Literal["adjacent", "all", "max"] | None = None
    seed: int = Field(0, ge=0)

    @property
    def pretrain_data(self) -> DataSpec:
        """What the encoder is trained on."""
        return self.pretrain or self.data

    @cached_property
    def key(self) -> str:
        """Names the result. Two spellings of one composition have one key."""
        return digest_fields(self._fields())

    @cached_property
    def pretrain_key(self) -> str:
        """Names the trained encoder: the key without what training never saw, and without heads that take no part in it."""
        return digest_fields(self._training_fields())

    @property
    def seeds_key(self) -> str:
        """Names the trained encoders of all seeds."""
        fields = self._training_fields()
        del fields["seed"]
        return digest_fields(fields)

    def _training_fields(self) -> dict[str, str]:
        fields = self._fields()
        del fields["probe"]
        for name in ("pretrain", "pairs"):
            fields.pop(name, None)
        fields["method"], sees = self.method.training
        fields["data"] = self.pretrain_data.training[sees]
        if "annotated" not in self.method.streams and "group" not in sees:
            fields.pop("annotated", None)  # read after training alone
        return fields

    def _fields(self) -> dict[str, str]:
        """Field -> canonical JSON; what is None is left out."""
        values = {name: getattr(self, name) for name in type(self).model_fields}
        values = {name: value for name, value in values.items() if value is not None}
        return {name: v.canonical_json if isinstance(v, CanonicalModel) else canonical(v) for name, v in values.items()}


def key_of(content: Mapping[str, Any]) -> str:
    """The key of a spec as a record holds it, also of a protocol that this fairssl no longer runs."""
    try:
        return RunSpec.model_validate(content).key
    except ValidationError:
        fields = {name: value for name, value in content.items() if value is not None}
        if isinstance(fields.get("method"), Mapping):
            fields["method"] = {name: value for name, value in fields["method"].items() if name != "name"}
        return digest_fields({name: canonical(value) for name, value in fields.items()})
