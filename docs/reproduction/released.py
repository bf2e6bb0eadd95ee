"""FedHBM's Table 3 with images and with SCAFFOLD as its authors' public code (RickZack/GHBM) has them.

    python docs/reproduction/released.py FILE.csv [--images "batches, their scale"] [--algorithm "fedhbm(beta=1.0)"] \\
        [--weight-decay 0.0004] [--rounds 1000] [--seeds 1] [--device cuda]
    python docs/reproduction/released.py FILE.csv --images each \\
        --algorithm "examples/as_released.py:SummedSCAFFOLD(lr=0.0001)"

That code (`src/datasets/cifar.py`) crops and flips whole batches: all images of one are shifted and mirrored alike. It
divides by deviations of about 0.2, where those of CIFAR-10's pixels are about 0.25. The script trains with and without
both, and without any of it, 10 of 100 clients with one class each, and appends a row per evaluated round to FILE.csv;
the paper's grid for weight decay has 0.001, 0.0008 and 0.0004. What was measured is in `histories/released.csv.gz`.
CIFAR-10 must be there: `undrift data get cifar10`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor

import undrift as ud
from undrift.cli.own_code import use_algorithms
from undrift.core import random
from undrift.core.random import Key, Stream
from undrift.data.augment import PADDING

THEIR_SCALE = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
SETTINGS: dict[str, Any] = {  # Tables 7 and 8
    "lr": 0.01,
    "cohort": 10,
    "steps": 8,
    "batch_size": 64,
    "eval_every": 10,
}


def crop_flip_batches(x: Tensor, key: Key, step: int) -> Tensor:
    """A random crop and a random flip of a batch [B, C, H, W], the same for all its images."""
    drawn = random.uniform(key, Stream.AUGMENT, step, (3,))
    row, column = (drawn[:2] * (2 * PADDING + 1)).long()
    height, width = x.shape[-2:]
    rows, columns = row + torch.arange(height, device=x.device), column + torch.arange(width, device=x.device)
    cropped = F.pad(x, (PADDING,) * 4).index_select(-2, rows).index_select(-1, columns)
    return torch.where(drawn[2] < 0.5, cropped.flip(-1), cropped)


WEIGHT_DECAY = 0.001  # the paper's choice
IMAGES: dict[str, tuple[Any, bool]] = {  # augmentation, and whether the scale is theirs
    "as they are": (None, False),
    "each": ("crop-flip", False),
    "each, their scale": ("crop-flip", True),
    "batches": (crop_flip_batches, False),
    "batches, their scale": (crop_flip_batches, True),
}


def measure(images: str, algorithm: str, weight_decay: float, seed: int, rounds: int, device: str) -> pd.DataFrame:
    augment, their_scale = IMAGES[images]
    data = ud.data.load("cifar10", partition="dirichlet-client:0", clients=100, seed=seed)
    if their_scale:
        data.normalise = THEIR_SCALE
    run = ud.simulate(
        algorithm,
        "lenet-hsu",
        data,
        augment=augment,
        weight_decay=weight_decay,
        rounds=rounds,
        seed=seed,
        device=device,
        **SETTINGS,
    )
    found = run.history.dropna(subset="accuracy")[["round", "accuracy", "train_loss"]].round(6)
    return found.assign(images=images, algorithm=algorithm, weight_decay=weight_decay, seed=seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--images", choices=IMAGES, action="append")
    parser.add_argument("--algorithm", action="append")
    parser.add_argument("--weight-decay", type=float, default=WEIGHT_DECAY)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    for algorithm in map(str, map(use_algorithms, given.algorithm or ["fedhbm(beta=1.0)"])):
        for images in given.images or IMAGES:
            for seed in range(given.seeds):
                rows = measure(images, algorithm, given.weight_decay, seed, given.rounds, given.device)
                rows.to_csv(given.file, mode="a", index=False, header=not given.file.exists())


if __name__ == "__main__":
    main()
