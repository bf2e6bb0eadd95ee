"""Bit-identical reruns on a GPU."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.utils.deterministic as settings  # a module with properties, which type checkers do not see

_FILL = "fill_uninitialized_memory"


@contextmanager
def reproducible() -> Iterator[None]:
    """Kernels that give the same bits every time; the caller's settings come back afterwards.

    Operations without such a kernel only warn: a run that works should not fail for its last bit.
    """
    if not torch.cuda.is_available():
        yield
        return
    cudnn = torch.backends.cudnn
    before = cudnn.deterministic, cudnn.benchmark
    mode = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    fill = getattr(settings, _FILL)
    try:
        cudnn.deterministic, cudnn.benchmark = True, False
        torch.use_deterministic_algorithms(True, warn_only=True)
        setattr(settings, _FILL, False)  # costs time and changes nothing here
        with warnings.catch_warnings():
            # cuBLAS is deterministic as long as one stream is used, which is all we use.
            warnings.filterwarnings("ignore", message=".*CUBLAS_WORKSPACE_CONFIG.*")
            yield
    finally:
        cudnn.deterministic, cudnn.benchmark = before
        torch.use_deterministic_algorithms(mode[0], warn_only=mode[1])
        setattr(settings, _FILL, fill)
