"""Kills processes of runs at random moments, resumes, and compares the end with that of a run nobody disturbed.

    make test-kill                            # a hundred kills, shared out among the kinds
    make test-kill KILLS=10                   # some minutes on two cores
    make test-kill KILLS=10 KINDS=superlink SEED=1

A *kind* is whom it kills. On Ray: `driver`, the process of `undrift run` or `undrift resume`, which is then resumed, or
`actor`, which trains clients, after which the run goes on by itself. On Flower, in a federation with TLS and node keys
on this machine: `supernode`, which its supervisor starts again; `serverapp`, after which `flwr run` continues the run;
or `superlink`, which its supervisor starts again and whose ServerApp ends with it, so that `flwr run` follows as well.
A round of that federation needs the answers of all clients, so that answers, and with them the model, are the same.

Moments are drawn from the seed: while processes start, or a fraction of a round after some round. Where the end is not
the same to the bit, it exits with 1 and leaves the directories. No process outlives it.
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
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import psutil
import torch

from deployments import Federation, end, ended, kill, wait_for
from undrift.reporting.record import FAILURE_COLUMNS, TIMES
from undrift.storage import model_file
from undrift.storage.directory import RunDirectory

SETTINGS = ["-a", "scaffold", "-d", "digits", "--seed", "3"]
ON_RAY = [*SETTINGS, "-m", "mlp", "--lr", "0.1", "--rounds", "120", "--set", "run.engine=sequential"]
CLIENTS = 2  # on Flower, where a client is three processes
ON_FLOWER = [*SETTINGS, "-m", "softmax", "--partition", "dirichlet:0.5", "--clients", str(CLIENTS), "--rounds", "7"]
NEEDED = {"min_answers": CLIENTS, "attempts": 1000}  # so that the round of a killed client is repeated
DEADLINE = 300  # seconds until a client is asked again whose answer was lost with its SuperNode


class Case(ABC):
    """A run that is disturbed, or the undisturbed one."""

    starting = 0.2  # share of kills that do not wait for a round
    seconds = 15.0  # from a start, within which most processes have started
    look = 0.005  # seconds between looks at what happens

    def __init__(self, home: Path, name: str, rounds: int) -> None:
        self.out, self.log, self.total = home / name, home / f"{name}.log", rounds
        self.stack = ExitStack()  # ends its processes
        self.process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def start(self) -> None:
        """Begin the run, or continue it."""

    @property
    def rounds(self) -> int:
        """Rows that are written; after a kill, those after the checkpoint are written again."""
        with suppress(FileNotFoundError):
            return (self.out / "rounds.jsonl").read_bytes().count(b"\n")
        return 0

    def running(self) -> bool:
        return self.process is not None and not ended(self.process)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Or until the process has ended."""
        wait_for(lambda: not self.running() or condition(), f"anything ({self.log})", pause=self.look)

    def wait_for_a_moment(self, moment: random.Random, kills: int) -> None:
        if moment.random() < self.starting:
            until = time.monotonic() + moment.uniform(0, self.seconds)
            self.wait_until(lambda: time.monotonic() > until)
            return
        target, rows = self.rounds + moment.randrange(1, max(2, self.total // kills)), self.rounds
        begun = time.monotonic()
        self.wait_until(lambda: self.rounds >= target)
        length = (time.monotonic() - begun) / max(1, self.rounds - rows)
        until = time.monotonic() + moment.uniform(0, min(length, self.seconds))
        self.wait_until(lambda: time.monotonic() > until)

    def check_end(self) -> None:
        self.wait_until(lambda: False)
        if self.failed() or self.rounds != self.total:
            raise SystemExit(f"it ended after {self.rounds} of {self.total} rounds; see {self.log}")

    def failed(self) -> bool:
        return self.process is not None and self.process.returncode != 0


class Undrift(Case):
    """A run of `undrift run`, continued by `undrift resume`."""

    def __init__(self, home: Path, name: str, settings: list[str], *further: str) -> None:
        super().__init__(home, name, int(settings[settings.index("--rounds") + 1]))
        self._command = ["run", *settings, *further, "--out", str(self.out)]

    def start(self) -> None:
        command = ["resume", str(self.out)] if (self.out / "config.json").exists() else self._command
        if command[0] == "run" and self.out.exists():  # killed before it had written its configuration
            shutil.rmtree(self.out)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "undrift", *command], stdout=log, stderr=log, process_group=0
            )
        self.stack.callback(end, self.process)

    def kill_driver(self, moment: random.Random) -> bool:
        """With its Ray, which would end by itself after a minute."""
        assert self.process is not None
        with suppress(psutil.NoSuchProcess):
            driver = psutil.Process(self.process.pid)
            kill([driver, *driver.children(recursive=True)])
            self.process.wait()
            return True
        return False

    def kill_actor(self, moment: random.Random) -> bool:
        assert self.process is not None
        with suppress(psutil.NoSuchProcess):
            everyone = psutil.Process(self.process.pid).children(recursive=True)
            actors = [each for each in everyone if (each.cmdline() or [""])[0].startswith("ray::Clients")]
            if actors:
                os.kill(moment.choice(actors).pid, signal.SIGKILL)
                return True
        return False


