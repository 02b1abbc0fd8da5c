"""What sets rows and tables apart, headings and notes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fairssl import kinds
from fairssl.board.names import seeds_named
from fairssl.board.selected import chosen_settings, describe_selections
from fairssl.board.settings import not_defaults
from fairssl.board.table import DOES_NOT_COMPETE, INSIDE_FLOOR, LEAK, LEAK_MLP, Column, Row, SeedStats, Table
from fairssl.scoring import describe_pairs
from fairssl.store.record import to_json
from fairssl.types import UserError, counted


def by_seed(texts: Mapping[int, str]) -> str:
    """`seed 0, 2: this; seed 1: that`."""
    seeds: dict[str, list[int]] = {}
    for seed, text in sorted(texts.items()):
        seeds.setdefault(text, []).append(seed)
    return "; ".join(f"seed {', '.join(map(str, which))}: {text}" for text, which in seeds.items())


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """(dotted path, value as text) of everything in a nested mapping."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _leaves(inner, f"{path}.{name}" if path else str(name))
    elif isinstance(value, str):
        yield path, value
    elif type(value) in (int, float):  # as JSON writes them, but there may be millions
        yield path, repr(value)
    else:
        yield path, to_json(value)


def table_identity(spec: Mapping[str, Any], versions: Mapping[str, int | None]) -> dict[str, str]:
    """Everything that two rows of one table have in common, as text by name."""
    found = {name: value for name, value in spec["data"].items() if name not in ("dataset", "target", "attribute")}
    for part, name in (("train", "loop"), ("probe", "version")):  # of the protocol
        version = (spec.get(part) or {}).get(name)
        if version is not None:
            found[f"{part}.{name}"] = version
    metrics = {f"metric {symbol} version": "unknown" if v is None else str(v) for symbol, v in sorted(versions.items())}
    return {**dict(_leaves(found)), **metrics}


FOLLOWING = ("method.group", "method.target", "method.streams")  # follow from other settings


def differing(mappings: Sequence[Mapping[str, str]]) -> list[str]:
    """The names that have not one value in all the mappings."""
    names = {name for mapping in mappings for name in mapping}
    return sorted(name for name in names if len({mapping.get(name) for mapping in mappings}) > 1)


