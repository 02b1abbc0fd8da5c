"""One step: views per second of fairssl's own step, of the model alone, and of a plain loop over a DataLoader.

    python benchmarks/perf/step.py [--shapes 64x128,64x64,128x128,224x128] [--methods simclr,sofclr] [--json step.json]

`product`: what `fairssl bench` does in its loop (index streams, gather, augmentation, encoder, losses, both optimisers,
the end of an epoch), a captured graph on a GPU.
`ceiling`: encoder, projector, loss, backward pass and optimisers of the same method on fixed batches that were augmented
before, annotated batch included, at the same batch size and precision: a captured graph on a GPU, eager on a CPU.
`loop`: the way contrastive learning is usually written: worker processes that augment image by image with torchvision's
transforms on PIL images, pinned memory, an eager step under autocast, the loss read every step. Its images are arrays
in memory, so that decoding, which such a loop also pays for, is not counted.
`lightly`: with `--lightly`, the same loop for SimCLR with lightly's transforms, projection head and loss.
`ratio` is product / ceiling, `speedup` product / loop. The first two are timed in turns; the images are random. Ceiling
and loops may choose cuDNN's fastest algorithms by trying them; the product does what it does.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib.util
import itertools
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from outcome import Outcome, arguments, count, script, spread, timed, words
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from fairssl.data.device import DeviceSplit, pick_device
from fairssl.nn import in_network_precision, networks_in_bf16
from fairssl.plan.request import Request
from fairssl.plan.resolve import resolve
from fairssl.spec.run import RunSpec
from fairssl.train.build import build_model
from fairssl.train.step import laid_out_as
from fairssl.train.trainer import Trainer
from fairssl.types import Batch

Batches = Mapping[str, tuple[Tensor, Tensor, Tensor, Tensor]]  # stream -> views, index, target, group
Transform = Callable[[Image.Image], Sequence[Tensor]]
WARM_UP = 30  # steps before anything is timed: eager ones, the capture, the allocator


def make_spec(method: str, size: int, batch: int, encoder: str, precision: str, seed: int = 0) -> RunSpec:
    """A run of more epochs than will be timed."""
    request = Request(
        (method,),
        ("synthfaces",),
        seeds=seed + 1,
        encoder=encoder,
        epochs=100_000,
        image_size=size,
        batch_size=batch,
        assignments=(f"train.precision={precision}",),
    )
    return resolve(request).runs[seed].spec


def random_split(n: int, size: int, batch: int, device: torch.device) -> DeviceSplit:
    """n random images, two targets, two groups; a twentieth annotated, a whole batch at least."""
    gen = torch.Generator(device).manual_seed(0)
    images = torch.randint(0, 256, (n, 3, size, size), dtype=torch.uint8, generator=gen, device=device)
    code = torch.arange(n, device=device)
    annotated = code[: max(n // 20, batch)]
    group = torch.full_like(code, -1)
    group[annotated] = annotated // 2 % 2
    return DeviceSplit(images, code % 2, group, annotated)


def shapes(text: str) -> list[tuple[int, int]]:
    """`"64x128,224x64"` -> pixels and images of a batch, twice."""
    found = [word.split("x") for word in words(text)]
    return [(int(size), int(batch)) for size, batch in found]


class Model:
    """The encoder, parts and optimisers of a spec, and a step written as plainly as the rule of differentiation allows."""

    def __init__(self, spec: RunSpec, split: DeviceSplit, memory_format: torch.memory_format) -> None:
        self.device = split.images.device
        model = build_model(spec, split, 2, n_steps=1)
        self.encoder: Any = model.encoder.to(memory_format=memory_format)
        self.parts: dict[str, Any] = dict(model.parts)
        self.objective = model.objective
        self.weights = {head.name: float(head.params["weight"]) for head in spec.method.heads}
        self.dual = [p for part in self.parts.values() for p in part.dual_parameters()]
        dual = {id(p) for p in self.dual}
        everything = [*self.encoder.parameters(), *(p for part in self.parts.values() for p in part.parameters())]
        self.primal = [p for p in everything if p.requires_grad and id(p) not in dual]
        on_gpu = self.device.type == "cuda"
        self.optimizers = [
            torch.optim.Adam(group, lr=1e-3, fused=on_gpu, capturable=on_gpu)
            for group in (self.primal, self.dual)
            if group
        ]
        self.bf16 = spec.train.precision == "bf16"
        self.n_views = max(part.n_views for part in self.parts.values())

    def project(self, f: Tensor) -> Tensor:
        with in_network_precision(self.device):
            return self.objective.project(f).float()

    def step(self, batches: Batches) -> Tensor:
        """One step on views (V B, C, H, W), index (B,), target (B,) and group (B,) per stream; the loss."""
        with networks_in_bf16(self.bf16):
            seen: Any = {}
            with in_network_precision(self.device):  # of all streams: it keeps the weights that it has cast
                features = {name: self.encoder(pixels).float() for name, (pixels, *_) in batches.items()}
                represented = {name: self.objective.represent(h).float() for name, h in features.items()}
            for name, (pixels, index, target, group) in batches.items():
                h, f = features[name], represented[name]
                seen[name] = Batch(
                    views=list(pixels.chunk(self.n_views)),
                    index=index,
                    target=target,
                    group=group,
                    h=list(h.chunk(self.n_views)),
                    f=list(f.chunk(self.n_views)),
                    project=self.project,
                )
            terms = {name: part({stream: seen[stream] for stream in part.streams}) for name, part in self.parts.items()}
            primal = sum(self.weights.get(name, 1.0) * v for name, t in terms.items() for v in t.primal.values())
            dual = sum(v for t in terms.values() for v in t.dual.values())
        both = ((primal, self.primal), (dual, self.dual)) if self.dual else ((primal, self.primal),)
        for loss, parameters in both:
            gradients = torch.autograd.grad(loss, parameters, retain_graph=loss is primal and bool(self.dual))
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = laid_out_as(parameter, gradient)
        for optimizer in self.optimizers:
            optimizer.step()
        return primal.detach()


def ceiling(spec: RunSpec, split: DeviceSplit) -> Callable[[], Any]:
    """A call of it is one step of the model alone."""
    device, size = split.images.device, spec.data.image_size
    model = Model(spec, split, torch.channels_last)
    gen = torch.Generator(device).manual_seed(0)
    fixed = {}
    for name, rows in rows_of(spec, split).items():
        rows = rows[: spec.train.batch_size]
        pixels = torch.randn(model.n_views * len(rows), 3, size, size, generator=gen, device=device)
        pixels = pixels.contiguous(memory_format=torch.channels_last)
        fixed[name] = (pixels, rows, split.target[rows], split.group[rows])
    if device.type != "cuda":
        return lambda: model.step(fixed)
    with tuned():
        graph = captured(lambda: model.step(fixed))

    def replay(kept: Any = (model, fixed)) -> None:  # the graph uses their memory but does not keep it
        graph.replay()

    return replay


def captured(step: Callable[[], Any]) -> torch.cuda.CUDAGraph:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(5):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph


@contextlib.contextmanager
def tuned() -> Iterator[None]:
    """Let cuDNN try its algorithms out."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def rows_of(spec: RunSpec, split: DeviceSplit) -> dict[str, Tensor]:
    """Positions that each stream of the method draws from."""
    every = torch.arange(len(split.target), device=split.images.device)
    return {name: every if name == "all" else split.annotated for name in spec.method.streams}


