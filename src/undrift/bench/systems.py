"""The systems that are measured, each in its fastest configuration on this machine.

A new library is a driver and a file of pinned versions in `peers`, a name in `PEERS` and its configurations in `_peer`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from undrift.core import check

DRIVERS = Path(__file__).parent / "peers"


@dataclass(frozen=True)
class System:
    name: str
    label: str
    driver: str  # a script in peers/
    threads: int  # of each process
    processes: int = 1
    environment: str | None = None  # its own, installed from peers/NAME.txt; None for this interpreter
    no_scaffold: str = ""  # why it cannot run SCAFFOLD; empty if it can
    module: str = "torch"  # what this interpreter must have if the system has no environment
    launcher: tuple[str, ...] = ()
    engine: str = "auto"  # of undrift
    start: float = 5.0  # seconds to start, roughly: for the estimate of the time left

    @property
    def setup(self) -> str:
        if self.processes > 1:
            return f"{self.processes} processes"
        return f"{self.threads} thread{'s' if self.threads > 1 else ''}"

    def command(self, python: Path, job: Path) -> list[str]:
        return [str(python), *self.launcher, str(DRIVERS / self.driver), str(job)]


OURS = ("undrift", "undrift-compiled")
PEERS = {"cpu": ("fluke", "flower", "pfl", "fedjax"), "cuda": ("jax",)}


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def select(peers: str | None, device: str, cohort: int, compiled: bool) -> list[System]:
    """undrift, `compiled` as well if so, the plain loop, and the peers of a list such as ``fluke,pfl``, or ``all``."""
    known = PEERS[device]
    names = list(known) if peers == "all" else [p.strip().lower() for p in (peers or "").split(",") if p.strip()]
    for name in names:
        check.choice(f"--peers on {'a GPU' if device == 'cuda' else 'a CPU'}", name, known)
    own = [_undrift(), *([_compiled()] if compiled and device == "cpu" else []), _plain()]
    return own + [system for name in dict.fromkeys(names) for system in _peer(name, cohort)]


def _undrift() -> System:
    return System("undrift", "undrift", "run_undrift.py", cores())


def _compiled() -> System:
    return System("undrift-compiled", "undrift, compiled", "run_undrift.py", cores(), engine="compiled", start=20)


def _plain() -> System:
    return System("plain", "plain PyTorch loop", "run_plain.py", cores())


def _peer(name: str, cohort: int) -> list[System]:
    """Its fastest configurations; with one process per core where a library supports several."""
    workers = min(cores(), cohort)
    each = max(1, cores() // workers)
    if name == "fluke":
        return [System(name, name, "run_fluke.py", cores(), environment=name)]
    if name == "flower":
        return [
            System(
                name,
                "Flower (Ray)",
                "run_flower.py",
                each,
                processes=workers,
                environment=name,
                no_scaffold="not implemented",
                start=20,
            )
        ]
    if name == "fedjax":
        return [System(name, "FedJAX", "run_fedjax.py", cores(), environment=name, no_scaffold="not implemented")]
    if name == "jax":
        return [
            System(
                name,
                "JAX jit(vmap(scan))",
                "run_jax.py",
                cores(),
                no_scaffold="not implemented",
                module="jax",
                start=20,
            )
        ]
    one = System("pfl-1", "pfl", "run_pfl.py", cores(), environment=name, start=8)
    if workers == 1:
        return [one]
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(workers))
    many = System(
        f"pfl-{workers}",
        "pfl",
        "run_pfl.py",
        each,
        processes=workers,
        environment=name,
        no_scaffold="client states are not shared between processes",
        launcher=torchrun,
        start=12,
    )
    return [one, many]
