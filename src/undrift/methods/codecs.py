"""Message codecs by name. To add one, subclass `Codec` and list it in `CODECS`."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import NamedTuple

import torch
from torch import Tensor

from undrift.core import check, random, tree
from undrift.core.check import shown
from undrift.core.random import Key, Stream
from undrift.core.tree import Tree
from undrift.methods.codec import Codec, Received
from undrift.methods.options import read_choice, text_of
from undrift.protocol import Message, State


@dataclass(frozen=True)
class Half(Codec):
    """Floating-point tensors travel as bfloat16.

    Its range is float32's, so that updates and gradients, which are often below float16's smallest normal number 6e-5,
    keep their relative precision without scaling. Single numbers stay as they are: they cost nothing, and numbers of
    steps must be exact.
    """

    def encode(self, reply: Message, state: State, key: Key) -> tuple[Message, State]:
        return tree.map_nest(_halved, reply), state

    def decode(self, replies: Message, at: Received) -> Message:
        return tree.map_nest(lambda v: v.to(at.dtype) if v.dtype is torch.bfloat16 else v, replies)


def _halved(value: Tensor) -> Tensor:
    wide = value.dtype in (torch.float32, torch.float64)
    return value.to(torch.bfloat16) if wide and value.ndim else value


@dataclass(frozen=True)
class WithFeedback(Codec):
    """Compresses the update, tensor by tensor; whatever else an algorithm sends travels as it is.

    Error feedback: a client keeps what its update lost and adds it to its next one (Karimireddy et al. 2019), so that
    the sum of what the server hears follows the sum of the updates.
    """

    def client(self, model: Tree) -> State:
        return {"lost": tree.zeros(model)}

    def encode(self, reply: Message, state: State, key: Key) -> tuple[Message, State]:
        if "update" not in reply:
            return reply, state
        wanted = tree.add(reply["update"], state["lost"])
        sent, lost = {}, dict(state["lost"])  # parameters that never travel lose nothing
        for number, name in enumerate(sorted(wanted)):  # the same numbers in any order of names
            value = wanted[name]
            part = Part(key, number, value.numel(), value.dtype)
            sent[name] = self.compress(value.flatten(), part)
            lost[name] = value - self.restore(sent[name], part).view(value.shape)
        return reply | {"update": sent}, {"lost": lost}

    def decode(self, replies: Message, at: Received) -> Message:
        if "update" not in replies:
            return replies
        sent = replies["update"]
        heard = {}
        for number, name in enumerate(sorted(sent)):
            shape = at.model[name].shape
            flat = self.restore(sent[name], Part(at.key, number, shape.numel(), at.dtype))
            heard[name] = flat.view(len(flat), *shape)
        return replies | {"update": {name: heard[name] for name in at.model if name in heard}}

    def compress(self, value: Tensor, part: Part) -> Message:
        """By a client: a flat tensor [d] as it travels."""
        raise NotImplementedError

    def restore(self, sent: Message, part: Part) -> Tensor:
        """The tensor [d] that was sent, by the client; by the server those of all clients [n, d]."""
        raise NotImplementedError


class Part(NamedTuple):
    """Which tensor of an update is compressed."""

    key: Key  # of the client, or of all clients [n, 1]
    number: int  # among the names of the update
    size: int  # d
    dtype: torch.dtype


@dataclass(frozen=True)
class TopK(WithFeedback):
    """Of every tensor the `share` of entries that are largest in absolute value, with their positions."""

    share: float = 0.01

    def __post_init__(self) -> None:
        check.number("share", self.share, 0, 1, open_low=True)

    def compress(self, value: Tensor, part: Part) -> Message:
        # A stable sort: which of two equal entries is sent does not depend on the engine.
        places = value.abs().argsort(descending=True, stable=True)[: _count(self.share, part.size)]
        return {"values": value.gather(0, places), "places": places.to(_index_type(part.size))}

    def restore(self, sent: Message, part: Part) -> Tensor:
        return _spread(sent["values"], sent["places"].to(torch.int64), part)


@dataclass(frozen=True)
class RandomK(WithFeedback):
    """A `share` of the entries of every tensor, drawn anew by every client in every round.

    Positions follow from seed, round and client, so that they need not be sent.
    """

    share: float = 0.01

    def __post_init__(self) -> None:
        check.number("share", self.share, 0, 1, open_low=True)

    def compress(self, value: Tensor, part: Part) -> Message:
        return {"values": value.gather(0, self._places(part))}

    def restore(self, sent: Message, part: Part) -> Tensor:
        return _spread(sent["values"], self._places(part), part)

    def _places(self, part: Part) -> Tensor:
        """[k], or [n, k] of all clients."""
        count, clients = _count(self.share, part.size), part.key.client.view(-1, 1)
        block = max(1, _DRAWN // part.size)
        drawn = [
            random.permutations(
                part.key._replace(client=some),
                Stream.CODEC,
                part.number,
                sizes=torch.full_like(some[:, 0], part.size),
                width=part.size,
            )[:, :count]
            for some in clients.split(block)
        ]
        return torch.cat(drawn).view(*part.key.client.shape[:-1], count)


@dataclass(frozen=True)
class Quantise(WithFeedback):
    """Every entry as one of 2^bits − 1 multiples of a unit from −max|v| to max|v|, rounded up or down at random.

    Rounding is right on average (QSGD, Alistarh et al. 2017); codes are packed, so that an entry takes `bits` bits.
    """

    bits: int = 4

    def __post_init__(self) -> None:
        if self.bits not in (2, 4, 8):
            raise ValueError(f"bits must be 2, 4 or 8, got {check.shown(self.bits)}")

    @property
    def levels(self) -> int:
        """Multiples of the unit on either side of zero."""
        return (1 << self.bits - 1) - 1

    def compress(self, value: Tensor, part: Part) -> Message:
        most = value.abs().amax()
        draw = random.uniform(part.key, Stream.CODEC, part.number, (part.size,)).to(value.dtype)
        size = (value.abs() / torch.where(most > 0, most, 1) * self.levels + draw).floor().clamp_max(self.levels)
        codes = torch.where(value < 0, -size, size) + self.levels
        return {"codes": _packed(codes.to(torch.uint8), self.bits), "most": most}

    def restore(self, sent: Message, part: Part) -> Tensor:
        codes = _unpacked(sent["codes"], self.bits)[..., : part.size]
        unit = sent["most"] / self.levels
        found: Tensor = (codes.to(part.dtype) - self.levels) * unit.unsqueeze(-1)
        return found


_DRAWN = 1 << 24  # random words at a time: clients times entries


def _count(share: float, size: int) -> int:
    """How many of `size` entries a share is, at least one; what rounding of the product adds is not counted."""
    return max(1, math.ceil(share * size - 1e-9))


def _index_type(size: int) -> torch.dtype:
    """The shortest whole numbers that hold a position."""
    return torch.uint8 if size <= 1 << 8 else torch.int16 if size <= 1 << 15 else torch.int32


def _spread(values: Tensor, places: Tensor, part: Part) -> Tensor:
    zeros = values.new_zeros((*values.shape[:-1], part.size), dtype=part.dtype)
    return zeros.scatter(-1, places, values.to(part.dtype))


def _packed(codes: Tensor, bits: int) -> Tensor:
    """Codes [d] below 2^bits, several to a byte."""
    each = 8 // bits
    padded = torch.nn.functional.pad(codes, (0, -len(codes) % each)).view(-1, each)
    return (padded << _shifts(bits, codes.device)).sum(-1, dtype=torch.uint8)


def _unpacked(packed: Tensor, bits: int) -> Tensor:
    return (packed.unsqueeze(-1) >> _shifts(bits, packed.device) & (1 << bits) - 1).flatten(-2)


def _shifts(bits: int, device: torch.device) -> Tensor:
    return torch.arange(0, 8, bits, dtype=torch.uint8, device=device)


CODECS: dict[str, type[Codec]] = {"half": Half, "top-k": TopK, "random-k": RandomK, "quantise": Quantise}


def find(value: str | Codec) -> Codec:
    """A codec by its name, with options as in ``top-k(share=0.01)``; an instance is returned as it is."""
    if isinstance(value, str):
        known = {name: [option.name for option in fields(kind)] for name, kind in CODECS.items()}
        name, options = read_choice(value, "compress", "codec", known)
        return CODECS[name](**options)
    if not isinstance(value, Codec):
        raise TypeError(f"compress must be a name or a Codec such as Half(), got {shown(value)}")
    return value


def written(codec: Codec) -> str:
    """As users write it: ``top-k(share=0.05)``."""
    name = next((name for name, kind in CODECS.items() if kind is type(codec)), type(codec).__name__)
    return text_of(name, codec)
