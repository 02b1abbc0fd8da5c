"""Every command where its output is closed, full, gone or in another encoding, and where a path is written with `~`."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from reference.started import TINY

from fairssl.cli import application
from fairssl.cli._paths import parse_path

FAIRSSL = [sys.executable, "-m", "fairssl"]
COMMANDS = {
    "list": ["list"],
    "score": ["score", "predictions.csv"],
    "dry-run": ["bench", *TINY, "--method", "sofclr", "--dry-run"],
    "status": ["status", "runs"],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = ["target,score,group", "0,0.2,a", "1,0.8,a", "0,0.3,ä", "1,0.9,ä"]
    (tmp_path / "predictions.csv").write_text("\n".join(rows), encoding="utf-8")
    (tmp_path / "runs").mkdir()
    return tmp_path


def shell(
    folder: Path, words: list[str], redirection: str = "", code: int = 0, **env: str
) -> subprocess.CompletedProcess[bytes]:
    """A command as a shell would start it, with that redirection; it ends with that code and no traceback."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **env}
    call = ["bash", "-c", f'"$@" {redirection}', "bash", *FAIRSSL, *words]
    done = subprocess.run(call, cwd=folder, env=environment, capture_output=True, timeout=300)
    assert done.returncode == code, done.stderr
    assert b"Traceback" not in done.stderr and b"Exception ignored" not in done.stderr
    return done


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_closed_and_full_outputs_end_quietly_with_the_right_code(name: str, folder: Path) -> None:
    words = COMMANDS[name]
    whole = shell(folder, words).stdout
    assert whole
    for redirection in (">&-", "<&- >&- 2>&-"):
        done = shell(folder, words, redirection)
        assert done.stdout == done.stderr == b"", redirection
    assert shell(folder, words, "2>/dev/full").stdout == whole
    full = shell(folder, words, ">/dev/full", 2)
    assert full.stderr.endswith(b"fairssl: error: cannot write to standard output: No space left on device\n")
    gone = shell(folder, words, "| true; exit ${PIPESTATUS[0]}")
    assert gone.stdout == b""


def test_a_mistake_keeps_its_code_where_nobody_can_read_it(folder: Path) -> None:
    for redirection in ("2>&-", "2>/dev/full"):
        assert shell(folder, ["show", "method", "sofclrr"], redirection, 2).stdout == b""


@pytest.mark.slow
def test_a_grid_in_workers_is_done_where_stderr_takes_nothing(folder: Path) -> None:
    words = ["bench", *TINY, "--method", "simclr", "--seeds", "2", "--workers", "2", "--out", "out"]
    assert b"| simclr " in shell(folder, words, "2>/dev/full").stdout


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_what_an_encoding_lacks_is_escaped(encoding: str, folder: Path) -> None:
    words = ["bench", *TINY, "--method", "simclr", "--out", "out"]
    env = {"PYTHONIOENCODING": encoding}
    assert b"| \\u0394ED |" in shell(folder, words, **env).stdout
    rows = json.loads(shell(folder, [*words, "--json"], **env).stdout)
    assert [row["method"] for row in rows] == ["simclr"]
    found = shell(folder, ["score", "predictions.csv"], **env).stdout
    # Where the encoding is ASCII, click takes it for a mistake of the system's and writes UTF-8.
    assert "\nä ".encode("latin-1" if encoding == "latin-1" else "utf-8") in found
    assert shell(folder, ["list", "--json"], **env).stdout.startswith(b"[")


def test_json_stays_whole_in_an_encoding_that_lacks_its_characters(folder: Path) -> None:
    (folder / "predictions.csv").write_text("target,score,group\n0,0.2,Δ\n1,0.8,😀\n", encoding="utf-8")
    done = shell(folder, ["score", "predictions.csv", "--json"], PYTHONIOENCODING="latin-1")
    assert set(json.loads(done.stdout)["groups"]) == {"Δ", "😀"}


