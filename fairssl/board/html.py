"""Tables as one HTML file that needs no network: sortable, filterable, with plots and the provenance of every row."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from importlib import resources

from fairssl import kinds
from fairssl.board import page
from fairssl.board.describe import composition
from fairssl.board.names import printed_name
from fairssl.board.pareto_svg import pareto_svg
from fairssl.board.table import DOES_NOT_COMPETE, LEAK, TAIL, Column, Row, SeedStats, Table, ends
from fairssl.board.tradeoff import TradeOff, best_rows_of, sentences, trade_offs
from fairssl.types import UserError, counted

PAPER = (
    "Qi, Hu, Lin, Yang: Provable Optimization for Adversarial Fair Self-supervised Contrastive Learning, 2024 "
    "(SoFCLR and the layout of the tables)"
)


def to_html(*tables: Table) -> str:
    """The whole page. Text of the user's own is shown as text: no script but the page's own may run, none loads anything."""
    style, script = (
        resources.files(page).joinpath(name).read_text(encoding="utf-8") for name in ("style.css", "script.js")
    )
    policy = "; ".join(
        ("default-src 'none'", f"style-src '{_hash(style)}'", f"script-src '{_hash(script)}'", "img-src data:")
    )
    sections = "\n".join(_section(f"t{number}", table) for number, table in enumerate(tables, start=1))
    contents = "\n".join(f'<li><a href="#t{i}">{text(t.title)}</a></li>' for i, t in enumerate(tables, start=1))
    n_rows = sum(len(table.rows) for table in tables)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>fairssl: accuracy and fairness</title>
<style>{style}</style>
</head>
<body data-view="mean">
<header>
<h1>Accuracy and fairness of learned representations</h1>
<p class="quiet">{counted(len(tables), "table")}, {counted(n_rows, "row")}, made by fairssl.
Point at a number, or move to it with Tab, for its interval and noise floor.</p>
<nav aria-label="Tables"><ul>
{contents}
</ul></nav>
<div class="controls">
<label>Filter rows <input type="search" id="filter" autocomplete="off" placeholder="method, setting, seen"></label>
<span id="count" role="status" class="quiet"></span>
<fieldset><legend>Show</legend>
<label><input type="radio" name="view" value="mean" checked autocomplete="off"> mean ± sd</label>
<label><input type="radio" name="view" value="interval" autocomplete="off"> 95 % interval</label>
<label><input type="radio" name="view" value="seeds" autocomplete="off"> every seed</label>
</fieldset>
</div>
<p id="said" class="sr" role="status"></p>
</header>
<main>
{sections}
</main>
<footer>
<h2>How to cite</h2>
{_cite(tables)}
</footer>
<div id="tip" role="tooltip" hidden></div>
<script>{script}</script>
</body>
</html>
"""


def text(value: object) -> str:
    """What a reader sees as it is, in an element or an attribute; control characters are left out."""
    return escape("".join(sign for sign in " ".join(str(value).split()) if sign.isprintable()), quote=True)


def _tip(lines: Sequence[str]) -> str:
    """A `data-tip` attribute of several lines, for an element that can have the focus."""
    return f' tabindex="0" data-tip="{"&#10;".join(text(line) for line in lines)}"' if lines else ""


