"""Which node is which client: the census before round 1, and nodes that come later."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import NamedTuple

from undrift.core.extras import needs
from undrift.core.log import notice, warning
from undrift.flower.facts import Facts, difference
from undrift.flower.messages import CENSUS, send
from undrift.flower.order import CENSUS_ANSWER
from undrift.flower.settings import Federation
from undrift.flower.wire import WireError, numbers_from

with needs("flower"):
    from flwr.app import ConfigRecord, Message, RecordDict
    from flwr.serverapp import Grid

_LOOK = 0.5  # seconds between looks for new nodes


class Client(NamedTuple):
    """A client that fits."""

    node: int
    samples: int
    tests: int  # test samples of its own


class Census:
    """Asks nodes who they are, each until it answers; those that do not fit are named and left out."""

    def __init__(self, grid: Grid, federation: Federation, facts: Facts, options: str) -> None:
        self._grid, self._federation, self._facts, self._options = grid, federation, facts, options
        self._asked: set[int] = set()
        self.clients: dict[int, Client] = {}  # by their numbers

    def take(self) -> None:
        """Wait until all clients have come, or have had the time to."""
        federation = self._federation
        until = time.monotonic() + federation.wait
        while True:
            self.ask_new()
            if len(self.clients) == federation.clients or time.monotonic() >= until:
                break
            time.sleep(_LOOK)
        missing = sorted(set(range(federation.clients)) - self.clients.keys())
        if not self.clients:
            raise ValueError(f"none of the {federation.clients} clients has come within {federation.wait:g} s and fits")
        if missing:
            who = ", ".join(map(str, missing[:20])) + (" ..." if len(missing) > 20 else "")
            warning(
                f"{len(missing)} of {federation.clients} clients have not come or do not fit, and are left out: {who}"
            )
        notice(f"{len(self.clients)} clients with {sum(c.samples for c in self.clients.values())} samples")

    def ask_new(self) -> None:
        """Ask nodes that have not been asked yet."""
        nodes = sorted(self.online() - self._asked)
        record = ConfigRecord(
            {"facts": json.dumps(self._facts), "options": self._options, "clients": self._federation.clients}
        )
        messages = [
            Message(RecordDict({CENSUS: record}), node, CENSUS, ttl=self._federation.deadline) for node in nodes
        ]
        answered = send(self._grid, messages, self._federation.deadline)
        for position, problem in sorted(answered.problems.items()):
            warning(f"node {nodes[position]} is left out: {problem.text}")
        for position, content in sorted(answered.contents.items()):
            self._admit(nodes[position], content)
        lost = {nodes[position] for position, problem in answered.problems.items() if problem.lost}
        self._asked |= set(nodes) - lost

    def online(self) -> set[int]:
        return set(self._grid.get_node_ids())

    def _admit(self, node: int, content: RecordDict) -> None:
        try:
            told = numbers_from(content.get(CENSUS), CENSUS_ANSWER, f"node {node}")
            client, theirs = told["client"], dict(json.loads(told["facts"]))
        except (WireError, ValueError, TypeError) as error:
            warning(f"node {node} is left out: {error}")
            return
        misfit = difference(theirs, self._facts, "there", "here")
        if not 0 <= client < self._federation.clients:
            misfit = f"clients are numbered 0..{self._federation.clients - 1}"
        if told["samples"] < 1:
            misfit = "it has no samples"
        known = self.clients.get(client)
        if not misfit and known is not None and known.node in self.online():
            misfit = f"node {known.node} is client {client} already; give every node a partition-id of its own"
        if misfit:
            warning(f"client {client} (node {node}) is left out: {misfit}")
            return
        self.clients[client] = Client(node, told["samples"], told["tests"])


class Nodes:
    """The clients of a run, by their positions in its population, and the nodes where they are now."""

    def __init__(self, census: Census, numbers: Sequence[int], samples: Sequence[int]) -> None:
        self._census, self._numbers, self._samples = census, numbers, samples
        self._online = census.online()
        self._told: set[int] = set()

    def wait_for(self, positions: Sequence[int], enough: int, seconds: float) -> None:
        """Notice nodes that have gone or come, until so many of these clients are there, or for so long.

        A node that was started again without a key has another id.
        """
        until, told = time.monotonic() + seconds, False
        while True:
            self._census.ask_new()
            self._online = self._census.online()
            away = [self.name(position) for position in positions if self.of(position) is None]
            if len(positions) - len(away) >= enough or time.monotonic() >= until:
                return
            if not told:
                told = True
                notice(f"waiting up to {seconds:g} s for {', '.join(away[:20])}{' ...' if len(away) > 20 else ''}")
            time.sleep(_LOOK)

    def number(self, position: int) -> int:
        return self._numbers[position]

    def name(self, position: int) -> str:
        return f"client {self._numbers[position]}"

    def of(self, position: int) -> int | None:
        """The node of a client; None while it is away, or has other samples than when the run began."""
        client = self._census.clients.get(self._numbers[position])
        if client is None or client.node not in self._online:
            return None
        if client.samples != self._samples[position]:
            if position not in self._told:
                self._told.add(position)
                before = f"it had {self._samples[position]} samples when the run began, and now {client.samples}"
                warning(f"{self.name(position)} is left out: {before}")
            return None
        return client.node
