"""What methods are called in print, and in which order they stand."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from fairssl.board.paper import paper_names

# Spellings of the paper's methods that the registry takes too.
_SAME = {
    "simclr_ccl": "simclr+ccl",
    "ce_eod": "ce+eod",
    "ce_dpr": "ce+dpr",
    "ce_eql": "ce+eql",
    "sogclr+adversary": "sofclr",
}


def paper_method(name: str) -> str:
    """The registry name under which the paper's tables have a method; the name itself where they have none."""
    return _SAME.get(name, name)


def seeds_named(seeds: Iterable[object]) -> str:
    """`seed 2`, or `seeds 0, 1`."""
    found = list(map(str, seeds))
    return f"{'seed' if len(found) == 1 else 'seeds'} {', '.join(found)}"


def printed_name(label: str) -> str:
    """A row's label with the method's name as papers print it: `sofclr (adversary.weight=0.5)` -> `SoFCLR (...)`."""
    name, space, rest = label.partition(" (")
    return paper_names().get(paper_method(name), name) + space + rest


def in_paper_order(asked: Sequence[str], labels: Collection[str]) -> tuple[str, ...]:
    """Labels in the order that was asked for, then in that of the paper's tables, then by the alphabet."""
    order = {name: i for i, name in enumerate(paper_names())}
    rest = sorted(set(labels) - set(asked), key=lambda label: (order.get(paper_method(label), len(order)), label))
    return (*asked, *rest)
