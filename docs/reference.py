"""Makes the site's reference pages out of the code when the site is built; a hook of mkdocs, named in mkdocs.yml.

No list of plugins, options or parameters is written by hand: a page here asks the registries, the command line and the
docstrings, as `fairssl list`, `show` and `--help` do. CONTRIBUTING.md and CHANGELOG.md become pages as they are.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

from fairssl import api, kinds
from fairssl.cli import application
from fairssl.cli._describe import describe
from fairssl.cli._help import THEMES
from fairssl.cli.list_ import FACTS
from fairssl.cli.show import value_text
from fairssl.plan.request import grid_names

ROOT = Path(__file__).parents[1]
OURS = "fairssl"  # whose plugins the site tells of; what else is installed where it is built is not in it


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages that are made from code, and the files beside docs/ that are part of the site."""
    for path, page in PAGES.items():
        files.append(File.generated(config, path, content=page()))
    for path, source in TAKEN_OVER.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, path, content=from_root(text) if path.endswith(".md") else text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Puts generated tables where a written page asks for one by `<!-- generated: NAME -->`, and links right."""

    def put(found: re.Match[str]) -> str:
        if found.group(1) not in TABLES:
            known = ", ".join(TABLES)
            raise PluginError(f"{page.file.src_uri}: no generated table {found.group(1)!r}; there are {known}")
        return "\n".join(TABLES[found.group(1)]())

    markdown = re.sub(r"<!-- generated: (\S+) -->", put, markdown)
    return re.sub(
        r"\[([^\]]+)\]\((\.\./[^)\s]+)\)", lambda found: within_site(*found.groups(), page.file.src_uri), markdown
    )


# Files of the checkout that are part of the site -> where they lie from the root.
TAKEN_OVER = {
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    "fairssl.ipynb": "examples/fairssl.ipynb",
}


def from_root(text: str) -> str:
    """Links of a file in the checkout's root as docs/ has them."""
    links = re.sub(r"\]\((?![a-z]+:|#)", "](../", text)
    return links.replace("](../docs/", "](")


def within_site(text: str, link: str, page: str) -> str:
    """A link that leaves docs/: to where the site has the file, or else the file's name alone, as the site has no checkout."""
    path = (ROOT / "docs" / page).parent.joinpath(link.partition("#")[0]).resolve()
    if path.is_relative_to(ROOT / "docs") or not path.exists():
        return f"[{text}]({link})"
    name = path.relative_to(ROOT).as_posix()
    for target, source in TAKEN_OVER.items():
        if source == name:
            return f"[{text}]({'../' * page.count('/')}{target})"
    return f"`{name}`" if text == name else f"{text} (`{name}`)"


# Markdown


def escaped(text: str) -> str:
    """Plain text as Markdown that shows it as it is; words in backticks stay code, addresses become links."""
    parts = re.split(r"(`[^`]+`|https?://[^\s,;)]*[^\s,;).])", text)

    def shown(part: str) -> str:
        return part if part.startswith("`") else f"<{part}>" if part.startswith("http") else _plain(part)

    return "".join(map(shown, parts))


def _plain(text: str) -> str:
    return re.sub(r"([\\*_<>\[\]|#~])", r"\\\1", text)


def code(text: str) -> str:
    """Inline code, also within a table."""
    return f"`{text}`".replace("|", r"\|")


def cell(text: str) -> str:
    """Text in a table: one line, a bar in its code no border."""
    return re.sub(r"(?<!\\)\|", r"\|", " ".join(text.split()))


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """A Markdown table; the cells are Markdown already."""
    yield "| " + " | ".join(head) + " |"
    yield "| " + " | ".join("---" for _ in head) + " |"
    for row in rows:
        yield "| " + " | ".join(map(cell, row)) + " |"
    yield ""


