"""One of several processes that train one run, for tests: the gradients of one step in float64, written to a file.

python ranks.py MEETING_FILE N NUMBER OUT
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

sys.path.insert(0, str(Path(__file__).parents[1]))

from reference import small

from fairssl import distributed, kinds
from fairssl.evaluate.embed import embed
from fairssl.testing.toy import outcome
from fairssl.train.trainer import Trainer

COMPOSED = ("sofclr", "byol+adversary", "vae+mmd", "simclr+grl", "vicreg+max_entropy", "sogclr+ccl", "ce+eod", "ce+dpr")
SPECIAL = {  # name -> (method, what is set)
    "sofclr raw": ("sofclr", ("adversary.input=raw",)),
    "sofclr projection": ("sofclr", ("adversary.input=projection",)),
    "sofclr joined": ("sofclr", ("train.join_streams=true",)),
    "erm randaugment": ("erm", ("train.recipe=randaugment", "train.blur=0.5")),
}
BATCHES = ("drawn", "sorted", "alone")


def methods() -> dict[str, tuple[str, tuple[str, ...]]]:
    """Every objective that trains, every head that takes part in training, and some special settings."""
    objectives = [name for name in kinds.objectives.where() if kinds.objectives.get(name).trains]
    heads = []
    for name in kinds.heads.where():
        head = kinds.heads.get(name)
        if head.streams:
            heads.append(f"ce+{name}" if head.needs == "logits" else f"simclr+{name}")
    return {**{name: (name, ()) for name in dict.fromkeys([*objectives, *heads, *COMPOSED])}, **SPECIAL}


def positions(trainer: Trainer, batch: str) -> dict[str, torch.Tensor]:
    """A step's positions: as drawn; sorted by group, so that processes see different groups; one group alone, and a number
    of images that no number of processes divides."""
    found = {name: stream.steps(0, 1)[0] for name, stream in trainer.streams.items()}
    if batch == "drawn" or "annotated" not in found:
        return found
    rows = trainer.data.annotated
    group = trainer.data.group[rows]
    chosen = rows[group.argsort(stable=True)][: len(found["annotated"])] if batch == "sorted" else rows[group == 0][:5]
    return {**found, "annotated": chosen}


def one_step(trainer: Trainer, batch: str) -> dict[str, torch.Tensor]:
    return outcome(trainer, positions(trainer, batch))


def all_outcomes() -> dict[str, torch.Tensor]:
    spec = small.run_of("simclr").spec
    one = small.trainer(spec)
    found = {
        "embedded": embed(one.model.encoder, one.model.objective.represent, small.splits(spec).test, one.device, 7)
    }
    for name, (method, sets) in methods().items():
        spec = small.run_of(method, sets=sets, batch_size=11).spec
        for batch in BATCHES:
            for key, value in one_step(small.trainer(spec), batch).items():
                found[f"{name}|{batch}|{key}"] = value
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    meeting, n, number, out = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    with distributed.process_group("cpu", n, number, f"file://{meeting}"):
        save_file(all_outcomes(), out)
