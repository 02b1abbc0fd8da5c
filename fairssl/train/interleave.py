"""Several runs on one device, a step each in turn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fairssl import distributed
from fairssl.train.history import Diverged
from fairssl.train.rng import get_rng_state, set_rng_state
from fairssl.train.trainer import Trainer


def interleave(trainers: Sequence[Trainer], runs: Sequence[Iterator[None]]) -> list[Exception | None]:
    """Advance several runs of one device in turn, a step each; of each, what it ended with, None if at its last step.

    On a GPU the steps of different runs overlap, each on its own stream: one of 64 pixels leaves half of a large card
    idle. A run that fails or diverges stops no other. What each draws does not depend on the others.
    """
    ended: list[Exception | None] = [None] * len(runs)
    left = list(range(len(runs)))
    while left:
        for number in list(left):
            trainer = trainers[number]
            try:
                set_rng_state(trainer.device, trainer.rng_state)
                next(runs[number])
                trainer.rng_state = get_rng_state(trainer.device)
            except StopIteration:
                left.remove(number)
            except Exception as error:
                ended[number] = error
                left.remove(number)
                if distributed.size() > 1 and not isinstance(error, Diverged):  # the others may be at this run still
                    return [error if i in (number, *left) else found for i, found in enumerate(ended)]
    return ended
