"""A process and everything it started: their memory together, and ending them."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress

import psutil

_TIMEOUT = 5.0  # seconds for the kernel to release what the processes held


class ProcessTree:
    """Descendants are remembered, because those whose parent has ended are no longer found as its children."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._members: set[psutil.Process] = set()  # compared by number and start time, as numbers are used again
        with suppress(psutil.Error):
            self._members.add(psutil.Process(process.pid))
        self.peak: int | None = None

    def sample_memory(self) -> None:
        """Update the peak of the memory of all members, pages that several of them share counted once."""
        self._discover()
        total = sum(_memory(member) for member in self._members)
        self.peak = max(self.peak or 0, total) or None

    def kill(self) -> None:
        """End the process and everything it started, and wait for that."""
        self._discover()
        if self._process.poll() is None:
            with suppress(AttributeError, ProcessLookupError, PermissionError):  # Windows has no groups of processes
                os.killpg(self._process.pid, signal.SIGKILL)
        for member in self._members:
            with suppress(psutil.Error):
                member.kill()
        self._process.wait()
        psutil.wait_procs(self._members, timeout=_TIMEOUT)

    def _discover(self) -> None:
        for member in list(self._members):
            with suppress(psutil.Error):
                self._members.update(member.children(recursive=True))


def _memory(process: psutil.Process) -> int:
    """The proportional set size where the system knows it: private pages and a share of the common ones."""
    try:
        memory = process.memory_full_info()
    except psutil.Error:
        return 0
    return int(getattr(memory, "pss", memory.rss))
