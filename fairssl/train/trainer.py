"""The one training loop: every method, every device, exact resume.

The loop draws positions, takes steps, closes epochs and writes checkpoints; what a step is stands in `step`, how it is
replayed on a GPU in `cudagraph`. Several processes can train one run (`distributed`), and several runs share one device
(`interleave`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairssl import distributed, kinds
from fairssl.data.device import DeviceSplit, to_device
from fairssl.data.splits import RunData
from fairssl.data.streaming import Prefetch
from fairssl.machine import ensure_compiler_cache
from fairssl.parts import Part
from fairssl.spec.config import check_share
from fairssl.spec.keys import derive_seed
from fairssl.spec.run import RunSpec
from fairssl.spec.unread import unread_in_train
from fairssl.train import checkpoint
from fairssl.train.build import build_model, index_streams
from fairssl.train.collapse import spread
from fairssl.train.cudagraph import GraphedStep, streams
from fairssl.train.history import Diverged, History
from fairssl.train.rng import get_rng_state, preserved, set_rng_state
from fairssl.train.step import TrainStep, laid_out_as
from fairssl.types import Progress, silent

CHECKPOINT_SECONDS = 60.0  # at most that much work is lost to a kill


class Stopped(RuntimeError):
    """The run was asked to stop and left a checkpoint."""


class Trainer:
    """Takes the steps of one run. `state` and `load` make it resume bit for bit on a CPU.

    On a GPU, in a process alone, the step is replayed as a CUDA graph if every part allows it, and its augmentation is
    compiled; `eager`: neither. `compile_augment`: the augmentation is compiled on a CPU too. Other than in rounding it does
    not matter.
    """

    def __init__(
        self, spec: RunSpec, data: DeviceSplit, n_groups: int, eager: bool = False, compile_augment: bool = False
    ):
        ensure_compiler_cache()
        self.spec, self.data, self.n_groups = spec, data, n_groups
        self.device = data.device
        self.streams = index_streams(spec, data)
        for name, stream in self.streams.items():
            check_share(name, stream.batch_size, distributed.size())
        self.steps_per_epoch = next(iter(self.streams.values())).n_batches
        self.n_epochs = max(spec.train.epochs, math.ceil(spec.train.min_steps / self.steps_per_epoch))
        if not kinds.objectives.get(spec.method.objective.name).trains:
            self.n_epochs = 0
        self.n_steps = self.n_epochs * self.steps_per_epoch

        self.model = build_model(spec, data, n_groups, self.n_steps)
        torch.manual_seed(derive_seed("run", spec.seed))  # dropout and the like
        self.step = TrainStep(spec, data, self.model, self.n_steps, eager, compile_augment)
        self.history = History(self.device)
        self.rng_state = get_rng_state(self.device)  # of the global generators, as this run has left them
        self.done = self.resumed_at = 0  # steps
        self.prepared = all(type(part).prepare is Part.prepare for part in self.model.parts.values())
        self.seconds = 0.0  # spent stepping
        self.first_epoch_seconds: float | None = None  # of them, up to the first epoch's end: compilation and capture

        on_gpu = self.device.type == "cuda"
        if on_gpu:
            torch.backends.cudnn.benchmark = True  # shapes do not change: let it try its algorithms, in the warm-up
        self.stream: torch.cuda.Stream | None = None  # while the run goes on
        captured = on_gpu and self.step.capturable and not eager
        self.graphed = GraphedStep(self.summed_step, self.step.gen, self.device) if captured else None
        self._prefetch: Prefetch | None = None

    def run(self, *args: Any, **kwargs: Any) -> float:
        """All of `advance`, whose parameters it takes; seconds spent stepping."""
        for _ in self.advance(*args, **kwargs):
            pass
        return self.seconds

    def advance(
        self,
        work: Path | None = None,
        progress: Progress = silent,
        stop: Callable[[], bool] = lambda: False,
        checkpoint_seconds: float = CHECKPOINT_SECONDS,
        checkpoint_epochs: int = 0,
        on_epoch: Callable[[Mapping[str, float]], None] = lambda row: None,
    ) -> Iterator[None]:
        """Train to the end from wherever the newest whole checkpoint in `work` stands; one step between two yields.

        `stop()` is asked between steps; when it says so, a checkpoint is written and `Stopped` raised. Checkpoints are
        also written every so many seconds and, unless 0, epochs. `on_epoch(row)` hears of each epoch's means. Of several
        processes the first alone needs a `work`; it reads and writes for all.
        """
        set_rng_state(self.device, self.rng_state)  # others may have drawn since this run was built
        if self.device.type == "cuda":  # as torch advises for what is captured; and runs that share a device overlap
            self.stream = streams.take(self.device)
        queue = _BoundedQueue(self.stream, _STREAMED_AHEAD if self.data.streamed else _AHEAD)
        with self._on_stream():
            self._begin(work)
        self.resumed_at = self.done
        started = last_saved = time.perf_counter()
        try:
            while self.done < self.n_steps:
                for index, images in self._epoch():
                    with self._on_stream():
                        (self.graphed or self.summed_step)(index, images)
                        self.done += 1
                        queue.bound(self.done)
                        epoch_ends, due = self.done % self.steps_per_epoch == 0, False
                        if epoch_ends:  # before a checkpoint, which must not hold a full epoch open
                            on_epoch(self._close_epoch())
                            due = checkpoint_epochs > 0 and len(self.history.rows) % checkpoint_epochs == 0
                        progress("train", self.done, self.n_steps)
                        now = time.perf_counter()
                        self.seconds = now - started
                        if self.first_epoch_seconds is None and epoch_ends:
                            self.first_epoch_seconds = self.seconds
                        stopping = distributed.any_process(stop())
                        if work is not None and (due or stopping or now - last_saved > checkpoint_seconds):
                            self.save(work)
                            last_saved = now
                        if stopping and (work is not None or distributed.size() > 1):
                            raise Stopped(f"stopped after step {self.done} of {self.n_steps}")
                    yield
        except (Diverged, Stopped):
            self._release()
            raise
        self._release()

    def summed_step(self, index: Mapping[str, Tensor], images: Mapping[str, Tensor] | None = None) -> None:
        """One step, its terms added to the epoch's sums: what is captured."""
        self.history.add(self.step(index, images))

    def prepare_parts(self) -> None:
        """The parts' own stages before the first step, once. They draw from generators of their own; a stop waits for
        them."""
        for name, part in self.model.parts.items() if not self.prepared else ():
            seed = derive_seed("prepare", name, self.spec.seed)
            with preserved(self.device):
                torch.manual_seed(seed)
                part.prepare(self.data.visible_to(part.sees), torch.Generator(self.device).manual_seed(seed))
        self.prepared = True

    @property
    def path(self) -> str:
        """How its steps are taken: `captured`, all but the first few by replays of a CUDA graph, or `eager`."""
        return "eager" if self.graphed is None else "captured"

    def facts(self) -> dict[str, Any]:
        """What a table tells of the training."""
        return {
            "batches": {name: stream.batch_size for name, stream in self.streams.items()} if self.n_steps else {},
            "n_views": self.step.n_views,
            "n_steps": self.n_steps,
            "path": self.path,
            "augmentation": "compiled" if any(one.augment.compiled for one in self.step.sets) else "eager",
            "unread": sorted(f"train.{name}" for name in unread_in_train(self.spec.method, self.spec.train)),
        }

    def state(self) -> checkpoint.State:
        """Everything the future of the run depends on: tensors and JSON."""
        tensors = self.model.tensors()
        for prefix, optimizer in self.step.optimizers.items():
            for number, slots in optimizer.state_dict()["state"].items():
                for slot, value in slots.items():
                    if value is not None:
                        tensors[f"{prefix}.{number}.{slot}"] = value.contiguous()
        tensors["generator"] = self.step.gen.get_state()
        tensors.update({f"global_generator.{i}": value for i, value in enumerate(get_rng_state(self.device))})
        tensors.update(self.history.tensors())
        return tensors, {
            "format": checkpoint.FORMAT,
            "key": self.spec.pretrain_key,
            "prepared": self.prepared,
            "done": self.done,
            "history": self.history.rows,
            "device": self.device.type,
            "threads": torch.get_num_threads() if self.device.type == "cpu" else None,
        }

    def load(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """The inverse of `state`."""
        self.model.load(tensors)
        for prefix in self.step.optimizers:
            self._load_optimizer(prefix, tensors)
        self.step.gen.set_state(tensors["generator"].cpu())
        set_rng_state(self.device, [v for k, v in sorted(tensors.items()) if k.startswith("global_generator.")])
        self.history.load(tensors)
        self.prepared = meta.get("prepared", self.prepared)
        self.done = meta["done"]
        self.history.rows = [dict(row) for row in meta["history"]]
        self.step.step_count.fill_(self.done)

    def _load_optimizer(self, prefix: str, tensors: Mapping[str, Tensor]) -> None:
        optimizer = self.step.optimizers[prefix]
        slots: dict[int, dict[str, Tensor]] = {}
        for key, value in tensors.items():
            if key.startswith(prefix + "."):
                number, slot = key[len(prefix) + 1 :].split(".", 1)
                slots.setdefault(int(number), {})[slot] = value
        lr = self.step.lr if prefix == "adam" else self.step.dual_lr
        owned = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        for at, values in slots.items():
            for slot, value in values.items():
                if value.shape == owned[at].shape:
                    values[slot] = laid_out_as(owned[at], value.to(self.device))
        content = optimizer.state_dict()
        optimizer.load_state_dict({"state": slots, "param_groups": content["param_groups"]})
        for group in optimizer.param_groups:
            group["lr"] = lr

    def save(self, work: Path) -> None:
        """Write a checkpoint into `work`."""
        checkpoint.write(work, self.done, checkpoint.serialize(self.state()))

    def resume(self, work: Path) -> bool:
        """Load the newest whole checkpoint in `work` of this very spec; whether there was one."""
        found = checkpoint.newest(work, self.spec.pretrain_key, self.device)
        if found is not None:
            self.load(*found)
        return found is not None

    def _begin(self, work: Path | None) -> None:
        """Resume, or prepare the parts; of several processes the first does, and the others get its state."""
        if work is not None:
            self.resume(work)
        if not self.prepared and distributed.rank() == 0:
            self.prepare_parts()
            if work is not None:
                self.save(work)
        if distributed.size() > 1:
            content = distributed.broadcast(None if distributed.rank() else checkpoint.serialize(self.state()))
            if content is not None and distributed.rank():
                self.load(*checkpoint.deserialize(content))

    def _epoch(self) -> Iterator[tuple[dict[str, Tensor], dict[str, Tensor] | None]]:
        """Positions, and images if they are streamed, of each step up to the end of the epoch."""
        n = self.steps_per_epoch - self.done % self.steps_per_epoch
        here = {name: stream.steps(self.done, n) for name, stream in self.streams.items()}
        with self._on_stream():
            there = {name: rows.to(self.device) for name, rows in here.items()}
        steps = [{name: rows[at] for name, rows in there.items()} for at in range(n)]
        if not self.data.streamed:
            yield from ((index, None) for index in steps)
            return
        if self._prefetch is None:
            self._prefetch = Prefetch(self.data.images, self.device)
        fetched = self._prefetch([{name: rows[at] for name, rows in here.items()} for at in range(n)])
        for index in steps:
            with self._on_stream():
                images = next(fetched)
            yield index, images

    def _close_epoch(self) -> dict[str, float]:
        step = self.step
        row = self.history.close_epoch(self.steps_per_epoch, self.done, self.n_steps, step.lr)
        if step.features is not None and step.features.isfinite().all():
            found = spread(step.features)
            row |= {"feature_sd": found.feature_sd, "effective_rank": found.effective_rank}
        return row

    def _on_stream(self) -> AbstractContextManager[Any]:
        return nullcontext() if self.stream is None else torch.cuda.stream(self.stream)

    def _release(self) -> None:
        """Free what only the loop needs, once the device is done with it."""
        if self.stream is None:
            return
        self.stream.synchronize()
        if self.graphed is not None:
            self.graphed.release()
        self._prefetch = None
        streams.give_back(self.stream)
        self.stream = None
        for parameter in (*self.step.primal, *self.step.dual):
            parameter.grad = None  # it lies in the graph's memory


_AHEAD = 32  # steps; so many, and at most twice as many, are queued on a GPU before the loop waits for it; and
_STREAMED_AHEAD = 4  # where each holds images that were streamed


class _BoundedQueue:
    """Keeps the loop from running far ahead of a GPU: a signal to stop would have to wait for all that is queued."""

    def __init__(self, stream: torch.cuda.Stream | None, ahead: int) -> None:
        self._stream, self._ahead = stream, ahead
        self._earlier: torch.cuda.Event | None = None  # a step that is behind those queued since

    def bound(self, n_steps_done: int) -> None:
        """Wait for a step that was queued long before, every `ahead` steps."""
        if self._stream is not None and n_steps_done % self._ahead == 0:
            if self._earlier is not None:
                self._earlier.synchronize()
            self._earlier = self._stream.record_event()


def build_trainer(
    spec: RunSpec,
    data: RunData,
    device: torch.device,
    images: Tensor | None = None,
    eager: bool = False,
    compile_augment: bool = False,
) -> Trainer:
    """The trainer of a spec at its first step: model and optimisers, all from the spec's seed. `images`: the training
    images as `place` has put them, if they are to be shared."""
    return Trainer(spec, to_device(data, device, images), len(data.splits.groups), eager, compile_augment)