class OnFlower(Case):
    """A run of `flwr run`, which also continues it."""

    starting, seconds, look = 0.4, 25.0, 0.1

    def __init__(self, federation: Federation, app: Path, name: str, rounds: int) -> None:
        super().__init__(federation.home, name, rounds)
        self._federation, self._app = federation, app

    def start(self) -> None:
        self._federation.wait_for_link()
        wait_for(self._submitted, "a SuperLink that takes the run")

    def _submitted(self) -> bool:
        """Whether the SuperLink has taken the run; `flwr run` gives up soon where it is busy."""
        self.stack.close()
        before = self._submissions()
        running = self._federation.running(self._app, f'federation.out="{self.out}"', self.out.name)
        self.process = process = self.stack.enter_context(running)
        wait_for(lambda: ended(process) or self._submissions() > before, "an answer of the SuperLink")
        return self._submissions() > before

    def _submissions(self) -> int:
        return self.log.read_bytes().count(b"Successfully started run") if self.log.exists() else 0

    def _server_apps(self) -> list[psutil.Process]:
        return self._federation.processes("flwr-serverapp")

    def running(self) -> bool:
        """Also while nobody looks at its lines."""
        return super().running() or bool(self._server_apps())

    def failed(self) -> bool:
        return False  # `flwr run` does not tell; its rounds do

    def kill_supernode(self, moment: random.Random) -> bool:
        """One of them, with its ClientApp or without, which then ends by itself."""
        return moment.choice(list(self._federation.nodes.values())).kill(alone=moment.random() < 0.5)

    def kill_serverapp(self, moment: random.Random) -> bool:
        self.wait_until(lambda: bool(self._server_apps()))
        found = self._server_apps()
        kill(found)
        self.stack.close()  # `flwr run` would wait until the SuperLink notices
        return bool(found)

    def kill_superlink(self, moment: random.Random) -> bool:
        """With its ServerApp or without, which then ends by itself."""
        done = self._federation.link.kill(alone=moment.random() < 0.5)
        self.stack.close()
        wait_for(lambda: not self._server_apps(), "the end of the ServerApp with its SuperLink")
        return done


class Kind(NamedTuple):
    kill: Callable[[Any, random.Random], bool]  # whether there was somebody to kill
    share: int  # of all kills; those on Flower take longer


PLACES: dict[str, dict[str, Kind]] = {
    "ray": {"driver": Kind(Undrift.kill_driver, 3), "actor": Kind(Undrift.kill_actor, 3)},
    "flower": {
        "serverapp": Kind(OnFlower.kill_serverapp, 2),
        "supernode": Kind(OnFlower.kill_supernode, 1),
        "superlink": Kind(OnFlower.kill_superlink, 1),
    },
}
KINDS = {name: kind for kinds in PLACES.values() for name, kind in kinds.items()}
NewCase = Callable[[str], Case]


