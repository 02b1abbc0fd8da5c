"""Paths as users write them."""

from __future__ import annotations

from pathlib import Path

import typer

from fairssl.machine import user_path
from fairssl.types import UserError


def parse_path(text: str | Path) -> Path:
    """The parser of every path that a command takes: `~` is the user's home, nothing at all is a mistake."""
    try:
        return user_path(text)
    except UserError as error:
        raise typer.BadParameter(str(error)) from error
