"""Examples of a Markdown page, and how they are run: page by page, in order, in one process and one empty folder.

A fence is what its language says. `bash` and `python` are run; one with a `title` is written to the file of that name; `text` is
only shown. A line `<!-- example: plan, REASON -->` before a fence of `bash` says that it cannot be run here: then `fairssl
bench` is made a dry run, and of every other `fairssl` command the words are parsed as the command itself parses them.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from reference.checkout import ROOT, TESTS
from reference.fresh import OFFLINE

LANGUAGES = ("bash", "python", "text", "toml", "csv")
MARK = re.compile(r"<!-- example: (\w+), (.+) -->")
INCLUDED = "--8<--"
# What `fairssl bench` and `tune` are given before what a page says, which stands: seconds on one core.
SMALL = ("--epochs", "1", "--seeds", "1", "--image-size", "16")


@dataclass(frozen=True)
class Example:
    """One fence: where it stands, its language, the file it is to be written to, and why it is only planned."""

    line: int
    language: str
    text: str
    title: str = ""
    planned: str = ""


def examples(text: str) -> list[Example]:
    """Every fence of a page. One that is not closed, has no known language, or a mark that says nothing: AssertionError."""
    lines = text.splitlines()
    found: list[Example] = []
    at = 0
    while at < len(lines):
        opened = re.match(r"```(\w*)(?: title=\"([^\"]+)\")?(.*)$", lines[at])
        if not opened:
            assert not lines[at].startswith("```"), f"line {at + 1}: {lines[at]}"
            at += 1
            continue
        end = next((i for i in range(at + 1, len(lines)) if lines[i] == "```"), None)
        assert end is not None, f"line {at + 1}: the fence has no end"
        language, title, rest = opened.groups()
        assert language in LANGUAGES and not rest, f"line {at + 1}: {lines[at]!r} is none of {', '.join(LANGUAGES)}"
        before = lines[at - 1] if at else ""
        mark = MARK.fullmatch(before)
        assert mark or "example:" not in before, f"line {at}: {before!r} is no mark"
        assert not mark or (mark.group(1) == "plan" and language == "bash"), f"line {at}: {before!r}"
        body = "\n".join(lines[at + 1 : end]) + "\n"
        found.append(Example(at + 1, language, body, title or "", mark.group(2) if mark else ""))
        at = end + 1
    return found


def commands_in_text(text: str) -> list[str]:
    """Whole `fairssl` commands in backticks between the fences, as `fairssl board build`."""
    prose = re.sub(r"(?ms)^```.*?^```$", "", text)
    return [" ".join(one.split()) for one in re.findall(r"`(fairssl [^`]+)`", prose)]


def parse(words: Sequence[str]) -> None:
    """Parse a command's words as the command does, running nothing. An unknown command or option: an exception."""
    import typer

    from fairssl.cli import application

    command: Any = typer.main.get_command(application())
    rest = list(words)
    context: Any = typer.Context(command, info_name="fairssl")
    while hasattr(command, "list_commands") and rest:
        name = rest.pop(0)
        below = command.get_command(context, name)
        if below is None:
            raise ValueError(f"{context.command_path} has no command {name!r}")
        command, context = below, typer.Context(below, info_name=name, parent=context)
    if not hasattr(command, "list_commands"):
        command.make_context(context.info_name, rest, parent=context.parent)


def run_page(found: Iterable[Example], folder: Path) -> subprocess.CompletedProcess[str]:
    """All examples of a page in `folder`, by one process; it ends at the first that fails and names its line."""
    folder.mkdir(parents=True, exist_ok=True)
    shims = folder.with_name(folder.name + "-bin")
    shims.mkdir()
    for name in ("fairssl", "pip", "python3", "torchrun", "pytest"):
        path = shims / name
        path.write_text(f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(TESTS)!r})\n{SHIM}")
        path.chmod(0o755)
    home = folder.with_name(folder.name + "-home")
    home.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FAIRSSL_")}
    environment |= {
        "PATH": f"{shims}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(home),
        "FAIRSSL_CACHE": str(home / "cache"),
        "PYTHONPATH": str(home / "site"),  # where the packages of a page are installed
        "OMP_NUM_THREADS": "1",
        "MPLBACKEND": "agg",
    }
    script = f"import sys\nsys.path.insert(0, {str(TESTS)!r})\nfrom reference.documents import act\nact()\n"
    return subprocess.run(
        [sys.executable, "-c", script],
        input=json.dumps([asdict(one) for one in found]),
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )


def act() -> None:
    """What the process of a page does: the examples on standard input, one after the other."""
    sys.path.remove(str(TESTS))
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for one in (Example(**row) for row in json.load(sys.stdin)):
        print(f"--- line {one.line}", flush=True)
        if INCLUDED in one.text:
            continue  # a file of the checkout, which has tests of its own
        if one.title:
            path = Path(one.title)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(one.text, encoding="utf-8")
        elif one.language == "python":
            exec(compile(one.text, f"line {one.line}", "exec"), namespace)
        elif one.language == "bash":
            environment = {**os.environ, "EXAMPLE": "plan" if one.planned else "run"}
            script = f"set -euo pipefail\n{one.text}"
            subprocess.run(["bash", "-c", script], env=environment, check=True, stdin=subprocess.DEVNULL)
        elif one.language == "toml":
            tomllib.loads(one.text)


SHIM = "from reference.documents import stand_in\nstand_in()\n"


def stand_in() -> None:
    """What stands in a page's PATH for a command: `fairssl` itself with small settings, and for what needs a network or a
    cluster a check of what is said to it."""
    sys.path.remove(str(TESTS))
    name, words = Path(sys.argv[0]).name, sys.argv[1:]
    if name == "torchrun":
        assert os.environ["EXAMPLE"] == "plan" and "-m" in words, words
        words = words[words.index("-m") + 2 :]
    if name in ("fairssl", "torchrun"):
        _fairssl(words)
    elif name == "pip":
        _pip(words)
    elif name == "python3" and words[:2] == ["-m", "venv"]:
        Path(words[2]).mkdir(exist_ok=True)
        if not (Path(words[2]) / "bin").exists():
            (Path(words[2]) / "bin").symlink_to(Path(sys.argv[0]).parent)
    elif name != "pytest":
        os.execv(sys.executable, [sys.executable, *words])


def _fairssl(words: list[str]) -> None:
    planned, trains = os.environ.get("EXAMPLE") == "plan", words[:1] in (["bench"], ["tune"])
    if planned and words[:1] != ["bench"]:
        parse(words)
        return
    if planned:
        words = [*(word for word in words if word not in ("--estimate", "--dry-run")), "--dry-run"]
    elif trains:
        words = [words[0], *SMALL, *words[1:]]
    os.execv(sys.executable, [sys.executable, "-m", "fairssl", *words])


def _pip(words: Sequence[str]) -> None:
    """`pip install` of fairssl or its checkout: the extras that are asked for exist. A package that is here is installed."""
    assert words[0] == "install", words
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    for word in words[1:]:
        asked = re.fullmatch(r"(?:\.|fairssl)(?:\[(.+)\])?", word)
        for extra in (asked.group(1) or "").split(",") if asked else ():
            assert not extra or extra in extras, f"fairssl has no extra {extra!r}"
        if not asked and word != "-e":
            assert Path(word).is_dir(), f"pip install {word}"
            call = [
                sys.executable,
                "-m",
                "pip",
                "install",
                *OFFLINE,
                "--target",
                os.environ["PYTHONPATH"],
                str(Path(word).resolve()),
            ]
            subprocess.run(call, check=True)
