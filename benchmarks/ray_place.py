"""What actors bring, and what messages cost: workload W1 (100 clients, ten in a round, LeNet-5) in four places.

    python benchmarks/ray_place.py             # about two minutes on two cores, which nobody else should use

In one process the places take turns, a few rounds each, so that a busy machine slows all of them; ratios are medians
over turns. Besides the time that passes, it counts processor time: the driver's, and that of the slowest of its actors,
which compute side by side. On a machine that others use, that is what a quiet one would take at least. All compute with
one thread: the fused rounds of `place="local"`, the same through a transport in the process, and Ray with one and with
two actors. Expected: messages at most 1.1 times the fused rounds, two actors at least 1.6 times as fast as one. Samples
are random: the time does not depend on them.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from contextlib import ExitStack

import psutil
import ray
import torch
from rich.console import Console
from rich.table import Table

import undrift as ud
from undrift.bench.workloads import WORKLOADS
from undrift.simulation.loop import rounds
from undrift.simulation.on_ray.cluster import session
from undrift.simulation.place import PLACES, Place
from undrift.simulation.remote import RemoteStates

WORK = WORKLOADS["W1"]
PLACES["in-process"] = Place
SETTINGS = {
    "fused": {"place": "local"},
    "in process": {"place": "in-process"},
    "one actor": {"place": "ray", "actors": 1},
    "two actors": {"place": "ray", "actors": 2},
}


def clients() -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [
        (
            torch.rand(WORK.samples, *WORK.shape, generator=generator),
            torch.randint(10, (WORK.samples,), generator=generator),
        )
        for _ in range(WORK.clients)
    ]


class SingleRounds:
    """A run that is trained a few rounds at a time."""

    def __init__(self, name: str, data: list[tuple[torch.Tensor, torch.Tensor]], stack: ExitStack) -> None:
        self.run = ud.simulate(
            "fedavg", "lenet5", data, rounds=5000, eval_every=5000, lr=WORK.lr, batch_size=WORK.batch_size,
            cohort=WORK.cohort, callbacks=[lambda row, run: True], engine="sequential", device="cpu", **SETTINGS[name],
        )  # fmt: skip
        self.run.ended = False
        stack.enter_context(self.run.reaching_clients())
        self._rounds = rounds([self.run], (), "raise")

        place = self.run.memory.states
        actors = place.transport._places if isinstance(place, RemoteStates) and "actor" in name else []
        self._actors = [
            psutil.Process(ray.get(each.actor.__ray_call__.remote(lambda _: os.getpid()))) for each in actors
        ]

    def train(self, count: int) -> tuple[float, float]:
        """Seconds of a round, and processor seconds one after another."""
        start, driver, actors = time.perf_counter(), time.process_time(), self._processor()
        for _ in range(count):
            next(self._rounds)
        slowest = max((after - before for after, before in zip(self._processor(), actors, strict=True)), default=0)
        return (time.perf_counter() - start) / count, (time.process_time() - driver + slowest) / count

    def _processor(self) -> list[float]:
        return [sum(actor.cpu_times()[:2]) for actor in self._actors]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--rounds", type=int, default=3, help="of a turn")
    options = parser.parse_args()
    torch.set_num_threads(1)
    data = clients()
    with ExitStack() as stack:
        home = stack.enter_context(tempfile.TemporaryDirectory(prefix="undrift-", ignore_cleanup_errors=True))
        # Room for the actors of both runs, of which one computes at a time.
        ray.init(address="local", num_cpus=3, include_dashboard=False, log_to_driver=False, _temp_dir=home)
        stack.callback(ray.shutdown)
        stack.enter_context(session(None))
        runs = {name: SingleRounds(name, data, stack) for name in SETTINGS}
        for run in runs.values():
            run.train(1)
        seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in SETTINGS}

        def column(name: str, kind: int) -> list[float]:
            return [each[kind] for each in seconds[name]]

        def ratio(name: str, other: str, kind: int) -> float:
            return statistics.median(a / b for a, b in zip(column(name, kind), column(other, kind), strict=True))

        load = os.getloadavg()[0]
        for _ in range(options.turns):
            for name, run in runs.items():
                seconds[name].append(run.train(options.rounds))
        parameters = [run.run.parameters for run in runs.values()]
    table = Table(
        "place", "seconds a round", "relative to fused rounds", "of the processor", "relative", title=WORK.title
    )
    for name in seconds:
        figures = [
            (f"{statistics.median(column(name, kind)):.3f}", f"{ratio(name, 'fused', kind):.2f}") for kind in (0, 1)
        ]
        table.add_row(name, *figures[0], *figures[1])
    Console().print(table)
    faster = [ratio("one actor", "two actors", kind) for kind in (0, 1)]
    print(f"two actors are {faster[0]:.2f} times as fast as one, by processor time {faster[1]:.2f} (expected: 1.6)")
    equal = all(torch.equal(value, other[name]) for other in parameters for name, value in parameters[0].items())
    print(f"the models of all places are {'the same to the bit' if equal else 'NOT THE SAME'}")
    print(f"processes that wanted to run on the {os.cpu_count()} cores when it began: {load:.1f}")


if __name__ == "__main__":
    main()
