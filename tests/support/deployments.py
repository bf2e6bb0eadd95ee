"""A real federation on this machine: a SuperLink and supervised SuperNodes, with TLS and node keys.

Everything that is started is ended with the block, also on failure and Ctrl-C. Waiting is for events, with a patience
that only a federation which does nothing at all exhausts.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path

import psutil

PATIENCE = 900.0  # seconds for anything; a busy machine is slow
BIN = Path(sys.executable).parent
CERTIFICATES: Mapping[str, str] = {"ca-certfile": "ca.crt", "certfile": "server.pem", "keyfile": "server.key"}


class Federation:
    """Processes and folders; all of them end with `stack`. One more key is made than there are clients."""

    def __init__(self, home: Path, stack: ExitStack, clients: int) -> None:
        self.home, self.stack, self.clients = home, stack, clients
        self.keys = home / "keys"
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
        self.link = Supervised(self, "superlink", self._link_command(), pause=1)
        self.nodes = {
            number: Supervised(self, f"supernode {number}", self._node_command(number), pause=5)
            for number in range(clients)
        }

    def start(self) -> None:
        """Until all nodes are connected."""
        self.stack.callback(lambda: kill(self.processes()))
        self.run("undrift", "flower", "keys", str(self.keys), "--nodes", str(self.clients + 1))
        certificate = f'root-certificates = "{self.keys}/ca.crt"'
        config = f'[superlink.federation]\naddress = "127.0.0.1:{self.port}"\n{certificate}\n'
        (self.home / "flwr").mkdir()
        (self.home / "flwr" / "config.toml").write_text(config)
        self.link.start()
        self.wait_for_link()
        for number in range(self.clients):
            self.run("flwr", "supernode", "register", str(self.keys / "nodes" / f"{number}.pub"), "federation")
        for node in self.nodes.values():
            node.start()
        wait_for(lambda: self.online() == self.clients, "the SuperNodes")

    def _link_command(self) -> list[str]:
        secure = [f"--ssl-{kind}={self.keys / name}" for kind, name in CERTIFICATES.items()]
        link = ["flower-superlink", "--host=127.0.0.1", f"--port={self.port}", *secure, "--enable-supernode-auth"]
        return [*link, f"--database={self.home}/superlink.db"]

    def _node_command(self, number: int) -> list[str]:
        state = f'state="{self.home}/state-{number}"'
        return [
            "flower-supernode",
            f"--superlink=127.0.0.1:{self.port}",
            f"--root-certificates={self.keys}/ca.crt",
            f"--auth-supernode-private-key={self.keys}/nodes/{number}",
            f"--port={free_port()}",
            f"--node-config=partition-id={number} num-partitions={self.clients} {state}",
        ]

    def new_app(self, name: str, *settings: str) -> Path:
        self.run("undrift", "flower", "new", str(self.home / name), *settings, "--clients", str(self.clients))
        return self.home / name

    def running(self, app: Path, config: str, log: str) -> AbstractContextManager[subprocess.Popen[bytes]]:
        """`flwr run`, which shows the lines of the ServerApp until its end."""
        return self.process(log, "flwr", "run", str(app), "federation", "--run-config", config, "--stream")

    def wait_for_link(self) -> None:
        wait_for(lambda: is_open(self.port), "the SuperLink")

    def processes(self, name: str = "") -> list[psutil.Process]:
        """All processes of this federation, or those of a command; also orphans of one that was killed."""
        return [each for each in psutil.process_iter() if self._is_ours(each) and name in _command(each)]

    def _is_ours(self, process: psutil.Process) -> bool:
        with suppress(psutil.Error):
            return process.environ().get("FLWR_HOME") == self.environment["FLWR_HOME"]
        return False

    def online(self) -> int:
        """How many SuperNodes are connected."""
        found = json.loads(self.run("flwr", "supernode", "list", "federation", "--format", "json"))
        return sum(node["status"] == "online" for node in found["nodes"])

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
        """A process that ends with the block, with all that it has started; its lines go to a file."""
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


class Supervised:
    """A process under a supervisor, which starts it again whenever it ends, after a pause of some seconds."""

    def __init__(self, federation: Federation, name: str, command: Sequence[str], pause: float) -> None:
        self.name, self._federation, self._command, self._pause = name, federation, command, pause
        self._ending = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._supervise, name=name)

    def start(self) -> None:
        self._thread.start()
        self._federation.stack.callback(self.end)

    def _supervise(self) -> None:
        while not self._ending.is_set():
            with self._federation.process(self.name, *self._command) as self._process:
                while self._process.poll() is None and not self._ending.wait(0.1):
                    pass
            self._ending.wait(self._pause)

    @property
    def pid(self) -> int:
        assert self._process is not None, "it has not been started"
        return self._process.pid

    def kill(self, *, alone: bool = False) -> bool:
        """As `kill -9`, with all that it has started, or `alone`; whether it was there."""
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(self.pid)
            victims = [process, *([] if alone else process.children(recursive=True))]
            if process.status() != psutil.STATUS_ZOMBIE:
                kill(victims)
                return True
        return False

    def end(self) -> None:
        self._ending.set()
        self._thread.join()


def kill(processes: Sequence[psutil.Process]) -> None:
    """And wait until they are gone, or only their entries are left."""
    for each in processes:
        with suppress(psutil.NoSuchProcess):
            each.kill()
    wait_for(lambda: not any(map(_lives, processes)), "the end of killed processes", pause=0.02)


def _lives(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process and all that it has started, by force if they do not listen; also if it has ended before them."""
    family = [each for each in psutil.process_iter() if _group(each) == process.pid]
    for each in family:
        with suppress(psutil.NoSuchProcess):
            family += [child for child in each.children(recursive=True) if child not in family]
    for each in family:
        with suppress(psutil.NoSuchProcess):
            each.terminate()
    _, left = psutil.wait_procs(family, timeout=10)
    kill(left)
    process.wait()


def _group(process: psutil.Process) -> int:
    try:
        return os.getpgid(process.pid)
    except ProcessLookupError:
        return 0


def _command(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return " ".join(process.cmdline()[:2])  # the interpreter and the script
    return ""


def ended(process: subprocess.Popen[bytes]) -> bool:
    return process.poll() is not None


def wait_for(happened: Callable[[], bool], what: str, pause: float = 0.3) -> None:
    until = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < until, f"{what} did not come within {PATIENCE:g} s"
        time.sleep(pause)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
