"""fairssl from Python: a grid as data frames, one run, frozen encoders, losses in a loop of one's own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from reference import small
from reference.own_images import labels, write_folder
from safetensors import safe_open
from safetensors.torch import load_file

import fairssl
from fairssl.evaluate.embed import embed
from fairssl.store.runs import RunStore
from fairssl.types import UserError

SETTINGS = {"data.n_train": 48, "data.n_val_per_cell": 6, "data.n_test_per_cell": 10, "encoder.width": 8}


def bench(out: Path, methods: Any = ("simclr", "sofclr"), **given: Any) -> Any:
    how = {"seeds": 2, "epochs": 2, "image_size": 16, "batch_size": 16, "annotated": 0.3, "device": "cpu", **given}
    return fairssl.bench(methods, dataset="synthfaces", attribute="male", settings=SETTINGS, out=out, **how)


def test_importing_fairssl_loads_no_torch() -> None:
    code = "import sys, fairssl; dir(fairssl); assert not {'torch', 'numpy', 'pydantic'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="fairssl has no 'nope'; it has Loss"):
        _ = fairssl.nope


def test_a_grid_is_a_table_and_two_data_frames(tmp_path: Path) -> None:
    result = bench(tmp_path)
    assert str(result.table) == (tmp_path / "table.md").read_text() and result.n_failed == 0
    runs = result.runs()
    assert list(runs["method"]) == ["simclr", "simclr", "sofclr", "sofclr"] and list(runs["seed"]) == [0, 1, 0, 1]
    assert (runs["state"] == "ok").all() and runs["Acc"].between(0, 1).all()
    long = result.to_pandas().set_index(["method", "metric"])
    mine = runs[runs["method"] == "sofclr"]["ED"]
    assert long.loc[("sofclr", "ED"), "mean"] == pytest.approx(mine.mean())
    assert long.loc[("sofclr", "ED"), "sd"] == pytest.approx(mine.std(ddof=1))
    again = bench(tmp_path)
    assert again.runs().equals(runs) and str(again.table) == str(result.table)


def test_settings_are_said_as_python_values(tmp_path: Path) -> None:
    """Bins of a column, a list and a truth value, as `--set data.bin=age:40` and the others write them."""
    write_folder(tmp_path / "own", 200, {name: labels(200)[name] for name in ("smiling", "age")})
    result = fairssl.bench(
        "simclr",
        "folder",
        "age",
        target="smiling",
        data_dir=tmp_path / "own",
        settings={"data.table": "faces.csv", "data.bin": {"age": [40]}, "data.test": 0.4, "encoder.width": 4},
        encoder="small_cnn",
        seeds=1,
        epochs=1,
        image_size=8,
        batch_size=16,
        device="cpu",
        out=tmp_path / "runs",
    )
    assert result.n_failed == 0 and result.records()[0].spec["data"]["params"]["bin"] == {"age": [40.0]}


def test_one_run_without_a_store_is_the_run_of_a_grid(tmp_path: Path) -> None:
    before = torch.get_rng_state()
    result = bench(tmp_path, "sofclr", seeds=1)
    (kept,) = result.records()
    found = fairssl.run(result.plan.runs[0].spec, device="cpu")
    assert found.metrics == kept.metrics and found.key == kept.key and found.sources == kept.sources
    assert torch.equal(torch.get_rng_state(), before)  # nobody's random numbers have moved


def test_a_mistake_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="unknown method 'simclrr'"):
        bench(tmp_path, "simclrr")
    with pytest.raises(UserError, match="--workers 0: must be at least 1"):
        bench(tmp_path, "simclr", workers=0)
    assert not list(tmp_path.iterdir())


def test_a_frozen_encoder_gives_the_features_that_the_probe_saw(tmp_path: Path) -> None:
    result = bench(tmp_path, "vae", seeds=2)
    spec = result.plan.runs[0].spec
    encoder = fairssl.load_encoder(result, "vae")  # the lowest seed
    assert encoder.key == spec.pretrain_key and encoder.spec.seed == 0 and encoder.dim == 128
    assert not encoder.training and not encoder.train().training
    assert not any(p.requires_grad for p in encoder.parameters())
    split = small.splits(spec).test
    trainer = small.trainer(spec)
    trainer.model.load(RunStore(tmp_path).read_pretrain(spec.pretrain_key)[0])  # type: ignore[index]
    wanted = embed(trainer.model.encoder, trainer.model.objective.represent, split, torch.device("cpu"))
    images = torch.from_numpy(np.array(split.images))
    assert torch.allclose(encoder(images), wanted, atol=1e-5)
    for name, row, seed in (("key", spec.pretrain_key, None), ("result", spec.key, None), ("seed", "vae", 1)):
        other = fairssl.load_encoder(tmp_path, row, seed)
        assert (other.key == encoder.key) == (name != "seed")
    picture = Image.fromarray(np.array(split.images[0]).transpose(1, 2, 0)).resize((64, 48))
    assert encoder([picture]).shape == (1, 128)
    with pytest.raises(ValueError, match=r"give uint8 \(N, 3, 16, 16\)"):
        encoder(images.float())
    with pytest.raises(UserError, match=r"no run of 'vea'.*did you mean 'vae'"):
        fairssl.load_encoder(tmp_path, "vea")


def test_an_exported_encoder_is_a_plain_timm_state_dict(tmp_path: Path) -> None:
    import timm

    how: dict[str, Any] = {"seeds": 1, "epochs": 1, "image_size": 32, "batch_size": 16, "encoder": "resnet10t"}
    settings = {key: value for key, value in SETTINGS.items() if key != "encoder.width"}
    result = fairssl.bench("simclr", "synthfaces", settings=settings, out=tmp_path / "runs", device="cpu", **how)
    path = fairssl.export(result, "simclr", tmp_path / "encoder.safetensors")
    model = timm.create_model("resnet10t", num_classes=0)
    model.load_state_dict(load_file(path))
    frozen = fairssl.load_encoder(result, "simclr")
    images = torch.randint(0, 256, (3, 3, 32, 32), dtype=torch.uint8)
    with torch.inference_mode():
        assert torch.allclose(model.eval()((images / 255 - 0.5) / 0.5), frozen(images), atol=1e-5)
    with safe_open(path, "pt") as file:
        about = file.metadata()
    assert (about["architecture"], about["image_size"], about["pretrain_key"]) == ("resnet10t", "32", frozen.key)


@pytest.mark.parametrize("method", ["sofclr", "byol+adversary:0.3", "vicreg", "simclr+ccl", "ce+eod"])
def test_losses_in_a_loop_of_ones_own_have_the_gradients_of_fairssls(method: str) -> None:
    spec = small.run_of(method).spec
    trainer = small.trainer(spec)
    index = {name: stream.steps(0, 1)[0] for name, stream in trainer.streams.items()}
    drawn = trainer.step.draw(index)
    encoder = trainer.model.encoder
    loss = fairssl.Loss(
        method, encoder, feature_dim=encoder.dim, n_train=48, n_annotated=len(trainer.data.annotated), n_steps=10
    )
    for name, part in loss.parts.items():
        part.load_state_dict(trainer.model.parts[name].state_dict())
    batches = {
        name: loss.batch(batch.views, batch.index, target=batch.target, group=batch.group)
        for name, batch in drawn.items()
    }
    statistics = {k: v.clone() for k, v in encoder.state_dict().items()}
    terms = loss(batches)
    loss.backward(terms)
    ours = {name: p.grad.clone() for name, p in encoder.named_parameters() if p.grad is not None}
    encoder.load_state_dict(statistics)  # batch norm has seen this batch
    _, _, log, primal, dual = trainer.step.differentiate(drawn)
    theirs = dict(zip(map(id, trainer.step.primal), primal, strict=True))
    assert ours
    for name, p in encoder.named_parameters():
        assert torch.allclose(ours[name], theirs[id(p)], atol=1e-6), name
    assert {name: float(v) for name, v in terms.log.items()} == pytest.approx(
        {name: float(v) for name, v in log.items()}, abs=1e-5
    )
    found = [p.grad for p in loss.dual_parameters()]
    assert len(found) == len(dual)
    for a, b in zip(found, dual, strict=True):
        assert torch.allclose(a, b, atol=1e-6)  # type: ignore[arg-type]


def test_a_loop_of_ones_own_learns_and_its_momentum_encoder_moves() -> None:
    torch.manual_seed(0)
    encoder = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 8 * 8, 16))
    loss = fairssl.Loss("byol", encoder, feature_dim=16, n_train=64, n_steps=30, settings={"byol.hidden_dim": 32})
    optimizer = torch.optim.Adam([*encoder.parameters(), *loss.primal_parameters()], lr=1e-2)
    images = torch.randn(64, 3, 8, 8)
    before = {k: v.clone() for k, v in loss.state_dict().items()}
    values = []
    for step in range(30):
        index = torch.randperm(64)[:32]
        views = [images[index] + 0.1 * torch.randn(32, 3, 8, 8) for _ in range(2)]
        terms = loss({"all": loss.batch(views, index)})
        optimizer.zero_grad()
        loss.backward(terms)
        optimizer.step()
        loss.after_step((step + 1) / 30)
        values.append(float(terms.primal.detach()))
    assert values[-1] < 0.7 * values[0]
    moved = [k for k, v in loss.state_dict().items() if "target_encoder" in k and not torch.equal(v, before[k])]
    assert moved
