"""A stranger's plugin package for tests: files on disk with a real entry point, as pip would leave them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from fairssl import kinds, registry


def write_package(root: Path, name: str, files: Mapping[str, str], module: str | None = None) -> None:
    """A distribution `name` in `root` whose import package holds `files`, path under it -> text."""
    module = module or name.replace("-", "_")
    info = root / f"{name.replace('-', '_')}-0.1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text(f"[fairssl.plugins]\n{module} = {module}\n")
    (root / module).mkdir()
    (root / module / "__init__.py").touch()
    for path, text in files.items():
        file = root / module / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")


@contextmanager
def known(*roots: Path) -> Iterator[None]:
    """Within it the folders are on the import path; afterwards nothing of them is left in this process."""
    before = {*sys.modules}
    sys.path[:0] = map(str, roots)
    importlib.invalidate_caches()
    registry.packages.cache_clear()
    try:
        yield
    finally:
        del sys.path[: len(roots)]
        places = [p.module for p in registry.packages() if any(_inside(f, roots) for f in p.folders)]
        registry.packages.cache_clear()
        importlib.invalidate_caches()
        for module in {*sys.modules} - before:
            if any(module == place or module.startswith(f"{place}.") for place in places):
                del sys.modules[module]
        for kind in kinds.registries.values():
            for module in [m for m in kind._loaded if any(m.startswith(f"{place}.") for place in places)]:
                del kind._loaded[module]


def _inside(folder: Path, roots: tuple[Path, ...]) -> bool:
    return any(folder.is_relative_to(root) for root in roots)


OBJECTIVE = '''\
"""Views agree: an objective of a stranger's."""

import torch

from fairssl.api import Objective, PluginConfig, Terms


class Agree(Objective):
    """Mean squared distance of the two views' vectors."""

    class Config(PluginConfig):
        scale: float = 1.0  # of the loss
        centre: bool = False

    def __init__(self, config, ctx):
        super().__init__(config, ctx)
        self.layer = torch.nn.Linear(ctx.feature_dim, 8)

    def project(self, f):
        return self.layer(f)

    def forward(self, batches):
        z, z_ = batches["all"].z
        loss = self.config.scale * (z.float() - z_.float()).square().mean()
        return Terms(primal={"agree": loss})
'''


PREPARED = OBJECTIVE.replace(
    "    def project",
    """\
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("noise", torch.zeros(2))
        self.register_buffer("seen", torch.zeros(3))

    def prepare(self, data, gen):
        assert not self.seen[0], "prepared twice"
        self.mean += data.images.float().mean((0, 2, 3)) / 255
        self.noise.copy_(torch.stack([torch.rand(()), torch.rand((), generator=gen)]))
        self.seen += torch.stack([torch.ones(()), data.target.max().float(), data.group.max().float()])

    def project""",
).replace(
    "self.config.scale * (", "(self.mean.sum() + self.noise.sum()) * ("
)  # an objective with a stage before training

BUGGY = OBJECTIVE.replace("z, z_ = ", "assert batches['all'].index.sum() < 0, 'a bug'\n        z, z_ = ")  # raises
