"""A step on a GPU that is not there: shapes, devices and operators, no values. What a CUDA graph cannot hold is an error."""

from __future__ import annotations

import copy
import traceback
import warnings
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    unset_fake_temporarily,
)
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fairssl.testing.backward import Backward
from fairssl.train.cudagraph import blamed_line
from fairssl.train.history import History
from fairssl.train.trainer import Trainer

GPU = torch.device("cuda", 0)
READ_BACK = frozenset({"item", "tolist", "numpy", "__bool__", "__int__", "__float__", "__index__", "__array__"})
# On a GPU these wait for a value, which decides over the result's shape or is looked at by the host.
WAITING = frozenset(
    {
        "_linalg_check_errors",
        "_linalg_eigh",
        "_linalg_svd",
        "_unique",
        "_unique2",
        "allclose",
        "bincount",
        "equal",
        "is_nonzero",
        "linalg_eig",
        "linalg_eigvals",
        "masked_select",
        "matrix_exp",
        "nonzero",
        "unique_consecutive",
        "unique_dim",
    }
)
COPYING = frozenset({"copy_", "_to_copy", "where"})  # which a number of the host would have to be copied for


class NotCapturable(AssertionError):
    """What a step does that a CUDA graph cannot hold, and where."""

    def __init__(self, what: str, frames: traceback.StackSummary | None = None) -> None:
        line = blamed_line(traceback.extract_stack()[:-1] if frames is None else frames)
        super().__init__(f"a step {what}{f' ({line})' if line else ''}")


def assert_capturable(trainer: Trainer, index: Mapping[str, Tensor]) -> None:
    """Take a step of a CPU's trainer as if everything lay on a GPU; `NotCapturable` at what cannot be captured there.

    The trainer must have taken a step before, since what is done once may read back. It keeps its state.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with warnings.catch_warnings(), ExitStack() as stack:
        warnings.simplefilter("ignore")  # that there is no GPU
        step, history = _moved(trainer, mode)
        there = {name: _fake(value, mode) for name, value in index.items()}
        for context in (mode, _Functions(), _Operators()):
            stack.enter_context(context)
        try:
            history.add(step(there))
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            what = f"calls {str(error.func).removeprefix('aten.')}, whose result must be read back"
            raise NotCapturable(what, traceback.extract_tb(error.__traceback__)) from error
        except RuntimeError as error:
            if "device" not in str(error):
                raise
            what = f"mixes tensors of the host and of the GPU: {' '.join(str(error).split())}"
            raise NotCapturable(what, traceback.extract_tb(error.__traceback__)) from error


def _fake(value: Tensor, mode: FakeTensorMode) -> Tensor:
    """A tensor without values on the GPU, of the same shape, strides and type."""
    with mode:
        found = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=GPU)
        return nn.Parameter(found, value.requires_grad) if isinstance(value, nn.Parameter) else found


def _moved(trainer: Trainer, mode: FakeTensorMode) -> tuple[Any, History]:
    """A copy of the trainer's step whose parameters, buffers, data and optimisers lie on the GPU, as `Model.to` would move
    them, and a history there. Tensors that a part keeps elsewhere stay on the host."""
    step = trainer.step
    moved = [t for module in step.model.modules().values() for t in (*module.parameters(), *module.buffers())]
    moved += [step.lr, step.dual_lr, step.step_count, step.one]
    moved += [] if step.features is None else [step.features]
    moved += [step.data.images, step.data.target, step.data.group, step.data.annotated]
    for optimizer in step.optimizers.values():
        moved += [value for slots in optimizer.state.values() for value in slots.values() if isinstance(value, Tensor)]
    memo: dict[int, Any] = {id(value): _fake(value, mode) for value in moved}
    memo.update({id(value): value for value in step.batch_counts.deferred})
    memo[id(step.gen)] = _Generator()
    moved_step = copy.deepcopy(step, memo)
    with mode:
        return moved_step, History(GPU)


class _Generator(torch.Generator):
    """Says that it is a GPU's."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return GPU


