"""How the server's messages reach the clients of a cohort, and how their replies come back.

The server's half of a round (`round.py`) only sees `Channel`: messages go out, replies come back, and what clients keep
stays behind it. `LocalChannel` is that of a simulation, whose clients are computed by an engine of this process, as a
part of the captured or compiled round. `TransportChannel` leads to clients elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from undrift.core import tree
from undrift.engines import Engine, States, Work
from undrift.protocol import Cohort, Mail, Phase
from undrift.simulation.remote import Elsewhere
from undrift.transport import Answers, Order


class Channel(Protocol):
    """Made anew for every round, of what the clients remember before it; `states` are what they keep after it."""

    @property
    def states(self) -> States: ...

    def exchange(self, phase: int, mails: Sequence[Mail], cohorts: Sequence[Cohort]) -> list[Answers]:
        """One phase of a round: the mail of every server to its own cohort, and what the cohorts answer.

        There is one server, except where runs that differ in seed or learning rate train together.
        """
        ...


class LocalChannel:
    """Clients of this process, computed by an engine."""

    def __init__(self, engine: Engine, phases: Sequence[Phase], work: Work, states: States) -> None:
        self.states = states
        self._engine, self._phases, self._work = engine, phases, work

    def exchange(self, phase: int, mails: Sequence[Mail], cohorts: Sequence[Cohort]) -> list[Answers]:
        mail = _joint(mails, len(cohorts[0].ids))
        replies, self.states, reports = self._engine.run(self._phases[phase], mail, self.states, self._work)
        if len(cohorts) == 1:
            return [Answers(replies, reports)]
        parts = slices(len(cohorts), len(cohorts[0].ids))
        return [Answers(tree.row(replies, part), tree.row(reports, part)) for part in parts]


class TransportChannel(NamedTuple):
    """The clients of one run, elsewhere. `order` is what they are told in its first phase."""

    states: Elsewhere
    order: Order

    def exchange(self, phase: int, mails: Sequence[Mail], cohorts: Sequence[Cohort]) -> list[Answers]:
        (mail,), (cohort,) = mails, cohorts
        order = self.order.of(self.states.positions(cohort.ids))
        return [self.states.remote.transport.exchange(order._replace(phase=phase), mail)]


def slices(runs: int, count: int) -> list[slice]:
    """Where the clients of each of several cohorts of `count` clients are among all of them."""
    return [slice(number * count, (number + 1) * count) for number in range(runs)]


def _joint(mails: Sequence[Mail], count: int) -> Mail:
    """What several servers send to `count` clients each, as one server's mail."""
    if len(mails) == 1:
        return mails[0]
    return Mail({}, tree.concat([tree.repeat(m.shared, count) | m.each for m in mails]))
