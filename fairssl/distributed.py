"""Several processes that train one run: which rows are whose, gathers with gradients, statistics of the joint batch.

Every process draws the same positions and the same random numbers, holds the features of the whole batch and computes
every loss in full, as if it were alone. Only what is heavy and works row by row is divided: the encoder, and what a part
hands to `sharded` (a momentum encoder, a decoder). So a loss need not know how many processes there are, whether or not
it is a mean over samples, and per-image state such as SogCLR's `u` stays equal everywhere. Alone, every function here is
the identity.
"""

from __future__ import annotations

import hashlib
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fairssl.types import UserError, first_line

T = TypeVar("T")
RENDEZVOUS_TIMEOUT = timedelta(minutes=5)  # that all processes of a run have to find each other
RENDEZVOUS_GRACE = timedelta(seconds=10)  # after it, for torch to notice
# The first judges a run while the others wait; that takes as long as it takes, and a death is told by the launcher.
COLLECTIVE_TIMEOUT = timedelta(days=7)
NOTICE_AFTER = timedelta(seconds=15)  # after which who waits for others says so


class Group(Protocol):
    """What a step needs of the others."""

    size: int
    rank: int

    def add(self, x: Tensor) -> None:
        """Replace `x` by its sum over all, in place."""


class _Simulated(threading.local):
    group: Group | None = None


_simulated = _Simulated()


@contextmanager
def simulated(group: Group) -> Iterator[None]:
    """Within it this thread is one of `group`: a check lets threads play the processes of a step."""
    _simulated.group = group
    try:
        yield
    finally:
        _simulated.group = None


def size() -> int:
    """How many processes train this run."""
    if _simulated.group is not None:
        return _simulated.group.size
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Which of them this is; the first, 0, is the one that reads and writes files."""
    if _simulated.group is not None:
        return _simulated.group.rank
    return dist.get_rank() if size() > 1 else 0


def _all_reduce(x: Tensor) -> None:
    """Replace `x` by its sum over all processes, in place."""
    if _simulated.group is not None:
        _simulated.group.add(x)
    else:
        dist.all_reduce(x)


def shard_rows(n: int) -> slice:
    """Which of `n` rows are this process's: contiguous, and within one of equally many."""
    share, rest = divmod(n, size())
    start = rank() * share + min(rank(), rest)
    return slice(start, start + share + (rank() < rest))


@contextmanager
def process_group(device: str, n: int, number: int, meeting: str = "env://") -> Iterator[None]:
    """Within it this process is number `number` of `n`. `meeting`: where they find each other, a URL of torch's."""
    if device.startswith("cuda"):
        torch.cuda.set_device(torch.device(device))
    backend = "cpu:gloo,cuda:nccl" if device.startswith("cuda") else "gloo"
    store = _rendezvous(n, number, meeting)
    dist.init_process_group(backend, store=store, world_size=n, rank=number, timeout=COLLECTIVE_TIMEOUT)
    yield
    dist.destroy_process_group()  # not after an error: it may wait for processes that are gone


def _rendezvous(n: int, number: int, meeting: str) -> dist.Store:
    """A store that all processes share, once all have come; a `UserError` if one has not within `RENDEZVOUS_TIMEOUT`."""
    stores: list[dist.Store] = []
    # Not the errors themselves: their frames would keep a store, and its threads, up to the interpreter's end.
    reasons: list[str] = []

    def meet() -> None:
        try:
            store, *_ = next(dist.rendezvous(meeting, number, n, timeout=RENDEZVOUS_TIMEOUT))
            store.set(f"here/{number}", "yes")
            store.wait([f"here/{other}" for other in range(n)], timedelta(seconds=deadline - time.monotonic()))
            store.set_timeout(COLLECTIVE_TIMEOUT)
            stores.append(store)
        except Exception as error:
            reasons.append(first_line(error))

    where = meeting
    if meeting == "env://":
        where = " ".join(f"{name}={os.environ.get(name)}" for name in ("MASTER_ADDR", "MASTER_PORT"))
    started, told = time.monotonic(), False
    deadline = started + RENDEZVOUS_TIMEOUT.total_seconds()
    waiting = threading.Thread(target=meet, daemon=True)  # torch waits deaf to signals, Ctrl-C for one
    waiting.start()
    # A thread of torch's that still waits when the interpreter ends may abort it: let it end first.
    while waiting.is_alive() and time.monotonic() < deadline + RENDEZVOUS_GRACE.total_seconds():
        if time.monotonic() > started + NOTICE_AFTER.total_seconds() and not told:
            print(f"fairssl: process {number} waits for the others of {n} at {where}", file=sys.stderr, flush=True)
            told = True
        waiting.join(0.02)
    if stores:
        return stores.pop()
    late = time.monotonic() >= deadline or not reasons
    reason = f"not in {RENDEZVOUS_TIMEOUT.total_seconds():.0f} s" if late else reasons[0]
    out = "; if torchrun is not meant, take WORLD_SIZE, RANK and MASTER_ADDR out of the environment"
    raise UserError(
        f"process {number} of {n} did not find the others at {where}: {reason}{out if meeting == 'env://' else ''}"
    )


