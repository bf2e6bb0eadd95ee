"""Processes that tests start: none outlives its test, and waiting is for events, so that a slow machine passes too."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

LIMIT = 900.0  # seconds; only a test that hangs waits this long


@contextmanager
def started(
    command: Sequence[str], *, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """A process that is killed at the end together with its descendants."""
    with subprocess.Popen(
        command, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8"
    ) as process:
        try:
            yield process
        finally:
            kill(process.pid)


def kill(pid: int) -> None:
    with suppress(psutil.NoSuchProcess):
        parent = psutil.Process(pid)
        for process in [*parent.children(recursive=True), parent]:
            with suppress(psutil.NoSuchProcess):
                process.kill()


def wait_until(happened: Callable[[], bool], process: subprocess.Popen[str] | None = None) -> None:
    """Poll until it has happened; fails at once if the process that should make it happen has ended."""
    limit = time.monotonic() + LIMIT
    while not happened():
        assert process is None or process.poll() is None, f"ended too early, with exit code {process.returncode}"
        assert time.monotonic() < limit, "nothing happened"
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False
