"""Faults of clients, simulated: the same ones in every run with the same seed, on every engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from undrift.core import check, tree
from undrift.core.random import Key, Stream, uniform
from undrift.protocol import Mail, Message, State
from undrift.storage.arena import Ids
from undrift.transport.order import Answers, Order, Transport

_CORRUPTIONS = ("nan", "infinite", "norm", "shape")
_MOST_PHASES = 16  # of a round


@dataclass(frozen=True)
class Faults:
    """How often clients fail; each number is a probability, drawn for every client of a round from the run's seed.

    A client that fails is left out of the round: weights are those of the clients that answered, and it goes on from
    where the server last heard it. Counts are in the history.
    """

    dropout: float = 0.0  # it is not there in this round
    lost: float = 0.0  # it trains, but an answer does not arrive
    slow: float = 0.0  # an answer comes after the deadline
    twice: float = 0.0  # an answer comes twice; the second is ignored
    corrupt: float = 0.0  # an answer is not a number, infinite, a billion times too large, or of another shape

    def __post_init__(self) -> None:
        for each in fields(self):
            check.number(f"faults: {each.name}", getattr(self, each.name), 0, 1)

    @classmethod
    def of(cls, given: Any) -> Faults | None:
        """From an instance, from ``"dropout=0.2, lost=0.1"``, or from what a run directory has stored."""
        if given is None or isinstance(given, Faults):
            return given
        known = [each.name for each in fields(cls)]
        if isinstance(given, str):
            given = dict(_written(part) for part in given.split(",") if part.strip())
        if not isinstance(given, Mapping):
            raise TypeError(f'faults must be ud.Faults(...) or a text such as "dropout=0.2", got {check.shown(given)}')
        for name in given:
            if name not in known:
                raise ValueError(f"unknown fault {check.shown(name)}{check.nearest(name, known)}")
        return cls(**given)

    def __str__(self) -> str:
        return ", ".join(f"{name}={value:g}" for name, value in asdict(self).items() if value) or "none"


def _written(part: str) -> tuple[str, float]:
    name, equals, value = part.partition("=")
    try:
        return name.strip(), float(value)
    except ValueError:
        example = "is written as in dropout=0.2" if not equals else f"{name.strip()} needs a number"
        raise ValueError(f"a fault {example}, got {check.shown(part.strip())}") from None


class _Drawn(NamedTuple):
    """What happens to the answers of some clients [n]."""

    gone: Tensor
    lost: Tensor
    late: Tensor
    repeated: Tensor
    corrupted: Tensor
    corruption: Tensor  # which, as a number


class FaultyTransport:
    """A transport whose clients fail in the phases of the algorithm; diagnostics see all of them."""

    def __init__(self, transport: Transport, faults: Faults, phases: int) -> None:
        self._transport, self._faults, self._phases = transport, faults, phases

    @property
    def durable(self) -> bool:
        return self._transport.durable

    def exchange(self, order: Order, mail: Mail) -> Answers:
        if order.phase >= self._phases:
            return self._transport.exchange(order, mail)
        drawn = self._draw(order)
        there = np.flatnonzero(~drawn.gone.numpy())
        rows = torch.from_numpy(there)
        if not len(there):
            return Answers({}, {}, present=there, failures={"unanswered": len(order.ids)})
        answers = self._transport.exchange(order.of(there), mail._replace(each=_rows(mail.each, rows)))
        if answers.present is not None:
            there = there[answers.present]
        mine = _Drawn(*(part[torch.from_numpy(there)] for part in drawn))
        malformed = mine.corrupted & (mine.corruption == _CORRUPTIONS.index("shape"))
        arrived = ~(mine.lost | mine.late | malformed)
        failures = Counter(
            unanswered=int(drawn.gone.sum() + mine.lost.sum()),
            late=int((mine.late & ~mine.lost).sum()),
            malformed=int((malformed & ~mine.lost & ~mine.late).sum()),
            repeated=int((mine.repeated & arrived).sum()),
        )
        failures.update(answers.failures)
        kept = arrived.nonzero()[:, 0]
        replies = _corrupted(_rows(answers.replies, kept), _Drawn(*(part[kept] for part in mine)))
        return Answers(replies, _rows(answers.reports, kept), there[kept.numpy()], failures)

    def _draw(self, order: Order) -> _Drawn:
        """The same for the same client, round, attempt and phase; who drops out is away in all phases."""
        faults, key = self._faults, Key(order.seed, order.round, torch.from_numpy(order.ids)[:, None])
        first = order.attempt * _MOST_PHASES
        away = uniform(key, Stream.FAULTS, first, (1,))[:, 0] < faults.dropout
        numbers = uniform(key, Stream.FAULTS, first + 1 + order.phase, (5,))
        lost, late, repeated, corrupted = (
            numbers[:, i] < share for i, share in enumerate((faults.lost, faults.slow, faults.twice, faults.corrupt))
        )
        kinds = (numbers[:, 4] * len(_CORRUPTIONS)).long()
        return _Drawn(away, lost, late, repeated, corrupted, kinds)

    # what is between rounds does not fail

    def personal(self, order: Order, mail: Mail, own: bool = True) -> tuple[Ids, Tensor]:
        return self._transport.personal(order, mail, own)

    def remembered(self, order: Order, part: str | None) -> tuple[Ids, State]:
        return self._transport.remembered(order, part)

    def keep(self, round: int, ids: Ids) -> None:
        self._transport.keep(round, ids)

    def restore(self, blocks: Iterator[State], heard: Ids) -> None:
        self._transport.restore(blocks, heard)

    def close(self) -> None:
        self._transport.close()


def _rows(nest: Message, rows: Tensor) -> Message:
    return tree.map_nest(lambda v: v[rows.to(v.device)], nest)


_FACTORS = {"nan": float("nan"), "infinite": float("inf"), "norm": 1e9}


def _corrupted(replies: Message, drawn: _Drawn) -> Message:
    """Replies with what corruption makes of them."""
    if not bool(drawn.corrupted.any()):
        return replies
    factors = torch.ones(len(drawn.corrupted), dtype=torch.float64)
    for name, factor in _FACTORS.items():
        factors[drawn.corrupted & (drawn.corruption == _CORRUPTIONS.index(name))] = factor

    def scaled(value: Tensor) -> Tensor:
        if not value.is_floating_point():
            return value
        return value * factors.to(value).view(-1, *[1] * (value.ndim - 1))

    return tree.map_nest(scaled, replies)
