"""Clients that harm the model on purpose, to test defences against (`aggregate=`).

Attackers train as the algorithm says and then change every gradient and update that they send, or train with wrong
labels. What they send besides, such as a number of steps or statistics of a layer, is honest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from undrift.core import check, random, tree
from undrift.core.check import shown
from undrift.core.random import Key, Stream
from undrift.methods.options import HasOptions, read_choice, text_of
from undrift.methods.wrapped import Wrapped
from undrift.protocol import Answer, Cohort, Mail, Message, Phase, State

if TYPE_CHECKING:
    from undrift.client.task import Task

# By the name users type: the scale that is used unless another is given.
KINDS: dict[str, float | None] = {"sign-flip": 1.0, "noise": 10.0, "large-norm": 100.0, "label-flip": None}


@dataclass(frozen=True)
class Attack(HasOptions):
    """A share of the clients, drawn by the seed and the same in all rounds, attacks.

    Options:
        kind: sign-flip sends −scale · u instead of an update u; noise sends normal numbers of scale times its size;
            large-norm sends scale · u; label-flip trains with label c − 1 − y of c classes instead of y.
        share: of all clients, rounded to the nearest number of them.
        scale: by default 1 for sign-flip, 10 for noise, 100 for large-norm; label-flip has none.
    """

    kind: str
    share: float = 0.1
    scale: float | None = None

    def __post_init__(self) -> None:
        check.choice("attack", self.kind, tuple(KINDS))
        check.number("share", self.share, 0, 1)
        if self.scale is not None:
            check.number("scale", self.scale, 0, open_low=True)
            if KINDS[self.kind] is None:
                raise ValueError(f"{self.kind} has no scale, got {self.scale}")

    def __str__(self) -> str:
        """As users write it: ``sign-flip(share=0.3)``."""
        return text_of(self.kind, _Options(self.share, self.scale))

    def attackers(self, seed: int, population: int) -> Tensor:
        """Their numbers, in increasing order; round 0 has no cohort that would be drawn alike."""
        return random.sample(seed, 0, population, round(self.share * population))

    def changed(self, reply: Message, key: Key) -> Message:
        """What an attacker sends instead."""
        scale = self.scale or KINDS[self.kind] or 1.0
        if self.kind == "sign-flip":
            scale = -scale
        elif self.kind == "noise":
            numbers = {name: number for number, name in enumerate(sorted(tree.flatten(reply)))}
            flat = {name: _noise(v, key, numbers[name], scale) for name, v in tree.flatten(reply).items()}
            return tree.ordered_like(tree.unflatten(flat), reply)
        return tree.map_nest(lambda v: scale * v, reply)


@dataclass(frozen=True)
class _Options:
    """The options of an attack that are written behind its kind."""

    share: float = 0.1
    scale: float | None = None


def _noise(value: Tensor, key: Key, number: int, scale: float) -> Tensor:
    drawn = random.normal(key, Stream.ATTACK, number, tuple(value.shape)).to(value.dtype)
    return scale * value.square().mean().sqrt() * drawn


def find(value: str | Attack) -> Attack:
    """As users write it, ``sign-flip(share=0.3)``; an instance is returned as it is."""
    if isinstance(value, str):
        name, options = read_choice(value, "attack", "attack", dict.fromkeys(KINDS, ("share", "scale")))
        return Attack(name, **options)
    if not isinstance(value, Attack):
        raise TypeError(f'attack must be ud.Attack("sign-flip", share=0.3) or its text, got {shown(value)}')
    return value


class Attackers(NamedTuple):
    """An attack on one federation."""

    attack: Attack
    ids: Tensor  # on the device of the run
    classes: int  # of the labels; 0 where there are none


@dataclass(frozen=True)
class Attacked(Wrapped):
    """A method some of whose clients attack."""

    attackers: Attackers

    def wrap(self, phase: Phase) -> Phase:
        return AttackedPhase(phase, self.attackers)


@dataclass(frozen=True)
class AttackedPhase:
    phase: Phase
    attackers: Attackers

    def ask(self, server: State, cohort: Cohort) -> Mail:
        return self.phase.ask(server, cohort)

    def answer(self, inbox: Message, client: State, task: Task) -> Answer:
        attack, ids, classes = self.attackers
        attacks = (task.key.client == ids).any()
        if attack.kind == "label-flip":
            return self.phase.answer(inbox, client, replace(task, fetch=_flipping(task, attacks, classes)))
        answer = self.phase.answer(inbox, client, task)
        honest = _updates(answer.reply)
        sent = tree.where(attacks, attack.changed(honest, task.key), honest)
        return answer._replace(reply=_with(answer.reply, sent))

    def hear(self, server: State, replies: Message, cohort: Cohort) -> State:
        return self.phase.hear(server, replies, cohort)


def _flipping(task: Task, attacks: Tensor, classes: int) -> Callable[[Tensor, Tensor], Tensor]:
    def fetch(table: Tensor, rows: Tensor) -> Tensor:
        found = task.fetch(table, rows)
        if table is not task.y:
            return found
        return torch.where(attacks & (found >= 0), classes - 1 - found, found)  # below 0: nothing is to be predicted

    return fetch


def _updates(reply: Message) -> Message:
    """The gradients and updates of a reply: neither statistics of layers nor single numbers."""
    return {
        name: _updates(value) if isinstance(value, dict) else value
        for name, value in reply.items()
        if name != "buffers" and (isinstance(value, dict) or (value.ndim and value.is_floating_point()))
    }


def _with(reply: Message, changed: Message) -> Message:
    return {
        name: _with(value, changed[name]) if isinstance(value, dict) and name in changed else changed.get(name, value)
        for name, value in reply.items()
    }
