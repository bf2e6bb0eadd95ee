"""Differential privacy of clients: the model hardly depends on whether a client has its samples or quite others.

A client clips its update to norm S before it is sent, and the server adds Gaussian noise to the mean. Replacing all of
one client's data changes the sum of the updates by 2 S at most; the noise on the sum has `noise` times that as its
standard deviation. What that is worth after so many rounds is in `simulation/accounting.py`.

The server is trusted (central differential privacy): what it publishes, models and history, is private.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from undrift.core import check, random, tree
from undrift.core.check import shown
from undrift.core.random import Key, Stream
from undrift.core.tree import Tree
from undrift.methods.options import HasOptions, read_choice, text_of
from undrift.methods.wrapped import Wrapped
from undrift.protocol import Answer, Cohort, Mail, Message, Method, Phase, State

if TYPE_CHECKING:
    from undrift.client.task import Task

# (a tree of shapes, the cohort) -> independent standard normal numbers of these shapes
Noise = Callable[[Tree, Cohort], Tree]


@dataclass(frozen=True)
class Privacy(HasOptions):
    """Client-level (ε, δ)-differential privacy by Gaussian noise.

    Options:
        clip: largest norm S of a client's update.
        noise: standard deviation of the noise on the sum of a cohort's updates, in units of 2 S.
        delta: δ, for which the history says ε.
    """

    name: ClassVar[str] = "gaussian"  # as users write it

    clip: float = 1.0
    noise: float = 1.0
    delta: float = 1e-5

    def __post_init__(self) -> None:
        check.number("clip", self.clip, 0, open_low=True)
        check.number("noise", self.noise, 0, open_low=True)
        check.number("delta", self.delta, 0, 1, open_low=True, open_high=True)

    def __str__(self) -> str:
        return text_of(self.name, self)

    def clipped(self, update: Tree) -> Tree:
        norm = tree.dot(update, update).sqrt()
        return tree.scale(update, (self.clip / norm.clamp_min(1e-30)).clamp_max(1))

    def clipped_by_server(self, updates: Tree) -> Tree:
        """Updates of several clients [n, ...] as the server takes them, whatever was sent: zero if not finite.

        A client is never left out because of its numbers, as that would tell something of its samples.
        """
        return tree.map_nest(lambda v: v.nan_to_num(0.0), torch.func.vmap(self.clipped)(updates))

    def deviation(self, clients: int) -> float:
        """Of the noise on the mean of so many clients' updates."""
        return self.noise * 2 * self.clip / clients


def find(value: str | Privacy) -> Privacy:
    """As users write it, ``gaussian(clip=1, noise=1)``; an instance is returned as it is."""
    if isinstance(value, str):
        known = {Privacy.name: ("clip", "noise", "delta")}
        return Privacy(**read_choice(value, "privacy", "privacy mechanism", known)[1])
    if not isinstance(value, Privacy):
        raise TypeError(f"privacy must be ud.Privacy(clip=1, noise=1) or its text, got {shown(value)}")
    return value


def keyed_noise(seed: int) -> Noise:
    """Of a simulation: a function of seed, round and tensor, the same on every engine. Who knows the seed knows it."""

    def draw(like: Tree, cohort: Cohort) -> Tree:
        key = Key(seed, cohort.round, torch.zeros_like(cohort.ids[0]))
        return {
            name: random.normal(key, Stream.NOISE, number, tuple(like[name].shape)).to(like[name].dtype)
            for number, name in enumerate(sorted(like))
        }

    return draw


def secure_noise(like: Tree, cohort: Cohort) -> Tree:
    """Of a deployment: from the operating system's cryptographic generator, which nobody can repeat."""
    return {name: _secure_normal(value.shape).to(value) for name, value in like.items()}


def _secure_normal(shape: torch.Size) -> Tensor:
    """By Box and Muller, from uniform numbers with 53 bits."""
    words = torch.frombuffer(bytearray(os.urandom(16 * max(1, shape.numel()))), dtype=torch.int64)
    uniform = ((words >> 11) & ((1 << 53) - 1)).double().view(2, -1) * 2.0**-53
    numbers = torch.sqrt(-2 * torch.log1p(-uniform[0])) * torch.cos(2 * math.pi * uniform[1])
    return numbers[: shape.numel()].view(shape)


@dataclass(frozen=True)
class Private(Wrapped):
    """A method whose clients clip their updates and whose server adds noise to the mean."""

    privacy: Privacy
    noise: Noise = field(compare=False)
    silent: bool = False  # clients report nothing, not even their losses

    def wrap(self, phase: Phase) -> Phase:
        return PrivatePhase(phase, self.privacy, self.noise, self.silent)


@dataclass(frozen=True)
class PrivatePhase:
    phase: Phase
    privacy: Privacy
    noise: Noise = field(compare=False)
    silent: bool

    def ask(self, server: State, cohort: Cohort) -> Mail:
        return self.phase.ask(server, cohort)

    def answer(self, inbox: Message, client: State, task: Task) -> Answer:
        answer = self.phase.answer(inbox, client, task)
        answer = answer._replace(reply=answer.reply | {"update": self.privacy.clipped(answer.reply["update"])})
        return answer._replace(report={}) if self.silent else answer

    def hear(self, server: State, replies: Message, cohort: Cohort) -> State:
        updates = replies["update"]
        noise = self.noise(tree.row(updates, 0), cohort)
        # The same for all, as their weights are equal and sum to one: it is then the mean's.
        noisy = tree.add(updates, noise, self.privacy.deviation(len(cohort.ids)))
        return self.phase.hear(server, replies | {"update": noisy}, cohort)


def deployed(method: Method) -> Method:
    """The method as real clients and their server use it, where it is private.

    Who knows the seed cannot draw the noise again, and clients send nothing but clipped updates.
    """
    if not isinstance(method, Wrapped):
        return method
    method = replace(method, method=deployed(method.method))
    return replace(method, noise=secure_noise, silent=True) if isinstance(method, Private) else method
