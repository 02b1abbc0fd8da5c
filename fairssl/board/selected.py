"""By which rule settings were chosen on validation data, as the heading of a table says it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fairssl.board.names import seeds_named
from fairssl.board.table import Row
from fairssl.store.runs import SEARCH
from fairssl.types import counted


def selections_of(facts: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What a record says of the rules that chose its settings; earlier versions of fairssl noted one alone."""
    found = facts.get("selection") or []
    return [one for one in (found if isinstance(found, list) else [found]) if isinstance(one, Mapping)]


def chosen_settings(row: Row) -> set[str]:
    """The settings of a row that a rule has chosen: they are told with the rule, and are no exceptions."""
    return {name for one in _seeds_of(row) for name in json.loads(one).get("chosen", {})}


def describe_selections(rows: Sequence[Row]) -> Iterator[str]:
    """For each search by a rule: how much was tried, what was chosen for which rows, and for which no setting met the rule."""
    searches: dict[str, list[tuple[Row, dict[str, Any], tuple[int, ...]]]] = {}
    for row in rows:
        for text, seeds in _seeds_of(row).items():
            one = json.loads(text)
            asked = one.get("asked", one.get("trials", "unknown"))
            search = json.dumps([asked if name == "asked" else one.get(name) for name in SEARCH])
            searches.setdefault(search, []).append((row, one, seeds))
    for search, chosen in sorted(searches.items()):
        rule, reference, asked, trial_seeds = json.loads(search)
        of_seeds = f", {len(trial_seeds)} seeds per trial" if len(trial_seeds or ()) > 1 else ""
        fewer = "; ".join(dict.fromkeys(filter(None, (_tried(row.label, one) for row, one, _ in chosen))))
        yield (
            f"Settings selected by rule {rule or 'unknown'}{f' (reference {reference})' if reference else ''}, "
            f"{counted(asked, 'trial') if isinstance(asked, int) else 'unknown trials'} each"
            f"{f' ({fewer})' if fewer else ''}{of_seeds}, on validation data: "
            f"{'; '.join(_chosen(row, one, seeds) for row, one, seeds in chosen)}."
        )
        flags: dict[str, list[str]] = {}
        for row, one, _ in chosen:
            if one.get("flag"):
                flags.setdefault(str(one["flag"]), []).append(row.label)
        for flag, labels in flags.items():
            yield f"Rule {rule} was not met for {', '.join(labels)}: {flag}."


def _seeds_of(row: Row) -> dict[str, tuple[int, ...]]:
    """Selection as JSON -> the seeds of the row that it is noted of."""
    found: dict[str, tuple[int, ...]] = {}
    for seed, selections in row.facts.get("selections", {}).items():
        for text in selections:
            found[text] = (*found.get(text, ()), seed)
    return found


def _tried(label: str, selection: Mapping[str, Any]) -> str:
    """Where fewer settings were tried, or judged, than was asked for: how many, and why. Else empty."""
    n, asked, space = (selection.get(name) for name in ("trials", "asked", "space"))
    if n is None or asked is None or space is None or n == asked > 1:
        return ""
    if space == 1:
        return f"{label} has nothing to search"
    if n < min(asked, space):
        return f"{label} {n} of {min(asked, space)}, the others did not end well"
    return f"{label} {n}, its whole space" if n == space else ""


def _chosen(row: Row, selection: Mapping[str, Any], seeds: Sequence[int]) -> str:
    settings = ", ".join(f"{name}={value}" for name, value in sorted(selection.get("chosen", {}).items()))
    alone = "" if len(seeds) == len(row.seeds) else f" ({seeds_named(seeds)} alone)"
    return f"{row.label}{f' with {settings}' if settings else ''}{alone}"
