"""The speed of the engines relative to a plain loop over the same clients in the same process.

    python benchmarks/engines.py            # all workloads, a table
    python benchmarks/engines.py --json     # the same as JSON

The plain loop is what most libraries do: an `nn.Module` and a `torch.optim.SGD` per client, one after another, without
a DataLoader. Loop and engines take turns, so that a busy machine slows all equally; results are medians. Rounds are
compiled from scratch; the table says how long that took and after how many rounds it pays off.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import resource
import statistics
import tempfile
import time
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import undrift as ud
from undrift import models

Clients = list[tuple[Tensor, Tensor]]
IMAGE = (1, 28, 28)


@dataclass(frozen=True)
class Workload:
    name: str
    model: str
    clients: int
    samples: int
    batch_size: int
    goal: dict[str, float]  # ratio to reach, by engine
    engines: tuple[str, ...] = ("sequential", "batched", "auto")

    def build(self) -> nn.Module:
        return models.build(self.model, IMAGE, 10)

    def data(self) -> Clients:
        generator = torch.Generator().manual_seed(0)
        return [
            (
                torch.rand(self.samples, *IMAGE, generator=generator),
                torch.randint(10, (self.samples,), generator=generator),
            )
            for _ in range(self.clients)
        ]


SMALL = ("sequential", "batched", "compiled", "auto")
WORKLOADS = (
    Workload(
        "100 tiny clients",
        model="softmax",
        clients=100,
        samples=60,
        batch_size=20,
        goal={"batched": 8, "compiled": 10},
        engines=SMALL,
    ),
    Workload("10 MLP clients", model="mlp", clients=10, samples=150, batch_size=32, goal={"batched": 1}, engines=SMALL),
    Workload("10 LeNet clients", model="lenet5", clients=10, samples=600, batch_size=32, goal={"auto": 1}),
)
LR = 0.05


def plain_round(server: nn.Module, clients: Clients, batch_size: int) -> nn.Module:
    """One epoch on every client, then the mean of their models."""
    mean = {k: torch.zeros_like(v) for k, v in server.state_dict().items()}
    for x, y in clients:
        model = copy.deepcopy(server)
        optimizer = torch.optim.SGD(model.parameters(), lr=LR)
        for rows in torch.randperm(len(x)).split(batch_size):
            optimizer.zero_grad()
            F.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
        for k, v in model.state_dict().items():
            mean[k] += v / len(clients)
    after = copy.deepcopy(server)
    after.load_state_dict(mean)
    return after


def plain_seconds(work: Workload, clients: Clients, rounds: int) -> list[float]:
    model, seconds = work.build(), []
    for _ in range(rounds):
        start = time.perf_counter()
        model = plain_round(model, clients, work.batch_size)
        seconds.append(time.perf_counter() - start)
    return seconds


def engine_seconds(work: Workload, clients: Clients, rounds: int, engine: str) -> tuple[list[float], str]:
    run = ud.simulate(
        "fedavg", work.build(), clients, rounds=rounds, batch_size=work.batch_size, cohort=1.0, lr=LR, engine=engine
    )
    return run.history.seconds.tolist(), run.engine


def measure(work: Workload, turns: int, rounds: int) -> dict[str, object]:
    clients = work.data()
    timings: dict[str, list[float]] = {name: [] for name in ("plain loop", *work.engines)}
    chosen, compiling = "", 0.0
    for turn in range(turns + 1):  # the first turn warms up
        for name, seconds in timings.items():
            if name == "plain loop":
                measured = plain_seconds(work, clients, rounds)
            else:
                measured, engine = engine_seconds(work, clients, rounds, name)
                chosen = engine if name == "auto" else chosen
                if name == "compiled" and not turn:
                    compiling = measured[0]
            if turn:
                seconds += measured[1:] if name == "compiled" else measured  # the first round loads the code
    medians = {name: statistics.median(seconds) for name, seconds in timings.items()}
    return {
        "workload": work.name,
        "seconds": medians,
        "ratio": {name: medians["plain loop"] / seconds for name, seconds in medians.items()},
        "auto": chosen,
        "goal": work.goal,
        "compiling": compiling,
        "break_even": compiling / (medians["batched"] - medians["compiled"]) if compiling else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--turns", type=int, default=5, help="turns of the loop and every engine")
    parser.add_argument("--rounds", type=int, default=4, help="rounds per turn")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as code:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = code
        results = [measure(work, options.turns, options.rounds) for work in WORKLOADS]
    if options.json:
        print(json.dumps(results, indent=2))
        return
    table = Table(title=f"seconds per round, {torch.get_num_threads()} threads, torch {torch.__version__}")
    for column in ("workload", "engine", "median", "ratio to the plain loop", "goal"):
        table.add_column(column, justify="left" if column in ("workload", "engine") else "right")
    for result in results:
        for name, seconds in result["seconds"].items():  # type: ignore[attr-defined]
            shown = f"auto: {result['auto']}" if name == "auto" else name
            goal = result["goal"].get(name)  # type: ignore[attr-defined]
            ratio = result["ratio"][name]  # type: ignore[index]
            table.add_row(result["workload"], shown, f"{seconds:.4f}", f"{ratio:.2f}×", f"≥ {goal}×" if goal else "")
        if result["compiling"]:
            note = f"compiled in {result['compiling']:.1f} s, pays off after {result['break_even']:.0f} rounds"
            table.add_row("", f"[dim]{note}[/]")
        table.add_section()
    console = Console(width=110)
    console.print(table)
    console.print(f"peak memory of this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")


if __name__ == "__main__":
    main()
