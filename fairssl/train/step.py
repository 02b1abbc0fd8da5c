"""One training step: draw a batch per stream, encode it, take the terms, differentiate, update.

One rule of differentiation: the gradient of all primal terms moves everything that is not dual, the gradient of the dual
terms moves the dual parameters, both taken at the old values; then both optimisers step. A step reads nothing back and
takes no branch on data, so that a GPU can replay it as a CUDA graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from fairssl import distributed
from fairssl.data.augment import Augmentation, augmentation, random_numbers, repeated
from fairssl.data.device import DeviceSplit
from fairssl.nn import at_least_float32, in_network_precision, networks_in_bf16
from fairssl.parts import Part
from fairssl.spec.config import TrainConfig
from fairssl.spec.keys import derive_seed
from fairssl.spec.run import RunSpec
from fairssl.train.build import make_optimizer, primal_optimizer
from fairssl.train.model import Model
from fairssl.types import Batch, Terms

Index = Mapping[str, Tensor]  # stream -> (B,) int64 positions in the training split
Images = Mapping[str, Tensor]  # stream -> uint8 (B, C, H, W), where images do not lie on the device


class TrainStep:
    """A step of one run, and everything it reads and changes: the model, both optimisers, learning rates, generators.

    `loss_became_infinite_at` is a 0-d tensor, the first step whose primal loss was not finite, -1 while there is none.
    """

    def __init__(self, spec: RunSpec, data: DeviceSplit, model: Model, n_steps: int) -> None:
        self.config, self.data, self.model, self.n_steps = spec.train, data, model, n_steps
        device = data.device
        self.weights = {head.name: float(head.params["weight"]) for head in spec.method.heads}
        self.n_views = max(part.n_views for part in model.parts.values())
        # Does a part need everybody's pixels, or is it enough to augment the rows that are encoded here?
        self.joint_views = any("views" in part.sees or changes_views(part) for part in model.parts.values())
        self.sets = _view_sets(spec.data.image_size, self.n_views, self.config, device, model)
        self.augment = self.sets[0].augment
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
        self.loss_became_infinite_at = torch.full((), -1.0, dtype=torch.float64, device=device)

    @property
    def capturable(self) -> bool:
        """Whether every part allows that the step be replayed."""
        return all(part.capturable for part in self.model.parts.values()) and distributed.size() == 1

    def __call__(self, index: Index, images: Images | None = None) -> dict[str, Tensor]:
        """Take one step on the given positions per stream; the terms it had, as 0-d tensors on the device."""
        self._schedule()
        with tensor_float_32(self.data.device):
            drawn = self.draw(index, images)
        primal, dual, log, gradients, dual_gradients = self.differentiate(drawn)
        if dual is not None:
            log["dual_skipped"] = self._move_dual(dual_gradients)
        self._move_primal(gradients)
        self.loss_became_infinite_at.copy_(
            torch.where(
                (self.loss_became_infinite_at < 0) & ~primal.detach().isfinite(),
                self.step_count,
                self.loss_became_infinite_at,
            )
        )
        self.step_count += 1
        progress = (self.step_count / self.n_steps).float()
        with torch.no_grad():
            for part in self.model.parts.values():
                part.after_step(self.model.encoder, progress)
        return {"loss": primal.detach(), **log}

    def draw(self, index: Index, images: Images | None = None) -> dict[str, Batch]:
        """A batch per stream: gathered and augmented where the images lie; nothing is encoded yet.

        Of several processes each draws the same random numbers; unless a part looks at the views, it makes only those
        that it encodes.
        """
        batches = {}
        for name, at in index.items():
            found = self.data.images.index_select(0, at) if images is None else images[name]
            views: list[Tensor] = []
            extra: dict[type, range] = {}
            for one in self.sets:
                if one.owner is not None and name not in one.owner.streams:
                    continue
                n = one.n * len(at)
                rows = slice(0, n) if self.joint_views else distributed.shard_rows(n)
                u = {key: value[..., rows] for key, value in random_numbers(n, one.config, self.gen).items()}
                pixels = one.augment(repeated(found, one.n, rows), u)
                if one.owner is not None:
                    before = extra.get(type(one.owner), range(len(views), len(views)))
                    extra[type(one.owner)] = range(before.start, before.stop + one.n)
                # Rows of a process alone may begin and end within a view.
                views += pixels.chunk(one.n) if rows == slice(0, n) else [pixels]
            batches[name] = Batch(
                views=views,
                index=at,
                target=self.data.target.index_select(0, at),
                group=self.data.group.index_select(0, at),
                extra=extra,
                stream=name,
            )
        for part in self.model.parts.values():
            for name in part.streams:
                if changes_views(part):
                    changed = part.views(visible_to(batches[name], part, views=True), self.gen)
                    batches[name] = self._with_views(batches[name], part, changed.views)
        return batches

    def _with_views(self, batch: Batch, part: Part, changed: list[Tensor]) -> Batch:
        """The batch with what a part has made of its views: the usual ones for all, what stands behind them for itself."""
        if len(changed) < self.n_views:
            raise RuntimeError(
                f"{part.name}.views gives {len(changed)} views; the usual {self.n_views} must be among them"
            )
        views, extra = changed[: self.n_views], dict[type, range]()
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
            encoded = self._encoded(batches)
            features = {
                name: at_least_float32(
                    _joined([distributed.gather_with_grad(h, n * len(batch.index)) for n, h in encoded[name]])
                )
                for name, batch in batches.items()
            }
            represented = {name: at_least_float32(objective.represent(h)) for name, h in features.items()}
        self._keep(represented[self.own_stream].detach())
        return {
            name: replace(
                batch,
                h=list(features[name].chunk(n_views[name])),
                f=list(represented[name].chunk(n_views[name])),
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
        return sum(one.n for one in self.sets if one.owner is None or stream in one.owner.streams)

    def _encoded(self, batches: Mapping[str, Batch]) -> dict[str, list[tuple[int, Tensor]]]:
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
            h = distributed.sharded_forward(self.model.encoder, _joined(pixels))
            parts = h.split([len(x) for x in pixels]) if len(pixels) > 1 else [h]
            for (name, at), part in zip(members, parts, strict=True):
                found[name][at] = (found[name][at][0], part)
        return found

    def _rows(self, stream: str, batch: Batch) -> list[tuple[int, Tensor]]:
        """The views in sets of one size that stand one after the other: (how many, this process's rows of their pixels)."""
        if not self.joint_views and distributed.size() > 1:  # drawn as they are wanted
            counts = [one.n for one in self.sets if one.owner is None or stream in one.owner.streams]
            return list(zip(counts, batch.views, strict=True))
        found: list[list[Tensor]] = []
        for view in batch.views:
            if found and found[-1][0].shape == view.shape:
                found[-1].append(view)
            else:
                found.append([view])
        pixels = [torch.cat(views).contiguous(memory_format=torch.channels_last) for views in found]
        return [(len(views), distributed.shard(x)) for views, x in zip(found, pixels, strict=True)]

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
        with networks_in_bf16(self.config.precision == "bf16"):
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
        factor = torch.ones_like(self.step_count)
        if self.config.schedule == "cosine":
            # Steps of the warm-up are no part of the half cosine.
            done = (self.step_count - warmup).clamp_min(0) / max(1, self.n_steps - warmup)
            factor = 0.5 * (1 + torch.cos(math.pi * done))
        if warmup:
            factor = factor * ((self.step_count + 1) / warmup).clamp_max(1)
        self.lr.copy_(self.config.lr * factor)
        self.dual_lr.copy_(self.config.dual_lr * factor)

    def _move_primal(self, gradients: list[Tensor | None]) -> None:
        for parameter, gradient in zip(self.primal, gradients, strict=True):
            parameter.grad = None if gradient is None else laid_out_as(parameter, gradient)
        if self.config.clip_norm > 0:
            nn.utils.clip_grad_norm_(self.primal, self.config.clip_norm)
        self.optimizers["adam"].step()

    def _move_dual(self, gradients: list[Tensor | None]) -> Tensor:
        """Step the dual optimiser unless a gradient is not finite; 1 if the step was left out, 0 if not.

        An infinite gradient must not reach the discriminator's weights, or the next step would poison the encoder.
        """
        finite = torch.stack([g.isfinite().all() for g in gradients if g is not None]).all()
        for parameter, gradient in zip(self.dual, gradients, strict=True):
            parameter.grad = None if gradient is None else laid_out_as(parameter, torch.where(finite, gradient, 0.0))
        before = [p.detach().clone() for p in self.dual]
        self.optimizers["dual"].step()
        with torch.no_grad():  # a skipped step moves nothing, weight decay and momentum included
            for parameter, old in zip(self.dual, before, strict=True):
                parameter.copy_(torch.where(finite, parameter, old))
        return (~finite).float()


def _joined(rows: list[Tensor]) -> Tensor:
    """All below each other, without a copy of a single one."""
    return torch.cat(rows) if len(rows) > 1 else rows[0]


def changes_views(part: Part) -> bool:
    """Whether a part has a `views` of its own."""
    return type(part).views is not Part.views


def visible_to(batch: Batch, part: Part, views: bool = False) -> Batch:
    """The batch as one part may see it: what it did not declare is withheld, and so are views that another has asked for.
    `views`: the views are shown anyway."""
    others = {at for owner, places in batch.extra.items() if owner is not type(part) for at in places}
    if others:
        batch = _of_views(batch, [at for at in range(max(len(batch.views), len(batch.f))) if at not in others])
    labels = part.sees if part.labelled is None or batch.stream in part.labelled else frozenset()
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


def _view_sets(size: int, n_views: int, config: TrainConfig, device: torch.device, model: Model) -> list[_ViewSet]:
    """The usual views, then the crops that parts ask for."""
    found = [_ViewSet(None, n_views, config, augmentation(size, config, device))]
    for part in model.parts.values():
        for crops in part.crops():
            low, high = crops.area
            own = config.model_copy(update={"crop_min": low, "crop_max": high})
            found.append(_ViewSet(part, crops.n, own, augmentation(crops.size, own, device)))
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
