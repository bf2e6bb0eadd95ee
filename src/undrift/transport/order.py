"""The contract between the server's half of a round and clients elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple, Protocol

from torch import Tensor

from undrift.core.tree import Nest
from undrift.protocol import Mail, Message, State
from undrift.storage.arena import Ids


class Order(NamedTuple):
    """What clients are told besides a message: plain numbers, an entry per client where they differ."""

    round: int
    phase: int  # of the algorithm's; those after them are for diagnostics, and nothing is kept of them
    seed: int
    lr: float
    participation: float  # |S| / N
    ids: Ids
    shares: Tensor  # [n], N p_i
    heard: Ids  # [n], the last round of each client that the server has kept; 0: none
    attempt: int = 1  # at this round; another has other clients

    def of(self, positions: Ids) -> Order:
        """The part of the clients at these positions."""
        return self._replace(ids=self.ids[positions], shares=self.shares[positions], heard=self.heard[positions])


class Answers(NamedTuple):
    """What a cohort sent back, stacked [n, ...] in the order in which its clients were asked."""

    replies: Message
    reports: Nest  # figures for the log and for diagnostics, which are not traffic
    present: Ids | None = None  # positions in the cohort of the clients that answered; None: all of them
    failures: Mapping[str, int] = {}  # what became of the others, by their columns of the history


class LostStatesError(ConnectionError):
    """What clients remembered between two phases is gone; the round can be computed again from its start."""


class TooFewAnswersError(ConnectionError):
    """A round that too few clients answered, in every attempt."""


class ClientsLostError(ConnectionError):
    """Clients cannot be reached any more, and what they remembered is gone; a run can be resumed from a checkpoint."""


class Transport(Protocol):
    """Brings messages to clients and their replies back.

    What clients remember after a round is a draft until the server says that it kept the round, by `keep` or by the
    `heard` of a later order: a client whose answer was lost goes on from where the server last heard it.
    """

    @property
    def durable(self) -> bool:
        """Whether clients store what they remember themselves.

        Then checkpoints hold nothing of it, one is written after every round, before an order says `heard`, and answers
        are not trusted (`admission.py`).
        """
        ...

    def exchange(self, order: Order, mail: Mail) -> Answers: ...

    def personal(self, order: Order, mail: Mail, own: bool = True) -> tuple[Ids, Tensor]:
        """Who answered, and how many test samples the model that each would use answers rightly, of how many [n, 2].

        That is a client's own, made of the mail, or the `model` with `buffers` in the mail as it is.
        """
        ...

    def remembered(self, order: Order, part: str | None) -> tuple[Ids, State]:
        """Who answered, and what each remembers, stacked: all of it, or a part."""
        ...

    def keep(self, round: int, ids: Ids) -> None:
        """The server has kept this round, with the answers of these clients."""
        ...

    def restore(self, blocks: Iterator[State], heard: Ids) -> None:
        """Clients continue with these states, `ids` and `states` a block; `heard` is the last round of every client."""
        ...

    def close(self) -> None: ...
