"""Profiling some rounds of a run."""

from __future__ import annotations

import gzip
import json
import math
import os
import shutil
import statistics
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerAction, ProfilerActivity, profile

from undrift.core import check, torch_private
from undrift.profile.trace import Breakdown, break_down
from undrift.simulation.callbacks import Callback
from undrift.simulation.run import Run

SKIPPED = 3  # rounds that include compilation, first calls of libraries, the capture of CUDA graphs
_MAX_SECONDS = 5.0  # after which no further round is profiled, as a trace grows by megabytes a second
_LARGE = 16 << 20  # bytes of a trace that is compressed


@dataclass(frozen=True, kw_only=True)
class Figures(Breakdown):
    """Times are those of a round, averaged over the rounds that were profiled."""

    rounds: list[int]  # those profiled
    evaluations: int  # in these rounds
    unprofiled_ms: float | None  # of a later round, without the profiler
    cores_busy: float
    host_bytes: int | None  # peak memory, where the system reports it
    device_bytes: int | None
    trace: str  # the file; https://ui.perfetto.dev and chrome://tracing open it


class Profile(Callback):
    """Profiles some rounds of a run, as one of its callbacks.

    The first `skip` rounds are left out (None: three, of a shorter run all but the last), then up to `rounds` are
    profiled, fewer if they are long. The trace is written
    to `path`, compressed and with ``.gz`` added if it is large, and the run continues. Profiling does not change the
    results of a run, but slows down the rounds that are profiled. If the run ends earlier, `figures` is None.
    """

    def __init__(self, path: str | Path, skip: int | None = None, rounds: int = 5) -> None:
        if skip is not None:
            check.integer("skip", skip, 0)
        check.integer("rounds", rounds, 1)
        self.skip, self._by_length = SKIPPED if skip is None else skip, skip is None
        self._path, self._most = Path(path), rounds
        self._profiler: profile | None = None
        self._figures: Figures | None = None
        self._start = 0.0, 0.0  # of the current round: wall clock and processor time
        self._finished = 0  # rounds
        self._profiled: list[dict[str, Any]] = []  # rows of these rounds
        self._unprofiled: list[float] = []  # seconds of the rounds after them
        self._seconds = self._processor_seconds = 0.0  # of the profiled rounds

    @property
    def figures(self) -> Figures | None:
        if self._figures is None or not self._unprofiled:
            return self._figures
        return replace(self._figures, unprofiled_ms=1e3 * statistics.median(self._unprofiled))

    def begin(self, run: Run) -> None:
        if self._profiler is not None:  # a run that trains together with the first one
            return
        if self._by_length:
            self.skip = min(SKIPPED, run.options.rounds - 1)
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or the profiler logs its start and its end
        on_gpu = [ProfilerActivity.CUDA] if torch.cuda.is_available() else []
        self._profiler = profile(
            activities=[ProfilerActivity.CPU, *on_gpu],
            schedule=self._action,
            experimental_config=torch_private.all_threads_config(),  # clients may be trained by several threads
        )
        self._profiler.start()
        self._start = time.perf_counter(), time.process_time()

    def round(self, row: dict[str, Any], run: Run) -> None:
        seconds, processor = time.perf_counter() - self._start[0], time.process_time() - self._start[1]
        self._finished += 1
        if self._profiler is None:
            self._unprofiled.append(seconds)
        elif self._finished <= self.skip:
            self._profiler.step()
        else:
            self._profiled.append(row)
            self._seconds += seconds
            self._processor_seconds += processor
            if len(self._profiled) == self._most or self._seconds >= _MAX_SECONDS:
                self._finish()
            else:
                self._profiler.step()
        self._start = time.perf_counter(), time.process_time()

    def end(self, run: Run) -> None:
        self._finish()

    def _action(self, step: int) -> ProfilerAction:
        """What the profiler does in a round: it warms up in the last one that is left out."""
        if step >= self.skip:
            return ProfilerAction.RECORD
        return ProfilerAction.WARMUP if step == self.skip - 1 else ProfilerAction.NONE

    def _finish(self) -> None:
        """Write the trace and take the figures; a round that was interrupted does not count."""
        if self._profiler is None:
            return
        host_bytes = _host_peak()  # before the trace is read, which takes memory
        profiler, self._profiler = self._profiler, None
        profiler.stop()
        if not self._profiled:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(self._path))
        breakdown = break_down(json.loads(self._path.read_bytes())["traceEvents"], len(self._profiled))
        self._figures = Figures(
            **vars(breakdown),
            rounds=[row["round"] for row in self._profiled],
            evaluations=sum(not math.isnan(row["loss"]) for row in self._profiled),
            unprofiled_ms=None,
            cores_busy=self._processor_seconds / self._seconds,
            host_bytes=host_bytes,
            device_bytes=torch.cuda.max_memory_allocated() if breakdown.on_gpu else None,
            trace=str(_compressed(self._path)),
        )


def _compressed(path: Path) -> Path:
    """The same file, or a compressed one in its place if it is large."""
    if path.stat().st_size < _LARGE:
        return path
    smaller = path.with_name(f"{path.name}.gz")
    with path.open("rb") as source, gzip.open(smaller, "wb", compresslevel=5) as target:
        shutil.copyfileobj(source, target)
    path.unlink()
    return smaller


def _host_peak() -> int | None:
    """The peak memory of this process, in bytes."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
