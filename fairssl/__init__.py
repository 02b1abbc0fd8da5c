"""fairssl: train encoders without labels and show how fair what they learned is.

    import fairssl

    result = fairssl.bench("simclr,sofclr".split(","), dataset="synthfaces", attribute="male", seeds=3)
    print(result.table)
    print(fairssl.score(scores, targets, groups))

Nothing heavy is imported before it is used.
"""

from __future__ import annotations

import importlib
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fairssl.benchmark import bench
    from fairssl.frozen import export, load_encoder
    from fairssl.loss import Loss
    from fairssl.pipeline import run
    from fairssl.scoring.api import score
    from fairssl.spec.run import RunSpec
    from fairssl.store.record import Record

__version__ = version("fairssl")

_FROM = {
    "bench": "fairssl.benchmark",
    "run": "fairssl.pipeline",
    "load_encoder": "fairssl.frozen",
    "export": "fairssl.frozen",
    "Loss": "fairssl.loss",
    "score": "fairssl.scoring.api",
    "RunSpec": "fairssl.spec.run",
    "Record": "fairssl.store.record",
}

__all__ = ["Loss", "Record", "RunSpec", "__version__", "bench", "export", "load_encoder", "run", "score"]


def __getattr__(name: str) -> Any:
    if name not in _FROM:
        raise AttributeError(f"fairssl has no {name!r}; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(_FROM[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
