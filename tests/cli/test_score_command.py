"""`fairssl score`: what it prints, and what it says of bad input."""

import csv
import gzip
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from reference.checkout import CASES
from reference.command import fairssl
from reference.plugin_package import write_package
from reference.terminal import written_to

from fairssl import scoring
from fairssl.cli import run

CASES = json.loads((CASES / "metric_cases.json").read_text())
HEADLINE = {"Acc", "ED", "EO", "DP", "IntraAUC", "InterAUC", "GAUC", "WD", "KL"}
ALL = HEADLINE | {"TPRGap", "FPRGap", "WorstGroupAcc", "AUC", "BalAcc", "ECEGap"}


@pytest.fixture
def write(tmp_path):
    def make(rows, header=("y", "p", "a"), name="predictions.csv"):
        text = io.StringIO()
        csv.writer(text).writerows([header, *rows])
        path = tmp_path / name
        path.write_text(text.getvalue())
        return str(path)

    return make


def case(name):
    d = CASES["datasets"][name]
    return list(zip(d["y"], d["score"], d["group"], strict=True))


def score(path, *more):
    return run(["score", path, "--target", "y", "--score", "p", "--group", "a", *more])


def result(capsys, path, *more):
    assert score(path, "--json", *more) == 0
    return json.loads(capsys.readouterr().out)


BASIC = case("basic")


def test_json(write, capsys):
    found = result(capsys, write(BASIC))
    assert list(found) == ["n", "groups", "metrics", "undefined"]
    assert (found["n"], found["groups"], found["undefined"]) == (16, {"0": 8, "1": 8}, {})
    assert set(found["metrics"]) == ALL
    expected = {c["metric"]: c["expected"] for c in CASES["cases"] if c["dataset"] == "basic"}
    expected |= {"Acc": 11 / 16, "TPRGap": 0.25, "FPRGap": 0.0, "WorstGroupAcc": 0.5, "AUC": 54 / 64, "BalAcc": 11 / 16}
    expected["ECEGap"] = (2.8 - 2.6) / 8  # every score has a bin of its own: sums of |score - target| in each group
    assert found["metrics"] == pytest.approx(expected, abs=1e-9)


def test_json_of_undefined_metrics(write, capsys):
    found = result(capsys, write(case("single_class_group")))
    assert found["groups"] == {"0": 2, "1": 2}
    undefined = {"ED", "EO", "IntraAUC", "InterAUC", "TPRGap", "WorstGroupAcc"}
    assert found["undefined"] == dict.fromkeys(undefined, "group 1 has no positive")
    assert {symbol for symbol, value in found["metrics"].items() if value is None} == undefined
    assert found["metrics"]["DP"] == 0


def test_declared_group_that_is_absent(write, capsys):
    found = result(capsys, write(BASIC), "--groups", "0,1,2")
    assert found["groups"] == {"0": 8, "1": 8, "2": 0}
    assert found["metrics"]["Acc"] == 11 / 16 and found["metrics"]["DP"] is None
    assert found["undefined"]["DP"] == "group 2 has 0 samples"
    found = result(capsys, write(BASIC), "--groups", "0,1,2", "--undefined", "omit")
    assert found["metrics"]["DP"] == 0.125
    assert found["partial"]["DP"] == "mean of 1 of 3 parts, the others undefined"
    found = result(capsys, write(BASIC), "--groups", "0,1,2", "--undefined", "omit", "--ordered")
    assert found["partial"]["DP"] == "mean of 1 of 2 parts, the others undefined"


def test_order_of_groups(write, capsys):
    forward = result(capsys, write(case("ties_unequal")))["metrics"]["KL"]
    found = result(capsys, write(case("ties_unequal")), "--groups", "1, 0")
    assert list(found["groups"]) == ["1", "0"]
    assert found["metrics"]["KL"] == pytest.approx(1.375867457875431) != forward
    rows = [(0, 0.1, "10"), (1, 0.2, "9"), (1, 0.2, "1")]
    assert list(result(capsys, write(rows))["groups"]) == ["1", "9", "10"]
    assert list(result(capsys, write([*rows, (1, 0.3, "x")]))["groups"]) == ["1", "10", "9", "x"]


