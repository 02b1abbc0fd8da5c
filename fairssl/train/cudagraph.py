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

# Before torch 2.14 a graph knows a generator only if it is told, and all graphs read the global generator's state from one
# place on the device, which a replay overwrites: those that draw from it are replayed one after the other.
SHARED_GENERATOR_STATE = tuple(int(n) for n in torch.__version__.split(".")[:2]) < (2, 14)
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
    """A step could not be captured as a CUDA graph, with the reason and the line of the part that is to blame; torch may be
    left unfit for other work on that device."""


class GraphedStep:
    """A step that is taken eagerly at first, then captured, then replayed. Calling it takes a step either way.

    On a GPU its first call comes on the run's own stream, as all others do.
    """

    def __init__(self, step: Step, gen: torch.Generator, device: torch.device) -> None:
        self.step, self.gen, self.device = step, gen, device
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
        stream = torch.cuda.current_stream(self.device)
        return CapturedStep(self.step, index, images, self.gen, stream, self._draws_global_rng)

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
        stream: torch.cuda.Stream,
        draws_global_rng: bool,
    ) -> None:
        self.index = {name: value.clone() for name, value in index.items()}
        self.images = None if images is None else {name: value.clone() for name, value in images.items()}
        self.in_turn = draws_global_rng and SHARED_GENERATOR_STATE
        self.graph = torch.cuda.CUDAGraph()
        if SHARED_GENERATOR_STATE:
            self.graph.register_generator_state(gen)
        # On the run's own stream: graphs that share one share its workspaces too, and could not overlap.
        try:
            with torch.cuda.graph(self.graph, stream=stream, capture_error_mode="thread_local"):
                step(self.index, self.images)
        except Exception as error:
            cause = error.__context__ or error  # the end of the capture fails too, and hides what came first
            if is_out_of_memory(error) or is_out_of_memory(cause):
                raise
            line = blamed_line(traceback.extract_tb(cause.__traceback__))
            raise NotCaptured(first_line(cause) + (f" ({line})" if line else "")) from error

    def __call__(self, index: Mapping[str, Tensor], images: Mapping[str, Tensor] | None) -> None:
        """Take the captured step on these positions and images, on the current stream."""
        for name, value in index.items():
            self.index[name].copy_(value)
        if self.images is not None and images is not None:
            for name, value in images.items():
                self.images[name].copy_(value)
        if not self.in_turn:
            self.graph.replay()
            return
        device = next(iter(self.index.values())).device
        if device in self.last_draw:
            torch.cuda.current_stream(device).wait_event(self.last_draw[device])
        self.graph.replay()
        self.last_draw[device] = torch.cuda.current_stream(device).record_event()


class Streams:
    """Streams of each GPU that runs have had: each is as good for the next, and a new one would keep cuBLAS's workspaces on
    the device, tens of MB, for good."""

    def __init__(self) -> None:
        self._free: dict[torch.device, list[torch.cuda.Stream]] = {}

    def take(self, device: torch.device) -> torch.cuda.Stream:
        """A stream that no other run has, behind all that the device's current stream was given."""
        free = self._free.setdefault(device, [])
        stream = free.pop() if free else torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        return stream

    def give_back(self, stream: torch.cuda.Stream) -> None:
        """Let another run have a stream on which nothing is left to do."""
        self._free[stream.device].append(stream)


streams = Streams()
