"""What drift diagnostics cost: the time of a round with them, relative to one without.

    python benchmarks/diagnostics.py                     # about a minute on two cores
    python benchmarks/diagnostics.py --device cuda

Digits with the MLP, and images of Fashion-MNIST's shape (random: time does not depend on them) with LeNet-5. In one
process, rounds with and without diagnostics take turns, so that a busy machine slows both; ratios are medians over
turns. Expected: at most 1.5 for those that compute no further gradient.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from undrift.bench.single_rounds import SingleRounds
from undrift.diagnostics import DIAGNOSTICS

KINDS = {
    "updates": [name for name, each in DIAGNOSTICS.items() if not each.gradients and name != "gradient_norm"],
    "gradient_norm": ["gradient_norm"],
    "both": [name for name, each in DIAGNOSTICS.items() if not each.gradients],
    "further gradients": [name for name, each in DIAGNOSTICS.items() if each.gradients],
}


def images() -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [
        (torch.rand(64, 1, 28, 28, generator=generator), torch.randint(10, (64,), generator=generator))
        for _ in range(20)
    ]


TASKS: dict[str, tuple[str, Any]] = {"digits, mlp": ("mlp", "digits"), "fashion-mnist, lenet5": ("lenet5", images())}


def single_rounds(task: str, device: str | None, diagnostics: Sequence[str] = ()) -> SingleRounds:
    model, data = TASKS[task]
    return SingleRounds(
        "fedavg", model, data, rounds=5000, eval_every=5000, lr=0.01, batch_size=32, cohort=10, seed=0,
        device=device, diagnostics=diagnostics, engine="auto",
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3, help="of a turn")
    parser.add_argument("--device")
    options = parser.parse_args()

    table = Table("task", "engine", "ms a round", *KINDS)
    for task in TASKS:
        plain = single_rounds(task, options.device)
        watched = {kind: single_rounds(task, options.device, names) for kind, names in KINDS.items()}
        ratios: dict[str, list[float]] = {kind: [] for kind in KINDS}
        alone = []
        for turn in range(options.turns + 1):
            before = plain.train(options.rounds)
            for kind, each in watched.items():
                ratio = each.train(options.rounds) / before
                if turn:  # the first one warms up
                    ratios[kind].append(ratio)
            if turn:
                alone.append(before)
        figures = [f"{statistics.median(ratios[kind]):.2f}" for kind in KINDS]
        table.add_row(task, plain.engine.split(" ")[0], f"{1000 * statistics.median(alone):.1f}", *figures)
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
