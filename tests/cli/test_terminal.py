"""What stands on a terminal: no word broken, columns left out by name, colour; and plain whole lines in a pipe."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from reference.plugin_package import write_package
from reference.terminal import on_terminal

from fairssl import kinds
from fairssl.cli import application, command_names, run
from fairssl.cli._table import Cell, Column, Screen, facts, prose, table, text_width, wrap

FAIRSSL = ["-m", "fairssl"]
PLAIN = {"NO_COLOR": "1"}
ANSI = re.compile(r"\x1b\[[0-9;]*m")


def piped(*args: str, cwd: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, *FAIRSSL, *args]
    return subprocess.run(
        words, capture_output=True, text=True, timeout=300, cwd=cwd, env={**os.environ, **variables}, check=False
    )


def assert_whole(text: str, whole: str, width: int) -> None:
    """Every word of `text` is one of `whole`, and no line is wider than the terminal, unless by a single word."""
    known = {
        *whole.split(),
        *["No", "room", "for:", "A", "wider", "terminal,", "--json", "or", "a", "pipe", "has", "all."],
    }
    known |= {word for line in re.findall(r"No room for: .*?\.", " ".join(text.split())) for word in line.split()}
    numbers = re.compile(r"[\d.]+")  # free space on the disk changes between two calls
    broken = [word for word in text.split() if word not in known and not numbers.fullmatch(word)]
    assert not broken, f"broken at {width} columns: {broken}"
    wide = [line for line in text.splitlines() if text_width(line) > width and text_width(line.split()[-1]) < width / 2]
    assert not wide, wide


def test_a_table_that_fits_is_aligned() -> None:
    columns = Column("name", fg="cyan"), Column("n", right=True), "note"
    rows = [["a", "1", "one"], ["bcd", "100", ""]]
    assert table(columns, rows, Screen(80)) == "name    n  note\na       1  one\nbcd   100"
    assert table(columns, rows, Screen()) == table(columns, rows, Screen(80))


def test_a_table_that_is_too_wide_wraps_and_then_loses_columns_by_name() -> None:
    columns = Column("name"), Column("first fact", drop=2), Column("second", drop=1), Column("text", least=10)
    rows = [["ab", "yes", "no", "some words that are wrapped"]]
    assert table(columns, rows, Screen(34)).splitlines() == [
        "      first",
        "name  fact   second  text",
        "ab    yes    no      some words",
        "                     that are",
        "                     wrapped",
    ]
    assert table(columns, rows, Screen(26)).splitlines() == [
        "name  second  text",
        "ab    no      some words",
        "              that are",
        "              wrapped",
        "",
        "No room for: first fact. A",
        "wider terminal, --json or",
        "a pipe has all.",
    ]
    assert len(table(columns, rows, Screen()).splitlines()) == 2, "one record is one line in a pipe"


def test_colour_is_where_a_terminal_is() -> None:
    columns = Column(fg="cyan"), Column()
    row = [["ab", Cell("broken", "red")]]
    assert "\x1b[31m" in table(columns, row, Screen(80, colour=True))
    assert ANSI.sub("", table(columns, row, Screen(80, colour=True))) == table(columns, row, Screen(80)) == "ab  broken"


def test_facts_stand_below_each_other_and_a_long_name_alone() -> None:
    pairs = [("name", "one two three"), ("a very long name", "x")]
    assert facts(pairs, Screen(24), 2).splitlines() == [
        "  name      one two",
        "            three",
        "  a very long name",
        "            x",
    ]
    assert facts(pairs, Screen()).splitlines() == ["name              one two three", "a very long name  x"]


def test_a_word_longer_than_the_line_is_not_broken() -> None:
    path = "/a/very/long/path/that/has/no/blank"
    assert wrap(f"see {path} there", 10) == ["see", path, "there"]
    assert prose(f"see {path}", Screen(20)).splitlines() == ["see", path]


def test_wide_and_combining_characters_count_as_the_terminal_counts_them() -> None:
    assert (text_width("Δab"), text_width("名前"), text_width("e\u0301")) == (3, 4, 1)


@pytest.mark.parametrize("words", [[], ["data"], ["board"]], ids=lambda words: " ".join(words) or "fairssl")
def test_without_a_word_more_the_help_is_printed(words: list[str]) -> None:
    done = piped(*words)
    assert done.returncode == 2 and not done.stdout
    assert done.stderr == piped(*words, "--help").stdout
    assert "Usage:" in done.stderr and "Commands:" in done.stderr and "fairssl: error" not in done.stderr


def _leaves() -> list[list[str]]:
    import typer

    root = typer.main.get_command(application())
    found = []
    for name in command_names():
        command = root.commands[name]
        found += [[name, inner] for inner in getattr(command, "commands", {})] or [[name]]
    return found


HELPS = """
import sys
from fairssl.cli import run
for words in sys.argv[1].split(","):
    assert run([*words.split(), "--help"]) == 0
