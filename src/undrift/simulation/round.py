"""One round: sample a cohort, let every phase be asked, answered and heard, and count what travelled.

Runs that differ only in their seed or their learning rate can play their rounds together: their cohorts are one larger
cohort to the engine, while every server asks and hears its own clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from undrift.core import random, tree
from undrift.core.parts import Part, mark
from undrift.core.tree import Nest
from undrift.data.batches import Shape, Table
from undrift.engines import Batched
from undrift.engines.compiled import Compiler
from undrift.engines.cuda_graph import Replayer
from undrift.engines.work import Arrangement
from undrift.protocol import Cohort, Mail, Message, State
from undrift.simulation.prepare import Experiment, cohort_size, make_work
from undrift.storage.states import ClientStates, Ids


class Memory(NamedTuple):
    """What a run remembers between rounds."""

    server: State
    states: ClientStates
    ledger: ClientStates


class Played(NamedTuple):
    """What a round leaves behind; nothing is remembered until the caller keeps it."""

    ids: Ids
    server: State
    clients: State  # of the cohort, stacked [n, ...]
    ledger: State  # what the server remembers of the cohort, stacked [n, ...]
    bytes_down: int
    bytes_up: int
    train_loss: float
    diverged: Ids  # clients that made a number infinite or not a number
    obstacle: str  # why rounds are not replayed or compiled, although the engine would


class _Entry(NamedTuple):
    """What the host decides about a round, for all runs together."""

    ids: list[Ids]
    arrangement: Arrangement
    whole: Tensor  # [5, n] whole numbers: clients, their places in the table, the order of training, round and seed
    real: Tensor  # [3, n]: weights, shares, learning rates

    @property
    def ordered(self) -> bool:
        """Whether clients are trained in another order than that of the cohort."""
        return self.arrangement.order is not None


class _Exchanged(NamedTuple):
    servers: list[State]
    clients: State
    losses: Tensor  # [n]
    heard: list[Message]
    traffic: list[tuple[int, int]]  # bytes down and up, of every run


class Stage:
    """Where a run, or several that differ in seed and learning rate only, play their rounds."""

    def __init__(self, experiments: Sequence[Experiment]) -> None:
        self._experiments = tuple(experiments)
        first = self._first = experiments[0]
        self._table, self._starts = _joined(experiments)
        self._extremes = _extremes(experiments)
        self._replayer = _replayer(first)
        self._ahead: tuple[int, _Entry] | None = None
        # What differs between runs, or between rounds that share their code, comes as a tensor.
        self._seeds = len(experiments) > 1 or first.engine.compiled
        decays = self._replayer is not None and first.options.lr_decay != 1
        self._rates = len({e.options.lr for e in experiments}) > 1 or decays or first.engine.compiled

    def play(self, memories: Sequence[Memory], round: int) -> list[Played]:
        """A whole round of every run; pure: what is given stays as it is."""
        number, entry = self._ahead or (0, None)
        with mark(Part.COHORT):
            if entry is None or number != round:
                entry = self._enter(round)
            given, shapes, ordered = self._given(entry, memories), entry.arrangement.shapes, entry.ordered
        if self._replayer is None:
            found, traffic = self._tensors(self._exchange(given, shapes, ordered, round))
        else:
            with mark(Part.COMPILED if self._first.engine.compiled else Part.REPLAY):
                found, traffic = self._replayer(
                    (shapes, ordered),
                    lambda tensors: self._tensors(self._exchange(tensors, shapes, ordered, tensors["whole"][3, 0])),
                    given,
                )
        if round < self._first.options.rounds:
            with mark(Part.COHORT):
                self._ahead = round + 1, self._enter(round + 1)  # while the device is busy
        return self._finished(entry, given, found, traffic, round)

    def _enter(self, round: int) -> _Entry:
        ids = [draw_cohort(e, round) for e in self._experiments]
        places = np.concatenate([part + start for part, start in zip(ids, self._starts, strict=True)])
        cohorts = [_cohort(e, part, round) for e, part in zip(self._experiments, ids, strict=True)]
        sizes = np.concatenate([e.data.sizes[part] for e, part in zip(self._experiments, ids, strict=True)])
        arrangement = self._first.engine.arrange(self._first.schedule, sizes, self._extremes)
        order = np.arange(len(places)) if arrangement.order is None else arrangement.order
        rates = [np.full(len(part), e.rate(round)) for e, part in zip(self._experiments, ids, strict=True)]
        seeds = [np.full_like(part, e.options.seed) for e, part in zip(self._experiments, ids, strict=True)]
        whole = np.stack([np.concatenate(ids), places, order, np.full_like(order, round), np.concatenate(seeds)])
        real = [torch.cat([getattr(c, name) for c in cohorts]) for name in ("weights", "shares")]
        real.append(torch.from_numpy(np.concatenate(rates)).to(real[0].dtype))
        return _Entry(ids, arrangement, torch.from_numpy(whole), torch.stack(real))

    def _given(self, entry: _Entry, memories: Sequence[Memory]) -> Nest:
        servers: Nest = {}
        for number, (memory, ids) in enumerate(zip(memories, entry.ids, strict=True)):
            rows = memory.ledger.gather(ids)
            servers[str(number)] = memory.server | ({"ledger": rows} if rows else {})
        clients = tree.concat([m.states.gather(ids) for m, ids in zip(memories, entry.ids, strict=True)])
        device = self._first.learner.device
        return {
            "servers": servers,
            "clients": clients,
            "whole": entry.whole.to(device, non_blocking=True),
            "real": entry.real.to(device, non_blocking=True),
        }

    def _exchange(self, given: Nest, shapes: tuple[Shape, ...], ordered: bool, round: int | Tensor) -> _Exchanged:
        """The phases of a round; tensor operations only."""
        first, runs = self._first, self._experiments
        ids, places, order, _, seeds = given["whole"]
        weights, shares, rates = given["real"]
        parts = [slice(i * len(ids) // len(runs), (i + 1) * len(ids) // len(runs)) for i in range(len(runs))]
        cohorts = [Cohort(ids[p], weights[p], shares[p], len(e.data), round) for e, p in zip(runs, parts, strict=True)]
        work = make_work(
            first,
            self._table,
            shapes,
            places,
            ids,
            shares,
            order if ordered else None,
            participation=len(ids) / len(runs) / len(first.data),
            seed=seeds if self._seeds else first.options.seed,
            round=round,
            lr=rates if self._rates else first.rate(round if isinstance(round, int) else 1),
        )
        servers, clients = [given["servers"][str(i)] for i in range(len(runs))], given["clients"]
        traffic, heard = [(0, 0)] * len(runs), []
        reports: dict[str, Tensor] = {}
        with torch.no_grad():
            for number, phase in enumerate(first.method.phases):
                own = [e.method.phases[number] for e in runs]
                with mark(Part.COHORT):
                    mails = [p.ask(s, c) for p, s, c in zip(own, servers, cohorts, strict=True)]
                    mail = _joint(mails, len(ids) // len(runs))
                with mark(Part.TRAINING):
                    replies, clients, report = first.engine.run(phase, mail, clients, work)
                with mark(Part.AGGREGATION):
                    mine = [replies] if len(runs) == 1 else [tree.row(replies, part) for part in parts]
                    servers = [p.hear(s, r, c) for p, s, r, c in zip(own, servers, mine, cohorts, strict=True)]
                sent = [_sent(m, len(ids) // len(runs)) for m in mails]
                traffic = [(d + s, u + tree.nbytes(r)) for (d, u), s, r in zip(traffic, sent, mine, strict=True)]
                reports |= report
                heard.append(replies)
        return _Exchanged(servers, clients, reports["loss"], heard, traffic)

    def _tensors(self, out: _Exchanged) -> tuple[Nest, list[tuple[int, int]]]:
        """What remains of a round; `sound` says whose servers are finite."""
        with mark(Part.AGGREGATION):
            sound = torch.stack([_finite(server) for server in out.servers])
        servers = {str(i): server for i, server in enumerate(out.servers)}
        return {"servers": servers, "clients": out.clients, "losses": out.losses, "sound": sound}, out.traffic

    def _finished(
        self, entry: _Entry, given: Nest, found: Nest, traffic: list[tuple[int, int]], round: int
    ) -> list[Played]:
        count = len(entry.ids[0])
        losses, sound = found["losses"].view(-1, count), found["sound"]
        means = (losses * given["real"][0].view(-1, count)).sum(1)
        with mark(Part.WAITING):
            figures = torch.stack([means.double(), (sound & losses.isfinite().all(1)).double()]).tolist()
        wrong = np.zeros(found["losses"].shape, dtype=bool)
        if not all(figures[1]):
            again = self._exchange(given, entry.arrangement.shapes, entry.ordered, round)  # rounds are pure
            wrong = _culprits(again, len(self._experiments)).cpu().numpy()
        out = []
        for number, ids in enumerate(entry.ids):
            server = found["servers"][str(number)]
            part = slice(number * count, (number + 1) * count)
            clients = found["clients"] if len(entry.ids) == 1 else tree.row(found["clients"], part)
            out.append(
                Played(
                    ids,
                    {k: v for k, v in server.items() if k != "ledger"},
                    clients,
                    server.get("ledger", {}),
                    *traffic[number],
                    figures[0][number],
                    ids[wrong[part]],
                    self._obstacle,
                )
            )
        return out

    @property
    def _obstacle(self) -> str:
        if self._replayer is None or not self._replayer.refusal:
            return ""
        done = "compiled" if self._first.engine.compiled else "replayed"
        return f"rounds are not {done}: {self._replayer.refusal}"


def _extremes(experiments: Sequence[Experiment]) -> tuple[int, int]:
    """Samples of the smallest and of the largest client."""
    sizes = [e.data.sizes for e in experiments]
    return min(int(s.min()) for s in sizes), max(int(s.max()) for s in sizes)


def _replayer(experiment: Experiment) -> Replayer | Compiler | None:
    if experiment.engine.compiled:
        return Compiler()
    return Replayer() if experiment.engine.replayed else None


def room(experiment: Experiment) -> int:
    """How many runs like this one can play their rounds together: as many as the engine can train at once."""
    if not isinstance(experiment.engine, Batched):
        return 1
    count = cohort_size(experiment.options, len(experiment.data)) or len(experiment.data)
    return max(1, experiment.engine.chunk // count)


def alike(a: Experiment, b: Experiment) -> bool:
    """Whether two runs can play their rounds together: they differ in seed and learning rate at most."""
    free = ("seed", "lr", "engine", "device")  # the last two as they were asked for; what was chosen must be the same
    return (
        replace(a.options, **{name: getattr(b.options, name) for name in free}) == b.options
        and (a.algorithm, a.weighting, a.augment, len(a.data)) == (b.algorithm, b.weighting, b.augment, len(b.data))
        and (a.engine, a.learner.device) == (b.engine, b.learner.device)
        and (not a.engine.compiled or _extremes([a]) == _extremes([b]))  # one shape does for the rounds of both
        and a.table.x is b.table.x
        and a.table.y is b.table.y
    )


def play(experiment: Experiment, server: State, states: ClientStates, ledger: ClientStates, round: int) -> Played:
    """One round of one run."""
    return Stage([experiment]).play([Memory(server, states, ledger)], round)[0]


def draw_cohort(experiment: Experiment, round: int) -> Ids:
    """Who takes part in this round: a function of seed and round."""
    options, population = experiment.options, len(experiment.data)
    count = cohort_size(options, population)
    if count is None:
        return np.array(options.cohort[round - 1], dtype=np.int64)  # type: ignore[index]  # a list, as checked
    if count == population:
        return np.arange(population)
    return random.sample(options.seed, round, population, count).numpy()


def describe_cohort(experiment: Experiment, ids: Ids, round: int) -> Cohort:
    """Weights and shares of the objective, by samples or alike."""
    device = experiment.learner.device
    ids_, weights, shares, population, number = _cohort(experiment, ids, round)
    return Cohort(ids_.to(device), weights.to(device), shares.to(device), population, number)


def _cohort(experiment: Experiment, ids: Ids, round: int) -> Cohort:
    """The same in the host's memory."""
    data, dtype = experiment.data, experiment.learner.dtype
    sizes = torch.from_numpy(data.sizes[ids]).double()
    if experiment.weighting == "samples":
        weights, shares = sizes / sizes.sum(), sizes / (len(data.rows) / len(data))
    else:
        weights, shares = torch.full_like(sizes, 1 / len(ids)), torch.ones_like(sizes)
    return Cohort(torch.from_numpy(ids), weights.to(dtype), shares.to(dtype), len(data), round)


