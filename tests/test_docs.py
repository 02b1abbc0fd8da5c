"""The documentation: every example runs, every link leads somewhere, the pages follow the code, and nothing leaves them."""

from __future__ import annotations

import functools
import http.server
import json
import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from reference.checkout import ROOT
from reference.documents import INCLUDED, commands_in_text, examples, parse, run_page
from reference.own_images import drawn, labels, write_table

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
OTHERS = [ROOT / "CONTRIBUTING.md", ROOT / "examples" / "fairssl-example" / "README.md"]
NOTEBOOK = ROOT / "examples" / "fairssl.ipynb"


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


pages = pytest.mark.parametrize("path", PAGES, ids=name_of)


@pages
def test_every_example_says_what_it_is(path: Path) -> None:
    for one in examples(path.read_text(encoding="utf-8")):
        if one.title.endswith(".py"):
            (name,) = re.findall(r'--8<-- "(.+)"', one.text)
            assert INCLUDED in one.text and (ROOT / name).is_file()
            assert name.endswith(one.title), f"{name} is shown as {one.title}"


@pytest.mark.parametrize("path", [*PAGES, *OTHERS], ids=name_of)
def test_commands_within_the_text_can_be_parsed(path: Path) -> None:
    for line in commands_in_text(path.read_text(encoding="utf-8")):
        words = [word for word in shlex.split(line.replace("...", ""))[1:] if word != "|"]
        if words and words != ["COMMAND", "--help"]:
            _parsed(words)


def _parsed(words: list[str]) -> None:
    """As `parse`; words that only name a command may leave its arguments out."""
    try:
        parse(words)
    except Exception as error:
        message = str(error.format_message()) if hasattr(error, "format_message") else str(error)
        if "Missing argument" not in message:
            raise AssertionError(f"fairssl {' '.join(words)}: {message}") from error


@pytest.mark.parametrize("path", [*PAGES, *OTHERS, ROOT / "CHANGELOG.md"], ids=name_of)
def test_links_between_files_lead_to_a_file(path: Path) -> None:
    made = {"reference", "contributing.md", "changelog.md"}  # pages that the build makes; it checks links to them
    for link in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"(?ms)^```.*?^```$", "", path.read_text(encoding="utf-8"))):
        parts = urlsplit(link)
        if parts.scheme or not parts.path:
            continue
        target = (path.parent / unquote(parts.path)).resolve()
        if target.is_relative_to(ROOT / "docs") and target.relative_to(ROOT / "docs").parts[0] in made:
            continue
        assert target.exists(), f"{link} of {name_of(path)}"


def test_a_mark_or_a_language_that_nobody_knows_is_an_error() -> None:
    for text in ("```\nls\n```", "```sh\nls\n```", "```bash\nls", "<!-- example: skip, slow -->\n```bash\nls\n```"):
        with pytest.raises(AssertionError, match="line"):
            examples(text)
    with pytest.raises(Exception, match=r"[Nn]o such option"):
        parse(["bench", "--no-such-option"])
    with pytest.raises(ValueError, match="has no command 'publish'"):
        parse(["board", "publish"])


def _own_images(folder: Path) -> None:
    """What own-images.md speaks of: 600 images in two folders, and their table."""
    names = [f"{'a' if i % 2 else 'b/c'}/{i:05d}.png" for i in range(600)]
    for i, name in enumerate(names):
        path = folder / "faces" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(drawn(i, 32))
    write_table(folder / "faces" / "faces.csv", names, labels(600))


PREPARED: dict[str, Callable[[Path], None]] = {"docs/own-images.md": _own_images}
RUN = [path for path in PAGES if re.search(r"(?m)^```(bash|python)", path.read_text("utf-8"))]


@pytest.mark.slow
@pytest.mark.parametrize("path", RUN, ids=name_of)
def test_examples_run(path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "page"
    folder.mkdir()
    PREPARED.get(name_of(path), lambda _: None)(folder)
    done = run_page(examples(path.read_text(encoding="utf-8")), folder)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-6000:]}"


@pytest.mark.slow
def test_the_notebook_runs_and_is_stored_without_outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat = pytest.importorskip("nbformat")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("HOME", str(tmp_path))
    stored = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert all(not c["outputs"] and c["execution_count"] is None for c in stored["cells"] if c["cell_type"] == "code")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    code = (
        "import nbclient, nbformat, sys\n"
        "notebook = nbformat.read(sys.argv[1], as_version=4)\n"
        "resources = {'metadata': {'path': '.'}}\n"
        "nbclient.NotebookClient(notebook, timeout=900, kernel_name='python3', resources=resources).execute()\n"
        "nbformat.write(notebook, 'done.ipynb')\n"
    )
    call = [sys.executable, "-W", "ignore", "-c", code, str(NOTEBOOK)]
    done = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stderr[-5000:]
    outputs = [o for c in nbformat.read(tmp_path / "done.ipynb", 4).cells for o in c.get("outputs", ())]
    assert any("| sofclr |" in o.get("data", {}).get("text/markdown", "") for o in outputs), "the table is shown as one"
    said = " ".join(str(o.get("text", "")) + str(o.get("data", "")) for o in outputs)
    assert "torch.Size([8, 128])" in said and "adversary.cross_entropy" in said
    assert "ipywidgets" not in said, "progress warns of nothing"