def test_pairs(write, capsys):  # A9
    expected = next(c for c in CASES["cases"] if c["id"] == "ED:four_groups")
    path = write(case("four_groups"))
    for flags in (["--ordered"], ["--pairs", "adjacent"], ["--ordered", "--pairs", "adjacent"]):
        found = result(capsys, path, *flags)
        assert found["metrics"]["ED"] == pytest.approx(expected["expected"]) and found["pairs"] == "adjacent"
    for flags in ([], ["--nominal"], ["--pairs", "all"], ["--ordered", "--pairs", "all"]):
        found = result(capsys, path, *flags)
        assert found["metrics"]["ED"] == pytest.approx(expected["other_readings"]["all_pairs"])
        assert found["pairs"] == "all"
    assert result(capsys, path, "--pairs", "max")["metrics"]["ED"] == 1.0
    two = result(capsys, write(BASIC), "--pairs", "max", "--ordered")  # two groups: every way gives the same
    assert "pairs" not in two and two["notes"] == ["two groups are one pair: pairs and ordered have no effect"]
    assert result(capsys, write(BASIC), "--pairs", "max")["notes"] == ["two groups are one pair: pairs has no effect"]
    assert "notes" not in result(capsys, write(BASIC))


def test_the_caption_says_which_pairs(write, capsys):  # A9
    path = write(case("four_groups"))
    for flags, said in {
        (): "4 groups: gaps are means over all 6 pairs of groups; groups are taken as nominal unless said to be ordered",
        ("--nominal",): "4 groups: gaps are means over all 6 pairs of groups\n",
        ("--pairs", "max"): "4 groups: gaps are the largest over all 6 pairs of groups\n",
        ("--ordered",): "4 groups in order: gaps are means over the 3 adjacent pairs (AUC metrics: over the 4 tasks",
    }.items():
        assert score(path, *flags) == 0
        assert said in capsys.readouterr().out
    assert score(write(BASIC)) == 0
    assert "pairs" not in capsys.readouterr().out


def test_codes_of_nominal_groups_may_be_permuted(write, capsys):  # A9
    rows = case("random_k4")
    before = result(capsys, write(rows))["metrics"]
    other = result(capsys, write([(y, p, "cadb"[a]) for y, p, a in rows]))["metrics"]
    assert {k: v for k, v in other.items() if k != "KL"} == pytest.approx(
        {k: v for k, v in before.items() if k != "KL"}, abs=1e-12
    )


def test_bootstrap(write, capsys):
    rows = [*BASIC * 4, (1, 0.7, "2"), (0, 0.2, "2")]
    found = result(capsys, write(rows), "--bootstrap", "100")
    assert set(found["intervals"]) == ALL
    for symbol, interval in found["intervals"].items():
        assert interval["undefined_replicates"] == 0
        if interval["low"] is None:
            assert interval["reason"]
        else:
            assert interval["low"] <= found["metrics"][symbol] <= interval["high"]
    assert set(found["intervals"]["Acc"]) == {"low", "high", "undefined_replicates"}
    assert found["intervals"]["EO"]["unreliable"] == "group 2 has 1 positive"
    none = result(capsys, write(BASIC), "--groups", "0,1,2", "--bootstrap", "100")["intervals"]["DP"]
    reason = "undefined in all 100 replicates"
    assert none == {"low": None, "high": None, "undefined_replicates": 100, "reason": reason}


