"""Contract checks for plugins, ours and outsiders': what `fairssl check` prints and what a plugin's own test calls.

    from fairssl import testing

    def test_contract():
        testing.assert_contract("objective", "vicreg")

Parts are checked by real steps of the one training loop, on 48 generated images of 32 pixels, with a small encoder on
the CPU: seconds per plugin. A check passes, fails, or is skipped, and says why in one line.
"""

from __future__ import annotations

import ast
import inspect
import math
import random
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import pydantic
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from fairssl import registry, world
from fairssl.data import DeviceSplit
from fairssl.parts import Encoder, Objective, Part
from fairssl.pipeline import Embedded
from fairssl.plugin import PluginConfig
from fairssl.probe import embed
from fairssl.registry import BrokenPlugin, configure, near
from fairssl.scoring import check_outcome
from fairssl.spec import CORE_PARTS, DataSpec, ProbeConfig, RunSpec, TrainConfig, compose, parse_method, part_spec
from fairssl.train import Stopped, Trainer, shown
from fairssl.types import Batch, Embeddings, Method, Outcome, Split, Splits, Undefined, UserError, Value

N, SIDE, BATCH = 48, 32, 8  # images, pixels, images of a batch
CPU = torch.device("cpu")
ENCODER = "fairssl:small_cnn"  # what a part is checked on, and
COMPANION = "fairssl:simclr"  # with, where a head needs an objective


@dataclass(frozen=True)
class Check:
    """One named result; `reason` is one line, empty for a plain pass."""

    name: str
    state: Literal["pass", "fail", "skip"]
    reason: str = ""


class Skipped(Exception):
    """A check that does not apply, or cannot be made here; says why."""


Steps = Sequence[tuple[str, Callable[[], None]]]
T = TypeVar("T")


def check(kind: str, name: str, only: str | None = None) -> list[Check]:
    """All checks of one plugin, or the one called `only`; `kind` in singular or plural. An unknown name is a `UserError`."""
    one = registry.by_kind(kind).one
    checks: dict[str, Callable[[str, str | None], list[Check]]] = {
        "method": check_method,
        "objective": check_objective,
        "head": check_head,
        "encoder": check_encoder,
        "dataset": check_dataset,
        "metric": check_metric,
    }
    return checks[one](name, only)


def assert_contract(kind: str, name: str) -> None:
    """Raise `AssertionError` with one line for each check that fails."""
    failed = [f"{found.name}: {found.reason}" for found in check(kind, name) if found.state == "fail"]
    assert not failed, f"{kind} {name} breaks its contract:\n" + "\n".join(failed)


def check_objective(name: str, only: str | None = None) -> list[Check]:
    """The contract of an objective, by training it alone."""
    return _checked(registry.objectives, name, only, lambda part: _part_checks(_Bench("objectives", name), part))


def check_head(name: str, only: str | None = None) -> list[Check]:
    """The contract of a head, by training it beside an objective that gives what it needs."""
    return _checked(registry.heads, name, only, lambda part: _part_checks(_Bench("heads", name), part))


def check_encoder(name: str, only: str | None = None) -> list[Check]:
    """The contract of an encoder with its default parameters."""
    return _checked(registry.encoders, name, only, lambda part: _encoder_checks(name, part))


def check_dataset(name: str, only: str | None = None) -> list[Check]:
    """The contract of a dataset with its default parameters; what needs images is skipped where they are not found."""
    return _checked(registry.datasets, name, only, lambda part: _dataset_checks(name, part))


def check_metric(name: str, only: str | None = None) -> list[Check]:
    """The contract of a metric, on generated predictions."""
    return _checked(registry.metrics, name, only, lambda part: _metric_checks(name, part))


def check_method(name: str, only: str | None = None) -> list[Check]:
    """The contract of a method: a file's name, or any composition such as `byol+adversary:0.3`."""
    try:
        method = parse_method(name)
    except BrokenPlugin as error:
        return [Check("imports", "fail", _line(error))]
    return _run(_method_checks(name, method), only)


def _checked(kind: registry.Registry[Any], name: str, only: str | None, steps: Callable[[Any], Steps]) -> list[Check]:
    kind.locate(name)
    try:
        part = kind.get(name)
    except BrokenPlugin as error:
        return [Check("imports", "fail", _line(error))]
    return _run(steps(part), only)


def _run(steps: Steps, only: str | None) -> list[Check]:
    names = [name for name, _ in steps]
    if only is not None and only not in names:
        raise UserError(f"there is no check {only!r}{near(only, names)}")
    found = [Check("imports", "pass")]
    for name, step in steps:
        if only not in (None, name):
            continue
        try:
            with _own_randomness():
                step()
        except Skipped as reason:
            found.append(Check(name, "skip", _line(reason)))
        except AssertionError as error:
            found.append(Check(name, "fail", _line(error) or "an assertion of the plugin's own failed"))
        except Exception as error:  # a plugin may fail in any way; the cause is the result
            found.append(Check(name, "fail", f"{type(error).__name__}: {_line(error)}"))
        else:
            found.append(Check(name, "pass"))
    return found


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())


@contextmanager
def _own_randomness() -> Iterator[None]:
    """Leave the caller's global generators as they were."""
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


# --------------------------------------------------------------------------- what all kinds share


def _check_config(part: Any, name: str) -> None:
    config = configure(part, name, {})
    assert isinstance(config, PluginConfig), f"{name}.Config must derive from PluginConfig, or HeadConfig for a head"
    for key in type(config).model_fields:
        try:
            setattr(config, key, getattr(config, key))
        except pydantic.ValidationError:
            continue
        raise AssertionError(f"{name}.{key} can be assigned: keep the model_config of PluginConfig (frozen)")
    try:
        configure(part, name, {"no_such_parameter": 1})
        type(config).model_validate({"no_such_parameter": 1})
    except (UserError, pydantic.ValidationError):
        pass
    else:
        raise AssertionError(f"{name} accepts an unknown parameter: keep the model_config of PluginConfig (forbid)")
    again = configure(part, name, config.params())
    assert again == config, f"{name}: the parameters written as JSON give another config: {again} instead of {config}"
    aliases: Mapping[str, str] = type(config).aliases
    for alias, field in aliases.items():
        assert field in type(config).model_fields, (
            f"{name}: alias {alias!r} stands for {field!r}, which is no parameter"
        )
        assert alias not in type(config).model_fields, f"{name}: alias {alias!r} is a parameter too"


