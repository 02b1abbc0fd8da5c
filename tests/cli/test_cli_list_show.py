"""`fairssl list`, `show` and `doctor`: what they say, and that listing needs nothing heavy."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib import metadata

import pytest
from reference.plugin_package import OBJECTIVE, known, write_package

from fairssl import kinds
from fairssl.cli import doctor as doctor_module
from fairssl.cli import run

HEAVY = ("torch", "torchvision", "timm", "sklearn", "pandas", "numpy")


def call(capsys, *args):
    code = run(list(args))
    out, err = capsys.readouterr()
    return code, out, err


def as_json(capsys, *args):
    code, out, _ = call(capsys, *args, "--json")
    assert code == 0
    return json.loads(out)


@pytest.mark.parametrize("args", [["--help"], ["list"], ["list", "methods"], ["list", "--json"]], ids=" ".join)
def test_nothing_heavy_is_imported(args):
    script = (
        "import sys; from fairssl.cli import run\n"
        f"code = run({args!r})\n"
        f"print('heavy:', [m for m in {HEAVY!r} if m in sys.modules], code, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    assert done.stderr.splitlines()[-1] == "heavy: [] 0"
    assert done.stdout


@pytest.mark.parametrize("kind", kinds.registries)
def test_each_kind_in_singular_and_plural(capsys, kind):
    rows = as_json(capsys, "list", kind)
    assert rows == as_json(capsys, "list", kind.removesuffix("s"))
    assert {row["name"] for row in rows} >= {*kinds.registries[kind].where()}
    assert {row["kind"] for row in rows} == {kind.removesuffix("s")}
    assert all(row["summary"] and row["package"] == "fairssl" and row["broken"] is None for row in rows)


def test_without_a_kind_everything_is_listed(capsys):
    listed = {row["kind"] for row in as_json(capsys, "list")}
    assert listed == {*(kind.removesuffix("s") for kind in kinds.registries), "grid"}


def test_grids_are_a_kind_that_show_knows_by_name(capsys):
    rows = as_json(capsys, "list", "grids")
    assert rows == as_json(capsys, "list", "grid") and {row["kind"] for row in rows} == {"grid"}
    assert "smoke" in {row["name"] for row in rows} and all(row["summary"] for row in rows)
    for row in rows:
        if row["name"].startswith("utkface_cpu"):
            assert as_json(capsys, "show", "grid", row["name"])["summary"] == row["summary"]
    code, _, err = call(capsys, "list", "grib")
    assert code == 2 and "did you mean 'grids'" in err


def test_show_grid_says_once_which_file_it_is(capsys):
    _, out, _ = call(capsys, "show", "grid", "paper_utkface")
    assert out.count("paper_utkface.toml") <= 2 and "files" not in out  # `file`, and where a comment names one


def test_the_columns_of_the_papers_first_table(capsys):
    _, out, _ = call(capsys, "list", "methods")
    head, *lines = out.splitlines()
    wanted = ["name", "adversarial", "contrastive", "label", "sensitive attribute", "generator", "theory"]
    starts = [head.index(word) for word in wanted]
    assert starts == sorted(starts)
    rows = {line.split()[0]: line for line in lines}
    assert len(rows) == len(lines), "one line per method"
    cells = [rows["sofclr"][start:].split()[0] for start in starts]
    assert cells == ["sofclr", "yes", "yes", "none", "annotated", "no", "yes"]  # the row "Our work"


def test_an_objective_without_a_method_file_is_a_method_whose_facts_are_not_stated(tmp_path, capsys):
    write_package(tmp_path, "stranger", {"objectives/agree.py": OBJECTIVE})
    with known(tmp_path):
        row = next(r for r in as_json(capsys, "list", "methods") if r["name"] == "agree")
        assert (row["objective"], row["heads"], row["package"]) == ("agree", {}, "stranger")
        facts = ("adversarial", "contrastive", "target", "group", "generator", "theory", "paper")
        assert all(row[fact] is None for fact in facts)
        _, out, _ = call(capsys, "list", "methods")
        line = next(line for line in out.splitlines() if line.startswith("agree"))
        assert line.split()[1:7] == ["-"] * 6


def test_an_unknown_kind(capsys):
    code, _, err = call(capsys, "list", "methodz")
    assert code == 2 and "did you mean 'methods'" in err


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, known in kinds.registries.items() for name in known.where()]
)
def test_every_plugin_can_be_shown(capsys, kind, name):
    content = as_json(capsys, "show", kind, name)
    assert content["kind"] == kind.removesuffix("s") and content["summary"]
    code, text, _ = call(capsys, "show", kind.removesuffix("s"), name)
    assert code == 0 and text.startswith(f"{content['kind']} {name}: {content['summary']}")


def test_a_parameter_with_its_type_default_range_meaning_and_spelling(capsys):
    content = as_json(capsys, "show", "head", "adversary")
    weight, chosen = (next(p for p in content["parameters"] if p["name"] == name) for name in ("weight", "input"))
    assert (weight["set"], weight["aliases"], weight["default"]) == ("adversary.weight", ["alpha"], 1.0)
    assert chosen["type"] == "normalized | raw | projection" and chosen["default"] == "normalized"
    assert (content["sees"], content["streams"], content["version"]) == (["group"], ["annotated"], 1)
    vicreg = as_json(capsys, "show", "objective", "vicreg")["parameters"][0]
    assert vicreg == {
        "name": "invariance",
        "set": "vicreg.invariance",
        "aliases": [],
        "type": "float",
        "default": 25.0,
        "range": ">= 0",
        "about": "Lambda in the paper.",
    }
    _, text, _ = call(capsys, "show", "head", "adversary")
    assert "adversary.weight (alias alpha) = 1.0" in text


def test_a_method_with_its_parts(capsys):
    content = as_json(capsys, "show", "method", "sofclr")
    assert (content["objective"], content["heads"]) == ("sogclr", {"adversary": 1.0})
    assert (content["target"], content["group"], content["streams"]) == ("none", "annotated", ["all", "annotated"])
    assert (content["adversarial"], content["theory"], content["scored_by"]) == (True, True, "linear")
    assert "2406.05686" in content["paper"]
    assert {"sogclr.temperature", "adversary.weight"} <= {row["set"] for row in content["parameters"]}


def test_a_composition_states_what_its_parts_say_and_nothing_else(capsys):
    content = as_json(capsys, "show", "method", "byol+adversary:0.3")
    assert (content["objective"], content["heads"], content["group"]) == ("byol", {"adversary": 0.3}, "annotated")
    assert content["adversarial"] is content["contrastive"] is content["theory"] is None
    assert next(row["default"] for row in content["parameters"] if row["set"] == "adversary.weight") == 0.3


def test_a_dataset_with_its_card(capsys):
    card = as_json(capsys, "show", "dataset", "utkface")["card"]
    assert card["licence"] and card["citation"] and card["source"] and card["obtain"]
    assert (card["defaults"]["target"], card["defaults"]["image_size"]) == ("gender", 64)
    _, text, _ = call(capsys, "show", "dataset", "utkface")
    assert "gender (1: male)" in text and "ethnicity (Caucasian, others)" in text


def test_a_metric_by_its_name_and_by_its_symbol(capsys):
    content = as_json(capsys, "show", "metric", "ed")
    assert content == as_json(capsys, "show", "metric", "ED")
    assert (content["symbol"], content["better"]) == ("ED", "lower")
    assert "in [0, 1]; 0 is fair" in content["description"]
    assert content["parameters"][0] == {"name": "reading", "type": "mean | max | sum", "default": "mean"}


def test_an_encoder_by_a_name_that_a_plugin_accepts(capsys):
    content = as_json(capsys, "show", "encoder", "resnet34")
    assert next(p["default"] for p in content["parameters"] if p["name"] == "model") == "resnet34"


@pytest.mark.parametrize(
    ("kind", "name", "near"),
    [
        ("method", "sofclrr", "sofclr"),
        ("objective", "simcl", "simclr"),
        ("head", "adversery", "adversary"),
        ("dataset", "celebb", "celeba"),
        ("metric", "gaucc", "gauc"),
        ("encoder", "small_cn", "small_cnn"),
    ],
)
def test_an_unknown_name_names_the_near_ones(capsys, kind, name, near):
    code, out, err = call(capsys, "show", kind, name)
    assert code == 2 and not out and f"'{near}'" in err and err.count("\n") == 1


def test_doctor_says_what_is_here(capsys, monkeypatch, tmp_path):
    monkeypatch.delenv("FAIRSSL_DATA", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    found = as_json(capsys, "doctor")
    assert found["problems"] == []
    assert found["packages"]["typer"] == {"version": metadata.version("typer"), "at_least": "0.15"}
    datasets = {row["name"]: row for row in found["datasets"]}
    assert datasets["colored_digits"]["found"] and datasets["colored_digits"]["images"] == 1797
    assert not datasets["utkface"]["found"] and str(tmp_path) in datasets["utkface"]["missing"]
    assert found["cache"]["folder"] == os.environ["FAIRSSL_CACHE"] and found["cache"]["free_gib"] > 0
    assert [p["name"] for p in found["plugin_packages"]] == ["fairssl"]
    assert found["plugin_packages"][0]["plugins"] == sum(len(r.where()) for r in kinds.registries.values())
    code, text, _ = call(capsys, "doctor")
    assert code == 0 and "all is well" in text


def test_doctor_shows_a_strangers_broken_plugin_and_goes_on(tmp_path, capsys):
    broken = {"heads/ill.py": "raise OSError('no model file')\n", "heads/ccl.py": OBJECTIVE}
    write_package(tmp_path, "stranger", broken)
    with known(tmp_path):
        found = as_json(capsys, "doctor")
    causes = {(one["name"], one["package"]): one["cause"] for one in found["broken_plugins"]}
    assert "no model file" in causes["ill", "stranger"]
    assert "exactly one public Head class" in causes["stranger:ccl", "stranger"]
    assert found["names_offered_twice"] == [{"kind": "head", "name": "ccl", "write": ["fairssl:ccl", "stranger:ccl"]}]


@pytest.mark.parametrize(
    ("requires", "problem"),
    [
        ("no-such-library>=2.0", "no-such-library is not installed: pip install 'no-such-library>=2.0'"),
        ("pydantic>=999", "is older than 999"),
    ],
)
def test_doctor_fails_where_something_needed_is_missing(capsys, monkeypatch, requires, problem):
    monkeypatch.setattr(doctor_module.metadata, "requires", lambda name: [requires, 'no-such-queue; extra == "slurm"'])
    code, out, _ = call(capsys, "doctor", "--json")
    found = json.loads(out)
    assert code == 1 and problem in found["problems"][0]
    assert found["extras"]["slurm"] == {"no-such-queue": None}


def test_a_method_shows_what_to_tune(capsys):
    content = as_json(capsys, "show", "method", "sofclr")
    assert content["search"]["adversary.weight"] == [0.1, 0.3, 0.5, 0.7, 0.9, 1]
    _, text, _ = call(capsys, "show", "method", "sofclr")
    assert re.search(r"search space \(--set NAME=VALUE\)\n  adversary.weight +0.1, 0.3, 0.5, 0.7, 0.9, 1\n", text)