def what_differs(identities: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """Of each `table_identity`, what sets it apart from the others, with parameters of the data as `--set` names them. The
    fingerprint, which nobody has typed, is left out where the rest tells them all apart."""
    names = differing(identities)
    typed = [name for name in names if name != "fingerprint"]
    if len({tuple(one.get(name) for name in typed) for one in identities}) == len(identities):
        names = typed

    def told(one: Mapping[str, str], name: str) -> tuple[str, str]:
        if name.startswith("params."):
            return f"data.{name.removeprefix('params.')}", one.get(name, "default")
        return name, one.get(name, "none")

    return [dict(told(one, name) for name in names) for one in identities]


def composition(row: Row) -> dict[str, str]:
    """The row's method and settings as text by name, with names as `--set` writes them."""
    method = row.spec["method"]
    parts = [method["objective"], *method.get("heads", ())] if "objective" in method else []
    found = {"parts": "+".join(part["name"] for part in parts)}
    for part in parts:
        found |= dict(_leaves({**part.get("params", {}), "version": part.get("version", 1)}, part["name"]))
    rest = {name: value for name, value in method.items() if name not in ("name", "objective", "heads")}
    return {**found, **dict(_leaves(rest, "method")), **_settings(row)}


def _settings(row: Row) -> dict[str, str]:
    """What is set beside the method and the data."""
    skip = ("method", "data", "seed")
    found = dict(_leaves({name: value for name, value in row.spec.items() if name not in skip and value is not None}))
    return {name: value for name, value in found.items() if name not in row.facts.get("unread", ())}


def _distinct(rows: Sequence[Row], order: Sequence[str]) -> tuple[list[Row], dict[str, set[str]]]:
    """Rows in order of their labels, namesakes told apart by what they differ in: `sofclr (adversary.weight=0.5)`.

    Also label -> the names already told in it.
    """
    namesakes: dict[str, list[Row]] = {}
    for row in rows:
        namesakes.setdefault(row.label, []).append(row)
    found: list[Row] = []
    told: dict[str, set[str]] = {}
    place = {label: i for i, label in enumerate(order)}
    for label, group in sorted(
        namesakes.items(),
        key=lambda item: (min(row.family for row in item[1]), place.get(item[0], len(place)), item[0]),
    ):
        if len(group) == 1:
            found += group
            continue
        telling: list[Row] = []
        compositions, dropped = _with_dropped_heads([composition(row) for row in group])
        names = _telling(compositions, dropped)
        told_of = [", ".join(f"{name}={c[name]}" for name in names if name in c) for c in compositions]
        labels = [f"{label} ({said})" if said else label for said in told_of]
        count = Counter(labels)
        for row, one in zip(group, labels, strict=True):
            if count[one] > 1:
                one = f"{label} ({row.identity[:12]})"
            telling.append(replace(row, label=one))
            told[one] = set(names)
        found += sorted(telling, key=lambda row: (row.label, row.identity))
    return found, told


def _with_dropped_heads(compositions: Sequence[Mapping[str, str]]) -> tuple[list[dict[str, str]], list[set[str]]]:
    """The compositions with the weight 0 of each head that they lack and a namesake has: a head of weight 0 is not in a
    spec. And which heads those are, for each."""
    heads = {head for c in compositions for head in c["parts"].split("+")[1:] if f"{head}.weight" in c}
    dropped = [{head for head in heads if f"{head}.weight" not in c} for c in compositions]
    found = []
    for c, lacking in zip(compositions, dropped, strict=True):
        objective, *own = c["parts"].split("+")
        own = sorted({*own, *lacking}) if heads else own
        found.append({**c, "parts": "+".join([objective, *own]), **{f"{head}.weight": "0.0" for head in lacking}})
    return found, dropped


def _telling(compositions: Sequence[Mapping[str, str]], dropped: Sequence[set[str]]) -> list[str]:
    """The settings that tell the compositions apart. One that a composition lacks is at its default there, unless it is of a
    part that is missing altogether, which `parts` says, or the composition has a head of weight 0, which may have been what
    read it."""
    parts = [c["parts"].split("+") for c in compositions]
    of_some = {part for one in parts for part in one}

    def says_all(name: str) -> bool:
        part = name.partition(".")[0]
        return part not in of_some or all(name in c or part in own for c, own in zip(compositions, parts, strict=True))

    def differs(name: str) -> bool:
        those = [c for c, heads in zip(compositions, dropped, strict=True) if name in c or not heads]
        return len({c.get(name) for c in those}) > 1

    names = [name for name in differing(compositions) if says_all(name) and differs(name)]
    return [name for name in names if name not in FOLLOWING] or names


def make_table(
    place: tuple[str, str, str],
    apart: Mapping[str, str],
    differs: dict[str, str],
    rows: list[Row],
    n_siblings: int,
    columns: tuple[Column, ...],
    hidden: tuple[Column, ...],
    order: tuple[str, ...],
    seeds: tuple[int, ...],
) -> Table:
    dataset, target, attribute = place
    distinct, told = _distinct(rows, order)
    told = {row.label: told.get(row.label, set()) | chosen_settings(row) for row in distinct}
    measured = {symbol for row in rows for symbol, value in row.values.items() if value.mean is not None}
    columns = tuple(column for column in columns if not column.diagnostic or column.symbol in measured)
    shown = [column.symbol for column in (*columns, *hidden)]
    distinct = [_with_values(row, shown) for row in distinct]
    usual, exceptions = _usual(distinct, told)
    notes = []
    if differs:
        notes.append(
            f"The results on {dataset}, target {target}, attribute {attribute} stand in {n_siblings} tables, since "
            f"they must not be compared: {', '.join(differs)} differ{'s' if len(differs) == 1 else ''}."
        )
    notes += exceptions
    for row in distinct:
        notes += _row_notes(row, columns)
    low = [row.label for row in distinct if row.below_majority]
    if low:
        yet = next(row.below_majority for row in distinct if row.below_majority)
        notes.append(f"{', '.join(low)}: {yet}: {'do' if len(low) > 1 else 'does'} not compete for fairness.")
    return Table(
        dataset=dataset,
        target=target,
        attribute=attribute,
        rows=tuple(distinct),
        heading=tuple(_heading(place, apart, usual, distinct, columns, seeds, told)),
        notes=tuple(notes),
        differs={name: _short(name, value) for name, value in differs.items()},
        columns=columns,
        hidden=hidden,
        seeds=seeds,
    )


def _with_values(row: Row, symbols: Sequence[str]) -> Row:
    """The row with a value for each of the symbols, undefined where it has none."""
    nothing = SeedStats(None, reason=f"no seed ended well (of {len(row.seeds)})" if row.all_failed else "not measured")
    return replace(row, values={symbol: row.values.get(symbol, nothing) for symbol in symbols})


def _usual(rows: Sequence[Row], told: Mapping[str, set[str]]) -> tuple[dict[str, str], list[str]]:
    """The most frequent value of each setting and fact, and a note for each other value with the rows that have it."""
    values: dict[str, Counter[str]] = {}
    owners: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        facts = {
            name: value for name, value in row.facts.items() if name in ("n_train", "n_val", "n_test", "n_annotated")
        }
        settings = _settings(row)
        if row.facts.get("batches"):  # which stand under Images/step
            for name in ("train.batch_size", "train.annotated_batch_size"):
                settings.pop(name, None)
        for name, value in {**settings, **dict(_leaves(facts))}.items():
            values.setdefault(name, Counter())[value] += 1
            owners.setdefault((name, value), []).append(row)
    usual = {name: min(found, key=lambda value: (-found[value], value)) for name, found in values.items()}
    notes = []
    for (name, value), these in sorted(owners.items(), key=lambda item: item[0]):
        labels = [row.label for row in these if name not in told.get(row.label, ())]
        if value != usual[name] and labels:
            notes.append(f"{name} = {value} instead of {usual[name]}: {', '.join(labels)}.")
    return usual, notes


def _heading(
    place: tuple[str, str, str],
    apart: Mapping[str, str],
    usual: Mapping[str, str],
    rows: Sequence[Row],
    columns: Sequence[Column],
    seeds: Sequence[int],
    told: Mapping[str, set[str]],
) -> Iterator[str]:
    facts = next((row.facts for row in rows if row.facts.get("groups")), {})
    if facts.get("positive"):
        yield f"y = 1 is {facts['positive']}."
    if facts.get("groups"):
        yield f"Groups: {', '.join(f'{code} {label}' for code, label in enumerate(facts['groups']))}."
    pairs = describe_pairs(len(facts.get("groups", ())), facts.get("pairs") or "adjacent")
    if pairs:
        yield f"{pairs}."
    yield from _training(apart, usual, rows)
    yield from _longer(rows)
    yield from _equal_views(rows)
    yield from _not_defaults(usual, rows, told)
    yield from _neighbours(rows)
    yield from _images(usual, facts)
    yield from _departures(rows)
    if facts.get("n_unknown"):
        yield counted(
            facts["n_unknown"], "test image of unknown group is left out.", "test images of unknown group are left out."
        )
    if facts.get("cells"):
        cells = [
            f"y = {target}: " + ", ".join(f"{label} {n}" for label, n in _in_order(groups, facts.get("groups", ())))
            for target, groups in sorted(facts["cells"].items())
        ]
        yield f"Test examples: {'; '.join(cells)}."
        yield from _smallest_cell(facts["cells"])
    params = [f"{name.removeprefix('params.')}={value}" for name, value in sorted(apart.items()) if "params." in name]
    if params:
        yield f"Data parameters: {', '.join(params)}."
    content = _short("fingerprint", apart.get("fingerprint", "unknown"))
    yield f"Data version {apart.get('version', '?')}, content {content}, split {apart.get('split_seed', '?')}."
    yield from _versions(apart, rows, columns)
    yield from describe_selections(rows)
    spread = "; mean ± sample standard deviation (n - 1) over the seeds" if len(seeds) > 1 else ""
    yield f"Seeds {', '.join(map(str, seeds))}{spread}."
    percents = [column.heading for column in columns if column.percent]
    if percents:
        yield f"{', '.join(percents)} are x 100."
    if len(seeds) > 1:
        yield "Bold: the best mean, and what a paired t test over the seeds (Holm, 5 %) does not tell apart from it."
    else:
        yield "One seed: no spread is known, so nothing is bold."
    if any(value.inside_floor for row in rows for value in row.values.values()):
        yield (
            f"{INSIDE_FLOOR}: inside the noise floor, no more than what permuted groups measure on the same scores "
            "(95 % quantile)."
        )
    if any(row.is_marked for row in rows):
        yield f"{DOES_NOT_COMPETE}: does not compete for bold in some column or in all, see the notes."
    if any(column.diagnostic for column in columns):
        yield "Leak: how well a fresh linear classifier finds the group in the frozen features (balanced accuracy)."
    if LEAK_MLP in columns:
        yield (
            "Leak (MLP): the same of a perceptron with 256 hidden units, trained for 20 passes over the training features "
            "by AdamW at 1e-3, weight decay 1e-4, batches of 256, at least 500 and at most 5,000 steps."
        )
    yield from _tiers(rows)
    yield from _hardware(rows)


def _smallest_cell(cells: Mapping[str, Mapping[str, int]]) -> Iterator[str]:
    """A warning where chance alone moves a rate of the smallest target x group by more than 5 points."""
    n, target, group = min((n, target, group) for target, groups in cells.items() for group, n in groups.items())
    if not n:
        yield f"Smallest: none of y = {target}, {group}; no rate of it is defined."
    elif n < 100:
        by = 50 / n**0.5
        yield f"Smallest: {n} of y = {target}, {group}; chance alone moves a rate there by {by:.0f} points."


def _training(apart: Mapping[str, str], usual: Mapping[str, str], rows: Sequence[Row]) -> Iterator[str]:
    encoder = {name: value for name, value in usual.items() if name.startswith("encoder.params.")}
    options = ", ".join(f"{name.removeprefix('encoder.params.')}={value}" for name, value in sorted(encoder.items()))
    epochs = usual.get("train.epochs")
    sizes = {str(of.get("all", of.get("annotated"))) for row in rows if (of := row.facts.get("batches"))}
    # The default: nothing has ended, or the records do not tell.
    one = min(sizes, default=usual.get("train.batch_size", "?"))
    batch = "batches under Images/step" if len(sizes) > 1 else f"batch {one}"
    trained = [
        f"{usual.get('encoder.name', 'unknown')}{f' ({options})' if options else ''}",
        f"{apart.get('image_size', '?')} px",
        *(["not trained"] if epochs is None else [f"{epochs} epoch{'' if epochs == '1' else 's'}", batch]),
    ]
    yield f"Encoder {', '.join(trained)}."
    yield from _weights(rows)
    others = sorted({_trained_on(row.spec["pretrain"]) for row in rows if row.spec.get("pretrain")})
    if others:
        yield f"Encoders trained on {', '.join(others)}, judged on this dataset."
    if any(" + " in row.images_per_step for row in rows):
        yield "Images/step: of the whole training set, or annotated + all; every image in as many views as its method takes."


def _longer(rows: Sequence[Row]) -> Iterator[str]:
    """Which rows trained for more epochs than asked for, since `train.min_steps` are more steps."""
    for row in rows:
        batches, n_steps = row.facts.get("batches") or {}, row.facts.get("n_steps")
        train = row.spec.get("train") or {}
        if not train.get("min_steps") or row.spec.get("pretrain"):  # the facts count the images of the dataset judged
            continue
        asked = train.get("epochs")
        images = row.facts.get("n_train" if "all" in batches else "n_annotated")
        batch = batches.get("all", batches.get("annotated"))
        if None in (n_steps, asked, images, batch) or not batch or images < batch:
            continue
        done = n_steps // (images // batch)
        if done > asked:
            own = "images" if "all" in batches else "annotated images"
            yield (
                f"Trained longer than asked: {row.label}, {n_steps} steps (train.min_steps), {done} epochs of {images} {own} "
                f"in place of {asked}."
            )


def _equal_views(rows: Sequence[Row]) -> Iterator[str]:
    """That all rows take as many augmented images per step, where their batches differ."""
    batches = [row.facts.get("batches") or {} for row in rows]
    trained = [(row, of) for row, of in zip(rows, batches, strict=True) if sum(of.values())]
    views = {sum(of.values()) * row.facts.get("n_views", 0) for row, of in trained}
    if len(views) == 1 and views != {0} and len({to_json(of) for _, of in trained}) > 1:
        every = "every row" if len(trained) == len(rows) else "every row that trains"
        yield f"Equal views: {every} takes {min(views)} augmented images per step."


def _trained_on(data: Mapping[str, Any]) -> str:
    """The dataset, with its target and attribute where they are not the ones of its card."""
    name = str(data["dataset"])
    try:
        usual = kinds.datasets.get(name).card.defaults
    except UserError:  # not installed here
        return name
    if (data.get("target"), data.get("attribute")) == (usual.target, usual.attribute):
        return name
    return f"{name} (target {data.get('target')}, attribute {data.get('attribute')})"


def _not_defaults(usual: Mapping[str, str], rows: Sequence[Row], told: Mapping[str, set[str]]) -> Iterator[str]:
    """The settings that are not the defaults, with the rows that have them where not all do that could. Those that a label
    tells, or a note does since other rows have another value, are left to these."""
    owners: dict[tuple[str, str], list[str]] = {}
    could: Counter[str] = Counter()
    for row in rows:
        could.update(composition(row).keys())
        for name, value in _leaves(not_defaults(row.spec, row.name)):
            telling = told.get(row.label, set())
            if name not in telling and value == usual.get(name, value):
                owners.setdefault((name, value), []).append(row.label)
    if owners:
        each = (
            f"{name}={value}" + ("" if len(labels) >= could[name] else f" ({', '.join(labels)})")
            for (name, value), labels in sorted(owners.items())
        )
        yield f"Settings that are not the defaults: {', '.join(each)}."


def _neighbours(rows: Sequence[Row]) -> Iterator[str]:
    """How a kNN probe votes, and where there are fewer features than were asked to."""
    by_neighbours = [row for row in rows if (row.spec.get("probe") or {}).get("kind") == "knn"]
    if not by_neighbours:
        return
    yield (
        "kNN: a neighbour's vote weighs exp(cosine / probe.vote_temperature); a tie, a score of exactly 0.5, is y = 0."
    )
    few: dict[str, list[str]] = {}
    for row in by_neighbours:
        asked, there = int(row.spec["probe"]["neighbours"]), row.facts.get("n_neighbours", row.facts.get("n_train"))
        if there is not None and int(there) < asked:
            few.setdefault(f"{there} training images, all of which vote, in place of {asked}", []).append(row.label)
    for text, labels in sorted(few.items()):
        yield f"kNN of {', '.join(labels)}: there are {text} neighbours."


def _weights(rows: Sequence[Row]) -> Iterator[str]:
    """Of encoders that somebody else has trained: which file, from where, and how large the images are that they see."""
    for text in sorted(
        {to_json([row.spec["encoder"], (row.spec.get("pretrain") or row.spec["data"])["image_size"]]) for row in rows}
    ):
        encoder, stored = json.loads(text)
        params = encoder["params"]
        if not params.get("weights"):
            continue
        said = ", ".join(
            filter(None, (encoder.get("source"), encoder.get("licence") and f"licence {encoder['licence']}"))
        )
        seen = params.get("input_size") or stored
        how = "enlarged" if seen > stored else "reduced"
        size = "" if seen == stored else f"; its input is {seen} px, {how} from {stored} px"
        name = params.get("model", encoder["name"])
        yield f"Weights of {name}: {params['weights'][:12]} ({said or 'source and licence not said'}){size}."


def _images(usual: Mapping[str, str], facts: Mapping[str, Any]) -> Iterator[str]:
    percent = ""
    if "n_annotated" in usual and "n_train" in usual:  # what was done, not what was asked for
        percent = f" ({100 * int(usual['n_annotated']) / int(usual['n_train']):.3g} %)"
    counts = [
        f"{usual[name]} {what}"
        for name, what in (("n_train", "train"), ("n_val", "validation"), ("n_test", "test"))
        if name in usual
    ]
    if "n_annotated" in usual:
        counts.insert(1, f"{usual['n_annotated']} of them annotated{percent}")
    if counts:
        yield f"Images: {', '.join(counts)}."


def _departures(rows: Sequence[Row]) -> Iterator[str]:
    """What was not done as an official protocol says, by any row, and by which if not by all."""
    owners: dict[str, list[str]] = {}
    for row in rows:
        for text in row.facts.get("departures", ()):
            owners.setdefault(text, []).append(row.label)
    for text, labels in sorted(owners.items()):
        whose = "" if len(labels) == sum(bool(row.facts.get("groups")) for row in rows) else f" ({', '.join(labels)})"
        yield f"Departure from the protocol{whose}: {text}."


def _versions(apart: Mapping[str, str], rows: Sequence[Row], columns: Sequence[Column]) -> Iterator[str]:
    judged = [column for column in columns if not column.diagnostic]
    versions = {apart.get(f"metric {column.symbol} version", "unknown") for column in judged}
    if len(versions) == 1:
        yield f"Metric versions: all {min(versions)}."
    else:
        each = (f"{c.symbol} {apart.get(f'metric {c.symbol} version', 'unknown')}" for c in judged)
        yield f"Metric versions: {', '.join(each)}."
    later: dict[str, str] = {}
    for row in rows:
        later |= row.facts.get("later", {})
    if later:
        told = ", ".join(f"{symbol} ({text})" for symbol, text in sorted(later.items()))
        yield f"Computed from the kept predictions after the runs, training nothing: {told}."


def _tiers(rows: Sequence[Row]) -> Iterator[str]:
    reported = [row.label for row in rows if row.tier == "reported"]
    if reported:
        yield f"As reported, without predictions to recompute them from: {', '.join(reported)}."
    if any(row.tier == "recomputed" for row in rows):
        leak = any(row.values.get(LEAK.symbol, SeedStats(None)).mean is not None for row in rows)
        yield (
            f"Every {'other ' if reported else ''}metric is recomputed from the predictions"
            f"{'; Leak is as the run reported it' if leak else ''}."
        )


def _hardware(rows: Sequence[Row]) -> Iterator[str]:
    found = {_machine(row.facts) for row in rows} - {""}
    if found:
        yield (
            f"Trained on {'; '.join(sorted(found))}: another device, number of threads or version gives other bits, and "
            "numbers that differ within the spread over seeds."
        )


def _machine(facts: Mapping[str, Any]) -> str:
    env = facts.get("env", {})
    if not env.get("device"):
        return ""
    more = ""
    if str(env["device"]).startswith("cpu"):
        threads = str(env.get("threads") or "")
        more += f", {threads} thread{'' if threads == '1' else 's'}" if threads else ""
        more += ", augmentation compiled" if facts.get("augmentation") == "compiled" else ""
    return f"{env['device']}{more}, torch {env.get('torch', 'unknown')}"


def _in_order(groups: Mapping[str, int], order: Sequence[str]) -> list[tuple[str, int]]:
    """By group code; the file's own order is that of its keys."""
    place = {label: code for code, label in enumerate(order)}
    return sorted(groups.items(), key=lambda item: (place.get(item[0], len(place)), item[0]))


def _row_notes(row: Row, columns: Sequence[Column]) -> Iterator[str]:
    if row.failed:
        texts = {seed: f"{state}: {error}" if error else state for seed, (state, error) in row.failed.items()}
        paths = [record_path(row, seed) for seed in row.failed]
        more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        yield f"{row.label}: {by_seed(texts)}. The whole error is in {paths[0]}{more}; {WAY_OUT}."
    if row.all_failed:
        return
    if not row.is_complete:
        there = seeds_named(seed for seed in row.seeds if seed not in row.failed)
        lacking = f"; {seeds_named(row.missing)} not run" if row.missing else ""
        yield f"{row.label}: over {there} alone{lacking}: does not compete."
    if row.collapsed:
        yield f"{row.label}: {row.collapsed}: does not compete."
    one_class: Mapping[int, int] = row.facts.get("one_class", {})
    if one_class:
        told = by_seed({seed: f"y = {value}" for seed, value in one_class.items()})
        yield f"{row.label}: all predictions are one class ({told}): gaps in decisions are 0 for want of decisions."
    undefined: dict[str, list[str]] = {}
    for column in columns:
        value = row.values[column.symbol]
        if value.mean is None:
            undefined.setdefault(value.reason, []).append(column.heading)
    for reason, headings in undefined.items():
        yield f"{row.label}: {', '.join(headings)} undefined (-): {reason}."


WAY_OUT = "the same command with --retry-failed runs it again"


def record_path(row: Row, seed: int) -> str:
    """Where the record of one of the row's runs lies."""
    root = row.facts.get("root")
    return f"{root}/results/{row.keys[seed]}/record.json" if root else f"results/{row.keys[seed]}/record.json"


def _short(name: str, value: str) -> str:
    return value[:12] if name == "fingerprint" else value
