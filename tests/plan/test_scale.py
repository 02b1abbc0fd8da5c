"""Large grids: a plan costs microseconds a cell, and keys are those of the plain definition."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from typing import Any

import pytest
from reference import small

from fairssl import kinds
from fairssl.plan.request import Request
from fairssl.plan.resolve import resolve
from fairssl.plan.status import survey
from fairssl.spec.run import RunSpec
from fairssl.store.runs import RunStore


def plain_digest(content: Any) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def plain_keys(spec: RunSpec) -> tuple[str, str]:
    """Both keys from the whole spec, written down anew: what the cached ones must equal."""
    whole = spec.model_dump(mode="json", exclude_none=True)
    whole["data"] = spec.data.model_dump(mode="json")  # an unknown fingerprint is null
    del whole["method"]["name"]
    trained = spec.model_dump(mode="json")
    del trained["probe"], trained["pretrain"], trained["pairs"]
    heads = [h for h in spec.method.heads if kinds.heads.get(h.name).streams]
    parts = [kinds.objectives.get(spec.method.objective.name), *(kinds.heads.get(h.name) for h in heads)]
    trained["method"] = {
        "objective": trained["method"]["objective"],
        "heads": [h.model_dump(mode="json") for h in heads],
        "sampler": spec.method.sampler,
    }
    depends = kinds.datasets.get(spec.data.dataset).card.train_depends_on
    sees_target = any("target" in p.sees for p in parts) or spec.method.sampler == "cell_balanced"
    sees_group = any("group" in p.sees for p in parts) or "annotated" in spec.method.streams
    if "target" not in depends and not sees_target:
        del trained["data"]["target"]
    if not sees_group:
        trained.pop("annotated")
        if "attribute" not in depends:
            del trained["data"]["attribute"]
    return plain_digest(whole), plain_digest(trained)


@pytest.mark.parametrize("dataset", ["synthfaces", "celeba", "utkface"])
def test_keys_made_of_shared_parts_are_those_of_the_plain_definition(dataset: str, tmp_path: Path) -> None:
    methods = [*kinds.methods.where(), "simclr+leace", "vicreg+adversary"]
    request = Request(methods, (dataset,), seeds=2, data_dir=tmp_path)
    for cell in resolve(request, allow_absent=True).runs:
        assert (cell.spec.key, cell.spec.pretrain_key) == plain_keys(cell.spec), cell.label


def test_a_copy_of_a_spec_has_its_own_keys() -> None:
    spec = small.run_of("sofclr").spec
    other = RunSpec.model_validate({**spec.model_dump(), "seed": 7})
    assert (other.key, other.pretrain_key) == plain_keys(other)
    assert other.key != spec.key


def test_a_thousand_cells_more_cost_milliseconds(tmp_path: Path) -> None:
    def planned(seeds: int) -> tuple[float, int]:
        started = time.process_time()
        plan = resolve(Request(("simclr", "sofclr"), ("celeba",), seeds=seeds, data_dir=tmp_path), allow_absent=True)
        found = survey(plan, RunStore(tmp_path / "runs"))
        return time.process_time() - started, found.n_runs

    planned(1)  # imports
    seconds, n_runs = planned(2500)
    assert n_runs == 5000
    assert seconds < 1.5  # 100,000 in 30 s
