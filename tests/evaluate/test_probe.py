"""Probes on features whose answer is known, against scikit-learn and by hand."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from reference import small
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier

from fairssl.evaluate.embed import embed, filled
from fairssl.evaluate.leakage import leakage
from fairssl.evaluate.probe import Standardise, fit_logistic, fit_probe
from fairssl.spec.config import ProbeConfig
from fairssl.types import Split


def _blobs(n: int, d: int = 6, shift: float = 1.0, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Two Gaussian classes whose means differ by `2 shift` along the first of d features, with very unequal scales."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, n)
    x = rng.normal(size=(n, d))
    x[:, 0] += shift * (2 * y - 1)
    x = x * np.logspace(-2, 2, d) + 5
    return torch.from_numpy(x).float(), torch.from_numpy(y)


@pytest.mark.parametrize("kind", ["linear", "lbfgs", "knn"])
def test_every_probe_is_near_the_best_there_is(kind: str) -> None:
    x, y = _blobs(4000)
    new, truth = _blobs(4000, seed=1)
    score = fit_probe(x, y, ProbeConfig(kind=kind), seed=0)(new)
    assert score.dtype == torch.float64 and score.min() >= 0 and score.max() <= 1
    accuracy = float(((score > 0.5).long() == truth).float().mean())
    assert 0.80 < accuracy < 0.87  # Phi(1) = 0.841; kNN among five noise features is below it
    assert roc_auc_score(truth, score) > 0.88


def test_linear_evaluation_comes_to_scikit_learns_solution() -> None:
    x, y = _blobs(3000)
    new, _ = _blobs(500, seed=2)
    ours = fit_probe(x, y, ProbeConfig(epochs=170, decay_epoch=100, lr=0.01), seed=0)(new)
    mean, sd = x.mean(0), x.std(0)
    theirs = LogisticRegression(C=1e6).fit(((x - mean) / sd).numpy(), y.numpy())
    expected = theirs.predict_proba(((new - mean) / sd).numpy())[:, 1]
    assert np.abs(ours.numpy() - expected).max() < 0.02


def test_lbfgs_is_scikit_learns_logistic_regression_on_standardised_features() -> None:
    x, y = _blobs(300)
    mean, sd = x.mean(0), x.std(0)
    theirs = LogisticRegression(C=0.5).fit(((x - mean) / sd).double().numpy(), y.numpy())
    ours = fit_probe(x, y, ProbeConfig(kind="lbfgs", l2=2.0), seed=0)(x)
    assert np.abs(ours.numpy() - theirs.predict_proba(((x - mean) / sd).double().numpy())[:, 1]).max() < 1e-3


def test_knn_is_scikit_learns_with_cosine_distance() -> None:
    x, y = _blobs(400)
    new, _ = _blobs(100, seed=3)
    ours = fit_probe(x, y, ProbeConfig(kind="knn", neighbours=7), seed=0)(new)
    mean, sd = x.mean(0), x.std(0)
    weights = lambda distance: np.exp((1 - distance) / 0.07)  # noqa: E731
    model = KNeighborsClassifier(7, metric="cosine", weights=weights).fit(((x - mean) / sd).numpy(), y.numpy())
    assert np.allclose(ours.numpy(), model.predict_proba(((new - mean) / sd).numpy())[:, 1], atol=1e-5)


def test_a_probe_on_noise_comes_to_the_base_rate() -> None:
    """Fault A4: on few rows, 15 % of them positive, Adam from a bias of 0 used to stop at a mean score of .456."""
    gen = torch.Generator().manual_seed(0)
    x, new = torch.randn(4188, 32, generator=gen), torch.randn(4000, 32, generator=gen)
    y, truth = ((torch.rand(n, generator=gen) < 0.15).long() for n in (4188, 4000))
    for kind in ("linear", "lbfgs", "knn"):
        score = fit_probe(x, y, ProbeConfig(kind=kind), seed=0)(new)
        assert abs(float(score.mean()) - 0.15) < 0.03
        accuracy = float(((score > 0.5).long() == truth).float().mean())
        assert accuracy > 1 - float(truth.float().mean()) - 0.02
    assert not (score == 0.5).any()  # fault D9: plain votes of 20 neighbours tied


def test_a_probe_of_few_steps_is_lengthened_in_whole_epochs_and_decays_at_the_same_share() -> None:
    x, y = _blobs(512)  # two steps an epoch
    long = fit_probe(x, y, ProbeConfig(epochs=10, decay_epoch=5, min_steps=80), seed=0)(x)
    assert torch.equal(long, fit_probe(x, y, ProbeConfig(epochs=40, decay_epoch=20, min_steps=0), seed=0)(x))


def test_a_probe_is_a_function_of_its_seed_alone() -> None:
    x, y = _blobs(500)
    one, again = (fit_probe(x, y, ProbeConfig(), seed=0)(x) for _ in range(2))
    other = fit_probe(x, y, ProbeConfig(), seed=1)(x)
    assert torch.equal(one, again) and not torch.equal(one, other)


def test_the_rate_falls_by_ten_at_the_tenth_epoch() -> None:
    x, y = _blobs(512)
    short = fit_probe(x, y, ProbeConfig(epochs=10, min_steps=0), seed=0)(x)
    tenth = fit_probe(x, y, ProbeConfig(epochs=11, min_steps=0), seed=0)(x)
    never = fit_probe(x, y, ProbeConfig(epochs=11, decay_epoch=100, min_steps=0), seed=0)(x)
    slow, fast = (tenth - short).abs().mean(), (never - short).abs().mean()
    assert slow < 0.2 * fast


def test_a_constant_feature_is_left_out_not_divided_by_zero() -> None:
    x = torch.randn(50, 3)
    x[:, 1] = 4.0
    z = Standardise(x)(x)
    assert (z[:, 1] == 0).all() and z.isfinite().all()
    assert torch.allclose(z[:, 0].std(), torch.tensor(1.0), atol=1e-5)


def test_leakage_finds_a_group_that_is_there_and_not_one_that_is_not() -> None:
    rng = np.random.default_rng(0)
    group = rng.integers(0, 2, 3000)
    noise = torch.from_numpy(rng.normal(size=(3000, 5))).float()
    told = noise + torch.from_numpy(group)[:, None] * 10.0
    found = leakage(told[:2000], group[:2000], told[2000:], group[2000:])
    assert found["accuracy"] == 1.0 and found["chance"] == 0.5
    blind = leakage(noise[:2000], group[:2000], noise[2000:], group[2000:])
    assert abs(blind["balanced_accuracy"] - 0.5) < 0.05  # three standard errors of 1000 coins


def test_the_perceptron_finds_a_group_that_no_line_tells_apart_as_scikit_learns_does() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(4000, 6)).astype(np.float32) * np.logspace(-1, 2, 6, dtype=np.float32) + 3
    group = ((x[:, 0] > 3) ^ (x[:, 1] > 3)).astype(np.int64)  # exclusive or
    group[::7] = -1  # unknown
    found = leakage(torch.from_numpy(x[:3000]), group[:3000], torch.from_numpy(x[3000:]), group[3000:])
    assert abs(found["balanced_accuracy"] - 0.5) < 0.06 and found["mlp_balanced_accuracy"] > 0.93
    scale = (x - x[:3000].mean(0)) / x[:3000].std(0)
    theirs = MLPClassifier((256,), alpha=0, batch_size=256, max_iter=40, random_state=0, early_stopping=False)
    known = group >= 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it stops at max_iter, as ours does
        theirs.fit(scale[:3000][known[:3000]], group[:3000][known[:3000]])
    accuracy = theirs.score(scale[3000:][known[3000:]], group[3000:][known[3000:]])
    assert found["mlp_accuracy"] == pytest.approx(accuracy, abs=0.03)


def test_the_perceptron_is_at_chance_on_noise_takes_absent_groups_and_depends_on_its_seed_alone() -> None:
    rng = np.random.default_rng(2)
    noise, group = torch.from_numpy(rng.normal(size=(2000, 5))).float(), rng.integers(0, 2, 2000)
    once, again, other = (leakage(noise[:1000], group[:1000], noise[1000:], group[1000:], seed) for seed in (0, 0, 1))
    assert abs(once["mlp_balanced_accuracy"] - 0.5) < 0.06
    assert once == again and once["mlp_accuracy"] != other["mlp_accuracy"] and once["accuracy"] == other["accuracy"]
    codes = np.array([0, 2, 4])[np.arange(90) % 3]  # of five groups two are absent
    told = torch.eye(5)[codes]
    assert leakage(told, codes, told, codes)["mlp_accuracy"] == 1.0
    shifted = leakage(100 * noise[:1000] + 7, group[:1000], 100 * noise[1000:] + 7, group[1000:])
    assert shifted["mlp_accuracy"] == pytest.approx(once["mlp_accuracy"], abs=0.02)  # it standardises


def test_leakage_passes_over_unknown_groups_and_says_when_there_is_one_group() -> None:
    x = torch.randn(100, 3)
    group = np.where(np.arange(100) % 2 == 0, -1, 0)
    assert leakage(x, group, x, group)["accuracy"] is None
    five = np.arange(100) % 5
    assert leakage(torch.eye(5)[five], five, torch.eye(5)[five], five)["accuracy"] == 1.0


def test_two_groups_are_told_apart_by_the_minimum_of_the_regularised_loss() -> None:
    """Where the gradient vanishes, on features on which L-BFGS gives up after 500 iterations."""
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(600, 40)) @ (np.geomspace(1, 1e-3, 40)[:, None] * rng.normal(size=(40, 40)))
    group = (hidden[:, 0] + 0.01 * rng.normal(size=600) > 0).astype(np.int64)
    x = Standardise(torch.from_numpy(hidden).float())(torch.from_numpy(hidden).float())
    gradients = {}
    for solver, most in (("newton-cholesky", 100), ("lbfgs", 500)):
        model = fit_logistic(x, torch.from_numpy(group), 1.0, solver, most)
        weight = torch.from_numpy(model.coef_[0])
        p = torch.sigmoid(x.double() @ weight + float(model.intercept_[0]))
        gradients[solver] = float((x.double().T @ (p - torch.from_numpy(group)) + weight).abs().max())
        assert solver == "lbfgs" or model.n_iter_.max() < 15
    assert gradients["newton-cholesky"] < 0.05 * gradients["lbfgs"]
    features, groups = torch.from_numpy(hidden).float(), (group, group)
    found = leakage(features, groups[0], features, groups[1])
    assert found["converged"] is True and found["version"] == 2


def test_a_batch_is_filled_up_with_its_last_image() -> None:
    images = torch.arange(6.0).view(3, 1, 2)
    assert torch.equal(filled(images, 5), images[[0, 1, 2, 2, 2]]) and torch.equal(filled(images, 3), images)


def test_embedding_is_in_order_and_does_not_depend_on_the_batch() -> None:
    spec = small.run_of("simclr").spec
    trainer, splits = small.trainer(spec), small.splits(spec)
    trainer.run()
    whole = embed(
        trainer.model.encoder, trainer.model.objective.represent, splits.test, torch.device("cpu"), batch_size=100
    )
    parts = embed(
        trainer.model.encoder, trainer.model.objective.represent, splits.test, torch.device("cpu"), batch_size=7
    )
    assert torch.allclose(whole, parts, atol=1e-5)
    one = Split(splits.test.images[3:4], splits.test.target[3:4], splits.test.group[3:4], splits.test.ids[3:4])
    assert torch.allclose(
        embed(trainer.model.encoder, trainer.model.objective.represent, one, torch.device("cpu"))[0],
        whole[3],
        atol=1e-5,
    )
