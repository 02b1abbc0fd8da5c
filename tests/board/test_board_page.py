"""The page in a real browser: sorting, filter, views, hover, keyboard; nothing leaves it, nothing is injected.

Runs where playwright and a Chromium are; skipped with the reason elsewhere.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from reference.records import SYMBOLS, record, seeds, spec

from fairssl.board.csv import to_csv
from fairssl.board.html import to_html
from fairssl.board.latex import latex_text, to_latex
from fairssl.board.markdown import to_markdown
from fairssl.board.rows import build
from fairssl.store.record import Record

NASTY = (
    "a|b&c<script>window.hacked=1</script>\"'`_x_ *y* [l](javascript:alert(1)) \\ {z} $e^f$ ~ # % \n\t ![i](http://x/y.png)"
    " é ł 漢 😀 \u202e ↔ &amp; --- =1+1"
)
NAMES = (
    NASTY,
    "=cmd|' /C calc'!A0",
    "@sum(1)",
    "-1+2",
    "+x",
    "img src=x onerror=alert(1)",
    "\\input{/etc/passwd}",
    "%",
    "",
)


def nasty_records() -> list[Record]:
    found = []
    for number, name in enumerate(NAMES):
        for seed in range(3):
            s = spec(name, seed, weight=0.1 * (number + 1))
            values = {symbol: 0.3 + 0.02 * number + 0.01 * seed for symbol in SYMBOLS}
            facts = {"groups": ["<b>|x", NASTY], "positive": NASTY, "n_train": 10, "n_test": 4, "departures": [NASTY]}
            found.append(
                record(s, values, facts=facts, cells={"0": {"<b>|x": 2, NASTY: 2}, "1": {"<b>|x": 2, NASTY: 2}})
            )
    found.append(record(spec("bad", 0), state="failed", error=f"RuntimeError: {NASTY}"))
    return found


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_text_makes_no_tag_and_no_handler() -> None:
    page = to_html(*build(nasty_records()))
    tags = _Tags()
    tags.feed(page)
    assert [tag for tag, _ in tags.found].count("script") == 1 and "img" not in {tag for tag, _ in tags.found}
    assert not [name for _, attrs in tags.found for name in attrs if name.startswith("on") or name == "src"]
    links = [attrs["href"] for _, attrs in tags.found if attrs.get("href")]
    assert all(link and link.startswith(("#", "data:,")) for link in links)
    assert "window.hacked" in page and "<script>window" not in page


def test_text_makes_no_cell_and_no_markup_in_markdown() -> None:
    text = to_markdown(*build(nasty_records()))
    grids = [line for line in text.splitlines() if line.startswith("|")]
    assert len({len(re.split(r"(?<!\\)\|", line)) for line in grids}) == 1
    assert "<script" not in text and not re.search(r"(?<!\\)\[l\]\(", text) and "![" not in text.replace(r"!\[", "")


def test_text_is_no_formula_in_a_spreadsheet() -> None:
    import csv
    import io

    lines = list(csv.reader(io.StringIO(to_csv(*build(nasty_records())))))
    assert len({len(line) for line in lines}) == 1
    cells = [cell for line in lines[1:] for cell in line]
    assert not [cell for cell in cells if cell.startswith(("=", "+", "-", "@", "\t", "\r"))]
    assert any(cell.startswith("'=cmd") for cell in cells)


@pytest.mark.parametrize(
    ("text", "tex"),
    [
        ("a_b & 50%", r"a\_b \& 50\%"),
        ("é Å ž ç", r"\'{e} \r {A} \v {z} \c {c}"),
        ("ł ß", r"\l{} \ss{}"),
        ("😀 漢", "U+1F600 U+6F22"),
        ("½", "1/2"),
        ("a--b", "a{-}{-}b"),
        ("ą", "a"),
    ],
)
def test_latex_prints_text_as_it_is(text: str, tex: str) -> None:
    assert latex_text(text) == tex and latex_text(text).isascii()


@pytest.mark.slow
def test_the_latex_compiles_as_it_is_and_within_a_paper(tmp_path: Path) -> None:
    if shutil.which("pdflatex") is None:
        pytest.skip("no TeX installation: pdflatex is not here")
    tables = build([*nasty_records(), *seeds([0.8, 0.82, 0.9], "sofclr", weight=3.0, attribute="age")])
    (tmp_path / "table.tex").write_text(to_latex(*tables), encoding="utf-8")
    paper = (
        "\\documentclass{article}\n\\usepackage{booktabs}\n\\usepackage{graphicx}\n\\begin{document}\nText.\n"
        "\\input{table}\nSee Table~\\ref{tab:utkface-gender-age}.\n\\end{document}\n"
    )
    (tmp_path / "paper.tex").write_text(paper)
    for name in ("table.tex", "paper.tex", "paper.tex"):
        call = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape", name]
        done = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, timeout=240, errors="replace")
        assert done.returncode == 0, done.stdout[-3000:]
        assert "Missing character" not in done.stdout
    assert "Reference `tab" not in done.stdout  # the label is found
    assert (tmp_path / "table.pdf").read_bytes()[:4] == b"%PDF"


class Page:
    """A page of a board, with what it said and asked for."""

    def __init__(self, browser: Any, path: Path, width: int = 1200, scheme: str = "light") -> None:
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(path.as_uri())

    def labels(self) -> list[str]:
        rows = self.page.query_selector_all("table.board tbody tr")
        return [row.query_selector("td").inner_text().removesuffix(" †") for row in rows if row.is_visible()]


@pytest.fixture
def board(tmp_path: Path) -> Path:
    records = [
        *seeds([0.80, 0.82, 0.87], "simclr", weight=0.0),
        *seeds([0.90, 0.91, 0.92], "sogclr", weight=0.0),
        *seeds([0.70, None, 0.72], "byol", weight=0.0),
        *seeds([0.85, 0.86, 0.88], "sofclr"),
        record(spec("ccl", 0, weight=0.0), state="failed"),
    ]
    path = tmp_path / "index.html"
    path.write_text(to_html(*build(records)), encoding="utf-8")
    return path


@pytest.mark.slow
def test_sorting_filter_and_views(board: Path, browser: Any) -> None:
    one = Page(browser, board)
    page = one.page
    assert one.labels() == ["SimCLR", "SogCLR", "BYOL", "ccl", "SoFCLR"]
    accuracy = page.get_by_role("button", name=re.compile("^Acc"))
    accuracy.click()
    assert one.labels() == ["SogCLR", "SoFCLR", "SimCLR", "BYOL", "ccl"]  # the undefined last, both ways
    assert page.locator("th[aria-sort]").get_attribute("aria-sort") == "descending"
    accuracy.press("Enter")
    assert one.labels() == ["SimCLR", "SoFCLR", "SogCLR", "BYOL", "ccl"]
    page.get_by_role("button", name=re.compile("^Method")).click()
    assert one.labels() == ["BYOL", "ccl", "SimCLR", "SoFCLR", "SogCLR"]
    page.fill("#filter", "sof annotated")
    assert one.labels() == ["SoFCLR"] and page.inner_text("#count") == "1 of 5 rows"
    page.fill("#filter", "")
    assert len(one.labels()) == 5
    cell = page.locator("table.board tbody tr", has_text="SoFCLR").locator("td").nth(1)
    assert cell.inner_text() == "86.33 ± 1.53"
    page.get_by_label("every seed").check()
    assert cell.inner_text() == "85.00 86.00 88.00"
    page.get_by_label("95 % interval").check()
    assert re.fullmatch(r"86\.33 \[82\.\d\d, 90\.\d\d\]", cell.inner_text())
    assert one.said == [] and one.asked == [board.as_uri()]


@pytest.mark.slow
def test_hover_and_keyboard_tell_intervals_and_reasons(board: Path, browser: Any) -> None:
    one = Page(browser, board)
    page, tip = one.page, one.page.locator("#tip")
    assert tip.is_hidden()
    page.hover("td.undefined >> nth=0")
    assert "undefined: seed 1: group 1 has no Acc" in tip.inner_text()
    page.keyboard.press("Escape")
    assert tip.is_hidden()
    page.locator("td.best").first.focus()
    said = tip.inner_text()
    assert "95 % interval" in said and "rank 1" in said and "by seed: 0: " in said
    points = page.locator("svg:visible .point")
    for at in range(points.count()):  # no name lies over a point
        points.nth(at).hover(timeout=5000)
    assert "Acc " in tip.inner_text() and "target seen" in tip.inner_text()
    page.locator("body").press("Tab")
    order = []
    for _ in range(12):
        page.keyboard.press("Tab")
        order.append(page.evaluate("[...document.querySelectorAll('*')].indexOf(document.activeElement)"))
    assert len(set(order)) == 12 and order == sorted(order)  # nothing keeps the focus
    page.select_option("select[data-plots]", "KL")
    assert page.locator("[data-plot-of]:visible").get_attribute("data-metric") == "KL"
    assert one.said == [] and one.asked == [board.as_uri()]


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone_and_can_be_read(board: Path, browser: Any, scheme: str) -> None:
    one = Page(browser, board, width=360, scheme=scheme)
    assert one.page.evaluate("document.documentElement.scrollWidth") <= 360  # tables scroll by themselves

    def luminance(colour: str) -> float:
        parts = [int(x) / 255 for x in re.findall(r"\d+", colour)[:3]]
        linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    paper = luminance(one.page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert (paper < 0.1) == (scheme == "dark")
    for where in ("body", ".quiet", "td.undefined", "nav a"):
        ink = luminance(one.page.evaluate(f"getComputedStyle(document.querySelector('{where}')).color"))
        assert (max(ink, paper) + 0.05) / (min(ink, paper) + 0.05) > 4.5, where
    assert one.said == [] and len(one.asked) == 1


@pytest.mark.slow
def test_nothing_in_the_records_runs_in_the_page(tmp_path: Path, browser: Any) -> None:
    path = tmp_path / "index.html"
    path.write_text(to_html(*build(nasty_records())), encoding="utf-8")
    one = Page(browser, path)
    assert one.page.evaluate("window.hacked === undefined")
    one.page.hover("td.floor, td.best, td[data-tip] >> nth=0")
    assert one.asked == [path.as_uri()] and one.said == []
    # and if a tag did get in, the page's policy would not run it
    injected = path.read_text(encoding="utf-8").replace("</main>", "<script>window.hacked = 1</script></main>")
    path.write_text(injected, encoding="utf-8")
    assert Page(browser, path).page.evaluate("window.hacked === undefined")


def test_the_page_needs_no_script_to_be_read(board: Path) -> None:
    page = board.read_text(encoding="utf-8")
    assert "90.00" in page and "<noscript" not in page and "http" not in page.split("<script>")[1]
    assert page.count("</script>") == 1 and sys.getsizeof(page) < 200_000
