"""Views of several sizes, and views that one part adds: what a stranger's plugin can ask of the loop, and who is shown what."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from reference import small
from reference.plugin_package import known, write_package

from fairssl import testing
from fairssl.data.augment import random_crop, random_numbers
from fairssl.spec.config import TrainConfig
from fairssl.train.step import visible_to
from fairssl.types import UserError

# Two usual views, three small crops, and one view that it makes itself: the first one mirrored.
OBJECTIVE = '''\
"""Small crops agree with the usual views: an objective of a stranger's."""

import torch

from fairssl.api import Crops, Objective, Terms


class MultiCrop(Objective):
    """Mean squared distance of each view's vector from the mean of the usual ones."""

    sees = frozenset({"views"})

    def __init__(self, config, ctx):
        super().__init__(config, ctx)
        self.layer = torch.nn.Linear(ctx.feature_dim, 4)

    def crops(self):
        return [Crops(2, 12, (0.05, 0.3)), Crops(1, 24, (0.3, 0.6))]

    def views(self, batch, gen):
        batch.views = [*batch.views, batch.views[0].flip(3)]
        return batch

    def project(self, f):
        return self.layer(f)

    def forward(self, batches):
        batch = batches["all"]
        assert [view.shape[-1] for view in batch.views][2:] == [12, 12, 24, batch.views[0].shape[-1]]
        middle = (batch.z[0] + batch.z[1]) / 2
        return Terms(primal={"distance": torch.stack([(z - middle).square().mean() for z in batch.z]).mean()})
'''

HEAD = '''\
"""The length of the representation: a head of a stranger's."""

from fairssl.api import Head, Terms


class Length(Head):
    """Mean squared entry of the representation of the views it is shown."""

    def forward(self, batches):
        assert len(batches["all"].f) == len(batches["all"].z) == 2 and not batches["all"].views
        return Terms(primal={"length": batches["all"].flat_f().square().mean()})
'''


@pytest.fixture
def strangers(tmp_path: Path) -> Iterator[None]:
    write_package(tmp_path, "stranger", {"objectives/multi_crop.py": OBJECTIVE, "heads/length.py": HEAD})
    with known(tmp_path):
        yield


def drawn(method: str, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
    trainer = small.trainer(small.run_of(method, **kwargs).spec)
    index = {name: stream.steps(0, 1)[0] for name, stream in trainer.streams.items()}
    return trainer, trainer.step.draw(index)


@pytest.mark.usefixtures("strangers")
def test_crops_and_added_views_are_shown_to_the_part_that_wants_them_alone() -> None:
    trainer, batches = drawn("multi_crop+length:0.5+adversary")
    objective, length = trainer.model.parts["multi_crop"], trainer.model.parts["length"]
    assert [view.shape[-1] for view in batches["all"].views] == [16, 16, 12, 12, 24, 16]
    assert [view.shape[-1] for view in batches["annotated"].views] == [16, 16]  # the part does not draw this stream
    assert torch.equal(batches["all"].views[5], batches["all"].views[0].flip(3))

    sizes: list[tuple[int, int]] = []
    trainer.model.encoder.register_forward_pre_hook(lambda _, x: sizes.append((len(x[0]), x[0].shape[-1])))
    encoded = trainer.step.encode(batches)
    n = len(batches["all"].index)
    assert sizes[:3] == [(3 * n, 16), (2 * n, 12), (n, 24)] and len(sizes) == 4  # once for each size and stream

    mine, theirs = visible_to(encoded["all"], objective), visible_to(encoded["all"], length)
    assert len(mine.f) == len(mine.z) == 6 and len(theirs.f) == len(theirs.z) == 2
    assert all(torch.equal(a, b) for a, b in zip(theirs.z, mine.z, strict=False))
    encoder = trainer.model.encoder.eval()
    for view, h in zip(batches["all"].views, trainer.step.encode(batches)["all"].h, strict=True):
        torch.testing.assert_close(h, encoder(view), rtol=1e-4, atol=1e-5)
    trainer.run()  # with the head's own assertion


@pytest.mark.usefixtures("strangers")
def test_joined_streams_encode_what_has_one_size_together() -> None:
    trainer, batches = drawn("multi_crop+adversary", sets=("train.join_streams=true",))
    sizes: list[tuple[int, int]] = []
    trainer.model.encoder.register_forward_pre_hook(lambda _, x: sizes.append((len(x[0]), x[0].shape[-1])))
    trainer.step.encode(batches)
    n, n_annotated = (len(batches[name].index) for name in ("all", "annotated"))
    assert sizes == [(3 * n + 2 * n_annotated, 16), (2 * n, 12), (n, 24)]


@pytest.mark.slow
@pytest.mark.usefixtures("strangers")
@pytest.mark.parametrize(("kind", "name"), [("objective", "multi_crop"), ("head", "length")])
def test_a_strangers_views_hold_the_contract(kind: str, name: str) -> None:
    """Resume, several processes that share a batch, no read-back, and the rest."""
    testing.assert_contract(kind, name)


def test_a_part_must_leave_the_usual_views(tmp_path: Path) -> None:
    fewer = OBJECTIVE.replace("[*batch.views, batch.views[0].flip(3)]", "batch.views[:1]")
    write_package(tmp_path, "stranger", {"objectives/multi_crop.py": fewer})
    with (
        known(tmp_path),
        pytest.raises(RuntimeError, match=r"multi_crop.views gives 1 views; the usual 2 must be among"),
    ):
        drawn("multi_crop")


@pytest.mark.parametrize(("low", "high"), [(0.05, 0.3), (0.5, 0.5), (0.2, 1.0)])
def test_a_crop_has_its_share_of_the_image(low: float, high: float) -> None:
    config = TrainConfig(crop_min=low, crop_max=high)
    crop = random_crop(random_numbers(2000, config, torch.Generator().manual_seed(0)), 64, 64, config)
    share = crop.height * crop.width / 64**2
    assert float(share.min()) > low - 0.03 and float(share.max()) < high + 0.03
    assert float(share.mean()) == pytest.approx((low + high) / 2, abs=0.02 if high < 1 else 0.06)


def test_a_largest_crop_below_the_smallest_is_refused() -> None:
    with pytest.raises(UserError, match=r"crop_max is below crop_min \(0\.2\)"):
        small.plan("simclr", sets=("train.crop_max=0.1",))
    before, after = small.run_of("simclr").spec, small.run_of("simclr", sets=("train.crop_max=1",)).spec
    assert before.key == after.key and "crop_max" not in after.train.params()
    assert small.run_of("simclr", sets=("train.crop_max=0.9",)).spec.key != before.key
