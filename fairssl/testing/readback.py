"""Modes in which reading a tensor back is an error."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

# Reading a value back, or a shape that depends on values, stops a stream and cannot be captured.
READ_BACK = frozenset({"item", "tolist", "numpy", "__bool__", "__int__", "__float__", "__index__", "__array__"})
DATA_DEPENDENT = frozenset(
    {
        "aten::_local_scalar_dense",
        "aten::_unique",
        "aten::_unique2",
        "aten::allclose",
        "aten::bincount",
        "aten::equal",
        "aten::is_nonzero",
        "aten::masked_select",
        "aten::nonzero",
        "aten::unique_consecutive",
        "aten::unique_dim",
    }
)


class _Functions(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in READ_BACK and isinstance(args[0] if args else None, Tensor):
            raise AssertionError(f"a step calls Tensor.{name.strip('_')}, which reads a tensor back")
        return func(*args, **(kwargs or {}))


class _Operators(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name
        masks = name in ("aten::index", "aten::index_put", "aten::index_put_") and any(
            i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1]
        )
        if name in DATA_DEPENDENT or (masks and name == "aten::index"):
            how = "indexes with a mask" if masks else f"calls {name.removeprefix('aten::')}"
            raise AssertionError(f"a step {how}, whose result's shape or value must be read back; or set capturable")
        if name == "aten::lift_fresh":
            raise AssertionError(
                "a step makes a tensor of Python numbers, a copy from the host; use new_full or a buffer"
            )
        if name == "aten::repeat_interleave" and func._overloadname == "Tensor":
            raise AssertionError("a step calls repeat_interleave with a tensor of counts, which must be read back")
        return func(*args, **(kwargs or {}))


class NoReadBack:
    """Within it, reading a tensor's value is an error."""

    def __enter__(self) -> None:
        self._modes = (_Functions(), _Operators())
        for mode in self._modes:
            mode.__enter__()

    def __exit__(self, *error: Any) -> None:
        for mode in reversed(self._modes):
            mode.__exit__(*error)
