"""Settings that a run cannot read: they are set to their defaults, so that they are no part of a key.

`--set train.dual_lr=0.1` says nothing to a method without dual parameters; were it left in the spec, the same run would have
two keys and be trained twice to the same bits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from fairssl import kinds
from fairssl.interfaces import PluginConfig
from fairssl.spec.config import ProbeConfig, TrainConfig

if TYPE_CHECKING:
    from fairssl.spec.run import MethodSpec

C = TypeVar("C", bound=PluginConfig)

_JITTER = ("brightness", "contrast", "saturation", "hue")


def without(config: C, unread: Collection[str]) -> C:
    """The config with its unread fields at their defaults."""
    fields = type(config).model_fields
    return config.model_copy(update={name: fields[name].get_default(call_default_factory=True) for name in unread})


def unread_in_train(method: MethodSpec, train: TrainConfig) -> frozenset[str]:
    """Fields of the training loop that a run of this method does not read at these settings."""
    objective = kinds.objectives.get(method.objective.name)
    heads = [kinds.heads.get(head.name) for head in method.heads]
    if not objective.trains:
        return frozenset(set(TrainConfig.model_fields) - {"loop"})
    parts = [objective, *(head for head in heads if head.streams)]
    unread: set[str] = set()
    if not any(_has_dual(part) for part in parts):
        unread |= {"dual_lr", "dual_optimizer"}
    if train.optimizer not in ("sgd", "lars"):
        unread.add("momentum")
    if train.optimizer != "lars":
        unread.add("lars_trust")
        if train.weight_decay == 0:
            unread.add("decay_all")
    if "annotated" not in method.streams:
        unread.add("annotated_batch_size")
    if len(method.streams) == 1:
        unread.add("join_streams")
    if train.recipe == "randaugment":
        unread |= {"jitter", "gray", "blur", *_JITTER}
    else:
        unread |= {"rand_ops", "rand_magnitude"}
        if train.jitter == 0:
            unread |= set(_JITTER)
    return frozenset(unread)


def unread_in_probe(method: MethodSpec, probe: ProbeConfig) -> frozenset[str]:
    """Fields of the probe that the run does not read at these settings."""
    own: dict[str, set[str]] = {
        "linear": {"epochs", "lr", "decay_epoch", "min_steps", "batch_size"},
        "lbfgs": {"l2"},
        "knn": {"neighbours", "vote_temperature"},
    }
    everything = set(ProbeConfig.model_fields) - {"version", "thresholds"}
    if method.scored_by == "own":
        return frozenset(everything)
    return frozenset(everything - {"kind"} - own[probe.kind])


def reads_annotated(method: MethodSpec, probe: ProbeConfig) -> bool:
    """Whether the run depends on which images are annotated."""
    heads = [kinds.heads.get(head.name) for head in method.heads]
    parts: Iterable[Any] = [kinds.objectives.get(method.objective.name), *heads]
    return (
        "annotated" in method.streams
        or probe.thresholds != "none"
        or method.scored_by in ("annotated_head", "balanced_head")
        or any(part.sees & {"group"} for part in parts)
        or any(not head.streams and head.sees & {"target"} for head in heads)
    )


def _has_dual(part: Any) -> bool:
    from fairssl.parts import Part

    return part.dual_parameters is not Part.dual_parameters