# The site


def built(folder: Path) -> subprocess.CompletedProcess[str]:
    call = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}  # material's word on its future, not on these pages
    return subprocess.run(call, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs")
    pytest.importorskip("material")
    folder = tmp_path_factory.mktemp("site")
    done = built(folder)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr and "Warning" not in done.stderr, done.stderr
    return folder


class Html(HTMLParser):
    """A page's anchors, the links it has, and what a browser fetches for it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.ids |= {found.get("id", ""), found.get("name", "")}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        if tag == "link" and found.get("rel") in ("stylesheet", "icon", "preload", "preconnect"):
            self.fetched.append(found["href"])
        self.fetched += [found["src"]] if "src" in found else []


@pytest.mark.slow
def test_every_link_and_anchor_of_the_site_leads_somewhere(site: Path) -> None:
    read = {path: Html(path) for path in site.rglob("*.html") if path.name != "404.html"}
    assert len(read) > 20
    for path, page in read.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            assert target.exists(), f"{link} on {path.relative_to(site)}"
            if parts.fragment and target in read:
                assert unquote(parts.fragment) in read[target].ids, f"{link} on {path.relative_to(site)}"
        for address in page.fetched:
            assert not urlsplit(address).netloc, f"{address} on {path.relative_to(site)}"


@pytest.mark.slow
def test_the_reference_has_all_that_the_code_has(site: Path) -> None:
    from fairssl import kinds
    from fairssl.cli import command_names
    from fairssl.plan.request import grid_names
    from fairssl.spec.config import ProbeConfig, TrainConfig

    def ids(page: str) -> set[str]:
        return Html(site / "reference" / f"{page}.html").ids

    for kind, registry in kinds.registries.items():
        ours = {name for name, places in registry.offers().items() if places[0].package == "fairssl"}
        assert ours and ours <= ids(kind), kind
    assert {*grid_names()} <= ids("grids") and {*command_names()} <= ids("commands")
    text = (site / "reference" / "settings.html").read_text(encoding="utf-8")
    for label, config in (("train", TrainConfig), ("probe", ProbeConfig)):
        assert all(f"{label}.{name}<" in text for name in config.model_fields)
    metrics = (site / "reference" / "metrics.html").read_text(encoding="utf-8")
    assert metrics.count("Elsewhere: ") == len(kinds.metrics.where()), "each says what others call it"
    shown = (site / "extend" / "head.html").read_text(encoding="utf-8")
    assert "8&lt;" not in shown and "Correlation Alignment" in shown, "files that a page shows are in it"
    licences = (site / "licences.html").read_text(encoding="utf-8")
    assert all(f"datasets.html#{name}" in licences for name in kinds.datasets.where())


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    handler = functools.partial(_Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


LOOKED_AT = ("index.html", "methods.html", "reference/methods.html", "reference/python.html")


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("page", LOOKED_AT)
def test_a_page_fits_says_nothing_and_asks_nobody(address: str, browser: Any, page: str, width: int) -> None:
    tab = browser.new_page(viewport={"width": width, "height": 800})
    said: list[str] = []
    asked: list[str] = []
    tab.on("console", lambda message: said.append(message.text))
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.on("request", lambda request: asked.append(request.url))
    tab.goto(f"{address}/{page}", wait_until="networkidle")
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert (
        tab.evaluate("Math.max(...[...document.querySelectorAll('article > p, h1, h2')].map(e => e.scrollWidth))")
        <= width
    )
    assert said == [] and all(url.startswith(address) for url in asked), (said, asked)
    tab.close()


@pytest.mark.slow
def test_search_finds_a_parameter(address: str, browser: Any) -> None:
    tab = browser.new_page(viewport={"width": 1280, "height": 800})
    tab.goto(f"{address}/index.html", wait_until="networkidle")
    tab.click("input.md-search__input")
    tab.keyboard.type("dual_lr")
    tab.wait_for_selector(".md-search-result__item")
    assert "settings.html" in str(tab.get_attribute(".md-search-result__link", "href"))
    tab.close()


@pytest.mark.slow
def test_the_pages_can_be_read_from_the_folder(site: Path, browser: Any) -> None:
    tab = browser.new_page(viewport={"width": 1280, "height": 800})
    said: list[str] = []
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.goto((site / "index.html").as_uri())
    tab.click("article a:has-text('Your own images')")
    assert tab.title().startswith("Your own images") and said == []
    tab.close()
