"""Message codecs: how clients' replies travel. To add one, subclass `Codec` and list it in `CODECS`.

A codec sits between `answer` and `hear`, so that traffic is counted from the encoded messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from undrift.core import tree
from undrift.core.check import nearest, shown
from undrift.core.random import Key
from undrift.core.tree import Tree
from undrift.methods.wrapped import Wrapped
from undrift.protocol import Answer, Cohort, Mail, Message, Phase, State

if TYPE_CHECKING:
    from undrift.client.task import Task

_KEY = "codec"  # of a client's state


@dataclass(frozen=True)
class Codec:
    """Replies travel as they are; a subclass changes that. Pure; `encode` runs under `vmap`: tensor operations only."""

    def client(self, model: Tree) -> State:
        """What a client keeps for it, such as the part of earlier replies that was rounded away."""
        return {}

    def encode(self, reply: Message, state: State, key: Key) -> tuple[Message, State]:
        """By a client: the message to send, and what it keeps; random numbers are drawn from `key`."""
        return reply, state

    def decode(self, replies: Message, dtype: torch.dtype) -> Message:
        """By the server: stacked messages [n, ...] as replies in the model's precision."""
        return replies


@dataclass(frozen=True)
class Half(Codec):
    """Floating-point tensors travel as bfloat16.

    Its range is float32's, so that updates and gradients, which are often below float16's smallest normal number 6e-5,
    keep their relative precision without scaling. Single numbers stay as they are: they cost nothing, and numbers of
    steps must be exact.
    """

    def encode(self, reply: Message, state: State, key: Key) -> tuple[Message, State]:
        return tree.map_nest(_halved, reply), state

    def decode(self, replies: Message, dtype: torch.dtype) -> Message:
        return tree.map_nest(lambda v: v.to(dtype) if v.dtype is torch.bfloat16 else v, replies)


def _halved(value: Tensor) -> Tensor:
    wide = value.dtype in (torch.float32, torch.float64)
    return value.to(torch.bfloat16) if wide and value.ndim else value


@dataclass(frozen=True)
class Coded(Wrapped):
    """A method whose clients encode their replies."""

    codec: Codec

    def wrap(self, phase: Phase) -> Phase:
        return CodedPhase(phase, self.codec)

    def client(self, model: Tree, buffers: Tree) -> State:
        return _with_codec(self.method.client(model, buffers), self.codec.client(model))


@dataclass(frozen=True)
class CodedPhase:
    phase: Phase
    codec: Codec

    def ask(self, server: State, cohort: Cohort) -> Mail:
        return self.phase.ask(server, cohort)

    def answer(self, inbox: Message, client: State, task: Task) -> Answer:
        answer = self.phase.answer(inbox, tree.drop(client, [_KEY]), task)
        message, kept = self.codec.encode(answer.reply, client.get(_KEY, {}), task.key)
        return answer._replace(reply=message, state=_with_codec(answer.state, kept))

    def hear(self, server: State, replies: Message, cohort: Cohort) -> State:
        return self.phase.hear(server, self.codec.decode(replies, cohort.weights.dtype), cohort)


def _with_codec(client: State, kept: State) -> State:
    return client | {_KEY: kept} if kept else client


CODECS: dict[str, type[Codec]] = {"half": Half}


def find(value: str | Codec) -> Codec:
    """A codec by its name; an instance is returned as it is."""
    if isinstance(value, str):
        if value not in CODECS:
            raise ValueError(f"compress: unknown codec {shown(value)}{nearest(value, CODECS)}")
        return CODECS[value]()
    if not isinstance(value, Codec):
        raise TypeError(f"compress must be a name or a Codec such as Half(), got {shown(value)}")
    return value
