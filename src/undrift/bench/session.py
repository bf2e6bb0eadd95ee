"""Systems take turns on a workload, each in its own process, so that a slower machine slows all of them equally."""

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
from undrift.bench.systems import System
from undrift.bench.systems import select as select_systems
from undrift.bench.workloads import GPU_ROUNDS, GPU_SECONDS, GPU_WARM_UP, Workload
from undrift.data import is_local


class Display(Protocol):
    """Shows progress."""

    def doing(self, text: str) -> None: ...

    def did(self, text: str, seconds: float) -> None: ...  # of the expected seconds, those that are over

    def note(self, text: str) -> None: ...


@dataclass(frozen=True)
class Session:
    """What is measured, and how."""

    workloads: list[Workload]
    peers: str | None
    rounds: int | None
    repeats: int
    device: str
    precision: str | None

    def open_results(self, file: Path | None) -> Results:
        """Empty results, or those that the file holds already, to which these are added."""
        works = {
            work.name: {
                "rounds": self._rounds(work),
                "warm_up": self._warm_up(work),
                "data": work.data if is_local(work.data) else "generated",
            }
            for work in self.workloads
        }
        fresh = Results(machine(self.device), self.precision, works)
        if file is None or not file.exists():
            return fresh
        held = Results.read(file)
        held.check_compatible(fresh, file)
        held.works |= works
        return held

    def expected(self) -> float:
        """Seconds that all measurements may take, roughly."""
        return self.repeats * sum(
            self._seconds(work, system) for work in self.workloads for system in self._systems(work)
        )

    def run(self, results: Results, file: Path | None, display: Display) -> None:
        """Measure everything; each measurement is added to `results`, and to the file, at once."""
        with tempfile.TemporaryDirectory() as folder:
            for work in self.workloads:
                data = Path(folder) / f"{work.name}.npz"
                prepare.export(work, data)
                self._turns(work, data, results, file=file, display=display)
                data.unlink()

    def _turns(self, work: Workload, data: Path, results: Results, *, file: Path | None, display: Display) -> None:
        if not is_local(work.data):
            display.note(
                f"{work.name}: {work.data} is not here (undrift data get {work.data}); samples are random, "
                "and accuracy is left out"
            )
        ready = self._installed(work, results, display)
        session = time.strftime("%Y%m%d-%H%M%S")
        for repeat in range(1, self.repeats + 1):
            for system in list(ready):
                display.doing(f"{work.name} {system.label}, {system.setup}, {repeat} of {self.repeats}")
                prefix = f"{work.name} {system.name}:"
                turn = f"{session}-{repeat}"
                try:
                    measured = self._measure(work, system, python=ready[system], data=data, turn=turn)
                except FailedError as failure:
                    display.note(f"{prefix} {failure}")
                    results.skip(work, system, str(failure))
                    del ready[system]  # it would fail again
                else:
                    results.measurements.append(measured)
                    display.did(f"{prefix} {measured.median:.4g} s per round", self._seconds(work, system))
                if file is not None:
                    results.write(file)

    def _installed(self, work: Workload, results: Results, display: Display) -> dict[System, Path]:
        """Interpreters of the systems that can run the workload."""
        ready = {}
        for system in self._systems(work):
            if work.algorithm == "scaffold" and system.no_scaffold:
                results.skip(work, system, f"no SCAFFOLD: {system.no_scaffold}")
                continue
            try:
                ready[system] = environments.python(system, display.note)
            except MissingError as missing:
                display.note(str(missing))
                results.skip(work, system, str(missing))
        return ready

    def _measure(self, work: Workload, system: System, *, python: Path, data: Path, turn: str) -> Measurement:
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
        limit = 300 + 20 * self._seconds(work, system)
        found = measure(system, job, python=python, warm_up=warm_up, log=log, limit=limit)
        return Measurement(
            work=work.name, system=system.name, label=system.label, setup=system.setup, turn=turn, **found
        )

    def _systems(self, work: Workload) -> list[System]:
        return select_systems(self.peers, self.device, work.cohort, work.compiled)

    def _rounds(self, work: Workload) -> int:
        return self.rounds or (GPU_ROUNDS if self.device == "cuda" else work.rounds)

    def _warm_up(self, work: Workload) -> int:
        return GPU_WARM_UP if self.device == "cuda" else work.warm_up

    def _seconds(self, work: Workload, system: System) -> float:
        each = GPU_SECONDS if self.device == "cuda" else work.seconds
        return system.start + each * (self._warm_up(work) + self._rounds(work))
