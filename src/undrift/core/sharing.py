"""How many processes of one run share this machine's memory, and the GPU that this process uses.

Budgets of memory are shares of what a machine has left. Where several processes of a run are on it, as Ray's actors may
be, each takes its part.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

_processes = {"host": 1, "device": 1}


def processes(device: str) -> int:
    """How many share the memory of the host, "cpu", or of this process's GPU."""
    return _processes["host" if device == "cpu" else "device"]


@contextmanager
def shared_by(host: int, device: int = 1) -> Iterator[None]:
    """Inside, so many processes of the run share the host, and so many of them this process's GPU."""
    before = dict(_processes)
    _processes.update(host=host, device=device)
    try:
        yield
    finally:
        _processes.update(before)
