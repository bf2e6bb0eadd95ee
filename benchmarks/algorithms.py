"""The time of a round of every algorithm, relative to FedAvg.

    python benchmarks/algorithms.py                      # all of them, on two clients (about four minutes on two cores)
    python benchmarks/algorithms.py -a scaffold,mime     # some
    python benchmarks/algorithms.py --clients 10 --device cuda

Clients train as in FedHBM's cross-silo setting: 500 CIFAR-like images, batches of 64, the LeNet of Hsu et al. Every
algorithm takes turns with FedAvg, so that a busy machine slows both; results are medians over turns. Expected: steps
that correct the gradient cost little; PGVC, Mime, MimeMom, MimeSVRG and FSVRG compute one more gradient per step,
Per-FedAvg one (HF: three), FedSpeed one; those marked "pass" make one more pass over all data.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import fields

import torch
from rich.console import Console
from rich.table import Table

import undrift as ud
from undrift import models
from undrift.bench.single_rounds import SingleRounds

IMAGE = (3, 32, 32)


def clients(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [
        (torch.rand(500, *IMAGE, generator=generator), torch.randint(10, (500,), generator=generator))
        for _ in range(count)
    ]


def single_rounds(algorithm: str, count: int, device: str | None) -> SingleRounds:
    kind = ud.algorithms.find(algorithm)
    # MA- and GA-FSVRG keep several models, at most one per client.
    chosen = kind(models=min(4, count)) if "models" in {f.name for f in fields(kind)} else kind()
    model = models.build("lenet-hsu", IMAGE, 10)
    return SingleRounds(chosen, model, clients(count), rounds=1_000_000, cohort=1.0, batch_size=64, device=device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-a", "--algorithms", default=",".join(ud.algorithms.available()), help="names, with commas")
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--device")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()

    baseline = single_rounds("fedavg", options.clients, options.device)
    results = []
    for name in options.algorithms.split(","):
        if name == "fedavg":
            continue
        run = single_rounds(name, options.clients, options.device)
        pairs = [(baseline.train(), run.train()) for _ in range(options.turns)]
        ratio = statistics.median(b / a for a, b in pairs)
        results.append({"algorithm": name, "ratio": ratio, "seconds": statistics.median(b for _, b in pairs)})
        if not options.json:
            Console(stderr=True).print(f"{name:14s} {ratio:5.2f}×")
    if options.json:
        print(json.dumps(results, indent=2))
        return
    table = Table(title=f"time per round, {options.clients} clients, {baseline.engine}")
    for column in ("algorithm", "ratio to FedAvg", "seconds"):
        table.add_column(column, justify="left" if column == "algorithm" else "right")
    for row in sorted(results, key=lambda r: r["ratio"]):
        table.add_row(str(row["algorithm"]), f"{row['ratio']:.2f}×", f"{row['seconds']:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