def _check_words(part: Any, kind: registry.Registry[Any], name: str) -> None:
    assert kind.summary(name), f"{name}: the file needs a docstring whose first line says what it is"
    assert inspect.getdoc(part), f"{name}: the class or function needs a docstring"
    assert isinstance(part.version, int) and part.version >= 1, f"{name}.version must be a whole number from 1 up"


# --------------------------------------------------------------------------- objectives and heads


class _Bench:
    """A part in the training loop, on tiny data, as often anew as asked for."""

    def __init__(self, kind: str, name: str):
        self.kind, self.name = kind, registry.by_kind(kind).canonical(name)
        self.part: Any = registry.by_kind(kind).get(name)
        if kind == "objectives":
            self.method = Method(summary="", paper="", objective=self.name)
        else:
            params = {} if configure(self.part, name, {}).weight else {"weight": 1.0}  # weight 0 would drop it
            self.method = Method(summary="", paper="", objective=self._companion(), heads={self.name: params})

    def _companion(self) -> str:
        if self.part.needs in (None, registry.objectives.get(COMPANION).gives):
            return registry.objectives.canonical(COMPANION)
        for name in registry.objectives.where():
            try:
                if registry.objectives.get(name).gives == self.part.needs:
                    return name
            except BrokenPlugin:
                continue
        raise UserError(f"no objective gives the {self.part.needs!r} that head {self.name!r} needs")

    def spec(self, **train: Any) -> RunSpec:
        return _tiny_spec(self.method, self.name, **train)

    def trainer(self, n_groups: int = 2, seed: int = 0, **train: Any) -> Trainer:
        spec = self.spec(**train).model_copy(update={"seed": seed})
        return _prepared(Trainer(spec, _tiny_data(n_groups), n_groups))

    def of(self, trainer: Trainer) -> Part:
        return trainer.parts[self.name]


def _tiny_spec(method: Method, label: str, **train: Any) -> RunSpec:
    dataset = registry.datasets.get(TOY)
    loop = {"batch_size": BATCH, "epochs": 1, "min_steps": 6, "precision": "float32", **train}
    encoder = registry.encoders.canonical(ENCODER)
    return RunSpec(
        method=compose(label, method, {}),
        data=DataSpec(
            dataset=registry.datasets.canonical(TOY),
            version=dataset.version,
            params=dataset.Config().params(),
            fingerprint="generated",
            image_size=SIDE,
            target=dataset.card.defaults.target,
            attribute=dataset.card.defaults.attribute,
        ),
        annotated=0.5,
        encoder=part_spec(registry.encoders, encoder, {"width": 8}),
        train=TrainConfig.model_validate(loop),
        probe=ProbeConfig.model_validate({"epochs": 2}),
        metrics={},
        seed=0,
    )


TOY = "fairssl:colored_digits"  # whose name a tiny spec bears; its images are not loaded


def _tiny_split(n_groups: int) -> Split:
    """Noise with a bright patch for the target and a tint for the group."""
    rng = np.random.Generator(np.random.PCG64(7))
    images = rng.integers(0, 200, size=(N, 3, SIDE, SIDE), dtype=np.uint8)
    number = np.arange(N)
    target, group = number % 2, number // 2 % n_groups
    images[target == 1, :, :8, :8] = 255
    images[:, 0] = np.minimum(255, images[:, 0] + (40 * group)[:, None, None]).astype(np.uint8)
    return Split(images, target.astype(np.int64), group.astype(np.int64), tuple(f"generated{i:02d}" for i in number))