def paragraphs(text: str, language: str = "python") -> Iterator[str]:
    """A docstring: indented paragraphs are examples, lists stay lists, bold stays bold, all else is prose."""
    for paragraph in _joined(re.split(r"\n\s*\n", inspect.cleandoc(text))):
        if paragraph.startswith("    "):
            yield f"```{language}\n{textwrap.dedent(paragraph)}\n```\n"
        elif paragraph.strip():
            yield re.sub(r"(?m)^\\\*\\\*(.+?)\\\*\\\*", r"**\1**", escaped(paragraph)) + "\n"


def _joined(parts: Iterable[str]) -> list[str]:
    """Indented paragraphs that follow each other are one example."""
    found: list[str] = []
    for part in parts:
        if found and found[-1].startswith("    ") and part.startswith("    "):
            found[-1] += "\n\n" + part
        else:
            found.append(part)
    return found


def facts(rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    """A list of names and values, those left out that say nothing."""
    for name, value in rows:
        if value not in ("", "-"):
            yield f"- {name}: {value}"
    yield ""


# What each kind of plugin has to tell


def names(kind: str) -> list[str]:
    """The names of fairssl's own plugins of a kind, in the plural."""
    offers = kinds.by_kind(kind).offers()
    return sorted(name for name, places in offers.items() if any(place.package == OURS for place in places))


def method_names() -> list[str]:
    """Method files, and objectives that are methods by their own name."""
    return sorted({*names("methods"), *names("objectives")})


def parameters(content: Mapping[str, Any]) -> Iterator[str]:
    rows = content["parameters"]
    if not rows:
        return
    settable = "set" in rows[0]
    yield ("Parameters, as `--set NAME=VALUE` takes them:" if settable else "Arguments of the function:") + "\n"
    cells = [
        (
            code(row.get("set", row["name"])) + "".join(f", {code(one)}" for one in row.get("aliases", ())),
            code(value_text(row["default"])),
            escaped(", ".join(filter(None, (row["type"], row.get("range", ""))))),
            escaped(row.get("about", "")),
        )
        for row in rows
    ]
    width = 4 if settable else 3
    yield from table(("name", "default", "values", "what it is")[:width], (row[:width] for row in cells))


def heading(content: Mapping[str, Any]) -> Iterator[str]:
    yield f"## {escaped(content['name'])} {{ #{content['name']} }}\n"
    yield escaped(content["summary"]) + "\n"


def prose(content: Mapping[str, Any]) -> Iterator[str]:
    for key in ("source", "description", "notes"):
        text = content.get(key) or ""
        if text != content["summary"]:
            yield from paragraphs(text)


def method(content: Mapping[str, Any]) -> Iterator[str]:
    yield from heading(content)
    if content["paper"]:
        yield f"{escaped(content['paper'])}\n"
    yield from prose(content)
    heads = [f"[{head}](heads.md#{head}) at weight {weight:g}" for head, weight in content["heads"].items()]
    objective = content["objective"]
    yield from facts(
        (
            ("aliases", ", ".join(map(code, content["aliases"]))),
            ("made of", " + ".join([f"[{objective}](objectives.md#{objective})", *heads])),
            ("target seen", content["target"]),
            ("group seen", content["group"]),
            ("images", ", ".join(content["streams"])),
            ("drawn", content["sampler"].replace("_", " ")),
            ("scored by", SCORED_BY[content["scored_by"]]),
            ("training, where it differs", assignments("train", content["train"])),
            ("probe, where it differs", assignments("probe", content["probe_params"])),
            ("search space of `fairssl tune`", search_space(content.get("search") or {})),
            ("versions", ", ".join(f"{name} {version}" for name, version in content["versions"].items())),
        )
    )
    yield from parameters(content)


SCORED_BY = {
    "linear": "a linear probe on the targets of all training images",
    "own": "the method's own classifier",
    "annotated_head": "a fresh linear head on the annotated images",
    "balanced_head": "a fresh linear head on as many annotated images of each target and group",
}


def assignments(part: str, values: Mapping[str, Any]) -> str:
    return ", ".join(code(f"{part}.{name}={value_text(value)}") for name, value in values.items())


def search_space(values: Mapping[str, Sequence[Any]]) -> str:
    return "; ".join(f"{code(name)} {', '.join(map(value_text, choices))}" for name, choices in values.items())


def part(content: Mapping[str, Any]) -> Iterator[str]:
    """An objective or a head."""
    yield from heading(content)
    yield from prose(content)
    yield from facts(
        (
            ("sees", ", ".join(content["sees"]) or "images alone"),
            ("images", ", ".join(content["streams"]) or "none in training: it is fitted on the finished features"),
            ("views of an image", str(content["n_views"])),
            ("gives", content.get("gives", "")),
            ("needs", content.get("needs") or ""),
            ("captured as a CUDA graph", value_text(content["capturable"])),
            ("version", str(content["version"])),
        )
    )
    yield from parameters(content)


def encoder(content: Mapping[str, Any]) -> Iterator[str]:
    yield from heading(content)
    yield from prose(content)
    yield from parameters(content)


def dataset(content: Mapping[str, Any]) -> Iterator[str]:
    card = content["card"]
    yield from heading(content)
    yield from prose(content)
    groups = (
        name if tuple(labels) == (f"not {name}", name) else f"{name} ({', '.join(labels)})"
        for name, labels in card["attributes"].items()
    )
    defaults, positive = card["defaults"], card["positive"]
    of_target = (
        target if positive.get(target, target) == target else f"{target} (1: {positive[target]})"
        for target in card["targets"]
    )
    yield from facts(
        (
            ("title", escaped(card["title"])),
            ("licence", escaped(card["licence"])),
            ("source", escaped(card["source"])),
            ("citation", escaped(card["citation"])),
            ("how to get it", "nothing to do: it is made by fairssl" if card["embedded"] else escaped(card["obtain"])),
            ("targets", escaped("; ".join(of_target))),
            ("sensitive attributes", escaped("; ".join(groups))),
            ("in an order", escaped(", ".join(card["ordered"]))),
            ("defaults", escaped(", ".join(f"{k.replace('_', ' ')} {v}" for k, v in defaults.items() if v != ""))),
        )
    )
    yield from parameters(content)


def metric(content: Mapping[str, Any]) -> Iterator[str]:
    yield f"## {escaped(content['symbol'])} {{ #{content['name']} }}\n"
    yield escaped(content["summary"]) + "\n"
    yield from prose(content)
    yield from facts(
        (
            ("name", code(content["name"])),
            ("better", content["better"]),
            ("printed", content["printed"]),
            ("a column of every table", value_text(content["headline"])),
            ("given the target", value_text(content["given_target"])),
            ("the same when two groups change places", value_text(content["symmetric"])),
            ("version", str(content["version"])),
        )
    )
    yield from parameters(content)


def grid(content: Mapping[str, Any]) -> Iterator[str]:
    yield from heading(content)
    yield from paragraphs(content["description"])
    lists = ("methods", "datasets", "targets", "attributes", "seeds")
    yield from facts(
        (
            ("runs", str(content["runs"])),
            ("pretrainings", str(content["pretrainings"])),
            *((name, escaped(value_text(content[name]))) for name in lists),
        )
    )
    for i, settings in enumerate(content["settings"]):
        if len(content["settings"]) > 1:
            yield f"Block {i + 1}:\n"
        rest = ((name, code(value_text(value))) for name, value in settings.items() if name not in lists)
        yield from facts(rest)


def settings(kind: str) -> Iterator[str]:
    content = describe(kind, None)
    yield f"## {kind} {{ #{kind} }}\n"
    yield from paragraphs(content["summary"])
    yield from paragraphs(content["description"])
    yield from parameters(content)
    own = content["set_by_methods"]
    if own:
        yield "Set otherwise by a method, unless the user says it:\n"
        yield from table(
            ("method", "values"),
            ((f"[{name}](methods.md#{name})", assignments(kind, values)) for name, values in own.items()),
        )


# Pages


def page(title: str, intro: str, body: Iterable[str]) -> str:
    return "\n".join([f"# {title}\n", intro + "\n", *body]) + "\n"


def of_kind(title: str, intro: str, one: str, all_names: Callable[[], Iterable[str]], show: Any) -> Callable[[], str]:
    def make() -> str:
        found = [describe(one, name) for name in all_names()]
        return page(title, intro, (line for content in found for line in show(content)))

    return make


def metrics_in_order() -> list[str]:
    found = {name: kinds.metrics.get(name) for name in names("metrics")}
    return sorted(found, key=lambda name: found[name].order)


def methods_page() -> str:
    intro = (
        "What each method is made of, what it may see, and its parameters; `fairssl show method NAME` prints the same. "
        "[One table of all of them](../methods.md)."
    )
    return page("Methods", intro, (line for name in method_names() for line in method(describe("method", name))))


def methods_table() -> Iterator[str]:
    """What each method is made of and sees, and the other columns of the paper's first table where they say yes."""
    rows = []
    for name in method_names():
        content = describe("method", name)
        made_of = " + ".join(escaped(part) for part in (content["objective"], *content["heads"]))
        words = [FACTS_IN_WORDS.get(key, key) for key in FACTS.values() if content[key] is True]
        seen = [content["target"], content["group"]]
        link = f"[{escaped(name)}](reference/methods.md#{name})"
        rows.append([link, made_of, *seen, ", ".join(words), escaped(content["summary"])])
    yield from table(("method", "made of", "target seen", "group seen", "kind", "what it is"), rows)


FACTS_IN_WORDS = {"generator": "with a generator", "theory": "with a convergence theory"}


def metrics_table() -> Iterator[str]:
    rows = []
    for name in metrics_in_order():
        one = describe("metric", name)
        rows.append((f"[{one['symbol']}](reference/metrics.md#{name})", one["better"], escaped(one["summary"])))
    yield from table(("metric", "better", "what it is"), rows)


def licences_table() -> Iterator[str]:
    rows = []
    for name in names("datasets"):
        card = kinds.datasets.get(name).card
        link = f"[{escaped(name)}](reference/datasets.md#{name})"
        rows.append((link, escaped(card.licence), escaped(card.source), escaped(card.citation)))
    yield from table(("dataset", "licence", "source", "citation"), rows)


def grids_table() -> Iterator[str]:
    rows = []
    for name in sorted(grid_names()):
        one = describe("grid", name)
        summary = escaped(one["summary"])
        rows.append(
            (f"[{escaped(name)}](reference/grids.md#{name})", str(one["runs"]), str(one["pretrainings"]), summary)
        )
    yield from table(("grid", "runs", "pretrainings", "what it is"), rows)


TABLES: dict[str, Callable[[], Iterator[str]]] = {
    "methods": methods_table,
    "metrics": metrics_table,
    "licences": licences_table,
    "grids": grids_table,
}


# The command line


def commands_page() -> str:
    import typer

    root: Any = typer.main.get_command(application())
    intro = "What `fairssl COMMAND --help` prints."
    return page("Commands", intro, command(root, typer.Context(root, info_name="fairssl")))


def command(one: Any, ctx: Any) -> Iterator[str]:
    """A command, and the commands below it."""
    below = (
        [(name, one.get_command(ctx, name)) for name in one.list_commands(ctx)] if hasattr(one, "list_commands") else []
    )
    words = ctx.command_path
    if ctx.parent is not None:
        depth = "##" if ctx.parent.parent is None else "###"
        yield f"{depth} {words} {{ #{words.removeprefix('fairssl ').replace(' ', '-')} }}\n"
    usage = " ".join(one.collect_usage_pieces(ctx))
    text = inspect.cleandoc(one.help or "").partition("\f")[0]
    yield from paragraphs(text, language="bash")
    yield f"```text\n{words} {usage}\n```\n"
    themes: dict[str, list[tuple[str, str]]] = {theme: [] for theme in THEMES}
    for param in one.get_params(ctx):
        record = param.get_help_record(ctx)
        if record is not None and param.name != "help":
            default = "Arguments" if param.param_type_name == "argument" else "Options"
            themes.setdefault(getattr(param, "rich_help_panel", None) or default, []).append(record)
    for theme, records in themes.items():
        if records:
            yield from table((theme, ""), ((code(" ".join(name.split())), escaped(text)) for name, text in records))
    for name, sub in below:
        if not sub.hidden:
            yield from command(sub, type(ctx)(sub, info_name=name, parent=ctx))


# The Python interface


def python_page() -> str:
    import fairssl

    intro = (inspect.getdoc(fairssl) or "").partition("\n")[0]
    shown = [name for name in fairssl.__all__ if not name.startswith("_")]
    more = [("fairssl.benchmark", "Result"), ("fairssl.scoring.api", "Scores"), ("fairssl.frozen", "FrozenEncoder")]
    more += [("fairssl.execute.options", "Options"), ("fairssl.loss", "LossTerms"), ("fairssl.types", "UserError")]
    body = [line for name in shown for line in thing(f"fairssl.{name}", getattr(fairssl, name))]
    for module, name in more:
        body += thing(f"{module}.{name}", getattr(importlib.import_module(module), name))
    return page("Python", escaped(intro), body)


def plugins_page() -> str:
    head, _, promise = (inspect.getdoc(api) or "").partition("\n\n")
    body = [
        *paragraphs(promise),
        f"This is interface {api.INTERFACE}; the oldest that is served is {api.OLDEST_INTERFACE}.\n",
    ]
    for name in api.__all__:
        found = getattr(api, name)
        body += thing(f"fairssl.api.{name}", found)
    for module in ("fairssl.nn", "fairssl.scoring", "fairssl.testing"):
        loaded = importlib.import_module(module)
        body += [f"## {module} {{ #{module.replace('.', '-')} }}\n", *paragraphs(inspect.getdoc(loaded) or "")]
        public = getattr(loaded, "__all__", None) or [n for n, v in vars(loaded).items() if own(v, module, n)]
        rows = [(code(n + _signature(getattr(loaded, n))), first_sentence(getattr(loaded, n))) for n in public]
        body += table(("name", "what it is"), [row for row in rows if row[1]])
    return page("For plugins", escaped(head), body)


def own(value: Any, module: str, name: str) -> bool:
    return not name.startswith("_") and getattr(value, "__module__", None) == module and callable(value)


def first_sentence(value: Any) -> str:
    if not (inspect.isclass(value) or inspect.isroutine(value)):
        return ""
    text = " ".join((inspect.getdoc(value) or "").partition("\n\n")[0].split())
    return escaped(re.split(r"(?<=\.)\s", text)[0])


def thing(path: str, value: Any) -> Iterator[str]:
    """A class with its fields and public members, or a function; nothing of what is neither."""
    if not (inspect.isclass(value) or inspect.isroutine(value)):
        return
    name = path.rpartition(".")[2]
    yield f"## {name} {{ #{path.replace('.', '-')} }}\n"
    fields = list(_fields(value)) if inspect.isclass(value) else []
    shown = [f"class {name}:", *fields] if fields else [f"{path}{_signature(value, wrapped=True)}"]
    yield "```python\n" + "\n".join(shown) + "\n```\n"
    yield from paragraphs(_own_doc(value))
    rows = list(_members(value)) if inspect.isclass(value) else []
    if rows:
        yield from table(("member", "what it is"), rows)


def _members(value: type) -> Iterator[tuple[str, str]]:
    """A class's own public methods and properties that say what they are."""
    for member, found in vars(value).items():
        target = found.__func__ if isinstance(found, classmethod | staticmethod) else found
        target = getattr(target, "fget", None) or getattr(target, "func", None) or target
        if member.startswith("_") or not inspect.isfunction(target) or not target.__doc__:
            continue
        call = _signature(target) if target is found or isinstance(found, classmethod | staticmethod) else ""
        yield code(member + call), escaped(" ".join(inspect.cleandoc(target.__doc__).split()))


def _fields(value: type) -> Iterator[str]:
    """The lines of a class that declare its public fields, with the comments and docstrings that say what they are."""
    lines = textwrap.dedent(inspect.getsource(value)).splitlines()
    body: list[ast.stmt] = getattr(ast.parse("\n".join(lines)).body[0], "body", [])
    for i, node in enumerate(body):
        if not isinstance(node, ast.AnnAssign) or ast.unparse(node.target).startswith("_"):
            continue
        first, last = node.lineno - 1, node.end_lineno or node.lineno
        while lines[first - 1].lstrip().startswith("#"):
            first -= 1
        after = body[i + 1] if i + 1 < len(body) else None
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            last = after.end_lineno or last
        yield from lines[first:last]


def _own_doc(value: Any) -> str:
    """A docstring that somebody has written: a dataclass without one has its signature there."""
    text = inspect.getdoc(value) or ""
    return "" if text.startswith(f"{value.__name__}(") else text


def _signature(value: Any, wrapped: bool = False) -> str:
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    rows: list[str] = []
    for name, p in found.parameters.items():
        if name in ("self", "cls"):
            continue
        if p.kind is p.KEYWORD_ONLY and not any(row.startswith("*") for row in rows):
            rows.append("*")
        stars = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
        annotation = "" if p.annotation is p.empty else f": {_annotation(p.annotation)}"
        equals = " = " if annotation else "="
        rows.append(stars + name + annotation + ("" if p.default is p.empty else equals + _default(p.default)))
    no_return = inspect.isclass(value) or found.return_annotation is found.empty
    arrow = "" if no_return else f" -> {_annotation(found.return_annotation)}"
    line = f"({', '.join(rows)}){arrow}"
    if not wrapped or len(line) < 80:
        return line
    return "(\n" + "".join(f"    {row},\n" for row in rows) + f"){arrow}"


def _annotation(value: Any) -> str:
    text = value if isinstance(value, str) else inspect.formatannotation(value)
    return re.sub(r"\b(typing|fairssl(\.\w+)*)\.(?=\w)", "", text).replace("'", '"')


def _default(value: Any) -> str:
    """As it is written in the code, as far as that can be told."""
    if callable(value):
        return str(getattr(value, "__name__", "..."))
    return "..." if repr(value).startswith("<") else repr(value).replace("'", '"')


INTRO = "Made from the code; `fairssl show {one} NAME` prints the same."
PAGES: dict[str, Callable[[], str]] = {
    "reference/commands.md": commands_page,
    "reference/methods.md": methods_page,
    "reference/objectives.md": of_kind(
        "Objectives",
        "The part that a method cannot do without. Each is a method of its own name, too. "
        + INTRO.format(one="objective"),
        "objective",
        lambda: names("objectives"),
        part,
    ),
    "reference/heads.md": of_kind(
        "Heads",
        "What an objective can be combined with, as `simclr+NAME:weight`. " + INTRO.format(one="head"),
        "head",
        lambda: names("heads"),
        part,
    ),
    "reference/encoders.md": of_kind(
        "Encoders",
        "What `--encoder` takes. " + INTRO.format(one="encoder"),
        "encoder",
        lambda: names("encoders"),
        encoder,
    ),
    "reference/datasets.md": of_kind(
        "Datasets",
        "What `--dataset` takes. " + INTRO.format(one="dataset"),
        "dataset",
        lambda: names("datasets"),
        dataset,
    ),
    "reference/metrics.md": of_kind(
        "Metrics",
        "s is the score of an example, the probability of y = 1. " + INTRO.format(one="metric"),
        "metric",
        metrics_in_order,
        metric,
    ),
    "reference/grids.md": of_kind(
        "Grids",
        "What `--grid` takes, besides TOML files of your own. " + INTRO.format(one="grid"),
        "grid",
        lambda: sorted(grid_names()),
        grid,
    ),
    "reference/settings.md": lambda: page(
        "Training and probe",
        "What `--set train.NAME=VALUE` and `--set probe.NAME=VALUE` reach in every method.",
        [*settings("train"), *settings("probe")],
    ),
    "reference/python.md": python_page,
    "reference/plugins.md": plugins_page,
}
