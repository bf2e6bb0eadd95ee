"""The job of a driver and its answer, as files; needs nothing but NumPy.

A driver is called with the path of a job, a JSON file. It trains `rounds` rounds of the job's algorithm from the given
parameters, times every round with a `Clock`, and answers with the accuracy of the last model. Preparation
(floating-point samples, models, workers) and evaluation are not timed.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np


@dataclass(frozen=True)
class Job:
    net: str
    algorithm: str
    batch_size: int
    lr: float
    cohorts: list[list[int]]  # the clients of every round
    data: str  # an npz file
    answer: str  # where the answer is written
    threads: int
    processes: int
    device: str
    precision: str | None
    engine: str = "auto"  # of undrift

    @classmethod
    def read(cls, path: str) -> Job:
        with open(path, encoding="utf-8") as file:
            return cls(**json.load(file))

    @property
    def rounds(self) -> int:
        return len(self.cohorts)

    @cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        with np.load(self.data) as file:
            return {name: file[name] for name in file.files}

    @property
    def clients(self) -> int:
        return len(self.arrays["y"])

    def samples(self) -> tuple[np.ndarray, np.ndarray]:
        """Of all clients: x [clients, samples, channels, height, width], normalised, and y [clients, samples]."""
        return self._normalised("x"), self.arrays["y"]

    def test(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Test samples; None if the data are random and accuracy means nothing."""
        return (self._normalised("test_x"), self.arrays["test_y"]) if "test_x" in self.arrays else None

    def parameters(self) -> list[np.ndarray]:
        """The initial ones, in PyTorch's order and layout."""
        return [self.arrays[name] for name in sorted(self.arrays) if name.startswith("parameter")]

    def _normalised(self, name: str) -> np.ndarray:
        pixels = self.arrays[name].astype(np.float32)
        pixels /= 255
        pixels -= self.arrays["mean"]
        pixels /= self.arrays["std"]
        return pixels


class Clock:
    """Seconds of every round. `wait` synchronises with a device."""

    def __init__(self, wait: Callable[[], object] = lambda: None) -> None:
        self._wait = wait
        self.seconds: list[float] = []
        self.ended: list[float] = []  # in seconds since the epoch, to compute the start-up time
        self.start()

    def start(self) -> None:
        self._wait()
        self._since = time.perf_counter()

    def stop(self) -> None:
        self._wait()
        self.seconds.append(time.perf_counter() - self._since)
        self.ended.append(time.time())

    def lap(self) -> None:
        self.stop()
        self.start()


def answer(
    job: Job,
    clock: Clock,
    accuracy: float | None,
    packages: list[str],
    *,
    device_bytes: int | None = None,
    note: str = "",
) -> None:
    """Write the answer to a temporary file and rename it, so that it is never read half-written."""
    assert len(clock.seconds) == job.rounds, f"{len(clock.seconds)} rounds were timed instead of {job.rounds}"
    scale = 1 if sys.platform == "darwin" else 1024
    content = {
        "seconds": clock.seconds,
        "ended": clock.ended,
        "accuracy": accuracy,
        "versions": {name: _version(name) for name in packages},
        "process_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale,
        "device_bytes": device_bytes,
        "note": note,
    }
    with open(job.answer + ".part", "w", encoding="utf-8") as file:
        json.dump(content, file)
    os.replace(job.answer + ".part", job.answer)


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:  # run from a source tree
        return str(sys.modules[package].__version__)
