"""One step however it is taken: captured or eager, packed or alone, with images on the device or streamed to it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from reference import ranks, small
from torch.overrides import TorchFunctionMode

from fairssl.data.augment import Augmentation, augment, augmentation, random_numbers
from fairssl.data.device import DeviceSplit, fits, place
from fairssl.data.streaming import Prefetch
from fairssl.execute.options import Settings
from fairssl.execute.reporting import SilentReporter
from fairssl.execute.signals import GracefulStop
from fairssl.execute.worker import Worker
from fairssl.spec.config import TrainConfig
from fairssl.store.runs import RunStore
from fairssl.testing.backward import Backward
from fairssl.testing.fake_gpu import assert_capturable
from fairssl.testing.replay import RecordedStep, ReplayedStep, assert_replayed_steps_agree
from fairssl.testing.toy import index_at
from fairssl.train import cudagraph
from fairssl.train.cudagraph import WARM_UP, NotCaptured
from fairssl.train.history import Diverged
from fairssl.train.interleave import interleave
from fairssl.train.trainer import Stopped, Trainer
from fairssl.types import Terms

NOISY = "vae+mmd"  # draws from the global generator


def bits(trainer: Trainer) -> dict[str, bytes]:
    return {name: value.numpy().tobytes() for name, value in trainer.state()[0].items()}


def variant(trainer: Trainer, **changes: Any) -> Trainer:
    """A fresh trainer of the same spec and data, some of them changed."""
    n_groups = len(small.splits(trainer.spec).groups)
    return Trainer(trainer.spec, replace(trainer.data, **changes), n_groups)


SETTINGS = {"float32": (), "bf16": ("train.precision=bf16", "train.schedule=cosine", "train.clip_norm=1")}


def trainer_of(name: str, settings: str) -> Trainer:
    method, sets = ranks.methods()[name]
    return small.trainer(small.run_of(method, sets=(*sets, *SETTINGS[settings], "train.min_steps=6")).spec)


@pytest.mark.parametrize("settings", ["bf16", pytest.param("float32", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ranks.methods())
def test_replayed_steps_have_the_bits_of_eager_ones(name: str, settings: str) -> None:
    """Augmentation, both backward passes, both optimisers, the end of the step and the sums, with new positions and numbers."""
    eager = trainer_of(name, settings)
    eager.run()
    assert_replayed_steps_agree(eager, trainer_of(name, settings))


@pytest.mark.parametrize("settings", ["bf16", pytest.param("float32", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ranks.methods())
def test_a_gpu_can_capture_the_step_of_every_method(name: str, settings: str) -> None:
    trainer = trainer_of(name, settings)
    trainer.summed_step(index_at(trainer))
    assert_capturable(trainer, index_at(trainer, 1))


# Operators that a step calls outside the encoder's forward and backward pass: each is a launch on a GPU before anything is
# compiled, and some microseconds of a CPU. An upper bound for each method; whoever adds some raises it knowingly.
OPERATORS = {
    "barlow_twins": 436,
    "byol": 490,
    "ccl": 382,
    "ce": 314,
    "chai_wang": 867,
    "dino": 1263,
    "dual_fair": 696,
    "eps_sup_infonce": 419,
    "erm": 629,
    "fair_cl": 450,
    "fscl": 421,
    "group_dro": 352,
    "lff": 758,
    "moco_v3": 457,
    "moyer": 507,
    "simclr": 376,
    "simsiam": 464,
    "sogclr": 449,
    "vae": 435,
    "vicreg": 477,
    "simclr+adversary": 773,
    "simclr+ccl": 759,
    "simclr+classifier": 686,
    "ce+dpr": 371,
    "ce+eod": 422,
    "ce+eql": 373,
    "simclr+fair_kl": 965,
    "simclr+grl": 803,
    "ce+group_dro": 367,
    "simclr+hsic": 753,
    "simclr+max_entropy": 784,
    "simclr+mmd": 769,
    "simclr+reconstruction": 451,
    "sofclr": 843,
    "byol+adversary": 884,
    "vae+mmd": 836,
    "vicreg+max_entropy": 881,
    "sogclr+ccl": 832,
    "sofclr raw": 813,
    "sofclr projection": 873,
    "sofclr joined": 842,
    "erm randaugment": 629,
}


@pytest.mark.parametrize("name", ranks.methods())
def test_a_step_calls_no_more_operators_than_it_did(name: str) -> None:
    trainer = small.trainer(small.run_of(ranks.methods()[name][0], sets=ranks.methods()[name][1]).spec)
    trainer.summed_step(index_at(trainer))  # what is made once
    whole = RecordedStep(trainer.summed_step, index_at(trainer)).operations
    drawn = trainer.step.draw(index_at(trainer))

    def encoder(index: Any, images: Any) -> None:
        with trainer.step.batch_counts.together():
            features = [h.sum() for sets in trainer.step.encoded(drawn).values() for _, h in sets]
            torch.autograd.grad(torch.stack(features).sum(), list(trainer.model.encoder.parameters()))

    n = len(whole) - len(RecordedStep(encoder, {}).operations)
    assert 0 < n <= OPERATORS.get(name, 1000)


@pytest.mark.parametrize("name", ["sofclr", "simclr+grl", "byol", "vae+mmd"])
def test_gradients_without_autograds_engine_are_its_own(name: str) -> None:
    """What stands in for it on a GPU that is not there: hooks, broadcasts and networks used twice included."""

    class Instead(TorchFunctionMode):
        def __init__(self) -> None:
            super().__init__()
            self.backward = Backward()

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            mine = {torch.autograd.grad: self.backward.grad, torch.Tensor.register_hook: self.backward.hooked}
            return mine.get(func, func)(*args, **(kwargs or {}))

    found = []
    for mode in (nullcontext(), Instead()):
        trainer = trainer_of(name, "float32")
        drawn = trainer.step.draw(index_at(trainer))
        with mode:
            _, _, _, gradients, dual_gradients = trainer.step.differentiate(drawn)
        found.append([*gradients, *dual_gradients])
    for expected, ours in zip(*found, strict=True):
        assert (expected is None) == (ours is None)
        assert expected is None or torch.equal(expected, ours)


def test_backward_gives_the_gradients_of_inputs_in_the_middle_and_of_a_gradient() -> None:
    x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    y = x * x
    backward = Backward()
    first, middle = backward.grad(y.sum() * 2, (x, y), create_graph=True)
    assert first is not None and torch.equal(first, 4 * x) and middle is not None and torch.equal(middle, 2 + 0 * x)
    (second,) = backward.grad(first.square().sum(), x)  # of 16 x^2
    assert second is not None and torch.equal(second, 32 * x)
    with pytest.raises(RuntimeError, match="was not used"):
        backward.grad(y.sum(), torch.zeros(1, requires_grad=True))


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("method", ["sofclr", NOISY])
def test_a_whole_run_by_replays_has_the_bits_of_an_eager_one(method: str, streamed: bool) -> None:
    """The places that a graph reads, streamed images among them, and the ends of epochs."""
    eager = small.trainer(small.run_of(method, epochs=3).spec)
    replayed = variant(eager, streamed=streamed)
    replayed.graphed = ReplayedStep(replayed.summed_step, replayed.step.gen, replayed.device)
    eager.run()
    replayed.run()
    assert bits(eager) == bits(replayed) and eager.n_steps > WARM_UP + 1
    assert eager.history.rows == replayed.history.rows


def test_on_a_cpu_steps_are_eager() -> None:
    trainer = small.trainer(small.run_of("sofclr").spec)
    assert trainer.graphed is None and trainer.facts()["path"] == "eager"


@pytest.mark.parametrize("sets", [{}, {"blur": 0.5}, {"recipe": "randaugment"}])
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own compiler
def test_augmentation_compiles_without_a_break_and_to_the_same_views(sets: dict[str, Any]) -> None:
    config = TrainConfig(**sets)
    images = torch.randint(0, 256, (6, 3, 24, 24), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    u = random_numbers(6, config, torch.Generator().manual_seed(1))
    compiled = Augmentation(16, config, compiled=True)
    assert torch.allclose(compiled(images, u), augment(images, 16, config, u), atol=2e-5)
    assert compiled.compiled


def test_the_numbers_of_a_batch_are_drawn_at_once_and_are_those_of_a_draw_for_each() -> None:
    config = TrainConfig(blur=0.5)
    u = random_numbers(5, config, torch.Generator().manual_seed(3))
    gen = torch.Generator().manual_seed(3)
    for name, shape in {"crop": (4, 5, 10), "flip": (5,), "jitter": (6, 5), "blur": (2, 5)}.items():
        expected = torch.rand(*shape, generator=gen)
        assert torch.equal(u[name], expected.transpose(1, 2) if name == "crop" else expected)


def test_augmentation_makes_as_many_views_of_each_image_as_there_are_numbers_for() -> None:
    config = TrainConfig()
    images = torch.randint(0, 256, (3, 3, 24, 24), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    u = random_numbers(6, config, torch.Generator().manual_seed(1))
    views = augment(images, 16, config, u)
    assert torch.equal(views, augment(images.repeat(2, 1, 1, 1), 16, config, u))
    assert views.is_contiguous(memory_format=torch.channels_last)


def test_augmentation_whose_compiler_fails_says_so_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def broken(function: Any, **how: Any) -> Any:
        def call(*args: Any) -> Any:
            raise NotImplementedError("no compiler here\nand more")

        return call

    monkeypatch.setattr(torch, "compile", broken)
    config = TrainConfig()
    images = torch.randint(0, 256, (6, 3, 24, 24), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    u = random_numbers(6, config, torch.Generator().manual_seed(1))
    found = Augmentation(16, config, compiled=True)
    for _ in range(2):
        assert torch.equal(found(images, u), augment(images, 16, config, u))
    assert not found.compiled
    line = "augmentation is not compiled, which is slower: no compiler here; FAIRSSL_EAGER=1 leaves the compiler out"
    assert capfd.readouterr().err == f"fairssl: warning: {line}\n"


class Refused:
    """Stands in for a CUDA graph whose capture a part breaks: its own error, then that of the capture's end."""

    def register_generator_state(self, gen: torch.Generator) -> None:
        pass


