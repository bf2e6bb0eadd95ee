"""Memory that a process keeps while it computes.

Every step allocates and frees the same large blocks. The C library gives free memory back to the system, which clears
every page of it before handing it out again: for a hundred small clients at once, a third of the time.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # options of mallopt(3)
_NEVER = (1 << 31) - 1
_USUAL_BLOCKS = 65536  # that may come from the system, each by itself
_USUAL_TRIM = 64 << 20  # bytes, what glibc arrives at by itself once it has seen large blocks come and go


@contextmanager
def kept() -> Iterator[None]:
    """Meanwhile free memory stays with the process; afterwards it goes back to the system.

    Does nothing where the C library is not glibc.
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
        libc.mallopt(_MMAP_MAX, _USUAL_BLOCKS)
        libc.mallopt(_TRIM_THRESHOLD, _USUAL_TRIM)
        libc.malloc_trim(0)


@functools.cache
def _glibc() -> Any | None:
    try:
        libc = ctypes.CDLL(None)
    except (OSError, TypeError):  # Windows
        return None
    return libc if hasattr(libc, "gnu_get_libc_version") else None
