"""Which process trains a run: the one that holds the lock of its directory.

The lock is never tried: a run that begins in that moment would be refused. On Linux the kernel lists who holds locks;
elsewhere the open files of this user's processes are looked at.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from undrift.storage.lock import LOCK

_KERNEL = Path("/proc/locks")
_COMMAND = ("undrift", "undrift.exe")


@dataclass(frozen=True)
class Holder:
    """A process that holds a lock. `pid` is None where this user may not see which one it is."""

    pid: int | None
    began: float = 0.0  # so that a number that the system gives to another process is noticed
    command: bool = False  # whether it is the command undrift, which ends well when it is asked to

    @property
    def refusal(self) -> str:
        """Why it must not be stopped from here; empty if it may be."""
        if self.pid is None:
            return "the process that trains it belongs to another user or machine; stop it there"
        if self.pid == os.getpid() or not self.command:
            return f"it is trained by a program or notebook (process {self.pid}); stop it there"
        return ""


def find_holders(homes: Iterable[Path]) -> dict[Path, Holder]:
    """Of run directories, those that are locked."""
    locks: dict[int, list[tuple[os.stat_result, Path]]] = {}  # by the number of the file, which differs on one device
    for home in homes:
        with suppress(OSError):
            found = (home / LOCK).stat()
            locks.setdefault(found.st_ino, []).append((found, home))
    holders: dict[Path, Holder] = {}
    for pid, number in _candidates() if locks else ():
        for file, home in locks.get(number, ()) if number else (each for same in locks.values() for each in same):
            if (holder := _holder(pid, file, named=bool(number))) is not None:
                holders.setdefault(home, holder)  # a forked process, which inherits what is open, comes later
    return holders


def _candidates() -> list[tuple[int, int]]:
    """Processes that hold a lock, and the number of the file; 0 where only open files can tell."""
    try:
        lines = _KERNEL.read_text().splitlines()
    except OSError:
        return [(pid, 0) for pid in sorted(psutil.pids())]
    fields = [line.split() for line in lines]  # 1: FLOCK ADVISORY WRITE 1234 08:01:5678 0 EOF
    held = [each for each in fields if len(each) > 5 and (each[1], each[3]) == ("FLOCK", "WRITE")]
    return [(int(each[4]), int(each[5].rpartition(":")[2])) for each in held]


def _holder(pid: int, file: os.stat_result, named: bool) -> Holder | None:
    """The process, if it has the very file open; files of two devices may have one number."""
    try:
        process = psutil.Process(pid)
        opened = [each.path for each in process.open_files() if os.path.basename(each.path) == LOCK]
        if any(os.path.samestat(os.stat(path), file) for path in opened):
            return Holder(pid, process.create_time(), _is_command(process.cmdline()))
        return None
    except (psutil.Error, ValueError, OSError):
        return Holder(None) if named else None


def _is_command(line: list[str]) -> bool:
    """Whether a command line is undrift's: ``python -m undrift run`` or ``python /bin/undrift run``."""
    return any(os.path.basename(word) in _COMMAND for word in line[1:4])
