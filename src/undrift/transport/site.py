"""The clients' half of a round: the only one there is, in this process, on a Ray actor or on another machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from undrift.client.evaluate import Samples, Weights, totals
from undrift.core import tree
from undrift.engines import Engine, LocalTraining, Stacked, States, Work
from undrift.engines.work import NewStates
from undrift.protocol import Mail, Message, Phase, State
from undrift.storage.arena import Ids
from undrift.storage.states import ClientStates
from undrift.transport.order import Answers, LostStatesError, Order

_TOGETHER = 32  # clients whose own models are held at a time,
_BYTES = 1 << 30  # or fewer, if they took more than this


@dataclass(frozen=True)
class Trainees:
    """Clients with their samples, and what computes their answers."""

    phases: Sequence[Phase]  # of the algorithm, then those of diagnostics
    training_phases: int  # how many are the algorithm's
    personal: Phase | None  # brings each client's own model
    training: LocalTraining
    engine: Engine
    sizes: Ids  # samples of every client in the table
    extremes: tuple[int, int]  # samples of the smallest and of the largest client of the federation
    tests: Callable[[int], Samples | None]  # the test samples of a client
    positions: Callable[[Ids], Ids] = lambda ids: ids  # of clients in the table

    def work(self, order: Order) -> Work:
        """What the engine is given to let these clients, and no others, answer a phase."""
        device, positions = self.training.learner.device, self.positions(order.ids)
        shapes, turn = self.engine.arrange(self.training.schedule, self.sizes[positions], self.extremes)
        return Work(
            training=self.training,
            shapes=shapes,
            order=None if turn is None else torch.from_numpy(turn).to(device),
            positions=torch.from_numpy(positions).to(device),
            ids=torch.from_numpy(order.ids).to(device),
            shares=order.shares.to(device),
            seed=order.seed,
            round=order.round,
            lr=order.lr,
            participation=order.participation,
        )

    def personal_counts(self, order: Order, mail: Mail, states: States | None) -> Tensor:
        """How many test samples each client's own model answers rightly, of how many [n, 2]; of none without tests.

        It is made of what clients remember; without `states`, it is the one in the mail.
        """
        own: Message = {}
        if states is not None:
            assert self.personal is not None
            own = self.engine.run(self.personal, mail, states, self.work(order)).replies
        learner, found = self.training.learner, torch.zeros(len(order.ids), 2, dtype=torch.float64)
        for position, client in enumerate(order.ids.tolist()):
            samples = self.tests(client)
            if samples is not None and len(samples[1]):
                mine = mail.shared if states is None else tree.row(own, position)
                here = samples[0].to(learner.device), samples[1].to(learner.device)
                weights = Weights(mine["model"], mine["buffers"] or None)
                found[position] = totals(learner, weights, here, spread=self.engine.spread)["sums"][1:]
        return found

    def blocks(self, count: int) -> Iterator[slice]:
        """Parts of so many clients whose own models fit into memory together."""
        together = max(1, min(_TOGETHER, _BYTES // tree.nbytes(self.training.learner.parameters)))
        return (slice(start, start + together) for start in range(0, count, together))


class Draft(NamedTuple):
    """What clients remember after a phase of a round that the server may not have kept."""

    round: int
    phase: int
    ids: Ids
    before: States  # of the phase, in case that it is asked for again
    after: States


class Site:
    """Clients, what they remember in two versions (draft and kept), and an engine that answers for them."""

    def __init__(self, trainees: Trainees, states: ClientStates) -> None:
        self.trainees, self.states = trainees, states
        self.draft: Draft | None = None
        self._heard: dict[int, int] = {}  # the round after which a client's kept state is its own

    def answer(self, order: Order, mail: Mail) -> Answers:
        """Answer a phase for all clients of the order; the same order is answered alike, however often it comes."""
        self._settle(order)
        trainees, before = self.trainees, self._start(order)
        with torch.no_grad():
            replies, after, reports = trainees.engine.run(
                trainees.phases[order.phase], mail, before, trainees.work(order)
            )
        if order.phase < trainees.training_phases:
            self.draft = Draft(order.round, order.phase, order.ids, before, after)
        return Answers(replies, reports)

    def personal(self, order: Order, mail: Mail, own: bool) -> Tensor:
        """See `Transport.personal`."""
        with torch.no_grad():
            return self.trainees.personal_counts(order, mail, self._now(order) if own else None)

    def remembered(self, order: Order, part: str | None) -> State:
        """See `Transport.remembered`."""
        states = self._now(order).read(slice(None))
        return states if part is None else {part: states[part]}

    def keep(self, round: int, ids: Ids) -> None:
        """What these clients remember after the round is theirs from now on; other drafts are forgotten."""
        draft, self.draft = self.draft, None
        if draft is None or draft.round != round or not len(ids):
            return
        if np.array_equal(draft.ids, ids):
            for part, states in draft.after.parts():
                self.states.scatter(ids[part], states)
        else:
            rows = np.flatnonzero(np.isin(draft.ids, ids))
            self.states.scatter(draft.ids[rows], draft.after.read(torch.from_numpy(rows)))
        self._heard |= dict.fromkeys(ids.tolist(), round)

    def restore(self, blocks: Iterator[State], heard: Ids) -> None:
        for block in blocks:
            self.states.scatter(block["ids"].numpy(), block["states"])
        self.draft, self._heard = None, {client: int(heard[client]) for client in np.flatnonzero(heard).tolist()}

    def _settle(self, order: Order) -> None:
        """A draft becomes a client's own state once an order says that the server kept its round."""
        if self.draft is not None and self.draft.round != order.round:
            round, complete = self.draft.round, self.draft.phase == self.trainees.training_phases - 1
            self.keep(round, order.ids[order.heard == round] if complete else order.ids[:0])
        self._check(order.ids, order.heard)

    def _check(self, ids: Ids, heard: Ids) -> None:
        """Raise unless what these clients remember is what the server thinks they do."""
        if not tree.nbytes(self.states.initial):
            return
        for client, round in zip(ids.tolist(), heard.tolist(), strict=True):
            if round != (mine := self._heard.get(client, 0)):
                raise LostStatesError(
                    f"client {client}: the server has kept its answer of round {round}, "
                    f"but what it remembers is of {f'round {mine}' if mine else 'no round'}"
                )

    def _now(self, order: Order) -> States:
        """What clients remember after the rounds that the server has kept; no draft becomes their own by this."""
        draft = self.draft
        if draft is None or draft.phase < self.trainees.training_phases - 1:
            self._check(order.ids, order.heard)
            return self.states.of(order.ids)
        recent = np.isin(order.ids, draft.ids) & (order.heard == draft.round)
        self._check(order.ids[~recent], order.heard[~recent])
        rows = {client: row for row, client in enumerate(draft.ids.tolist())}
        known = [
            draft.after.read(rows[client]) if new else self.states.look(client)
            for client, new in zip(order.ids.tolist(), recent.tolist(), strict=True)
        ]
        return Stacked(tree.stack(known))

    def _start(self, order: Order) -> States:
        """What the clients remember before the phase."""
        if order.phase == 0 or order.phase >= self.trainees.training_phases:
            return self.states.of(order.ids)
        draft = self.draft
        if draft is None or draft.round != order.round or draft.phase not in (order.phase - 1, order.phase):
            raise LostStatesError(f"phase {order.phase} of round {order.round} came without the one before it")
        states = draft.before if draft.phase == order.phase else draft.after
        return states if np.array_equal(draft.ids, order.ids) else _Part(states, _positions(draft.ids, order.ids))


class _Part(NamedTuple):
    """Some of the clients of a cohort."""

    states: States
    positions: Ids

    def read(self, members: int | slice | Tensor) -> State:
        if isinstance(members, int):
            return self.states.read(int(self.positions[members]))
        chosen = self.positions[members.cpu().numpy() if isinstance(members, Tensor) else members]
        return self.states.read(torch.from_numpy(chosen))

    def parts(self) -> Iterator[tuple[slice, State]]:
        yield slice(None), self.read(slice(None))

    def successor(self, count: int) -> NewStates:
        return self.states.successor(count)


def _positions(ids: Ids, wanted: Ids) -> Ids:
    """Where the wanted clients are among `ids`; raises if one is not."""
    order = np.argsort(ids)
    found: Ids = order[np.searchsorted(ids, wanted, sorter=order).clip(max=len(ids) - 1)]
    if not np.array_equal(ids[found], wanted):
        missing = sorted(set(wanted.tolist()) - set(ids.tolist()))
        raise LostStatesError(f"clients {missing} have not answered the phase before")
    return found
