"""A step recorded and taken again without Python, operator by operator, as a CUDA graph replays it: on a CPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter, tree_map

from fairssl.testing.contract import first_difference
from fairssl.train.cudagraph import WARM_UP, GraphedStep, Step
from fairssl.train.trainer import Trainer

Operation = tuple[Any, tuple[Any, ...], dict[str, Any], Any]  # operator, arguments, keyword arguments, result


def assert_replayed_steps_agree(eager: Trainer, replayed: Trainer) -> None:
    """`eager` has run to its last step; `replayed` is at its first, and runs by replays. What they come to is equal in every
    bit, the means of all terms included."""
    assert eager.n_steps > WARM_UP + 1, f"{eager.n_steps} steps leave none to replay"
    replayed.graphed = ReplayedStep(replayed.summed_step, replayed.step.gen, replayed.device)
    replayed.run()
    entry = first_difference(eager.state()[0], replayed.state()[0])
    if entry is None:
        rows = zip(eager.history.rows, replayed.history.rows, strict=True)
        entry = next((name for a, b in rows for name in a if a[name] != b.get(name)), None)
    assert entry is None, (
        f"{entry} differs between steps taken eagerly and replayed ones: what Python computes is frozen there (a counter, "
        "a number, an attribute that is assigned anew); keep it in a buffer and change it in place"
    )


class _Recording(TorchDispatchMode):
    """Keeps every operator that is called within it, in order, those of backward passes included."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[Operation] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.operations.append((func, args, kwargs or {}, result))
        return result


class RecordedStep:
    """A step, taken and recorded on the given positions; each call after the first replays its operators on others.

    Tensors that were there before are read and changed where they lie, as a CUDA graph does; what the step made itself is
    made anew. So whatever Python did beside its operators is frozen: a counter, a number read back, a rebound attribute.
    Random numbers are drawn anew, from the generators that the step drew from.
    """

    def __init__(self, step: Step, index: Mapping[str, Tensor], images: Mapping[str, Tensor] | None = None) -> None:
        self.index = {name: value.clone() for name, value in index.items()}
        self.images = None if images is None else {name: value.clone() for name, value in images.items()}
        with _Recording() as recording:
            step(self.index, self.images)
        self.operations = recording.operations
        self._taken = True  # the step of the first call

    def __call__(self, index: Mapping[str, Tensor], images: Mapping[str, Tensor] | None = None) -> None:
        if self._taken:
            self._taken = False
            return
        for name, value in index.items():
            self.index[name].copy_(value)
        for name, value in (images or {}).items():
            assert self.images is not None
            self.images[name].copy_(value)
        self._replay()

    def _replay(self) -> None:
        made: dict[int, Tensor] = {}  # id of a recorded result -> what this replay has in its place

        def present(x: Any) -> Any:
            return made.get(id(x), x) if isinstance(x, Tensor) else x

        with torch.no_grad():
            for func, args, kwargs, result in self.operations:
                found = func(*tree_map(present, args), **tree_map(present, kwargs))
                given = {id(x) for x in tree_iter((args, kwargs))}
                for old, new in zip(tree_iter(result), tree_iter(found), strict=True):
                    if isinstance(old, Tensor) and id(old) not in given:  # else it was changed in place
                        made[id(old)] = new


class ReplayedStep(GraphedStep):
    """As on a GPU: a few eager steps, then one that is recorded, and replays of it."""

    def captured(self, index: Mapping[str, Tensor], images: Mapping[str, Tensor] | None) -> Step:
        return RecordedStep(self.step, index, images)
