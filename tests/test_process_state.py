"""`fairssl.bench` from scripts and notebooks: what shows, what an interrupt leaves, and that nothing else is changed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from queue import Empty
from typing import Any

import pytest
from reference import small
from reference.checkout import TESTS
from reference.started import live, training, until

pytestmark = pytest.mark.slow

SETUP = f"""
import sys
sys.path.insert(0, {str(TESTS)!r})
from reference.process_state import changed, process_state
import fairssl

size = dict(epochs=2, image_size=16, batch_size=16, annotated=0.3)
data = {dict(text.split("=") for text in small.SETS)!r}

def bench(out, methods="simclr", **more):
    return fairssl.bench(methods, "synthfaces", settings=data, out=out, **{{**size, "seeds": 1, **more}})
"""


def script(code: str, *args: object) -> str:
    """What a script prints that runs this code."""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    call = [sys.executable, "-c", SETUP + code, *map(str, args)]
    done = subprocess.run(call, capture_output=True, text=True, env=environment, timeout=500)
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stderr
    return done.stdout


def test_a_script_finds_its_process_as_it_was(tmp_path: Path) -> None:
    """With a plugin's head that draws numbers and fits, in this process and by workers; also where the call fails."""
    code = """
import random
import numpy, torch
random.seed(1); numpy.random.seed(1); torch.manual_seed(1); torch.set_num_threads(3)
before = process_state()
found = bench(sys.argv[1], "simclr,sofclr+leace".split(","))
print(changed(before, process_state()), found.n_failed)
found = bench(sys.argv[1], "vae+mmd", seeds=2, workers=2)
print(changed(before, process_state()), found.n_failed)
try:
    bench(sys.argv[1], "simclrr")
except fairssl.types.UserError as error:
    print(changed(before, process_state()), "did you mean" in str(error))
from fairssl.spec.run import RunSpec
record = fairssl.run(RunSpec.model_validate(found.records()[0].spec), device="cpu")
print(changed(before, process_state()), record.state)
"""
    assert script(code, tmp_path).splitlines() == ["[] 0", "[] 0", "[] True", "[] ok"]


class Notebook:
    """A Jupyter kernel and the cells that were run in it."""

    def __init__(self, manager: Any, client: Any) -> None:
        self.manager, self.client = manager, client

    def start(self, code: str) -> str:
        sent: str = self.client.execute(code)
        return sent

    def finish(self, sent: str, seconds: float = 300) -> list[dict[str, Any]]:
        """The messages of a cell, in order, once it has ended."""
        found = []
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                message = self.client.get_iopub_msg(timeout=1)
            except Empty:
                continue
            if message["parent_header"].get("msg_id") != sent:
                continue
            found.append(message)
            if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                return found
        raise AssertionError("the cell did not end")

    def run(self, code: str) -> str:
        """What a cell printed on stdout."""
        messages = self.finish(self.start(code))
        assert not errors(messages), errors(messages)
        return streams(messages, "stdout")


def streams(messages: list[dict[str, Any]], name: str) -> str:
    of_stream = [m["content"] for m in messages if m["msg_type"] == "stream" and m["content"]["name"] == name]
    return "".join(content["text"] for content in of_stream)


def shown(messages: list[dict[str, Any]]) -> list[str]:
    """What the cell displayed, and what that was replaced with."""
    kinds = ("display_data", "update_display_data")
    return [m["content"]["data"]["text/plain"] for m in messages if m["msg_type"] in kinds]


def errors(messages: list[dict[str, Any]]) -> list[str]:
    return [m["content"]["ename"] for m in messages if m["msg_type"] == "error"]


@pytest.fixture(scope="module")
def notebook() -> Iterator[Notebook]:
    manager = pytest.importorskip("jupyter_client").KernelManager(kernel_name="python3")
    pytest.importorskip("ipykernel")
    manager.kernel_spec.argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    manager.start_kernel(env={**os.environ, "OMP_NUM_THREADS": "1"})
    client = manager.client()
    client.start_channels()
    client.wait_for_ready(timeout=120)
    found = Notebook(manager, client)
    found.run(SETUP)
    yield found
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def test_a_notebook_shows_progress_and_the_table(notebook: Notebook, tmp_path: Path) -> None:
    notebook.run("before = process_state()")
    messages = notebook.finish(notebook.start(f"found = bench({str(tmp_path)!r}, epochs=100); found.table"))
    assert not errors(messages)
    progress = shown(messages)
    assert any("train " in text and " of 300" in text for text in progress), progress
    assert progress[-1] == ""  # it goes when the call is over
    assert len({m["content"]["transient"]["display_id"] for m in messages if "display_data" in m["msg_type"]}) == 1
    assert "simclr synthfaces/attractive/male seed 0: Acc" in streams(messages, "stderr")
    (result,) = (m["content"]["data"] for m in messages if m["msg_type"] == "execute_result")
    assert "\n| simclr " in result["text/markdown"]
    assert notebook.run("print(changed(before, process_state()))") == "[]\n"


@pytest.mark.parametrize("workers", [None, 2])
def test_ctrl_c_in_a_notebook_leaves_a_run_that_goes_on(
    workers: int | None, notebook: Notebook, tmp_path: Path
) -> None:
    notebook.run("before = process_state()")
    methods = ["simclr", "sogclr"][: workers or 1]
    call = f"found = bench({str(tmp_path)!r}, {methods}, epochs=200, workers={workers})"
    sent = notebook.start(call)
    pids = until(lambda: len(training(tmp_path)) == len(methods) and training(tmp_path), 300)
    notebook.manager.interrupt_kernel()
    messages = notebook.finish(sent)
    assert errors(messages) == ["KeyboardInterrupt"]
    saved = [int(path.stem.split("-")[1]) for path in tmp_path.glob("work/*/checkpoint-*.safetensors")]
    assert len(saved) >= len(methods) and not list(tmp_path.glob("results/*"))
    assert notebook.run("print(changed(before, process_state()))") == "[]\n"
    kernel = notebook.manager.provisioner.pid
    if workers:
        assert all(pid != kernel and not Path(f"/proc/{pid}").exists() for pid in pids)  # type: ignore[attr-defined]
    else:
        assert pids == [kernel]
    sent = notebook.start(call)
    first = until(lambda: [one["done"] for one in live(tmp_path) if one["what"] == "train" and one["done"]], 300)
    assert min(first) > 3  # type: ignore[type-var,arg-type]
    messages = notebook.finish(sent)
    assert not errors(messages)
    states = [json.loads(path.read_text())["state"] for path in tmp_path.glob("results/*/record.json")]
    assert states == ["ok"] * len(methods)
