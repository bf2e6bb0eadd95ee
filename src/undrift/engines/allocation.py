"""Keeps the C library from returning freed memory to the system while a run computes.

Every step allocates and frees the same large blocks. glibc returns them to the system, which clears every page before
it is used again: for a hundred small clients at once, a third of the time.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8  # options of mallopt(3)
_NEVER = (1 << 31) - 1
_DEFAULT_MMAP_MAX = 65536
_ADAPTED_TRIM_THRESHOLD = 64 << 20  # bytes: what glibc's own adaptation reaches after large blocks have been freed


@contextmanager
def keep_freed_memory() -> Iterator[None]:
    """Inside, the process keeps the memory it frees; afterwards it is returned to the system.

    Does nothing if the C library is not glibc.
    """
    libc = _glibc()
    if libc is None:
        yield
        return
    libc.mallopt(_MMAP_MAX, 0)
    libc.mallopt(_TRIM_THRESHOLD, _NEVER)
    try:
        yield
    finally:
        libc.mallopt(_MMAP_MAX, _DEFAULT_MMAP_MAX)
        libc.mallopt(_TRIM_THRESHOLD, _ADAPTED_TRIM_THRESHOLD)
        libc.malloc_trim(0)


def share_freed_memory() -> None:
    """From now on, new threads allocate from the pool of the main thread, so that what one frees, others can use."""
    if (libc := _glibc()) is not None:
        libc.mallopt(_ARENA_MAX, 1)


def return_freed_memory() -> None:
    """Returns to the system, once, what has been freed so far; it takes a few seconds for every 10 GB."""
    if (libc := _glibc()) is not None:
        libc.malloc_trim(0)


@functools.cache
def _glibc() -> Any | None:
    try:
        libc = ctypes.CDLL(None)
    except (OSError, TypeError):  # Windows
        return None
    return libc if hasattr(libc, "gnu_get_libc_version") else None