def _tiny_data(n_groups: int) -> DeviceSplit:
    split = _tiny_split(n_groups)
    annotated = np.flatnonzero(np.arange(N) // 2 // n_groups % 2 == 0)  # about half, every group in both classes
    group = np.full(N, -1)
    group[annotated] = split.group[annotated]
    return DeviceSplit(
        torch.from_numpy(split.images),
        torch.from_numpy(split.target),
        torch.from_numpy(group),
        torch.from_numpy(annotated),
    )


def _index(trainer: Trainer, step: int = 0) -> dict[str, Tensor]:
    return {name: stream.steps(step, 1)[0] for name, stream in trainer.streams.items()}


def _steps(trainer: Trainer, n: int) -> list[dict[str, Tensor]]:
    return [trainer.step(_index(trainer, step)) for step in range(n)]


def _losses(trainer: Trainer, batches: Mapping[str, Batch], seed: int = 0) -> dict[str, Tensor]:
    """Every term of a drawn batch at the present parameters, by name."""
    torch.manual_seed(seed)
    bf16 = trainer.config.precision == "bf16"
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
        _, _, log = trainer.terms(trainer.encode(dict(batches)))
    return log


def _same(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> str | None:
    """The first name whose tensors differ in a bit; None if all are equal."""
    if a.keys() != b.keys():
        return min(a.keys() ^ b.keys())
    return next((name for name in a if not torch.equal(a[name], b[name])), None)


def outcome(trainer: Trainer, index: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Losses, every parameter's gradient and every buffer after the forward and backward pass of a step in float64."""
    drawn = trainer.draw(index)
    for module in trainer.modules().values():
        module.double()
    wide = {name: replace(one, views=[view.double() for view in one.views]) for name, one in drawn.items()}
    primal, dual, log, gradients, dual_gradients = trainer.differentiate(wide)
    found = {"the primal loss": primal.detach(), **{f"term {name}": value.double() for name, value in log.items()}}
    if dual is not None:
        found["the dual loss"] = dual.detach()
    names = {id(p): f"{m}.{n}" for m, module in trainer.modules().items() for n, p in module.named_parameters()}
    for kind, parameters, values in (("primal", trainer.primal, gradients), ("dual", trainer.dual, dual_gradients)):
        for parameter, value in zip(parameters, values, strict=True):
            if value is not None:
                found[f"the {kind} gradient of {names[id(parameter)]}"] = value.contiguous()
    for prefix, module in trainer.modules().items():
        found.update({f"buffer {prefix}.{n}": value.double().contiguous() for n, value in module.named_buffers()})
    return {name: value.clone() for name, value in found.items()}


class _Thread:
    """One of several threads that play the processes of a step."""

    def __init__(self, rank: int, shares: list[Tensor], barrier: threading.Barrier) -> None:
        self.rank, self.size = rank, len(shares)
        self._shares, self._barrier = shares, barrier

    def add(self, x: Tensor) -> None:
        self._shares[self.rank] = x
        self._barrier.wait()
        total = torch.stack(self._shares).sum(0)
        self._barrier.wait()
        x.copy_(total)


def together(functions: Sequence[Callable[[], T]]) -> list[T]:
    """What the functions give, each as one of several processes that train a run; threads play them."""
    barrier = threading.Barrier(len(functions), timeout=60)
    shares = [torch.zeros(())] * len(functions)

    def play(rank: int) -> T:
        try:
            with world.played(_Thread(rank, shares, barrier)):
                return functions[rank]()
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(len(functions)) as pool:
        running = [pool.submit(play, rank) for rank in range(len(functions))]
    errors = [error for error in (one.exception() for one in running) if error is not None]
    for error in sorted(errors, key=lambda error: isinstance(error, threading.BrokenBarrierError)):
        raise error  # the first that is not about the others' end
    return [one.result() for one in running]


RULE = "a network that goes through `sharded` works row by row (batch norm apart) and is used in no other way"
PROCESSES = 3  # which divide no batch of the checks evenly


def _assert_together(whole: Mapping[str, Tensor], shared: Sequence[Mapping[str, Tensor]]) -> None:
    """What processes have after a step they shared is what one has alone."""
    for name, value in whole.items():
        if not value.numel():
            continue
        scale = max(1e-3, float(value.abs().max()))
        for found in shared:
            off = float((found[name] - value).abs().max()) / scale if name in found else math.inf
            assert off <= 1e-6, f"{name} is off by {off:.1e} when {len(shared)} processes share the batch: {RULE}"


def _part_checks(bench: _Bench, part: Any) -> Steps:
    name = bench.name
    is_head = bench.kind == "heads"
    trains = bool(part.streams) if is_head else part.trains
    idle = "takes no step"

    def words() -> None:
        _check_words(part, registry.by_kind(bench.kind), name)

    def config() -> None:
        _check_config(part, name)
        if is_head:
            assert "weight" in part.Config.model_fields, f"{name}.Config must derive from HeadConfig, which has weight"

    def declares() -> None:
        assert part.sees <= {"target", "group", "views"}, (
            f"sees may hold 'target', 'group' and 'views', not {sorted(part.sees)}"
        )
        assert part.streams <= {"all", "annotated"}, f"streams may hold 'all' and 'annotated', not {part.streams}"
        assert part.n_views >= 1, f"n_views is {part.n_views}; at least 1"
        if is_head:
            assert part.needs in (None, "embedding", "logits"), f"needs is {part.needs!r}"
        else:
            assert part.streams, "an objective needs a stream to be trained on"
            assert part.gives in ("embedding", "logits"), f"gives is {part.gives!r}"

    def builds() -> None:
        mine = bench.of(bench.trainer())
        assert isinstance(mine, Part), f"{name} must derive from fairssl.api's Objective or Head"
        own = {id(p) for p in mine.parameters()}
        assert all(id(p) in own for p in mine.dual_parameters()), "dual_parameters() gives a parameter not its own"

    def terms() -> None:
        trainer = bench.trainer()
        mine, batches = bench.of(trainer), trainer.encode(trainer.draw(_index(trainer)))
        found = mine({stream: shown(batches[stream], mine) for stream in mine.streams})
        assert found.primal or (is_head and found.dual), "forward returns no primal term"
        everything = {**found.primal, **found.dual, **found.log}
        assert len(everything) == len(found.primal) + len(found.dual) + len(found.log), "two terms have one name"
        for term, value in everything.items():
            assert isinstance(value, Tensor), f"term {term!r} is a {type(value).__name__}, not a tensor"
            assert value.ndim == 0, f"term {term!r} has shape {tuple(value.shape)}; it must be 0-d"
            counted = term in found.log  # may be a count
            at_least = value.dtype in (torch.float32, torch.float64)
            assert at_least or counted, f"term {term!r} is {value.dtype}; at least float32"
            assert value.isfinite(), f"term {term!r} is {value.item()}"
        assert bool(found.dual) == bool(list(mine.dual_parameters())), (
            "dual terms and dual parameters go together: one without the other never trains"
        )

    def labels() -> None:
        trainer = bench.trainer()
        drawn = trainer.draw(_index(trainer))
        before = _losses(bench.trainer(), drawn)
        for label in ("target", "group"):
            if any(label in other.sees for other in trainer.parts.values()):
                continue
            changed = {s: replace(b, **{label: getattr(b, label).flip(0)}) for s, b in drawn.items()}
            differing = _same(before, _losses(bench.trainer(), changed))
            assert differing is None, f"{differing} depends on the {label}, which `sees` does not declare"

    def gradient() -> None:
        trainer = bench.trainer()
        mine, batches = bench.of(trainer), trainer.encode(trainer.draw(_index(trainer)))
        found = mine({stream: shown(batches[stream], mine) for stream in mine.streams})
        dual = list(mine.dual_parameters())
        dual_ids = {id(p) for p in dual}
        encoder = [p for p in trainer.encoder.parameters() if p.requires_grad]
        moved: set[int] = set()
        if found.primal:
            total = torch.stack(list(found.primal.values())).sum()
            assert total.requires_grad, "the primal terms have no gradient: something detaches them"
            own = [p for p in mine.parameters() if p.requires_grad and id(p) not in dual_ids]
            both = [*encoder, *own]
            gradients = torch.autograd.grad(total, both, allow_unused=True, retain_graph=True)
            reached = [g for g in gradients[: len(encoder)] if g is not None]
            assert len(reached) == len(encoder), "the primal gradient does not reach all of the encoder"
            assert any(g.abs().sum() > 0 for g in reached), "the primal gradient of the encoder is 0"
            assert all(g.isfinite().all() for g in gradients if g is not None), "a primal gradient is not finite"
            moved |= {id(p) for p, g in zip(both, gradients, strict=True) if g is not None}
        if found.dual:
            total = torch.stack(list(found.dual.values())).sum()
            gradients = torch.autograd.grad(total, dual, allow_unused=True)
            assert all(g is not None and g.isfinite().all() for g in gradients), "a dual parameter has no dual gradient"
            moved |= dual_ids
        for label, parameter in mine.named_parameters():
            if parameter.requires_grad and id(parameter) not in moved:
                raise AssertionError(f"no term moves parameter {label!r}: use it, or freeze it (requires_grad_(False))")

    def permutation() -> None:
        drawn = bench.trainer().draw(_index(bench.trainer()))
        before = _losses(bench.trainer(), drawn)
        if _same(before, _losses(bench.trainer(), drawn, seed=1)) is not None:
            raise Skipped("draws random numbers in its forward pass")
        order = torch.from_numpy(np.random.Generator(np.random.PCG64(3)).permutation(BATCH))
        after = _losses(bench.trainer(), {stream: _reordered(batch, order) for stream, batch in drawn.items()})
        for term, value in before.items():
            close = torch.isclose(value, after[term], rtol=1e-3, atol=1e-5)
            assert close, f"{term} is {value.item():.6g}, and {after[term].item():.6g} with the batch in another order"

    def state_dict() -> None:
        once, again = bench.trainer(), bench.trainer()
        _steps(once, 2)
        again.load_weights(once.parameters_and_buffers())
        drawn = once.draw(_index(once, 2))
        term = _same(_losses(once, drawn), _losses(again, drawn))
        assert term is None, f"{term} differs after a state dict round trip: keep all state in parameters and buffers"
        entry = _same(once.parameters_and_buffers(), again.parameters_and_buffers())
        assert entry is None, f"{entry} differs after a state dict round trip and one more forward pass"

    def seeds() -> None:
        runs = []
        for seed in (0, 1):
            np.random.seed(seed)
            random.seed(seed)
            trainer = bench.trainer()
            _steps(trainer, 3)
            runs.append(trainer.parameters_and_buffers())
        entry = _same(*runs)
        assert entry is None, f"{entry} differs between two runs of one seed: draw with torch, or with the `gen` given"
        trainer = bench.trainer(seed=1)
        _steps(trainer, 3)
        assert _same(runs[0], trainer.parameters_and_buffers()) is not None, "another seed gives the same bits"

    def resume() -> None:
        whole = bench.trainer()
        whole.run()
        with tempfile.TemporaryDirectory() as folder:
            first = bench.trainer()
            with suppress(Stopped):
                first.run(Path(folder), stop=lambda: first.done >= 3)
            second = bench.trainer()
            second.run(Path(folder))
            assert second.resumed_at == 3, f"the run went on from step {second.resumed_at} instead of 3"
        entry = _same(whole.parameters_and_buffers(), second.parameters_and_buffers())
        assert entry is None, f"{entry} differs between a run of {whole.n_steps} steps and one cut after 3"

    def bf16() -> None:
        for factor, what in ((0.0, "collapsed to 0"), (1e3, "1000 times as large")):
            trainer = bench.trainer(precision="bf16")
            drawn = trainer.draw(_index(trainer))
            trainer.encoder = _Scaled(trainer.encoder, factor)  # type: ignore[assignment]
            with torch.autocast("cpu", dtype=torch.bfloat16):
                primal, dual, log = trainer.terms(trainer.encode(drawn))
            for term, value in log.items():
                assert value.isfinite(), f"{term} is {value.item()} under bf16 with features {what}"
            found = torch.autograd.grad(primal, trainer.primal, allow_unused=True, retain_graph=True)
            if dual is not None:
                found += torch.autograd.grad(dual, trainer.dual, allow_unused=True)
            assert all(g.isfinite().all() for g in found if g is not None), (
                f"a gradient is not finite under bf16 with features {what}"
            )

    def groups(n_groups: int) -> None:
        trainer = bench.trainer(n_groups)
        for log in _steps(trainer, 2):
            for term, value in log.items():
                assert value.isfinite(), f"{term} is {value.item()} with {n_groups} groups"

    def missing() -> None:
        trainer = bench.trainer()
        hidden = torch.nonzero(trainer.data.group < 0)[:, 0]
        annotated = trainer.data.annotated
        for label, codes in (("group", trainer.data.group), ("target", trainer.data.target)):
            for code in (0, 1):
                batches = {"all": hidden[:BATCH], "annotated": annotated[codes[annotated] == code][:BATCH]}
                found = bench.trainer()
                for term, value in found.step({name: batches[name] for name in found.streams}).items():
                    assert value.isfinite(), f"{term} is {value.item()} in a batch whose {label} is {code} throughout"

    def captured() -> None:
        if not part.capturable:
            raise Skipped("not capturable, as it says itself: its steps run eagerly")
        trainer = bench.trainer()
        index = _index(trainer)
        trainer.step(index)  # what is made once may read back
        with _NoReadBack():
            trainer.step(index)

    def shared() -> None:
        index = _index(bench.trainer())
        drawn = bench.trainer().draw(index)
        if _same(_losses(bench.trainer(), drawn), _losses(bench.trainer(), drawn, seed=1)) is not None:
            raise Skipped("draws random numbers in its forward pass")
        alone, *others = (bench.trainer() for _ in range(1 + PROCESSES))
        try:
            found = together([partial(outcome, other, index) for other in others])
        except RuntimeError as error:
            if "inplace" in str(error) or "`sharded`" in str(error):
                # The one is what joint statistics do to what a direct use has kept for its backward pass.
                raise AssertionError(f"{PROCESSES} processes cannot share the batch: {RULE}") from error
            raise
        _assert_together(outcome(alone, index), found)

    def embeds() -> None:
        trainer = bench.trainer()
        if trainer.n_steps:
            _steps(trainer, 1)
        mine: Any = bench.of(trainer).eval()
        split = _tiny_split(2)
        f = embed(trainer.encoder, trainer.objective.represent, split, CPU)
        if is_head:
            _check_fit(mine, f, split)
            return
        width = trainer.encoder.dim if mine.feature_dim is None else mine.feature_dim
        assert f.shape == (N, width), f"represent gives {tuple(f.shape)} for {N} images; feature_dim says (N, {width})"
        assert f.isfinite().all(), "represent gives a number that is not finite"
        assert torch.equal(f, embed(trainer.encoder, mine.represent, split, CPU)), "represent is random in eval mode"
        with torch.inference_mode():
            z, scores = mine.project(f), mine.scores(f)
        assert len(z) == N, f"project gives {tuple(z.shape)} for (N, F) = {tuple(f.shape)}"
        if mine.gives == "logits":
            assert z.numel() == N, (
                f"gives is 'logits', but project gives {tuple(z.shape)}; one logit of y = 1 per image"
            )
        if scores is not None:
            assert scores.shape == (N,), f"scores gives {tuple(scores.shape)}; (N,) is wanted"
            assert ((scores >= 0) & (scores <= 1)).all(), "scores leaves [0, 1]: give probabilities of y = 1"

    def stepping(function: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            if not trains:
                raise Skipped(idle)
            function()

        return run

    in_training: list[tuple[str, Callable[[], None]]] = [
        ("terms are finite 0-d tensors", terms),
        ("only declared labels matter", labels),
        ("gradients reach what they should", gradient),
        ("the batch's order does not matter", permutation),
        ("state dict round trip", state_dict),
        ("equal seeds, equal bits", seeds),
        ("a resumed run equals an uninterrupted one", resume),
        ("finite under bf16 with extreme features", bf16),
        ("2 groups", lambda: groups(2)),
        ("5 groups", lambda: groups(5)),
        ("a batch with one group or one class", missing),
        ("no step reads a tensor back", captured),
        ("processes that share a batch equal one", shared),
    ]
    return [
        ("docstrings and version", words),
        ("config", config),
        ("declarations", declares),
        ("builds", builds),
        *((label, stepping(function)) for label, function in in_training),
        ("after training: " + ("fit" if is_head else "features and scores"), embeds),
    ]


def _reordered(batch: Batch, order: Tensor) -> Batch:
    assert batch.target is not None and batch.group is not None
    return Batch([v[order] for v in batch.views], batch.index[order], batch.target[order], batch.group[order])


def _check_fit(head: Any, f: Tensor, split: Split) -> None:
    annotated = torch.from_numpy(split.group.copy())
    annotated[1::3] = -1
    seen = Embeddings(f, split.target, annotated)
    transform = head.fit(seen)
    if transform is None:
        assert head.streams, "a head without streams must have a fit that gives a transform, or it does nothing"
        return
    out = transform(f)
    assert len(out) == len(f) and out.ndim == 2, f"the fitted transform gives {tuple(out.shape)} for {tuple(f.shape)}"
    assert out.isfinite().all(), "the fitted transform gives a number that is not finite"
    assert torch.equal(out, head.fit(seen)(f)), "fitting twice gives two transforms: draw no random numbers"
    rows = torch.tensor([3, 0, 9])
    close = torch.allclose(transform(f[rows]), out[rows], rtol=1e-3, atol=1e-4)
    assert close, "the fitted transform of an example depends on the others it is given with"
    hidden = torch.where(torch.from_numpy(split.group) > 0, torch.from_numpy(split.group), -1)  # group 0 is missing
    try:
        found = head.fit(Embeddings(f, split.target, hidden))
    except UserError:
        return  # a one-line refusal is an answer too
    assert found is None or found(f).isfinite().all(), "the transform is not finite where a group is missing"


class _Scaled(nn.Module):
    """An encoder whose features are `factor` times as large."""

    def __init__(self, encoder: nn.Module, factor: float):
        super().__init__()
        self.encoder, self.factor = encoder, factor

    def forward(self, x: Tensor) -> Tensor:
        return self.encoder(x) * self.factor


# Reading a value back, or a shape that depends on values, stops a stream and cannot be captured.
READ_BACK = frozenset({"item", "tolist", "numpy", "__bool__", "__int__", "__float__", "__index__", "__array__"})
DATA_DEPENDENT = frozenset(
    {
        "aten::_local_scalar_dense",
        "aten::_unique",
        "aten::_unique2",
        "aten::allclose",
        "aten::bincount",
        "aten::equal",
        "aten::is_nonzero",
        "aten::masked_select",
        "aten::nonzero",
        "aten::unique_consecutive",
        "aten::unique_dim",
    }
)


class _Functions(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in READ_BACK and isinstance(args[0] if args else None, Tensor):
            raise AssertionError(f"a step calls Tensor.{name.strip('_')}, which reads a tensor back")
        return func(*args, **(kwargs or {}))


class _Operators(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name
        masks = name in ("aten::index", "aten::index_put", "aten::index_put_") and any(
            i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1]
        )
        if name in DATA_DEPENDENT or (masks and name == "aten::index"):
            how = "indexes with a mask" if masks else f"calls {name.removeprefix('aten::')}"
            raise AssertionError(f"a step {how}, whose result's shape or value must be read back; or set capturable")
        if name == "aten::lift_fresh":
            raise AssertionError(
                "a step makes a tensor of Python numbers, a copy from the host; use new_full or a buffer"
            )
        if name == "aten::repeat_interleave" and func._overloadname == "Tensor":
            raise AssertionError("a step calls repeat_interleave with a tensor of counts, which must be read back")
        return func(*args, **(kwargs or {}))


class _NoReadBack:
    """Within it, reading a tensor's value is an error."""

    def __enter__(self) -> None:
        self._modes = (_Functions(), _Operators())
        for mode in self._modes:
            mode.__enter__()

    def __exit__(self, *error: Any) -> None:
        for mode in reversed(self._modes):
            mode.__exit__(*error)


# --------------------------------------------------------------------------- encoders


def _encoder_checks(name: str, part: Any) -> Steps:
    shape = (3, SIDE, SIDE)

    def build(seed: int = 0) -> Encoder:
        torch.manual_seed(seed)
        return registry.encoders.build(name, {}, image_shape=shape)

    def images(n: int = 4) -> Tensor:
        return torch.randn(n, *shape, generator=torch.Generator().manual_seed(5))

    def feature_shape() -> None:
        encoder = build()
        f = encoder(images())
        assert f.shape == (4, encoder.dim), f"the feature has shape {tuple(f.shape)}; dim says (B, {encoder.dim})"
        assert f.isfinite().all(), "a feature is not finite"

    def seeds() -> None:
        entry = _same(build().state_dict(), build().state_dict())
        assert entry is None, f"{entry} differs between two encoders of one seed"
        assert torch.equal(build().eval()(images()), build().eval()(images())), "two equal encoders differ on one batch"
        assert _same(build().state_dict(), build(1).state_dict()) is not None, "another seed gives the same weights"

    def alone() -> None:
        encoder = build().eval()
        with torch.inference_mode():
            together, single = encoder(images()), encoder(images()[:1])
        close = torch.allclose(together[:1], single, rtol=1e-3, atol=1e-4 * float(together.abs().max()))
        assert close, "in evaluation mode an image's feature depends on the others of its batch"

    def round_trip() -> None:
        one, two = build(), build(1)
        one(images())  # moves running statistics
        two.load_state_dict(one.state_dict())
        entry = torch.equal(one.eval()(images()), two.eval()(images()))
        assert entry, "the state dict does not hold everything the feature depends on"

    def gradient() -> None:
        encoder = build()
        trained = {label: p for label, p in encoder.named_parameters() if p.requires_grad}
        assert trained, "no parameter is trainable"
        found = torch.autograd.grad(encoder(images()).square().sum(), list(trained.values()), allow_unused=True)
        missed = [label for label, g in zip(trained, found, strict=True) if g is None]
        assert not missed, f"no gradient reaches {missed[0]!r}"

    def shared() -> None:
        torch.manual_seed(1)
        x, weight = images(7).double(), torch.randn(7, 1, dtype=torch.float64)
        encoders = [build().double() for _ in range(1 + PROCESSES)]
        drawn = []
        for seed in (0, 1):
            encoder = build()
            torch.manual_seed(seed)
            drawn.append(encoder(images(7)))
        if not torch.equal(*drawn):
            raise Skipped("draws random numbers in training")

        def step(encoder: Encoder) -> dict[str, Tensor]:
            f = world.sharded(encoder, x)
            trained = [p for p in encoder.parameters() if p.requires_grad]
            gradients = world.reduce_gradients(trained, torch.autograd.grad((f * weight).sin().sum(), trained))
            names = [n for n, p in encoder.named_parameters() if p.requires_grad]
            found = {f"the gradient of {n}": g for n, g in zip(names, gradients, strict=True) if g is not None}
            buffers = {f"buffer {n}": value.double() for n, value in encoder.named_buffers()}
            return {"the feature": f.detach(), **found, **buffers}

        _assert_together(step(encoders[0]), together([partial(step, one) for one in encoders[1:]]))

    def refuses() -> None:
        found = part.accepts("no such encoder")
        assert found is None, f"accepts() takes any name: it gave {found} for one that does not exist"

    return [
        ("docstrings and version", lambda: _check_words(part, registry.encoders, name)),
        ("config", lambda: _check_config(part, name)),
        ("feature is (B, dim)", feature_shape),
        ("equal seeds, equal bits", seeds),
        ("evaluation mode: an image alone", alone),
        ("state dict round trip", round_trip),
        ("gradients reach every parameter", gradient),
        ("processes that share a batch equal one", shared),
        ("refuses unknown names", refuses),
    ]


# --------------------------------------------------------------------------- datasets


def _dataset_checks(name: str, part: Any) -> Steps:
    card = part.card
    target, attribute = card.defaults.target, card.defaults.attribute
    loaded: dict[tuple[str, str], Splits] = {}

    def build() -> Any:
        return registry.datasets.build(name, {})

    def root() -> Path | None:
        if card.embedded:
            return None
        from fairssl.packs import data_root

        try:
            found = data_root(None, name)
            build().inspect(found)
        except UserError as error:
            raise Skipped(f"the data is not here: {error}") from error
        return found

    def load(target: str = target, attribute: str = attribute) -> Splits:
        if (target, attribute) not in loaded:
            loaded[target, attribute] = build().load(root(), target, attribute, size())
        return loaded[target, attribute]

    def size() -> int:
        facts = build().inspect(root())
        wanted = min(card.defaults.image_size, 32)  # pixels; checks should take seconds
        return wanted if facts.max_image_size is None else min(wanted, facts.max_image_size)

    def card_complete() -> None:
        for field in ("title", "licence", "source", "citation"):
            assert getattr(card, field), f"card.{field} is empty"
        assert card.embedded or card.obtain, "card.obtain must say what to download, from where, and where to put it"
        assert target in card.targets, f"the default target {target!r} is none of card.targets"
        assert attribute in card.attributes, f"the default attribute {attribute!r} is none of card.attributes"
        assert target != attribute, "the default target is its own sensitive attribute"
        for one, groups in card.attributes.items():
            assert len(groups) >= 2, f"attribute {one!r} has fewer than two groups"
            assert len(set(groups)) == len(groups), f"attribute {one!r} has two groups of one label"
        assert set(card.positive) <= set(card.targets), "card.positive names what is no target"
        assert card.train_depends_on <= {"target", "attribute"}, "train_depends_on may hold 'target' and 'attribute'"
        assert 0 < card.defaults.annotated <= 1 and card.defaults.seeds >= 1, "card.defaults is out of range"
        registry.encoders.locate(card.defaults.encoder) if card.embedded else None

    def absent() -> None:
        if card.embedded:
            raise Skipped("embedded: it needs no files")
        with tempfile.TemporaryDirectory() as folder:
            try:
                build().inspect(Path(folder))
            except UserError:
                return
        raise AssertionError("inspect accepts an empty folder; it must say what to download and where to put it")

    def fingerprint() -> None:
        one, two = build().inspect(root()), build().inspect(root())
        assert one == two, "inspecting twice gives two answers"
        assert one.fingerprint and one.n_images > 0, "inspect must give a fingerprint of the content and a count"

    def splits_sound() -> None:
        found = load()
        side = size()
        ids: set[str] = set()
        assert tuple(found.groups) == tuple(card.attributes[attribute]), (
            f"groups are {found.groups}, the card says {card.attributes[attribute]}"
        )
        for part_name in ("train", "val", "test"):
            split: Split = getattr(found, part_name)
            n = len(split)
            assert n > 0, f"{part_name} is empty"
            assert split.images.dtype == np.uint8, f"{part_name}.images are {split.images.dtype}, not uint8"
            shape = (n, 3, side, side)
            assert split.images.shape == shape, f"{part_name}.images have shape {split.images.shape}, not {shape}"
            assert split.target.shape == split.group.shape == (n,), f"{part_name}: labels are not (N,)"
            assert split.target.dtype == split.group.dtype == np.int64, f"{part_name}: labels are not int64"
            assert set(np.unique(split.target)) == {0, 1}, f"{part_name}.target must hold 0 and 1 and nothing else"
            inside = (split.group >= -1) & (split.group < len(found.groups))
            assert inside.all(), f"{part_name}.group leaves -1..{len(found.groups) - 1}"
            assert len(np.unique(split.group[split.group >= 0])) >= 2, f"{part_name} has fewer than two groups"
            assert len(split.ids) == n, f"{part_name} has {len(split.ids)} ids for {n} images"
            mine = set(split.ids)
            assert len(mine) == n, f"{part_name} has an id twice"
            assert not mine & ids, f"{part_name} shares {min(mine & ids)!r} with another split"
            ids |= mine

    def deterministic() -> None:
        first = load()
        np.random.seed(1)
        random.seed(1)
        second = build().load(root(), target, attribute, size())
        for part_name in ("train", "val", "test"):
            one, two = getattr(first, part_name), getattr(second, part_name)
            for field in ("images", "target", "group"):
                equal = np.array_equal(getattr(one, field), getattr(two, field))
                assert equal, f"{part_name}.{field} differs between two loads"
            assert list(one.ids) == list(two.ids), f"{part_name}.ids differ between two loads"

    def dependence() -> None:
        """A wrong `train_depends_on` would let runs share a pretraining that they may not share."""
        others = {
            "target": [(t, attribute) for t in card.targets if t not in (target, attribute)],
            "attribute": [(target, a) for a in card.attributes if a not in (target, attribute)],
        }
        free = {what: pairs for what, pairs in others.items() if pairs and what not in card.train_depends_on}
        if not free:
            raise Skipped("nothing to compare: one target and attribute, or the split depends on them by its own word")
        for what, pairs in free.items():
            a, b = load().train, load(*pairs[0]).train
            equal = list(a.ids) == list(b.ids) and np.array_equal(a.images, b.images)
            assert equal, f"the training split changes with the {what}: put {what!r} in card.train_depends_on"

    def unknown() -> None:
        for wrong in (("no_such_target", attribute), (target, "no_such_attribute")):
            try:
                build().load(root(), *wrong, size())
            except UserError:
                continue
            raise AssertionError(f"load accepts {wrong[0]!r} / {wrong[1]!r}; a UserError must name what there is")

    def labels() -> None:
        found = build().labels(root())
        if found is None:
            raise Skipped("labels are known once the images are loaded")
        names = {*card.targets, *card.attributes}
        assert set(found) <= names, f"labels() gives {min(set(found) - names)!r}, which the card does not have"
        assert len({len(codes) for codes in found.values()}) == 1, "labels() gives columns of different length"

    return [
        ("docstrings and version", lambda: _check_words(part, registry.datasets, name)),
        ("config", lambda: _check_config(part, name)),
        ("card", card_complete),
        ("says where to get what is not there", absent),
        ("fingerprint", fingerprint),
        ("splits are sound and disjoint", splits_sound),
        ("two loads, equal bits", deterministic),
        ("training split moves as the card says", dependence),
        ("refuses unknown names", unknown),
        ("labels without decoding", labels),
    ]


# --------------------------------------------------------------------------- metrics


def _metric_checks(name: str, metric: Any) -> Steps:
    rng = np.random.Generator(np.random.PCG64(11))
    n = 240

    def outcome(score: Any, target: Any, group: Any, n_groups: int = 2) -> Outcome:
        return check_outcome(score, target, group, [str(g) for g in range(n_groups)])

    target, group = np.arange(n) % 2, np.arange(n) // 2 % 2
    noisy = np.clip(0.35 + 0.3 * target + 0.1 * group + 0.2 * rng.standard_normal(n), 0, 1)

    def value(given: Outcome, what: str) -> Value:
        found = metric(given)
        if isinstance(found, Undefined):
            assert found.reason.strip(), f"{what}: Undefined without a reason"
            return found
        assert isinstance(found, float | int | np.floating), f"{what}: a {type(found).__name__} instead of a float"
        assert math.isfinite(found), f"{what}: {found}; what has no value is Undefined(reason)"
        if metric.percent:
            assert -1e-9 <= found <= 1 + 1e-9, f"{what}: {found}; a share lies in [0, 1] and is no percentage"
        return float(found)

    def close(a: Value, b: Value) -> bool:
        if isinstance(a, Undefined) or isinstance(b, Undefined):
            return type(a) is type(b)
        return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12)

    def facts() -> None:
        _check_words(metric, registry.metrics, name)
        assert metric.symbol.isidentifier(), f"symbol {metric.symbol!r} must be a word: it is a column and a JSON key"
        assert metric.better in ("higher", "lower"), f"better is {metric.better!r}"
        for label, parameter in list(inspect.signature(metric).parameters.items())[1:]:
            has_default = parameter.default is not inspect.Parameter.empty
            assert has_default and parameter.kind is parameter.KEYWORD_ONLY, (
                f"parameter {label!r} must be keyword-only with a default"
            )
        for other in registry.metrics.where():
            found = registry.metrics.get(other)
            assert found is metric or found.symbol != metric.symbol, f"metric {other!r} has the symbol too: rename one"

    def defined() -> None:
        found = value(outcome(noisy, target, group), "ordinary scores")
        assert not isinstance(found, Undefined), f"undefined for ordinary scores of two groups: {found}"

    def perfect() -> None:
        best = value(outcome(target * 1.0, target, group), "perfect scores")
        worst = value(outcome(1.0 - target, target, group), "reversed scores")
        if not isinstance(best, Undefined) and not isinstance(worst, Undefined):
            in_order = best >= worst - 1e-12 if metric.better == "higher" else best <= worst + 1e-12
            assert in_order, f"perfect scores give {best}, reversed ones {worst}, but {metric.better} is better"

    def constant() -> None:
        for score in (0.0, 0.5, 1.0):
            value(outcome(np.full(n, score), target, group), f"a constant score of {score}")

    def absent() -> None:
        value(outcome(noisy, target, group, n_groups=3), "a declared group without examples")
        value(outcome(noisy, target, np.zeros(n)), "one group of two without examples")
        value(outcome(noisy, np.where(group == 1, 0, target), group), "a group without positives")
        value(outcome(noisy, np.ones(n), group), "no negative at all")
        value(outcome(noisy[:1], target[:1], group[:1]), "a single example")

    def small() -> None:
        for trial in range(60):
            k, rows = int(rng.integers(2, 6)), int(rng.integers(1, 12))
            given = outcome(rng.integers(0, 5, rows) / 4, rng.integers(0, 2, rows), rng.integers(0, k, rows), k)
            value(given, f"{rows} rows of {k} groups (trial {trial})")

    def rows() -> None:
        order = rng.permutation(n)
        before = value(outcome(noisy, target, group), "ordinary scores")
        after = value(outcome(noisy[order], target[order], group[order]), "shuffled rows")
        assert close(before, after), f"{before}, and {after} with the rows in another order"

    def symmetry() -> None:
        if not metric.symmetric:
            raise Skipped("depends on which group is declared first, as it says itself")
        before = value(outcome(noisy, target, group), "ordinary scores")
        after = value(outcome(noisy, target, 1 - group), "group codes exchanged")
        assert close(before, after), f"{before}, and {after} with the two groups' codes exchanged; or symmetric=False"

    def pure() -> None:
        given = outcome(noisy, target, group)
        copies = given.score.copy(), given.target.copy(), given.group.copy()
        first, second = value(given, "ordinary scores"), value(given, "ordinary scores")
        assert close(first, second), f"{first}, and {second} when asked again"
        kept = all(np.array_equal(a, b) for a, b in zip(copies, (given.score, given.target, given.group), strict=True))
        assert kept, "it changes the predictions it is given"

    return [
        ("docstrings, symbol and version", facts),
        ("defined for ordinary scores", defined),
        ("perfect and reversed scores", perfect),
        ("constant scores", constant),
        ("an absent group or class", absent),
        ("few rows, many groups: a number or Undefined", small),
        ("the rows' order does not matter", rows),
        ("exchanging two groups' codes", symmetry),
        ("same answer twice, input untouched", pure),
    ]


# --------------------------------------------------------------------------- methods


def _method_checks(name: str, method: Method) -> Steps:
    registered = name.rpartition(":")[2] in registry.methods.offers()

    def from_file() -> None:
        if not registered:
            raise Skipped("a composition without a file")

    def resolves() -> None:
        spec = compose(name, method, {})
        assert spec.streams, "no part draws a stream"

    def facts() -> None:
        from_file()
        spec = compose(name, method, {})
        assert method.target == spec.target, f"target is {method.target!r}, its parts see {spec.target!r}"
        assert method.group == spec.group, f"group is {method.group!r}, its parts see {spec.group!r}"
        for field in ("summary", "paper"):
            assert getattr(method, field), f"METHOD.{field} is empty"

    def settings() -> None:
        configure(_Bare(TrainConfig), "train", method.train)
        configure(_Bare(ProbeConfig), "probe", method.probe_params)
        if method.probe == "own":
            own = registry.objectives.get(method.objective).scores is not Objective.scores
            assert own, f"probe is 'own', but objective {method.objective!r} has no scores of its own"

    def names() -> None:
        from_file()
        reserved = {*CORE_PARTS}
        assert name not in reserved, f"{name!r} is what --set calls the core"
        for other in registry.methods.where():
            if other.rpartition(":")[2] == name.rpartition(":")[2]:
                continue
            theirs = registry.methods.get(other).aliases
            for alias in method.aliases:
                assert alias != other and alias not in theirs, f"alias {alias!r} is taken by method {other!r}"

    def torch_free() -> None:
        from_file()
        tree = ast.parse(registry.methods.locate(name).path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            modules = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for module in modules:
                heavy = module.partition(".")[0] in ("torch", "torchvision", "timm", "sklearn", "pandas")
                assert not heavy and module not in ("fairssl.nn", "fairssl.parts"), (
                    f"imports {module}: a method is data, and `fairssl list` must start without torch"
                )

    def trains() -> None:
        trainer = _trainer(method, name)
        for log in _steps(trainer, 2) if trainer.n_steps else []:
            for term, value in log.items():
                assert value.isfinite(), f"{term} is {value.item()}"

    def evaluates() -> None:
        trainer = _trainer(method, name)
        if trainer.n_steps:
            _steps(trainer, 2)
        split = _tiny_split(2)
        found = Embedded(trainer, Splits(split, split, split, ("0", "1"))).evaluate(trainer.spec)
        assert len(found.outcome.score) == N, f"{len(found.outcome.score)} scores for {N} test images"

    return [
        ("resolves", resolves),
        ("what it sees agrees with its parts", facts),
        ("settings of the loop and the probe", settings),
        ("names and aliases are its own", names),
        ("needs no torch to be listed", torch_free),
        ("two steps are finite", trains),
        ("scores a test set", evaluates),
    ]


def _trainer(method: Method, name: str) -> Trainer:
    kept = {k: v for k, v in method.train.items() if k not in ("epochs", "min_steps", "batch_size")}
    return _prepared(Trainer(_tiny_spec(method, name, **kept), _tiny_data(2), 2))


def _prepared(trainer: Trainer) -> Trainer:
    trainer.prepare()
    return trainer


@dataclass(frozen=True)
class _Bare:
    """A config without a plugin, where `configure` expects one."""

    Config: type
