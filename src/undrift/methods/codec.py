"""What a message codec is: how clients' replies travel (see `codecs.py` for those there are).

A codec sits between `answer` and `hear`, so that traffic is counted from the encoded messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from undrift.core import tree
from undrift.core.random import Key
from undrift.core.tree import Tree
from undrift.methods.options import HasOptions
from undrift.methods.wrapped import Wrapped
from undrift.protocol import Answer, Cohort, Mail, Message, Phase, State

if TYPE_CHECKING:
    from undrift.client.task import Task

_KEY = "codec"  # of a client's state


class Received(NamedTuple):
    """What the server knows of stacked messages [n, ...] besides what is in them."""

    model: Tree  # the server's, whose shapes updates have
    dtype: torch.dtype  # the model's precision
    key: Key  # of every client [n, 1]: what `encode` was given


@dataclass(frozen=True)
class Codec(HasOptions):
    """Replies travel as they are; a subclass changes that. Pure; `encode` runs under `vmap`: tensor operations only."""

    def client(self, model: Tree) -> State:
        """What a client keeps for it, such as the part of earlier replies that was rounded away."""
        return {}

    def encode(self, reply: Message, state: State, key: Key) -> tuple[Message, State]:
        """By a client: the message to send, and what it keeps; random numbers are drawn from `key`."""
        return reply, state

    def decode(self, replies: Message, at: Received) -> Message:
        """By the server: stacked messages [n, ...] as replies in the model's precision."""
        return replies


@dataclass(frozen=True)
class Coded(Wrapped):
    """A method whose clients encode their replies."""

    codec: Codec
    seed: int

    def wrap(self, phase: Phase) -> Phase:
        return CodedPhase(phase, self.codec, self.seed)

    def client(self, model: Tree, buffers: Tree) -> State:
        return _with_codec(self.method.client(model, buffers), self.codec.client(model))


@dataclass(frozen=True)
class CodedPhase:
    phase: Phase
    codec: Codec
    seed: int

    def ask(self, server: State, cohort: Cohort) -> Mail:
        return self.phase.ask(server, cohort)

    def answer(self, inbox: Message, client: State, task: Task) -> Answer:
        answer = self.phase.answer(inbox, tree.drop(client, [_KEY]), task)
        message, kept = self.codec.encode(answer.reply, client.get(_KEY, {}), task.key)
        return answer._replace(reply=message, state=_with_codec(answer.state, kept))

    def hear(self, server: State, replies: Message, cohort: Cohort) -> State:
        key = Key(self.seed, cohort.round, cohort.ids[:, None])
        at = Received(server.get("model", {}), cohort.weights.dtype, key)
        return self.phase.hear(server, self.codec.decode(replies, at), cohort)


def _with_codec(client: State, kept: State) -> State:
    return client | {_KEY: kept} if kept else client
