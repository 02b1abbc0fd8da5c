"""Checks of methods."""

from __future__ import annotations

import ast
from typing import Any

from fairssl import kinds
from fairssl.data.splits import run_data
from fairssl.evaluate.embed import embed_splits
from fairssl.evaluate.judge import evaluate
from fairssl.parts import Objective
from fairssl.registry import configure
from fairssl.spec.config import ProbeConfig, TrainConfig
from fairssl.spec.method import CORE_PARTS, compose
from fairssl.testing.contract import Skipped, Steps
from fairssl.testing.toy import N, take_steps, tiny_split, tiny_trainer
from fairssl.types import Method, Splits


def method_checks(name: str, method: Method) -> Steps:
    registered = name.rpartition(":")[2] in kinds.methods.offers()

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
        configure(TrainConfig, "train", method.train)
        configure(ProbeConfig, "probe", method.probe_params)
        if method.scored_by == "own":
            own = kinds.objectives.get(method.objective).scores is not Objective.scores
            assert own, f"probe is 'own', but objective {method.objective!r} has no scores of its own"

    def search() -> None:
        configs: dict[str, Any] = {"train": TrainConfig, "probe": ProbeConfig}
        configs[method.objective] = kinds.objectives.get(method.objective).Config
        configs.update({head: kinds.heads.get(head).Config for head in method.heads})
        for setting, values in method.search.items():
            part, _, parameter = setting.rpartition(".")
            assert part in configs, f"search: {setting!r} is of none of the parts {', '.join(configs)}"
            assert not isinstance(values, str) and len(values) > 0, f"search: {setting} has no values to try"
            for value in values:
                configure(configs[part], part, {parameter: value})

    def names() -> None:
        from_file()
        reserved = {*CORE_PARTS}
        assert name not in reserved, f"{name!r} is what --set calls the core"
        for other, rival in kinds.methods.working().items():
            if other.rpartition(":")[2] == name.rpartition(":")[2]:
                continue
            for alias in method.aliases:
                assert alias != other and alias not in rival.aliases, f"alias {alias!r} is taken by method {other!r}"

    def torch_free() -> None:
        from_file()
        tree = ast.parse(kinds.methods.locate(name).path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            modules = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for module in modules:
                heavy = module.partition(".")[0] in ("torch", "torchvision", "timm", "sklearn", "pandas")
                assert not heavy and module not in ("fairssl.nn", "fairssl.parts"), (
                    f"imports {module}: a method is data, and `fairssl list` must start without torch"
                )

    def trains() -> None:
        trainer = tiny_trainer(method, name)
        for log in take_steps(trainer, 2) if trainer.n_steps else []:
            for term, value in log.items():
                assert value.isfinite(), f"{term} is {value.item()}"

    def evaluates() -> None:
        trainer = tiny_trainer(method, name)
        if trainer.n_steps:
            take_steps(trainer, 2)
        split = tiny_split(2)
        splits = Splits(split, split, split, ("0", "1"))
        data = run_data(splits, trainer.spec.data.attribute, trainer.spec.annotated, trainer.spec.seed)
        found = evaluate(trainer.spec, trainer.model, embed_splits(trainer.model, splits), data)
        assert len(found.outcome.score) == N, f"{len(found.outcome.score)} scores for {N} test images"

    return [
        ("resolves", resolves),
        ("what it sees agrees with its parts", facts),
        ("settings of the loop and the probe", settings),
        ("search space", search),
        ("names and aliases are its own", names),
        ("needs no torch to be listed", torch_free),
        ("two steps are finite", trains),
        ("scores a test set", evaluates),
    ]