def test_noise_floor(write, capsys):
    rows = [(y, round(p, 3), a) for y, p, a in case("random_k4")]
    found = result(capsys, write(rows), "--noise-floor", "40")["noise_floor"]
    assert {"ED", "DP", "KL", "ECEGap"} <= set(found) and "Acc" not in found
    for one in found.values():
        assert 0 < one["mean"] < one["high"] and one["permuted_within"] in ("data", "target")
    assert score(write(rows), "--noise-floor", "40") == 0
    text = capsys.readouterr().out
    assert line(text, "ED")[2] == f"{100 * found['ED']['high']:.2f}" and "by chance" in text
    assert "no larger than chance measures on this test set" in text


def test_readings(write, capsys):
    found = result(capsys, write(case("ties_unequal")), "--readings")["readings"]
    assert found["ED"] == {"max": 0.5, "sum": 0.5}
    assert found["KL"] == pytest.approx({"reversed": 1.375867457875431, "mean": 0.8260521831465016})
    assert found["GAUC"] == pytest.approx({"difference": 0.2})
    assert found["by_group"]["0"]["AUC(pos, neg)"] == 1 and found["by_group"]["1"]["AUC(pos, neg)"] == 3.5 / 4
    assert found["by_group"]["0"]["AUC(pos, rest neg)"] == 3.5 / 4
    assert found["by_group"]["0"]["AUC(all, rest)"] == pytest.approx(9 / 15)
    assert found["by_group"]["1"]["FPR"] == 0.5


@pytest.mark.parametrize("forms", [("0", "1"), ("0.0", "1.0"), ("false", "true"), ("False", "TRUE"), (" 0", "1 ")])
def test_targets_and_groups_in_other_types(write, capsys, forms):
    rows = [(forms[y], p, (f"{a}.0", str(a))[i % 2]) for i, (y, p, a) in enumerate(BASIC)]
    assert result(capsys, write(rows)) == result(capsys, write(BASIC))


def test_scores_are_read_exactly(write, capsys):
    rng = np.random.default_rng(0)
    p, y, a = rng.random(500), rng.integers(0, 2, 500), rng.integers(0, 2, 500)
    found = result(capsys, write([(y[i], repr(float(p[i])), a[i]) for i in range(500)]))
    assert found["metrics"] == scoring.evaluate(scoring.check_outcome(p, y, a, ("0", "1")))


def test_gzip_stdin_quotes_marks_and_more_columns(write, tmp_path, capsys, monkeypatch):
    expected = result(capsys, write(BASIC))
    rows = [(f'"{i}", he said', y, p, a) for i, (y, p, a) in enumerate(BASIC)]
    data = Path(write(rows, header=("id", "y", " p", "a"))).read_bytes()
    for name, content in (
        ("a.csv.gz", gzip.compress(data)),
        ("mark.csv", b"\xef\xbb\xbf" + data),
        ("gap.csv", data + b"\n\n"),
    ):
        (tmp_path / name).write_bytes(content)
        assert result(capsys, str(tmp_path / name)) == expected
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(gzip.compress(data))))
    assert result(capsys, "-") == expected


def line(text, start):
    return next(row.split() for row in text.splitlines() if row.split()[:1] == [start])


def test_table(write, capsys):
    assert score(write(case("single_class_group"))) == 0
    text = capsys.readouterr().out
    assert "4 predictions: target y, p > 0.5 predicts 1, groups by a" in text
    assert line(text, "Acc")[1] == "75.00" and line(text, "FPRGap")[1] == "50.00"
    assert line(text, "WD")[1] == "0.1500" and line(text, "GAUC")[1] == "0.0000"
    assert line(text, "EO")[1] == "-"
    assert "EO: undefined, group 1 has no positive" in text
    assert line(text, "0")[:8] == ["0", "2", "1", "1", "1.0000", "0.5000", "1.0000", "0.0000"]
    assert line(text, "1")[:8] == ["1", "2", "2", "0", "0.5000", "0.5000", "-", "0.5000"]
    assert "\x1b" not in text and "reversed" not in text


def test_table_of_an_absent_group_prints_no_zero(write, capsys):  # M12
    assert score(write(case("empty_group")), "--groups", "0,1") == 0
    assert line(capsys.readouterr().out, "1") == ["1", "0", "0", "0", "-", "-", "-", "-"]


