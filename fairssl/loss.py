"""A method's losses for a training loop of your own: any encoder, any data loader, any optimiser.

loss = fairssl.Loss("sofclr", encoder, feature_dim=512, n_train=len(dataset), n_groups=2)
optimizer = torch.optim.Adam([*encoder.parameters(), *loss.primal_parameters()])
adversary = torch.optim.Adam(loss.dual_parameters())
for step, ((a, b, index), (c, d, index_, group)) in enumerate(zip(loader, annotated_loader)):
    terms = loss({"all": loss.batch([a, b], index), "annotated": loss.batch([c, d], index_, group=group)})
    optimizer.zero_grad(); adversary.zero_grad()
    loss.backward(terms)
    optimizer.step(); adversary.step()
    loss.after_step((step + 1) / n_steps)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from fairssl import kinds
from fairssl.nn import at_least_float32
from fairssl.parts import Part
from fairssl.spec.method import method_spec, parse_set
from fairssl.train.step import visible_to
from fairssl.types import Batch, Context


@dataclass(frozen=True)
class LossTerms:
    """0-d tensors: `primal` moves everything but the dual parameters, `dual` (None without an adversary) moves these
    alone; `log` has every term by name, detached."""

    primal: Tensor
    dual: Tensor | None
    log: dict[str, Tensor]


class Loss(nn.Module):
    """The objective and the heads of a method, for features of an encoder of yours.

    `method` is what `--method` takes, `settings` what `--set` does, as {"adversary.weight": 0.5}. `feature_dim` is the
    width D of what `encoder(images)` gives, (B, D); `n_train` how many training images `index` counts; `n_groups` the values
    of the sensitive attribute; `n_annotated` how many images have it; `n_steps` how long you train, where a part's schedule
    asks. A method that an unknown name or setting stands for: `UserError`.
    """

    def __init__(
        self,
        method: str,
        encoder: nn.Module,
        *,
        feature_dim: int,
        n_train: int,
        n_groups: int = 2,
        n_annotated: int = 0,
        n_steps: int = 1,
        image_shape: tuple[int, int, int] = (3, 64, 64),
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        values = parse_set(f"{name}={value}" for name, value in (settings or {}).items())
        self.spec = method_spec(method, values)
        # Not a submodule: its parameters are the caller's to optimise.
        self._encoder = [encoder]
        context = Context(encoder, feature_dim, image_shape, n_train, n_annotated, 2, n_groups, n_steps)
        objective = kinds.objectives.build(self.spec.objective.name, self.spec.objective.params, ctx=context)
        context = replace(context, feature_dim=objective.feature_dim or feature_dim)
        parts: dict[str, Part] = {self.spec.objective.name: objective}
        for head in self.spec.heads:
            if kinds.heads.get(head.name).streams:
                parts[head.name] = kinds.heads.build(head.name, head.params, ctx=context)
        self.weights = {head.name: float(head.params["weight"]) for head in self.spec.heads}
        self.parts: Any = nn.ModuleDict(parts)

    @property
    def objective(self) -> Any:
        return self.parts[self.spec.objective.name]

    def batch(
        self, views: Sequence[Tensor], index: Tensor, target: Tensor | None = None, group: Tensor | None = None
    ) -> Batch:
        """A stream's batch: `views` V x (B, C, H, W), `index` (B,) positions in the training set, and the labels that the
        parts declare they see, (B,) int64."""
        return Batch(views=list(views), index=index, target=target, group=group)

    def forward(self, batches: Mapping[str, Batch]) -> LossTerms:
        """The terms of one step. `batches`: "all", "annotated", or both, as `loss.spec.streams` says. The encoder runs
        here, once per stream, under whatever autocast the caller has set; the terms are float32."""
        encoded = {name: self._encoded(batch) for name, batch in batches.items()}
        primal: list[Tensor] = []
        dual: list[Tensor] = []
        log: dict[str, Tensor] = {}
        for name, part in self.parts.items():
            with torch.autocast(next(iter(encoded.values())).index.device.type, enabled=False):
                found = part({stream: visible_to(encoded[stream], part) for stream in part.streams})
            weight = self.weights.get(name, 1.0)
            primal += [weight * value for value in found.primal.values()]
            dual += list(found.dual.values())
            for terms in (found.primal, found.dual, found.log):
                log.update({f"{name}.{key}": value.detach() for key, value in terms.items()})
        return LossTerms(torch.stack(primal).sum(), torch.stack(dual).sum() if dual else None, log)

    def _encoded(self, batch: Batch) -> Batch:
        n_views, objective = len(batch.views), self.objective
        h = at_least_float32(self._encoder[0](batch.flat_views()))
        f = at_least_float32(objective.represent(h))

        def project(f: Tensor) -> Tensor:
            return at_least_float32(objective.project(f))

        return replace(batch, h=list(h.chunk(n_views)), f=list(f.chunk(n_views)), project=project)

    def primal_parameters(self) -> Iterator[nn.Parameter]:
        """The parts' parameters that the primal loss moves, as a projector's; the encoder's are the caller's own."""
        dual = {id(p) for p in self.dual_parameters()}
        return (p for p in self.parameters() if p.requires_grad and id(p) not in dual)

    def dual_parameters(self) -> Iterator[nn.Parameter]:
        """The parameters of adversaries, which the dual loss moves."""
        return (p for part in self.parts.values() for p in part.dual_parameters())

    def backward(self, terms: LossTerms) -> None:
        """Add the gradient of the primal loss to everything but the dual parameters, and of the dual loss to these, both at
        the present values."""
        dual = list(self.dual_parameters())
        encoder = [p for p in self._encoder[0].parameters() if p.requires_grad]
        moved = [*encoder, *self.primal_parameters()]
        found = torch.autograd.grad(terms.primal, moved, allow_unused=True, retain_graph=terms.dual is not None)
        if terms.dual is not None:
            found, moved = found + torch.autograd.grad(terms.dual, dual, allow_unused=True), moved + dual
        for parameter, gradient in zip(moved, found, strict=True):
            if gradient is not None:
                parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient

    def after_step(self, progress: float) -> None:
        """To be called after the optimisers; `progress` in (0, 1]: steps done / steps in all. Momentum encoders and
        schedules move here."""
        device = next(self._encoder[0].parameters()).device
        with torch.no_grad():
            for part in self.parts.values():
                part.after_step(self._encoder[0], torch.tensor(progress, device=device))