class TwoViews(Dataset):
    """PIL images in memory, two views of each; `views` makes them of one."""

    def __init__(
        self, images: np.ndarray, rows: np.ndarray, target: np.ndarray, group: np.ndarray, views: Transform
    ) -> None:
        self.images, self.rows, self.target, self.group = images, rows, target, group
        self.views = views

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, at: int) -> tuple[Tensor, Tensor, int, int, int]:
        row = int(self.rows[at])
        first, second = self.views(Image.fromarray(self.images[row]))
        return first, second, row, int(self.target[row]), int(self.group[row])


class TorchvisionViews:
    """Two views of a PIL image by torchvision's transforms, with the strengths of the paper."""

    def __init__(self, size: int) -> None:
        self.transform = transforms.Compose(
            [
                transforms.RandomResizedCrop(size, scale=(0.2, 1.0)),
                transforms.RandomHorizontalFlip(),
                transforms.RandomApply([transforms.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8),
                transforms.RandomGrayscale(p=0.2),
                transforms.ToTensor(),
                transforms.Normalize((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
            ]
        )

    def __call__(self, image: Image.Image) -> list[Tensor]:
        return [self.transform(image), self.transform(image)]


def lightly_views(size: int) -> Transform:
    """lightly's transform of SimCLR with the same strengths."""
    from lightly.transforms import SimCLRTransform

    found: Transform = SimCLRTransform(
        input_size=size,
        cj_strength=1.0,
        cj_bright=0.4,
        cj_contrast=0.4,
        cj_sat=0.4,
        cj_hue=0.1,
        min_scale=0.2,
        gaussian_blur=0.0,
        normalize={"mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]},
    )
    return found


class LightlyModel:
    """The encoder of a spec under lightly's projection head and loss, and a step as its examples write it."""

    def __init__(self, spec: RunSpec, split: DeviceSplit) -> None:
        from lightly.loss import NTXentLoss
        from lightly.models.modules import SimCLRProjectionHead

        self.device, self.bf16 = split.images.device, spec.train.precision == "bf16"
        encoder: Any = build_model(spec, split, 2, n_steps=1).encoder
        self.network = nn.Sequential(encoder, SimCLRProjectionHead(encoder.dim, encoder.dim, 128)).to(self.device)
        self.criterion: Any = NTXentLoss(temperature=0.3)
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=1e-3)

    def step(self, batches: Batches) -> Tensor:
        (pixels, *_) = batches["all"]
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.bf16):
            loss: Tensor = self.criterion(*self.network(pixels).chunk(2))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def plain_loop(spec: RunSpec, split: DeviceSplit, workers: int, lightly: bool = False) -> Iterator[float]:
    """Every `next()` is one step of the plain loop, or of lightly's; its loss."""
    device = split.images.device
    images = split.images.permute(0, 2, 3, 1).contiguous().cpu().numpy()
    labels = split.target.cpu().numpy(), split.group.cpu().numpy()
    views = lightly_views(spec.data.image_size) if lightly else TorchvisionViews(spec.data.image_size)
    loaders = {
        name: DataLoader(
            TwoViews(images, rows.cpu().numpy(), *labels, views),
            batch_size=spec.train.batch_size,
            shuffle=True,
            drop_last=True,
            num_workers=workers,
            pin_memory=device.type == "cuda",
            persistent_workers=workers > 0,
        )
        for name, rows in rows_of(spec, split).items()
    }
    model = LightlyModel(spec, split) if lightly else Model(spec, split, torch.contiguous_format)
    endless = {
        name: itertools.chain.from_iterable(itertools.repeat(loader)) for name, loader in loaders.items()
    }  # fmt: skip
    while True:
        batches = {}
        for name, batches_of in endless.items():
            first, second, *labels = next(batches_of)
            pixels = torch.cat([first.to(device, non_blocking=True), second.to(device, non_blocking=True)])
            index, target, group = (one.to(device, non_blocking=True) for one in labels)
            batches[name] = (pixels, index, target, group)
        yield model.step(batches).item()


def take(step: Callable[[], Any], n: int) -> None:
    for _ in range(n):
        step()


def block(step: Callable[[], Any], seconds: float, device: torch.device) -> int:
    """How many steps take about `seconds`, two at least, judged by three."""
    few, _ = timed(partial(take, step, 3), device)
    return max(2, math.ceil(3 * seconds / few))


def row(spec: RunSpec, split: DeviceSplit, loop: bool, options: argparse.Namespace) -> dict[str, Any]:
    device = split.images.device
    trainer = Trainer(spec, split, 2, compile_augment=options.compile)
    steps: dict[str, Callable[[], Any]] = {"product": partial(next, trainer.advance()), "ceiling": ceiling(spec, split)}
    n_images = sum(min(spec.train.batch_size, len(rows)) for rows in rows_of(spec, split).values())
    n_views = trainer.step.n_views * n_images
    counts = {}
    for name, step in steps.items():
        take(step, options.warm_up)
        counts[name] = block(step, options.seconds, device)
    speeds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(options.repeats):
        for name, step in steps.items():
            took, _ = timed(partial(take, step, counts[name]), device)
            speeds[name].append(n_views * counts[name] / took)
    ratios = [ours / best for ours, best in zip(speeds["product"], speeds["ceiling"], strict=True)]
    found: dict[str, Any] = {
        "method": spec.method.name,
        "size": spec.data.image_size,
        "batch": spec.train.batch_size,
        "views_per_step": n_views,
        "augmentation": "compiled" if trainer.step.sets[0].augment.compiled else "eager",
        "step": trainer.path,
        **{name: spread(values) for name, values in speeds.items()},
        "ratio": spread(ratios),
    }
    found |= {"loop": None, "speedup": None}
    if loop:
        found["loop"] = loop_speed(plain_loop(spec, split, options.workers), n_views, options, device)
        found["speedup"] = found["product"]["median"] / found["loop"]["median"]
    if options.lightly and spec.method.name == "simclr":
        found["lightly"] = loop_speed(plain_loop(spec, split, options.workers, True), n_views, options, device)
        found["speedup_lightly"] = found["product"]["median"] / found["lightly"]["median"]
    return found


def loop_speed(loop: Iterator[float], n_views: int, options: argparse.Namespace, device: torch.device) -> Any:
    """Views per second of three blocks of a loop with worker processes."""
    with tuned():
        one = partial(next, loop)
        take(one, 2 * options.workers + 2)  # what the workers had ready when the first batch came
        times = [timed(partial(take, one, options.loop_steps), device)[0] for _ in range(3)]
    return spread([n_views * options.loop_steps / each for each in times])


def main() -> None:
    on_gpu = torch.cuda.is_available()
    parser = arguments(__doc__)
    parser.add_argument("--methods", type=words, default=["simclr", "sofclr"])
    default = "64x128,64x64,128x128,224x128" if on_gpu else "32x32"
    parser.add_argument("--shapes", type=shapes, default=default, help="pixels x images of a batch")
    parser.add_argument("--encoder", default="resnet18" if on_gpu else "small_cnn")
    parser.add_argument("--precision", choices=["bf16", "float32"], default="bf16" if on_gpu else "float32")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--n", type=count, default=10_000 if on_gpu else 640, help="images")
    parser.add_argument("--seconds", type=float, default=0.5, help="of one timed block")
    parser.add_argument("--repeats", type=count, default=5, help="blocks of each kind")
    parser.add_argument("--warm-up", type=int, default=WARM_UP if on_gpu else 3, help="steps")
    parser.add_argument(
        "--loop", type=words, default=["simclr"], help="methods whose plain loop is timed, at the first shape; '': none"
    )
    parser.add_argument("--compile", action="store_true", help="compile the product's augmentation on a CPU too")
    parser.add_argument(
        "--lightly", action="store_true", help="time lightly's loop for simclr too: pip install lightly"
    )
    parser.add_argument(
        "--loop-steps", type=count, default=20 if on_gpu else 5, help="steps of one of its three blocks"
    )
    parser.add_argument("--workers", type=int, default=min(16, len(os.sched_getaffinity(0))), help="of the plain loop")
    options = parser.parse_args()
    if any(batch > options.n for _, batch in options.shapes):
        parser.error(f"--n {options.n}: fewer images than a batch of --shapes")
    if options.lightly and importlib.util.find_spec("lightly") is None:
        parser.error("--lightly: lightly is not installed: pip install lightly")
    device = pick_device(options.device)
    outcome = Outcome(__file__, options, device)
    for (size, batch), method in itertools.product(options.shapes, options.methods):
        split = random_split(options.n, size, batch, device)
        spec = make_spec(method, size, batch, options.encoder, options.precision)
        loop = method in options.loop and (size, batch) == options.shapes[0]
        outcome.add(**row(spec, split, loop, options))
        del split
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()


if __name__ == "__main__":
    script(main)