@contextmanager
def refusing(graph: Any, **how: Any) -> Iterator[None]:
    try:
        yield
    finally:
        raise RuntimeError("capture invalidated")


def test_a_step_that_cannot_be_captured_says_what_its_author_can_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Refused)
    monkeypatch.setattr(torch.cuda, "graph", refusing)

    def step(index: Any, images: Any) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    line = r'raise RuntimeError\("operation not permitted when stream is capturing"\)'
    with pytest.raises(NotCaptured, match=rf"^operation not permitted .* \(test_step.py:\d+: {line}\)$"):
        cudagraph.CapturedStep(step, {}, None, torch.Generator(), None, False)  # type: ignore[arg-type]

    def full(index: Any, images: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(RuntimeError) as found:
        cudagraph.CapturedStep(full, {}, None, torch.Generator(), None, False)  # type: ignore[arg-type]
    assert not isinstance(found.value, NotCaptured)


def test_runs_that_agree_in_size_and_recipe_share_one_augmentation() -> None:
    one = augmentation(32, TrainConfig(epochs=1, lr=0.1), compiled=False)
    assert augmentation(32, TrainConfig(epochs=9, batch_size=4), compiled=False) is one
    assert augmentation(16, TrainConfig(), compiled=False) is not one
    assert augmentation(32, TrainConfig(hue=0.2), compiled=False) is not one


def test_a_pack_has_the_bits_of_its_runs_alone() -> None:
    """Also where parts draw from the global generator, which the runs of a pack share."""
    specs = [small.run_of(NOISY).spec.model_copy(update={"seed": seed}) for seed in range(3)]
    specs.append(small.run_of("sofclr").spec)
    alone = []
    for spec in specs:
        trainer = small.trainer(spec)
        trainer.run()
        alone.append(trainer)
    packed = [small.trainer(spec) for spec in specs]
    assert interleave(packed, [trainer.advance() for trainer in packed]) == [None] * 4
    for one, other in zip(alone, packed, strict=True):
        assert bits(one) | {"global_generator.0": b""} == bits(other) | {"global_generator.0": b""}
        assert one.history.rows == other.history.rows


def test_a_run_that_diverges_or_fails_stops_no_other_of_its_pack() -> None:
    trainers = [small.trainer(small.run_of("simclr").spec.model_copy(update={"seed": seed})) for seed in range(3)]
    infinite = trainers[0].model.objective.forward

    def diverging(batches: Any) -> Any:
        return Terms(primal={name: value / 0 for name, value in infinite(batches).primal.items()})

    trainers[0].model.objective.forward = diverging

    def broken(batches: Any) -> Any:
        raise RuntimeError("a bug")

    trainers[1].model.objective.forward = broken
    ended = interleave(trainers, [trainer.advance() for trainer in trainers])
    assert isinstance(ended[0], Diverged) and isinstance(ended[1], RuntimeError) and ended[2] is None
    assert trainers[2].done == trainers[2].n_steps


def test_a_stopped_pack_goes_on_where_each_of_its_runs_was(tmp_path: Path) -> None:
    specs = [small.run_of(NOISY).spec.model_copy(update={"seed": seed}) for seed in range(2)]
    whole = [small.trainer(spec) for spec in specs]
    interleave(whole, [trainer.advance() for trainer in whole])
    cut, works = [small.trainer(spec) for spec in specs], [tmp_path / "0", tmp_path / "1"]
    stop = lambda: cut[0].done >= 4  # noqa: E731
    ended = interleave(cut, [t.advance(work, stop=stop) for t, work in zip(cut, works, strict=True)])
    assert all(isinstance(error, Stopped) for error in ended)
    again = [small.trainer(spec) for spec in specs]
    interleave(again, [t.advance(work) for t, work in zip(again, works, strict=True)])
    for one, other in zip(whole, again, strict=True):
        assert other.resumed_at == 4 and bits(one) == bits(other)


@pytest.mark.parametrize("method", ["simclr", "sofclr", "ce"])
def test_streamed_images_give_the_bits_of_resident_ones(method: str, tmp_path: Path) -> None:
    resident = small.trainer(small.run_of(method).spec)
    np.save(tmp_path / "images.npy", resident.data.images.numpy())
    mapped = place(np.load(tmp_path / "images.npy", mmap_mode="c"), torch.device("cpu"))
    streamed = variant(resident, images=mapped, streamed=True)
    resident.run()
    streamed.run()
    assert bits(resident) == bits(streamed)


def test_a_streamed_run_cut_in_an_epoch_ends_with_the_same_bits(tmp_path: Path) -> None:
    whole = small.trainer(small.run_of("sofclr").spec)
    whole.run()
    cut = variant(whole, streamed=True)
    with pytest.raises(Stopped):
        cut.run(tmp_path, stop=lambda: cut.done >= 4)
    again = variant(whole, streamed=True)
    again.run(tmp_path)
    assert again.resumed_at == 4 and bits(again) == bits(whole)


def test_prefetched_images_come_in_order_ahead_of_time_and_in_few_places() -> None:
    images = torch.arange(40, dtype=torch.uint8).view(40, 1, 1, 1).expand(40, 3, 2, 2).contiguous()
    fetch = Prefetch(images, torch.device("cpu"), ahead=2)
    fetched: list[str] = []
    gather = fetch.gathered

    def spy(name: str, rows: torch.Tensor, at: int) -> torch.Tensor:
        fetched.append(threading.current_thread().name)
        return gather(name, rows, at)

    fetch.gathered = spy  # type: ignore[method-assign]
    rows = [{"all": torch.tensor([k, 2 * k]), "annotated": torch.tensor([39 - k])} for k in range(10)]
    for k, found in enumerate(fetch(rows)):
        assert found["all"][:, 0, 0, 0].tolist() == [k, 2 * k]
        assert found["annotated"][:, 0, 0, 0].tolist() == [39 - k]
    assert len(fetched) == 20 and all(name.startswith("fairssl-images") for name in fetched)
    assert len(fetch.slots) == 3 * 2  # two ahead and the one in use, of two streams


def test_a_prefetch_given_up_leaves_no_thread_behind() -> None:
    before = threading.active_count()
    steps = Prefetch(torch.zeros(4, 3, 2, 2, dtype=torch.uint8), torch.device("cpu"))([{"all": torch.tensor([0])}] * 5)
    next(steps)
    steps.close()
    assert threading.active_count() == before


def test_images_stay_on_the_host_unless_they_leave_half_of_the_device_to_training() -> None:
    gigabyte = 10**9
    assert fits(8 * gigabyte, 24 * gigabyte)  # CelebA at 128 px
    assert not fits(24 * gigabyte, 24 * gigabyte)  # at 224 px
    assert not fits(24 * gigabyte, 20 * gigabyte)


def test_images_that_do_not_fit_are_streamed_and_the_log_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes: list[str] = []
    log = SilentReporter()
    log.note = notes.append  # type: ignore[method-assign]
    cell = small.run_of("simclr")
    worker = Worker(RunStore(tmp_path), Settings({}), log, GracefulStop())
    worker.device = torch.device("cuda:0")  # none is touched
    for module in ("data.device", "execute.worker"):
        monkeypatch.setattr(f"fairssl.{module}.free_memory", lambda device: 50_000)
    found = small.splits(cell.spec)
    assert found.train.images.nbytes > 25_000
    assert worker.images(found, "synthfaces").device.type == "cpu"
    assert worker.images(found, "synthfaces") is worker.images(found, "synthfaces")
    (note,) = notes
    assert "synthfaces: 0.0 GB of images are streamed from the host; cuda:0 has 0.0 GB free" in note


@pytest.mark.slow
def test_celeba_at_224_px_is_streamed_in_little_memory(tmp_path: Path) -> None:
    """Its 24.5 GB as a file with holes: what a run adds to memory beyond the page cache are a few batches."""

    def anonymous() -> int:
        (line,) = (row for row in Path("/proc/self/status").read_text().splitlines() if row.startswith("RssAnon"))
        return int(line.split()[1]) * 1024

    shape = (162_770, 3, 224, 224)
    with (tmp_path / "images.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
        file.truncate(file.tell() + int(np.prod(shape)))
    before = anonymous()
    images = place(np.load(tmp_path / "images.npy", mmap_mode="c"), torch.device("cpu"))
    gen = torch.Generator().manual_seed(0)
    rows = [{"all": torch.randint(shape[0], (128,), generator=gen)} for _ in range(12)]
    assert sum(int(found["all"].sum()) for found in Prefetch(images, torch.device("cpu"))(rows)) == 0
    assert anonymous() - before < 500e6


def test_a_memory_mapped_pack_is_not_read_into_memory(tmp_path: Path) -> None:
    np.save(tmp_path / "images.npy", np.zeros((4, 3, 8, 8), dtype=np.uint8))
    mapped = np.load(tmp_path / "images.npy", mmap_mode="c")
    assert place(mapped, torch.device("cpu")).data_ptr() == mapped.ctypes.data
    data = DeviceSplit(torch.zeros(2, 3, 8, 8), torch.zeros(2), torch.zeros(2), torch.arange(2), streamed=True)
    assert data.device.type == "cpu"


def test_of_several_processes_none_goes_on_with_a_pack_after_an_error_that_others_may_not_have_had(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its next run's messages would meet those of the run that the others are still at."""
    trainers = [small.trainer(small.run_of("simclr").spec.model_copy(update={"seed": seed})) for seed in range(3)]
    runs = [trainer.advance() for trainer in trainers]
    interleave(trainers[:1], runs[:1])
    monkeypatch.setattr("fairssl.distributed.size", lambda: 2)

    def fails() -> Any:
        raise MemoryError("here alone")
        yield

    ended = interleave(trainers[1:], [fails(), runs[2]])
    assert all(isinstance(error, MemoryError) for error in ended) and trainers[2].done == 0
