"""Augmentation against torchvision with the same parameters; index streams; the annotated subset."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torchvision.transforms.v2.functional as TF
from torchvision.transforms import RandomResizedCrop

from fairssl.data.augment import (
    Crop,
    adjust_hue,
    augment,
    augmentation,
    color_jitter,
    gaussian_blur,
    random_crop,
    random_jitter,
    random_numbers,
    resized_crop,
)
from fairssl.data.sampling import IndexStream, annotated_subset, balanced, cells_of
from fairssl.spec.config import TrainConfig
from fairssl.types import UserError

CONFIG = TrainConfig()


def _images(n: int, size: int = 48, seed: int = 0) -> torch.Tensor:
    """Smooth random images, uint8 (n, 3, size, size): what photographs are like at that scale."""
    gen = torch.Generator().manual_seed(seed)
    coarse = torch.rand(n, 3, 6, 6, generator=gen)
    x = torch.nn.functional.interpolate(coarse, (size, size), mode="bicubic").clamp(0, 1)
    return (x * 255).round().to(torch.uint8)


def _gen(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _u(n: int, config: TrainConfig = CONFIG, seed: int = 0) -> dict[str, torch.Tensor]:
    return random_numbers(n, config, _gen(seed))


@pytest.mark.parametrize("size", [32, 48, 64])
def test_a_crop_is_torchvisions_resized_crop_with_antialias(size: int) -> None:
    x = _images(8).float() / 255
    crop = random_crop(_u(8, seed=3), 48, 48, CONFIG)
    ours = resized_crop(x, crop, size)
    for i in range(8):
        box = [int(v[i]) for v in (crop.top, crop.left, crop.height, crop.width)]
        theirs = TF.resized_crop(x[i], *box, [size, size], antialias=True)
        theirs = theirs.flip(-1) if crop.flip[i] else theirs
        assert (ours[i] - theirs).abs().max() < 1e-5


def test_a_crop_of_a_rectangle_keeps_rows_and_columns_apart() -> None:
    x = torch.rand(2, 3, 40, 24, generator=_gen())
    box = [torch.tensor([v, v]).float() for v in (3, 5, 30, 12)]
    ours = resized_crop(x, Crop(*box, flip=torch.tensor([False, False])), 16)
    theirs = TF.resized_crop(x, 3, 5, 30, 12, [16, 16], antialias=True)
    assert (ours - theirs).abs().max() < 1e-5


def test_crop_boxes_have_torchvisions_law() -> None:
    """Inside the image, area share uniform on [0.2, 1] where it fits, aspect within [3/4, 4/3] up to rounding."""
    crop = random_crop(_u(20_000), 64, 64, CONFIG)
    assert (crop.top >= 0).all() and (crop.top + crop.height <= 64).all()
    assert (crop.left >= 0).all() and (crop.left + crop.width <= 64).all()
    area = crop.height * crop.width / 64**2
    ratio = crop.width / crop.height
    assert 0.19 < area.min() < 0.21 and area.max() > 0.97
    assert ratio.min() > 0.72 and ratio.max() < 1.39
    theirs = torch.tensor(
        [
            (h * w) / 64**2
            for *_, h, w in (
                RandomResizedCrop.get_params(torch.zeros(3, 64, 64), scale=[0.2, 1.0], ratio=[3 / 4, 4 / 3])
                for _ in range(20_000)
            )
        ]
    )
    assert abs(area.mean() - theirs.mean()) < 0.012  # five standard errors
    assert abs(crop.flip.float().mean() - 0.5) < 0.02


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["contrastive", "randaugment"])
def test_compiled_augmentation_is_the_same_but_for_rounding(recipe: str) -> None:
    config = TrainConfig(recipe=recipe, blur=0.5)
    images, u = _images(6), _u(12, config)
    compiled = augmentation(32, config, compiled=True)
    assert (compiled(images, u) - augment(images, 32, config, u)).abs().max() < 1e-4 and compiled.compiled


@pytest.mark.parametrize("turn", [0.1, -0.07, 0.5])
def test_hue_is_torchvisions(turn: float) -> None:
    x = _images(6).float() / 255
    ours = adjust_hue(x, torch.full((6,), turn))
    assert (ours - TF.adjust_hue(x, turn)).abs().max() < 2e-3  # torchvision guards its divisions by 1e-8 and rounds


def test_no_turn_changes_nothing_and_gray_stays_gray() -> None:
    x = _images(6).float() / 255
    assert (adjust_hue(x, torch.zeros(6)) - x).abs().max() < 1e-6
    gray = x[:, :1].expand(-1, 3, -1, -1)
    assert (adjust_hue(gray, torch.full((6,), 0.3)) - gray).abs().max() < 1e-6


def test_jitter_is_torchvisions_in_that_order() -> None:
    x = _images(6).float() / 255
    jitter = random_jitter(_u(6, seed=5)["jitter"], TrainConfig(jitter=1.0))
    ours = color_jitter(x, jitter)
    for i in range(6):
        y = TF.adjust_brightness(x[i], float(jitter.brightness[i]))
        y = TF.adjust_contrast(y, float(jitter.contrast[i]))
        y = TF.adjust_saturation(y, float(jitter.saturation[i]))
        y = TF.adjust_hue(y, float(jitter.hue[i]))
        y = TF.rgb_to_grayscale(y, 3) if jitter.gray[i] else y
        assert (ours[i] - y).abs().max() < 3e-3


def test_jitter_draws_its_own_factors_for_every_image() -> None:
    jitter = random_jitter(_u(5000)["jitter"], CONFIG)
    on = jitter.brightness != 1
    assert abs(on.float().mean() - 0.8) < 0.02
    assert abs(jitter.gray.float().mean() - 0.2) < 0.02
    for factor in (jitter.brightness, jitter.contrast, jitter.saturation):
        assert factor.min() >= 0.6 and factor.max() <= 1.4
        assert len(factor[on].unique()) > 3500
    assert jitter.hue.abs().max() <= 0.1


def test_blur_is_torchvisions_and_only_where_it_is_on() -> None:
    x = _images(4).float() / 255
    sigma = torch.tensor([0.5, 1.0, 2.0, 1.5])
    ours = gaussian_blur(x, sigma, torch.tensor([True, True, True, False]))
    for i in range(3):
        theirs = TF.gaussian_blur(x[i], [5, 5], [float(sigma[i])] * 2)  # the same radius as ours at 48 px
        assert (ours[i] - theirs).abs().max() < 1e-5
    assert (ours[3] - x[3]).abs().max() < 1e-6


def test_equal_images_get_different_views() -> None:
    x = _images(1).repeat(64, 1, 1, 1)
    a, b = augment(x, 32, CONFIG, _u(64, seed=1)), augment(x, 32, CONFIG, _u(64, seed=2))
    assert len({row.numpy().tobytes() for row in a}) >= 60
    assert (a - b).abs().amax(dim=(1, 2, 3)).min() > 1e-3
    assert torch.equal(a, augment(x, 32, CONFIG, _u(64, seed=1)))
    assert a.min() >= -1.0001 and a.max() <= 1.0001


def test_nothing_asked_for_is_the_image_itself() -> None:
    x = _images(3)
    plain = TrainConfig(crop_min=1.0, flip=0.0, jitter=0.0, gray=0.0)
    crop = random_crop(_u(3, plain), 48, 48, plain)
    whole = crop.height * crop.width == 48 * 48
    view = augment(x, 48, plain, _u(3, plain))
    assert whole.any()
    assert (view[whole] - (x[whole].float() / 255 - 0.5) / 0.5).abs().max() < 1e-5


def test_a_pass_shows_every_image_once_and_the_next_in_another_order() -> None:
    stream = IndexStream("all", torch.arange(100, 124), 8, seed=0)
    assert stream.n_batches == 3
    first, second = stream.steps(0, 3), stream.steps(3, 3)
    assert sorted(first.flatten().tolist()) == list(range(100, 124)) == sorted(second.flatten().tolist())
    assert not torch.equal(first, second)


def test_steps_are_the_same_however_they_are_asked_for() -> None:
    stream = IndexStream("all", torch.arange(25), 4, seed=3)
    whole = stream.steps(0, 20)
    assert torch.equal(whole[7:15], stream.steps(7, 8))
    assert torch.equal(whole, torch.cat([stream.steps(k, 1) for k in range(20)]))
    assert not torch.equal(whole, IndexStream("all", torch.arange(25), 4, seed=4).steps(0, 20))


@pytest.mark.parametrize(("n", "batch", "taken"), [(9, 4, 4), (3, 4, 3), (4, 4, 4)])
def test_small_streams_give_small_batches_and_a_rest_of_one_is_left_over(n: int, batch: int, taken: int) -> None:
    rows = IndexStream("all", torch.arange(n), batch, seed=0).steps(0, 5)
    assert rows.shape == (5, taken)
    assert all(len(set(row)) == taken for row in rows.tolist())


def test_a_balanced_stream_takes_equally_many_of_every_cell() -> None:
    cells = torch.tensor([0] * 30 + [1] * 6 + [2] * 12)
    stream = IndexStream("annotated", torch.arange(48), 12, seed=0, cells=cells)
    for row in stream.steps(0, 10):
        assert torch.bincount(cells[row]).tolist() == [4, 4, 4]
        assert len(set(row.tolist())) == 12
    labels = torch.tensor([0, 1, 0, 1]), torch.tensor([0, 0, 1, 1])
    assert cells_of("shuffle", *labels) is None
    assert cells_of("group_balanced", *labels).tolist() == [0, 0, 1, 1]  # type: ignore[union-attr]
    assert len(set(cells_of("cell_balanced", *labels).tolist())) == 4  # type: ignore[union-attr]


def test_balanced_rows_have_equal_cells() -> None:
    target = torch.tensor([0] * 10 + [1] * 5)
    group = torch.tensor([0, 1] * 7 + [0])
    rows = balanced(torch.arange(15), target, group, seed=0)
    cell = group[rows] * 2 + target[rows]
    assert torch.bincount(cell).tolist() == [2, 2, 2, 2]
    assert torch.equal(rows, balanced(torch.arange(15), target, group, seed=0))


def test_the_annotated_share_is_random_by_seed_and_every_group_is_there_twice() -> None:
    group = np.zeros(1000, dtype=np.int64)
    group[:3] = 1
    chosen = annotated_subset(group, 2, 0.05, "male", seed=0)
    assert (group[chosen] == 1).sum() >= 2
    assert 50 <= len(chosen) <= 52
    assert len(set(chosen.tolist())) == len(chosen)
    assert np.array_equal(chosen, annotated_subset(group, 2, 0.05, "male", seed=0))
    assert not np.array_equal(chosen, annotated_subset(group, 2, 0.05, "male", seed=1))
    assert not np.array_equal(chosen, annotated_subset(group, 2, 0.05, "young", seed=0))


def test_images_of_unknown_group_are_never_annotated() -> None:
    group = np.array([-1, 0, 1, -1, 0, 1, -1, -1])
    assert set(annotated_subset(group, 2, 1.0, "male", seed=0)) == {1, 2, 4, 5}
    with pytest.raises(UserError, match="no training image has a known 'male'"):
        annotated_subset(np.full(5, -1), 2, 0.5, "male", seed=0)
