"""Weights of others: files drawn in each project's naming, what is refused, and their row in a table."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torchvision
from reference import small
from safetensors.torch import save_file
from torch import Tensor, nn

from fairssl import kinds
from fairssl.data.augment import normalise
from fairssl.plan.resolve import resolve
from fairssl.train.build import build_encoder
from fairssl.train.pretrained import Match, load, match, take
from fairssl.types import UserError

State = Mapping[str, Tensor]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRSSL_CACHE", str(tmp_path / "cache"))


def state_of(model: nn.Module, seed: int) -> dict[str, Tensor]:
    """A state dict with numbers of its own."""
    gen = torch.Generator().manual_seed(seed)
    return {
        name: torch.rand(value.shape, generator=gen) if value.is_floating_point() else value.clone()
        for name, value in model.state_dict().items()
    }


def under(prefix: str, state: State) -> dict[str, Tensor]:
    return {prefix + name: value for name, value in state.items()}


def head(prefix: str) -> dict[str, Tensor]:
    return {f"{prefix}.0.weight": torch.zeros(4, 512), f"{prefix}.2.weight": torch.zeros(4, 4)}


MINE, OTHER = 1, 2  # seeds of the numbers that are to be found, and of those that are not


def torchvision_state(seed: int) -> dict[str, Tensor]:
    return state_of(torchvision.models.resnet18(num_classes=10), seed)


def plain(seed: int) -> dict[str, Tensor]:
    return {name: value for name, value in torchvision_state(seed).items() if not name.startswith("fc.")}


def lightly(seed: int) -> dict[str, Tensor]:
    model = torchvision.models.resnet18()
    sequence, named = nn.Sequential(*list(model.children())[:-1]), plain(seed)
    places = dict(zip(sequence.state_dict(), [n for n in model.state_dict() if not n.startswith("fc.")], strict=True))
    return {place: named[name] for place, name in places.items()}


FILES: dict[str, Callable[[], Any]] = {
    "timm": lambda: torchvision_state(MINE),  # names and shapes of a ResNet are the same
    "timm's training": lambda: {"epoch": 3, "arch": "resnet18", "state_dict": torchvision_state(MINE)},
    "torchvision's training": lambda: {"model": under("module.", torchvision_state(MINE)), "epoch": 9},
    "DINO, backbone": lambda: plain(MINE),
    "DINO, all": lambda: {
        "student": {**under("module.backbone.", plain(OTHER)), **head("module.head.mlp")},
        "teacher": {**under("backbone.", plain(MINE)), **head("head.mlp")},
        "epoch": 100,
    },
    "MoCo v2": lambda: {
        "arch": "resnet18",
        "state_dict": {
            **under("module.encoder_q.", plain(MINE)),
            **head("module.encoder_q.fc"),
            **under("module.encoder_k.", plain(OTHER)),
            **head("module.encoder_k.fc"),
            "module.queue": torch.zeros(8, 4),
        },
    },
    "MoCo v3": lambda: {
        "state_dict": {
            **under("module.base_encoder.", plain(MINE)),
            **head("module.base_encoder.fc"),
            **under("module.momentum_encoder.", plain(OTHER)),
            **head("module.predictor"),
        }
    },
    "solo-learn": lambda: {
        "state_dict": {
            **under("momentum_backbone.", plain(OTHER)),
            **under("backbone.", plain(MINE)),
            **head("projector"),
            "classifier.weight": torch.zeros(10, 512),
        },
        "hyper_parameters": {"method": "byol"},
    },
    "lightly": lambda: {
        "state_dict": {
            **under("backbone.", lightly(MINE)),
            **under("backbone_momentum.", lightly(OTHER)),
            **head("projection_head.layers"),
        }
    },
}


def resnet18() -> nn.Module:
    return timm.create_model("resnet18", num_classes=0)


@pytest.mark.parametrize("naming", FILES)
def test_weights_are_found_in_the_naming_of(naming: str, tmp_path: Path) -> None:
    path = tmp_path / "weights.pth"
    torch.save(FILES[naming](), path)
    model = resnet18()
    said = load(model, take(path).digest, partial=False, file="weights.pth")
    wanted = plain(MINE)
    assert all(torch.equal(value, wanted[name]) for name, value in model.state_dict().items())
    assert said.startswith("120 of 120 arrays from ") and "random" not in said and "fit" not in said


def test_a_vision_transformers_weights_as_dino_writes_them(tmp_path: Path) -> None:
    model = timm.create_model("test_vit", num_classes=0)
    state = state_of(model, MINE)
    save_file({**under("backbone.", state), **head("head.mlp")}, tmp_path / "dino.safetensors")
    assert load(model, take(tmp_path / "dino.safetensors").digest, partial=False).endswith(
        ", 2 of other networks left out"
    )
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


def vit(depth: int = 2) -> nn.Module:
    return timm.create_model("vit_base_patch16_224", img_size=32, embed_dim=24, depth=depth, num_heads=2, num_classes=0)


@pytest.mark.parametrize("given_out", [False, True])
def test_a_vision_transformer_of_torchvision_computes_the_same_here(given_out: bool, tmp_path: Path) -> None:
    theirs = torchvision.models.VisionTransformer(32, 16, 2, 2, hidden_dim=24, mlp_dim=96, num_classes=10)
    with torch.no_grad():
        for value in theirs.parameters():
            value.copy_(torch.randn(value.shape) / 5)
    state = theirs.state_dict()
    if given_out:  # the names in the files that torchvision gives out, which it reads as well
        state = {n.replace("mlp.0", "mlp.linear_1").replace("mlp.3", "mlp.linear_2"): v for n, v in state.items()}
        theirs.load_state_dict(state)
    torch.save(
        {"model": under("module.", state), "args": argparse.Namespace(lr=0.1, output=None)}, tmp_path / "vit.pth"
    )
    model = vit().eval()
    said = load(model, take(tmp_path / "vit.pth").digest, partial=False)
    assert said == "30 of 30 arrays from model.module.*, 2 of heads left out"
    theirs.heads = nn.Identity()
    images = torch.randn(3, 3, 32, 32)
    torch.testing.assert_close(model(images), theirs.eval()(images), rtol=1e-4, atol=1e-5)


def test_a_transformer_of_another_depth_is_refused(tmp_path: Path) -> None:
    theirs = torchvision.models.VisionTransformer(32, 16, 2, 2, hidden_dim=24, mlp_dim=96, num_classes=10)
    save_file(theirs.state_dict(), tmp_path / "vit.safetensors")
    with pytest.raises(UserError, match=r"blocks\.2\.norm1\.weight.* and 9 more of the encoder's 42 arrays not in it"):
        load(vit(depth=3), take(tmp_path / "vit.safetensors").digest, partial=False)


def test_half_precision_becomes_single_and_old_files_lack_the_counts(tmp_path: Path) -> None:
    state = {n: v.half() for n, v in plain(MINE).items() if not n.endswith("num_batches_tracked")}
    save_file(state, tmp_path / "half.safetensors")
    model = resnet18()
    load(model, take(tmp_path / "half.safetensors").digest, partial=False)
    assert all(v.dtype == torch.float32 for n, v in model.state_dict().items() if not n.endswith("tracked"))


def test_what_does_not_match_is_said_and_refused_unless_asked(tmp_path: Path) -> None:
    state = plain(MINE)
    state["layer5.0.weight"] = torch.zeros(3)
    del state["layer1.0.bn1.weight"]
    state["conv1.weight"] = torch.zeros(64, 3, 3, 3)
    save_file(state, tmp_path / "odd.safetensors")
    digest = take(tmp_path / "odd.safetensors").digest
    with pytest.raises(UserError) as error:
        load(resnet18(), digest, partial=False, file="odd.safetensors")
    line = str(error.value)
    assert "odd.safetensors" in line and "conv1.weight (64, 3, 3, 3) instead of (64, 3, 7, 7)" in line
    assert "layer1.0.bn1.weight" in line and "encoder.partial=true" in line and "\n" not in line
    said = load(resnet18(), digest, partial=True)
    assert said.startswith("100 of 102") or ("2 drawn at random" in said and "1 left out (layer5.0.weight)" in said)

    save_file({**plain(MINE), "layer5.0.weight": torch.zeros(3)}, tmp_path / "more.safetensors")
    with pytest.raises(UserError, match=r"layer5\.0\.weight in it fit nowhere in the encoder"):
        load(resnet18(), take(tmp_path / "more.safetensors").digest, partial=False)


def test_weights_of_another_model_are_refused_however_much_is_asked(tmp_path: Path) -> None:
    save_file({"a.weight": torch.zeros(3)}, tmp_path / "other.safetensors")
    with pytest.raises(UserError, match="none of the encoder's 120 arrays is in it"):
        load(resnet18(), take(tmp_path / "other.safetensors").digest, partial=True)
    with pytest.raises(UserError, match="of the encoder's"):
        save_file(plain(MINE), tmp_path / "resnet18.safetensors")
        load(
            timm.create_model("resnet34", num_classes=0), take(tmp_path / "resnet18.safetensors").digest, partial=False
        )


class Evil:
    """What runs code when a pickle is read."""

    def __reduce__(self) -> Any:
        return os.system, ("touch evil",)


@pytest.mark.parametrize(
    "content", [Evil(), {"state_dict": {}, "args": Evil()}, {"args": argparse.Namespace(lr=1, hook=Evil())}]
)
def test_a_file_that_could_run_code_is_refused_in_one_line(content: Any, tmp_path: Path) -> None:
    path = tmp_path / "evil.pth"
    torch.save(content, path)
    with pytest.raises(UserError, match="neither safetensors nor a file of plain arrays") as error:
        take(path)
    assert "\n" not in str(error.value) and not Path("evil").exists()


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 no zip", b"plain text"])
def test_a_file_that_is_neither_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.pth").write_bytes(content)
    with pytest.raises(UserError, match="neither safetensors nor"):
        take(tmp_path / "x.pth")
    with pytest.raises(UserError, match="cannot be read: No such file"):
        take(tmp_path / "not there")
    torch.save({"epoch": 3}, tmp_path / "empty.pth")
    with pytest.raises(UserError, match="holds no arrays"):
        take(tmp_path / "empty.pth")


def test_nothing_in_common_is_no_match() -> None:
    found = match({"x": torch.zeros(1)}, {"conv.weight": torch.zeros(1)})
    assert found == Match({}, "", ("conv.weight",), (), 0, 1)


SETS = ("data.n_train=48", "data.n_val_per_cell=6", "data.n_test_per_cell=10")


def plan(path: Path, *sets: str, method: str = "random", encoder: str = "test_resnet") -> Any:
    request = small.request(method, encoder=encoder, weights=path)
    return resolve(type(request)(**{**vars(request), "assignments": (*SETS, *sets)}))


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "w.safetensors"
    save_file(state_of(timm.create_model("test_resnet", num_classes=0), MINE), path)
    return path


def test_the_content_is_in_the_key_and_what_is_said_of_it_is_not(weights: Path, tmp_path: Path) -> None:
    once = plan(weights).runs[0].spec
    copied = tmp_path / "copy.safetensors"
    copied.write_bytes(weights.read_bytes())
    said = plan(copied, "encoder.source=somewhere", "encoder.licence=MIT").runs[0].spec
    assert said.key == once.key and said.pretrain_key == once.pretrain_key and said.encoder.licence == "MIT"
    save_file(state_of(timm.create_model("test_resnet", num_classes=0), OTHER), copied)
    assert plan(copied).runs[0].spec.key != once.key
    assert once.encoder.params["input_size"] == 160  # as timm says of this model
    assert type(once).model_validate(json.loads(said.model_dump_json())).encoder == said.encoder
    without = small.run_of("random").spec.model_dump()["encoder"]
    assert not {"source", "licence", "weights", "input_size", "pixels", "partial"} & {*without, *without["params"]}


def test_the_network_sees_what_it_was_trained_on(weights: Path) -> None:
    spec = plan(weights).runs[0].spec
    encoder = build_encoder(spec).eval()
    state = state_of(timm.create_model("test_resnet", num_classes=0), MINE)
    assert all(torch.equal(v, state[n]) for n, v in encoder.net.state_dict().items())
    seen = list[Tensor]()
    encoder.net.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    images = torch.full((2, 3, 16, 16), 51, dtype=torch.uint8)
    encoder(normalise(images))
    config = timm.models.get_pretrained_cfg("test_resnet")
    assert seen[0].shape == (2, 3, 160, 160)
    wanted = (0.2 - torch.tensor(config.mean)) / torch.tensor(config.std)
    torch.testing.assert_close(seen[0].mean((0, 2, 3)), wanted, rtol=1e-4, atol=1e-4)


def test_a_file_that_fairssl_exported_says_its_pixels(tmp_path: Path) -> None:
    path = tmp_path / "ours.safetensors"
    save_file(state_of(timm.create_model("test_resnet", num_classes=0), MINE), path, {"pixel_mean": "0.5"})
    spec = plan(path, "encoder.input_size=32").runs[0].spec
    assert spec.encoder.params["pixels"] == "half"
    images = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    encoder = build_encoder(spec).eval()
    torch.testing.assert_close(encoder(normalise(images)), encoder.net(normalise(images)))


def test_a_part_copies_the_weights_and_training_goes_on_from_them(weights: Path) -> None:
    spec = plan(weights, "encoder.input_size=32", method="byol").runs[0].spec
    trainer = small.trainer(spec)
    first = trainer.model.encoder.net.state_dict()
    copied = trainer.model.objective.target_encoder.net.state_dict()
    state = state_of(timm.create_model("test_resnet", num_classes=0), MINE)
    assert all(torch.equal(first[n], state[n]) and torch.equal(copied[n], state[n]) for n in state)


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ({"encoder": None}, "needs --encoder"),
        ({"encoder": "small_cnn"}, "encoder small_cnn is drawn at random only"),
        ({"sets": ("encoder.weights=00000000000000000000",)}, "name weights twice"),
    ],
)
def test_flags_that_do_not_go_together(flags: dict[str, Any], reason: str, weights: Path) -> None:
    with pytest.raises(UserError, match=reason):
        plan(weights, *flags.pop("sets", ()), **flags)


def test_where_weights_are_from_needs_weights() -> None:
    with pytest.raises(UserError, match="name their file too: --weights FILE"):
        small.run_of("random", sets=("encoder.licence=MIT",))


def test_weights_that_are_not_on_this_machine(weights: Path) -> None:
    spec = plan(weights).runs[0].spec
    os.remove(next(Path(os.environ["FAIRSSL_CACHE"]).glob("weights/*")))
    with pytest.raises(UserError, match="not on this machine; name their file: --weights FILE"):
        build_encoder(spec)
    assert build_encoder(spec, pretrained=False) is not None


def test_the_encoder_still_holds_its_contract() -> None:
    assert "weights" in kinds.encoders.get("timm").Config.model_fields


@pytest.mark.slow
def test_from_the_command_line(weights: Path, tmp_path: Path) -> None:
    def call(*more: str) -> subprocess.CompletedProcess[str]:
        command = [
            sys.executable,
            "-m",
            "fairssl",
            "bench",
            "--dataset",
            "synthfaces",
            "--method",
            "random",
            "--seeds",
            "1",
        ]
        command += ["--encoder", "test_resnet", "--weights", str(weights), "--image-size", "16", "--device", "cpu"]
        command += [flag for text in SETS for flag in ("--set", text)]
        return subprocess.run([*command, "--out", str(tmp_path / "runs"), *more], capture_output=True, text=True)

    done = call("--set", "encoder.source=a paper", "--set", "encoder.licence=CC BY-NC 4.0")
    assert done.returncode == 0, done.stderr
    assert "arrays from the file" in done.stderr
    table = (tmp_path / "runs" / "table.md").read_text()
    assert "(a paper, licence CC BY-NC 4.0); its input is 160 px, enlarged from 16 px." in table
    wrong = call("--encoder", "test_vit")
    assert wrong.returncode == 2 and "Traceback" not in wrong.stderr
    assert "of the encoder's" in wrong.stderr and len(wrong.stderr.strip().splitlines()) <= 2
