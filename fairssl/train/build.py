"""Encoder, parts, index streams and optimisers of a spec, from its seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from fairssl import kinds
from fairssl.data.device import DeviceSplit
from fairssl.data.sampling import IndexStream, cells_of
from fairssl.nn import mend_narrow_convolutions
from fairssl.parts import Encoder, Part
from fairssl.registry import Registry
from fairssl.spec.config import TrainConfig
from fairssl.spec.keys import derive_seed
from fairssl.spec.run import PartSpec, RunSpec
from fairssl.train.lars import LARS
from fairssl.train.model import Model
from fairssl.train.pretrained import load
from fairssl.types import Context, UserError


def build_encoder(spec: RunSpec, pretrained: bool = True) -> Encoder:
    """The encoder of a spec, from random weights or from those that it names: a pure function of the spec and the seed.

    Without `pretrained` from random weights in any case, for a model whose own weights are loaded next.
    """
    torch.manual_seed(derive_seed("encoder", spec.seed))
    encoder = kinds.encoders.build(spec.encoder.name, spec.encoder.params, image_shape=_image_shape(spec))
    weights = spec.encoder.params.get("weights")
    if weights and pretrained:
        load(encoder, weights, bool(spec.encoder.params.get("partial")))
    return encoder


def build_model(spec: RunSpec, data: DeviceSplit, n_groups: int, n_steps: int, pretrained: bool = True) -> Model:
    """Encoder, objective and the heads that take part in training, on the data's device, in training mode."""
    encoder = build_encoder(spec, pretrained)
    context = Context(
        encoder=encoder,
        feature_dim=encoder.dim,
        image_shape=_image_shape(spec),
        n_train=len(data.target),
        n_annotated=len(data.annotated),
        n_targets=2,
        n_groups=n_groups,
        n_steps=n_steps,
    )
    objective = _build_part(kinds.objectives, spec.method.objective, spec.seed, context)
    context = replace(context, feature_dim=objective.feature_dim or encoder.dim)
    parts = {spec.method.objective.name: objective}
    for head in spec.method.heads:
        if kinds.heads.get(head.name).streams:
            parts[head.name] = _build_part(kinds.heads, head, spec.seed, context)
    model = Model(encoder, parts).to(data.device).train()
    if data.device.type == "cpu":
        for network in model.modules().values():
            mend_narrow_convolutions(network)
    return model


def build_after_training(
    spec: RunSpec, head: PartSpec, model: Model, n_train: int, n_annotated: int, n_groups: int
) -> Part:
    """A head without a stream, which acts on the features of a trained model, on the model's device."""
    context = Context(
        encoder=model.encoder,
        feature_dim=model.objective.feature_dim or model.encoder.dim,
        image_shape=_image_shape(spec),
        n_train=n_train,
        n_annotated=n_annotated,
        n_targets=2,
        n_groups=n_groups,
        n_steps=0,
    )
    return _build_part(kinds.heads, head, spec.seed, context).to(model.device)


def _build_part(registry: Registry[Any], part: PartSpec, seed: int, context: Context) -> Any:
    """Each part has its own seed, so that adding one moves no other."""
    torch.manual_seed(derive_seed("part", part.name, seed))
    return registry.build(part.name, part.params, ctx=context)


def _image_shape(spec: RunSpec) -> tuple[int, int, int]:
    return 3, spec.data.image_size, spec.data.image_size


def index_streams(spec: RunSpec, data: DeviceSplit) -> dict[str, IndexStream]:
    """The streams that the method draws, the one that makes an epoch first."""
    streams = {}
    for name in spec.method.streams:
        positions = torch.arange(len(data.target)) if name == "all" else data.annotated.cpu()
        cells = None
        if name == "annotated":
            cells = cells_of(spec.method.sampler, data.target[data.annotated], data.group[data.annotated])
        streams[name] = IndexStream(
            name, positions, spec.train.batch_of(name), spec.seed, None if cells is None else cells.cpu()
        )
        if streams[name].batch_size < 2:
            raise UserError(
                f"the {name!r} stream has {len(positions)} image(s): 0 training batches; at least 2 are needed"
            )
    return streams


def primal_optimizer(config: TrainConfig, parameters: list[nn.Parameter], lr: Tensor) -> torch.optim.Optimizer:
    """What moves everything that is not dual, with weight decay on all parameters or on those of two dimensions and more."""
    groups: list[dict[str, Any]] = [{"params": parameters}]
    if not config.decay_all:
        flat: dict[str, Any] = {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0}
        if config.optimizer == "lars":
            flat["trust"] = None
        found = [{"params": [p for p in parameters if p.ndim > 1]}, flat]
        groups = [group for group in found if group["params"]]
    if config.optimizer == "lars":
        return LARS(groups, lr, config.weight_decay, config.momentum, config.lars_trust)
    return make_optimizer(config.optimizer, groups, lr, config.weight_decay, config.momentum)


def make_optimizer(
    kind: str,
    parameters: Sequence[nn.Parameter] | Sequence[dict[str, Any]],
    lr: Tensor,
    weight_decay: float,
    momentum: float = 0.0,
) -> torch.optim.Optimizer:
    """Adam, AdamW or SGD on the device of `lr` (0-d), which the optimiser reads anew at each step and never on the host."""
    if kind == "sgd":  # unless fused, it reads the learning rate back
        return torch.optim.SGD(parameters, lr=lr, weight_decay=weight_decay, momentum=momentum, fused=True)
    on_gpu = lr.device.type == "cuda"
    cls = torch.optim.AdamW if kind == "adamw" else torch.optim.Adam
    adam = cls(parameters, lr=lr, weight_decay=weight_decay, fused=True, capturable=on_gpu)
    adam._warned_capturable_if_run_uncaptured = True  # the warm-up is, and means it
    return adam
