"""A process keeps the memory it frees during a run, and returns it afterwards."""

from __future__ import annotations

import ctypes
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

import undrift as ud
from undrift.engines import allocation

BLOCKS = [(1 << 20, 200), (70 << 20, 3)]  # size in bytes and count: in total more than glibc keeps by default
glibc = pytest.mark.skipif(allocation._glibc() is None, reason="the C library is not glibc")


def allocate_and_free(size: int, count: int) -> None:
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    blocks = [libc.malloc(ctypes.c_size_t(size)) for _ in range(count)]
    for block in blocks:
        ctypes.memset(block, 1, size)
    for block in blocks:
        libc.free(ctypes.c_void_p(block))


def resident() -> int:
    """Bytes of memory that this process uses."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()


@glibc
@pytest.mark.parametrize(("size", "count"), BLOCKS)
def test_freed_memory_is_kept_inside_and_returned_afterwards(size: int, count: int) -> None:
    """In a process of its own, as memory that others freed would be used first."""
    call = f"t.sizes(allocation.keep_freed_memory, {size}, {count})"
    script = f"import test_allocation as t; from undrift.engines import allocation; print(*{call})"
    found = subprocess.run(
        [sys.executable, "-c", script], cwd=Path(__file__).parent, capture_output=True, text=True, check=True
    )
    before, during, after = map(int, found.stdout.split())
    assert during - before > 0.9 * size * count
    assert after - before < 0.1 * size * count


def sizes(kept: Callable[[], AbstractContextManager[None]], size: int, count: int) -> tuple[int, int, int]:
    """Resident memory before, inside and after `kept`."""
    before = resident()
    with kept():
        allocate_and_free(size, count)
        during = resident()
    return before, during, resident()


class Library:
    """A C library that records calls; `gnu_get_libc_version` tells glibc from others."""

    def __init__(self, glibc: bool) -> None:
        self.calls: list[str] = []
        if glibc:
            self.gnu_get_libc_version = None

    def mallopt(self, option: int, value: int) -> None:
        self.calls.append("mallopt")

    def malloc_trim(self, padding: int) -> None:
        self.calls.append("malloc_trim")


@pytest.mark.parametrize("glibc", [True, False])
def test_only_glibc_is_called(glibc: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library(glibc)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    monkeypatch.setattr(allocation, "_glibc", allocation._glibc.__wrapped__)  # not cached
    with allocation.keep_freed_memory():
        pass
    assert library.calls == (["mallopt"] * 4 + ["malloc_trim"] if glibc else [])


def test_without_a_c_library(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: None) -> None:
        raise TypeError("as on Windows")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert allocation._glibc.__wrapped__() is None


def test_a_run_keeps_freed_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    keeping, seen = [False], []

    @contextmanager
    def kept() -> Iterator[None]:
        keeping[0] = True
        yield
        keeping[0] = False

    def note(row: dict[str, Any], run: ud.Run) -> None:
        seen.append(keeping[0])

    monkeypatch.setattr(allocation, "keep_freed_memory", kept)
    data = [(torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64))]
    ud.simulate("fedavg", torch.nn.Linear(3, 2), data, rounds=2, callbacks=[note])
    assert seen == [True, True]
    assert keeping == [False]
