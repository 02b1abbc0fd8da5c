"""Images that do not fit on the device: gathered ahead by a thread and copied to it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor


class Prefetch:
    """Images streamed to the device: a thread gathers those of the coming steps from a memory-mapped pack while the
    device works. Host memory beyond the page cache: `ahead` + 1 batches per stream, pinned if the device is a GPU."""

    def __init__(self, images: Tensor, device: torch.device, ahead: int = 3) -> None:
        self.images, self.device, self.ahead = images, device, ahead
        self._on_gpu = device.type == "cuda"
        self._copies = torch.cuda.Stream(device) if self._on_gpu else None
        self.slots: dict[tuple[str, int, int], Tensor] = {}  # (stream, batch, place in the ring) -> host memory
        self._free: dict[int, torch.cuda.Event] = {}  # place in the ring -> when its last copy was done

    def __call__(self, steps: Sequence[Mapping[str, Tensor]]) -> Iterator[dict[str, Tensor]]:
        """Of each step, stream -> positions (B,) on the host; gives stream -> uint8 (B, C, H, W) on the device, good until
        the next one is asked for."""
        with ThreadPoolExecutor(1, thread_name_prefix="fairssl-images") as pool:
            waiting: deque[Future[tuple[dict[str, Tensor], torch.cuda.Event | None]]] = deque()
            try:
                for number in range(len(steps) + self.ahead):
                    if number < len(steps):
                        waiting.append(pool.submit(self._fetch, steps[number], number % (self.ahead + 1)))
                    if number >= self.ahead:
                        images, copied = waiting.popleft().result()
                        if copied is not None:
                            now = torch.cuda.current_stream(self.device)
                            now.wait_event(copied)
                            for value in images.values():
                                value.record_stream(now)
                        yield images
            finally:
                for future in waiting:
                    future.cancel()

    def _fetch(self, rows: Mapping[str, Tensor], place: int) -> tuple[dict[str, Tensor], torch.cuda.Event | None]:
        if place in self._free:
            self._free[place].synchronize()
        gathered = {name: self.gathered(name, index, place) for name, index in rows.items()}
        if self._copies is None:
            return gathered, None
        with torch.cuda.stream(self._copies):
            moved = {name: value.to(self.device, non_blocking=True) for name, value in gathered.items()}
            copied = torch.cuda.Event()
            copied.record(self._copies)
        self._free[place] = copied
        return moved, copied

    def gathered(self, name: str, rows: Tensor, place: int) -> Tensor:
        """The images at `rows` (B,), in the stream's host memory at `place` of the ring."""
        key = (name, len(rows), place)
        if key not in self.slots:
            shape = (len(rows), *self.images.shape[1:])
            self.slots[key] = torch.empty(shape, dtype=torch.uint8, pin_memory=self._on_gpu)
        return torch.index_select(self.images, 0, rows, out=self.slots[key])