def _joined(experiments: Sequence[Experiment]) -> tuple[Table, list[int]]:
    """One table for all runs, and where the clients of each begin in it."""
    first, *others = (e.table for e in experiments)
    if all(t is first for t in others):
        return first, [0] * len(experiments)
    tables = [first, *others]
    counts, rows = [len(t.sizes) for t in tables], [len(t.rows) for t in tables]
    offsets = [t.offsets[:-1] + start for t, start in zip(tables, np.cumsum([0, *rows]).tolist(), strict=False)]
    joint = Table(
        first.x,
        first.y,
        torch.cat([t.rows for t in tables]),
        torch.cat(offsets),
        torch.cat([t.sizes for t in tables]),
    )
    return joint, np.cumsum([0, *counts[:-1]]).tolist()


def _joint(mails: Sequence[Mail], count: int) -> Mail:
    """What several servers send to `count` clients each, as one server's mail."""
    if len(mails) == 1:
        return mails[0]
    return Mail({}, tree.concat([tree.repeat(m.shared, count) | m.each for m in mails]))


def _finite(server: State) -> Tensor:
    largest: Any = torch._foreach_norm(_floats(server), float("inf"))
    return torch.stack([value.isfinite() for value in largest]).all()


def _culprits(out: _Exchanged, runs: int) -> Tensor:
    """Whose loss or reply is not finite [n]; everybody's of a run, if only its server's state is not."""
    wrong = ~torch.isfinite(out.losses).view(runs, -1)
    replies = torch.zeros_like(wrong)
    for leaf in (leaf for message in out.heard for leaf in _floats(message)):
        replies |= ~torch.isfinite(leaf.reshape(*wrong.shape, -1)).all(-1)
    for number, server in enumerate(out.servers):
        if not bool(wrong[number].any()) and not bool(_finite(server)):
            wrong[number] = replies[number] if bool(replies[number].any()) else True
    return wrong.flatten()


def _sent(mail: Mail, clients: int) -> int:
    return clients * tree.nbytes(mail.shared) + tree.nbytes(mail.each)


def _floats(nest: Message) -> list[Tensor]:
    return [leaf for leaf in tree.leaves(nest) if leaf.is_floating_point()]
