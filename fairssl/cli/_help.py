"""Help that reads well: options grouped by theme, examples as they are typed, colour on a terminal, plain text elsewhere.

Typer's own rich help would draw its boxes into pipes too and breaks words where a column is narrow; without it typer does
not group. So the text is click's, and what is added is the grouping (`rich_help_panel` of an option), paragraphs indented
by four blanks kept as they are, and colour.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from fairssl.cli._table import may_colour

SETTINGS = {"max_content_width": 100}  # columns
# Themes that an option may name as its rich_help_panel, in the order of the help.
WHAT, DATA, TRAINING, WHERE, OUTPUT = "What is compared", "Data", "Training", "Where and how it runs", "Output"
THEMES = ("Arguments", WHAT, DATA, TRAINING, WHERE, OUTPUT, "Options")
# What stands for a value, where an option names nothing better than its type.
PLACEHOLDERS = {
    "<list[str]>": "NAME",
    "<str>": "NAME",
    "<int>": "N",
    "<int range>": "N",
    "<float>": "X",
    "<path>": "PATH",
}
CODE = re.compile(r"(?:(?<=\n\n)|\A)(?= {4})")  # where a paragraph begins that stays as it is


class _Help:
    """What a command and a group of commands share."""

    help: str | None
    get_params: Any

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        text = inspect.cleandoc(self.help or "").partition("\f")[0]
        if text:
            formatter.write_paragraph()
            formatter.write_text(CODE.sub("\b\n", text))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        themes: dict[str, list[tuple[str, str]]] = {theme: [] for theme in THEMES}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                default = "Arguments" if param.param_type_name == "argument" else "Options"
                theme = getattr(param, "rich_help_panel", None) or default
                themes.setdefault(theme, []).append((_named(record[0], default), record[1]))
        for theme, records in themes.items():
            _write(formatter, theme, records)


class Command(_Help, TyperCommand):
    """A command with themed help."""


class Group(_Help, TyperGroup):
    """Commands under one name. Without a word more it prints its help and ends with exit code 2, as typer's groups do."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            typer.echo(ctx.get_help(), err=True)
            ctx.exit(2)
        return super().parse_args(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        super().format_options(ctx, formatter)
        self.format_commands(ctx, formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        commands = [self.get_command(ctx, name) for name in self.list_commands(ctx)]
        shown = [command for command in commands if command is not None and not command.hidden]
        _write(formatter, "Commands", [(command.name or "", _first_sentence(command.help or "")) for command in shown])


def _named(text: str, theme: str) -> str:
    """`--trials <int>` as `--trials N`; of an argument the name alone."""
    name, _, kind = text.partition(" <")
    if not kind:
        return text
    return name if theme == "Arguments" else f"{name} {PLACEHOLDERS.get('<' + kind, kind.rstrip('>').upper())}"


def _first_sentence(text: str) -> str:
    paragraph = " ".join(inspect.cleandoc(text).partition("\n\n")[0].split())
    return re.split(r"(?<=\.)\s", paragraph)[0]


def _write(formatter: Any, heading: str, rows: list[tuple[str, str]]) -> None:
    """A heading with a list of names and what they are; nothing where there are none."""
    if rows:
        colour = may_colour()  # echo takes colours out again where the output is no terminal
        names = [(typer.style(name, fg="cyan") if colour else name, text) for name, text in rows]
        with formatter.section(typer.style(heading, bold=True) if colour else heading):
            formatter.write_dl(names, col_max=34)
