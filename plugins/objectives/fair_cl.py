"""An image, its augmented copy and its copy with another sensitive attribute attract each other, among their own group.

Zhang, Kuang, Chen, Liu, Wu, Xiao: Fairness-aware Contrastive Learning with Partially Annotated Sensitive Attributes, ICLR
2023. No code of theirs was found; the sizes of networks and the losses of the editor, which follow He, Zuo, Kan, Shan, Chen:
AttGAN: Facial Attribute Editing by Only Changing What You Want, 2019, are our choice.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from fairssl.api import Batch, Context, Objective, PluginConfig, Stream, Terms
from fairssl.nn import another_group, contrast_within_groups, conv_net, mlp, one_hot, passes, stepping, stored_pixels

if TYPE_CHECKING:
    from fairssl.data.device import DeviceSplit

CONFIDENT = 0.95  # a guessed group that is surer than this teaches the classifier


class FairCL(Objective):
    """Two stages. Before the first step (`prepare`): a classifier of the group is trained on the annotated images, then also
    on those of the rest that it is sure of, and gives every image a group; an editor learns to draw an image as if it were
    of another group. In training: L = `fairssl.nn.contrast_within_groups` of three views of each image, the two usual ones
    and the first one edited, where each view repels the views of other images that show its own group.

    The editor, five convolutions, adds to the image what makes it another group's. A critic learns to tell edited images
    from real ones (hinge loss); the editor shall deceive it, be taken for the wanted group by the classifier of the first
    part (cross-entropy), and leave an image as it is that has the wanted group already (absolute difference, times `keep`).
    With more than two groups an image is edited to another one by its number, so that all are met.

    The paper edits stored images and augments them; here the editor, which was trained on stored ones, edits the augmented
    view. Its reweighting of features is left out: the probe standardises features, so that weights have no effect on it.
    """

    sees = frozenset({"group"})
    labelled = frozenset()  # `prepare` alone reads groups: of the annotated images

    class Config(PluginConfig):
        temperature: float = Field(0.3, gt=0)
        """Tau: similarities are divided by it."""
        hidden_dim: int = Field(256, ge=1)
        """Width of the projector's hidden layer."""
        projection_dim: int = Field(128, ge=1)
        """P, width of the contrastive vector z."""
        classifier_epochs: int = Field(20, ge=1)
        """Passes over the annotated images; then a tenth as many over all."""
        editor_epochs: int = Field(10, ge=1)
        """Passes over all images."""
        width: int = Field(32, ge=8)
        """Channels of the editor's and the critic's first layer."""
        keep: float = Field(10.0, ge=0)
        """Weight of the absolute difference between an image and itself edited to its own group."""
        prepare_lr: float = Field(1e-3, gt=0)
        """Learning rate of Adam for classifier, editor and critic."""

    group_of: Tensor

    def __init__(self, config: Config, ctx: Context) -> None:
        super().__init__(config, ctx)
        channels, self.n_groups = ctx.image_shape[0], ctx.n_groups
        self.projector = mlp(ctx.feature_dim, config.hidden_dim, config.projection_dim)
        self.group_classifier = conv_net(channels, config.width, ctx.n_groups).requires_grad_(False)
        self.editor = _Editor(channels, ctx.n_groups, config.width).requires_grad_(False)
        self.critic = conv_net(channels, config.width, 1).requires_grad_(False)
        self.register_buffer("group_of", torch.zeros(ctx.n_train, dtype=torch.int64))  # known or guessed

    def project(self, f: Tensor) -> Tensor:
        return self.projector(f)

    def views(self, batch: Batch, gen: torch.Generator) -> Batch:
        with torch.no_grad():
            wanted = one_hot(self._other(batch.index), self.n_groups)
            edited = self.editor(batch.views[0], wanted)
        batch.views = [*batch.views, edited.contiguous(memory_format=torch.channels_last)]
        return batch

    def forward(self, batches: Mapping[Stream, Batch]) -> Terms:
        batch = batches["all"]
        own, other = self.group_of[batch.index], self._other(batch.index)
        shown = [own, own, *[other] * (len(batch.z) - 2)]
        return Terms(primal={"fair_contrast": contrast_within_groups(batch.z, shown, self.config.temperature)})

    def _other(self, index: Tensor) -> Tensor:
        """The group that each image is edited to, (B,)."""
        return another_group(self.group_of[index], index, self.n_groups)

    def prepare(self, data: DeviceSplit, gen: torch.Generator) -> None:
        device, config = self.group_of.device, self.config
        known = data.annotated.to(device)
        with stepping(self.group_classifier, config.prepare_lr) as classify:
            for rows in passes(known, config.classifier_epochs, 32, gen):
                classify.take(self._classification(stored_pixels(data.images, rows, gen), data.group[rows]))
            everyone = torch.arange(len(data.target), device=device)
            for rows in passes(everyone, max(1, config.classifier_epochs // 10), 64, gen):
                x, group = stored_pixels(data.images, rows, gen), data.group[rows]
                sure, guess = self.group_classifier(x).detach().softmax(1).max(1)
                group = torch.where(group >= 0, group, torch.where(sure > CONFIDENT, guess, -100))  # -100: left out
                if bool((group >= 0).any()):
                    classify.take(self._classification(x, group))
        for rows in everyone.split(256):
            with torch.no_grad():
                guess = self.group_classifier(stored_pixels(data.images, rows)).argmax(1)
            self.group_of[rows] = torch.where(data.group[rows] >= 0, data.group[rows], guess)
        self._train_editor(data, everyone, gen)

    def _classification(self, x: Tensor, group: Tensor) -> Tensor:
        return F.cross_entropy(self.group_classifier(x), group)

    def _train_editor(self, data: DeviceSplit, everyone: Tensor, gen: torch.Generator) -> None:
        lr, betas = self.config.prepare_lr, (0.5, 0.99)
        with stepping(self.critic, lr, betas) as judge, stepping(self.editor, lr, betas) as draw:
            for rows in passes(everyone, self.config.editor_epochs, 64, gen):
                x, own = stored_pixels(data.images, rows, gen), self.group_of[rows]
                other = self._other(rows)
                edited = self.editor(x, one_hot(other, self.n_groups))
                judge.take(F.relu(1 - self.critic(x)).mean() + F.relu(1 + self.critic(edited.detach())).mean())
                same = self.editor(x, one_hot(own, self.n_groups))
                deceived = self._classification(edited, other) - self.critic(edited).mean()
                draw.take(deceived + self.config.keep * (same - x).abs().mean())


class _Editor(nn.Module):
    """(B, C, H, W) in -1..1 and the wanted group (B, G), one-hot -> (B, C, H, W) in -1..1; five convolutions at half the
    size, the last of which gives each pixel's four quarters."""

    def __init__(self, channels: int, n_groups: int, width: int) -> None:
        super().__init__()
        wide, layers = 4 * math.ceil(width / 4), list[nn.Module]()
        for number, fan_in in enumerate((channels + n_groups, wide, wide, wide)):
            layers += [nn.Conv2d(fan_in, wide, 3, 1 if number else 2, 1), nn.GroupNorm(4, wide), nn.ReLU(inplace=True)]
        self.layers = nn.Sequential(*layers, nn.Conv2d(wide, 4 * channels, 3, padding=1), nn.PixelShuffle(2))

    def forward(self, x: Tensor, wanted: Tensor) -> Tensor:
        height, width = x.shape[2:]
        maps = wanted.to(x.dtype)[:, :, None, None].expand(-1, -1, height, width)
        added = self.layers(torch.cat([x, maps], 1))[:, :, :height, :width]  # one pixel more where a side is odd
        return (x + 2 * torch.tanh(added)).clamp(-1, 1)
