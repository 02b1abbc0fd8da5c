"""The one training loop: every method, every device, exact resume.

One rule of differentiation: the gradient of all primal terms moves everything that is not dual, the gradient of the dual
terms moves the dual parameters, both taken at the old values; then both optimisers step. The step reads nothing back and
takes no branch on data: on a GPU it is captured once as a CUDA graph and replayed. Losses are summed on the device and
read once per epoch. Several processes can train one run (`world`), and several runs share one device (`together`).
"""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor, nn

from fairssl import registry, world
from fairssl.data import (
    DeviceSplit,
    IndexStream,
    Prefetch,
    augmentation,
    cells_of,
    is_out_of_memory,
    random_numbers,
    repeated,
)
from fairssl.nn import at_least_float32
from fairssl.parts import Encoder, Objective, Part
from fairssl.spec import RunSpec, check_share, derive_seed
from fairssl.types import Batch, Context, Progress, Terms, UserError, first_line, silent

CHECKPOINT_SECONDS = 60.0  # at most that much work is lost to a kill
KEEP = 2  # checkpoints kept: the previous one stays until the new one is whole
AHEAD = 32  # steps; so many, and at most twice as many, are queued on a GPU before the loop waits for it; and
STREAMED_AHEAD = 4  # where each holds images that were streamed
WARM_UP = 3  # eager steps before the capture, as torch advises; they are steps of the run like any other


class Diverged(RuntimeError):
    """A loss stopped being a number: the step, the term and its value."""


class NotCaptured(RuntimeError):
    """A step could not be captured as a CUDA graph; torch may be left unfit for other work on that device."""


def build_encoder(spec: RunSpec) -> Encoder:
    """The encoder of a spec from random weights, a pure function of the spec and the seed."""
    torch.manual_seed(derive_seed("encoder", spec.seed))
    side = spec.data.image_size
    return registry.encoders.build(spec.encoder.name, spec.encoder.params, image_shape=(3, side, side))


def build_parts(spec: RunSpec, encoder: Encoder, data: DeviceSplit, n_groups: int, n_steps: int) -> dict[str, Part]:
    """The objective, then the heads, by name. Each part has its own seed, so that adding one moves no other."""
    side = spec.data.image_size
    context = Context(
        encoder=encoder,
        feature_dim=encoder.dim,
        image_shape=(3, side, side),
        n_train=len(data.target),
        n_annotated=len(data.annotated),
        n_targets=2,
        n_groups=n_groups,
        n_steps=n_steps,
    )
    parts: dict[str, Part] = {}
    for kind, part in ((registry.objectives, spec.method.objective), *((registry.heads, h) for h in spec.method.heads)):
        torch.manual_seed(derive_seed("part", part.name, spec.seed))
        parts[part.name] = built = kind.build(part.name, part.params, ctx=context)
        if isinstance(built, Objective) and built.feature_dim is not None:
            context = replace(context, feature_dim=built.feature_dim)
    return parts


def index_streams(spec: RunSpec, data: DeviceSplit) -> dict[str, IndexStream]:
    """The streams that the method draws, the one that makes an epoch first."""
    streams = {}
    for name in spec.method.streams:
        positions = torch.arange(len(data.target)) if name == "all" else data.annotated.cpu()
        cells = cells_of(spec.method.sampler, data, data.annotated) if name == "annotated" else None
        streams[name] = IndexStream(
            name, positions, spec.train.batch_of(name), spec.seed, None if cells is None else cells.cpu()
        )
        if streams[name].batch_size < 2:
            raise UserError(
                f"the {name!r} stream has {len(positions)} image(s): 0 training batches; at least 2 are needed"
            )
    return streams


def _optimizer(kind: str, parameters: list[nn.Parameter], lr: Tensor, weight_decay: float) -> torch.optim.Optimizer:
    on_gpu = lr.device.type == "cuda"
    if kind == "sgd":  # unless fused, it reads the learning rate back
        return torch.optim.SGD(parameters, lr=lr, weight_decay=weight_decay, fused=on_gpu)
    adam = torch.optim.Adam(parameters, lr=lr, weight_decay=weight_decay, fused=True, capturable=on_gpu)
    adam._warned_capturable_if_run_uncaptured = True  # the warm-up is, and means it
    return adam


