"""Runs experiments in parts, an algorithm in a case each, on several processes, and adds them to the stored results.

    python docs/reproduction/campaign.py "fedhbm-table3 --only non-IID --seeds 3" fedpmvr-table1-fmnist \\
        [--device cuda] [--engine NAME] [--workers 8] [--minutes 20] [--results docs/reproduction/results] [--runs DIR]

An argument has the options `--only`, `--seeds` and `--rounds` of `undrift reproduce`. Parts that are stored already, of
this experiment or with the same settings of another, are not repeated, unless `--seeds` or `--rounds` asks for more
than are stored; those that were interrupted continue where DIR is the same. After `--minutes`, runs end with the next
round that is evaluated, and are stored with the rounds they have; no further part is begun. What is stored is not
replaced by fewer rounds or seeds, but more rounds of some seeds are added to it, and more seeds with as many rounds.
`make reproduction-report` then writes the pages.

On a GPU, the first rounds of a deep model are slow where clients take many steps, as rounds are run step by step before
they are captured: VGG-19 with batch normalisation and ten clients of CIFAR-10 had not ended its second round after nine
minutes, beside six other processes. `--engine sequential` captures nothing.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import shlex
import signal
import sys
import time
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from undrift.reproduce import stored
from undrift.reproduce.common_runs import take_over
from undrift.reproduce.experiment import find
from undrift.reproduce.plan import plan
from undrift.reproduce.results import Results
from undrift.reproduce.run import run
from undrift.simulation.progress import hidden
from undrift.storage.comparison import unique_folder

RESULTS = Path(__file__).parent / "results"


class Part(NamedTuple):
    name: str
    case: str
    label: str
    seeds: int | None
    rounds: int | None
    place: dict[str, str]  # `run.device` and `run.engine`
    runs: Path
    until: float  # seconds since the epoch

    @property
    def home(self) -> Path:
        return self.runs / self.name / unique_folder(f"{self.case} {self.label}")


def measure(part: Part) -> tuple[Part, float, str]:
    """Runs a part; the seconds that it took, and what went wrong."""
    begun = time.time()
    if begun > part.until:
        return part, 0.0, "not begun"

    def over(row: dict[str, Any], _: object) -> bool:
        return time.time() > part.until and math.isfinite(row["accuracy"])

    try:
        whole = plan(find(part.name), seeds=part.seeds, rounds=part.rounds, only=f"{part.label},{part.case}")
        with hidden():
            results = run(replace(whole, changed={**whole.changed, **part.place}), part.home, [over])
        stored.write(results, part.home)
        error = ""
    except Exception:
        error = traceback.format_exc()
    return part, time.time() - begun, error


def parts(line: str, place: dict[str, str], runs: Path, results: Path, until: float) -> list[Part]:
    """Of an experiment, as it is given, those that are not stored."""
    parser = argparse.ArgumentParser(prog="an experiment")
    parser.add_argument("name")
    parser.add_argument("--only", default="")
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--rounds", type=int)
    given = parser.parse_args(shlex.split(line))
    experiment = find(find(given.name).folder)
    name = experiment.name
    chosen = plan(experiment, only=given.only)
    for case, label in take_over(experiment, results):
        print(f"{name} {case} {label}: from another experiment", flush=True)
    home = results / name
    there = stored.read(home) if stored.exists(home) else None
    return [
        Part(name, case, label, given.seeds, given.rounds, place, runs, until)
        for case in chosen.cases
        for label in chosen.algorithms
        if there is None or not _has(there, case, label, given.seeds or 1, given.rounds or 1)
    ]


def _has(results: Results, case: str, label: str, seeds: int, rounds: int) -> bool:
    """Whether so many seeds have so many rounds; where a run failed, more rounds would not help."""
    lengths: list[float] = [math.inf if run.failed else run.history["round"].max() for run in results.runs(case, label)]
    return sum(length >= rounds for length in lengths) >= seeds


def keep(part: Part, home: Path) -> str:
    """Adds what was measured to the stored results, or says why not."""
    new = stored.read_files(part.home)
    if stored.exists(home):
        there = stored.read_files(home)
        new = stored.with_longer_runs(new, there)
        of = part.case, part.label
        before, now = stored.results_of(there), stored.results_of(new)
        seeds, rounds = len(before.runs(*of)), before.rounds_of(part.case).get(part.label, 0)
        if not _has(now, *of, max(seeds, len(now.runs(*of))), rounds):
            return f"not stored: {seeds} seeds of {rounds} rounds are there already"
    stored.add(new, home)
    return ""


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # which ends the processes, too
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiments", nargs="+")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--runs", type=Path, default=Path("reproduction"))
    given = parser.parse_args()
    until = time.time() + 60 * given.minutes
    place = {"run.device": given.device, "run.engine": given.engine}
    once: dict[tuple[str, ...], Part] = {}
    for line in given.experiments:
        for part in parts(line, place, given.runs.absolute(), given.results, until):
            once.setdefault((part.name, part.case, part.label), part)  # of one that is given twice the first
    todo = list(once.values())
    # A process for every part: an error of the device would make all later ones of its process fail.
    with multiprocessing.get_context("spawn").Pool(given.workers, maxtasksperchild=1) as pool:
        for done, (part, seconds, error) in enumerate(pool.imap_unordered(measure, todo), start=1):
            problem = error or keep(part, given.results / part.name)
            print(f"{done}/{len(todo)} {part.name} {part.case} {part.label}: {seconds:.0f} s {problem}", flush=True)


if __name__ == "__main__":
    main()
