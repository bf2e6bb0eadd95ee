"""What part of a round on Flower is undrift's own: everything but training, Flower and the start of its processes.

    python benchmarks/flower_share.py          # some minutes, most of them Flower's polls

Starts a federation on this machine (a SuperLink and two SuperNodes with TLS, as `make test-federation`) and trains
SCAFFOLD, whose clients keep a state on disk, with LeNet-5 and with a perceptron of a million parameters. Every client
has as many samples as one of workload W1 (600 images, batches of 32); they are random, as the time does not depend on
them. Processes note how long their parts take. Undrift's are: on the server all between a round's messages (asking,
records, checks, sums, history, checkpoint); on a client to import undrift, and of an answer all but training (to parse
the order, build model and algorithm, check messages, read and write the state). A client's are means over clients,
which work side by side, and all figures medians over rounds without the first. The aim is 5 % of a round. Nobody else
should use the machine: Flower's polls do not get longer on a busy one, and the share is then too large.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))
from deployments import Federation, ended, wait_for

CLIENTS = 2
SETTINGS = ("-a", "scaffold", "-m", "lenet5", "-d", "digits", "--partition", "iid", "--rounds", "1")

MODELS = {
    "LeNet-5": 'MODEL = "lenet5"',
    "1.0 M parameters": (
        "import torch\nfrom torch import nn\n\ntorch.manual_seed(0)\n"
        "MODEL = nn.Sequential(\n    nn.Flatten(), nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 192), nn.ReLU(), "
        "nn.Linear(192, 10)\n)"
    ),
}
TIMING = '''
import functools
import json
import time

NOTES = "{notes}"
SPENT = {}  # seconds that pass and processor seconds of every part, without those of parts inside
_inside = []


def now():
    return time.time(), time.process_time()


def timed(owner, name, part, whole=False):
    """Counts a function; as a `whole`, with all that it calls."""
    function = getattr(owner, name)

    @functools.wraps(function)
    def counted(*args, **options):
        if _inside and _inside[-1] is None:
            return function(*args, **options)
        begun = now()
        _inside.append(None if whole else [0.0, 0.0])
        try:
            return function(*args, **options)
        finally:
            inner = _inside.pop() or [0.0, 0.0]
            took = [after - before for before, after in zip(begun, now())]
            mine = SPENT.setdefault(part, [0.0, 0.0])
            for clock in (0, 1):
                mine[clock] += took[clock] - inner[clock]
                if _inside and _inside[-1] is not None:
                    _inside[-1][clock] += took[clock]

    setattr(owner, name, counted)


def note(**about):
    with open(NOTES, "a") as file:
        file.write(json.dumps(about | {"spent": SPENT}) + "\\n")
    SPENT.clear()
'''
DATA = """
import torch
from undrift.flower import Samples


def random_samples(count, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(count, 1, 28, 28, generator=generator)
    return Samples(x, torch.randint(10, (count,), generator=generator), classes=10)
"""
CLIENT = """
import psutil
from loop import timing

started = [psutil.Process().create_time(), 0.0]
begun = timing.now()
import torch
imported = timing.now()
from undrift.flower import client_app
ready = timing.now()
import undrift.flower.client as client
from loop.data import random_samples
from loop.model import MODEL
from undrift.transport import Site

timing.timed(client, "expected_messages", "undrift: answer", whole=True)
timing.timed(Site, "answer", "training")
timing.timed(client._Client, "exchange", "undrift: answer")
timing.timed(client._Client, "_samples", "samples")
answer = client._Client.exchange


def noted(self, message, context):
    reply = answer(self, message, context)
    parts = {"Flower and Python start": (started, begun), "import torch": (begun, imported)}
    parts["undrift: import"] = imported, ready
    for name, (before, after) in parts.items():
        timing.SPENT[name] = [b - a for a, b in zip(before, after)]
    timing.note(side="client", round=message.content["order"]["round"])
    return reply


client._Client.exchange = noted
app = client_app(lambda context: random_samples(600, int(context.node_config["partition-id"])), model=MODEL)
"""
SERVER = """
from loop import timing
from loop.data import random_samples
from loop.model import MODEL
from undrift.flower import server_app, transport
from undrift.simulation.evaluation import Evaluator
from undrift.simulation.remote_round import RemoteRounds
from undrift.simulation.run import Run

timing.timed(transport, "send", "waiting")
timing.timed(Evaluator, "__call__", "evaluation")
timing.timed(RemoteRounds, "run", "undrift: server")
timing.timed(Run, "keep", "undrift: server")
timing.timed(Run, "save_if_due", "undrift: checkpoint")
save = Run.save_if_due


def noted(self):
    save(self)
    timing.note(side="server", round=self.rounds)


Run.save_if_due = noted
app = server_app(lambda context: random_samples(1000, 99), model=MODEL)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=6)
    rounds = parser.parse_args().rounds
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))  # so that all that was started is ended
    console = Console()
    with tempfile.TemporaryDirectory(prefix="share-") as folder, ExitStack() as stack:
        federation = Federation(Path(folder), stack, CLIENTS)
        federation.environment.pop("PYTHONDONTWRITEBYTECODE", None)  # installed packages are compiled once
        federation.start()
        app = federation.new_app("loop", *SETTINGS)
        with (app / "pyproject.toml").open("a") as settings:
            settings.write("\n[tool.flwr.app.config.local]\nbatch_size = 32\nlr = 0.05\n")
        found = {name: trained(federation, app, MODELS[name], rounds) for name in MODELS}
    console.print(table(found))
    worst = max(share(parts, clock) for parts in found.values() for clock in (0, 1))
    console.print(f"at most {worst:.1%} of a round are undrift's; the aim is 5 %")


