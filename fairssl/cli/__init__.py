"""The command line: one file per command; each parses, calls one function and prints.

Data goes to stdout, progress to stderr. Exit codes: 0 ok, 1 some cell failed or diverged, 2 the user's mistake,
75 stopped by SIGTERM after a checkpoint, 130 after Ctrl-C. Nothing heavy is imported at module level here.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
from collections.abc import Iterable
from typing import Any

import typer

from fairssl.cli._help import SETTINGS, Command, Group
from fairssl.cli._streams import close_streams, open_streams
from fairssl.cli._table import echo_line
from fairssl.types import UserError, first_line

CLICK_ERROR: Any = next(
    c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException"
)  # typer >= 0.20 carries its own click


def version(show: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    if show:
        import fairssl

        typer.echo(f"fairssl {fairssl.__version__}")
        raise typer.Exit


def command_names() -> dict[str, str]:
    """command -> its module: every module beside this one is a command, or a group of commands, of its own name."""
    modules = [entry.name for entry in pkgutil.iter_modules(__path__) if not entry.name.startswith("_")]
    return {module.removesuffix("_"): module for module in modules}  # list_.py, so as not to shadow a builtin


def application(names: Iterable[str] | None = None) -> typer.Typer:
    """The command line with the commands of these names; all if left out."""
    modules = command_names()
    app = typer.Typer(
        help="Train encoders without labels and show how fair what they learned is.\n\n"
        "Examples:\n\n    fairssl bench\n    fairssl list methods\n    fairssl show method sofclr",
        cls=Group,
        context_settings=SETTINGS,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback(invoke_without_command=True)(version)
    for name in modules if names is None else names:
        module = importlib.import_module(f"{__name__}.{modules[name]}")
        if hasattr(module, "app"):
            for command in module.app.registered_commands:
                command.cls, command.context_settings = Command, SETTINGS
            app.add_typer(module.app, name=name, cls=Group, context_settings=SETTINGS)
        else:
            app.command(name, cls=Command, context_settings=SETTINGS)(getattr(module, modules[name]))
    return app


def _asked(args: list[str]) -> list[str] | None:
    """The one command that a command line needs, so that no other is loaded; None: all of them."""
    word = next((arg for arg in args if not arg.startswith("-")), None)
    return [word] if word in command_names() else None


def fail(message: str) -> int:
    """One line on stderr, wrapped between words on a terminal; exit code 2."""
    echo_line(f"fairssl: error: {message}")
    return 2


def run(args: list[str] | None = None) -> int:
    """Run one command line; the exit code, every user's mistake turned into one line."""
    args = sys.argv[1:] if args is None else args
    try:
        code = application(_asked(args))(args=args, standalone_mode=False)
        return code if isinstance(code, int) else 0
    except UserError as error:
        return fail(str(error))
    except MemoryError as error:
        return fail(
            f"this takes more memory than there is ({first_line(error)}); use a smaller --image-size, a smaller "
            "--batch-size or fewer images"
        )
    except CLICK_ERROR as error:
        where = error.ctx.command_path if getattr(error, "ctx", None) else "fairssl"
        return fail(f"{error.format_message()}{_given(error)} (see '{where} --help')")
    except typer.Exit as stop:
        return stop.exit_code
    except (typer.Abort, KeyboardInterrupt):
        print("fairssl: stopped; the same command goes on from here", file=sys.stderr)
        return 130


def _given(error: Any) -> str:
    """What was given in place of a number, where typer does not say it, as those that use pydantic do not."""
    try:
        return f"; it is {error.__cause__.errors()[0]['input']!r}"
    except (AttributeError, LookupError, TypeError):
        return ""


def main() -> None:
    """Entry point of the `fairssl` command."""
    open_streams()
    code = close_streams(run())
    if "WORLD_SIZE" in os.environ:
        os._exit(code)  # a thread of torch's that still frees a tensor would abort the interpreter's end
    sys.exit(code)


def __getattr__(name: str) -> Any:
    if name == "app":  # the whole command line, for what walks through it: documentation, tests
        return application()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