def test_table_with_everything(write, capsys):
    rows = [*BASIC * 4, (1, 0.7, "2"), (0, 0.2, "2")]
    assert score(write(rows), "--readings", "--bootstrap", "100") == 0
    text = capsys.readouterr().out
    assert line(text, "Acc")[3] == "to"
    assert "ED, max" in text and "ED, sum" in text and "KL, reversed" in text and "KL, mean" in text
    assert "AUC(pos, rest neg)" in text
    assert "EO: interval unreliable, group 2 has 1 positive" in text
    assert "ECEGap: no interval, no bootstrap interval of this metric holds the truth often enough" in text


def test_predictions_of_one_class_are_said_to_be(write, capsys):  # D17
    path = write([(y, 0.4, a) for y, _, a in BASIC])
    said = "all 16 predictions are class 0: gaps of decisions are 0 for that reason"
    assert result(capsys, path)["notes"] == [said]
    assert score(path) == 0
    assert said in capsys.readouterr().out
    assert "notes" not in result(capsys, write(BASIC))


def on_a_terminal(width, *words):
    """What `fairssl` writes to a terminal of that width, colours taken out."""
    import fcntl
    import pty
    import struct
    import termios

    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    env = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR", "FORCE_COLOR")} | {"TERM": "xterm"}
    call = [sys.executable, "-m", "fairssl", *words]
    with subprocess.Popen(call, stdin=subprocess.DEVNULL, stdout=follower, stderr=subprocess.PIPE, env=env) as process:
        os.close(follower)
        written = written_to(leader)
        errors = process.stderr.read()
    assert process.returncode == 0, errors
    assert b"\x1b[" in written
    return re.sub(r"\x1b\[[0-9;]*m", "", written.decode()).replace("\r\n", "\n")


@pytest.mark.slow
@pytest.mark.parametrize("width", [80, 120])
def test_no_value_breaks_on_a_terminal(write, capsys, width):  # C3
    rows = [(y, p, ("Middle Eastern", "White", "East Asian", "Others")[a]) for y, p, a in case("random_k4")]
    flags = ["--bootstrap", "100", "--noise-floor", "20", "--readings"]
    path = write(rows)
    text = on_a_terminal(width, "score", path, "--target", "y", "--score", "p", "--group", "a", *flags)
    assert max(map(len, text.splitlines())) <= width
    assert score(path, *flags) == 0
    plain = capsys.readouterr().out
    numbers = [word for word in plain.split() if re.fullmatch(r"\d+\.\d{2,4}", word)]
    assert len(numbers) > 60
    for word in [*numbers, *ALL, "95 % interval", "by chance", "positive_rate", "Middle Eastern", "AUC(rest pos, neg)"]:
        assert word in text
    assert ("what it is" in text) == (width == 120)
    assert width == 120 or "fairssl show metric NAME" in text


ROW = [(1, 0.9, 0), (0, 0.2, 1)]


