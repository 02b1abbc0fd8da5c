"""One training step: draw a batch per stream, encode it, take the terms, differentiate, update.

One rule of differentiation: the gradient of all primal terms moves everything that is not dual, the gradient of the dual
terms moves the dual parameters, both taken at the old values; then both optimisers step. A step reads nothing back and
takes no branch on data, so that a GPU can replay it as a CUDA graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain, groupby
from typing import cast

import torch
from torch import Tensor, nn

from fairssl import distributed
from fairssl.data.augment import Augmentation, augmentation, random_numbers
from fairssl.data.device import DeviceSplit
from fairssl.nn import at_least_float32, in_network_precision, networks_in_bf16
from fairssl.parts import Part
from fairssl.spec.config import TrainConfig
from fairssl.spec.keys import derive_seed
from fairssl.spec.run import RunSpec
from fairssl.train.batch_counts import BatchCounts
from fairssl.train.build import make_optimizer, primal_optimizer
from fairssl.train.model import Model
from fairssl.types import Batch, Chunks, Terms, joined

Index = Mapping[str, Tensor]  # stream -> (B,) int64 positions in the training split
Images = Mapping[str, Tensor]  # stream -> uint8 (B, C, H, W), where images do not lie on the device


class TrainStep:
    """A step of one run, and everything it reads and changes: the model, both optimisers, learning rates, generators."""

    def __init__(
        self,
        spec: RunSpec,
        data: DeviceSplit,
        model: Model,
        n_steps: int,
        eager: bool = False,
        compile_augment: bool = False,
    ) -> None:
        self.config, self.data, self.model, self.n_steps = spec.train, data, model, n_steps
        device = data.device
        self.weights = {head.name: float(head.params["weight"]) for head in spec.method.heads}
        self.n_views = max(part.n_views for part in model.parts.values())
        # Does a part need everybody's pixels, or is it enough to augment the rows that are encoded here?
        self.joint_views = any("views" in part.sees or changes_views(part) for part in model.parts.values())
        self.seen = {
            stream: {
                label for part in model.parts.values() if stream in part.streams for label in labels_of(part, stream)
            }
            for stream in spec.method.streams
        }
        compiled = compile_augment or (device.type == "cuda" and not eager)
        self.sets = _view_sets(spec.data.image_size, self.n_views, self.config, compiled, model)
        self.gen = torch.Generator(device).manual_seed(derive_seed("augment", spec.seed))

        self.dual = [p for part in model.parts.values() for p in part.dual_parameters()]
        dual_ids = {id(p) for p in self.dual}
        everything = [p for module in model.modules().values() for p in module.parameters()]
        self.primal = [p for p in everything if p.requires_grad and id(p) not in dual_ids]
        self.lr = torch.tensor(self.config.lr, device=device)
        self.dual_lr = torch.tensor(self.config.dual_lr, device=device)
        # Under the name that it has in the checkpoints from when there was Adam alone.
        self.optimizers = {"adam": primal_optimizer(self.config, self.primal, self.lr)}
        if self.dual:
            self.optimizers["dual"] = make_optimizer(
                self.config.dual_optimizer, self.dual, self.dual_lr, self.config.weight_decay
            )
        self.own_stream = spec.method.streams[0]
        self.features: Tensor | None = None  # of the latest step's own stream, whose collapse the trainer watches
        self.step_count = torch.zeros((), dtype=torch.float64, device=device)
        self.following = [part for part in model.parts.values() if type(part).after_step is not Part.after_step]
        self.counts_steps = bool(self.following) or self.config.schedule != "constant" or self.config.warmup > 0
        self.batch_counts = BatchCounts(model.modules().values())
        self.one = torch.ones((), device=device)

    @property
    def capturable(self) -> bool:
        """Whether every part allows that the step be replayed."""
        return all(part.capturable for part in self.model.parts.values()) and distributed.size() == 1

    def __call__(self, index: Index, images: Images | None = None) -> dict[str, Tensor]:
        """Take one step on the given positions per stream; the terms it had, as 0-d tensors on the device."""
        self._schedule()
        with tensor_float_32(self.data.device):
            drawn = self.draw(index, images)
        return self.update(drawn)

    def update(self, drawn: dict[str, Batch]) -> dict[str, Tensor]:
        """The step but for its batches, which are there: encode, differentiate, move; the terms, as 0-d tensors."""
        primal, dual, log, gradients, dual_gradients = self.differentiate(drawn)
        if dual is not None:
            log["dual_skipped"] = self._move_dual(dual_gradients)
        self._move_primal(gradients)
        if self.counts_steps:
            self.step_count += 1
        if self.following:
            progress = (self.step_count / self.n_steps).float()
            with torch.no_grad():
                for part in self.following:
                    part.after_step(self.model.encoder, progress)
        return {"loss": primal.detach(), **log}

    def draw(self, index: Index, images: Images | None = None) -> dict[str, Batch]:
        """A batch per stream: gathered and augmented where the images lie; nothing is encoded yet.

        Of several processes each draws the same random numbers; unless a part looks at the views, it makes only those
        that it encodes. A label that no part of a stream may see is not there.
        """
        batches = {}
        for name, at in index.items():
            found = self.data.images.index_select(0, at) if images is None else images[name]
            sets: list[Sequence[Tensor]] = []
            extra: dict[type, range] = {}
            for one in self._sets_of(name):
                n = one.n * len(at)
                rows = slice(0, n) if self.joint_views else distributed.shard_rows(n)
                images_of_rows, u = found, random_numbers(n, one.config, self.gen)
                if rows != slice(0, n):
                    images_of_rows = found.index_select(
                        0, torch.arange(rows.start, rows.stop, device=found.device) % len(at)
                    )
                    u = {key: value[..., rows] for key, value in u.items()}
                pixels = one.augment(images_of_rows, u)
                if one.owner is not None:
                    start = sum(map(len, sets))
                    before = extra.get(type(one.owner), range(start, start))
                    extra[type(one.owner)] = range(before.start, before.stop + one.n)
                # Rows of a process alone may begin and end within a view.
                sets.append(Chunks(pixels, one.n) if rows == slice(0, n) else [pixels])
            seen = self.seen[name]
            batches[name] = Batch(
                views=list(chain.from_iterable(sets)) if len(sets) > 1 else cast("list[Tensor]", sets[0]),
                index=at,
                target=self.data.target.index_select(0, at) if "target" in seen else None,
                group=self.data.group.index_select(0, at) if "group" in seen else None,
                extra=extra,
                stream=name,
            )
        for part in self.model.parts.values():
            for name in part.streams:
                if changes_views(part):
                    changed = part.views(visible_to(batches[name], part, views=True), self.gen)
                    batches[name] = self._with_views(batches[name], part, changed.views)
        return batches

    def _sets_of(self, stream: str) -> list[_ViewSet]:
        return [one for one in self.sets if one.owner is None or stream in one.owner.streams]

    def _with_views(self, batch: Batch, part: Part, changed: list[Tensor]) -> Batch:
        """The batch with what a part has made of its views: the usual ones for all, what stands behind them for itself."""
        if len(changed) < self.n_views:
            raise RuntimeError(
                f"{part.name}.views gives {len(changed)} views; the usual {self.n_views} must be among them"
            )
        extra: dict[type, range] = {}
        views = changed if len(changed) == self.n_views else changed[: self.n_views]
        own = {owner: [batch.views[at] for at in places] for owner, places in batch.extra.items()}
        for owner, more in {**own, type(part): changed[self.n_views :]}.items():
            if more:
                extra[owner] = range(len(views), len(views) + len(more))
                views = views + more
        return replace(batch, views=views, extra=extra)

    def encode(self, batches: dict[str, Batch]) -> dict[str, Batch]:
        """Fill `h`, `f` and `project`: one forward pass per stream and size of view, so that batch statistics do not mix
        unless told to.

        Encoder, representation and projection run in the networks' precision and give float32; the terms, a classifier's
        logits among them, are computed in float32 throughout. Of several processes each encodes its rows; all get the
        features of the whole batch.
        """
        objective = self.model.objective
        n_views = {name: self._n_views(name, batch) for name, batch in batches.items()}
        with in_network_precision(self.data.device):
            encoded = self.encoded(batches)
            features = {
                name: at_least_float32(
                    joined([distributed.gather_with_grad(h, n * len(batch.index)) for n, h in encoded[name]])
                )
                for name, batch in batches.items()
            }
            represented = {name: at_least_float32(objective.represent(h)) for name, h in features.items()}
        self._keep(represented[self.own_stream].detach())
        return {
            name: replace(
                batch,
                h=Chunks(features[name], n_views[name]),
                f=Chunks(represented[name], n_views[name]),
                project=_once(self._projected),
            )
            for name, batch in batches.items()
        }

    def _keep(self, f: Tensor) -> None:
        """Leave the features where they can be read after the step, also one that was replayed."""
        if self.features is None or self.features.shape != f.shape or self.features.dtype != f.dtype:
            self.features = torch.empty_like(f)
        self.features.copy_(f)

    def _n_views(self, stream: str, batch: Batch) -> int:
        if self.joint_views or distributed.size() == 1:
            return len(batch.views)
        return sum(one.n for one in self._sets_of(stream))

    def encoded(self, batches: Mapping[str, Batch]) -> dict[str, list[tuple[int, Tensor]]]:
        """stream -> its views in order, in sets of so many that this process has rows of together: (how many, their
        features (rows, D))."""
        rows = {name: self._rows(name, batch) for name, batch in batches.items()}
        # What goes through the encoder together: views of one size, of a stream or of all.
        together: dict[object, list[tuple[str, int]]] = {}
        for name, sets in rows.items():
            for at, (_, x) in enumerate(sets):
                together.setdefault(x.shape[2:] if self.config.join_streams else (name, x.shape[2:]), []).append(
                    (name, at)
                )
        found = {name: [(n, x) for n, x in sets] for name, sets in rows.items()}
        for members in together.values():
            pixels = [rows[name][at][1] for name, at in members]
            h = distributed.sharded_forward(self.model.encoder, joined(pixels))
            parts = h.split([len(x) for x in pixels]) if len(pixels) > 1 else [h]
            for (name, at), part in zip(members, parts, strict=True):
                found[name][at] = (found[name][at][0], part)
        return found

    def _rows(self, stream: str, batch: Batch) -> list[tuple[int, Tensor]]:
        """The views in sets of one size that stand one after the other: (how many, this process's rows of their pixels)."""
        if not self.joint_views and distributed.size() > 1:  # drawn as they are wanted
            return list(zip([one.n for one in self._sets_of(stream)], batch.views, strict=True))
        found = [list(views) for _, views in groupby(batch.views, key=lambda view: view.shape)]
        pixels = [joined(views) for views in (found if len(found) > 1 else [batch.views])]
        return [
            (len(views), distributed.shard(x.contiguous(memory_format=torch.channels_last)))
            for views, x in zip(found, pixels, strict=True)
        ]

    def _projected(self, f: Tensor) -> Tensor:
        objective = self.model.objective
        if objective.gives == "logits":  # one linear layer, whose logits must keep their bits
            return objective.project(f)
        with in_network_precision(f.device):
            return at_least_float32(objective.project(f))

    def terms(self, batches: Mapping[str, Batch]) -> tuple[Tensor, Tensor | None, dict[str, Tensor]]:
        """Total primal loss, total dual loss (None without dual terms), and every term by name for the log."""
        primal: list[Tensor] = []
        dual: list[Tensor] = []
        log: dict[str, Tensor] = {}
        for name, part in self.model.parts.items():
            found: Terms = part({stream: visible_to(batches[stream], part) for stream in part.streams})
            weight = self.weights.get(name, 1.0)
            primal += [value if weight == 1 else weight * value for value in found.primal.values()]
            dual += list(found.dual.values())
            for value in (found.primal, found.dual, found.log):
                log.update({f"{name}.{key}": v.detach() for key, v in value.items()})
        return total(primal), total(dual) if dual else None, log

    def differentiate(
        self, drawn: dict[str, Batch]
    ) -> tuple[Tensor, Tensor | None, dict[str, Tensor], list[Tensor | None], list[Tensor | None]]:
        """Both total losses and the log as `terms` gives them, then the gradients of `primal` and of `dual` parameters,
        all of the whole batch, also where several processes share it."""
        with networks_in_bf16(self.config.precision == "bf16"), self.batch_counts.together():
            primal, dual, log = self.terms(self.encode(drawn))
        found = torch.autograd.grad(primal, self.primal, allow_unused=True, retain_graph=dual is not None)
        moved = self.primal
        if dual is not None:
            found, moved = found + torch.autograd.grad(dual, self.dual, allow_unused=True), moved + self.dual
        reduced = distributed.reduce_gradients(moved, found)
        return primal, dual, log, reduced[: len(self.primal)], reduced[len(self.primal) :]

    def _schedule(self) -> None:
        warmup = round(self.config.warmup * self.n_steps)
        if self.config.schedule == "constant" and not warmup:
            return
        factor: Tensor | None = None
        if self.config.schedule == "cosine":
            # Steps of the warm-up are no part of the half cosine.
            done = (self.step_count - warmup).clamp_min(0) if warmup else self.step_count
            factor = 0.5 * (1 + torch.cos(math.pi * done / max(1, self.n_steps - warmup)))
        if warmup:
            rising = ((self.step_count + 1) / warmup).clamp_max(1)
            factor = rising if factor is None else factor * rising
        assert factor is not None
        self.lr.copy_(self.config.lr * factor)
        if self.dual:
            self.dual_lr.copy_(self.config.dual_lr * factor)

    def _move_primal(self, gradients: list[Tensor | None]) -> None:
        for parameter, gradient in zip(self.primal, gradients, strict=True):
            parameter.grad = None if gradient is None else laid_out_as(parameter, gradient)
        if self.config.clip_norm > 0:
            nn.utils.clip_grad_norm_(self.primal, self.config.clip_norm)
        self.optimizers["adam"].step()

    def _move_dual(self, gradients: list[Tensor | None]) -> Tensor:
        """Step the dual optimiser unless a gradient is not finite; 1 if the step was left out, 0 if not.

        An infinite gradient must not reach the discriminator's weights, or the next step would poison the encoder. A step
        that is left out moves nothing, weight decay and the optimiser's own state included.
        """
        found = []
        for parameter, gradient in zip(self.dual, gradients, strict=True):
            parameter.grad = None if gradient is None else laid_out_as(parameter, gradient)
            found += [] if parameter.grad is None else [parameter.grad]
        skipped = torch.zeros_like(self.one)
        torch._amp_foreach_non_finite_check_and_unscale_(found, skipped, self.one)  # as torch.amp.GradScaler does
        self.optimizers["dual"].found_inf = skipped  # type: ignore[attr-defined]
        self.optimizers["dual"].step()
        return skipped


def total(terms: list[Tensor]) -> Tensor:
    """0-d tensors -> their sum."""
    return terms[0] if len(terms) == 1 else torch.stack(terms).sum()


def changes_views(part: Part) -> bool:
    """Whether a part has a `views` of its own."""
    return type(part).views is not Part.views


def labels_of(part: Part, stream: str) -> frozenset[str]:
    """What a part may see besides features in a batch of this stream."""
    return frozenset(part.sees) if part.labelled is None or stream in part.labelled else frozenset()


def visible_to(batch: Batch, part: Part, views: bool = False) -> Batch:
    """The batch as one part may see it: what it did not declare is withheld, and so are views that another has asked for.
    `views`: the views are shown anyway."""
    others = {at for owner, places in batch.extra.items() if owner is not type(part) for at in places}
    if others:
        batch = _of_views(batch, [at for at in range(max(len(batch.views), len(batch.f))) if at not in others])
    labels = labels_of(part, batch.stream)
    return replace(
        batch,
        views=batch.views if views or "views" in part.sees else [],
        target=batch.target if "target" in labels else None,
        group=batch.group if "group" in labels else None,
    )


def _of_views(batch: Batch, chosen: list[int]) -> Batch:
    """The batch with some of its views; the projection is computed for all of them nevertheless, once."""
    whole = batch

    def project(f: Tensor) -> Tensor:
        return torch.cat([whole.z[at] for at in chosen])

    return replace(
        batch,
        views=[batch.views[at] for at in chosen] if batch.views else [],
        h=[batch.h[at] for at in chosen] if batch.h else [],
        f=[batch.f[at] for at in chosen] if batch.f else [],
        project=None if batch.project is None else project,
        extra={},
    )


@dataclass(frozen=True)
class _ViewSet:
    """Views that are drawn together: `n` of each image; of the part that asked for them, None for the usual ones."""

    owner: Part | None
    n: int
    config: TrainConfig
    augment: Augmentation


def _view_sets(size: int, n_views: int, config: TrainConfig, compiled: bool, model: Model) -> list[_ViewSet]:
    """The usual views, then the crops that parts ask for."""
    found = [_ViewSet(None, n_views, config, augmentation(size, config, compiled))]
    for part in model.parts.values():
        for crops in part.crops():
            low, high = crops.area
            own = config.model_copy(update={"crop_min": low, "crop_max": high})
            found.append(_ViewSet(part, crops.n, own, augmentation(crops.size, own, compiled)))
    return found


@contextmanager
def tensor_float_32(device: torch.device) -> Iterator[None]:
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


def laid_out_as(parameter: Tensor, value: Tensor) -> Tensor:
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
