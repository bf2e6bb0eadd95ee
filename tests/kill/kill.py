"""Kills processes of runs at random moments, resumes, and compares the end with that of a run nobody disturbed.

    make test-kill                 # a hundred kills, shared out among the kinds
    make test-kill KILLS=10        # about five minutes on two cores
    python tests/kill/kill.py --kills 10 --kinds driver --seed 1

A *kind* is whom it kills: `driver`, the process of `undrift run` or `undrift resume`, which is then resumed, or
`actor`, a process of Ray that trains clients, after which it goes on by itself. Moments are drawn from the seed: while
Ray starts, or a fraction of a round after some round. Where the end is not the same to the bit, it exits with 1 and
leaves the directories.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import torch

from undrift.reporting.record import TIMES
from undrift.storage import model_file
from undrift.storage.directory import RunDirectory

ROUNDS = 120
RUN = ["run", "-a", "scaffold", "-m", "mlp", "-d", "digits", "--rounds", str(ROUNDS), "--lr", "0.1", "--seed", "3"]
ON_RAY = ["--place", "ray", "--actors", "2", "--set", "run.engine=sequential"]
STARTING = 0.2  # share of kills before the first round of a process
PATIENCE = 600  # seconds until a process that does nothing is an error


class Case:
    """A run that is disturbed."""

    def __init__(self, home: Path, name: str) -> None:
        self.out, self.log = home / name, home / f"{name}.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = (
            ["resume", str(self.out)]
            if (self.out / "config.json").exists()
            else [*RUN, *ON_RAY, "--out", str(self.out)]
        )
        if command[0] == "run" and self.out.exists():  # killed before it had written its configuration
            shutil.rmtree(self.out)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "undrift", *command], stdout=log, stderr=subprocess.STDOUT
            )

    @property
    def rounds(self) -> int:
        """Rows that are written; after a kill, those after the checkpoint are written again."""
        with suppress(FileNotFoundError):
            return (self.out / "rounds.jsonl").read_bytes().count(b"\n")
        return 0

    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Or until the process has ended."""
        begun = time.monotonic()
        while self.running() and not condition():
            if time.monotonic() - begun > PATIENCE:
                raise SystemExit(f"nothing has happened for {PATIENCE} s; see {self.log}")
            time.sleep(0.005)

    def check_end(self) -> None:
        assert self.process is not None
        if self.process.wait() != 0:
            raise SystemExit(f"it ended with {self.process.returncode}; see {self.log}")


def kill_driver(case: Case, moment: random.Random) -> bool:
    """And wait until what it had started is gone."""
    assert case.process is not None
    with suppress(psutil.NoSuchProcess):
        others = psutil.Process(case.process.pid).children(recursive=True)
        case.process.kill()
        case.process.wait()
        psutil.wait_procs(others, timeout=PATIENCE)
        return True
    return False


def kill_actor(case: Case, moment: random.Random) -> bool:
    assert case.process is not None
    with suppress(psutil.NoSuchProcess):
        everyone = psutil.Process(case.process.pid).children(recursive=True)
        actors = [each for each in everyone if (each.cmdline() or [""])[0].startswith("ray::Clients")]
        if actors:
            os.kill(moment.choice(actors).pid, signal.SIGKILL)
            return True
    return False


KINDS: dict[str, Callable[[Case, random.Random], bool]] = {"driver": kill_driver, "actor": kill_actor}


def disturbed(case: Case, kinds: list[str], moment: random.Random) -> int:
    """Train to the end, with kills of these kinds, one after another; returns how many there were."""
    done = 0
    case.start()
    for kind in kinds:
        if moment.random() < STARTING:
            deadline = time.monotonic() + moment.uniform(0, 15)
            case.wait_until(lambda deadline=deadline: time.monotonic() > deadline)  # type: ignore[misc]
        else:
            target = case.rounds + moment.randrange(1, max(2, ROUNDS // len(kinds)))
            case.wait_until(lambda target=target: case.rounds >= target)  # type: ignore[misc]
            time.sleep(moment.uniform(0, 0.05))
        if not case.running():
            break
        done += KINDS[kind](case, moment)
        if not case.running():
            case.start()
    case.wait_until(lambda: False)
    if case.process is not None and case.process.returncode == -signal.SIGKILL:
        case.start()
        case.wait_until(lambda: False)
    case.check_end()
    return done


def difference(case: Case, reference: Case) -> str:
    """What is not the same to the bit; empty if all is."""
    mine, theirs = (model_file.of_directory(RunDirectory.open(each.out)) for each in (case, reference))
    if mine[1] != theirs[1]:
        return f"{mine[1]} rounds instead of {theirs[1]}"
    for name, value in theirs[0].items():
        if not torch.equal(value, mine[0][name]):
            return f"{name} differs by up to {(value - mine[0][name]).abs().max()}"
    rows, others = (
        [json.loads(line) for line in (each.out / "rounds.jsonl").read_text().splitlines()]
        for each in (case, reference)
    )
    for row, other in zip(rows, others, strict=True):
        for column in row.keys() - TIMES:
            if row[column] != other[column]:
                return f"{column} of round {row['round']} is {row[column]} instead of {other[column]}"
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--kinds", default=",".join(KINDS), help="out of: %(default)s")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--in-a-run", type=int, default=5, help="kills of one run at most")
    options = parser.parse_args()
    kinds = options.kinds.split(",")
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        parser.error(f"--kinds must be of {', '.join(KINDS)}, got {unknown[0]}")
    moment = random.Random(options.seed)
    home = Path(tempfile.mkdtemp(prefix="ud-"))
    os.environ["TMPDIR"] = str(home)  # where a Ray whose driver was killed leaves its logs
    reference = Case(home, "undisturbed")
    reference.start()
    reference.wait_until(lambda: False)
    reference.check_end()
    done, number = 0, 0
    while done < options.kills:
        number += 1
        case = Case(home, f"run-{number}")
        planned = [kinds[(done + place) % len(kinds)] for place in range(min(options.in_a_run, options.kills - done))]
        count = disturbed(case, planned, moment)
        done += count
        if wrong := difference(case, reference):
            raise SystemExit(f"run {number} with {count} kills ({', '.join(planned)}): {wrong}; see {case.log}")
        print(
            f"run {number}: the same to the bit after {count} kills ({', '.join(planned)}); {done} so far", flush=True
        )
    shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main()
