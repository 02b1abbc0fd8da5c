"""The store: whole or not there, whoever dies, whoever is first, whatever the disk says."""

from __future__ import annotations

import errno
import gzip
import json
import os
import pickle
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError
from reference.small_disk import mounted

from fairssl.store.files import StoreError, whole_file
from fairssl.store.record import Measured, Predictions, Record, State, reason_of, to_json
from fairssl.store.runs import RunStore
from fairssl.types import UserError


def record(key: str = "a1", state: State = "ok", **fields: object) -> Record:
    if state == "ok":
        fields.setdefault("metrics", {"Acc": 0.1 + 0.2, "EO": None})
        fields.setdefault("undefined", {"EO": "group 1 has no positive"})
    else:
        fields.setdefault("error", "step 120: loss nan")
    return Record(spec={"seed": 0, "lr": 1e-3}, key=key, state=state, **fields)


def predictions(n: int = 5, seed: int = 0) -> Predictions:
    rng = np.random.default_rng(seed)
    return Predictions([f"id{i}" for i in range(n)], rng.random(n), rng.integers(0, 2, n), rng.integers(0, 3, n))


def files(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


def script(code: str, *args: object, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    """Run Python in a process of its own, one thread, so that it may fork."""
    head = "import os, random, signal, sys, time\nfrom pathlib import Path\n"
    head += "import numpy as np\nfrom fairssl.store.files import *\n"
    head += "from fairssl.store.record import *\nfrom fairssl.store.runs import *\n"
    env = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    command = [sys.executable, "-c", head + code, *map(str, args)]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=timeout)


def test_equal_records_have_equal_text_whatever_the_order_of_their_fields() -> None:
    a = record(metrics={"Acc": 0.5, "DP": 1 / 3}, undefined={}, env={"python": "3", "torch": "2"})
    b = record(env={"torch": "2", "python": "3"}, undefined={}, metrics={"DP": 1 / 3, "Acc": 0.5})
    assert a.to_json() == b.to_json()
    assert Record.model_validate_json(a.to_json()) == a
    assert json.loads(a.to_json())["metrics"]["DP"] == 1 / 3


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_json_has_no_nan_and_no_infinity(value: float) -> None:
    with pytest.raises(ValueError, match="JSON"):
        to_json({"x": value})
    with pytest.raises(ValidationError, match="finite"):
        record(metrics={"Acc": value}, undefined={})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"metrics": {"EO": None}, "undefined": {}}, "see EO"),
        ({"metrics": {"EO": 0.0}, "undefined": {"EO": "none"}}, "see EO"),
        ({"metrics": {"EO": None}, "undefined": {"EO": ""}}, "empty reason"),
        ({"error": "boom"}, "a record that is ok has error 'boom'"),
        ({"state": "failed", "error": None}, "a record that is failed has error None"),
        ({"state": "failed", "error": "boom", "metrics": {"Acc": 1.0}}, "has no metrics"),
        ({"acuracy": 1}, "acuracy"),
        ({"state": "done"}, "state"),
    ],
)
def test_a_record_that_contradicts_itself_cannot_be_made(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Record(**{"spec": {}, "key": "a1", "state": "ok", **fields})


def test_validation_keeps_the_rule_of_reasons() -> None:
    with pytest.raises(ValidationError, match="see KL"):
        Measured(metrics={"KL": None})


def test_predictions_round_trip_to_the_last_bit() -> None:
    score = np.array([0.1 + 0.2, 1 / 3, 5e-324, 1.0, 0.0, np.nextafter(0.5, 1)])
    ours = Predictions(
        ["a", "b,c", 'd"e', "f", "g", "h"], score, np.array([0, 1, 0, 1, 0, 1]), np.array([2, -1, 0, 1, 0, 1])
    )
    back = Predictions.from_csv_gz(ours.to_csv_gz())
    assert list(back.ids) == list(ours.ids)
    for name in ("score", "target", "group"):
        np.testing.assert_array_equal(getattr(back, name), getattr(ours, name))
        assert getattr(back, name).dtype == (np.float64 if name == "score" else np.int64)


def test_predictions_have_no_clock_in_them(monkeypatch: pytest.MonkeyPatch) -> None:
    first = predictions().to_csv_gz()
    monkeypatch.setattr(time, "time", lambda: 2e9)
    assert predictions().to_csv_gz() == first
    assert gzip.decompress(first).decode().splitlines()[0] == "id,score,target,group"


@pytest.mark.parametrize("n", [0, 1])
def test_few_predictions(n: int) -> None:
    assert len(Predictions.from_csv_gz(predictions(n).to_csv_gz()).score) == n


def test_predictions_that_are_none_are_refused() -> None:
    with pytest.raises(ValueError, match="unequal length"):
        Predictions(["a"], np.zeros(2), np.zeros(2), np.zeros(2)).to_csv_gz()
    with pytest.raises(ValueError, match="not finite"):
        Predictions(["a"], np.array([np.nan]), np.zeros(1), np.zeros(1)).to_csv_gz()
    whole = predictions(1000).to_csv_gz()
    for torn in (b"", whole[:-9], whole[: len(whole) // 2], b"id,score", gzip.compress(b"id,score\n")):
        with pytest.raises(ValueError, match="not a"):
            Predictions.from_csv_gz(torn)


def test_a_result_comes_back(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "runs")
    store.create()
    assert store.read_record("a1") is None and store.state("a1") is None and not store.has_result("a1")
    assert store.write_result(record(), predictions()) == record()
    assert store.read_record("a1") == record()
    assert store.has_result("a1")
    back = store.read_predictions("a1")
    assert back is not None and back.to_csv_gz() == predictions().to_csv_gz()
    assert files(store.root) == {"results/a1/record.json", "results/a1/predictions.csv.gz"}


def test_reading_touches_nothing(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "runs")
    assert list(store.records()) == [] and store.read_pretrain("a1") is None and store.read_predictions("a1") is None
    assert list(tmp_path.iterdir()) == []


def test_the_first_ok_stays_and_replaces_what_failed(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    store.write_result(record(state="failed", error="first"))
    store.write_result(record(state="diverged", error="second"))
    assert (store.state("a1"), store.has_result("a1")) == ("diverged", False)
    assert store.read_predictions("a1") is None
    first = record(notes=["first"])
    assert store.write_result(first, predictions()) == first
    assert store.write_result(record(notes=["second"]), predictions(3)) == first
    assert store.write_result(record(state="failed", error="third")) == first
    assert store.read_record("a1") == first
    back = store.read_predictions("a1")
    assert back is not None and len(back.score) == 5
    assert files(tmp_path) == {"results/a1/record.json", "results/a1/predictions.csv.gz"}


def test_predictions_go_with_ok_records_only(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="predictions belong to an ok record"):
        RunStore(tmp_path).write_result(record())
    with pytest.raises(ValueError, match="predictions belong to an ok record"):
        RunStore(tmp_path).write_result(record(state="failed"), predictions())


def test_records_come_in_order_of_keys_and_without_what_is_half_there(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    for key in ("b", "c", "a"):
        store.write_result(record(key), predictions())
    (tmp_path / "results" / ".tmp-d-1234").mkdir()
    (tmp_path / "results" / ".tmp-d-1234" / "record.json").write_text("{")
    (tmp_path / "results" / "e").mkdir()
    (tmp_path / "results" / "notes.txt").write_text("mine")
    assert [r.key for r in store.records()] == ["a", "b", "c"]
    store.write_result(record("e"), predictions())
    assert store.has_result("e")
    path = tmp_path / "results" / "b" / "record.json"
    path.write_text(json.dumps(json.loads(path.read_text()), indent=4))  # a user's editor
    assert [line.decode() for _, line in store.records_and_lines()] == [f"{r.to_json()}\n" for r in store.records()]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"spec": {', "record.json is damaged .*JSON"),
        ('{"spec": {}, "key": "a1", "state": "ok", "metrics": {"Acc": NaN}}', "damaged"),
        ('{"spec": {}, "key": "b2", "state": "ok"}', "it holds the record of b2"),
        ('{"spec": {}, "key": "a1", "state": "ok", "version": 1}', "version 1, this fairssl reads 2"),
    ],
)
def test_a_damaged_record_is_named_with_the_way_out(tmp_path: Path, text: str, message: str) -> None:
    folder = tmp_path / "results" / "a1"
    folder.mkdir(parents=True)
    (folder / "record.json").write_text(text)
    with pytest.raises(UserError, match=message) as caught:
        RunStore(tmp_path).read_record("a1")
    assert f"remove the folder {folder}" in str(caught.value) and "\n" not in str(caught.value)


def test_damaged_predictions_are_named(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    store.write_result(record(), predictions())
    path = tmp_path / "results" / "a1" / "predictions.csv.gz"
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(UserError, match=r"predictions\.csv\.gz is damaged"):
        store.read_predictions("a1")


@pytest.mark.parametrize("key", ["", ".", "..", "../x", "a/b", ".tmp-x", "a.b"])
def test_what_is_no_key_names_no_folder(tmp_path: Path, key: str) -> None:
    with pytest.raises(ValueError, match="is not a key"):
        RunStore(tmp_path).result_dir(key)


def test_a_pretraining_comes_back_bit_for_bit(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    store = RunStore(tmp_path)
    weight = torch.linspace(0, 1, 6).reshape(2, 3)
    tensors = {"w": weight, "tied": weight, "t": weight.T, "u": torch.tensor(3), "half": weight.bfloat16()}
    history = [{"loss": 0.1 + 0.2}, {"loss": 1 / 3, "dual": float("nan")}]
    store.write_pretrain("p1", {"a": 1}, tensors, history)
    found = store.read_pretrain("p1")
    assert found is not None
    assert set(found[0]) == set(tensors)
    for name, value in found[0].items():
        assert value.dtype == tensors[name].dtype and torch.equal(value, tensors[name])
    assert found[1][0] == {"loss": 0.1 + 0.2}
    assert found[1][1]["loss"] == 1 / 3 and np.isnan(found[1][1]["dual"])
    assert files(tmp_path) == {f"pretrain/p1/{name}" for name in ("spec.json", "encoder.safetensors", "history.csv")}


def test_the_first_pretraining_stays(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    store = RunStore(tmp_path)
    for value in (1.0, 2.0):
        store.write_pretrain("p1", {}, {"w": torch.tensor(value)}, [])
    found = store.read_pretrain("p1")
    assert found is not None and found[0]["w"] == 1.0 and found[1] == []
    (tmp_path / "pretrain" / "p1" / "history.csv").unlink()
    assert not store.has_pretrain("p1") and store.read_pretrain("p1") is None
    store.write_pretrain("p1", {}, {"w": torch.tensor(3.0)}, [])
    found = store.read_pretrain("p1")
    assert found is not None and found[0]["w"] == 3.0


def test_a_damaged_pretraining_is_named(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    store = RunStore(tmp_path)
    store.write_pretrain("p1", {}, {"w": torch.zeros(100)}, [])
    path = tmp_path / "pretrain" / "p1" / "encoder.safetensors"
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(UserError, match=r"encoder\.safetensors is damaged"):
        store.read_pretrain("p1")


def test_work_folders_come_and_go(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    (store.work_dir("p1") / "checkpoint").write_text("x")
    assert store.work_dir("p1") == tmp_path / "work" / "p1"
    store.clear_work("p1")
    store.clear_work("p1")
    assert files(tmp_path) == set()


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "table.md"
    path.write_text("old")
    with pytest.raises(RuntimeError, match="stop"), whole_file(path) as file:
        file.write(b"half")
        raise RuntimeError("stop")
    assert path.read_text() == "old" and files(tmp_path) == {"table.md"}
    with whole_file(path) as file:
        file.write(b"new")
        assert path.read_text() == "old"
    assert path.read_text() == "new" and files(tmp_path) == {"table.md"}


KILL_CODE = """
store, rounds = RunStore(sys.argv[1]), int(sys.argv[2])
store.create()
rng = np.random.default_rng(0)
n = 1000
big = Predictions([f"{i:016x}" for i in range(n)], rng.random(n), rng.integers(0, 2, n), rng.integers(0, 2, n))
data = big.to_csv_gz()
Predictions.to_csv_gz = lambda self: data  # so that a kill hits the writing, not the packing
def write(round):
    for i in range(1000):
        key = f"k{i % 7}r{round // 4}"
        if i % 2 and store.read_record(key) is None:
            store.write_result(Record(spec={}, key=key, state="failed", error="x" * 100000))
        else:
            store.write_result(Record(spec={}, key=key, state="ok", metrics={"Acc": 0.5}, notes=["y" * 100000]), big)
        with whole_file(store.root / "table.md") as file:
            file.write(b"z" * 100000)
torn = seen = 0
for round in range(rounds):
    pid = os.fork()
    if pid == 0:
        write(round)
        os._exit(0)
    time.sleep(random.Random(round).uniform(0.002, 0.06))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    torn += any(p.name.startswith(".tmp-") for p in [*(store.root / "results").iterdir(), *store.root.iterdir()])
    for record in store.records():  # a torn one would raise
        seen += 1
        if record.state == "ok":
            assert len(store.read_predictions(record.key).score) == n
    assert not (store.root / "table.md").exists() or (store.root / "table.md").stat().st_size == 100000
    if round % 10 == 9:
        store.create()
        left = [p for p in store.root.rglob("*") if p.name.startswith(".tmp-")]
        assert not left, left
store.create()
with store.claim("k0r0") as got:
    assert got
print(torn, seen)
"""


def test_a_writer_killed_at_any_moment_leaves_nothing_torn(tmp_path: Path) -> None:
    done = script(KILL_CODE, tmp_path / "runs", 40)
    assert done.returncode == 0, done.stderr
    torn, seen = map(int, done.stdout.split())
    assert torn >= 3, "the kills never hit a write, so the test shows nothing"
    assert seen >= 10


MANY_CODE = """
store = RunStore(sys.argv[1])
store.create()
store.write_result(Record(spec={}, key="shared", state="failed", error="to be replaced by one of eight at once"))
children = []
for worker in range(8):
    pid = os.fork()
    if pid == 0:
        for i in range(50):
            key = f"w{worker}i{i:02d}"
            p = Predictions([key], np.array([(worker * 50 + i) / 400]), np.array([1]), np.array([0]))
            store.write_result(Record(spec={"worker": worker}, key=key, state="ok", metrics={"Acc": i / 50}), p)
            store.write_result(Record(spec={}, key="shared", state="ok", metrics={"Acc": worker / 8}), p)
        os._exit(0)
    children.append(pid)
assert all(os.waitpid(pid, 0)[1] == 0 for pid in children)
"""


def test_eight_processes_write_fifty_records_each(tmp_path: Path) -> None:
    """Fault R9: many writers lose nothing and need no database."""
    done = script(MANY_CODE, tmp_path)
    assert done.returncode == 0, done.stderr
    store = RunStore(tmp_path)
    found = {r.key: r for r in store.records()}
    assert len(found) == 401
    for worker in range(8):
        for i in range(50):
            key = f"w{worker}i{i:02d}"
            assert found[key].metrics == {"Acc": i / 50} and found[key].spec == {"worker": worker}
            one = store.read_predictions(key)
            assert one is not None and one.score.tolist() == [(worker * 50 + i) / 400]
    shared = store.read_predictions("shared")
    assert shared is not None
    assert int(shared.ids[0][1]) / 8 == found["shared"].metrics["Acc"], "record and predictions of two different runs"
    assert len(files(tmp_path)) == 802


CLAIM_CODE = """
store = RunStore(sys.argv[1])
counter = Path(sys.argv[1]) / "counter"
counter.write_text("0")
children = []
for worker in range(4):
    pid = os.fork()
    if pid == 0:
        for _ in range(50):
            with store.claim("k", wait=True) as got:
                assert got
                n = int(counter.read_text())
                time.sleep(0.0005)
                counter.write_text(str(n + 1))
        os._exit(0)
    children.append(pid)
assert all(os.waitpid(pid, 0)[1] == 0 for pid in children)
print(counter.read_text())
"""


def test_claims_exclude_each_other(tmp_path: Path) -> None:
    done = script(CLAIM_CODE, tmp_path)
    assert done.stdout.strip() == "200", done.stderr
    assert files(tmp_path) == {"counter"}


DEAD_CODE = """
store = RunStore(sys.argv[1])
read, write = os.pipe()
pid = os.fork()
if pid == 0:
    with store.claim("k"):
        os.write(write, b"x")
        time.sleep(60)
os.read(read, 1)
with store.claim("k") as got:
    assert not got, "a live owner was robbed"
os.kill(pid, signal.SIGSTOP)  # slow is not dead
time.sleep(0.2)
with store.claim("k") as got:
    assert not got, "a slow owner was robbed"
os.kill(pid, signal.SIGKILL)
os.waitpid(pid, 0)
with store.claim("k") as got:
    assert got, "a dead owner's claim must be free"
"""


def test_a_dead_owners_claim_is_free_and_a_slow_ones_is_not(tmp_path: Path) -> None:
    done = script(DEAD_CODE, tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_claim_within_one_process(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    with (
        store.claim("k") as first,
        store.claim("k") as second,
        RunStore(tmp_path).claim("k") as third,
        store.claim("j") as j,
    ):
        assert (first, second, third, j) == (True, False, False, True)
    with pytest.raises(RuntimeError, match="boom"), store.claim("k"):
        raise RuntimeError("boom")
    with store.claim("k") as again:
        assert again


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of one megabyte."""
    with mounted(tmp_path / "disk", 1) as folder:
        yield folder


def test_a_disk_that_fills_up_is_a_clear_error_and_leaves_nothing_half_written(small_disk: Path) -> None:
    torch = pytest.importorskip("torch")
    store = RunStore(small_disk)
    store.create()
    store.write_result(record("a1"), predictions())
    store.write_result(record("f1", "failed"))
    before = files(small_disk)
    with pytest.raises(StoreError, match="No space left on device") as caught:
        store.write_result(record("b2"), predictions(200_000))
    assert caught.value.errno == errno.ENOSPC and isinstance(caught.value, OSError)
    assert str(small_disk / "results" / "b2") in str(caught.value) and "\n" not in str(caught.value)
    with pytest.raises(StoreError, match="No space left"):
        store.write_result(record("f1"), predictions(200_000))
    with pytest.raises(StoreError, match="No space left"):
        store.write_pretrain("p1", {}, {"w": torch.zeros(1_000_000)}, [])
    with pytest.raises(StoreError, match=r"table\.md: No space left"), whole_file(small_disk / "table.md") as file:
        file.write(b"x" * 2_000_000)
    assert files(small_disk) == before and not [p for p in small_disk.rglob("*") if p.name.startswith(".tmp-")]
    assert store.state("f1") == "failed"
    (small_disk / "ballast").write_bytes(b"x" * (os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_bsize))
    with pytest.raises(UserError, match=r"cannot write to the folder .* No space left on device; choose another"):
        store.create()
    (small_disk / "ballast").unlink()
    store.create()
    store.write_result(record("f1"), predictions())
    assert store.has_result("f1") and store.has_result("a1")


def test_a_read_only_disk_can_be_read(small_disk: Path) -> None:
    store = RunStore(small_disk)
    store.write_result(record(), predictions())
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with pytest.raises(
        UserError, match=r"cannot write to the folder .*Read-only file system; choose another with --out"
    ):
        store.create()
    with pytest.raises(StoreError, match="Read-only file system"):
        store.write_result(record("b2"), predictions())
    with pytest.raises(StoreError, match="Read-only file system"), store.claim("k"):
        pass
    with pytest.raises(StoreError, match="Read-only file system"):
        store.work_dir("k")
    assert [r.key for r in store.records()] == ["a1"] and store.read_predictions("a1") is not None


def test_a_root_that_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(UserError, match=f"cannot write to the folder {tmp_path / 'runs'}"):
        RunStore(tmp_path / "runs").create()
    assert (tmp_path / "runs").read_text() == "a file"


def test_a_disk_error_travels_between_processes() -> None:
    error = StoreError(Path("runs/a1"), OSError(errno.ENOSPC, "No space left on device"))
    back = pickle.loads(pickle.dumps(error))
    assert (str(back), back.errno, type(back)) == (str(error), errno.ENOSPC, StoreError)


def test_the_store_needs_no_torch() -> None:
    done = script("assert 'torch' not in sys.modules")
    assert done.returncode == 0, done.stderr


def test_the_reason_is_what_was_raised_and_not_a_line_of_its_message() -> None:
    try:
        try:
            raise KeyError("first")
        except KeyError:
            raise RuntimeError("boom\nsecond line\n  third") from None
    except RuntimeError:
        text = traceback.format_exc()
    assert reason_of(text) == "RuntimeError: boom"
    assert reason_of("step 3 of 6: the loss is not finite") == "step 3 of 6: the loss is not finite"
    assert reason_of("") == "" and len(reason_of("x" * 500)) == 200


def test_a_file_name_in_an_error_need_not_be_utf8():
    error = f"Traceback\nOSError: cannot read {os.fsdecode(b'caf' + bytes([0xE9]))}"
    record = Record(spec={}, key="k", state="failed", error=error)
    assert record.to_json().encode() and record.error == "Traceback\nOSError: cannot read caf\\udce9"
