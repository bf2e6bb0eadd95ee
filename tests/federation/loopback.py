"""A real federation on this machine, for `make test-federation`: a SuperLink and three SuperNodes, TLS, node keys.

Four algorithms are trained by it and compared with `ud.simulate` to the bit. A SuperNode is killed between rounds and
started again by its supervisor, a ServerApp is killed and continued, and who has no registered key or speaks plain text
is refused. Everything that is started is ended, also on failure and Ctrl-C; it takes some minutes, most of them waiting
for Flower's polls.
"""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import torch
from safetensors.torch import load_file

import undrift as ud
from deployments import Federation, ended, free_port, kill, wait_for

CLIENTS, ROUNDS = 3, 2
PARTITION = "dirichlet:0.5"
SETTINGS = ["-a", "fedavg", "-m", "softmax", "-d", "digits", "--partition", PARTITION, "--rounds", str(ROUNDS)]
_begun = time.monotonic()


def say(text: str) -> None:
    print(f"{time.monotonic() - _begun:6.0f} s  {text}", flush=True)


def main() -> None:
    signal.signal(signal.SIGTERM, _interrupted)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="federation-") as folder, ExitStack() as stack:
        federation = Checked(Path(folder), stack, CLIENTS)
        federation.start()
        say(f"SuperLink and {CLIENTS} SuperNodes are there")
        refusals = federation.strangers()
        federation.train("fedavg")
        federation.train("scaffold", after_round_1=lambda: federation.restart_node(1))
        federation.train("mime", after_round_1=federation.kill_server_app)
        federation.train("fedhbm")
        for refused in refusals:
            refused()
    say("all is well")


def _interrupted(number: int, frame: Any) -> NoReturn:
    raise KeyboardInterrupt


class Checked(Federation):
    """A federation whose runs are compared with simulations."""

    def start(self) -> None:
        super().start()
        self.app = self.new_app("loop", *SETTINGS)

    def strangers(self) -> list[Callable[[], None]]:
        """Nodes with a key that is not registered, and with plain text; what checks later that they were refused."""
        unknown = [
            f"--root-certificates={self.keys}/ca.crt",
            f"--auth-supernode-private-key={self.keys}/nodes/{CLIENTS}",
        ]
        checks: list[Callable[[], None]] = []
        for name, options in (("unknown key", unknown), ("plain text", ["--insecure", "--max-wait-time=10"])):
            command = ["flower-supernode", f"--superlink=127.0.0.1:{self.port}", f"--port={free_port()}", *options]
            process = self.stack.enter_context(self.process(name, *command, "--max-retries=2"))
            checks.append(partial(self._refused, name, process))
        with suppress(OSError, http.client.HTTPException):
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
            connection.request("GET", "/")
            raise AssertionError(f"plain text is answered with {connection.getresponse().status}")
        return checks

    def _refused(self, name: str, process: subprocess.Popen[bytes]) -> None:
        wait_for(lambda: ended(process), f"the end of the node with {name}")
        assert process.returncode != 0, f"the node with {name} ended with 0: {self.log(name)}"
        assert "SuperNode ID" not in self.log(name), f"the node with {name} was admitted"
        assert self.online() == CLIENTS
        say(f"{name}: refused, exit code {process.returncode}")

    def train(self, algorithm: str, after_round_1: Callable[[], None] | None = None) -> None:
        """A run of the app, compared with a simulation. What happens after round 1 makes a second start necessary."""
        out = self.home / "runs" / algorithm
        self.run_app(algorithm, out, ROUNDS, after_round_1)
        if after_round_1 is not None:
            wait_for(lambda: self.online() == CLIENTS, "all SuperNodes")
            self.run_app(algorithm, out, ROUNDS + 1)
        compare(algorithm, out)

    def run_app(self, algorithm: str, out: Path, rounds: int, after_round_1: Callable[[], None] | None = None) -> None:
        config = f'algorithm="{algorithm}" federation.out="{out}" run.rounds={rounds}'
        last = out / "checkpoints" / f"{rounds:06d}"
        with self.running(self.app, config, f"run {algorithm}") as process:
            if after_round_1 is not None:
                wait_for(lambda: rows(out) >= 1 or ended(process), f"round 1 of {algorithm}")
                after_round_1()
            wait_for(lambda: last.exists() or ended(process), f"round {rounds} of {algorithm}")
        assert last.exists() or after_round_1 is not None, f"{algorithm} ended too early{self.tail(algorithm)}"

    def tail(self, algorithm: str) -> str:
        return "".join(f"\n--- {name}\n{self.log(name)[-3000:]}" for name in (f"run {algorithm}", "superlink"))

    def restart_node(self, number: int) -> None:
        self.nodes[number].kill()
        say(f"SuperNode {number} was killed; its supervisor starts it again")

    def kill_server_app(self) -> None:
        kill(self.processes("flwr-serverapp"))
        say("the ServerApp was killed")


def compare(algorithm: str, out: Path) -> None:
    """The run in the directory with a simulation, in which client 1 is away as often: model and history, to the bit."""
    lines = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    everybody = list(range(CLIENTS))
    cohorts = [everybody if line["participants"] == CLIENTS else [0, 2] for line in lines]
    assert cohorts[0] == cohorts[-1] == everybody, "client 1 has not come back"
    data = ud.data.load("digits", PARTITION, CLIENTS)
    same = ud.simulate(algorithm, "softmax", data, rounds=len(lines), cohort=cohorts, engine="sequential")
    state = load_file(out / "checkpoints" / f"{len(lines):06d}" / "state.safetensors")
    for name, value in same.parameters.items():
        assert torch.equal(state[f"server/model/{name}"], value), f"{algorithm}: {name} differs"
    for line, row in zip(lines, same.rows, strict=True):
        for column in ("loss", "accuracy", "train_loss", "bytes_up", "participants"):
            assert line[column] == row[column], f"{algorithm}: {column} of round {row['round']} differs"
    seconds, clients = [round(line["seconds"], 1) for line in lines], [len(cohort) for cohort in cohorts]
    say(f"{algorithm}: as in a simulation, to the bit; clients {clients}, seconds {seconds}")


def rows(out: Path) -> int:
    log = out / "rounds.jsonl"
    return len(log.read_text().splitlines()) if log.exists() else 0


if __name__ == "__main__":
    main()