class _Functions(TorchFunctionMode):
    """Reading a tensor of the GPU back is an error that names the method; backward passes do without autograd's engine."""

    def __init__(self) -> None:
        super().__init__()
        self._backward = Backward()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.autograd.grad:
            with self:  # it calls the hooks and functions of parts
                return self._backward.grad(*args, **(kwargs or {}))
        if func is Tensor.register_hook:
            return self._backward.hooked(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if name in READ_BACK and args and isinstance(args[0], Tensor) and args[0].device.type == "cuda":
            raise NotCapturable(f"calls Tensor.{name.strip('_')}, which reads a tensor back")
        return func(*args, **(kwargs or {}))


class _Operators(TorchDispatchMode):
    """What a CUDA graph cannot hold is an error. Operators on the host alone are carried out: their results are constants."""

    def __init__(self) -> None:
        super().__init__()
        self._constants: dict[int, Tensor] = {}  # tensors of the host that the step has made

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        name = func._schema.name.partition("::")[2]
        where = torch.device(kwargs.get("device") or "cpu").type
        if any(x.device.type == "cuda" for x in given) or (not given and where == "cuda"):
            self._check(name, given, args, kwargs)
            if func._schema.is_mutable and not func._schema.returns:
                return None  # it changes values alone, as an optimiser's step; not all of those know how to without any
            found = func(*args, **kwargs)
            if any(isinstance(x, Tensor) and x.device.type == "cpu" for x in tree_leaves(found)):
                raise NotCapturable("copies a tensor to the host")
            return found
        if where == "cuda":
            raise NotCapturable("copies a tensor of the host to the GPU; make it there, as x.new_full(...) does")
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise NotCapturable(f"calls {name} on the host, whose random numbers a replay repeats; give it a device")
        if func._schema.is_mutable and not all(id(x) in self._constants for x in given):
            raise NotCapturable(
                f"calls {name} on a tensor of the host, which a replay leaves as it is; make it a buffer"
            )
        with unset_fake_temporarily():
            found = func(*args, **kwargs)
        self._constants.update({id(x): x for x in tree_leaves(found) if isinstance(x, Tensor)})
        return found

    def _check(self, name: str, given: list[Tensor], args: Any, kwargs: Any) -> None:
        on_host = [x for x in given if x.device.type == "cpu"]
        if name in ("index", "index_put", "index_put_"):
            self._check_index(name, args, on_host)
        elif name == "_local_scalar_dense":
            raise NotCapturable("reads a tensor back")
        elif name in WAITING or (name == "repeat_interleave" and kwargs.get("output_size") is None):
            raise NotCapturable(f"calls {name}, whose result must be read back")
        elif name in ("masked_fill", "masked_fill_") and isinstance(args[2], Tensor) and not on_host:
            raise NotCapturable(f"calls {name} with a value that must be read back; use torch.where")
        elif name == "histc" and len(args) < 4 and not {"min", "max"} <= kwargs.keys():
            raise NotCapturable("calls histc without bounds, which must be read back")
        elif any(x.ndim > 0 for x in on_host):
            raise NotCapturable(
                f"calls {name} with a tensor of the host; make it on the device of the others, or a buffer"
            )
        elif on_host and name in COPYING:
            raise NotCapturable(f"calls {name} with a tensor of the host; make it on the device of the others")

    def _check_index(self, name: str, args: Any, on_host: list[Tensor]) -> None:
        at = [i for i in args[1] if i is not None]
        masks = [i for i in at if i.dtype in (torch.bool, torch.uint8)]
        if any(i.device.type == "cpu" for i in at):
            raise NotCapturable("indexes with a tensor of the host; make it on the device of the others")
        if name == "index":
            if masks:
                raise NotCapturable("indexes with a mask, whose result's shape must be read back; use torch.where")
        elif masks and not (len(at) == 1 and args[2].device.type == "cpu" and args[2].numel() == 1):
            raise NotCapturable("assigns a tensor through a mask, which must be read back; use torch.where")
        elif not masks and on_host:
            raise NotCapturable("assigns a tensor of the host; make it on the device of the others")
