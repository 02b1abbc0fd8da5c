"""The contract of each plugin, and values worked out by hand."""

import numpy as np
import pytest
import torch
from fairssl_example.heads.coral import coral
from fairssl_example.objectives.align_uniform import uniformity

from fairssl import kinds, testing
from fairssl.api import Undefined
from fairssl.scoring import check_outcome

PLUGINS = (
    ("objective", "align_uniform"),
    ("head", "coral"),
    ("encoder", "cifar_resnet"),
    ("metric", "predictive_parity"),
    ("dataset", "shapes"),
)


@pytest.mark.parametrize(("kind", "name"), PLUGINS)
def test_contract(kind, name):
    testing.assert_contract(kind, name)


def test_uniformity_of_three_points():
    z = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]])  # squared distances 4, 2 and 2
    wanted = np.log((np.exp(-4 * 0.5) + 2 * np.exp(-2 * 0.5)) / 3)
    assert uniformity(z, 0.5).item() == pytest.approx(wanted, rel=1e-5)
    assert uniformity(z[:1].repeat(4, 1), 2.0).item() == pytest.approx(0, abs=1e-6)


def test_coral_of_two_groups():
    f = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    # Covariances diag(2, 0) and diag(0, 2).
    assert coral(f, torch.tensor([0, 0, 1, 1]), 2).item() == pytest.approx(8)
    assert coral(f + 3, torch.tensor([0, 0, 1, 1]), 2).item() == pytest.approx(8)
    assert coral(f, torch.tensor([0, 1, 1, 1]), 2).item() == 0, "a group of one has no covariance"
    assert coral(f, torch.tensor([0, 0, 1, 1]), 3).item() == pytest.approx(8 / 3)


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
