"""What every test gets: one torch thread, so that busy cores do not slow small tensors down; the global generators seeded, so
that a test that draws from them sees the same numbers every time; its own cache folder. What it may ask for: a browser."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    import numpy
    import torch

    random.seed(0)
    numpy.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRSSL_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless Chromium."""
    names = ("chromium", "chromium-browser", "google-chrome")
    path = next((found for found in map(shutil.which, names) if found), None)
    if path is None:
        pytest.skip("no browser: chromium is not here")
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not here")
    with api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield found
        found.close()
