"""How the server's messages reach the clients of a cohort, and how their replies come back.

The server's half of a round (`round.py`) only sees `Channel`: messages go out, replies come back, and what clients keep
stays behind it. Here is the channel of a simulation, whose clients are computed by an engine of this process; clients
in other processes or on other machines are another channel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple, Protocol

from undrift.core import tree
from undrift.core.tree import Nest
from undrift.engines import Engine, States, Work
from undrift.protocol import Cohort, Mail, Message, Phase


class Answers(NamedTuple):
    """What a cohort sent back, stacked [n, ...] in the order in which its clients were asked."""

    replies: Message
    reports: Nest  # figures for the log and for diagnostics, which are not traffic


class Channel(Protocol):
    """Made anew for every round, of what the clients remember before it; `states` are what they keep after it."""

    # Whether `exchange` consists of tensor operations only, so that a round can be captured or compiled and replayed.
    replayable: ClassVar[bool]

    def __init__(self, engine: Engine, phases: Sequence[Phase], work: Work, states: States) -> None: ...

    @property
    def states(self) -> States: ...

    def exchange(self, phase: int, mails: Sequence[Mail], cohorts: Sequence[Cohort]) -> list[Answers]:
        """One phase of a round: the mail of every server to its own cohort, and what the cohorts answer.

        There is one server, except where runs that differ in seed or learning rate train together.
        """
        ...


class LocalChannel:
    """Clients of this process, computed by an engine."""

    replayable: ClassVar[bool] = True

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


# By the name that the option `place` takes.
CHANNELS: dict[str, type[Channel]] = {"local": LocalChannel}


def slices(runs: int, count: int) -> list[slice]:
    """Where the clients of each of several cohorts of `count` clients are among all of them."""
    return [slice(number * count, (number + 1) * count) for number in range(runs)]


def _joint(mails: Sequence[Mail], count: int) -> Mail:
    """What several servers send to `count` clients each, as one server's mail."""
    if len(mails) == 1:
        return mails[0]
    return Mail({}, tree.concat([tree.repeat(m.shared, count) | m.each for m in mails]))
