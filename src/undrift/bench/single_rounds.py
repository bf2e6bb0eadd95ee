"""Runs that are trained one round at a time, so that those of several can take turns on a busy machine."""

from __future__ import annotations

import time
from typing import Any

import torch

from undrift.engines.determinism import arithmetic
from undrift.simulation.loop import rounds
from undrift.simulation.simulate import simulate


class SingleRounds:
    """A run, after its first round; options are those of `ud.simulate`."""

    def __init__(self, algorithm: Any, model: Any, data: Any, **options: Any) -> None:
        run = simulate(algorithm, model, data, callbacks=[lambda row, run: True], **options)
        self.engine, run.ended = run.engine, False
        self._rounds, self._precision = rounds([run], (), "raise"), run.precision

    def train(self, count: int = 1) -> float:
        """Seconds per round, in the precision of the run."""
        with arithmetic(self._precision):
            start = time.perf_counter()
            for _ in range(count):
                next(self._rounds)
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            return (time.perf_counter() - start) / count