"""


@pytest.mark.parametrize("width", [80, 120])
def test_the_help_of_every_command_fits(width: int) -> None:
    code, text = on_terminal(["-c", HELPS, ",".join(map(" ".join, _leaves()))], width, variables=PLAIN)
    assert code == 0 and not ANSI.search(text)
    assert max(map(text_width, text.splitlines())) <= width


@pytest.mark.parametrize("words", _leaves(), ids=" ".join)
def test_help_has_an_example_whose_options_there_are(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*words, "--help"]) == 0
    examples = re.findall(rf"^ {{4}}fairssl ({' '.join(words)}.*)$", capsys.readouterr().out, re.MULTILINE)
    assert examples, "no example in the help"
    for example in examples:
        assert run([*example.split(), "--help"]) == 0  # options are parsed before the help is printed


def test_options_of_bench_stand_under_themes_in_one_order() -> None:
    done = piped("bench", "--help")
    heads = [line for line in done.stdout.splitlines() if line.endswith(":") and not line.startswith(" ")]
    themes = ["What is compared:", "Data:", "Training:", "Where and how it runs:", "Output:", "Options:"]
    assert heads == ["Examples:", *themes]
    rest = done.stdout.partition("\nOptions:\n")[2]
    assert re.findall(r"^  (--[\w-]+)", rest, re.MULTILINE) == ["--help"], "every option has its theme"


def test_help_has_colour_on_a_terminal_alone() -> None:
    assert ANSI.search(on_terminal([*FAIRSSL, "list", "--help"], 80)[1])
    assert not ANSI.search(piped("list", "--help", FORCE_COLOR="1").stdout)


def test_a_mistake_names_the_help_of_its_own_command() -> None:
    done = piped("list", "--jason")
    assert done.returncode == 2 and "--jason" in done.stderr and "fairssl list --help'" in done.stderr
    assert done.stderr.count("\n") == 1


def test_in_a_pipe_each_setting_is_one_line() -> None:
    rows = piped("show", "train").stdout.split("parameters (--set NAME=VALUE)\n")[1].rstrip("\n").split("\n")
    assert len(rows) > 20 and all(row.startswith("  train.") for row in rows)


@pytest.mark.parametrize("width", [80, 120])
def test_list_breaks_no_word(width: int) -> None:
    code, text = on_terminal([*FAIRSSL, "list"], width, variables=PLAIN)
    assert code == 0 and not ANSI.search(text)
    assert_whole(text, piped("list").stdout, width)
    head = text.partition("\n\n")[0]
    if width == 120:
        assert "No room for: generator, theory." in " ".join(text.split())
        assert re.search(r"adversarial +contrastive +label +attribute", head)
    else:
        assert "No room for: adversarial, contrastive, generator, theory, made of." in " ".join(text.split())


@pytest.mark.slow
@pytest.mark.parametrize("width", [80, 120])
def test_data_list_score_and_a_plan_break_no_word_and_fit(width: int, tmp_path: Path) -> None:
    """A pipe has every line whole."""
    groups = ("Middle Eastern", "White", "East Asian")
    rows = [f"{i % 2},0.{37 * i % 100:02d},{groups[i % 3]}" for i in range(90)]
    (tmp_path / "p.csv").write_text("\n".join(["target,score,group", *rows, "1,.7,thin"]) + "\n")
    variables = {**PLAIN, "XDG_DATA_HOME": "/nowhere", "FAIRSSL_DATA": None}
    for words in (["data", "list"], ["score", "p.csv", "--readings"], ["bench", "--dry-run", "--dataset", "celeba"]):
        code, text = on_terminal([*FAIRSSL, *words], width, tmp_path, variables)
        whole = piped(*words, cwd=tmp_path, XDG_DATA_HOME="/nowhere", FAIRSSL_DATA="")
        assert code == whole.returncode == 0, whole.stderr
        text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)  # bold, and of a progress bar that is gone
        assert max(map(text_width, text.splitlines())) <= width, words
        if words[0] != "score":  # whose tables are other ones in a pipe
            assert " ".join(text.split()) == " ".join(whole.stdout.split())
            assert max(map(len, whole.stdout.splitlines())) > width


def test_list_has_colour_on_a_terminal_alone() -> None:
    code, text = on_terminal([*FAIRSSL, "list", "heads"], 80)
    assert code == 0 and "\x1b[36m" in text
    plain = on_terminal([*FAIRSSL, "list", "heads"], 80, variables=PLAIN)[1]
    assert ANSI.sub("", text) == plain == on_terminal([*FAIRSSL, "list", "heads"], 80, variables={"TERM": "dumb"})[1]
    assert not ANSI.search(piped("list", "heads", FORCE_COLOR="1").stdout)


def test_a_broken_package_is_said_between_words_on_a_terminal_and_on_one_line_elsewhere(tmp_path: Path) -> None:
    write_package(tmp_path, "stranger", {"__init__.py": "FAIRSSL_INTERFACE = 7\n", "heads/x.py": ""})
    done = piped("list", "heads", PYTHONPATH=str(tmp_path))
    assert done.returncode == 0 and done.stderr.count("\n") == 1
    assert "stranger is broken: it needs plugin interface 7 and this fairssl has 1" in done.stderr
    _, text = on_terminal([*FAIRSSL, "list", "heads"], 60, variables={**PLAIN, "PYTHONPATH": str(tmp_path)})
    assert_whole(text, done.stdout + done.stderr, 60)


EVERYTHING = """
from fairssl import kinds
from fairssl.cli import run
for kind, known in kinds.registries.items():
    for name in known.where():
        assert run(["show", kind, name]) == 0
