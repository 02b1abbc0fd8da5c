"""The named compositions: facts of the paper's first table, held against what their parts declare."""

from __future__ import annotations

import ast

import pytest

from fairssl import kinds, registry
from fairssl.types import Method

METHODS = list(kinds.methods.where())


def facts(name: str) -> tuple[bool, bool, str, str, bool, bool]:
    m = kinds.methods.get(name)
    return m.adversarial, m.contrastive, m.target, m.group, m.generator, m.theory


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("simclr", (False, True, "none", "none", False, False)),
        ("sogclr", (False, True, "none", "none", False, True)),
        ("byol", (False, False, "none", "none", False, False)),
        ("sofclr", (True, True, "none", "annotated", False, True)),  # the row "Our work"
        ("simclr_ccl", (False, True, "none", "annotated", False, False)),
    ],
)
def test_the_columns_of_the_papers_first_table(name, wanted):
    assert facts(name) == wanted


def test_what_sofclr_and_simclr_ccl_are_made_of():
    sofclr, both = kinds.methods.get("sofclr"), kinds.methods.get("simclr_ccl")
    assert (sofclr.objective, list(sofclr.heads)) == ("sogclr", ["adversary"])
    assert (both.objective, list(both.heads), both.aliases) == ("simclr", ["ccl"], ("simclr+ccl",))


@pytest.mark.parametrize("name", METHODS)
def test_a_methods_parts_exist_and_take_its_parameters(name):
    m = kinds.methods.get(name)
    assert isinstance(m, Method)
    registry.configure(kinds.objectives.get(m.objective).Config, m.objective, m.params)
    for head, params in m.heads.items():
        registry.configure(kinds.heads.get(head).Config, head, params)


@pytest.mark.parametrize("name", METHODS)
def test_a_methods_columns_agree_with_what_its_parts_look_at(name):
    m = kinds.methods.get(name)
    parts = [kinds.objectives.get(m.objective), *(kinds.heads.get(head) for head in m.heads)]
    for label, column in (("group", m.group), ("target", m.target)):
        drawn = [part.streams if part.labelled is None else part.labelled for part in parts if label in part.sees]
        streams = {stream for one in drawn for stream in one or {"annotated"}}
        if label == "group" and (
            m.sampler != "shuffle" or m.scored_by == "balanced_head" or "thresholds" in m.probe_params
        ):
            streams.add("annotated")
        assert column == ("all" if "all" in streams else "annotated" if streams else "none")
    assert m.summary and m.paper and m.notes
    assert bool(m.search) == kinds.objectives.get(m.objective).trains  # what takes no step has nothing to tune


@pytest.mark.parametrize("name", METHODS)
def test_a_methods_file_needs_nothing_heavy(name):
    tree = ast.parse(kinds.methods.locate(name).path.read_text(encoding="utf-8"))
    imported = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert imported == ["fairssl.api"] and not any(isinstance(node, ast.Import) for node in ast.walk(tree))
