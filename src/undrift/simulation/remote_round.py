"""One round whose clients are elsewhere: the server's half, which sees messages only.

With the same answers it gives the same bits as the fused round of `round.py`. Clients that do not answer a phase are
left out of it and of the rest of the round; weights are those of the clients that answered.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from undrift.core import tree
from undrift.core.parts import Part, mark
from undrift.core.wide import wide
from undrift.methods.private import Privacy
from undrift.protocol import Cohort, Phase, State
from undrift.reporting.wording import count_text
from undrift.simulation import cohort as participation
from undrift.simulation.channel import TransportChannel
from undrift.simulation.memory import Memory, RoundResult
from undrift.simulation.remote import Elsewhere, RemoteStates
from undrift.simulation.round import all_finite, first_to_explode, largest_of_clients, sent
from undrift.simulation.setup import Experiment
from undrift.simulation.watch import Watch
from undrift.storage.states import Ids
from undrift.transport import Answers, LostStatesError, Order, TooFewAnswersError, admit

_ATTEMPTS = 5  # at a round that lost what clients remembered between its phases


class _Heard(NamedTuple):
    """What the server knows after a phase."""

    server: State
    cohort: Cohort  # those who answered so far
    losses: Tensor | None  # [n] of them, where they say
    largest: list[Tensor]  # of every phase, the largest number that each sent [n]


class _Tally:
    """What is counted over all attempts at a round, whatever becomes of them."""

    def __init__(self) -> None:
        self.down = self.up = 0
        self.failures: Counter[str] = Counter()


class RemoteRounds:
    """Computes the rounds of a run through a transport."""

    def __init__(self, experiment: Experiment) -> None:
        self._experiment = experiment

    def run(self, memory: Memory, round: int) -> RoundResult:
        """A whole round; pure: nothing is remembered until the caller keeps it."""
        options, tally = self._experiment.options, _Tally()
        for attempt in range(1, options.attempts + 1):
            with torch.no_grad():
                found = self._repeated(memory, round, attempt, tally)
            if found is not None:
                return found
        raise TooFewAnswersError(
            f"round {round}: fewer clients answered than min_answers={options.min_answers}, "
            f"in {count_text(options.attempts, 'attempt')}{_counted(tally.failures)}"
        )

    def _repeated(self, memory: Memory, round: int, attempt: int, tally: _Tally) -> RoundResult | None:
        """The round, computed again from its start where what clients remembered between its phases is gone.

        What was sent in vain does not count: the history is that of a round which lost nothing.
        """
        before = copy.deepcopy(vars(tally))
        for _ in range(_ATTEMPTS - 1):
            with suppress(LostStatesError):
                return self._attempt(memory, round, attempt, tally)
            vars(tally).update(copy.deepcopy(before))
        return self._attempt(memory, round, attempt, tally)

    def _attempt(self, memory: Memory, round: int, attempt: int, tally: _Tally) -> RoundResult | None:
        """The round with one cohort; None if too few of it answer."""
        experiment, remote = self._experiment, memory.states
        assert isinstance(remote, RemoteStates)
        with mark(Part.COHORT):
            ids = participation.draw(experiment, round, attempt)
            rows = memory.ledger.gather(ids)
            server = memory.server | ({"ledger": rows} if rows else {})
            cohort = self._described(ids, round)
        order = self._order(remote, ids, cohort, round)._replace(attempt=attempt)
        channel = TransportChannel(Elsewhere(remote, ids), order)
        watch = Watch([experiment], [server], [cohort]) if experiment.observer.diagnostics else None
        begun = _Heard(server, cohort, None, [])
        heard = begun if watch is None else self._probed(watch, channel, begun, tally)
        for number, phase in enumerate(experiment.method.phases):
            if heard is None:
                break
            heard = self._phase(channel, number, phase, heard, watch, tally)
        if heard is None:
            return None
        figures, server = None, heard.server
        if watch is not None:
            figures, (server,) = watch.end([server])
        result = self._result(heard, server, Elsewhere(remote, ids), figures)
        failures = {**tally.failures, "asked": len(ids), "attempts": attempt}
        return result._replace(bytes_down=tally.down, bytes_up=tally.up, failures=failures)

    def _probed(self, watch: Watch, channel: TransportChannel, heard: _Heard, tally: _Tally) -> _Heard | None:
        """The round with the clients that answer what diagnostics ask before it; None if these are too few."""
        (server,) = watch.begin(channel)
        heard = heard._replace(server=server)
        for answers in watch.probed:
            tally.failures.update(answers.failures)
            if answers.present is not None and len(answers.present) < len(heard.cohort.ids):
                if len(answers.present) < self._experiment.options.min_answers:
                    return None
                heard = self._left(heard, answers.present)
                watch.leave(slice(None), heard.cohort)
        return heard

    def _phase(
        self,
        channel: TransportChannel,
        number: int,
        phase: Phase,
        heard: _Heard,
        watch: Watch | None,
        tally: _Tally,
    ) -> _Heard | None:
        """One exchange; None if too few clients answer."""
        server, cohort, losses, largest = heard
        with mark(Part.COHORT):
            mail = phase.ask(server, cohort)
        with mark(Part.TRAINING):
            (answers,) = channel.exchange(number, [mail], [cohort])
        # Real clients forget messages between the phases of a round: a process of Flower's sees one.
        tally.down += sent(mail, len(cohort.ids), again=self._experiment.deployed)
        tally.up += tree.nbytes(answers.replies)
        with mark(Part.AGGREGATION):
            count = len(cohort.ids) if answers.present is None else len(answers.present)
            if self._experiment.answers_may_fail and count:
                answers = self._admitted(answers, count)
            tally.failures.update(answers.failures)
            if answers.present is not None and len(answers.present) < len(cohort.ids):
                if len(answers.present) < self._experiment.options.min_answers:
                    return None
                server, cohort, losses, largest = self._left(heard, answers.present)
                if watch is not None:
                    watch.leave(torch.from_numpy(answers.present).to(cohort.ids.device), cohort)
            server = phase.hear(server, answers.replies, cohort)
            count = len(cohort.ids)
            largest = [*largest, largest_of_clients({"replies": answers.replies, "reports": answers.reports}, count)]
        if watch is not None:
            (answers,) = watch.keep_reports([answers])
        return _Heard(server, cohort, answers.reports.get("loss", losses), largest)

    def _admitted(self, answers: Answers, count: int) -> Answers:
        """What the server goes on with, of clients whose numbers it does not trust."""
        privacy = self._experiment.objects.privacy
        if not isinstance(privacy, Privacy):
            return admit(answers, count)
        clipped = privacy.clipped_by_server(answers.replies["update"])
        return answers._replace(replies=answers.replies | {"update": clipped})

    def _left(self, heard: _Heard, present: Ids) -> _Heard:
        """The round without the clients that did not answer."""
        server, cohort = heard.server, heard.cohort
        rows = torch.from_numpy(present)
        if "ledger" in server:
            server = server | {"ledger": tree.row(server["ledger"], rows.to(cohort.ids.device))}
        losses = None if heard.losses is None else heard.losses[rows.to(heard.losses.device)]
        left = self._described(cohort.ids.cpu().numpy()[present], int(cohort.round))
        return _Heard(server, left, losses, [each[rows] for each in heard.largest])

    def _described(self, ids: Ids, round: int) -> Cohort:
        described = participation.describe(self._experiment, ids, round)
        return participation.on_device(described, self._experiment.learner.device)

    def _order(self, remote: RemoteStates, ids: Ids, cohort: Cohort, round: int) -> Order:
        options = self._experiment.options
        return Order(
            round=round,
            phase=0,
            seed=options.seed,
            lr=options.rate(round),
            participation=len(ids) / len(self._experiment.data),
            ids=ids,
            shares=cohort.shares.cpu(),
            heard=remote.heard[ids],
        )

    def _result(self, heard: _Heard, server: State, clients: Elsewhere, figures: Tensor | None) -> RoundResult:
        cohort, losses = heard.cohort, heard.losses
        largest = torch.stack(heard.largest)  # [phases, n]
        ids, wrong = cohort.ids.cpu().numpy(), np.zeros(len(cohort.ids), dtype=bool)
        if not bool(all_finite(server)) or not bool(largest.isfinite().all()):
            wrong = first_to_explode(largest).numpy()
        return RoundResult(
            ids=ids,
            server={k: v for k, v in server.items() if k != "ledger"},
            clients=clients,
            ledger=server.get("ledger", {}),
            bytes_down=0,
            bytes_up=0,
            train_loss=math.nan if losses is None else float(wide((losses * cohort.weights).sum())),
            diverged=ids[wrong],
            diagnostics=[] if figures is None else wide(figures)[0].tolist(),
            obstacle="",
        )


def _counted(failures: Mapping[str, int]) -> str:
    return "".join(f", {name.replace('_', ' ')}: {count}" for name, count in failures.items() if count)
