"""A process and all it started: their memory together, and their end."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

_PROC = Path("/proc")
_PATIENCE = 5.0  # seconds for the kernel to take back what the processes held


class Family:
    """Descendants are looked up in /proc; where there is none, memory is unknown and the process group is all."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._born = {process.pid: _stat(process.pid)}  # numbers are used again; number and birth are not
        self.peak: int | None = None

    def look(self) -> None:
        """Take note of descendants and of their memory, pages that several of them share counted once."""
        self._note()
        sizes = [_memory(pid) for pid in self._alive()]
        now = sum(size for size in sizes if size is not None)
        self.peak = max(self.peak or 0, now) or None

    def end(self) -> None:
        """Nothing that the process started goes on without it."""
        self._note()
        if self._process.poll() is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        for pid in self._alive():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        patience = time.monotonic() + _PATIENCE
        while self._alive() and time.monotonic() < patience:
            time.sleep(0.02)

    def _note(self) -> None:
        children: dict[int, list[int]] = {}
        for pid in _pids():
            if stat := _stat(pid):
                children.setdefault(stat[0], []).append(pid)
        waiting = self._alive()
        while waiting:
            for pid in children.get(waiting.pop(), ()):
                if pid not in self._born:
                    self._born[pid] = _stat(pid)
                    waiting.append(pid)

    def _alive(self) -> list[int]:
        return [pid for pid, stat in self._born.items() if stat and (now := _stat(pid)) and now[1] == stat[1]]


def _pids() -> list[int]:
    return [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()] if _PROC.is_dir() else []


def _stat(pid: int) -> tuple[int, int] | None:
    """Parent and time of birth; None for what is not there or has ended."""
    try:
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else (int(fields[1]), int(fields[19]))


def _memory(pid: int) -> int | None:
    """The proportional set size: private pages and a share of the common ones."""
    try:
        lines = (_PROC / str(pid) / "smaps_rollup").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), None)
