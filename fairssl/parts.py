"""What a plugin derives from: Part (Objective, Head), Encoder, Dataset, metric. Authors import them from `fairssl.api`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from fairssl.interfaces import PluginConfig
from fairssl.nn import Discriminator, GradientGuard, LinearClassifier, classification, log_likelihood, normalize
from fairssl.types import Batch, Context, Crops, Stream, Terms

if TYPE_CHECKING:
    from fairssl.data.device import DeviceSplit


class HeadConfig(PluginConfig):
    """A head's parameters. `weight` multiplies its primal terms; 0 drops the head altogether."""

    weight: float = Field(1.0, ge=0)
    """Multiplies the head's primal terms; 0 drops the head."""


class Part(nn.Module):
    """One piece of a method. It says what it looks at; the loop withholds the rest.

    Everything the future of a run depends on is a parameter or a buffer, so that it is in the state dict. A step reads
    nothing back and takes no branch on data, so that a GPU can replay it; one that must says `capturable = False`.

    A part need not know how many processes train the run: each holds the whole batch and computes the whole loss. What
    is heavy and works row by row, a second encoder or a decoder, goes through `fairssl.nn.sharded`, which divides it.
    """

    name: ClassVar[str]  # the file's name, set by the registry
    version: ClassVar[int] = 1  # raise it when results change
    capturable: ClassVar[bool] = True  # False: the step runs eagerly
    sees: ClassVar[frozenset[str]] = frozenset()  # of "target", "group", "views"; the rest is withheld
    streams: ClassVar[frozenset[Stream]] = frozenset({"all"})
    # The streams whose labels it is shown; None: all it draws; none: it reads them in `prepare` alone.
    labelled: ClassVar[frozenset[Stream] | None] = None
    n_views: ClassVar[int] = 2

    class Config(PluginConfig):
        pass

    def __init__(self, config: Any, ctx: Context) -> None:
        super().__init__()
        self.config = config

    def prepare(self, data: DeviceSplit, gen: torch.Generator) -> None:
        """A stage before the first step, an image editor's training say; default none. A checkpoint follows it.

        `data` is the training split where the loop reads it, labels that `sees` does not declare -1 throughout. Of several
        processes the first alone runs it, and the others get its state dict.
        """

    def crops(self) -> Sequence[Crops]:
        """Views of another size or of another share of the image, which the loop draws beside the `n_views` usual ones;
        default none. The part finds them after the usual ones in the `views`, `h`, `f` and `z` of its streams' batches, in
        the order asked for; no other part is shown them. The encoder runs once for each size."""
        return ()

    def views(self, batch: Batch, gen: torch.Generator) -> Batch:
        """Change a batch before it is encoded; default unchanged.

        Views may differ in size. The usual ones are changed for all parts; what is added behind them, an edited copy say,
        the part alone is shown.
        """
        return batch

    def forward(self, batches: Mapping[Stream, Batch]) -> Terms:
        """The part's terms for one step, all at the old parameters."""
        raise NotImplementedError(
            f"{type(self).__module__}.{type(self).__name__} has no forward; write one that gives Terms"
        )

    def after_step(self, encoder: nn.Module, progress: Tensor) -> None:
        """Called after both optimisers; `progress` is a 0-d tensor, steps done / steps in all."""

    def dual_parameters(self) -> Iterable[nn.Parameter]:
        """The parameters that maximise what the rest minimises; default none."""
        return ()


class Objective(Part):
    """The part a method cannot do without. It owns what lies between the backbone and the loss."""

    gives: ClassVar[str] = (
        "embedding"  # what `project` returns; "logits": (B,) of y = 1, for heads that judge a classifier
    )
    trains: ClassVar[bool] = True  # False: no step is taken, the encoder stays as it was drawn
    feature_dim: int | None = None  # F, where `represent` changes the width; None: F is D

    def represent(self, h: Tensor) -> Tensor:
        """(B, D) backbone feature -> (B, F) representation: what the probe, the adversary and an eraser see."""
        return h

    def project(self, f: Tensor) -> Tensor:
        """(B, F) -> (B, P) contrastive vector, not normalised."""
        return f

    def scores(self, f: Tensor) -> Tensor | None:
        """(N, F) -> (N,) probability of y = 1; None: the linear probe scores."""
        return None


