"""The loop against Algorithm 1 written out, exact resume, divergence, and what each part is shown."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from reference import small
from reference.plugin_package import PREPARED, known, write_package
from torch import nn

from fairssl import kinds
from fairssl.nn import mend_narrow_convolutions
from fairssl.parts import Part
from fairssl.train.batch_counts import BatchCounts
from fairssl.train.history import Diverged, History
from fairssl.train.trainer import Stopped, Trainer
from fairssl.types import Batch, Chunks, joined

METHODS = ["simclr", "sogclr", "byol", "vicreg", "simclr+ccl", "sofclr"]


def _bits(trainer: Trainer) -> dict[str, bytes]:
    return {name: value.numpy().tobytes() for name, value in trainer.state()[0].items()}


def _rows(trainer: Trainer, step: int = 0) -> dict[str, torch.Tensor]:
    return {name: stream.steps(step, 1)[0] for name, stream in trainer.streams.items()}


def test_a_step_is_algorithm_1_of_the_paper() -> None:
    """SoFCLR's first two steps, each gradient written out: m of eq. (m) for the encoder, v of eq. (v) for the
    discriminator, u by first visit and then by the moving average, both at the old parameters."""
    alpha, tau, gamma, eps0 = 0.7, 0.3, 0.9, 1e-8
    spec = small.run_of("sofclr", sets=(f"adversary.alpha={alpha}", "sogclr.temperature=0.3")).spec
    ours = small.trainer(spec)
    u = torch.zeros(len(ours.data.target), dtype=torch.float64)
    seen = torch.zeros(len(u), dtype=torch.bool)
    for step in range(2):
        rows = _rows(ours, step)
        state = ours.step.gen.get_state()
        batches = ours.step.draw(rows)
        ours.step.gen.set_state(state)  # the step below draws the same views again

        encoder, projector = ours.model.encoder, ours.model.objective.project
        discriminator = ours.model.parts["adversary"].discriminator
        f = [encoder(x) for x in torch.cat(batches["all"].views).contiguous(memory_format=torch.channels_last)[None]]
        za, zb = F.normalize(projector(f[0]), dim=1).double().chunk(2)
        n = len(za)
        loss = torch.zeros((), dtype=torch.float64)
        for i in range(n):
            negatives = [z[j] for z in (za, zb) for j in range(n) if j != i]
            g_a = torch.stack([torch.exp(za[i] @ z / tau) for z in negatives]).mean()
            g_b = torch.stack([torch.exp(zb[i] @ z / tau) for z in negatives]).mean()
            at = int(rows["all"][i])
            estimate = ((g_a + g_b) / 2).detach()
            u[at] = (1 - gamma) * u[at] + gamma * estimate if seen[at] else estimate
            seen[at] = True
            loss = loss + (-(za[i] @ zb[i]) + tau * (g_a + g_b) / (2 * (eps0 + u[at]))) / n
        fa = torch.cat([encoder(x) for x in torch.cat(batches["annotated"].views)[None]])
        log_d = discriminator(F.normalize(fa, dim=1)).log_softmax(1)
        group = batches["annotated"].group.repeat(2)  # type: ignore[union-attr]
        log_likelihood = log_d[torch.arange(len(group)), group].mean()
        m = torch.autograd.grad(loss + alpha * log_likelihood, list(encoder.parameters()), retain_graph=True)
        v = torch.autograd.grad(log_likelihood, list(discriminator.parameters()))

        expected_loss = float((loss + alpha * log_likelihood).detach())
        terms = ours.step(rows)  # the gradients it used are left in .grad
        for parameter, expected in zip(encoder.parameters(), m, strict=True):
            assert torch.allclose(parameter.grad, expected.float(), rtol=2e-4, atol=2e-6)
        for parameter, expected in zip(discriminator.parameters(), v, strict=True):
            assert torch.allclose(parameter.grad, -expected, rtol=2e-4, atol=2e-6)
        assert math.isclose(float(terms["loss"]), expected_loss, rel_tol=1e-5)
        assert torch.allclose(ours.model.objective.u.double(), u, rtol=1e-5, atol=1e-6)


def test_weight_zero_is_sogclr_bit_for_bit() -> None:
    a = small.trainer(small.run_of("sofclr", sets=("adversary.weight=0",)).spec)
    b = small.trainer(small.run_of("sogclr").spec)
    a.run()
    b.run()
    assert _bits(a) == _bits(b)


def test_a_head_moves_neither_the_encoders_first_weights_nor_the_order_nor_the_augmentation() -> None:
    plain, fair = small.trainer(small.run_of("sogclr").spec), small.trainer(small.run_of("sofclr").spec)
    for a, b in zip(plain.model.encoder.parameters(), fair.model.encoder.parameters(), strict=True):
        assert torch.equal(a, b)
    assert torch.equal(_rows(plain)["all"], _rows(fair)["all"])
    assert torch.equal(plain.step.draw(_rows(plain))["all"].views[0], fair.step.draw(_rows(fair))["all"].views[0])


def test_streams_do_not_share_batch_statistics_unless_joined() -> None:
    apart = small.trainer(small.run_of("sofclr").spec)
    joined = small.trainer(small.run_of("sofclr", sets=("train.join_streams=true",)).spec)
    batches = apart.step.draw(_rows(apart))
    alone = apart.step.encode({"all": batches["all"]})["all"].f[0]
    assert torch.equal(apart.step.encode(batches)["all"].f[0], alone)
    assert not torch.allclose(joined.step.encode(batches)["all"].f[0], alone, atol=1e-4)


def test_all_parts_of_a_step_share_one_projection() -> None:
    trainer = small.trainer(small.run_of("simclr+ccl").spec)
    calls: list[int] = []
    project = trainer.model.objective.project
    trainer.model.objective.project = lambda f: (calls.append(len(f)), project(f))[1]
    trainer.step(_rows(trainer))
    assert len(calls) == 2  # one per stream


def test_labels_that_a_part_did_not_declare_are_withheld() -> None:
    trainer = small.trainer(small.run_of("sofclr").spec)
    shown: dict[tuple[str, str], Batch] = {}

    def spy(name: str, part: Part) -> None:
        forward = part.forward

        def wrapped(batches: Any) -> Any:
            shown.update({(name, stream): batch for stream, batch in batches.items()})
            return forward(batches)

        part.forward = wrapped  # type: ignore[method-assign]

    for name, part in trainer.model.parts.items():
        spy(name, part)
    trainer.step(_rows(trainer))
    assert set(shown) == {("sogclr", "all"), ("adversary", "annotated")}
    assert shown["sogclr", "all"].group is None and shown["sogclr", "all"].target is None
    assert shown["adversary", "annotated"].target is None
    assert (shown["adversary", "annotated"].group >= 0).all()  # type: ignore[operator]


def test_labels_that_no_part_of_a_stream_declares_are_not_drawn() -> None:
    trainer = small.trainer(small.run_of("sofclr").spec)
    drawn = trainer.step.draw(_rows(trainer))
    assert drawn["all"].target is None and drawn["all"].group is None and drawn["annotated"].target is None
    assert torch.equal(drawn["annotated"].group, trainer.data.group[drawn["annotated"].index])  # type: ignore[arg-type]


def test_no_group_outside_the_annotated_subset_reaches_the_device() -> None:
    trainer = small.trainer(small.run_of("sofclr").spec)
    hidden = torch.ones(len(trainer.data.group), dtype=torch.bool)
    hidden[trainer.data.annotated] = False
    assert hidden.any() and (trainer.data.group[hidden] == -1).all()


def test_an_infinite_discriminator_gradient_neither_stops_nor_poisons_the_encoder() -> None:
    trainer = small.trainer(small.run_of("sofclr").spec)
    weight = next(iter(trainer.model.parts["adversary"].dual_parameters()))
    trainer.step(_rows(trainer))
    dual = trainer.step.optimizers["dual"].state
    before = {name: value.clone() for name, value in {"weight": weight.detach(), **dual[weight]}.items()}
    encoder_before = next(trainer.model.encoder.parameters()).detach().clone()
    hook = weight.register_hook(lambda g: torch.full_like(g, math.inf))
    terms = trainer.step(_rows(trainer, 1))
    hook.remove()
    assert float(terms["dual_skipped"]) == 1
    for name, value in {"weight": weight.detach(), **dual[weight]}.items():  # the optimiser's own state too
        assert torch.equal(value, before[name]), name
    assert not torch.equal(next(trainer.model.encoder.parameters()), encoder_before)
    terms = trainer.step(_rows(trainer, 2))
    assert float(terms["dual_skipped"]) == 0 and math.isfinite(float(terms["loss"]))
    assert not torch.equal(weight, before["weight"])


def test_a_skipped_step_of_plain_sgd_moves_nothing_either() -> None:
    sets = ("train.dual_optimizer=sgd", "train.weight_decay=0.1")
    trainer = small.trainer(small.run_of("sofclr", sets=sets).spec)
    weight = next(iter(trainer.model.parts["adversary"].dual_parameters()))
    before = weight.detach().clone()
    hook = weight.register_hook(lambda g: torch.full_like(g, math.nan))
    assert float(trainer.step(_rows(trainer))["dual_skipped"]) == 1
    hook.remove()
    assert torch.equal(weight, before)
    trainer.step(_rows(trainer, 1))
    expected = before - 1e-3 * (weight.grad + 0.1 * before)  # type: ignore[operator]
    assert torch.allclose(weight, expected, atol=1e-7)


def test_the_cosine_schedule_falls_from_the_full_rate_to_almost_nothing() -> None:
    trainer = small.trainer(small.run_of("simclr", epochs=4, sets=("train.schedule=cosine",)).spec)
    trainer.run()
    rates = [row["lr"] for row in trainer.history.rows]  # of the last step of each epoch
    n, per = trainer.n_steps, trainer.steps_per_epoch
    assert rates == pytest.approx([1e-3 * 0.5 * (1 + math.cos(math.pi * (per * (e + 1) - 1) / n)) for e in range(4)])


def test_min_steps_lengthens_a_short_run_in_whole_epochs() -> None:
    trainer = small.trainer(small.run_of("simclr", epochs=1, sets=("train.min_steps=7",)).spec)
    assert trainer.steps_per_epoch == 3 and trainer.n_steps == 9


def test_clipping_bounds_the_primal_gradient() -> None:
    trainer = small.trainer(small.run_of("simclr", sets=("train.clip_norm=0.01",)).spec)
    trainer.step(_rows(trainer))
    norm = torch.stack([p.grad.norm() for p in trainer.step.primal if p.grad is not None]).norm()
    assert float(norm) == pytest.approx(0.01, rel=1e-3)


def test_the_optimiser_steps_as_plain_adam_whatever_the_memory_layout() -> None:
    """Fused Adam reads parameters and gradients as flat memory; a transposed gradient would be applied scrambled."""
    trainer = small.trainer(small.run_of("simclr", sets=("train.weight_decay=0",)).spec)
    before = [p.detach().clone() for p in trainer.step.primal]
    trainer.step(_rows(trainer))
    for old, new in zip(before, trainer.step.primal, strict=True):
        if new.grad is not None:
            first_step = -1e-3 * new.grad / (new.grad.abs() + 1e-8)  # Adam's first step after bias correction
            assert torch.allclose(new.detach() - old, first_step, atol=1e-6)


def test_a_tensor_in_chunks_is_put_together_without_a_copy_unless_one_was_replaced() -> None:
    whole = torch.arange(12.0).view(6, 2)
    chunks = Chunks(whole, 3)
    assert joined(chunks) is whole
    assert torch.equal(joined(list(chunks)), whole) and joined(list(chunks)) is not whole
    chunks[1] = torch.zeros(2, 2)
    assert torch.equal(joined(chunks)[2:4], torch.zeros(2, 2)) and torch.equal(joined(chunks)[4:], whole[4:])
    assert len(joined(chunks[:2])) == 4


def test_batch_norms_count_every_batch_once_for_each_use() -> None:
    trainer = small.trainer(small.run_of("sofclr").spec)
    for step in range(3):
        trainer.step(_rows(trainer, step))
    counts = {n: int(b) for n, b in trainer.model.tensors().items() if n.endswith("num_batches_tracked")}
    encoder = {n: count for n, count in counts.items() if n.startswith("encoder.")}
    assert len(encoder) == 4 and set(encoder.values()) == {6}  # both streams
    assert set(counts.values()) - {6} == {3}  # the projector sees one
    layer = next(m for m in trainer.model.encoder.modules() if isinstance(m, torch.nn.BatchNorm2d))
    assert type(layer.num_batches_tracked) is torch.Tensor


def test_a_batch_norm_that_averages_over_all_batches_keeps_its_own_count() -> None:
    plain, ours = (torch.nn.BatchNorm1d(3, momentum=None) for _ in range(2))
    counts = BatchCounts([ours])
    for x in torch.randn(3, 5, 3, generator=torch.Generator().manual_seed(0)):
        plain(x)
        with counts.together():
            ours(x)
    assert torch.equal(plain.running_mean, ours.running_mean) and ours.num_batches_tracked == 3  # type: ignore[arg-type]


def test_counts_of_a_step_that_failed_are_not_left_half_way() -> None:
    layer = torch.nn.BatchNorm1d(3)
    counts = BatchCounts([layer])
    with pytest.raises(RuntimeError), counts.together():
        layer(torch.randn(4, 3))
        raise RuntimeError("a bug")
    assert int(layer.num_batches_tracked) == 0
    with counts.together():
        layer(torch.randn(4, 3))
        layer(torch.randn(4, 3))
    assert int(layer.num_batches_tracked) == 2


def test_the_sums_of_an_epoch_are_exact_and_take_every_kind_of_term() -> None:
    history = History(torch.device("cpu"))
    for step in range(4):
        count = {} if step == 0 else {"late": torch.tensor(2.0**24 + step)}
        history.add(
            {
                "loss": torch.tensor(0.1),
                "n": torch.tensor(2**40 + 1),
                "wide": torch.tensor(1e-300, dtype=torch.float64),
                **count,
            }
        )
    row = history.close_epoch(4, 8, 8, torch.tensor(0.5))
    assert row == {
        "epoch": 2,
        "step": 8,
        "lr": 0.5,
        "loss": float(torch.tensor(0.1)),
        "n": 2.0**40 + 1,
        "wide": 1e-300,
    } | {"late": (3 * 2.0**24 + 6) / 4}
    history.add({"loss": torch.tensor(1.0)})
    assert float(history.sums["loss"]) == 1 and float(history.sums["n"]) == 0


def test_divergence_names_the_step_and_the_term() -> None:
    trainer = small.trainer(small.run_of("simclr").spec)
    original, count = trainer.model.objective.forward, [0]

    def forward(batches: Any) -> Any:
        terms = original(batches)
        count[0] += 1
        if count[0] == 3:  # the third step, number 2
            terms.primal = {k: v * math.nan for k, v in terms.primal.items()}
        return terms

    trainer.model.objective.forward = forward
    with pytest.raises(Diverged, match=r"step 3 of 6: the loss is not finite \(.*simclr\.nt_xent nan"):
        trainer.run()


@pytest.mark.parametrize("method", METHODS)
def test_a_run_cut_at_any_step_ends_with_the_same_bits(method: str, tmp_path: Path) -> None:
    spec = small.run_of(method, sets=("train.schedule=cosine",)).spec
    whole = small.trainer(spec)
    whole.run()
    for cut in (1, 3, 4, 6):  # in an epoch, between two, in the last, after the last step
        work = tmp_path / str(cut)
        first = small.trainer(spec)
        with pytest.raises(Stopped):
            first.run(work, stop=lambda t=first, c=cut: t.done >= c)
        assert first.done == cut
        second = small.trainer(spec)
        second.run(work)
        assert second.resumed_at == cut
        assert _bits(second) == _bits(whole)
        assert second.history.rows == whole.history.rows


def test_a_stage_before_training_is_run_once_and_is_part_of_the_run(tmp_path: Path) -> None:
    write_package(tmp_path / "site", "strange", {"objectives/agree.py": PREPARED})
    with known(tmp_path / "site"):
        spec = small.run_of("agree").spec
        plain = small.trainer(spec)
        states = torch.get_rng_state(), plain.step.gen.get_state()
        plain.prepare_parts()
        assert torch.equal(states[0], torch.get_rng_state()) and torch.equal(states[1], plain.step.gen.get_state())
        agree: Any = plain.model.parts["agree"]
        assert torch.equal(agree.seen, torch.tensor([1.0, -1, -1]))  # it declares no label
        images = torch.from_numpy(small.splits(spec).train.images).float()
        assert torch.allclose(agree.mean, images.mean((0, 2, 3)) / 255)
        assert agree.noise.min() > 0

        whole, cut, more = small.trainer(spec), small.trainer(spec), small.trainer(spec)
        whole.run()
        work = tmp_path / "work"
        steps = cut.advance(work)
        next(steps)  # and is killed
        (file,) = work.iterdir()
        assert file.name == "checkpoint-000000000.safetensors"
        more.run(work)
        assert _bits(more) == _bits(whole)


def test_a_torn_checkpoint_is_skipped_with_a_warning_and_the_one_before_is_used(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    spec = small.run_of("sogclr").spec
    whole = small.trainer(spec)
    whole.run()
    for until in (2, 5):
        cut = small.trainer(spec)
        with pytest.raises(Stopped):
            cut.run(tmp_path, stop=lambda t=cut, u=until: t.done >= u)
    newest = sorted(tmp_path.glob("checkpoint-*"))[-1]
    newest.write_bytes(newest.read_bytes()[:-100])
    again = small.trainer(spec)
    again.run(tmp_path)
    assert again.resumed_at == 2
    assert newest.name in capfd.readouterr().err
    assert _bits(again) == _bits(whole)


def test_a_checkpoint_of_another_spec_is_never_used(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    first = small.trainer(small.run_of("simclr").spec)
    with pytest.raises(Stopped):
        first.run(tmp_path, stop=lambda: first.done >= 2)
    other = small.trainer(small.run_of("simclr", sets=("train.lr=0.01",)).spec)
    other.run(tmp_path)
    assert other.resumed_at == 0
    assert "is of another spec" in capfd.readouterr().err


def test_a_checkpoint_of_another_kind_of_device_is_not_used(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    first = small.trainer(small.run_of("simclr").spec)
    state = first.state
    first.state = lambda: (state()[0], {**state()[1], "device": "cuda"})  # type: ignore[method-assign]
    with pytest.raises(Stopped):
        first.run(tmp_path, stop=lambda: first.done >= 2)
    again = small.trainer(first.spec)
    assert not again.resume(tmp_path) and again.done == 0
    assert "is of a cuda device, this is a cpu; not used" in capfd.readouterr().err


def test_going_on_with_other_threads_says_that_the_bits_may_differ(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = small.trainer(small.run_of("simclr").spec)
    with pytest.raises(Stopped):
        first.run(tmp_path, stop=lambda: first.done >= 2)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    again = small.trainer(first.spec)
    assert again.resume(tmp_path) and again.done == 2
    assert "is of 1 threads, now 7: equal up to rounding, not in bits" in capfd.readouterr().err


def test_at_most_two_checkpoints_are_kept_and_no_partial_one(tmp_path: Path) -> None:
    trainer = small.trainer(small.run_of("simclr").spec)
    for step in range(4):
        trainer.step(_rows(trainer, step))
        trainer.done = step + 1
        trainer.save(tmp_path)
    assert [p.name for p in sorted(tmp_path.iterdir())] == [f"checkpoint-{k:09d}.safetensors" for k in (3, 4)]


def test_everything_a_part_remembers_is_in_the_state() -> None:
    state = small.trainer(small.run_of("sofclr").spec).state()[0]
    assert "part.sogclr.u" in state and "part.sogclr.seen" in state
    assert any(
        k.startswith("part.byol.") and "target" in k for k in small.trainer(small.run_of("byol").spec).state()[0]
    )


def test_one_image_is_no_batch() -> None:
    from fairssl.data.device import DeviceSplit
    from fairssl.types import UserError

    spec = small.run_of("simclr").spec
    one = DeviceSplit(
        torch.zeros(1, 3, 16, 16, dtype=torch.uint8), torch.zeros(1).long(), torch.zeros(1).long(), torch.arange(1)
    )
    with pytest.raises(UserError, match="0 training batches"):
        Trainer(spec, one, 2)


@pytest.mark.slow
@pytest.mark.parametrize("method", sorted(kinds.objectives.where()))
def test_bf16_stays_finite_and_close(method: str) -> None:
    spec = small.run_of(method, sets=("train.precision=bf16",)).spec
    trainer = small.trainer(spec)
    trainer.run()
    assert all(math.isfinite(row["loss"]) for row in trainer.history.rows if "loss" in row)


@pytest.mark.parametrize("size", [(1, 1), (4, 1), (2, 2), (5, 5)])
def test_gradients_of_strided_convolutions_of_narrow_maps_are_whole_in_bf16_on_a_cpu(size: tuple[int, int]) -> None:
    """What torch leaves unwritten holds what was in that memory before, here NaN; also the same output and input gradient."""
    torch.manual_seed(0)
    conv = nn.Conv2d(16, 32, 3, stride=2, padding=1)
    exact = copy.deepcopy(conv).double()
    with torch.no_grad():
        exact.weight.copy_(conv.weight.bfloat16())
        exact.bias.copy_(conv.bias.bfloat16())
    mend_narrow_convolutions(conv)
    for _ in range(10):
        x = torch.randn(16, 16, *size).bfloat16().float().requires_grad_()
        before = [torch.full((conv.weight.numel(),), math.nan, dtype=d) for d in (torch.float32, torch.bfloat16) * 8]
        del before
        with torch.autocast("cpu", torch.bfloat16):
            y = conv(x)
        direction = torch.randn_like(y)
        found = torch.autograd.grad(y, [x, conv.weight, conv.bias], direction)
        x64 = x.detach().double().requires_grad_()
        y64 = exact(x64)
        wanted = torch.autograd.grad(y64, [x64, exact.weight, exact.bias], direction.double())
        for one, right in zip((y, *found), (y64, *wanted), strict=True):
            torch.testing.assert_close(one.double(), right, rtol=0.05, atol=0.02 * right.abs().max().item())
