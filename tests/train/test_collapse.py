"""Spread of features: by numpy, by hand, what it does not depend on; in every history and record, also of a collapsed run."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from reference import small
from reference.plugin_package import write_package

from fairssl.train.collapse import ROWS, spread

COLLAPSING = '''\
"""Features shall vanish: an objective of a stranger's that loses everything."""

from fairssl.api import Objective, Terms


class Vanish(Objective):
    """The mean squared feature, and the distance of all features from their mean."""

    def forward(self, batches):
        f = batches["all"].flat_f()
        return Terms(primal={"spread": 1e3 * (f - f.mean(0)).square().mean()})
'''


def slow(f: np.ndarray) -> tuple[float, float]:
    unit = f / np.linalg.norm(f, axis=1, keepdims=True)
    sd = math.sqrt(sum(((row - unit.mean(0)) ** 2).sum() for row in unit) / len(unit))
    values = np.linalg.svd(f - f.mean(0), compute_uv=False)
    share = values / values.sum()
    return sd, math.exp(-sum(p * math.log(p) for p in share if p > 1e-12))


@pytest.mark.parametrize(("n", "width"), [(50, 8), (8, 50), (20, 20), (2, 3)])
def test_the_spread_is_what_singular_values_say(n: int, width: int) -> None:
    f = np.random.default_rng(n).normal(size=(n, width)) * np.logspace(0, 2, width) + 1
    found = spread(torch.from_numpy(f))
    assert (found.feature_sd, found.effective_rank) == pytest.approx(slow(f), rel=1e-6)
    assert 0 <= found.feature_sd <= 1 and 1 - 1e-9 <= found.effective_rank <= min(n - 1, width) + 1e-9


def test_by_hand() -> None:
    axes = torch.cat([torch.eye(4), -torch.eye(4)])  # four equal directions about the origin
    found = spread(axes)
    assert found.feature_sd == pytest.approx(1) and found.effective_rank == pytest.approx(4)
    line = torch.tensor([[1.0, 1], [2, 2], [3, 3], [-1, -1]])
    assert spread(line).effective_rank == pytest.approx(1) and spread(line).collapsed


def test_it_does_not_depend_on_order_scale_or_rotation() -> None:
    gen = torch.Generator().manual_seed(0)
    f = torch.randn(30, 6, generator=gen, dtype=torch.float64) + 2
    turn = torch.linalg.qr(torch.randn(6, 6, generator=gen, dtype=torch.float64))[0]
    found = spread(f)
    for other in (f.flip(0), 1e4 * f, f @ turn):
        assert spread(other).effective_rank == pytest.approx(found.effective_rank)
        assert spread(other).feature_sd == pytest.approx(found.feature_sd)


@pytest.mark.parametrize("value", [0.0, 1.0, 1e6])
@pytest.mark.parametrize("noise", [0.0, 1e-7])
def test_constant_features_are_collapsed_also_where_rounding_makes_them_vary(value: float, noise: float) -> None:
    gen = torch.Generator().manual_seed(0)
    f = value * (1 + noise * torch.randn(40, 16, generator=gen))
    found = spread(f)
    assert found.collapsed and found.effective_rank == 0 and found.feature_sd < 1e-6


def test_of_very_many_rows_evenly_many_are_looked_at() -> None:
    f = torch.randn(3 * ROWS + 7, 4, generator=torch.Generator().manual_seed(0))
    assert spread(f) == spread(f[::4])


@pytest.mark.parametrize("method", ["simclr", "sofclr", "ce"])
def test_every_history_has_it_of_the_last_step_of_each_epoch(method: str) -> None:
    trainer = small.trainer(small.run_of(method).spec)
    trainer.run()
    assert len(trainer.history.rows) == 2 or method == "ce"
    assert all({"feature_sd", "effective_rank"} <= row.keys() for row in trainer.history.rows)
    assert trainer.step.features is not None
    found = spread(trainer.step.features)
    assert trainer.history.rows[-1]["effective_rank"] == found.effective_rank
    n = trainer.streams[trainer.step.own_stream].batch_size * trainer.step.n_views
    assert len(trainer.step.features) == n


@pytest.mark.slow
def test_a_record_says_whether_its_encoder_collapsed(tmp_path: Path) -> None:
    write_package(tmp_path / "site", "stranger", {"objectives/vanish.py": COLLAPSING})
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "site"), "OMP_NUM_THREADS": "1"}
    text = (
        "--method simclr,vanish --seeds 1 --epochs 15 --device cpu --image-size 16 --batch-size 8 --set train.lr=0.03"
    )
    words = ["bench", *text.split(), *(word for one in small.SETS for word in ("--set", one))]
    call = [sys.executable, "-m", "fairssl", *words, "--out", str(tmp_path / "runs")]
    done = subprocess.run(call, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    facts = {}
    for path in (tmp_path / "runs" / "results").glob("*/record.json"):
        record = json.loads(path.read_text())
        facts[record["spec"]["method"]["objective"]["name"]] = record["facts"]
    assert facts["vanish"]["collapsed"] is True and facts["simclr"]["collapsed"] is False
    assert facts["simclr"]["feature_sd"] > facts["vanish"]["feature_sd"]
    history = next((tmp_path / "runs" / "pretrain").glob("*/history.csv")).read_text().splitlines()
    assert {"feature_sd", "effective_rank"} <= set(history[0].split(","))
