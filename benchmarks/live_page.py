"""How long the live page takes to answer, with 100 runs of 10 000 rounds.

    python benchmarks/live_page.py                          # a table
    python benchmarks/live_page.py --runs 10 --rounds 1000

Runs are written to a temporary folder (220 MB) without being trained. Processor seconds are those that do not depend
on what else the machine does.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from undrift.storage import files
from undrift.ui.catalogue import Catalogue
from undrift.ui.curves import curve_of

ALGORITHMS = ("fedavg", "scaffold", "fedprox", "fedhbm", "feddyn")
LIMIT = 1.0  # seconds, for an answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=10_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.runs):
            write_run(Path(folder), number, options.rounds)
        measure(Path(folder))


def measure(folder: Path) -> None:
    catalogue = Catalogue(folder)
    timed("list all runs, with their last figures", lambda: refreshed(catalogue, 0.0))
    timed("read all rows, in the background", lambda: refreshed(catalogue, math.inf), limit=None)
    drawn = timed("all curves at once", lambda: curves(catalogue, {}))
    timed("look again, nothing is new", lambda: refreshed(catalogue, math.inf))
    for run in catalogue.runs.values():
        add_row(run.home)
    timed("look again, every run has a new round", lambda: refreshed(catalogue, math.inf))
    timed("what is new of all curves", lambda: curves(catalogue, {each["id"]: each["stamp"] for each in drawn}))


def timed(name: str, work: Callable[[], Any], limit: float | None = LIMIT) -> Any:
    wall, processor = time.perf_counter(), time.process_time()
    result = work()
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    size = len(json.dumps(result, allow_nan=False))
    share = "" if limit is None else f"  {processor / limit:6.1%} of {limit:g} s"
    print(f"{name:40} {wall:7.3f} s  {processor:7.3f} processor s  {size / 1e3:8.1f} kB{share}")
    return result


def refreshed(catalogue: Catalogue, budget: float) -> list[dict[str, Any]]:
    before = catalogue.version
    catalogue.refresh(budget)
    found: list[dict[str, Any]] = catalogue.changes(before)["runs"]
    return found


def curves(catalogue: Catalogue, stamps: dict[str, str]) -> list[dict[str, Any]]:
    runs = catalogue.runs.values()
    return [{"id": run.id} | curve_of([run.history], "accuracy", stamps.get(run.id, "")) for run in runs]


def write_run(folder: Path, number: int, rounds: int) -> None:
    name, seed = ALGORITHMS[number // 5 % len(ALGORITHMS)], number % 5
    home = folder / f"{name}-{number // 25}" / f"seed-{seed}"
    (home / "checkpoints").mkdir(parents=True)
    (home / ".lock").touch()
    config = {
        "label": name,
        "algorithm": {"name": name, "options": {}},
        "model": "cnn",
        "data": {"name": "digits", "seed": seed},
        "options": {"rounds": rounds, "seed": seed, "lr": 0.1, "target": None},
    }
    files.write_json(home / "config.json", config)
    files.write_json(home / "environment.json", {})
    draw = random.Random(number)
    with (home / "rounds.jsonl").open("w") as file:
        file.writelines(
            row_text(n, 0.9 * (1 - math.exp(-5 * n / rounds)) + draw.gauss(0, 0.01)) for n in range(1, rounds + 1)
        )


def row_text(number: int, accuracy: float) -> str:
    row = {
        "round": number,
        "loss": 2.3 - 2 * accuracy,
        "accuracy": accuracy,
        "train_loss": 2.2 - 2.1 * accuracy,
        "bytes_down": 438592,
        "bytes_up": 438592,
        "participants": 8,
        "seconds": 0.2170041279,
        "diverged": False,
    }
    return json.dumps(row) + "\n"


def add_row(home: Path) -> None:
    path = home / "rounds.jsonl"
    number = path.read_bytes().count(b"\n") + 1
    with path.open("a") as file:
        file.write(row_text(number, 0.9))


if __name__ == "__main__":
    main()
