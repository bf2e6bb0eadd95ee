"""Memory stays with the process while a run goes on, and no longer."""

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

BLOCKS = [(1 << 20, 200), (70 << 20, 3)]  # bytes, and how many: together more than glibc would keep by itself
glibc = pytest.mark.skipif(allocation._glibc() is None, reason="the C library is not glibc")


def come_and_go(size: int, count: int) -> None:
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    blocks = [libc.malloc(ctypes.c_size_t(size)) for _ in range(count)]
    for block in blocks:
        ctypes.memset(block, 1, size)
    for block in blocks:
        libc.free(ctypes.c_void_p(block))


def resident() -> int:
    """Bytes of memory that this process has."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()


@glibc
@pytest.mark.parametrize(("size", "count"), BLOCKS)
def test_memory_is_kept_meanwhile_and_goes_back_afterwards(size: int, count: int) -> None:
    """In a process of its own, as what others left behind would be used first."""
    call = f"t.sizes(allocation.kept, {size}, {count})"
    script = f"import test_allocation as t; from undrift import allocation; print(*{call})"
    found = subprocess.run(
        [sys.executable, "-c", script], cwd=Path(__file__).parent, capture_output=True, text=True, check=True
    )
    before, during, after = map(int, found.stdout.split())
    assert during - before > 0.9 * size * count
    assert after - before < 0.1 * size * count


def sizes(kept: Callable[[], AbstractContextManager[None]], size: int, count: int) -> tuple[int, int, int]:
    """Resident memory before, while and after memory is kept."""
    before = resident()
    with kept():
        come_and_go(size, count)
        during = resident()
    return before, during, resident()


def test_other_c_libraries_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocation, "_glibc", lambda: None)
    with allocation.kept():
        pass


def test_a_run_keeps_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    keeping, seen = [False], []

    @contextmanager
    def kept() -> Iterator[None]:
        keeping[0] = True
        yield
        keeping[0] = False

    def note(row: dict[str, Any], run: ud.Run) -> None:
        seen.append(keeping[0])

    monkeypatch.setattr(allocation, "kept", kept)
    data = [(torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64))]
    ud.simulate("fedavg", torch.nn.Linear(3, 2), data, rounds=2, callbacks=[note])
    assert seen == [True, True]
    assert keeping == [False]
