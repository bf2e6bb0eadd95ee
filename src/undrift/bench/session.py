"""Systems take turns on a work, each in a process of its own, so that a machine that slows down slows all alike."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from undrift.bench import environments, prepare
from undrift.bench.environments import MissingError
from undrift.bench.measure import FailedError, measure
from undrift.bench.peers.job import Job
from undrift.bench.results import Measurement, Results, machine
from undrift.bench.systems import System, chosen
from undrift.bench.works import GPU_ROUNDS, GPU_SECONDS, GPU_WARM_UP, Work


class Display(Protocol):
    """Who tells the user how far it is."""

    def doing(self, what: str) -> None: ...

    def did(self, what: str, share: float) -> None: ...

    def note(self, what: str) -> None: ...


@dataclass(frozen=True)
class Session:
    """What was asked for."""

    works: list[Work]
    peers: str | None
    rounds: int | None
    repeats: int
    device: str
    precision: str | None

    def begin(self, file: Path | None) -> Results:
        """Empty results, or those that the file holds already, to which these are added."""
        works = {
            work.name: {
                "rounds": self._rounds(work),
                "warm_up": self._warm_up(work),
                "data": work.data if prepare.is_here(work) else "generated",
            }
            for work in self.works
        }
        fresh = Results(machine(self.device), self.precision, works)
        if file is None or not file.exists():
            return fresh
        held = Results.read(file)
        held.check_joined_by(fresh, file)
        held.works |= works
        return held

    def expected(self) -> float:
        """Seconds that all of it may take, roughly."""
        return self.repeats * sum(self._share(work, system) for work in self.works for system in self._systems(work))

    def run(self, results: Results, file: Path | None, display: Display) -> None:
        """Measure everything; what is measured is in `results`, and in the file, at once."""
        with tempfile.TemporaryDirectory() as folder:
            for work in self.works:
                self._turns(work, Path(folder), results, file, display)

    def _turns(self, work: Work, folder: Path, results: Results, file: Path | None, display: Display) -> None:
        if not prepare.is_here(work):
            display.note(
                f"{work.name}: {work.data} is not here (undrift data get {work.data}); samples of its shape are drawn, "
                "and accuracy is left out"
            )
        data = folder / f"{work.name}.npz"
        prepare.export(work, data)
        ready = self._installed(work, results, display)
        session = time.strftime("%Y%m%d-%H%M%S")
        for repeat in range(1, self.repeats + 1):
            for system in list(ready):
                display.doing(f"{work.name} {system.label}, {system.setup}, {repeat} of {self.repeats}")
                began = f"{work.name} {system.name}:"
                try:
                    measured = self._measure(work, system, ready[system], data, f"{session}-{repeat}")
                except FailedError as failure:
                    display.note(f"{began} {failure}")
                    results.miss(work, system, str(failure))
                    del ready[system]  # it would fail again
                else:
                    results.measurements.append(measured)
                    display.did(f"{began} {measured.median:.4g} s a round", self._share(work, system))
                if file is not None:
                    results.write(file)
        data.unlink()

    def _installed(self, work: Work, results: Results, display: Display) -> dict[System, Path]:
        """Interpreters of the systems that can do the work."""
        ready = {}
        for system in self._systems(work):
            if work.algorithm == "scaffold" and system.scaffold:
                results.miss(work, system, f"no SCAFFOLD: {system.scaffold}")
                continue
            try:
                ready[system] = environments.python(system, display.note)
            except MissingError as missing:
                display.note(str(missing))
                results.miss(work, system, str(missing))
        return ready

    def _measure(self, work: Work, system: System, python: Path, data: Path, turn: str) -> Measurement:
        warm_up = self._warm_up(work)
        job = Job(
            net=work.net,
            algorithm=work.algorithm,
            batch_size=work.batch_size,
            lr=work.lr,
            cohorts=prepare.cohorts(work, warm_up + self._rounds(work)),
            data=str(data),
            answer=str(data.with_name("answer.json")),
            threads=system.threads,
            processes=system.processes,
            device=self.device,
            precision=self.precision,
            engine=system.engine,
        )
        log = environments.log_file(f"{work.name}-{system.name}")
        limit = 300 + 20 * self._share(work, system)
        found = measure(system, python, job, warm_up, log, limit)
        return Measurement(work.name, system.name, system.label, system.setup, turn, **found)

    def _systems(self, work: Work) -> list[System]:
        return chosen(self.peers, self.device, work.cohort, work.compiled)

    def _rounds(self, work: Work) -> int:
        return self.rounds or (GPU_ROUNDS if self.device == "cuda" else work.rounds)

    def _warm_up(self, work: Work) -> int:
        return GPU_WARM_UP if self.device == "cuda" else work.warm_up

    def _share(self, work: Work, system: System) -> float:
        each = GPU_SECONDS if self.device == "cuda" else work.seconds
        return system.start + each * (self._warm_up(work) + self._rounds(work))
