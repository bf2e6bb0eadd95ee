"""A real federation on this machine, for `make test-federation`: a SuperLink and three SuperNodes, TLS, node keys.

Four algorithms are trained by it and compared with `ud.simulate` to the bit. A SuperNode is killed between rounds and
started again by its supervisor, a ServerApp is killed and continued, and who has no registered key or speaks plain text
is refused. Everything that is started is ended, also on failure and Ctrl-C; it takes some minutes, most of them waiting
for Flower's polls.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import psutil
import torch
from safetensors.torch import load_file

import undrift as ud

CLIENTS, ROUNDS = 3, 2
PARTITION = "dirichlet:0.5"
PATIENCE = 600.0  # seconds for anything; a busy machine is slow
BIN = Path(sys.executable).parent
_begun = time.monotonic()


def say(text: str) -> None:
    print(f"{time.monotonic() - _begun:6.0f} s  {text}", flush=True)


def main() -> None:
    signal.signal(signal.SIGTERM, _interrupted)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="federation-") as folder, ExitStack() as stack:
        home = Path(folder)
        federation = Federation(home, stack)
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


class Federation:
    """Processes and folders; all of them end with `stack`."""

    def __init__(self, home: Path, stack: ExitStack) -> None:
        self.home, self.stack = home, stack
        self.keys, self.app = home / "keys", home / "loop"
        self.port = free_port()
        self.environment = dict(os.environ) | {
            "FLWR_HOME": str(home / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",  # SuperNodes' own three seconds cannot be changed
            "OMP_NUM_THREADS": "1",
            "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}",
        }
        self.nodes: dict[int, Node] = {}

    def start(self) -> None:
        self.run("undrift", "flower", "keys", str(self.keys), "--nodes", str(CLIENTS + 1))
        settings = ["-a", "fedavg", "-m", "softmax", "-d", "digits", "--partition", PARTITION]
        self.run(
            "undrift", "flower", "new", str(self.app), *settings, "--clients", str(CLIENTS), "--rounds", str(ROUNDS)
        )
        config = (
            f'[superlink.federation]\naddress = "127.0.0.1:{self.port}"\nroot-certificates = "{self.keys}/ca.crt"\n'
        )
        (self.home / "flwr").mkdir()
        (self.home / "flwr" / "config.toml").write_text(config)
        secure = [f"--ssl-{kind}={self.keys / name}" for kind, name in CERTIFICATES.items()]
        link = ["flower-superlink", "--host=127.0.0.1", f"--port={self.port}", *secure, "--enable-supernode-auth"]
        self.link = self.stack.enter_context(self.process("superlink", *link, f"--database={self.home}/superlink.db"))
        wait_for(lambda: is_open(self.port), "the SuperLink")
        for number in range(CLIENTS):
            self.run("flwr", "supernode", "register", str(self.keys / "nodes" / f"{number}.pub"), "federation")
        for number in range(CLIENTS):
            self.nodes[number] = Node(self, number)
            self.stack.callback(self.nodes[number].end)
        wait_for(lambda: len(self.online()) == CLIENTS, "the SuperNodes")

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
        assert len(self.online()) == CLIENTS
        say(f"{name}: refused, exit code {process.returncode}")

    def train(self, algorithm: str, after_round_1: Callable[[], None] | None = None) -> None:
        """A run of the app, compared with a simulation. What happens after round 1 makes a second start necessary."""
        out = self.home / "runs" / algorithm
        self.run_app(algorithm, out, ROUNDS, after_round_1)
        if after_round_1 is not None:
            wait_for(lambda: len(self.online()) == CLIENTS, "all SuperNodes")
            self.run_app(algorithm, out, ROUNDS + 1)
        compare(algorithm, out)

    def run_app(self, algorithm: str, out: Path, rounds: int, after_round_1: Callable[[], None] | None = None) -> None:
        config = f'algorithm="{algorithm}" federation.out="{out}" run.rounds={rounds}'
        command = ["flwr", "run", str(self.app), "federation", "--run-config", config, "--stream"]
        last = out / "checkpoints" / f"{rounds:06d}"
        with self.process(f"run {algorithm}", *command) as process:
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
        for process in psutil.Process(self.link.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if any("flwr-serverapp" in word for word in process.cmdline()):
                    process.kill()
        say("the ServerApp was killed")

    def online(self) -> list[Any]:
        found = json.loads(self.run("flwr", "supernode", "list", "federation", "--format", "json"))
        return [node for node in found["nodes"] if node["status"] == "online"]

    def run(self, *command: str) -> str:
        """The output of a command that ends by itself."""
        done = subprocess.run(
            [str(BIN / command[0]), *command[1:]],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"
        return done.stdout

    @contextmanager
    def process(self, name: str, *command: str) -> Iterator[subprocess.Popen[bytes]]:
        """A process that ends with the block, with all that it has started."""
        with (self.home / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [str(BIN / command[0]), *command[1:]],
                env=self.environment,
                stdout=log,
                stderr=log,
                cwd=self.home,
                process_group=0,
            )
            try:
                yield process
            finally:
                end(process)

    def log(self, name: str) -> str:
        return (self.home / f"{name}.log").read_text("utf-8", errors="replace")


class Node:
    """A SuperNode under a supervisor, which starts it again whenever it ends."""

    def __init__(self, federation: Federation, number: int) -> None:
        keys = federation.keys
        self._command = [
            "flower-supernode",
            f"--superlink=127.0.0.1:{federation.port}",
            f"--root-certificates={keys}/ca.crt",
            f"--auth-supernode-private-key={keys}/nodes/{number}",
            f"--port={free_port()}",
            f'--node-config=partition-id={number} num-partitions={CLIENTS} state="{federation.home}/state-{number}"',
        ]
        self._name, self._federation = f"supernode {number}", federation
        self._ending = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._supervise)
        self._thread.start()

    def _supervise(self) -> None:
        while not self._ending.is_set():
            with self._federation.process(self._name, *self._command) as self._process:
                while self._process.poll() is None and not self._ending.wait(0.5):
                    pass
            self._ending.wait(5)

    def kill(self) -> None:
        if self._process is not None:
            end(self._process, signal.SIGKILL)

    def end(self) -> None:
        self._ending.set()
        self._thread.join()


CERTIFICATES: Mapping[str, str] = {"ca-certfile": "ca.crt", "certfile": "server.pem", "keyfile": "server.key"}


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


def ended(process: subprocess.Popen[bytes]) -> bool:
    return process.poll() is not None


def wait_for(happened: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < until, f"{what} did not come within {PATIENCE:g} s"
        time.sleep(0.3)


def end(process: subprocess.Popen[bytes], number: int = signal.SIGTERM) -> None:
    """End a process and all that it has started, by force if they do not listen; also if it has ended before them."""
    family = [each for each in psutil.process_iter() if group(each) == process.pid]
    for each in family:
        with suppress(psutil.NoSuchProcess):
            family += [child for child in each.children(recursive=True) if child not in family]
    for each in family:
        with suppress(psutil.NoSuchProcess):
            each.send_signal(number)
    _, left = psutil.wait_procs(family, timeout=10)
    for each in left:
        with suppress(psutil.NoSuchProcess):
            each.kill()
    process.wait()


def group(process: psutil.Process) -> int:
    try:
        return os.getpgid(process.pid)
    except ProcessLookupError:
        return 0


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


if __name__ == "__main__":
    main()