for words in (["train"], ["probe"], ["grid", "paper_celeba"], ["grid", "all_methods_smoke"]):
    assert run(["show", *words]) == 0
assert run(["doctor"]) == 0
assert run(["check", "metric", "kl"]) == 0
assert run(["show", "head", "adversery"]) == 2
"""


@pytest.mark.slow
@pytest.mark.parametrize("width", [80, 120])
def test_show_doctor_and_check_break_no_word(width: int, tmp_path: Path) -> None:
    code, text = on_terminal(["-c", EVERYTHING], width, tmp_path, PLAIN)
    assert code == 0 and not ANSI.search(text), text[-2000:]
    whole = subprocess.run(
        [sys.executable, "-c", EVERYTHING], capture_output=True, text=True, timeout=300, cwd=tmp_path, check=True
    )
    assert_whole(text, whole.stdout + whole.stderr, width)


@pytest.mark.slow
def test_what_new_writes_is_told_with_whole_paths(tmp_path: Path) -> None:
    code, text = on_terminal([*FAIRSSL, "new", "metric", "my_own"], 80, tmp_path, PLAIN)
    assert code == 0
    for line in text.splitlines():
        if line.startswith("wrote "):
            assert (tmp_path / line.removeprefix("wrote ")).is_file()


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert run(["show", *words]) == 0
    return capsys.readouterr().out


def test_show_train_has_what_set_reaches_with_defaults_ranges_and_meaning(capsys: pytest.CaptureFixture[str]) -> None:
    content = json.loads(shown(capsys, "train", "--json"))
    rows = {row["set"]: row for row in content["parameters"]}
    assert (rows["train.lr"]["default"], rows["train.lr"]["range"]) == (1e-3, "> 0")
    assert rows["train.schedule"]["type"] == "constant | cosine" and "hue" in rows["train.hue"]["about"]
    assert all(row["about"] for row in rows.values())
    assert content["set_by_methods"]["erm"]["recipe"] == "randaugment"


def test_show_probe_names_what_methods_set_themselves(capsys: pytest.CaptureFixture[str]) -> None:
    content = json.loads(shown(capsys, "probe", "--json"))
    rows = {row["set"]: row for row in content["parameters"]}
    assert rows["probe.kind"]["type"] == "linear | lbfgs | knn" and all(row["about"] for row in rows.values())
    assert content["set_by_methods"]["dfr"] == {"kind": "lbfgs"}
    assert "dfr: kind lbfgs" in shown(capsys, "probe")


def test_show_grid_counts_what_it_would_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = json.loads(shown(capsys, "grid", "paper_celeba", "--json"))
    assert content["summary"].startswith(f"{content['runs']} runs, {content['pretrainings']} pretrainings: ")
    assert content["runs"] == len(content["methods"]) * 3 * 2 * 4 > content["pretrainings"] > 0
    assert content["seeds"] == [0, 1, 2, 3] and content["attributes"] == ["male", "young"]
    assert (
        content["description"].startswith("As the paper says: ") and "\n\nOpen in the paper" in content["description"]
    )
    path = tmp_path / "mine.toml"
    path.write_text(
        '# Two blocks. They share a key.\nmethods = ["simclr"]\n[[grid]]\nseeds = 2\n[[grid]]\nseeds = [5]\n'
    )
    text = shown(capsys, "grids", str(path))
    assert text.startswith(f"grid {path}: Two blocks.\n\nThey share a key.\n")
    assert re.search(r"^runs +3$", text, re.MULTILINE) and "settings of block 2" in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["objective"], "which objective? known: barlow_twins, byol, ccl"),
        (["grid"], "which grid? known: all_methods_smoke, paper_"),
        (["train", "lr"], "takes no name, and 'lr' is one more"),
        (["tran"], "unknown kind 'tran'; did you mean 'train'"),
        (["grid", "paper_celeb"], "did you mean 'paper_celeba'"),
        (["grid", ""], "--grid '' is empty; name a TOML file, or a grid of fairssl's: all_methods_smoke, paper_"),
    ],
)
def test_what_show_cannot_show_is_told_in_one_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["show", *words]) == 2
    told = capsys.readouterr().err
    assert said in told and told.count("\n") == 1


@pytest.mark.parametrize("kind", ["objectives", "heads", "encoders", "datasets"])
def test_every_parameter_says_what_it_is(kind: str) -> None:
    for name, part in kinds.registries[kind].working().items():
        for key, field in part.Config.model_fields.items():
            assert field.description, f"{name}.{key} has no docstring"


def test_only_the_command_that_is_asked_for_is_loaded() -> None:
    script = "import sys; from fairssl.cli import run; run(['list', 'heads']); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    loaded = {*done.stderr.split()}
    assert "fairssl.cli.list_" in loaded
    assert not loaded & {"fairssl.cli.bench", "fairssl.interfaces", "rich", "numpy", "torch"}
