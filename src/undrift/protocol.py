"""The contract: all that engines, Ray and Flower see of an algorithm.

A round is, for every phase, ``mail = ask(server)``, ``answer`` on every client of the cohort and
``server = hear(replies)``. Messages travel, states stay; nothing travels outside a message, so traffic is measured,
never estimated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from torch import Tensor

from undrift.client.task import Task
from undrift.core.tree import Message as Message
from undrift.core.tree import Nest, Tree
from undrift.core.tree import State as State


class Cohort(NamedTuple):
    """The clients of one round, as the server knows them."""

    ids: Tensor  # [n]
    weights: Tensor  # [n], sum to one: how their replies are averaged
    shares: Tensor  # [n], N p_i: their part of the objective in units of a uniform one
    population: int  # N
    round: int | Tensor  # 1, 2, ...; a tensor where the round is captured, to be replayed as another one


class Mail(NamedTuple):
    """What the server sends: the same to all, and to each client its own row."""

    shared: Message
    each: Message = {}  # noqa: RUF012  # stacked [n, ...]; never written to
    known: tuple[str, ...] = ()  # names of what clients had in an earlier exchange of the round: traffic on Flower only


class Answer(NamedTuple):
    reply: Message
    state: State
    report: Nest  # figures for the log and for diagnostics; the algorithm never sees them, so they are not traffic


class Phase(Protocol):
    """One exchange between the server and the cohort. Pure; `answer` runs under `vmap`: tensor operations only.

    During a round ``server["ledger"]`` holds what the server remembers of the cohort's clients, stacked [n, ...], for
    methods that have a ledger; the rows of other clients are out of reach, so that a round costs what its cohort costs.
    """

    def ask(self, server: State, cohort: Cohort) -> Mail: ...
    def answer(self, inbox: Message, client: State, task: Task) -> Answer: ...
    def hear(self, server: State, replies: Message, cohort: Cohort) -> State: ...  # replies are stacked [n, ...]


class Method(Protocol):
    """An algorithm made ready for one experiment: what is remembered, and the phases of a round.

    Parts of the model that clients keep for themselves are in their states under ``private`` and ``buffers``; the
    server's model is evaluated with the mean of them. `personal` is a phase whose replies hold each client's own
    ``model`` and ``buffers``; it runs for evaluation only, and counts neither as a round nor as traffic.
    """

    @property
    def phases(self) -> Sequence[Phase]: ...
    @property
    def personal(self) -> Phase | None: ...  # None: all clients use the server's model
    def server(self, model: Tree, buffers: Tree) -> State: ...
    def client(self, model: Tree, buffers: Tree) -> State: ...  # of a client that has not taken part yet
    def ledger(self, model: Tree) -> State: ...  # what the server remembers of such a client
    def models(self, server: State) -> list[Tree]: ...  # parameters; the first is *the* model
    def presented(self, server: State) -> Tree: ...  # the parameters that evaluation uses
    def buffers(self, server: State) -> Tree: ...