@pytest.mark.parametrize(
    ("rows", "more", "said"),
    [
        ([*ROW, (1, "", 0)], [], "column 'p' is NaN in 1 of 3 rows, first in row 3"),
        ([*ROW, (1, "nan", 0)], [], "column 'p' is NaN"),
        ([*ROW, (1, 1.5, 0)], [], "column 'p' is outside [0, 1] in 1 of 3 rows, first 1.5 in row 3"),
        ([*ROW, (1, "inf", 0)], [], "column 'p' is outside [0, 1]"),
        ([*ROW, (1, "high", 0)], [], "column 'p' holds 'high' in row 3, which is not a number in [0, 1]"),
        ([*ROW, (2, 0.5, 0)], [], "column 'y' is not 0 or 1 in 1 of 3 rows, first 2 in row 3"),
        ([*ROW, ("", 0.5, 0)], [], "column 'y' is not 0 or 1"),
        ([*ROW, ("yes", 0.5, 0)], [], "column 'y' holds 'yes' in row 3, which is not 0 or 1"),
        ([*ROW, (1, 0.5, ""), (1, 0.5, " ")], [], "column 'a' has no group in 2 of 4 rows, first in row 3"),
        ([(1, 0.9, 1)], [], "column 'a' has one value, '1',"),
        ([(1, 0.9, 1)], [], "declare it: --groups 1,OTHER"),
        ([(1, 0.9, "")], [], "column 'a' has no group in 1 of 1 rows"),
        (ROW, ["--groups", "0,2"], "column 'a' has the value '1' in 1 of 2 rows, outside the declared groups 0, 2"),
        (ROW, ["--groups", "0,1,0"], "group '0' is declared twice"),
        (ROW, ["--groups", "0,1,0.0"], "group '0' is declared twice"),
        (ROW, ["--groups", "0"], "--groups '0' declares one group"),
        (ROW, ["--groups", "0,,1"], "--groups '0,,1' has an empty label"),
        (ROW, ["--groups", ""], "--groups '' has an empty label"),
        (ROW, ["--pairs", "al"], "--pairs 'al' is unknown; did you mean 'all'?"),
        (ROW, ["--pairs", "adjacent", "--nominal"], "--pairs adjacent needs groups in order, which --nominal denies"),
        (ROW, ["--noise-floor", "-5"], "--noise-floor -5 is no number of replicates"),
        (ROW, ["--undefined", "skip"], "--undefined 'skip' is unknown"),
        (ROW, ["--bootstrap", "-1"], "--bootstrap -1 is no number of replicates"),
        (ROW, ["--bootstrap", "5"], "--bootstrap 5: too few for the ends of a 95 % interval; at least 100"),
        (ROW, ["--bootstrap", "99"], "at least 100, 1000 is usual, 0 is none"),
        (ROW, ["--noise-floor", "19"], "--noise-floor 19: too few for the 95 % quantile; at least 20"),
        (ROW, ["--bootstrap", "many"], "Invalid value for '--bootstrap'"),
        ([*ROW, (1, 0.5)], [], "has 2 values in row 3 (line 4) but 3 columns"),
        ([], [], "has a header but no rows"),
        ([(1, 0.5, f"id{i}") for i in range(101)], [], "column 'a' has 101 different values"),
    ],
)
def test_bad_input(write, capsys, rows, more, said):
    for json_too in ([], ["--json"]):
        assert score(write(rows), *more, *json_too) == 2
        out, err = capsys.readouterr()
        assert out == "" and err.count("\n") == 1 and err.startswith("fairssl: error: ")
        assert said in err


def test_wrong_column(write, capsys):
    path = write(ROW, header=("target", "score", "group"))
    assert run(["score", path, "--target", "targets", "--score", "score", "--group", "group"]) == 2
    err = capsys.readouterr().err
    assert "has no column 'targets'; did you mean 'target'? known: group, score, target" in err
    assert run(["score", path]) == 0  # these names are the defaults
    assert score(write(ROW, header=("y", "p", "p"))) == 2
    assert "has more than one column 'p'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"\n\n", "is empty"),
        (gzip.compress(b"y,p,a\n1,0.5,0\n", mtime=0)[:-9], "is a broken gzip file"),
        (b"\x80\x81\x00\xff", "is not UTF-8 text"),
        (b'y,p,a\n1,0.5,"0' + b"0" * 140_000, "has a quote that is not closed as it should be in line 2"),
        (b'y,p,a\n1,0.5,"0"1\n', "has a quote that is not closed as it should be in line 2"),
    ],
)
def test_bad_file(tmp_path, capsys, content, said):
    (tmp_path / "p.csv").write_bytes(content)
    assert score(str(tmp_path / "p.csv")) == 2
    err = capsys.readouterr().err
    assert said in err and "p.csv" in err and err.count("\n") == 1


