"""The command line: one file per command; each parses, calls one function and prints.

Data goes to stdout, progress to stderr. Exit codes: 0 ok, 1 some cell failed or diverged, 2 the user's mistake,
75 stopped by SIGTERM after a checkpoint, 130 after Ctrl-C. Nothing heavy is imported at module level here.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import typer

from fairssl.cli._streams import close_streams, open_streams
from fairssl.types import UserError

CLICK_ERROR: Any = next(
    c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException"
)  # typer >= 0.20 carries its own click

app = typer.Typer(
    help="Train encoders without labels and show how fair what they learned is.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback(invoke_without_command=True)
def version(show: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    if show:
        import fairssl

        typer.echo(f"fairssl {fairssl.__version__}")
        raise typer.Exit


def _register() -> None:
    """Every module beside this one is a command, or a group of commands, of its own name."""
    import importlib
    import pkgutil

    for entry in pkgutil.iter_modules(__path__):
        if entry.name.startswith("_"):
            continue
        module = importlib.import_module(f"{__name__}.{entry.name}")
        name = entry.name.removesuffix("_")  # list_.py, so as not to shadow a builtin
        if hasattr(module, "app"):
            app.add_typer(module.app, name=name)
        else:
            app.command(name)(getattr(module, entry.name))


def fail(message: str) -> int:
    """One line on stderr; exit code 2."""
    print(f"fairssl: error: {' '.join(message.split())}", file=sys.stderr)
    return 2


def run(args: list[str] | None = None) -> int:
    """Run one command line; the exit code, every user's mistake turned into one line."""
    try:
        code = app(args=args, standalone_mode=False)
        return code if isinstance(code, int) else 0
    except UserError as error:
        return fail(str(error))
    except CLICK_ERROR as error:
        return fail(f"{error.format_message()} (see 'fairssl --help')")
    except typer.Exit as stop:
        return stop.exit_code
    except (typer.Abort, KeyboardInterrupt):
        print("fairssl: stopped; the same command goes on from here", file=sys.stderr)
        return 130


def main() -> None:
    """Entry point of the `fairssl` command."""
    open_streams()
    code = close_streams(run())
    if "WORLD_SIZE" in os.environ:
        os._exit(code)  # a thread of torch's that still frees a tensor would abort the interpreter's end
    sys.exit(code)


_register()