def _gather_rows(local: Tensor, n: int) -> Tensor:
    """(n_mine, ...) -> (n, ...): everybody's rows in order. A sum with zeros is exact, and shares may differ in size."""
    exact = torch.float32 if local.dtype in (torch.float16, torch.bfloat16) else local.dtype
    whole = local.new_zeros(n, *local.shape[1:], dtype=exact)
    whole[shard_rows(n)] = local
    _all_reduce(whole)
    return whole.to(local.dtype)


class _Gather(torch.autograd.Function):
    """Rows of each -> rows of all. Backward everybody has the gradient of the whole, and takes its rows of it."""

    @staticmethod
    def forward(ctx: Any, local: Tensor, n: int) -> Tensor:
        ctx.n = n
        return _gather_rows(local, n)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient[shard_rows(ctx.n)], None


class _Shard(torch.autograd.Function):
    """Rows of all -> my rows. Backward everybody gets the gradient of all rows."""

    @staticmethod
    def forward(ctx: Any, whole: Tensor) -> Tensor:
        ctx.n = len(whole)
        return whole[shard_rows(ctx.n)].clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return _gather_rows(gradient, ctx.n)


def gather_with_grad(local: Tensor, n: int) -> Tensor:
    """This process's rows of `n` -> the rows of all, (n, ...), in order; differentiable. The gradient that reaches this
    process's rows is that of one loss, not of a sum over processes: each must compute the same loss from the result."""
    return local if size() == 1 else _Gather.apply(local, n)


def shard(whole: Tensor) -> Tensor:
    """(n, ...) -> this process's rows; differentiable. There must be at least one for each process."""
    if size() == 1:
        return whole
    if len(whole) < size():
        raise ValueError(f"{len(whole)} rows cannot be divided among {size()} processes")
    return _Shard.apply(whole)


def sharded(network: nn.Module, x: Tensor) -> Tensor:
    """`network(x)` for an x (n, ...) that every process holds; each runs its rows, and all get the whole result.

    For what is heavy and works row by row. Batch statistics are those of all rows. The network's parameters must not be
    used in any other way in the same step.
    """
    return gather_with_grad(sharded_forward(network, shard(x)), len(x))


def sharded_forward(network: nn.Module, x: Tensor) -> Tensor:
    """`network` on this process's rows alone, with the batch statistics of everybody's."""
    if size() == 1:
        return network(x)
    for parameter in network.parameters():
        parameter.is_sharded = True  # type: ignore[attr-defined]
    for module in network.modules():
        if _only_sharded not in module._forward_pre_hooks.values():
            module.register_forward_pre_hook(_only_sharded)
    before, _inside.on = _inside.on, True
    try:
        with _ShardedRng(x.device), _JointStatistics():
            return network(x)
    finally:
        _inside.on = before


class _Inside(threading.local):
    on = False  # in `sharded_forward`


_inside = _Inside()


def _only_sharded(module: nn.Module, args: Any) -> None:
    """Of a direct use the gradient is whole in every process, and would be counted once for each."""
    if size() > 1 and torch.is_grad_enabled() and not _inside.on:
        raise RuntimeError(
            f"a {type(module).__name__} goes through `sharded` and is also used directly; use it in one of the two ways"
        )