@contextmanager
def on_ray(home: Path) -> Iterator[tuple[Case, NewCase]]:
    """The undisturbed run, and what makes others."""

    def new(name: str) -> Case:
        return Undrift(home, name, ON_RAY, "--place", "ray", "--actors", "2")

    yield new("undisturbed-ray"), new


@contextmanager
def on_flower(home: Path) -> Iterator[tuple[Case, NewCase]]:
    """One federation for all runs; the undisturbed one is a simulation, which has the same numbers."""
    needed = [word for key, value in NEEDED.items() for word in ("--set", f"run.{key}={value}")]
    with ExitStack() as stack:
        (home / "federation").mkdir()
        federation = Federation(home / "federation", stack, CLIENTS)
        federation.start()
        app = federation.new_app("killed", *ON_FLOWER, *needed)
        settings, section = app / "pyproject.toml", "[tool.flwr.app.config.federation]\n"
        settings.write_text(settings.read_text().replace(section, f"{section}deadline = {DEADLINE}\n"))
        alike = Undrift(home, "undisturbed-flower", ON_FLOWER, "--set", "run.engine=sequential")
        yield alike, lambda name: OnFlower(federation, app, name, alike.total)


def disturbed(case: Case, planned: list[str], moment: random.Random) -> list[str]:
    """Train to the end, with kills of these kinds, one after another; returns those that there were."""
    done = []
    case.start()
    for kind in planned:
        case.wait_for_a_moment(moment, len(planned))
        if not case.running():
            break
        if KINDS[kind].kill(case, moment):
            done.append(kind)
        if not case.running():
            case.start()
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
    repeated = {"bytes_up", "bytes_down", *FAILURE_COLUMNS} if FAILURE_COLUMNS.keys() & rows[0].keys() else set()
    for row, other in zip(rows, others, strict=True):
        for column in row.keys() - TIMES - repeated:
            if row[column] != other[column]:
                return f"{column} of round {row['round']} is {row[column]} instead of {other[column]}"
    return ""


def shared_out(kills: int, kinds: list[str], moment: random.Random) -> list[str]:
    """So many kinds, in any order."""
    cycle = [kind for kind in kinds for _ in range(KINDS[kind].share)]
    found = [cycle[number % len(cycle)] for number in range(kills)]
    moment.shuffle(found)
    return found


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
    signal.signal(signal.SIGTERM, _interrupted)
    moment = random.Random(options.seed)
    planned = shared_out(options.kills, kinds, moment)
    home = Path(tempfile.mkdtemp(prefix="ud-"))
    os.environ["TMPDIR"] = str(home)  # where a Ray whose driver was killed leaves its logs
    begun, done = time.monotonic(), 0
    for place, opened in {"ray": on_ray, "flower": on_flower}.items():
        left = [kind for kind in planned if kind in PLACES[place]]
        if not left:
            continue
        with opened(home) as (reference, new):
            finish(reference, [], moment)
            for number in range(1, 2 * len(left) + 1):  # a run may end before it was killed
                case = new(f"{place}-{number}")
                killed = finish(case, left[: options.in_a_run], moment)
                if wrong := difference(case, reference):
                    raise SystemExit(f"{place} {number}, after kills ({', '.join(killed)}): {wrong}; see {case.log}")
                for kind in killed:
                    left.remove(kind)
                done += len(killed)
                so_far = f"{done} kills so far, {(time.monotonic() - begun) / 60:.0f} minutes"
                print(
                    f"{place} {number}: the same to the bit after kills of {', '.join(killed) or 'nobody'}; {so_far}",
                    flush=True,
                )
                if not left:
                    break
    shutil.rmtree(home, ignore_errors=True)


def finish(case: Case, planned: list[str], moment: random.Random) -> list[str]:
    with case.stack:
        return disturbed(case, planned, moment)


def _interrupted(number: int, frame: Any) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
