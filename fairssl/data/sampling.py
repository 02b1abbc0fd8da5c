"""Which images are annotated, and which images each step sees."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fairssl.spec.keys import derive_seed
from fairssl.types import Sampler, UserError


def annotated_subset(group: np.ndarray, n_groups: int, share: float, attribute: str, seed: int) -> np.ndarray:
    """Positions of the images whose group may be seen: `share` of them at random, every group at least twice.

    Depends on the split, the attribute, the share and the seed, never on the target. A group with fewer than two images
    gives what it has. Images of unknown group (-1) cannot be annotated.
    """
    known = np.flatnonzero(group >= 0)
    if len(known) == 0:
        raise UserError(f"no training image has a known {attribute!r}: nothing can be annotated")
    order = np.random.Generator(np.random.PCG64(derive_seed("annotated", attribute, seed))).permutation(known)
    wanted = min(len(known), max(round(share * len(group)), min(2 * n_groups, len(known))))
    chosen = order[:wanted]
    for code in range(n_groups):
        missing = 2 - int((group[chosen] == code).sum())
        if missing > 0:
            extra = [i for i in order[wanted:] if group[i] == code][:missing]
            chosen = np.concatenate([chosen, np.asarray(extra, dtype=chosen.dtype)])
    return np.sort(chosen)


def balanced(rows: Tensor, target: Tensor, group: Tensor, seed: int) -> Tensor:
    """Of the positions `rows`, equally many of each target x group cell that has any, drawn by seed; ascending."""
    cell = group[rows] * 2 + target[rows]
    gen = torch.Generator().manual_seed(derive_seed("balanced", seed))
    shuffled = torch.randperm(len(rows), generator=gen)
    rows, cell = rows[shuffled], cell[shuffled]
    codes, counts = torch.unique(cell, return_counts=True)
    take = int(counts.min())
    return torch.cat([rows[cell == code][:take] for code in codes]).sort().values


class IndexStream:
    """Which images each step sees. A pure function of (seed, name, step): nothing to save, nothing to lose.

    `positions` (M,) what the stream draws from. A batch never holds an image twice; a stream smaller than the batch gives
    smaller batches. `cells` (M,): for balanced samplers each batch takes equally many of every cell; each cell is its own
    endless reshuffled stream, so a small cell comes round more often.
    """

    def __init__(self, name: str, positions: Tensor, batch_size: int, seed: int, cells: Tensor | None = None):
        self.name, self.seed = name, seed
        if cells is None:
            members = [positions]
        else:
            members = [positions[cells == code] for code in torch.unique(cells).tolist()]
        share = max(1, batch_size // len(members))
        self._members = members
        self._takes = [min(share, len(m)) for m in members]
        self.n_images = len(positions)
        self.batch_size = sum(self._takes)
        self.n_batches = max(1, len(positions) // self.batch_size)  # of one pass

    def steps(self, start: int, n: int) -> Tensor:
        """(n, batch) int64 positions of the steps start, start + 1, ..."""
        columns = []
        for number, (members, take) in enumerate(zip(self._members, self._takes, strict=True)):
            per_pass = len(members) // take
            first, last = start // per_pass, (start + n - 1) // per_pass
            passes = [self._shuffled(number, members, turn)[: per_pass * take] for turn in range(first, last + 1)]
            rows = torch.cat(passes).view(-1, take)
            columns.append(rows[start - first * per_pass :][:n])
        return torch.cat(columns, dim=1)

    def _shuffled(self, number: int, members: Tensor, turn: int) -> Tensor:
        gen = torch.Generator().manual_seed(derive_seed("order", self.name, number, turn, self.seed))
        return members[torch.randperm(len(members), generator=gen)]


def cells_of(sampler: Sampler, target: Tensor, group: Tensor) -> Tensor | None:
    """(M,) the cell of each of M images for a balanced sampler, from their target and group; None for a plain shuffle."""
    if sampler == "shuffle":
        return None
    return group if sampler == "group_balanced" else group * 2 + target
