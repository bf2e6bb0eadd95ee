"""Memory that a process keeps while it computes.

Every step allocates and frees the same large blocks. The C library gives free memory back to the system, which clears
every page of it before handing it out again: for a hundred small clients at once, half of the time.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # options of mallopt(3)
_LARGEST = 32 << 20  # bytes: larger blocks always come from the system and go back to it; mallopt allows no more
_NEVER = (1 << 31) - 1


@contextmanager
def kept() -> Iterator[None]:
    """Meanwhile free memory stays with the process; afterwards it goes back to the system.

    Does nothing where the C library is not glibc.
    """
    libc = _glibc()
    if libc is None:
        yield
        return
    libc.mallopt(_MMAP_THRESHOLD, _LARGEST)
    libc.mallopt(_TRIM_THRESHOLD, _NEVER)
    try:
        yield
    finally:
        # What glibc arrives at by itself, once it has seen large blocks come and go.
        libc.mallopt(_TRIM_THRESHOLD, 2 * _LARGEST)
        libc.malloc_trim(0)


@functools.cache
def _glibc() -> Any | None:
    try:
        libc = ctypes.CDLL(None)
    except (OSError, TypeError):  # Windows
        return None
    return libc if hasattr(libc, "gnu_get_libc_version") else None
