"""Taking a profile while a run goes on."""

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
from types import TracebackType
from typing import Any

import torch
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerAction, ProfilerActivity, profile

from undrift.core import check
from undrift.profile.trace import Breakdown, break_down
from undrift.simulation.run import Run

SKIPPED = 3  # rounds that pay for compiling, for first calls of libraries, for the capture of graphs
_ENOUGH = 5.0  # seconds after which no other round is watched, as a trace grows by megabytes a second
_LARGE = 16 << 20  # bytes of a trace that is compressed


@dataclass(frozen=True, kw_only=True)
class Figures(Breakdown):
    """What was found; times are those of a round, on average over the rounds that were watched."""

    rounds: list[int]  # those watched
    evaluations: int  # in them
    usual_ms: float | None  # of a round that came later and was not watched
    cores_busy: float
    host_bytes: int | None  # the most that was taken, where the system tells
    device_bytes: int | None
    trace: str  # the file; https://ui.perfetto.dev and chrome://tracing open it


class Profile:
    """Watches some rounds of a run: a context around it that is one of its callbacks, too.

    The first `skip` rounds are passed over, up to `rounds` are watched, fewer if they are long. Then the trace is
    written to `path`, compressed and with ``.gz`` added if it is large, and the run goes on. Its numbers are those of
    any run; rounds take somewhat longer while they are watched. A run that ends before leaves `figures` None.
    """

    def __init__(self, path: str | Path, skip: int = SKIPPED, rounds: int = 5) -> None:
        check.integer("skip", skip, 0)
        check.integer("rounds", rounds, 1)
        self.skip = skip
        self._path, self._most = Path(path), rounds
        self._profiler: profile | None = None
        self._found: Figures | None = None
        self._began: tuple[float, float] | None = None  # a round, by the clock and by the processor's time
        self._seen = 0  # rounds
        self._watched: list[dict[str, Any]] = []  # their rows
        self._usual: list[float] = []  # seconds of those that came later
        self._seconds = self._processor_seconds = 0.0  # of those watched

    @property
    def figures(self) -> Figures | None:
        if self._found is None or not self._usual:
            return self._found
        return replace(self._found, usual_ms=1e3 * statistics.median(self._usual))

    def __enter__(self) -> Profile:
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or the profiler tells of its start and of its end
        on_gpu = [ProfilerActivity.CUDA] if torch.cuda.is_available() else []
        self._profiler = profile(
            activities=[ProfilerActivity.CPU, *on_gpu],
            schedule=self._action,
            experimental_config=_ExperimentalConfig(profile_all_threads=True),  # clients may be trained by several
        )
        self._profiler.start()
        self._began = time.perf_counter(), time.process_time()
        return self

    def __call__(self, row: dict[str, Any], run: Run) -> None:
        """A round is over."""
        if self._began is None:
            raise ValueError("a profile is a context, too; write: with Profile(...) as profile: simulate(...)")
        seconds, processor = time.perf_counter() - self._began[0], time.process_time() - self._began[1]
        self._seen += 1
        if self._profiler is None:
            self._usual.append(seconds)
        elif self._seen <= self.skip:
            self._profiler.step()
        else:
            self._watched.append(row)
            self._seconds += seconds
            self._processor_seconds += processor
            if len(self._watched) == self._most or self._seconds >= _ENOUGH:
                self._finish()
            else:
                self._profiler.step()
        self._began = time.perf_counter(), time.process_time()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._finish()

    def _action(self, step: int) -> ProfilerAction:
        """What the profiler does in a round; in the last one that is passed over it warms up."""
        if step >= self.skip:
            return ProfilerAction.RECORD
        return ProfilerAction.WARMUP if step == self.skip - 1 else ProfilerAction.NONE

    def _finish(self) -> None:
        """Write down what was watched; a round that was cut short does not count."""
        if self._profiler is None:
            return
        host_bytes = _host_peak()  # before the trace takes some
        profiler, self._profiler = self._profiler, None
        profiler.stop()
        if not self._watched:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(self._path))
        breakdown = break_down(json.loads(self._path.read_bytes())["traceEvents"], len(self._watched))
        self._found = Figures(
            **vars(breakdown),
            rounds=[row["round"] for row in self._watched],
            evaluations=sum(not math.isnan(row["loss"]) for row in self._watched),
            usual_ms=None,
            cores_busy=self._processor_seconds / self._seconds,
            host_bytes=host_bytes,
            device_bytes=torch.cuda.max_memory_allocated() if breakdown.on_gpu else None,
            trace=str(_compressed(self._path)),
        )


def _compressed(path: Path) -> Path:
    """The same file, or a smaller one in its place if it is large."""
    if path.stat().st_size < _LARGE:
        return path
    smaller = path.with_name(f"{path.name}.gz")
    with path.open("rb") as source, gzip.open(smaller, "wb", compresslevel=5) as target:
        shutil.copyfileobj(source, target)
    path.unlink()
    return smaller


def _host_peak() -> int | None:
    """The most memory this process has taken, in bytes."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
