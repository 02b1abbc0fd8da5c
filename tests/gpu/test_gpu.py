"""What only a GPU can tell: captured and eager, packed and alone, streamed and resident steps agree; skipped without one.

pytest tests/gpu
"""

from __future__ import annotations

import ctypes
import importlib
import json
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from reference import ranks, small
from reference.checkout import PERF
from safetensors.torch import load_file

from fairssl.cli import run
from fairssl.data.augment import augment, augmentation, random_numbers
from fairssl.data.device import place
from fairssl.evaluate.embed import embed_splits
from fairssl.plan.request import Request
from fairssl.plan.resolve import resolve
from fairssl.spec.config import TrainConfig
from fairssl.spec.run import RunSpec
from fairssl.train.cudagraph import WARM_UP
from fairssl.train.interleave import interleave
from fairssl.train.step import changes_views
from fairssl.train.trainer import Stopped, Trainer, build_trainer

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
    pytest.mark.filterwarnings("default"),  # those of compilers and drivers are not ours
]

METHODS = [name for name in ranks.methods() if name not in ranks.SPECIAL or name == "erm randaugment"]
N_STEPS = 20


@pytest.fixture(autouse=True)
def without_atomics(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums in another order are no fault, but Adam makes full steps of noise in gradients near zero."""
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)


def gpu() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


def spec_of(name: str, *sets: str, seed: int = 0) -> RunSpec:
    method, own = ranks.methods()[name]
    spec = small.run_of(method, sets=(*own, "train.min_steps=21", *sets)).spec
    return RunSpec.model_validate({**spec.model_dump(), "seed": seed})


def trainer(spec: RunSpec, eager: bool = False, streamed: bool = False) -> Trainer:
    found = small.data(spec)
    images = torch.from_numpy(found.splits.train.images) if streamed else None
    return build_trainer(spec, found, gpu(), images, eager)


def losses(one: Trainer) -> list[float]:
    """The loss of each of the first steps, read back as no run would."""
    found, before = [], 0.0
    for _ in islice(one.advance(), N_STEPS):
        torch.cuda.synchronize()
        at_start = one.done % one.steps_per_epoch == 0  # the sums have just been read and cleared
        history = one.history
        now = history.rows[-1]["loss"] * one.steps_per_epoch if at_start else float(history.sums["loss"])
        found.append(now - before)
        before = 0.0 if at_start else now
    return found


def close(a: list[float], b: list[float]) -> None:
    assert len(a) == len(b) == N_STEPS
    scale = max(abs(v) for v in a)
    assert np.abs(np.array(a) - np.array(b)).max() <= 1e-3 * scale


@pytest.mark.parametrize("precision", ["bf16", "float32"])
@pytest.mark.parametrize("name", METHODS)
def test_captured_and_eager_losses_agree_over_20_steps(name: str, precision: str) -> None:
    spec = spec_of(name, f"train.precision={precision}", "train.schedule=cosine")
    eager, captured = trainer(spec, eager=True), trainer(spec)
    assert (eager.path, captured.path) == ("eager", "captured")
    close(losses(eager), losses(captured))
    assert captured.path == "captured"


@pytest.mark.parametrize("name", ["sofclr", "byol", "vae+mmd"])
def test_packed_and_single_losses_agree_over_20_steps(name: str) -> None:
    specs = [spec_of(name, seed=seed) for seed in range(4)]
    alone, packed = [trainer(spec) for spec in specs], [trainer(spec) for spec in specs]
    for one in alone:
        one.run()
    assert interleave(packed, [one.advance() for one in packed]) == [None] * 4
    for one, other in zip(alone, packed, strict=True):
        for row, same in zip(one.history.rows, other.history.rows, strict=True):
            assert row == pytest.approx(same, rel=1e-3, abs=1e-3)


def test_streamed_and_resident_losses_agree_over_20_steps() -> None:
    spec = spec_of("sofclr")
    resident, streamed = trainer(spec), trainer(spec, streamed=True)
    assert streamed.data.streamed and not resident.data.streamed
    close(losses(resident), losses(streamed))


def test_compiled_augmentation_is_the_eager_one() -> None:
    for config in (TrainConfig(), TrainConfig(blur=0.5), TrainConfig(recipe="randaugment")):
        gen = torch.Generator(gpu()).manual_seed(0)
        images = torch.randint(0, 256, (32, 3, 48, 48), dtype=torch.uint8, device=gpu(), generator=gen)
        u = random_numbers(32, config, gen)
        compiled = augmentation(32, config, compiled=True)
        difference = (compiled(images, u) - augment(images, 32, config, u)).abs()
        assert compiled.compiled
        if config.recipe == "randaugment":  # it rounds to whole levels: one bit moves a pixel by one or more
            assert difference.mean() < 1e-3 and (difference < 1e-2).float().mean() > 0.99
        else:
            assert difference.max() < 1e-3


@pytest.mark.parametrize("name", ["sofclr", "vae+mmd"])
def test_a_captured_run_cut_at_any_step_goes_on_as_if_it_had_not_been(name: str, tmp_path: Path) -> None:
    spec = spec_of(name)
    whole = trainer(spec)
    whole.run()
    for cut in (2, 5, 12):
        first = trainer(spec)
        with pytest.raises(Stopped):
            first.run(tmp_path / str(cut), stop=lambda t=first, c=cut: t.done >= c)
        again = trainer(spec)
        again.run(tmp_path / str(cut))
        assert again.resumed_at == cut
        for row, same in zip(whole.history.rows, again.history.rows, strict=True):
            assert row == pytest.approx(same, rel=1e-3, abs=1e-3)


def test_the_gpu_follows_the_cpu() -> None:
    """Augmentation draws other numbers there, so fixed views: one step's loss and gradients in float32."""
    spec = spec_of("sofclr", "train.precision=float32")
    here, there = small.trainer(spec), trainer(spec, eager=True)
    drawn = here.step.draw({name: stream.steps(0, 1)[0] for name, stream in here.streams.items()})
    moved = {
        name: replace(
            batch,
            views=[view.to(gpu()) for view in batch.views],
            index=batch.index.to(gpu()),
            group=None if batch.group is None else batch.group.to(gpu()),
        )
        for name, batch in drawn.items()
    }
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        one, other = here.step.differentiate(drawn), there.step.differentiate(moved)
    finally:
        torch.backends.cudnn.allow_tf32 = before
    assert float(one[0].detach()) == pytest.approx(float(other[0].detach()), rel=1e-4)
    for a, b in zip(one[3], other[3], strict=True):
        assert (a is None) == (b is None)
        if a is not None and b is not None:
            assert torch.allclose(a, b.cpu(), rtol=1e-2, atol=1e-4)


def test_features_are_those_of_the_cpu_and_every_batch_has_one_size() -> None:
    """A last batch is filled up, so that nothing is planned for its size."""
    one = trainer(spec_of("simclr"), eager=True)
    splits, sizes = small.splits(one.spec), []
    one.model.encoder.register_forward_pre_hook(lambda module, args: sizes.append(len(args[0])))
    found = embed_splits(one.model, splits)
    assert set(sizes) == {256} and [len(f) for f in found.values()] == [
        *map(len, (splits.train, splits.val, splits.test))
    ]
    here = embed_splits(small.trainer(one.spec).model, splits)
    for name, f in here.items():
        assert torch.allclose(f, found[name].cpu(), rtol=1e-3, atol=1e-4)


def test_images_that_leave_no_room_stay_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    images = np.zeros((8, 3, 16, 16), dtype=np.uint8)
    assert place(images, gpu()).device == gpu()
    monkeypatch.setattr("fairssl.data.device.free_memory", lambda device: 1000)
    assert place(images, gpu()).device.type == "cpu"


def test_bench_packs_captures_and_resumes_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "--method", "simclr,sofclr", "--seeds", "2", "--epochs", "3", "--image-size", "16", "--json"]
    words += ["--batch-size", "16", "--annotated", "0.3", "--device", "cuda:0", "--out", str(tmp_path)]
    words += [word for text in (*small.SETS, "train.precision=bf16") for word in ("--set", text)]
    assert run(words) == 0
    first = json.loads(capfd.readouterr().out)
    records = [json.loads(path.read_text()) for path in tmp_path.glob("results/*/record.json")]
    assert [record["timings"]["packed"] for record in records] == [2] * 4
    assert [record["facts"]["path"] for record in records] == ["captured"] * 4
    assert run(words) == 0
    assert json.loads(capfd.readouterr().out) == first


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two GPUs here")
def test_two_gpus_train_one_run_like_one(tmp_path: Path) -> None:
    words = ["bench", "--method", "sofclr", "--seeds", "1", "--epochs", "2", "--image-size", "16", "--batch-size", "16"]
    words += ["--annotated", "0.3", *(word for text in small.SETS for word in ("--set", text))]
    for n in ("1", "2"):
        assert run([*words, "--devices", n, "--out", str(tmp_path / n)]) == 0
    (one,), (two,) = ([*(tmp_path / n).glob("pretrain/*/encoder.safetensors")] for n in ("1", "2"))
    a, b = load_file(one), load_file(two)
    assert a.keys() == b.keys()
    assert all(torch.allclose(a[k].float(), b[k].float(), rtol=0.1, atol=0.02) for k in a)