@pytest.mark.slow
def test_force_color_turns_no_piped_output_into_a_terminal_table(folder: Path) -> None:
    words = ["bench", *TINY, "--method", "simclr", "--out", "out"]
    env = {"FORCE_COLOR": "1", "TTY_COMPATIBLE": "1", "CLICOLOR_FORCE": "1", "PY_COLORS": "1"}
    plain = shell(folder, words)
    coloured = shell(folder, words, **env)
    assert coloured.stdout == plain.stdout and b"\n| simclr " in plain.stdout
    for more in (["bench", *words[1:], "--json"], ["list", "--json"], ["score", "predictions.csv"], ["--help"]):
        assert b"\x1b" not in shell(folder, more, **env).stdout


@pytest.mark.parametrize(
    "words",
    [
        ["status", "~/here"],
        ["score", "~/here/predictions.csv"],
        ["new", "metric", "gap", "--into=~/here"],
        ["data", "list", "--data-dir=~/here"],
        ["show", "grid", "~/here/one.toml"],
    ],
)
def test_a_path_may_start_at_home(words: list[str], tmp_path: Path) -> None:
    home, work = tmp_path / "home", tmp_path / "work"
    work.mkdir()
    (home / "here").mkdir(parents=True)
    (home / "here" / "one.toml").write_text('methods = ["simclr"]\n')
    (home / "here" / "predictions.csv").write_text("target,score,group\n0,0.2,a\n1,0.8,b\n", encoding="utf-8")
    shell(work, words, HOME=str(home))
    assert not list(work.iterdir())


@pytest.mark.slow
def test_bench_and_board_write_to_a_folder_at_home(tmp_path: Path) -> None:
    home, work = tmp_path / "home", tmp_path / "work"
    work.mkdir()
    home.mkdir()
    (home / "one.toml").write_text('methods = ["simclr"]\n')
    shell(work, ["bench", *TINY, "--grid=~/one.toml", "--out=~/runs", "--data-dir=~"], HOME=str(home))
    shell(work, ["board", "build", "~/runs", "--out=~/runs/tables"], HOME=str(home))
    assert (home / "runs" / "tables" / "table.md").is_file()
    assert not list(work.iterdir())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["status", ""], "'runs': the path is empty"),
        (["bench", "--out="], "'--out': the path is empty"),
        (["bench", "--data-dir="], "'--data-dir': the path is empty"),
        (["data", "list", "--data-dir="], "'--data-dir': the path is empty"),
        (["board", "build", "--out= "], "'--out': the path is empty"),
        (["score", ""], "the path is empty"),
        (["tune", "--method", "simclr", "--out="], "'--out': the path is empty"),
        (["plot", "pareto", "~nobody_at_all"], "that home folder is not known"),
        (["check", "dataset", "utkface", "--data-dir="], "'--data-dir': the path is empty"),
        (["bench", "--grid=~nobody_at_all/a.toml"], "that home folder is not known"),
        (["bench", "--out=~nobody_at_all/runs"], "'~nobody_at_all/runs': that home folder is not known"),
        (["bench", "--out=."], "--out is the current folder itself"),
    ],
)
def test_no_path_at_all_and_nobodys_home_are_one_line(words: list[str], message: str, folder: Path) -> None:
    err = shell(folder, words, code=2).stderr.decode()
    assert message in err and err.count("\n") == 1


def _functions(app: typer.Typer) -> Iterator[Callable[..., Any]]:
    for command in app.registered_commands:
        assert command.callback is not None
        yield command.callback
    for group in app.registered_groups:
        assert group.typer_instance is not None
        yield from _functions(group.typer_instance)


def test_every_path_of_every_command_is_read_by_one_parser() -> None:
    """What is written as `~` or left empty is understood alike by all, also by commands that are added later."""
    parsers = {
        f"{function.__module__}.{function.__name__} {name}": parameter.default.parser
        for function in _functions(application())
        for name, parameter in inspect.signature(function).parameters.items()
        if "Path" in str(parameter.annotation)
    }
    assert len(parsers) > 20 and "fairssl.cli.bench.bench out" in parsers
    assert [name for name, parser in parsers.items() if parser is not parse_path] == []
