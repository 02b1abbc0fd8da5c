"""`fairssl show`: everything about one plugin, one composition, one grid, or the settings of the training and the probe."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import typer

from fairssl.cli._describe import describe
from fairssl.cli._table import Column, echo_facts, echo_prose, echo_table, screen


def show(
    kind: str = typer.Argument(
        ..., help="method, objective, head, encoder, dataset, metric or grid, plural too; or train, or probe."
    ),
    name: str | None = typer.Argument(
        None, help="As `fairssl list` prints it; for a method also byol+adversary:0.3, for a grid also a TOML file."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print one object."),
) -> None:
    """What a plugin is: its paper, parameters with defaults, what it sees, and how --set spells it.

    `show train` and `show probe` list what --set reaches in the training and in the linear probe of every method.

    Examples:

        fairssl show method sofclr
        fairssl show metric ED
        fairssl show train
        fairssl show grid paper_celeba
    """
    content = describe(kind, name)
    if as_json:
        typer.echo(json.dumps(content, indent=2, ensure_ascii=False))
    else:
        _print(content)


PROSE = ("paper", "source", "description", "notes")


def _print(content: Mapping[str, Any]) -> None:
    there = screen()
    head = " ".join(filter(None, (content["kind"], content["name"])))
    summary = content["summary"]
    text = f"{head}: {summary}" if summary else head
    echo_prose(text) if there.width else typer.echo(text)
    for key in PROSE:
        for paragraph in (content.get(key) or "").split("\n\n"):
            if paragraph and paragraph != summary:
                typer.echo()
                echo_prose(paragraph)
    skipped = {"kind", "name", "summary", "parameters", "card", "settings", "search", *PROSE}
    facts = {**{k: v for k, v in content.items() if k not in skipped}, **_card(content.get("card"))}
    if facts:
        typer.echo()
        echo_facts((key.replace("_", " "), value_text(value)) for key, value in facts.items())
    for i, settings in enumerate(content.get("settings", ())):
        several = len(content["settings"]) > 1
        typer.echo("\n" + there.style(f"settings of block {i + 1}" if several else "settings", bold=True))
        echo_facts(((key, value_text(value)) for key, value in settings.items()), indent=2)
    if content.get("parameters"):
        typer.echo("\n" + there.style("parameters", bold=True) + _spelling(content["parameters"]))
        columns = Column(fg="cyan", least=36), Column(least=12), Column(least=24)
        echo_table(columns, map(_parameter, content["parameters"]), indent=2)
    if content.get("search"):
        typer.echo("\n" + there.style("search space", bold=True) + " (--set NAME=VALUE)")
        echo_facts(((name, value_text(values)) for name, values in content["search"].items()), indent=2)


def _spelling(rows: Sequence[Mapping[str, Any]]) -> str:
    return " (--set NAME=VALUE)" if "set" in rows[0] else ""


def _card(card: Mapping[str, Any] | None) -> dict[str, Any]:
    if card is None:
        return {}
    positive = {target: f"{target} (1: {card['positive'][target]})" for target in card["positive"]}
    attributes = [f"{name} ({', '.join(groups)})" for name, groups in card["attributes"].items()]
    return {
        **{key: value for key, value in card.items() if key not in ("positive", "defaults", "attributes", "targets")},
        "targets": [positive.get(target, target) for target in card["targets"]],
        "attributes": attributes,
        **{f"default_{key}": value for key, value in card["defaults"].items()},
    }


def _parameter(row: Mapping[str, Any]) -> list[str]:
    alias = f" (alias {', '.join(row['aliases'])})" if row.get("aliases") else ""
    bounds = re.sub("([<>]=?) ", r"\1", row.get("range", ""))  # each bound one word, not to be broken
    return [
        f"{row.get('set', row['name'])}{alias} = {value_text(row['default'])}",
        ", ".join(filter(None, (row["type"], bounds))),
        row.get("about", ""),
    ]


def value_text(value: Any) -> str:
    """A value as a person reads it: yes and no, lists and mappings on a line, a dash for what is not there."""
    if value is None or value == "" or (isinstance(value, list | tuple | dict) and not value):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping) and any(isinstance(one, Mapping) for one in value.values()):
        return "; ".join(f"{key}: {value_text(one)}" for key, one in value.items())
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {value_text(one)}" for key, one in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(value_text, value))
    return str(value)