def trained(federation: Federation, app: Path, model: str, rounds: int) -> dict[str, list[float]]:
    """A run of an app with this model: seconds that pass and processor seconds of every part of a round."""
    number = len(list(federation.home.glob("notes-*")))
    notes, out = federation.home / f"notes-{number}", federation.home / "runs" / str(number)
    notes.touch()
    files = {"timing": TIMING.replace("{notes}", str(notes)), "data": DATA, "model": model}
    for name, text in (files | {"client_app": CLIENT, "server_app": SERVER}).items():
        (app / "loop" / f"{name}.py").write_text(text)
    with federation.running(app, f'federation.out="{out}" run.rounds={rounds}', f"run {number}") as process:
        wait_for(lambda: notes.read_text().count('"server"') == rounds or ended(process), "the last round")
    assert notes.read_text().count('"server"') == rounds, federation.log(f"run {number}")[-3000:]
    lines = [json.loads(line) for line in notes.read_text().splitlines()]
    seconds = [json.loads(line)["seconds"] for line in (out / "rounds.jsonl").read_text().splitlines()]
    each = [of_round([line for line in lines if line["round"] == n], seconds[n - 1]) for n in range(2, rounds + 1)]
    return {part: [statistics.median(row[part][clock] for row in each) for clock in (0, 1)] for part in each[0]}


def of_round(lines: list[dict[str, Any]], seconds: float) -> dict[str, list[float]]:
    clients = [line["spent"] for line in lines if line["side"] == "client"]
    (server,) = (line["spent"] for line in lines if line["side"] == "server")
    assert len(clients) == CLIENTS, f"{len(clients)} of {CLIENTS} clients answered"
    means = {part: [statistics.mean(spent[part][c] for spent in clients) for c in (0, 1)] for part in clients[0]}
    del means["samples"]  # the user's own function
    del server["waiting"]
    whole = seconds + server["undrift: checkpoint"][0]
    return {"a round": [whole, whole]} | means | server


def share(parts: dict[str, list[float]], clock: int) -> float:
    own = sum(spent[clock] for part, spent in parts.items() if part.startswith("undrift"))
    return own / parts["a round"][0]


def table(found: dict[str, dict[str, list[float]]]) -> Table:
    columns = Table("", title="Seconds of a round on Flower: that pass / of the processor")
    for name in found:
        columns.add_column(name, justify="right")
    for part in next(iter(found.values())):
        cells = [f"{parts[part][0]:.3f} / {parts[part][1]:.3f}" for parts in found.values()]
        if part == "a round":
            cells = [f"{parts[part][0]:.3f}" for parts in found.values()]
        columns.add_row(part, *cells)
    columns.add_row("undrift's share", *(f"{share(p, 0):.1%} / {share(p, 1):.1%}" for p in found.values()))
    return columns


if __name__ == "__main__":
    main()
