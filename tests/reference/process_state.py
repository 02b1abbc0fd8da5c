"""Everything of a process that a call could leave changed, as plain values that can be compared."""

from __future__ import annotations

import locale
import logging
import os
import random
import signal
import sys
import threading
import warnings
from typing import Any


def process_state() -> dict[str, Any]:
    import numpy as np
    import torch
    import torch._dynamo

    mask = os.umask(0)
    os.umask(mask)
    cudnn = torch.backends.cudnn
    return {
        "threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "torch generator": torch.get_rng_state().tolist(),
        "python generator": random.getstate(),
        "numpy generator": [part.tolist() if hasattr(part, "tolist") else part for part in np.random.get_state()],
        "cudnn": (cudnn.enabled, cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32),
        "dynamo": torch._dynamo.config.get_config_copy(),
        "matmul": torch.get_float32_matmul_precision(),
        "dtype": str(torch.get_default_dtype()),
        "gradients": torch.is_grad_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "signals": {number: signal.getsignal(number) for number in signal.valid_signals() if number not in (9, 19)},
        "warnings": (list(warnings.filters), warnings.showwarning),
        "path": list(sys.path),
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "umask": mask,
        "streams": (sys.stdout, sys.stderr, sys.excepthook),
        "logging": (logging.root.level, list(logging.root.handlers)),
        "locale": locale.setlocale(locale.LC_ALL),
        "running threads": sorted(thread.name for thread in threading.enumerate()),
        "recursion": sys.getrecursionlimit(),
    }


def changed(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    return [name for name in before if before[name] != after[name]]
