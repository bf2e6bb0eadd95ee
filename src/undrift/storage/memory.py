"""How much memory this process may still use."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import torch

from undrift.core import sharing

_UNKNOWN = 4 << 30  # where the system does not say


def host_left() -> int:
    """Bytes of the host's memory that are left: on the machine, or in a control group (container) that allows less.

    Where processes of one run share the machine, this one's part.
    """
    return max(0, min([_machine(), *control_groups()])) // sharing.processes("cpu")


def device_left(device: torch.device) -> int:
    """Bytes of a GPU's memory that are left."""
    if device.type == "mps":
        return torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # cached by PyTorch
    return int(torch.cuda.mem_get_info(device)[0]) // sharing.processes("cuda") + unused


def _machine() -> int:
    try:
        import psutil

        return int(psutil.virtual_memory().available)
    except ImportError:
        pass
    try:  # not what is left, but what there is
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not on Windows
        return _UNKNOWN


def control_groups(root: Path = Path("/sys/fs/cgroup"), member: Path = Path("/proc/self/cgroup")) -> Iterator[int]:
    """Bytes left of every memory limit on the control group of this process, and on the groups around it."""
    try:
        lines = member.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:  # version 2 of control groups
            top, names = root, ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            top, names = root / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        group = top / path.strip("/")
        for place in (group, *group.parents):
            # A group may have no limit, and a container sees only its innermost group.
            with contextlib.suppress(OSError, ValueError, KeyError):
                yield _left(place, *names)
            if place == top:
                break


def _left(group: Path, limit: str, usage: str, idle: str) -> int:
    stat = dict(line.split() for line in (group / "memory.stat").read_text(encoding="ascii").splitlines())
    used = int((group / usage).read_text(encoding="ascii")) - int(stat[idle])  # cached files can be dropped
    return int((group / limit).read_text(encoding="ascii")) - used
