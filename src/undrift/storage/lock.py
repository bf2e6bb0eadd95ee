"""One writer at a time: a lock on a directory, which the system releases when its process ends, however it ends."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from undrift.core.files import StorageError

LOCK = ".lock"  # the file; it is empty, and stays

_inherited: list[FileLock] = []  # by a forked process


@contextmanager
def exclusive(directory: Path) -> Iterator[None]:
    """Holds the lock of an existing directory during the block, or refuses at once."""
    lock = FileLock(directory / LOCK, thread_local=False)  # another thread may be the one that leaves the block
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise ValueError(f"{directory} is in use: another run writes to it; wait until it ends") from None
    except OSError as error:
        raise StorageError(f"{directory / LOCK} cannot be locked: {error.strerror or error}") from None
    owner = os.getpid()
    try:
        yield
    finally:
        if os.getpid() == owner:
            lock.release()
        else:  # a forked process must not release the lock of its parent, as the destructor would
            _inherited.append(lock)