def _hash(content: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()


def _section(anchor: str, table: Table) -> str:
    heads = "".join(_head(name, table) for name in table.head)
    firsts = {family.start for family in table.families()[1:]}
    rows = "\n".join(_row(i, row, table, i in firsts) for i, row in enumerate(table.rows))
    facts = "".join(f"<li>{text(sentence)}</li>" for sentence in table.heading)
    notes = "".join(f"<li>{text(note)}</li>" for note in table.notes)
    return f"""<section aria-labelledby="{anchor}">
<h2 id="{anchor}">{text(table.title)}</h2>
<div class="scroll" role="region" tabindex="0" aria-labelledby="{anchor}">
<table class="board">
<thead><tr>{heads}</tr></thead>
<tbody>
{rows}
</tbody>
</table>
</div>
{f'<ul class="notes">{notes}</ul>' if notes else ""}
<details><summary>What the numbers are of</summary><ul class="facts">{facts}</ul></details>
{_plots(anchor, table)}
<details><summary>Provenance of each row: settings, keys, versions, the command that trains it again</summary>
{"".join(_provenance(row) for row in table.rows)}
</details>
</section>"""


def _head(name: str, table: Table) -> str:
    column = next((c for c in table.columns if c.heading == name), None)
    if column is None:
        word = "" if name == TAIL[-1] else ' class="word"'
        return f'<th scope="col"{word}><button type="button">{text(name)}</button></th>'
    first = "descending" if column.better == "higher" else "ascending"
    means = "higher is better" if column.better == "higher" else "lower is better"
    said = f'<span class="sr"> ({means})</span>'
    return (
        f'<th scope="col" data-first="{first}"><button type="button">{text(name)} '
        f'<span aria-hidden="true">{column.arrow}</span>{said}</button></th>'
    )


def _row(i: int, row: Row, table: Table, first: bool) -> str:
    cells = [_label(row)]
    if row.all_failed:
        cells.append(f'<td class="failed" data-value="" colspan="{len(table.columns)}">{text(row.verdict)}</td>')
        cells += ["<td hidden></td>"] * (len(table.columns) - 1)
    else:
        cells += [_cell(i, row, column, table) for column in table.columns]
    target, group, images, seeds = ends(row)
    words = (
        f'<td class="word">{text(target)}</td><td class="word">{text(group)}</td><td class="word">{text(images)}</td>'
    )
    n_ok = len(row.seeds) - len(row.failed)
    search = text(f"{row.label} {printed_name(row.label)} {target} {group} {row.verdict}".lower())
    kind = ' class="family-first"' if first else ""
    return (
        f'<tr{kind} data-order="{i}" data-text="{search}">{"".join(cells)}{words}'
        f'<td data-value="{n_ok}">{text(seeds)}</td></tr>'
    )


def _label(row: Row) -> str:
    why = []
    if not row.is_complete:
        why.append("does not compete: not every seed of the table is there")
    if row.collapsed:
        why.append(f"does not compete: {row.collapsed}")
    if row.below_majority:
        why.append(f"does not compete for fairness: {row.below_majority}")
    mark = f' <span class="mark"{_tip(why)}>{DOES_NOT_COMPETE}</span>' if why else ""
    return f"<td>{text(printed_name(row.label))}{mark}</td>"


def _cell(i: int, row: Row, column: Column, table: Table) -> str:
    value = row.values[column.symbol]
    if value.mean is None:
        return f'<td class="undefined" data-value=""{_tip([f"undefined: {value.reason}"])}>–</td>'
    best = (i, column.symbol) in table.best
    kinds_ = [*(["best"] if best else []), *(["floor"] if value.inside_floor else [])]
    kind = f' class="{" ".join(kinds_)}"' if kinds_ else ""
    tip = _tip(list(_about(value, column, best, table.ranks.get((i, column.symbol)))))
    spread = "" if value.sd is None else f" ± {column.show(value.sd)}"
    interval = (
        "" if value.low is None or value.high is None else f" [{column.show(value.low)}, {column.show(value.high)}]"
    )
    seeds = " ".join("–" if x is None else column.show(x) for x in value.by_seed.values())
    shown = column.show(value.mean)
    return (
        f'<td{kind} data-value="{value.mean!r}"{tip}><span class="view-mean">{shown}{spread}</span>'
        f'<span class="view-interval">{shown}{interval}</span><span class="view-seeds">{seeds}</span></td>'
    )


def _about(value: SeedStats, column: Column, best: bool, rank: int | None) -> Iterator[str]:
    if value.low is not None and value.high is not None:
        yield f"95 % interval {column.show(value.low)} to {column.show(value.high)} (t over {value.n} seeds)"
    elif value.n == 1:
        yield "one seed: no interval"
    if rank is not None:
        yield f"rank {rank}" + (", in the tie group of the best" if best and rank > 1 else ", best" if best else "")
    if value.floor is not None:
        yield f"noise floor: {column.show(value.floor[0])} on average, 95 % below {column.show(value.floor[1])}"
    if value.inside_floor:
        yield "inside the noise floor"
    yield "by seed: " + ", ".join(f"{s}: {'–' if x is None else column.show(x)}" for s, x in value.by_seed.items())


def _plots(anchor: str, table: Table) -> str:
    """Accuracy against each gap, the first shown."""
    accuracy = next((c for c in table.columns if c.better == "higher" and not c.diagnostic), None)
    gaps = [c for c in table.columns if c.is_gap]
    drawn = [] if accuracy is None else [(gap, svg) for gap in gaps if (svg := pareto_svg(table, accuracy, gap))]
    if accuracy is None or not drawn:
        return ""
    options = "".join(f'<option value="{text(gap.symbol)}">{text(gap.heading)}</option>' for gap, _ in drawn)
    told = {one.gap.symbol: _told(one) for one in trade_offs(table)}
    plots = "\n".join(
        f'<div data-plot-of="{anchor}" data-metric="{text(gap.symbol)}"{"" if at == 0 else " hidden"}>{svg}'
        f"{told.get(gap.symbol, '')}</div>"
        for at, (gap, svg) in enumerate(drawn)
    )
    return f"""<h3>Trade-off</h3>
<label>{text(accuracy.heading)} against <select data-plots="{anchor}" autocomplete="off">{options}</select></label>
{plots}"""


def _told(one: TradeOff) -> str:
    """Front and hypervolume in words, and the best accuracy at each limit as a table."""
    words = "".join(f"<li>{text(sentence)}</li>" for sentence in sentences(one))
    heads = (f"{one.gap.heading} at most", "Method", one.accuracy.heading, one.gap.heading)
    head = "".join(f'<th scope="col">{text(name)}</th>' for name in heads)
    body = "".join(f"<tr>{''.join(f'<td>{text(cell)}</td>' for cell in row)}</tr>" for row in best_rows_of(one))
    return (
        f'<ul class="facts">{words}</ul><div class="scroll narrow" role="region" tabindex="0" aria-label="Best at a limit">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _provenance(row: Row) -> str:
    facts = row.facts
    hashes = {
        "data": row.spec["data"].get("fingerprint"),
        "split": facts.get("split_hash"),
        "annotated subset": facts.get("annotated_hash"),
    }
    entries: list[tuple[str, str]] = [
        ("Saw", f"target: {text(row.target_seen)}; group: {text(row.group_seen)}; {text(_seen(row))}"),
        (
            "Settings",
            text(", ".join(f"{name}={value}" for name, value in sorted(composition(row).items()) if value != "")),
        ),
        ("Runs", ", ".join(f"seed {seed}: <code>{text(key)}</code>" for seed, key in row.keys.items())),
        ("Hashes", text(", ".join(f"{name} {value}" for name, value in hashes.items() if value))),
    ]
    for environment, seeds in row.environments.items():
        found: Mapping[str, object] = json.loads(environment)
        sources = found.get("sources")
        versions = ", ".join(f"{name} {value}" for name, value in found.items() if name != "sources" and value)
        entries.append((f"Seed {', '.join(map(str, seeds))}", text(versions)))
        if isinstance(sources, Mapping) and sources:
            entries.append(("Sources", text(", ".join(f"{name} {value}" for name, value in sources.items()))))
    tier = {"recomputed": "recomputed from the predictions", "reported": "as reported, without predictions"}
    if row.values.get(LEAK.symbol, SeedStats(None)).mean is not None:
        tier["recomputed"] += "; Leak as reported"
    entries.append(("Numbers", tier.get(row.tier or "", "as the runs recorded them")))
    entries.append(
        (
            "Train it again",
            f"<pre>{text(row.command)}</pre>" if row.command else "no single command gives these settings",
        )
    )
    listed = "".join(f"<dt>{text(name)}</dt><dd>{value}</dd>" for name, value in entries if value)
    return f"<details><summary>{text(printed_name(row.label))}</summary><dl>{listed}</dl></details>"


def _seen(row: Row) -> str:
    n_views = row.facts.get("n_views")
    views = f" in {counted(n_views, 'view')} each" if n_views else ""
    steps = f", {row.facts['n_steps']} steps" if row.facts.get("n_steps") is not None else ""
    return f"{row.images_per_step} images per step{views}{steps}"


def _cite(tables: Sequence[Table]) -> str:
    cited = [f"<li>{text(PAPER)}</li>"]
    for name in sorted({table.dataset for table in tables}):
        try:
            card = kinds.datasets.get(name).card
        except UserError:  # a package that is not installed here
            continue
        if card.citation:
            cited.append(f"<li>{text(name)}: {text(card.citation)} Licence: {text(card.licence)}</li>")
    listed = "".join(cited)
    return f"<p>fairssl, and what the numbers rest on:</p><ul>{listed}</ul>"
