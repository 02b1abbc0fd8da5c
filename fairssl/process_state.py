"""What a process has only one of, kept as a caller left it: a notebook or script goes on after a call as if there was none."""

from __future__ import annotations

import os
import random
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def preserved_process() -> Iterator[None]:
    """Leave Python's and NumPy's global generators, the filters of warnings, the environment and `sys.path` as they were.

    Libraries change them when they are imported or used for the first time.
    """
    state, environment, path = random.getstate(), dict(os.environ), list(sys.path)
    numpy = sys.modules.get("numpy")
    numpy_state = None if numpy is None else numpy.random.get_state()
    with warnings.catch_warnings():
        try:
            yield
        finally:
            random.setstate(state)
            if numpy is not None:
                numpy.random.set_state(numpy_state)
            sys.path[:] = path
            for name in os.environ.keys() - environment.keys():
                del os.environ[name]
            os.environ.update({name: value for name, value in environment.items() if os.environ.get(name) != value})


@contextmanager
def preserved_torch() -> Iterator[None]:
    """Leave torch's global settings, its number of threads and its generator on the CPU as they were."""
    import torch

    cudnn = torch.backends.cudnn
    flags = cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32
    precision, n_threads, state = torch.get_float32_matmul_precision(), torch.get_num_threads(), torch.get_rng_state()
    limit = None
    if torch.cuda.is_available():  # nothing is compiled elsewhere, and the import takes a second
        import torch._dynamo

        limit = torch._dynamo.config.recompile_limit
    try:
        yield
    finally:
        cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32 = flags
        torch.set_float32_matmul_precision(precision)
        torch.set_rng_state(state)
        if torch.get_num_threads() != n_threads:
            torch.set_num_threads(n_threads)
        if limit is not None:
            torch._dynamo.config.recompile_limit = limit
