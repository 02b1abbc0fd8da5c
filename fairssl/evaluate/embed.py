"""Features of every image, from the frozen encoder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from fairssl import distributed
from fairssl.data.augment import normalise
from fairssl.train.model import Model
from fairssl.types import Progress, Split, Splits, silent

Features = dict[str, Tensor]  # split -> float32 (N, F)


def embed_splits(model: Model, splits: Splits, progress: Progress = silent) -> Features:
    """The representation of every image of the three splits, by a model that this puts into evaluation mode."""
    model.train(False)
    named = {"train": splits.train, "val": splits.val, "test": splits.test}
    return {
        name: embed(model.encoder, model.objective.represent, split, model.device, progress=progress)
        for name, split in named.items()
    }


@torch.inference_mode()
def embed(
    encoder: nn.Module,
    represent: Callable[[Tensor], Tensor],
    split: Split,
    device: torch.device,
    batch_size: int = 256,
    progress: Progress = silent,
) -> Tensor:
    """(N, F) float32 representation of every image, in order: evaluation mode, no augmentation, float32 throughout.

    Of several processes each embeds its rows, every image once, and all get the whole.
    """
    encoder.eval()
    mine, rows = distributed.shard_rows(len(split)), []
    with _whole_float32():
        for start in range(mine.start, mine.stop, batch_size):
            stop = min(start + batch_size, mine.stop)
            images = torch.from_numpy(np.array(split.images[start:stop])).to(device)
            if device.type == "cuda":  # where each new size is planned anew, which takes longer than the images it adds
                images = filled(images, batch_size)
            x = normalise(images).contiguous(memory_format=torch.channels_last)
            rows.append(represent(encoder(x)).float()[: stop - start])
            progress("embed", stop - mine.start, mine.stop - mine.start)
    return distributed.gather_with_grad(torch.cat(rows), len(split)).clone()


def filled(images: Tensor, n: int) -> Tensor:
    """(B, ...) -> (n, ...): the images, and the last one as often as it takes."""
    return torch.cat([images, images[-1:].expand(n - len(images), *images.shape[1:])])


@contextmanager
def _whole_float32() -> Iterator[None]:
    """Within it convolutions on a GPU keep all bits of their operands, and no algorithms are tried out."""
    cudnn = torch.backends.cudnn
    before = cudnn.allow_tf32, cudnn.benchmark
    cudnn.allow_tf32 = cudnn.benchmark = False
    try:
        yield
    finally:
        cudnn.allow_tf32, cudnn.benchmark = before
