"""Backward passes without autograd's engine, which wants a GPU for the gradients of tensors that claim to lie on one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

Hook = Callable[[Tensor], Tensor | None]


class Backward:
    """`torch.autograd.grad` by a walk over the graph, calling one node after the other: values, hooks and functions of a
    part's own as there; no anomaly detection, no hooks on nodes."""

    def __init__(self) -> None:
        self._hooks: dict[tuple[Any, int], list[Hook]] = {}  # (node, which of its gradients) -> hooks of that tensor

    def hooked(self, x: Tensor, hook: Hook) -> None:
        """Call `hook` with the gradient of `x`, as `x.register_hook` does."""
        self._hooks.setdefault(_edge(x), []).append(hook)

    def grad(
        self,
        outputs: Tensor | Sequence[Tensor],
        inputs: Tensor | Sequence[Tensor],
        grad_outputs: Any = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        allow_unused: bool | None = None,
        **_: Any,
    ) -> tuple[Tensor | None, ...]:
        """What `torch.autograd.grad` gives for these arguments."""
        starts = [outputs] if isinstance(outputs, Tensor) else list(outputs)
        wanted = [_edge(x) for x in ([inputs] if isinstance(inputs, Tensor) else inputs)]
        given = [grad_outputs] if isinstance(grad_outputs, Tensor) else grad_outputs
        with torch.set_grad_enabled(create_graph):
            seeds = given or [None] * len(starts)
            seeds = [torch.ones_like(x) if g is None else g for x, g in zip(starts, seeds, strict=True)]
            found = self._walk([_edge(x) for x in starts], seeds, set(wanted))
        missing = next((i for i, edge in enumerate(wanted) if edge not in found), None)
        if missing is not None and not allow_unused:
            raise RuntimeError(f"input {missing} was not used in the graph; set allow_unused=True if that is meant")
        return tuple(found.get(edge) for edge in wanted)

    def _walk(
        self, starts: Sequence[tuple[Any, int]], seeds: Sequence[Tensor], wanted: set[tuple[Any, int]]
    ) -> dict[tuple[Any, int], Tensor]:
        waits_for = _uses(node for node, _ in starts)
        gradients: dict[Any, dict[int, Tensor]] = {node: {} for node in waits_for}
        for (node, number), seed in zip(starts, seeds, strict=True):
            _add(gradients[node], number, seed)
        ready = [node for node, n in waits_for.items() if n == 0]
        found: dict[tuple[Any, int], Tensor] = {}
        while ready:
            node = ready.pop()
            given = {number: self._after_hooks((node, number), g) for number, g in gradients.pop(node).items()}
            found.update({(node, number): g for number, g in given.items() if (node, number) in wanted})
            results = _called(node, given) if given and node.next_functions else ()
            for at, (following, number) in enumerate(node.next_functions):
                if following is None:
                    continue
                if at < len(results) and results[at] is not None:
                    _add(gradients[following], number, _fitted(results[at], following._input_metadata[number]))
                waits_for[following] -= 1
                if waits_for[following] == 0:
                    ready.append(following)
        return found

    def _after_hooks(self, edge: tuple[Any, int], gradient: Tensor) -> Tensor:
        for hook in self._hooks.get(edge, ()):
            changed = hook(gradient)
            gradient = gradient if changed is None else changed
        return gradient


def _edge(x: Tensor) -> tuple[Any, int]:
    """Where the gradient of a tensor arrives: a node, and which of its gradients."""
    if x.grad_fn is not None:
        return x.grad_fn, x.output_nr
    if not x.requires_grad:
        raise RuntimeError("a tensor does not require grad and has no grad_fn")
    return torch.autograd.graph.get_gradient_edge(x).node, 0


def _uses(starts: Iterable[Any]) -> Counter[Any]:
    """Node -> how many others send it a gradient, for every node that can be reached."""
    counts: Counter[Any] = Counter()
    left = list(dict.fromkeys(starts))
    counts.update(dict.fromkeys(left, 0))
    while left:
        for following, _ in left.pop().next_functions:
            if following is not None:
                if following not in counts:
                    left.append(following)
                counts[following] += 1
    return counts


def _fitted(gradient: Tensor, facts: Any) -> Tensor:
    """Summed over what was broadcast, and in the type of its tensor."""
    shape = tuple(facts.shape)
    return (gradient if gradient.shape == shape else gradient.sum_to_size(shape)).to(facts.dtype)


def _add(sums: dict[int, Tensor], number: int, gradient: Tensor) -> None:
    sums[number] = sums[number] + gradient if number in sums else gradient


def _called(node: Any, given: dict[int, Tensor]) -> tuple[Any, ...]:
    """The gradients that a node sends on."""
    facts = node._input_metadata
    arguments = [given.get(number) for number in range(len(facts))]
    if not isinstance(node, torch.autograd.function.BackwardCFunction):  # it is one of torch's own
        found = node(*arguments)
        return found if isinstance(found, tuple) else (found,)
    whole = [
        torch.zeros(tuple(f.shape), dtype=f.dtype, device=f.device) if g is None else g
        for g, f in zip(arguments, facts, strict=True)
    ]
    found = node.apply(*whole)
    return found if isinstance(found, tuple) else (found,)
