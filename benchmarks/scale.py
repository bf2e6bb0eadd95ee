"""How far one driver goes: replies it can sum in a second, and what follows for a cluster.

    python benchmarks/scale.py            # about a minute on one core
    python benchmarks/scale.py --json

Measured, on one core: how many replies a second the server's half stacks, checks and sums (FedAvg and SCAFFOLD, models
of 0.1, 1 and 10 million parameters in eight tensors); and the seconds that a client of workload W1 trains for (MNIST,
LeNet-5, 600 samples). Computed from these: the time of a round on clusters of 1, 10 and 100 nodes, where a node trains
`--cores` clients at a time, sends over a network of `--gigabits` a second, and everything passes through one driver.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import nn

import undrift as ud
from undrift.bench.workloads import WORKLOADS
from undrift.core import tree
from undrift.engines import allocation
from undrift.protocol import Cohort
from undrift.simulation.clients import site
from undrift.simulation.remote import between_rounds
from undrift.transport import Answers, admit

PARAMETERS = {"0.1 M": 1e5, "1 M": 1e6, "10 M": 1e7}
REPLIES, LAYERS = 20, 8
SECONDS = 2.0  # each figure is measured for so long


def repeated(work: Callable[[], Any]) -> float:
    """Processor seconds of a call, the mean over some seconds after a first one: others may use the machine."""
    work()
    calls, start = 0, time.process_time()
    while time.process_time() - start < SECONDS:
        work()
        calls += 1
    return (time.process_time() - start) / calls


def replies_per_second(algorithm: str, parameters: float) -> float:
    """How many the server's half stacks, checks and sums."""
    width = round(math.sqrt(parameters / LAYERS))
    model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(LAYERS)))
    data = [(torch.randn(1, width), torch.randint(width, (1,))) for _ in range(2)]
    run = ud.simulate(algorithm, model, data, rounds=1, lr=0.01, cohort=1.0, engine="sequential")
    experiment, memory = run.experiment, run.memory
    (phase,) = experiment.method.phases
    ids = torch.arange(REPLIES)
    even = torch.full((REPLIES,), 1 / REPLIES)
    cohort = Cohort(ids, even, torch.ones(REPLIES), population=100, round=2)
    mail = phase.ask(memory.server, cohort)
    answer = site(experiment).answer(between_rounds(experiment, np.arange(2), 1), mail)
    replies = [tree.map_nest(torch.clone, tree.row(answer.replies, 0)) for _ in range(REPLIES)]

    def heard() -> None:
        answers = admit(Answers(tree.stack(replies), {}), REPLIES)
        phase.hear(memory.server, answers.replies, cohort)

    with torch.no_grad(), allocation.keep_freed_memory():  # as during training
        return REPLIES / repeated(heard)


def client_seconds() -> float:
    """A round of one client of W1 on one core."""
    work = WORKLOADS["W1"]
    data = [(torch.rand(work.samples, *work.shape), torch.randint(10, (work.samples,))) for _ in range(4)]
    settings = {"cohort": 1.0, "lr": work.lr, "batch_size": work.batch_size, "engine": "sequential", "eval_every": 100}
    seconds = []

    def note(row: dict[str, Any], run: ud.Run) -> None:
        seconds.append(time.process_time())

    ud.simulate("fedavg", "lenet5", data, rounds=6, callbacks=[note], **settings)
    return (seconds[-1] - seconds[0]) / (len(seconds) - 1) / len(data)


def cluster(client: float, rate: float, nodes: int, cohort: int, cores: int, gigabits: float, size: float) -> float:
    """Seconds of a round: training, the slower of what nodes and the driver send, and summing, one after another."""
    busiest = math.ceil(cohort / (nodes * cores))
    network = 2 * cohort * size / (gigabits * 1e9 / 8)  # all of it passes the driver's link
    return busiest * client + network + cohort / rate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--cores", type=int, default=16, help="of a node")
    parser.add_argument("--gigabits", type=float, default=10.0, help="a second, of the driver's network")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rates = {a: {name: replies_per_second(a, p) for name, p in PARAMETERS.items()} for a in ("fedavg", "scaffold")}
    client = client_seconds()
    model = sum(p.nbytes for p in ud.models.build("lenet5", (1, 28, 28), 10, 0).parameters())
    found = {
        "replies_per_second": rates,
        "client_seconds": client,
        "round_seconds": {
            f"{nodes} nodes": {
                f"{cohort} clients": cluster(
                    client,
                    rates["fedavg"]["0.1 M"],
                    nodes=nodes,
                    cohort=cohort,
                    cores=options.cores,
                    gigabits=options.gigabits,
                    size=model,
                )
                for cohort in (100, 1000, 10000)
            }
            for nodes in (1, 10, 100)
        },
    }
    if options.json:
        print(json.dumps(found, indent=2))
        return
    console = Console()
    table = Table("replies a second", *PARAMETERS)
    for algorithm, row in rates.items():
        table.add_row(algorithm, *(f"{rate:,.0f}" for rate in row.values()))
    console.print(table)
    console.print(f"a client of W1 trains for {client:.3f} s on one core")
    cohorts = list(found["round_seconds"]["1 nodes"])
    table = Table("seconds of a round", *cohorts)
    for name, row in found["round_seconds"].items():
        table.add_row(name, *(f"{seconds:.2f}" for seconds in row.values()))
    console.print(table)


if __name__ == "__main__":
    main()
