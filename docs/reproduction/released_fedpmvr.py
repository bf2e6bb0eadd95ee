"""FedPMVR's Table 1 with the models and settings of its first author's public code (Pranabiitp/FedPMVR).

    python docs/reproduction/released_fedpmvr.py FILE.csv [--data mnist] [--rounds 50] [--seed 0 --seed 1]

That code applies no correction (examples/as_released.py): what it computes is FedAvg with equal weights. With the
paper's settings that is the row "as released" of `undrift reproduce fedpmvr-table1-mnist`; but its settings are others,
too. C.1 has SGD at 0.01 with momentum 0.9, two epochs and batches of 32; the code has one epoch, batches of 16, and
Adam at 0.001 for CIFAR-10, SGD at 0.1 for LeNet, which has tanh, averages and six maps twice. The script trains so, ten
clients by Dirichlet(0.1), and appends a row per round to FILE.csv; what was measured (50 rounds, 30 of CIFAR-10, seeds
0 to 2, about six minutes each on one CPU core) is in `histories/released-fedpmvr.csv.gz`. In that code clients may
share samples; here they do not. Data must be there: `undrift data get mnist`, `fashion-mnist`, `cifar10`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import nn

import undrift as ud
from undrift import models

SETTINGS: dict[str, Any] = {"epochs": 1, "batch_size": 16, "weight_decay": 0.0}
LENET = SETTINGS | {"lr": 0.1, "momentum": 0.0}
CNN = SETTINGS | {"lr": 0.001, "optimizer": "adam"}
OF_DATA = {"mnist": ("lenet", LENET), "fashion-mnist": ("lenet", LENET), "cifar10": ("cnn5", CNN)}


def their_lenet() -> nn.Module:
    """Of 28×28 pixels; the layer of 120 units comes before the pictures are flattened, a convolution of one pixel."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 5),
        nn.Tanh(),
        nn.AvgPool2d(2),
        nn.Conv2d(6, 6, 5),
        nn.Tanh(),
        nn.AvgPool2d(2),
        nn.Conv2d(6, 120, 1),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(120 * 4 * 4, 84),
        nn.Tanh(),
        nn.Linear(84, 10),
    )


def model(name: str, seed: int) -> nn.Module:
    """With the initial weights of Keras: uniform by Glorot, biases of zero."""
    torch.manual_seed(seed)
    built = their_lenet() if name == "lenet" else models.build(name, (3, 32, 32), 10, seed)
    for part in built.modules():
        if isinstance(part, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(part.weight)
            if part.bias is not None:
                nn.init.zeros_(part.bias)
    return built


def measure(name: str, seed: int, rounds: int) -> pd.DataFrame:
    data = ud.data.load(name, partition="dirichlet:0.1", clients=10, seed=seed)
    data.normalise = None
    kind, settings = OF_DATA[name]
    run = ud.simulate(
        "fedavg",
        model(kind, seed),
        data,
        rounds=rounds,
        cohort=1.0,
        weighting="uniform",
        augment=None,
        eval_every=1,
        seed=seed,
        **settings,
    )
    return run.history[["round", "accuracy", "train_loss"]].round(6).assign(data=name, seed=seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--data", choices=OF_DATA, action="append")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, action="append")
    given = parser.parse_args()
    for seed in given.seed or [0]:
        for name in given.data or OF_DATA:
            rows = measure(name, seed, given.rounds)
            rows.to_csv(given.file, mode="a", index=False, header=not given.file.exists())


if __name__ == "__main__":
    main()
