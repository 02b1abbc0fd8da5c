"""A training step as a CUDA graph: warmed up, captured once, then replayed."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from fairssl.data.device import is_out_of_memory
from fairssl.train.rng import get_rng_state
from fairssl.types import first_line

WARM_UP = 3  # eager steps before the capture, as torch advises; they are steps of the run like any other

Step = Callable[[Mapping[str, Tensor], Mapping[str, Tensor] | None], None]


_CORE = Path(__file__).resolve().parents[1]
_TORCH = Path(torch.__file__).resolve().parent


def blamed_line(frames: Iterable[traceback.FrameSummary]) -> str:
    """The innermost line of a part or an encoder among these frames, as `file.py:12: its text`; empty if there is none."""
    for frame in reversed(list(frames)):
        path = Path(frame.filename).resolve()
        if path.is_absolute() and path.suffix == ".py" and not ({_CORE, _TORCH} & {*path.parents}):
            return f"{path.name}:{frame.lineno}: {frame.line}"
    return ""


class NotCaptured(RuntimeError):
    """A step could not be captured as a CUDA graph; torch may be left unfit for other work on that device."""


class GraphedStep:
    """A step that is taken eagerly at first, then captured, then replayed. Calling it takes a step either way."""

    def __init__(
        self, step: Step, gen: torch.Generator, device: torch.device, stream: torch.cuda.Stream | None
    ) -> None:
        self.step, self.gen, self.device, self.stream = step, gen, device, stream
        self._captured: Step | None = None
        self._n_eager = 0
        self._draws_global_rng = False

    def __call__(self, index: Mapping[str, Tensor], images: Mapping[str, Tensor] | None) -> None:
        if self._n_eager < WARM_UP:
            before = get_rng_state(self.device)[-1]
            self.step(index, images)
            self._draws_global_rng |= not torch.equal(before, get_rng_state(self.device)[-1])
            self._n_eager += 1
            return
        if self._captured is None:
            self._captured = self.captured(index, images)
        self._captured(index, images)

    def captured(self, index: Mapping[str, Tensor], images: Mapping[str, Tensor] | None) -> Step:
        """What takes the step from now on; its first call is the step on these positions."""
        return CapturedStep(self.step, index, images, self.gen, self.stream, self._draws_global_rng)

    def release(self) -> None:
        """Let go of the graph's memory, once nothing on the device uses it."""
        self._captured = None


class CapturedStep:
    """A step as a CUDA graph. It reads its positions, and images if they are streamed, from tensors of its own."""

    last_draw: ClassVar[dict[torch.device, torch.cuda.Event]] = {}  # of a graph from the global generator

    def __init__(
        self,
        step: Step,
        index: Mapping[str, Tensor],
        images: Mapping[str, Tensor] | None,
        gen: torch.Generator,
        stream: torch.cuda.Stream | None,
        draws_global_rng: bool,
    ) -> None:
        self.index = {name: value.clone() for name, value in index.items()}
        self.images = None if images is None else {name: value.clone() for name, value in images.items()}
        self.draws_global_rng = draws_global_rng
        self.graph = torch.cuda.CUDAGraph()
        self.graph.register_generator_state(gen)
        # On the run's own stream: graphs that share one share its workspaces too, and could not overlap.
        try:
            with torch.cuda.graph(self.graph, stream=stream, capture_error_mode="thread_local"):
                step(self.index, self.images)
        except Exception as error:
            cause = error.__context__ or error  # the end of the capture fails too, and hides what came first
            if is_out_of_memory(error) or is_out_of_memory(cause):
                raise
            raise NotCaptured(
                f"the step cannot be captured ({first_line(cause)}); a part that reads a tensor back says capturable = False"
            ) from error

    def __call__(self, index: Mapping[str, Tensor], images: Mapping[str, Tensor] | None) -> None:
        """Take the captured step on these positions and images, on the current stream."""
        for name, value in index.items():
            self.index[name].copy_(value)
        if self.images is not None and images is not None:
            for name, value in images.items():
                self.images[name].copy_(value)
        if not self.draws_global_rng:
            self.graph.replay()
            return
        # All graphs read the global generator's state from one place on the device, which a replay overwrites.
        device = next(iter(self.index.values())).device
        if device in self.last_draw:
            torch.cuda.current_stream(device).wait_event(self.last_draw[device])
        self.graph.replay()
        self.last_draw[device] = torch.cuda.current_stream(device).record_event()
