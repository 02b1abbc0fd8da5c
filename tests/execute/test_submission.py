"""`--submit`: how its values are read, what is refused before anything is submitted, and what reaches sbatch."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from reference.started import TINY

from fairssl.execute.options import Options
from fairssl.execute.submission import check_submit, parse_submit
from fairssl.types import UserError

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("submitit") is None, reason="submitit is not installed: pip install 'fairssl[slurm]'"
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("timeout_min=600", 600),
        ("mem_gb=1.5", 1.5),
        ("slurm_use_srun=false", False),
        ("slurm_use_srun=False", False),
        ("slurm_exclusive=true", True),
        ("slurm_exclusive=user", "user"),
        ("slurm_partition=gpu", "gpu"),
        ("slurm_partition = gpu ", "gpu"),
        ('slurm_partition="gpu"', "gpu"),
        ("slurm_comment=a=b", "a=b"),
        ('slurm_setup=["module load cuda", "ulimit -n 4096"]', ["module load cuda", "ulimit -n 4096"]),
        ('slurm_additional_parameters={"gres": "gpu:1", "nice": 5}', {"gres": "gpu:1", "nice": 5}),
        ("slurm_account=123", "123"),  # submitit wants text
        ("slurm_mem=4GB", "4GB"),
        ("slurm_comment=NaN", "NaN"),
        ("cluster=local", "local"),
    ],
)
def test_a_value_is_json_or_text(text: str, value: Any) -> None:
    ((_, found),) = check_submit(parse_submit([text])).items()
    assert found == value and type(found) is type(value)


def test_null_leaves_a_parameter_out() -> None:
    assert check_submit(parse_submit(["slurm_partition=null", "slurm_qos=None", "nodes=1"])) == {"nodes": 1}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("timeout_min=1.5", "--submit timeout_min=1.5: must be a whole number"),
        ("timeout_min=true", "--submit timeout_min=true: must be a whole number"),
        ("mem_gb=4GB", "--submit mem_gb=4GB: must be a number"),
        ("slurm_use_srun=no", "--submit slurm_use_srun=no: must be true or false"),
        (
            "slurm_setup=module load cuda",
            "must be a list of texts, as in --submit slurm_setup='[\"module load cuda\"]'",
        ),
        ("slurm_setup=[1]", "must be a list of texts"),
        ("slurm_setup=['module load cuda']", "write it as JSON, with double quotes"),
        ("slurm_additional_parameters=gres", "must be a mapping"),
        ('slurm_partition=["a"]', "must be text"),
        ("slurm_partitoin=gpu", "did you mean 'slurm_partition'"),
        ("partition=gpu", "unknown --submit 'partition'"),
        ("cluster=slrum", "did you mean 'slurm'"),
    ],
)
def test_a_value_that_submitit_would_not_take_is_one_line(text: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        Options(executor="slurm", submit=parse_submit([text]))
    assert message in str(caught.value) and "\n" not in str(caught.value)


SBATCH = """#!/bin/bash
cp "$1" "$(dirname "$0")/submitted.sh"
echo "sbatch: error: invalid partition specified: gpu" >&2
exit 1
"""


def slurm(out: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A grid on a cluster whose sbatch refuses every job, and keeps it."""
    folder = out.parent / "bin"
    folder.mkdir(exist_ok=True)
    for name, text in (("sbatch", SBATCH), ("srun", "#!/bin/bash\n")):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    submit = [part for word in words for part in ("--submit", word)]
    call = [sys.executable, "-m", "fairssl", "bench", *TINY, "--method", "simclr", "--out", str(out)]
    env = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.run([*call, "--executor", "slurm", *submit], capture_output=True, text=True, env=env, timeout=300)


@pytest.mark.slow
def test_what_is_given_reaches_sbatch_and_a_refusal_of_its_is_one_line(tmp_path: Path) -> None:
    gres = json.dumps({"gres": "gpu:1"})
    done = slurm(
        tmp_path / "runs",
        *("mem_gb=1.5", "slurm_partition=gpu", "slurm_use_srun=false", "slurm_account=123"),
        *('slurm_setup=["module load cuda"]', f"slurm_additional_parameters={gres}"),
    )
    assert done.returncode == 2 and "Traceback" not in done.stderr
    error = done.stderr.splitlines()[-1]
    assert error.startswith("fairssl: error: Slurm takes no job: sbatch: error: invalid partition specified: gpu")
    text = (tmp_path / "bin" / "submitted.sh").read_text()
    for line in ("--mem=1536MB", "--partition=gpu", "--account=123", "--gres=gpu:1"):
        assert f"#SBATCH {line}\n" in text
    assert "\nmodule load cuda\n" in text and "srun" not in text
    assert not (tmp_path / "runs").exists()  # no plan that `status` would call planned


@pytest.mark.slow
def test_a_wrong_parameter_is_refused_before_anything_is_written_or_submitted(tmp_path: Path) -> None:
    done = slurm(tmp_path / "runs", "mem_gb=much")
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "--submit mem_gb=much: must be a number" in done.stderr
    assert not (tmp_path / "runs").exists() and not (tmp_path / "bin" / "submitted.sh").exists()


@pytest.mark.slow
def test_a_refused_grid_leaves_what_the_folder_held(tmp_path: Path) -> None:
    """The runs of another grid stay, and of the refused one there is no plan."""
    out = tmp_path / "runs"
    call = [sys.executable, "-m", "fairssl", "bench", *TINY, "--out", str(out)]
    subprocess.run([*call, "--method", "random"], capture_output=True, check=True, timeout=300)
    plans = list((out / "plans").iterdir())
    assert slurm(out, "slurm_partition=gpu").returncode == 2
    assert list((out / "plans").iterdir()) == plans and len(list((out / "results").glob("*/record.json"))) == 1
    status = subprocess.run([sys.executable, "-m", "fairssl", "status", str(out)], capture_output=True, text=True)
    assert status.stdout.startswith("0 planned, 0 running, 1 ok")


@pytest.mark.slow
def test_without_slurm_nothing_is_written_and_a_plan_says_so(tmp_path: Path) -> None:
    out, empty = tmp_path / "runs", tmp_path / "bin"
    empty.mkdir()
    call = [sys.executable, "-m", "fairssl", "bench", *TINY, "--method", "sofclr", "--out", str(out)]
    env = {**os.environ, "PATH": str(empty)}
    done = subprocess.run([*call, "--executor", "slurm"], capture_output=True, text=True, env=env, timeout=300)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "srun" in done.stderr
    assert not out.exists()
    done = subprocess.run(
        [*call, "--executor", "slurm", "--dry-run"], capture_output=True, text=True, env=env, timeout=300
    )
    assert done.returncode == 0 and "a run on this machine is refused: submitit refuses: " in done.stderr
