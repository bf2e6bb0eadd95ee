"""Run directories that nobody trained, with figures chosen by the test."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from undrift.storage import files

CONFIG: dict[str, Any] = {
    "label": "FedAvg",
    "algorithm": {"name": "fedavg", "options": {}},
    "model": "softmax",
    "data": {"name": "digits", "partition": None, "clients": None, "seed": 0, "test_share": 0.0, "normalise": True},
    "options": {"rounds": 10, "seed": 0, "lr": 0.1, "target": None},
}


def write_run(
    home: Path, accuracy: Sequence[float | None], *, label: str = "FedAvg", seed: int = 0, rounds: int = 10, **more: Any
) -> Path:
    """A run with these accuracies so far, of `rounds`."""
    (home / "checkpoints").mkdir(parents=True)
    config = CONFIG | {"label": label, "options": CONFIG["options"] | {"seed": seed, "rounds": rounds}} | more
    files.write_json(home / "config.json", config)
    files.write_json(home / "environment.json", {"torch": "2.9"})
    (home / ".lock").touch()
    append_rows(home, accuracy)
    return home


def append_rows(home: Path, accuracy: Sequence[float | None], *, diverged: bool = False) -> None:
    """Further rounds, of 150 bytes and half a second each; the last one may be where it diverged."""
    path = home / "rounds.jsonl"
    before = len(path.read_bytes().splitlines()) if path.exists() else 0
    numbers = range(before + 1, before + len(accuracy) + 1)
    last = numbers[-1] if numbers else 0
    lines = [row_text(n, value, diverged=diverged and n == last) for n, value in zip(numbers, accuracy, strict=True)]
    with path.open("ab") as file:
        file.write("".join(lines).encode())
        file.flush()
        os.fsync(file.fileno())


def row_text(number: int, accuracy: float | None, *, diverged: bool = False) -> str:
    row = {
        "round": number,
        "loss": 1 / number,
        "accuracy": accuracy,
        "train_loss": 2 / number,
        "bytes_down": 100,
        "bytes_up": 50,
        "participants": 10,
        "seconds": 0.5,
        "diverged": diverged,
    }
    return json.dumps(row) + "\n"