def test_missing_file_and_folder(tmp_path, capsys):
    assert score(str(tmp_path / "absent.csv")) == 2
    assert "no file" in (err := capsys.readouterr().err) and "absent.csv" in err
    assert score(str(tmp_path)) == 2
    assert "cannot read" in capsys.readouterr().err


def lines_of(n=100):
    """A file of n rows with a column of notes, as lines."""
    rng = np.random.default_rng(0)
    return ["y,p,a,note", *(f"{i % 2},{rng.random():.3f},{i // 2 % 2},fine" for i in range(n))]


def test_a_quote_that_is_never_closed_is_refused_with_its_line(tmp_path, capsys):  # D1
    lines = lines_of()
    lines[20] = lines[20].replace("fine", '"blurry')
    path = tmp_path / "p.csv"
    for end in ("\n", "\r\n"):
        path.write_text(end.join(lines) + end, newline="")
        for json_too in ([], ["--json"]):
            assert score(str(path), *json_too) == 2
            out, err = capsys.readouterr()
            assert out == "" and err.count("\n") == 1
            assert "has a quote that is not closed as it should be in line 21, found at line 10" in err


def test_a_quote_that_swallows_rows_is_refused_with_its_line(tmp_path, capsys):  # D1
    lines = lines_of()
    lines[20] = lines[20].replace("fine", '"blurry')
    lines[60] += '"'
    path = tmp_path / "p.csv"
    path.write_text("\n".join(lines))
    assert score(str(path)) == 2
    err = capsys.readouterr().err
    assert "has a quote in line 21 that is closed in line 61 only: 40 lines between them look like rows" in err


def test_notes_of_several_lines_are_read_and_counted(tmp_path, capsys):  # D1
    lines = lines_of()
    expected = result(capsys, written(tmp_path, lines))
    lines[20] = lines[20].replace("fine", '"blurry,\nand ""dark"""')
    lines[30] = lines[30].replace("fine", '5" wide')  # a mark in the middle of a value quotes nothing
    found = result(capsys, written(tmp_path, lines))
    assert found.pop("notes") == ["100 rows from 101 lines after the header: some quoted values hold line breaks"]
    assert found == expected


def written(folder, lines):
    (folder / "p.csv").write_text("\n".join(lines) + "\n")
    return str(folder / "p.csv")


@pytest.mark.parametrize(("mark", "named"), [(";", "semicolons"), ("\t", "tabs"), ("|", "vertical bars")])
def test_other_separators_are_read_and_named(tmp_path, capsys, mark, named):  # D16
    expected = result(capsys, written(tmp_path, lines_of()))
    found = result(capsys, written(tmp_path, [line.replace(",", mark) for line in lines_of()]))
    assert found.pop("notes") == [f"values separated by {named}"]
    assert found == expected


def test_decimal_commas_between_semicolons(tmp_path, capsys):  # D16
    expected = result(capsys, written(tmp_path, lines_of()))
    lines = [line.replace(",", ";").replace(".", ",") for line in lines_of()]
    found = result(capsys, written(tmp_path, lines))
    assert found["metrics"] == expected["metrics"]


def test_a_wrong_column_of_another_separator(tmp_path, capsys):  # D16
    path = written(tmp_path, ["target;score;group", "1;0.5;0", "0;0.5;1"])
    assert score(path) == 2
    err = capsys.readouterr().err
    assert "has no column 'y' (separated by semicolons); known: group, score, target" in err
    assert run(["score", path]) == 0


FIRST_VERSION = '''\
"""A gap as a plugin of version 0.1.0 computes it."""

from typing import Literal

from fairssl import scoring
from fairssl.api import Outcome, Value, metric


@metric(symbol="Mine", better="lower", percent=True, order=500)
def mine(outcome: Outcome, *, pairs: Literal["adjacent", "all"] = "adjacent") -> Value:
    """Mean gap in positive predictions, in [0, 1]; 0 is fair. Undefined if a group has no examples."""
    rates = scoring.positive_rates(outcome)
    return scoring.average([scoring.gap(rates[i], rates[j]) for i, j in scoring.group_pairs(len(outcome.groups), pairs)])
'''


