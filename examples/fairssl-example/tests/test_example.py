"""The contract of each plugin, and values worked out by hand."""

import math

import numpy as np
import pytest
import torch
from fairssl_example.heads.hsic import hsic
from fairssl_example.objectives.barlow_twins import cross_correlation

from fairssl import kinds, testing
from fairssl.api import Undefined
from fairssl.scoring import check_outcome

PLUGINS = (
    ("objective", "barlow_twins"),
    ("head", "hsic"),
    ("encoder", "cifar_resnet"),
    ("metric", "predictive_parity"),
    ("dataset", "shapes"),
)


@pytest.mark.parametrize(("kind", "name"), PLUGINS)
def test_contract(kind, name):
    testing.assert_contract(kind, name)


def test_cross_correlation_of_two_features():
    z = torch.tensor([[1.0, 5.0], [-1.0, 5.0]])  # the second is constant
    assert torch.allclose(cross_correlation(z, -z), torch.tensor([[-1.0, 0.0], [0.0, 0.0]]))


def test_hsic_of_two_pairs():
    f = torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [-1.0, 0.0]])
    # H L H is 1/2 within a group and -1/2 across; K is 1 and exp(-4 gamma).
    apart = hsic(f, torch.tensor([0, 0, 1, 1]), gamma=0.5)
    assert apart.item() == pytest.approx((8 * 0.5 - 8 * 0.5 * math.exp(-2)) / 9)
    assert hsic(f, torch.tensor([0, 1, 0, 1]), gamma=0.5).item() == pytest.approx(0, abs=1e-6)
    assert hsic(f, torch.tensor([1, 1, 1, 1]), gamma=0.5).item() == pytest.approx(0, abs=1e-6)


def test_depths_and_names():
    encoder = kinds.encoders.build("cifar_resnet", {"depth": 14, "width": 4}, image_shape=(3, 32, 32))
    assert sum(isinstance(m, torch.nn.Conv2d) and m.kernel_size == (3, 3) for m in encoder.modules()) == 13
    assert kinds.encoders.get("cifar_resnet").accepts("cifar_resnet20") == {"depth": 20}
    assert kinds.encoders.get("cifar_resnet").accepts("cifar_resnet21") is None


def test_precision_of_two_groups():
    score, target = [0.9, 0.9, 0.9, 0.1, 0.9, 0.9, 0.1, 0.1], [1, 1, 0, 0, 1, 0, 1, 1]
    outcome = check_outcome(score, target, [0] * 4 + [1] * 4, ["0", "1"])
    assert kinds.metrics.get("predictive_parity")(outcome) == pytest.approx(2 / 3 - 1 / 2)
    nobody = check_outcome([0.9, 0.1], [1, 0], [0, 1], ["0", "1"])
    assert isinstance(kinds.metrics.get("predictive_parity")(nobody), Undefined)


def test_how_the_labels_go_together():
    splits = kinds.datasets.build("shapes", {"n_train": 1000, "unknown": 0.25}).load(None, "disc", "ground", 16)
    known = splits.train.group >= 0
    assert known.mean() == pytest.approx(0.75, abs=0.05) and (splits.test.group >= 0).all()
    together = splits.train.group[known] == 1 - splits.train.target[known]
    assert together.mean() == pytest.approx(0.7, abs=0.03)
    assert np.unique(2 * splits.test.target + splits.test.group, return_counts=True)[1].tolist() == [50] * 4
