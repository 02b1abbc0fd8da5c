"""Several processes that train one run equal one process with the joint batch, for every objective and head."""

from __future__ import annotations

import socket
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from reference import ranks
from safetensors.torch import load_file

from fairssl import distributed
from fairssl.types import UserError

RANKS = Path(ranks.__file__)


@pytest.fixture(scope="module")
def alone() -> dict[str, torch.Tensor]:
    return ranks.all_outcomes()


@pytest.fixture(scope="module", params=[2, 3], ids=["two", "three"])
def members(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, torch.Tensor]]:
    folder, n = tmp_path_factory.mktemp("ranks"), request.param
    outs = [folder / f"{number}.safetensors" for number in range(n)]
    words = [sys.executable, "-W", "error", str(RANKS), str(folder / "meeting"), str(n)]
    running = [subprocess.Popen([*words, str(number), str(out)]) for number, out in enumerate(outs)]
    assert [one.wait(600) for one in running] == [0] * n
    return [load_file(out) for out in outs]


@pytest.mark.slow
@pytest.mark.parametrize("batch", ranks.BATCHES)
@pytest.mark.parametrize("name", ranks.methods())
def test_processes_together_are_one_with_the_joint_batch(
    name: str, batch: str, alone: dict[str, torch.Tensor], members: list[dict[str, torch.Tensor]]
) -> None:
    keys = [key for key in alone if key.startswith(f"{name}|{batch}|")]
    assert any("|the primal gradient" in key for key in keys)
    for key in keys:
        scale = max(1.0, float(alone[key].abs().max()))
        for member in members:
            assert float((member[key] - alone[key]).abs().max()) <= 1e-6 * scale, key
            assert torch.equal(member[key], members[0][key]) or "gradient" not in key  # replicas move as one


@pytest.mark.slow
def test_every_image_is_embedded_once_in_its_place(
    alone: dict[str, torch.Tensor], members: list[dict[str, torch.Tensor]]
) -> None:
    assert len(alone["embedded"]) == 40  # which three do not divide
    for member in members:
        assert torch.allclose(member["embedded"], alone["embedded"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("meeting", ["env://", "file"])
def test_who_finds_nobody_says_so_and_gives_up(
    meeting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """As with what torchrun left in an environment."""
    monkeypatch.setattr(distributed, "RENDEZVOUS_TIMEOUT", timedelta(seconds=3))
    monkeypatch.setattr(distributed, "NOTICE_AFTER", timedelta(seconds=0.5))
    with socket.socket() as free:
        free.bind(("localhost", 0))
        monkeypatch.setenv("MASTER_PORT", str(free.getsockname()[1]))
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    meeting = meeting if meeting == "env://" else f"file://{tmp_path}/meeting"
    with (
        pytest.raises(UserError, match="process 0 of 2 did not find the others") as error,
        distributed.process_group("cpu", 2, 0, meeting),
    ):
        pass
    assert ("torchrun" in str(error.value)) == (meeting == "env://")
    assert "process 0 waits for the others of 2" in capfd.readouterr().err
    assert distributed.size() == 1


def test_rows_are_divided_evenly_and_completely(monkeypatch: pytest.MonkeyPatch) -> None:
    for n in (0, 1, 7, 32):
        for size in (1, 2, 3, 8):
            monkeypatch.setattr(distributed, "size", lambda size=size: size)
            found = []
            for number in range(size):
                monkeypatch.setattr(distributed, "rank", lambda number=number: number)
                found.append(range(n)[distributed.shard_rows(n)])
            assert [i for part in found for i in part] == list(range(n))
            assert max(map(len, found)) - min(map(len, found)) <= 1