@pytest.mark.slow
def test_a_metric_of_somebody_else_from_the_first_version(write, tmp_path):  # A9
    write_package(tmp_path / "site", "metrics-of-mine", {"metrics/mine.py": FIRST_VERSION})
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    path = write(case("random_k4"))

    def scored(*flags):
        call = [
            sys.executable,
            "-m",
            "fairssl",
            "score",
            path,
            "--target",
            "y",
            "--score",
            "p",
            "--group",
            "a",
            "--json",
        ]
        done = subprocess.run([*call, *flags], capture_output=True, text=True, env=env)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    for flags in (["--ordered", "--bootstrap", "100"], []):
        found = scored(*flags)
        assert found["metrics"]["Mine"] == found["metrics"]["DP"]
    assert found["metrics"]["Mine"] is not None
    most = scored("--pairs", "max")
    assert most["metrics"]["DP"] > found["metrics"]["DP"] and most["metrics"]["Mine"] is None
    assert most["undefined"]["Mine"] == "metric 'mine' has no pairs='max', only adjacent, all"
    checked = subprocess.run([sys.executable, "-m", "fairssl", "check", "metric", "mine"], capture_output=True, env=env)
    assert checked.returncode == 0, checked.stdout


@pytest.mark.slow
def test_faults_as_a_user_meets_them(tmp_path, write):
    columns = ["--target", "y", "--score", "p", "--group", "a"]

    def found(path, *flags):
        code, out, err = fairssl("score", path, *columns, "--json", *flags)
        assert code == 0, err
        return json.loads(out)

    # A9: the order of nominal groups does not matter, and the output says how they are paired.
    rows = case("random_k4")
    paths = [write([(y, p, names[a]) for y, p, a in rows], name=f"{names}.csv") for names in ("abcd", "cadb")]
    first, second = ({k: v for k, v in found(path)["metrics"].items() if k != "KL"} for path in paths)
    assert first == pytest.approx(second, abs=1e-12)
    assert "gaps are means over all 6 pairs of groups" in fairssl("score", paths[0], *columns)[1]
    ordered = fairssl("score", paths[0], *columns, "--ordered")[1]
    assert "4 groups in order: gaps are means over the 3 adjacent pairs" in ordered

    # A5, A6: an interval holds its own value; the floor of a set of equal cells is that of its design.
    group, target = np.arange(1000) // 2 % 2, np.arange(1000) % 2
    logit = np.random.default_rng(0).normal(size=1000) + 2 * target - 1 + 0.3 * group
    path = write(list(zip(target, 1 / (1 + np.exp(-logit)), group, strict=True)), name="thousand.csv")
    values = found(path, "--bootstrap", "300", "--noise-floor", "100")
    for symbol, interval in values["intervals"].items():
        if symbol == "ECEGap":
            assert interval["low"] is None and interval["reason"]
        else:
            assert interval["low"] <= values["metrics"][symbol] <= interval["high"]
    assert {one["permuted_within"] for one in values["noise_floor"].values()} == {"target"}
    assert values["noise_floor"]["KL"]["mean"] > 0.15

    # D1: a quote that is never closed. D16: semicolons. D17: one class.
    lines = lines_of()
    path = written(tmp_path, [line.replace(",", ";") for line in lines])
    assert found(path)["notes"] == ["values separated by semicolons"]
    lines[20] = lines[20].replace("fine", '"blurry')
    code, out, err = fairssl("score", written(tmp_path, lines), *columns)
    assert (code, out) == (2, "") and "not closed as it should be in line 21" in err and err.count("\n") == 1
    path = write([(y, 0.9, a) for y, _, a in BASIC])
    assert "all 16 predictions are class 1" in fairssl("score", path, *columns)[1]
