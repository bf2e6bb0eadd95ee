"""Where a run was computed: all that may change the last bits of its numbers (docs/reproducibility.md)."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Any

import torch

from undrift.core.version import __version__

# Of the same settings, data and seed, the last bits may depend on these.
_MATTERS = ("undrift", "torch", "system", "cpu", "device", "precision", "engine")
_ON_ALL_CORES = ("threads", "actors", "actor_threads")  # where clients are batched, and operators split over threads


def describe(
    device: torch.device, precision: str, engine: str, reason: str, workers: int, split: bool
) -> dict[str, Any]:
    """`engine` is its setting, with the number of clients at a time; `split`: its operators use several threads."""
    return {
        "undrift": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "precision": precision,
        "threads": torch.get_num_threads(),
        "threads_matter": split,
        "workers": workers,
        "engine": engine,
        "engine_reason": reason,
    }


def differences(stored: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """What may change bits and is not as it was, in words; empty if nothing is. What was not stored is not compared."""
    names = (*_MATTERS, *(_ON_ALL_CORES if here["threads_matter"] else ()))
    known = (name for name in names if name in stored and name in here)
    return ", ".join(f"{name} {here[name]} instead of {stored[name]}" for name in known if stored[name] != here[name])