class Classifier(Objective):
    """An objective that trains a linear classifier of y = 1 on its own stream: the mean over the views of -log p(y | view),
    with p the sigmoid of one linear layer on the representation.

    One view per image, drawn like those of every other method: a batch costs half of a contrastive one, and as much as the
    usual supervised batch of that many images. A head that needs two gets two, and all are averaged.
    """

    sees = frozenset({"target"})
    n_views = 1
    gives = "logits"

    def __init__(self, config: Any, ctx: Context) -> None:
        super().__init__(config, ctx)
        self.classifier = LinearClassifier(ctx.feature_dim)

    def project(self, f: Tensor) -> Tensor:
        """(B, F) -> (B,) logits of y = 1."""
        return self.classifier(f)

    def scores(self, f: Tensor) -> Tensor:
        return torch.sigmoid(self.classifier(f).double())

    def forward(self, batches: Mapping[Stream, Batch]) -> Terms:
        (stream,) = self.streams
        return classification(batches[stream].flat_z(), batches[stream].target_of_views())


class Head(Part):
    """A part that an objective can be combined with. Its Config has `weight`.

    With no `streams` it takes no part in training and shares the pretraining of its objective; see `fit`.
    """

    needs: ClassVar[str | None] = None  # "logits", "embedding": what the objective must give; None: either will do

    class Config(HeadConfig):
        pass

    def fit(self, embeddings: Any) -> Callable[[Tensor], Tensor] | None:
        """After training: a transform of (N, F) features fitted on the training embeddings; None for most."""
        return None


class GroupDiscriminator(Head):
    """A head with a discriminator D of the group, trained on the annotated batch: what such heads share.

    D is a perceptron of two layers with a softmax over the G groups. It sees the vector that the probe sees, f, at unit
    length; "raw" leaves its length. A gradient of D's that is not finite is left out and counted (`skipped`).
    """

    sees = frozenset({"group"})
    streams = frozenset({"annotated"})
    n_views = 1  # as many as the objective draws

    class Config(HeadConfig):
        input: Literal["normalized", "raw"] = "normalized"
        """What the discriminator sees: f at unit length, or f itself."""
        hidden_dim: int = Field(512, ge=1)
        """Width of the discriminator's hidden layer."""

    def __init__(self, config: Any, ctx: Context) -> None:
        super().__init__(config, ctx)
        self.discriminator = Discriminator(self.input_dim(config, ctx), config.hidden_dim, ctx.n_groups)
        self.guard = GradientGuard()

    def input_dim(self, config: Any, ctx: Context) -> int:
        """Width of what D sees."""
        return ctx.feature_dim

    def seen(self, batch: Batch) -> Tensor:
        """What D sees of the V views, (V B, F)."""
        f = batch.flat_f()
        return f if self.config.input == "raw" else normalize(f)

    def likelihood(self, log_d: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """(V B, G) log-probabilities -> D's mean log-likelihood of the groups, at most 0, and its accuracy; 0-d each."""
        return log_likelihood(log_d, batch.group_of_views())


class Encoder(nn.Module):
    """A backbone from random weights. `dim` is D; forward maps (B, C, H, W) to (B, D), each image by itself: in training
    too, the statistics of batch norm apart, so that processes can share a batch."""

    name: ClassVar[str]
    version: ClassVar[int] = 1
    dim: int

    class Config(PluginConfig):
        pass

    def __init__(self, config: Any, image_shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.config = config

    @classmethod
    def accepts(cls, name: str) -> Mapping[str, Any] | None:
        """Parameters that make this plugin build the encoder a user calls `name`, where no file has that name; else None."""
        return None

    @classmethod
    def models(cls) -> Iterable[str]:
        """The names that `accepts` knows, so that an error can tell what is near; default none."""
        return ()
