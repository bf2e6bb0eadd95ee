"""What a run remembers between rounds, in memory and as parts of a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from undrift.core import tree
from undrift.engines.work import States
from undrift.protocol import State
from undrift.simulation.remote import RemoteStates
from undrift.simulation.setup import Experiment
from undrift.storage.arena import Ids, Space
from undrift.storage.states import ClientStates


class RoundResult(NamedTuple):
    """What a round leaves behind; nothing is remembered until the caller keeps it."""

    ids: Ids
    server: State
    clients: States  # of the cohort
    ledger: State  # what the server remembers of the cohort, stacked [n, ...]
    bytes_down: int
    bytes_up: int
    train_loss: float
    diverged: Ids  # clients that made a number infinite or not a number
    diagnostics: list[float]  # in the order of their columns
    obstacle: str  # why rounds are not replayed or compiled, although the engine would
    failures: Mapping[str, int] = {}  # answers that were left out, by reason, and `attempts`


class Memory:
    """What a run remembers: of the server, of clients, and who has taken part."""

    def __init__(self, experiment: Experiment, home: Path | None) -> None:
        learner, method, population = experiment.learner, experiment.method, len(experiment.data)
        self.server: State = method.server(learner.parameters, learner.buffers)
        self.server |= experiment.observer.remembered(learner.parameters)
        self.space = Space(learner.device, home)
        self.own = ClientStates(method.client(learner.parameters, learner.buffers), population, self.space)
        self.remote: RemoteStates | None = None  # while clients are elsewhere, which then have what they remember
        self.ledger = ClientStates(method.ledger(learner.parameters), population, self.space)
        self.taken_part = np.zeros(population, dtype=np.int64)  # rounds, of every client
        self.heard = np.zeros(population, dtype=np.int64)  # the last round of every client that was kept; 0: none

    @property
    def states(self) -> ClientStates | RemoteStates:
        """What clients remember, wherever it is."""
        return self.own if self.remote is None else self.remote

    @property
    def clients(self) -> Ids:
        """Those that have taken part."""
        return np.flatnonzero(self.taken_part)

    @property
    def kept(self) -> dict[str, int]:
        """Bytes of clients' states and of the ledger, by the place they are kept in."""
        both = self.states.kept, self.ledger.kept
        return {place: sum(kept.get(place, 0) for kept in both) for place in both[0] | both[1]}

    @property
    def nbytes(self) -> int:
        """The size of a checkpoint."""
        return tree.nbytes(self.server) + sum(self.kept.values())

    def keep(self, result: RoundResult, round: int) -> None:
        self.server = result.server
        self.heard[result.ids] = round
        if self.remote is not None:
            self.remote.transport.keep(round, result.ids)
        for part, states in result.clients.parts():
            self.own.scatter(result.ids[part], states)
        self.ledger.scatter(result.ids, result.ledger)
        self.taken_part[result.ids] += 1

    # checkpoints

    def parts(self, *, with_heard: bool) -> Iterator[State]:
        """All of it, in parts that fit into memory."""
        nothing: State = {}
        blocks = zip_longest(self.states.blocks(), self.ledger.blocks(), fillvalue=nothing)
        clients, ledger = next(blocks, (nothing, nothing))
        taken_part = torch.from_numpy(np.stack([self.clients, self.taken_part[self.clients]], axis=1))
        first = {"server": self.server, "taken_part": taken_part, "clients": clients, "ledger": ledger}
        yield first | ({"heard": torch.from_numpy(self.heard)} if with_heard else {})
        for clients, ledger in blocks:
            yield {"clients": clients, "ledger": ledger}

    def restore(self, part: State) -> None:
        """A part of a checkpoint that fits."""
        # Copies are aligned as those of a run that never stopped, on which the last bit of a product may depend.
        copied = tree.map_nest(lambda v: v.to(self.space.device, copy=True), part)
        if "server" in copied:
            self.server = tree.ordered_like(copied["server"], self.server)
            who, rounds = part["taken_part"].numpy().T
            self.taken_part[who] = rounds
            if "heard" in part:
                self.heard[:] = part["heard"].numpy()
        for states, name in ((self.own, "clients"), (self.ledger, "ledger")):
            if name in copied:
                states.scatter(part[name]["ids"].numpy(), tree.ordered_like(copied[name]["states"], states.initial))

    def misfit(self, part: State, first: bool) -> str:
        """What of a part of a checkpoint the algorithm and the model do not have; empty if it fits."""
        if ("server" in part) != first or ("taken_part" in part) != first:
            return "the server's state is not where it should be"
        if first and (wrong := _difference(part["server"], self.server)):
            return f"{wrong} of the server's state"
        population = len(self.taken_part)
        if first and not _are_clients(part["taken_part"], population, columns=2):
            return "taken_part"
        if "heard" in part and part["heard"].shape != (population,):
            return "heard"
        for states, name in ((self.own, "clients"), (self.ledger, "ledger")):
            mine = part.get(name, {})
            if not mine:
                continue
            if not _are_clients(mine.get("ids"), population):
                return f"the ids of {name}"
            if wrong := _difference(mine.get("states", {}), tree.repeat(states.initial, len(mine["ids"]))):
                return f"{wrong} of the states of {name}"
        return ""


def _difference(nest: State, like: State) -> str:
    """The name of a tensor that is missing, superfluous, or of another shape or dtype."""
    found, wanted = tree.flatten(nest), tree.flatten(like)
    for name in {**wanted, **found}:
        if name not in found or name not in wanted:
            return name
        if (found[name].shape, found[name].dtype) != (wanted[name].shape, wanted[name].dtype):
            return name
    return ""


def _are_clients(ids: Any, population: int, columns: int = 0) -> bool:
    """Whether a tensor holds the numbers of different clients, in its first column if it has some."""
    shape = (columns,) if columns else ()
    if not isinstance(ids, torch.Tensor) or ids.dtype != torch.int64 or ids.shape[1:] != shape or not ids.ndim:
        return False
    numbers = (ids[:, 0] if columns else ids).tolist()
    return len(set(numbers)) == len(numbers) and all(0 <= number < population for number in numbers)