# Captured nodes beyond those of the model alone (encoder, projector, losses, both backward passes and optimisers on views
# that are there already). Gather, augmentation and sums take some; counting batches together saves more. 0 where not named.
BEYOND = {"erm": 16, "erm randaugment": 16}  # a schedule, which the model alone does without


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[torch.cuda.CUDAGraph]:
    """Every graph that is captured, kept as it was captured."""
    made: list[torch.cuda.CUDAGraph] = []
    plain = torch.cuda.CUDAGraph

    def kept() -> torch.cuda.CUDAGraph:
        made.append(plain(keep_graph=True))
        return made[-1]

    monkeypatch.setattr(torch.cuda, "CUDAGraph", kept)
    return made


def n_nodes(graph: torch.cuda.CUDAGraph) -> int:
    n = ctypes.c_size_t()
    call = ctypes.CDLL(None).cudaGraphGetNodes
    call.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_size_t)]
    assert call(graph.raw_cuda_graph(), None, ctypes.byref(n)) == 0
    return n.value


@pytest.mark.parametrize("name", METHODS)
def test_a_step_launches_little_more_than_the_model_alone(
    name: str, graphs: list[torch.cuda.CUDAGraph], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(PERF))
    perf = importlib.import_module("step")
    method, sets = ranks.methods()[name]
    request = Request((method,), ("synthfaces",), seeds=1, encoder="resnet18", image_size=64, batch_size=128)
    spec = resolve(replace(request, epochs=9, assignments=("train.precision=bf16", *sets))).runs[0].spec
    data = perf.random_split(1000, 64, 128, gpu())
    one = Trainer(spec, data, 2)
    if len(one.step.sets) > 1 or any(changes_views(part) for part in one.model.parts.values()):
        pytest.skip("its views are not those that the model alone is given")
    for _ in islice(one.advance(), WARM_UP + 1):
        pass
    assert one.step.sets[0].augment.compiled
    product = n_nodes(graphs[0])
    perf.ceiling(spec, data)
    alone = n_nodes(graphs[1])
    print(f"{name}: {product} nodes, the model alone {alone}")  # for `pytest -rA`
    assert product - alone <= BEYOND.get(name, 0)