class _ShardedRng:
    """Rows of different processes get different dropout; afterwards all processes go on with the same generator state."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def _get(self) -> Tensor:
        return torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else torch.get_rng_state()

    def _set(self, state: Tensor) -> None:
        torch.cuda.set_rng_state(state, self.device) if self.device.type == "cuda" else torch.set_rng_state(state)

    def _seed(self, *words: Any) -> None:
        seed = int.from_bytes(hashlib.sha256(repr(words).encode() + self.before.numpy().tobytes()).digest()[:7])
        generators = torch.cuda.default_generators
        (generators[self.device.index] if self.device.type == "cuda" else torch.default_generator).manual_seed(seed)

    def __enter__(self) -> None:
        self.before = self._get()
        self._seed("rows", rank())
        self.seeded = self._get()

    def __exit__(self, *error: object) -> None:
        if torch.equal(self._get(), self.seeded):  # nothing was drawn
            self._set(self.before)
        else:
            self._seed("after")


class _AllReduce(torch.autograd.Function):
    """Sum over processes of equally shaped tensors; so is its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.clone()
        _all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return _AllReduce.forward(ctx, gradient.contiguous())


class _JointStatistics(TorchFunctionMode):
    """Within it, batch norm in training mode normalises by the mean and variance of all processes' rows.

    Whatever module calls `F.batch_norm`, ours, torch's or timm's, on any device; torch's own SyncBatchNorm replaces
    modules, loses the activation of timm's, and refuses the CPU.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.batch_norm:
            return _batch_norm(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    if not training:
        return torch.batch_norm(x, weight, bias, running_mean, running_var, False, momentum, eps, False)
    wide = x if x.dtype == torch.float64 else x.float()
    others = [0, *range(2, x.ndim)]
    shape = [1, -1, *[1] * (x.ndim - 2)]
    n_mine = wide.new_full((1,), x.numel() / x.shape[1])
    total, count = _AllReduce.apply(torch.cat([wide.sum(others), n_mine])).tensor_split([x.shape[1]])
    mean = total / count
    centred = wide - mean.view(shape)
    variance = _AllReduce.apply(centred.square().sum(others)) / count
    if running_mean is not None and running_var is not None:
        with torch.no_grad():
            running_mean.lerp_(mean.to(running_mean.dtype), momentum)
            running_var.lerp_((variance * count / (count - 1)).to(running_var.dtype), momentum)
    y = centred * torch.rsqrt(variance + eps).view(shape)
    if weight is not None:
        y = y * weight.view(shape)
    if bias is not None:
        y = y + bias.view(shape)
    return y.to(x.dtype)


def reduce_gradients(parameters: Sequence[nn.Parameter], gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
    """What each process found -> the gradients of the joint batch, in one message, equal in every bit everywhere.

    Those of a divided network are partial: they are summed. The others are whole everywhere, up to rounding: averaged.
    """
    if size() == 1:
        return list(gradients)
    found: list[Tensor | None] = list(gradients)
    for dtype in dict.fromkeys(g.dtype for g in found if g is not None):  # in one order everywhere
        at = [i for i, g in enumerate(found) if g is not None and g.dtype == dtype]
        flat = torch.cat([_flat_share(parameters[i], found[i]) for i in at])  # type: ignore[arg-type]
        _all_reduce(flat)
        for i, part in zip(at, flat.split([parameters[i].numel() for i in at]), strict=True):
            found[i] = part.view(parameters[i].shape)
    return found


def _flat_share(parameter: nn.Parameter, gradient: Tensor) -> Tensor:
    return (gradient if hasattr(parameter, "is_sharded") else gradient / size()).reshape(-1)


def is_peer_lost(error: Exception) -> bool:
    """Whether an error says that another of the processes is gone, and nothing about the run."""
    return size() > 1 and (
        isinstance(error, dist.DistError) or "gloo" in str(error)
    )  # gloo's have no type of their own


def broadcast(value: T) -> T:
    """What the first process has; the others' argument is not looked at."""
    if size() == 1:
        return value
    box = [value]
    dist.broadcast_object_list(box, src=0, device=torch.device("cpu"))
    return box[0]


def any_process(flag: bool) -> bool:
    """Whether any process says so. Costs a message between the hosts; the device does not wait for it."""
    if size() == 1:
        return flag
    found = torch.tensor(int(flag))
    dist.all_reduce(found, op=dist.ReduceOp.MAX)
    return bool(found)
