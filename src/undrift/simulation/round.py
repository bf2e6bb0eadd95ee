"""One round: draw a cohort, let every phase be asked, answered and heard, and count what travelled.

Runs that differ only in their seed or their learning rate can train together: their cohorts are one larger cohort to
the engine, while every server asks and hears its own clients.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from undrift.core import torch_private, tree
from undrift.core.parts import Part, mark
from undrift.core.tree import Nest
from undrift.core.wide import wide
from undrift.data.batches import Table
from undrift.engines import Batched, Stacked, States, Work
from undrift.engines.compiled import Compiler
from undrift.engines.cuda_graph import CudaGraphs
from undrift.engines.work import Arrangement
from undrift.protocol import Cohort, Mail, Message, State
from undrift.simulation import cohort as participation
from undrift.simulation.channel import LocalChannel, slices
from undrift.simulation.memory import Memory, RoundResult
from undrift.simulation.place import transport_opener
from undrift.simulation.setup import Experiment
from undrift.simulation.watch import Watch
from undrift.storage.states import Ids
from undrift.transport import Answers

_WHOLE = ("ids", "positions", "order", "round", "seed")  # rows of whole numbers, an entry per client
_REAL = ("weights", "shares", "lr")  # rows of real numbers


class _Entry(NamedTuple):
    """What the host decides about a round, for all runs together."""

    ids: list[Ids]
    arrangement: Arrangement
    whole: Tensor  # [len(_WHOLE), n]: one tensor, as every copy to a GPU takes its time
    real: Tensor  # [len(_REAL), n]


class _Exchanged(NamedTuple):
    servers: list[State]
    clients: States
    answers: list[list[Answers]]  # of every phase, of every run
    traffic: list[tuple[int, int]]  # bytes down and up, of every run
    diagnostics: Tensor | None  # of every run [runs, columns]

    @property
    def losses(self) -> Tensor:
        """Of every run and client [runs, n]; the last phase that reports one counts."""
        last = [phase for phase in self.answers if "loss" in phase[0].reports][-1]
        return torch.stack([answers.reports["loss"] for answers in last])


class RoundRunner:
    """Computes the rounds of a run, or of several that differ in seed and learning rate only."""

    def __init__(self, experiments: Sequence[Experiment]) -> None:
        self._experiments = tuple(experiments)
        first = self._first = experiments[0]
        self._table, self._starts = _joint_table(experiments)
        self._extremes = _extremes(experiments)
        self._replayer = _replayer(first)
        self._ahead: tuple[int, _Entry] | None = None
        # What differs between runs, or between rounds that share their code, comes as a tensor.
        self._seeds_differ = len(experiments) > 1 or first.engine.compiled
        decays = self._replayer is not None and first.options.lr_decay != 1
        self._rates_differ = len({e.options.lr for e in experiments}) > 1 or decays or first.engine.compiled

    def run(self, memories: Sequence[Memory], round: int) -> list[RoundResult]:
        """A whole round of every run; pure: what is given stays as it is."""
        number, entry = self._ahead or (0, None)
        with mark(Part.COHORT):
            if entry is None or number != round:
                entry = self._enter(round)
            given, states, arrangement = self._inputs(entry, memories), _states(entry, memories), entry.arrangement
        after: States
        if self._replayer is None:
            exchanged = self._exchange(given, states, arrangement, round)
            (found, traffic), after = self._tensors(exchanged), exchanged.clients
        else:

            def replayed(tensors: Nest) -> tuple[Nest, list[tuple[int, int]]]:
                states, round = Stacked(tensors["clients"]), tensors["round"][0]
                exchanged = self._exchange(tensors, states, arrangement, round)
                found, traffic = self._tensors(exchanged)
                return found | {"clients": exchanged.clients.read(slice(None))}, traffic

            with mark(Part.COMPILED if self._first.engine.compiled else Part.REPLAY):
                key = (arrangement.shapes, arrangement.order is not None)
                found, traffic = self._replayer(key, replayed, given | {"clients": states.read(slice(None))})
            after = Stacked(found["clients"])
        if round < self._first.options.rounds:
            with mark(Part.COHORT):
                self._ahead = round + 1, self._enter(round + 1)  # while the device is busy
        return self._results(entry, given, states, after, found, traffic)

    def _enter(self, round: int) -> _Entry:
        runs = self._experiments
        ids = [participation.draw(e, round) for e in runs]
        cohorts = [participation.describe(e, part, round) for e, part in zip(runs, ids, strict=True)]
        sizes = np.concatenate([e.data.sizes[part] for e, part in zip(runs, ids, strict=True)])
        arrangement = self._first.engine.arrange(self._first.schedule, sizes, self._extremes)
        whole = {
            "ids": np.concatenate(ids),
            "positions": np.concatenate([part + start for part, start in zip(ids, self._starts, strict=True)]),
            "order": np.arange(len(sizes)) if arrangement.order is None else arrangement.order,
            "round": np.full(len(sizes), round),
            "seed": np.concatenate([np.full_like(part, e.options.seed) for e, part in zip(runs, ids, strict=True)]),
        }
        rates = np.concatenate([np.full(len(part), e.options.rate(round)) for e, part in zip(runs, ids, strict=True)])
        weights, shares = (torch.cat([getattr(c, name) for c in cohorts]) for name in ("weights", "shares"))
        real = {"weights": weights, "shares": shares, "lr": torch.from_numpy(rates).to(weights.dtype)}
        return _Entry(
            ids,
            arrangement,
            torch.from_numpy(np.stack([whole[name] for name in _WHOLE])),
            torch.stack([real[name] for name in _REAL]),
        )

    def _inputs(self, entry: _Entry, memories: Sequence[Memory]) -> Nest:
        """All tensors that a round starts from, by name, except what clients remember."""
        servers: Nest = {}
        for number, (memory, ids) in enumerate(zip(memories, entry.ids, strict=True)):
            rows = memory.ledger.gather(ids)
            servers[str(number)] = memory.server | ({"ledger": rows} if rows else {})
        device = self._first.learner.device
        whole, real = (part.to(device, non_blocking=True) for part in (entry.whole, entry.real))
        numbers = dict(zip(_WHOLE, whole, strict=True)) | dict(zip(_REAL, real, strict=True))
        return {"servers": servers} | numbers

    def _exchange(
        self, given: Nest, states: States, arrangement: Arrangement, round: int | Tensor, blame: bool = False
    ) -> _Exchanged:
        """The phases of a round; tensor operations only. Replies are kept only to tell who is to `blame`."""
        runs = self._experiments
        cohorts = self._cohorts(given, round)
        servers = [given["servers"][str(number)] for number in range(len(runs))]
        watch = Watch(runs, servers, cohorts) if self._first.observer.diagnostics else None
        further = () if watch is None else watch.phases
        channel = LocalChannel(
            self._first.engine,
            (*self._first.method.phases, *further),
            self._work(given, arrangement, round),
            states,
        )
        traffic, answers = [(0, 0)] * len(runs), []
        with torch.no_grad():
            if watch is not None:
                servers = watch.begin(channel)
            for number in range(len(self._first.method.phases)):
                phases = [e.method.phases[number] for e in runs]
                with mark(Part.COHORT):
                    mails = [p.ask(s, c) for p, s, c in zip(phases, servers, cohorts, strict=True)]
                with mark(Part.TRAINING):
                    found = channel.exchange(number, mails, cohorts)
                with mark(Part.AGGREGATION):
                    servers = [
                        p.hear(s, a.replies, c) for p, s, a, c in zip(phases, servers, found, cohorts, strict=True)
                    ]
                traffic = [
                    (down + sent(mail, len(cohort.ids)), up + tree.nbytes(a.replies))
                    for (down, up), mail, a, cohort in zip(traffic, mails, found, cohorts, strict=True)
                ]
                if watch is not None:
                    found = watch.keep_reports(found)
                answers.append(found if blame else [a._replace(replies={}) for a in found])
                del found, mails  # before the next phase computes its own
            figures = None
            if watch is not None:
                figures, servers = watch.end(servers)
        return _Exchanged(servers, channel.states, answers, traffic, figures)

    def _cohorts(self, given: Nest, round: int | Tensor) -> list[Cohort]:
        runs, ids = self._experiments, given["ids"]
        return [
            Cohort(
                ids[part], given["weights"][part], given["shares"][part], population=len(experiment.data), round=round
            )
            for experiment, part in zip(runs, slices(len(runs), len(ids) // len(runs)), strict=True)
        ]

    def _work(self, given: Nest, arrangement: Arrangement, round: int | Tensor) -> Work:
        first, runs, ids = self._first, len(self._experiments), given["ids"]
        return Work(
            training=replace(first.training, table=self._table),
            shapes=arrangement.shapes,
            order=None if arrangement.order is None else given["order"],
            positions=given["positions"],
            ids=ids,
            shares=given["shares"],
            seed=given["seed"] if self._seeds_differ else first.options.seed,
            round=round,
            lr=given["lr"] if self._rates_differ else first.options.rate(round if isinstance(round, int) else 1),
            participation=len(ids) / runs / len(first.data),
        )

    def _tensors(self, out: _Exchanged) -> tuple[Nest, list[tuple[int, int]]]:
        """What remains of a round besides states of clients; `finite` says of which runs all numbers are."""
        with mark(Part.AGGREGATION):
            finite = torch.stack([all_finite(server) for server in out.servers])
            for _, part in out.clients.parts():
                for leaf in _floats(part):
                    # A sum takes a tenth of a norm's time; where it overflows, `_culprits` finds that all is well.
                    finite = finite & leaf.reshape(len(finite), -1).sum(1).isfinite()
        servers = {str(number): server for number, server in enumerate(out.servers)}
        figures = {} if out.diagnostics is None else {"diagnostics": out.diagnostics}
        return {"servers": servers, "losses": out.losses, "finite": finite} | figures, out.traffic

    def _results(
        self,
        entry: _Entry,
        given: Nest,
        states: States,
        after: States,
        found: Nest,
        traffic: list[tuple[int, int]],
    ) -> list[RoundResult]:
        losses = found["losses"]
        means = (losses * given["weights"].view(losses.shape)).sum(1)
        with mark(Part.WAITING):
            figures = torch.stack([wide(means), wide(found["finite"] & losses.isfinite().all(1))]).tolist()
            diagnostics = wide(found["diagnostics"]).tolist() if "diagnostics" in found else [[]] * len(losses)
        wrong = np.zeros(losses.shape, dtype=bool)
        if not all(figures[1]):
            round = int(given["round"][0])
            again = self._exchange(given, states, entry.arrangement, round, blame=True)  # rounds are pure
            wrong = _culprits(again).cpu().numpy()
        out = []
        for number, (ids, part) in enumerate(zip(entry.ids, slices(*losses.shape), strict=True)):
            server = found["servers"][str(number)]
            down, up = traffic[number]
            out.append(
                RoundResult(
                    ids=ids,
                    server={k: v for k, v in server.items() if k != "ledger"},
                    clients=after if len(entry.ids) == 1 else Stacked(after.read(part)),
                    ledger=server.get("ledger", {}),
                    bytes_down=down,
                    bytes_up=up,
                    train_loss=figures[0][number],
                    diverged=ids[wrong[number]],
                    diagnostics=diagnostics[number],
                    obstacle=self._obstacle,
                )
            )
        return out

    @property
    def _obstacle(self) -> str:
        if self._replayer is None or not self._replayer.refusal:
            return ""
        done = "compiled" if self._first.engine.compiled else "replayed"
        return f"rounds are not {done}: {self._replayer.refusal}"


def _states(entry: _Entry, memories: Sequence[Memory]) -> States:
    """What the clients of all runs remember, in the order of the cohort."""
    each: list[States] = [memory.states.of(ids) for memory, ids in zip(memories, entry.ids, strict=True)]
    return each[0] if len(each) == 1 else Stacked(tree.concat([states.read(slice(None)) for states in each]))


def _extremes(experiments: Sequence[Experiment]) -> tuple[int, int]:
    """Samples of the smallest and of the largest client."""
    sizes = [e.data.sizes for e in experiments]
    return min(int(s.min()) for s in sizes), max(int(s.max()) for s in sizes)


def _replayer(experiment: Experiment) -> CudaGraphs | Compiler | None:
    if experiment.engine.compiled:
        return Compiler()
    return CudaGraphs() if experiment.engine.replayed else None


def capacity(experiment: Experiment) -> int:
    """How many runs like this one can train together: as many as the engine has room for at once."""
    if not isinstance(experiment.engine, Batched) or transport_opener(experiment.options) is not None:
        return 1
    count = participation.size(experiment.options, len(experiment.data)) or len(experiment.data)
    return max(1, experiment.engine.chunk // count)


_ON_UPDATES = ("plugins", "aggregate", "compress", "privacy", "attack")  # objects that change what clients send


def can_train_together(a: Experiment, b: Experiment) -> bool:
    """Whether two runs differ in seed and learning rate at most."""
    free = ("seed", "lr", "engine", "device")  # the last two as they were asked for; what was chosen must be the same
    return (
        transport_opener(a.options) is None
        and replace(a.options, **{name: getattr(b.options, name) for name in free}) == b.options
        and (a.algorithm, a.weighting, len(a.data)) == (b.algorithm, b.weighting, len(b.data))
        and all(getattr(a.objects, part) == getattr(b.objects, part) for part in _ON_UPDATES)
        and (a.objects.attack is None or a.options.seed == b.options.seed)  # which draws the attackers
        and a.training.augment == b.training.augment
        and (a.engine, a.learner.device) == (b.engine, b.learner.device)
        and (not a.engine.compiled or _extremes([a]) == _extremes([b]))  # one shape covers the rounds of both
        and a.table.x is b.table.x
        and a.table.y is b.table.y
    )


def _joint_table(experiments: Sequence[Experiment]) -> tuple[Table, list[int]]:
    """One table for all runs, and where the clients of each begin in it."""
    first, *others = (e.table for e in experiments)
    if all(t is first for t in others):
        return first, [0] * len(experiments)
    tables = [first, *others]
    counts, rows = [len(t.sizes) for t in tables], [len(t.rows) for t in tables]
    offsets = [t.offsets[:-1] + start for t, start in zip(tables, np.cumsum([0, *rows]).tolist(), strict=False)]
    joint = first._replace(
        rows=torch.cat([t.rows for t in tables]),
        offsets=torch.cat(offsets),
        sizes=torch.cat([t.sizes for t in tables]),
    )
    return joint, np.cumsum([0, *counts[:-1]]).tolist()


def all_finite(server: State) -> Tensor:
    return torch.stack(torch_private.norms(_floats(server), math.inf)).isfinite().all()


_OVERWHELMING = 1000  # times what other clients send


def _culprits(out: _Exchanged) -> Tensor:
    """Who made a number infinite or not a number [runs, n]; nobody in runs whose numbers are all finite."""
    runs, count = out.losses.shape
    wrong = torch.zeros((runs, count), dtype=torch.bool)
    states = torch.cat([largest_of_clients(nest, len(range(runs * count)[part])) for part, nest in out.clients.parts()])
    for number, part in enumerate(slices(runs, count)):
        nests = [{"replies": phase[number].replies, "reports": phase[number].reports} for phase in out.answers]
        largest = torch.stack([largest_of_clients(nest, count) for nest in nests])  # [phases, n]
        largest[-1] = torch.maximum(largest[-1], states[part])
        if not bool(all_finite(out.servers[number])) or not bool(largest.isfinite().all()):
            wrong[number] = first_to_explode(largest)
    return wrong


def first_to_explode(largest: Tensor) -> Tensor:
    """The clients to blame [n], from the largest numbers that they had in every phase [phases, n].

    An average over one client's huge numbers, though finite, may make those of all others infinite in the next phase,
    and its square those of the server: then a client whose numbers dwarf the others' is to blame.
    """
    everybody = torch.ones_like(largest[0], dtype=torch.bool)
    huge = everybody
    for phase in largest:
        wrong: Tensor = ~phase.isfinite()
        if bool(wrong.any()):
            return wrong & huge if bool((wrong & huge).any()) else wrong
        dwarfing = phase * _OVERWHELMING > phase.max()
        if bool(huge.all()) and bool((phase[dwarfing].min() > _OVERWHELMING * phase[~dwarfing]).all()):
            huge = dwarfing
    return huge


def largest_of_clients(nest: Nest, clients: int) -> Tensor:
    """The largest absolute value of what belongs to each client, infinite if it has none [n]."""
    rows = [leaf.reshape(clients, -1).abs().amax(1).cpu().double() for leaf in _floats(nest)]
    found = torch.stack([torch.zeros(clients, dtype=torch.float64), *rows]).amax(0)
    return torch.where(found.isnan(), torch.inf, found)


def sent(mail: Mail, clients: int, again: bool = False) -> int:
    """Bytes of a message to so many clients; what they still have counts if it is sent `again`."""
    shared, each = (part if again else tree.drop(part, mail.known) for part in (mail.shared, mail.each))
    return clients * tree.nbytes(shared) + tree.nbytes(each)


def _floats(nest: Message) -> list[Tensor]:
    return [leaf for leaf in tree.leaves(nest) if (leaf.is_floating_point() or leaf.is_complex()) and leaf.numel()]
