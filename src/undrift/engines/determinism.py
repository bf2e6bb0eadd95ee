"""Arithmetic: its precision, and bit-identical results in every run."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.utils.deterministic as settings  # a module with properties, which type checkers do not see

_FILL = "fill_uninitialized_memory"

PRECISIONS = ("fp32", "tf32", "bf16")


def find_precision(asked: str | None, device: torch.device, dtype: torch.dtype) -> str:
    """The precision asked for, if device and model support it; by default tf32 for single precision on a GPU."""
    single = dtype is torch.float32
    if asked is None:
        return "tf32" if single and device.type == "cuda" else "fp32"
    if asked != "fp32" and not single:
        raise ValueError(f"precision={asked!r} is for models in float32, got {str(dtype).removeprefix('torch.')}")
    if asked == "tf32" and device.type != "cuda":
        raise ValueError("precision='tf32' needs a GPU, got a CPU; use 'fp32'")
    return asked


@contextmanager
def arithmetic(precision: str) -> Iterator[None]:
    """Inside, results are reproducible, and products in single precision are rounded as asked."""
    if not torch.cuda.is_available():
        yield
        return
    switches: list[Any] = [torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn]  # type: ignore[attr-defined]
    before = [switch.fp32_precision for switch in switches]
    try:
        for switch in switches:
            switch.fp32_precision = "ieee" if precision == "fp32" else "tf32"
        with _reproducible():
            yield
    finally:
        for switch, value in zip(switches, before, strict=True):
            switch.fp32_precision = value


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Inside, operators called by this thread use so many threads, on which the last bits of a sum depend.

    None: as many as PyTorch was given.
    """
    before = torch.get_num_threads()
    if count in (None, before):
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _reproducible() -> Iterator[None]:
    """Inside, only deterministic kernels are used; the caller's settings are restored afterwards.

    Operations without such a kernel only warn: a run should not fail because its last bit may differ.
    """
    cudnn = torch.backends.cudnn
    before = cudnn.deterministic, cudnn.benchmark
    mode = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    fill = getattr(settings, _FILL)
    try:
        cudnn.deterministic, cudnn.benchmark = True, False
        torch.use_deterministic_algorithms(True, warn_only=True)
        setattr(settings, _FILL, False)  # it costs time, and no uninitialised memory is read here
        with warnings.catch_warnings():
            # cuBLAS is deterministic as long as only one stream is used, as is the case here.
            warnings.filterwarnings("ignore", message=".*CUBLAS_WORKSPACE_CONFIG.*")
            yield
    finally:
        cudnn.deterministic, cudnn.benchmark = before
        torch.use_deterministic_algorithms(mode[0], warn_only=mode[1])
        setattr(settings, _FILL, fill)
