"""Processes that the page has started, and those it stops."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import psutil

from undrift.core.log import printable
from undrift.ui.catalogue import FollowedRun, id_of
from undrift.ui.form import Wanted
from undrift.ui.holders import Holder, find_holders

_LONGEST = 500  # characters of an error
_PATIENCE = 60.0  # seconds in which a run that is told to stop finishes its round and is saved
_FORGOTTEN = 100  # jobs that ended and are still listed, at most


class RefusedError(Exception):
    """What was asked for cannot be done; says why."""


@dataclass
class Job:
    number: int
    kind: str  # start or resume
    name: str  # of the folder
    home: Path
    process: subprocess.Popen[bytes]
    output: IO[bytes]
    error: str = ""
    over: bool = False

    def poll(self) -> None:
        if self.over or (code := self.process.poll()) is None:
            return
        self.over = True
        if code not in (0, 128 + signal.SIGTERM, 128 + signal.SIGINT, -signal.SIGTERM, -signal.SIGINT):
            self.error = self._last_words() or f"ended with exit code {code}"
        self.output.close()
        if self.kind == "start":
            _remove_if_empty(self.home)

    def _last_words(self) -> str:
        """The line that says what went wrong."""
        end = self.output.seek(0, os.SEEK_END)
        self.output.seek(max(0, end - 20_000))
        lines = [line.strip() for line in self.output.read().decode("utf-8", "replace").splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("undrift: error: ")]
        line = printable((errors or lines or [""])[-1].removeprefix("undrift: error: "))
        return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"


class Jobs:
    """Runs that were started or resumed from the page, each a process of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._jobs: dict[int, Job] = {}
        self._count = 0
        self._stopping: dict[int, float] = {}  # processes that were told to stop, and when they began

    def start(self, wanted: Wanted) -> Job:
        home = _reserved(self.root, wanted.name)
        try:
            return self._run("start", home, [*wanted.arguments, f"--out={home}"])
        except OSError:
            _remove_if_empty(home)
            raise

    def resume(self, run: FollowedRun, rounds: int | None) -> Job:
        if run.config is None:
            raise RefusedError(f"it cannot be resumed: {run.problem}")
        if run.home in find_holders([run.home]) or any(
            job.home == run.home and job.process.pid not in self._stopping for job in self.running()
        ):
            raise RefusedError("it is running already")
        more = [] if rounds is None else [f"--rounds={rounds}"]
        return self._run("resume", run.home, ["resume", *more, "--", os.fspath(run.home)])

    def _run(self, kind: str, home: Path, arguments: Sequence[str]) -> Job:
        output = tempfile.TemporaryFile()  # noqa: SIM115  closed when the process has ended
        process = subprocess.Popen(
            [sys.executable, "-m", "undrift", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # Ctrl-C in the terminal is for the page, which stops them in order
        )
        self._count += 1
        job = Job(self._count, kind, home.name, home, process, output)
        self._jobs[job.number] = job
        return job

    def stop(self, run: FollowedRun) -> int:
        """Ask the process that trains a run to save it and end, as Ctrl-C would; returns its number."""
        holder = find_holders([run.home]).get(run.home)
        child = next((job for job in self.running() if job.home == run.home), None)
        if holder is None and child is None:
            raise RefusedError("no process on this machine trains it")
        pid = child.process.pid if child is not None else None
        if pid is None and holder is not None:
            if holder.refusal:
                raise RefusedError(holder.refusal)
            pid = holder.pid
        assert pid is not None
        process = _process(pid)
        if self._stopping.get(pid) == process.create_time():
            raise RefusedError("it has been told to stop, and does so after the round that it computes")
        if holder is not None and child is None and process.create_time() != holder.began:
            raise RefusedError("the process that trained it has ended")
        self._stopping[pid] = process.create_time()
        process.terminate()
        return pid

    def is_stopping(self, holder: Holder) -> bool:
        return holder.pid is not None and self._stopping.get(holder.pid) == holder.began

    def running(self) -> list[Job]:
        self.poll()
        return [job for job in self._jobs.values() if not job.over]

    def poll(self) -> None:
        for job in self._jobs.values():
            job.poll()
        over = [number for number, job in self._jobs.items() if job.over]
        for number in over[:-_FORGOTTEN]:
            del self._jobs[number]

    def listed(self) -> list[dict[str, Any]]:
        self.poll()
        return [
            {
                "number": job.number,
                "kind": job.kind,
                "run": id_of(job.home, self.root),
                "name": printable(job.name),
                "over": job.over,
                "stopping": job.process.pid in self._stopping,
                "error": job.error,
            }
            for job in self._jobs.values()
        ]

    def close(self) -> list[int]:
        """Stop what was started here; waits until it is saved. Returns the processes that take longer."""
        running = self.running()
        for job in running:
            if job.process.pid not in self._stopping:
                job.process.terminate()
        limit = time.monotonic() + _PATIENCE
        left = []
        for job in running:
            try:
                job.process.wait(max(0.0, limit - time.monotonic()))
            except subprocess.TimeoutExpired:
                left.append(job.process.pid)
            job.poll()
        return left


def _process(pid: int) -> psutil.Process:
    try:
        return psutil.Process(pid)
    except psutil.Error:
        raise RefusedError("the process that trained it has ended") from None


def _reserved(root: Path, name: str) -> Path:
    number = 1
    while True:
        home = root / f"{name}-{number}"
        try:
            home.mkdir()
        except FileExistsError:
            number += 1
        else:
            return home


def _remove_if_empty(home: Path) -> None:
    try:
        home.rmdir()
    except OSError:
        return