class Trainer:
    """Builds everything a run needs and takes its steps. `state` and `load` make a run resume bit for bit on a CPU.

    `capture`: replay the step as a CUDA graph; default on a GPU, in a process alone, if every part allows it.
    """

    def __init__(self, spec: RunSpec, data: DeviceSplit, n_groups: int, capture: bool | None = None):
        self.spec, self.config, self.data = spec, spec.train, data
        self.device = data.device
        self.streams = index_streams(spec, data)
        self.steps_per_epoch = next(iter(self.streams.values())).n_batches
        self.n_epochs = max(self.config.epochs, math.ceil(self.config.min_steps / self.steps_per_epoch))
        if not registry.objectives.get(spec.method.objective.name).trains:
            self.n_epochs = 0
        self.n_steps = self.n_epochs * self.steps_per_epoch

        encoder = build_encoder(spec)
        self.parts = build_parts(spec, encoder, data, n_groups, self.n_steps)
        # Channels-last is 1.25 to 2 times as fast for convolutions and, being always on, part of no key.
        self.encoder: Encoder = encoder.to(self.device).to(memory_format=torch.channels_last).train()
        for part in self.parts.values():
            part.to(self.device).train()
        self.objective: Any = self.parts[spec.method.objective.name]
        self.weights = {head.name: float(head.params["weight"]) for head in spec.method.heads}
        self.n_views = max(part.n_views for part in self.parts.values())
        for name, stream in self.streams.items():
            check_share(name, stream.batch_size, world.size())
        # Does a part need everybody's pixels, or is it enough to augment the rows that are encoded here?
        self.joint_views = any("views" in p.sees or type(p).views is not Part.views for p in self.parts.values())
        self.augment = augmentation(spec.data.image_size, self.config, self.device)

        torch.manual_seed(derive_seed("run", spec.seed))  # dropout and the like
        self.gen = torch.Generator(self.device).manual_seed(derive_seed("augment", spec.seed))
        self.dual = [p for part in self.parts.values() for p in part.dual_parameters()]
        dual_ids = {id(p) for p in self.dual}
        everything = [*self.encoder.parameters(), *(p for part in self.parts.values() for p in part.parameters())]
        self.primal = [p for p in everything if p.requires_grad and id(p) not in dual_ids]
        self.lr = torch.tensor(self.config.lr, device=self.device)
        self.dual_lr = torch.tensor(self.config.dual_lr, device=self.device)
        self.optimizer = _optimizer("adam", self.primal, self.lr, self.config.weight_decay)
        self.dual_optimizer = (
            _optimizer(self.config.dual_optimizer, self.dual, self.dual_lr, self.config.weight_decay)
            if self.dual
            else None
        )
        self.step_count = torch.zeros((), dtype=torch.float64, device=self.device)
        self.first_bad = torch.full((), -1.0, dtype=torch.float64, device=self.device)
        self.sums: dict[str, Tensor] = {}  # of the epoch so far
        self.history: list[dict[str, float]] = []
        self.done = self.resumed_at = 0  # steps; the device's own count is step_count
        self.prepared = all(type(part).prepare is Part.prepare for part in self.parts.values())
        self.seconds = 0.0  # spent stepping
        self.first_epoch_seconds: float | None = None  # of them, up to the first epoch's end: compilation and capture
        self.noise = get_noise(self.device)

        on_gpu = self.device.type == "cuda"
        if on_gpu:
            torch.backends.cudnn.benchmark = True  # shapes do not change: let it try its algorithms, in the warm-up
        capturable = all(part.capturable for part in self.parts.values()) and world.size() == 1
        self.capture = on_gpu and capturable if capture is None else capture
        # A stream of its own: torch's advice for what is captured, and runs that share a device overlap.
        self.stream = torch.cuda.Stream(self.device) if on_gpu else None
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream(self.device))
        self._captured: _Captured | None = None
        self._prefetch: Prefetch | None = None
        self._queued: torch.cuda.Event | None = None  # a step that is behind those queued since
        self._warm, self._noisy = 0, False  # eager steps taken; whether one drew from the global generator

    # ------------------------------------------------------------- one step

    def prepare(self) -> None:
        """The parts' own stages before the first step, once. They draw from generators of their own; a stop waits for
        them."""
        for name, part in self.parts.items() if not self.prepared else ():
            seed = derive_seed("prepare", name, self.spec.seed)
            with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
                torch.manual_seed(seed)
                hidden = torch.full_like(self.data.group, -1)
                seen = replace(
                    self.data,
                    target=self.data.target if "target" in part.sees else hidden,
                    group=self.data.group if "group" in part.sees else hidden,
                )
                part.prepare(seen, torch.Generator(self.device).manual_seed(seed))
        self.prepared = True

    def draw(self, index: Mapping[str, Tensor], images: Mapping[str, Tensor] | None = None) -> dict[str, Batch]:
        """A batch per stream: gathered and augmented where the images lie; nothing is encoded yet.

        `images`: stream -> uint8 (B, C, H, W), for images that do not lie on the device. Of several processes each draws
        the same numbers; unless a part looks at the views, it makes only those that it encodes.
        """
        batches = {}
        for name, at in index.items():
            found = self.data.images.index_select(0, at) if images is None else images[name]
            n = self.n_views * len(at)
            rows = slice(0, n) if self.joint_views else world.rows(n)
            u = {key: value[..., rows] for key, value in random_numbers(n, self.config, self.gen).items()}
            pixels = self.augment(repeated(found, self.n_views, rows), u)
            batches[name] = Batch(
                views=list(pixels.chunk(self.n_views)) if rows == slice(0, n) else [pixels],
                index=at,
                target=self.data.target.index_select(0, at),
                group=self.data.group.index_select(0, at),
            )
        for part in self.parts.values():
            for name in part.streams:
                if type(part).views is not Part.views:
                    changed = part.views(shown(batches[name], part, views=True), self.gen)
                    batches[name] = replace(batches[name], views=changed.views)
        return batches

    def encode(self, batches: dict[str, Batch]) -> dict[str, Batch]:
        """Fill `f` and `project`: one forward pass per stream, so that batch statistics do not mix unless told to.

        Of several processes each encodes its rows; all get the features of the whole batch.
        """
        n_rows = {name: self.n_views * len(batch.index) for name, batch in batches.items()}
        pixels = {}
        for name, batch in batches.items():
            x = torch.cat(batch.views).contiguous(memory_format=torch.channels_last)
            pixels[name] = world.mine(x) if self.joint_views else x
        if self.config.join_streams:
            joined = world.local(self.encoder, torch.cat(list(pixels.values())))
            found = dict(zip(pixels, joined.split([len(x) for x in pixels.values()]), strict=True))
        else:
            found = {name: world.local(self.encoder, x) for name, x in pixels.items()}
        features = {name: world.gather_with_grad(h, n_rows[name]) for name, h in found.items()}
        return {
            name: replace(
                batch,
                h=list(features[name].chunk(self.n_views)),
                f=list(at_least_float32(self.objective.represent(features[name])).chunk(self.n_views)),
                project=_once(self.objective.project),
            )
            for name, batch in batches.items()
        }

    def terms(self, batches: Mapping[str, Batch]) -> tuple[Tensor, Tensor | None, dict[str, Tensor]]:
        """Total primal loss, total dual loss (None without dual terms), and every term by name for the log."""
        primal: list[Tensor] = []
        dual: list[Tensor] = []
        log: dict[str, Tensor] = {}
        for name, part in self.parts.items():
            if not part.streams:
                continue  # it acts after training
            found: Terms = part({stream: shown(batches[stream], part) for stream in part.streams})
            weight = self.weights.get(name, 1.0)
            primal += [weight * value for value in found.primal.values()]
            dual += list(found.dual.values())
            for value in (found.primal, found.dual, found.log):
                log.update({f"{name}.{key}": v.detach() for key, v in value.items()})
        return torch.stack(primal).sum(), torch.stack(dual).sum() if dual else None, log

    def differentiate(
        self, drawn: dict[str, Batch]
    ) -> tuple[Tensor, Tensor | None, dict[str, Tensor], list[Tensor | None], list[Tensor | None]]:
        """Both total losses and the log as `terms` gives them, then the gradients of `primal` and of `dual` parameters,
        all of the whole batch, also where several processes share it."""
        bf16 = self.config.precision == "bf16"  # of the networks; pixels stay float32
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=bf16):
            primal, dual, log = self.terms(self.encode(drawn))
        found = torch.autograd.grad(primal, self.primal, allow_unused=True, retain_graph=dual is not None)
        moved = self.primal
        if dual is not None:
            found, moved = found + torch.autograd.grad(dual, self.dual, allow_unused=True), moved + self.dual
        reduced = world.reduce_gradients(moved, found)
        return primal, dual, log, reduced[: len(self.primal)], reduced[len(self.primal) :]

    def step(self, index: Mapping[str, Tensor], images: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
        """One step on the given positions per stream; the terms it had, as 0-d tensors on the device."""
        if self.config.schedule == "cosine":
            factor = 0.5 * (1 + torch.cos(math.pi * self.step_count / self.n_steps))
            self.lr.copy_(self.config.lr * factor)
            self.dual_lr.copy_(self.config.dual_lr * factor)
        with _tensor_float(self.device):
            drawn = self.draw(index, images)
        primal, dual, log, gradients, dual_gradients = self.differentiate(drawn)
        if dual is not None:
            # An infinite discriminator gradient must not reach its weights, or the next step would poison the encoder.
            finite = torch.stack([g.isfinite().all() for g in dual_gradients if g is not None]).all()
            for parameter, gradient in zip(self.dual, dual_gradients, strict=True):
                parameter.grad = (
                    None if gradient is None else _laid_out_as(parameter, torch.where(finite, gradient, 0.0))
                )
            log["dual_skipped"] = (~finite).float()
        for parameter, gradient in zip(self.primal, gradients, strict=True):
            parameter.grad = None if gradient is None else _laid_out_as(parameter, gradient)
        if self.config.clip_norm > 0:
            nn.utils.clip_grad_norm_(self.primal, self.config.clip_norm)
        self.optimizer.step()
        if self.dual_optimizer is not None and dual is not None:
            before = [p.detach().clone() for p in self.dual]
            self.dual_optimizer.step()
            with torch.no_grad():  # a skipped step moves nothing, weight decay and momentum included
                for parameter, old in zip(self.dual, before, strict=True):
                    parameter.copy_(torch.where(finite, parameter, old))
        self.first_bad.copy_(
            torch.where((self.first_bad < 0) & ~primal.detach().isfinite(), self.step_count, self.first_bad)
        )
        self.step_count += 1
        progress = (self.step_count / self.n_steps).float()
        with torch.no_grad():
            for part in self.parts.values():
                part.after_step(self.encoder, progress)
        return {"loss": primal.detach(), **log}

    def _take(self, index: Mapping[str, Tensor], images: Mapping[str, Tensor] | None) -> None:
        """One step as fast as it goes, its terms added to the epoch's sums."""
        if not self.capture:
            self._summed(index, images)
            return
        if self._warm < WARM_UP:
            before = get_noise(self.device)[-1]
            self._summed(index, images)
            self._noisy |= not torch.equal(before, get_noise(self.device)[-1])
            self._warm += 1
            return
        if self._captured is None:
            self._captured = _Captured(self._summed, index, images, self.gen, self.stream, self._noisy)
        self._captured(index, images)

    def _summed(self, index: Mapping[str, Tensor], images: Mapping[str, Tensor] | None) -> None:
        for name, value in self.step(index, images).items():
            if name not in self.sums:
                self.sums[name] = torch.zeros((), dtype=torch.float64, device=self.device)
            self.sums[name].add_(value)

    # ------------------------------------------------------------- the run

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
        epoch: Callable[[Mapping[str, float]], None] = lambda row: None,
    ) -> Iterator[None]:
        """Train to the end from wherever the newest whole checkpoint in `work` stands; one step between two yields.

        `stop()` is asked between steps; when it says so, a checkpoint is written and `Stopped` raised. Checkpoints are
        also written every so many seconds and, unless 0, epochs. `epoch(row)` hears of each epoch's means. Of several
        processes the first alone needs a `work`; it reads and writes for all.
        """
        set_noise(self.device, self.noise)  # others may have drawn since this run was built
        with self._on_stream():
            self._resume_all(work)
        self.resumed_at = self.done
        started = last_saved = time.perf_counter()
        while self.done < self.n_steps:
            for index, images in self._epoch():
                with self._on_stream():
                    self._take(index, images)
                    self.done += 1
                    self._bound_queue()
                    due = False
                    if (
                        self.done % self.steps_per_epoch == 0
                    ):  # before a checkpoint, which must not hold a full epoch open
                        self._close_epoch()
                        epoch(self.history[-1])
                        due = checkpoint_epochs > 0 and len(self.history) % checkpoint_epochs == 0
                    progress("train", self.done, self.n_steps)
                    now = time.perf_counter()
                    self.seconds = now - started
                    if self.first_epoch_seconds is None and self.done % self.steps_per_epoch == 0:
                        self.first_epoch_seconds = self.seconds
                    stopping = world.any_of(stop())
                    if work is not None and (due or stopping or now - last_saved > checkpoint_seconds):
                        self.save(work)
                        last_saved = now
                    if stopping and (work is not None or world.size() > 1):
                        raise Stopped(f"stopped after step {self.done} of {self.n_steps}")
                yield
        if self.stream is not None:
            self.stream.synchronize()
            self._captured = self._prefetch = self._queued = None  # their memory, once nothing on the device uses it
            for parameter in (*self.primal, *self.dual):
                parameter.grad = None  # it lies in the graph's memory

    def _bound_queue(self) -> None:
        """Do not run far ahead of a GPU: a signal to stop would have to wait for all that is queued."""
        if self.stream is not None and self.done % (STREAMED_AHEAD if self.data.streamed else AHEAD) == 0:
            if self._queued is not None:
                self._queued.synchronize()
            self._queued = self.stream.record_event()

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

    def _on_stream(self) -> AbstractContextManager[Any]:
        return nullcontext() if self.stream is None else torch.cuda.stream(self.stream)

    def _resume_all(self, work: Path | None) -> None:
        if work is not None:
            self.resume(work)
        if not self.prepared and world.rank() == 0:
            self.prepare()
            if work is not None:
                self.save(work)
        if world.size() > 1:
            content = world.from_first(None if world.rank() else self._packed())
            if content is not None and world.rank():
                with tempfile.NamedTemporaryFile(suffix=".safetensors") as file:
                    file.write(content)
                    file.flush()
                    self.load(*_unpacked(Path(file.name)))

    def _close_epoch(self) -> None:
        """Read the epoch's sums back, once; raise `Diverged` if a loss was not a number."""
        read = torch.stack([self.first_bad, self.lr.double(), *self.sums.values()]).tolist()
        bad, lr = int(read[0]), read[1]
        means = {name: value / self.steps_per_epoch for name, value in zip(self.sums, read[2:], strict=True)}
        if bad >= 0:
            terms = ", ".join(f"{name} {value}" for name, value in means.items() if not math.isfinite(value))
            raise Diverged(f"step {bad + 1} of {self.n_steps}: the loss is not finite ({terms})")
        self.history.append({"epoch": self.done // self.steps_per_epoch, "step": self.done, "lr": lr, **means})
        for value in self.sums.values():
            value.zero_()

    # ------------------------------------------------------------- state

    def modules(self) -> dict[str, nn.Module]:
        """What has a state dict, by the prefix it is stored under."""
        return {"encoder": self.encoder, **{f"part.{name}": part for name, part in self.parts.items()}}

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything the future of the run depends on: tensors and JSON."""
        tensors = self.parameters_and_buffers()
        for prefix, optimizer in self._optimizers().items():
            for number, slots in optimizer.state_dict()["state"].items():
                for slot, value in slots.items():
                    if value is not None:
                        tensors[f"{prefix}.{number}.{slot}"] = value.contiguous()
        tensors["generator"] = self.gen.get_state()
        tensors.update({f"global_generator.{i}": value for i, value in enumerate(get_noise(self.device))})
        tensors["first_bad"] = self.first_bad
        tensors.update({f"sum.{name}": value for name, value in self.sums.items()})
        return tensors, {
            "key": self.spec.pretrain_key,
            "prepared": self.prepared,
            "done": self.done,
            "history": self.history,
            "device": self.device.type,
            "threads": torch.get_num_threads() if self.device.type == "cpu" else None,
        }

    def _optimizers(self) -> dict[str, torch.optim.Optimizer]:
        return {"adam": self.optimizer, **({"dual": self.dual_optimizer} if self.dual_optimizer else {})}

    def parameters_and_buffers(self) -> dict[str, Tensor]:
        """The state of the encoder and of every part, by name: what a finished run keeps."""
        return {
            f"{prefix}.{name}": value.detach().contiguous()
            for prefix, module in self.modules().items()
            for name, value in module.state_dict().items()
        }

    def load_weights(self, tensors: Mapping[str, Tensor]) -> None:
        """The inverse of `parameters_and_buffers`; other names are passed over."""
        for prefix, module in self.modules().items():
            module.load_state_dict({k[len(prefix) + 1 :]: v for k, v in tensors.items() if k.startswith(prefix + ".")})

    def load(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """The inverse of `state`."""
        self.load_weights(tensors)
        for prefix, optimizer in self._optimizers().items():
            slots: dict[int, dict[str, Tensor]] = {}
            for key, value in tensors.items():
                if key.startswith(prefix + "."):
                    number, slot = key[len(prefix) + 1 :].split(".", 1)
                    slots.setdefault(int(number), {})[slot] = value
            owned = self.primal if prefix == "adam" else self.dual
            for at, values in slots.items():
                for slot, value in values.items():
                    if value.shape == owned[at].shape:
                        values[slot] = _laid_out_as(owned[at], value.to(self.device))
            content = optimizer.state_dict()
            optimizer.load_state_dict({"state": slots, "param_groups": content["param_groups"]})
            lr = self.lr if prefix == "adam" else self.dual_lr
            for group in optimizer.param_groups:
                group["lr"] = lr
        self.gen.set_state(tensors["generator"].cpu())
        set_noise(self.device, [v for k, v in sorted(tensors.items()) if k.startswith("global_generator.")])
        self.first_bad.copy_(tensors["first_bad"])
        self.sums = {k.removeprefix("sum."): v.to(self.device) for k, v in tensors.items() if k.startswith("sum.")}
        self.prepared = meta.get("prepared", self.prepared)
        self.done = meta["done"]
        self.history = [dict(row) for row in meta["history"]]
        self.step_count.fill_(self.done)

    def save(self, work: Path) -> None:
        """Write a checkpoint and drop all but the newest `KEEP`; a kill at any moment, or a full disk, leaves a whole one."""
        work.mkdir(parents=True, exist_ok=True)
        content = self._packed()
        path = work / f"checkpoint-{self.done:09d}.safetensors"
        temporary = path.with_suffix(".partial")
        try:
            with open(temporary, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        temporary.replace(path)
        for old in sorted(work.glob("checkpoint-*.safetensors"))[:-KEEP]:
            old.unlink()

    def _packed(self) -> bytes:
        tensors, meta = self.state()
        return save({k: v.to("cpu", copy=True) for k, v in tensors.items()}, metadata={"meta": json.dumps(meta)})

    def resume(self, work: Path) -> bool:
        """Load the newest whole checkpoint of this very spec; a torn or foreign one is skipped with a warning that names it."""
        for path in sorted(work.glob("checkpoint-*.safetensors"), reverse=True):
            try:
                tensors, meta = _unpacked(path)
            except Exception as error:  # safetensors raises its own untyped error for a truncated file
                _warn(f"checkpoint {path} cannot be read ({error}); going on from the one before")
                continue
            if meta["key"] != self.spec.pretrain_key:
                _warn(f"checkpoint {path} is of another spec; not used")
                continue
            if meta.get("device", self.device.type) != self.device.type:  # whose generators have other states
                _warn(f"checkpoint {path} is of a {meta['device']} device, this is a {self.device.type}; not used")
                continue
            self.load(tensors, meta)
            threads = torch.get_num_threads()
            if self.device.type == "cpu" and meta.get("threads") not in (None, threads):
                _warn(
                    f"checkpoint {path} is of {meta['threads']} threads, now {threads}: equal up to rounding, not in bits"
                )
            return True
        return False


class Stopped(RuntimeError):
    """The run was asked to stop and left a checkpoint."""


def _unpacked(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the JSON of a checkpoint."""
    with safe_open(path, "pt") as file:
        meta = json.loads(file.metadata()["meta"])
        return {name: file.get_tensor(name) for name in file.keys()}, meta  # noqa: SIM118


def together(trainers: Sequence[Trainer], runs: Sequence[Iterator[None]]) -> list[Exception | None]:
    """Advance several runs of one device in turn, a step each; of each, what it ended with, None if at its last step.

    On a GPU the steps of different runs overlap, each on its own stream: one of 64 pixels leaves half of a large card
    idle. A run that fails or diverges stops no other. What each draws does not depend on the others.
    """
    ended: list[Exception | None] = [None] * len(runs)
    left = list(range(len(runs)))
    while left:
        for number in list(left):
            trainer = trainers[number]
            try:
                set_noise(trainer.device, trainer.noise)
                next(runs[number])
                trainer.noise = get_noise(trainer.device)
            except StopIteration:
                left.remove(number)
            except Exception as error:
                ended[number] = error
                left.remove(number)
                if world.size() > 1 and not isinstance(error, Diverged):  # the others may be at this run still
                    return [error if i in (number, *left) else found for i, found in enumerate(ended)]
    return ended


class _Captured:
    """A step as a CUDA graph. It reads its positions, and images if they are streamed, from places of its own."""

    last_noise: ClassVar[dict[torch.device, torch.cuda.Event]] = {}

    def __init__(
        self,
        step: Callable[[Mapping[str, Tensor], Mapping[str, Tensor] | None], None],
        index: Mapping[str, Tensor],
        images: Mapping[str, Tensor] | None,
        gen: torch.Generator,
        stream: torch.cuda.Stream | None,
        noisy: bool,
    ) -> None:
        self.index = {name: value.clone() for name, value in index.items()}
        self.images = None if images is None else {name: value.clone() for name, value in images.items()}
        self.noisy = noisy
        self.graph = torch.cuda.CUDAGraph()
        self.graph.register_generator_state(gen)
        # On the run's own stream: graphs that share one share its workspaces too, and could not overlap.
        try:
            with torch.cuda.graph(self.graph, stream=stream, capture_error_mode="thread_local"):
                step(self.index, self.images)
        except Exception as error:
            cause = error.__context__ or error  # the end of the capture fails too, and hides what came first
            if is_out_of_memory(error) or is_out_of_memory(cause):
                raise
            raise NotCaptured(
                f"the step cannot be captured ({first_line(cause)}); a part that reads a tensor back says capturable = False"
            ) from error

    def __call__(self, index: Mapping[str, Tensor], images: Mapping[str, Tensor] | None) -> None:
        """Take the captured step on these positions and images, on the current stream."""
        for name, value in index.items():
            self.index[name].copy_(value)
        if self.images is not None and images is not None:
            for name, value in images.items():
                self.images[name].copy_(value)
        if not self.noisy:
            self.graph.replay()
            return
        # All graphs read the global generator's state from one place on the device, which a replay overwrites.
        device = next(iter(self.index.values())).device
        if device in self.last_noise:
            torch.cuda.current_stream(device).wait_event(self.last_noise[device])
        self.graph.replay()
        self.last_noise[device] = torch.cuda.current_stream(device).record_event()


def get_noise(device: torch.device) -> list[Tensor]:
    """States of the global generators that a part may draw from; the device's own last."""
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]


def set_noise(device: torch.device, states: Sequence[Tensor]) -> None:
    torch.set_rng_state(states[0].cpu())
    if device.type == "cuda" and len(states) > 1:
        torch.cuda.set_rng_state(states[1].cpu(), device)


@contextmanager
def _tensor_float(device: torch.device) -> Iterator[None]:
    """Within it matrix products on a GPU keep 11 bits of their operands, an eighth of a gray level: the crops' are large."""
    if device.type != "cuda":
        yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _laid_out_as(parameter: Tensor, value: Tensor) -> Tensor:
    """`value` with the strides of `parameter`: fused Adam walks both as flat memory and is silently wrong otherwise."""
    return value if value.stride() == parameter.stride() else torch.empty_like(parameter).copy_(value)


def _once(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """All parts of a step share one projection; the first to ask computes it."""
    result: list[Tensor] = []

    def shared(f: Tensor) -> Tensor:
        if not result:
            result.append(function(f))
        return result[0]

    return shared


def shown(batch: Batch, part: Part, views: bool = False) -> Batch:
    """The batch as one part may see it: what it did not declare is withheld. `views`: the views are shown anyway."""
    return replace(
        batch,
        views=batch.views if views or "views" in part.sees else [],
        target=batch.target if "target" in part.sees else None,
        group=batch.group if "group" in part.sees else None,
    )


def _warn(message: str) -> None:
    print(f"fairssl: warning: {message}", file=sys.stderr)
