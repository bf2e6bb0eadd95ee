"""Message codecs: what travels is encoded and counted, what the server hears is decoded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import undrift as ud
from laws import FIRST, SHORT, SIZES, Law, classified, mlp, normed
from undrift.core import tree
from undrift.core.random import Key
from undrift.core.tree import Tree
from undrift.methods import codec
from undrift.methods.codec import Codec, Half
from undrift.protocol import Message, State

pytestmark = pytest.mark.usefixtures("networks_are_tried_once")


def run(algorithm: Any = "fedavg", model: Any = mlp, **options: Any) -> ud.Run:
    return ud.simulate(algorithm, model(), classified(), **SHORT | options)


def test_half_is_near_and_keeps_what_must_be_exact() -> None:
    reply: Message = {
        "update": {"weight": torch.tensor([1.0, 1e-30, -3e-6]), "double": torch.ones(2, dtype=torch.float64)},
        "steps": torch.tensor(257.0),
        "choice": torch.tensor([300]),
    }
    sent, state = Half().encode(reply, {}, Key(0, 1, torch.tensor(0)))
    assert state == {}
    assert sent["update"]["weight"].dtype is torch.bfloat16
    assert sent["update"]["double"].dtype is torch.bfloat16
    heard = Half().decode(sent, torch.float32)
    assert_close(heard["update"]["weight"], reply["update"]["weight"], rtol=2**-8, atol=0)
    assert heard["steps"] == 257
    assert heard["choice"].dtype is torch.int64


def test_bytes_up_halve() -> None:
    plain = run(dtype="float32").history
    half = run(dtype="float32", compress="half").history
    assert (2 * half.bytes_up == plain.bytes_up).all()
    assert (half.bytes_down == plain.bytes_down).all()


def test_numbers_are_near_the_uncompressed_ones() -> None:
    plain, half = run().parameters, run(compress="half").parameters
    start = {name: p.detach() for name, p in mlp().named_parameters()}
    for name, value in half.items():
        moved = float((plain[name] - start[name]).norm())
        assert 0 < float((value - plain[name]).norm()) < 0.02 * moved


@pytest.mark.parametrize("law", FIRST, ids=lambda law: law.name)
def test_every_algorithm_trains_with_it(law: Law) -> None:
    """Engines agree, states keep their structure, less is sent up."""
    options = {**law.options, "compress": "half"}
    alone = run(law.algorithm, law.model, engine="sequential", **options)
    together = run(law.algorithm, law.model, engine="batched:2", **options)
    # Rounding to bfloat16 may fall to either side of a tie, so that engines agree to its precision only.
    for name, value in alone.parameters.items():
        assert_close(together.parameters[name], value, rtol=0.02, atol=0.02 * float(value.abs().max()))
    plain = run(law.algorithm, law.model, engine="sequential", **law.options)
    assert tree.same_structure(plain._server, alone._server)
    assert (alone.history.bytes_up < 0.5 * plain.history.bytes_up).all()  # float64 becomes a quarter
    assert (alone.history.bytes_down == plain.history.bytes_down).all()


def test_buffers_travel_in_half_too() -> None:
    assert run(model=normed, compress="half").buffers["1.running_mean"].dtype is torch.float64
    assert run(model=normed, compress="half").buffers["1.num_batches_tracked"].dtype is torch.int64


@dataclass(frozen=True)
class ErrorFeedback(Codec):
    """Rounds updates to whole multiples of `unit`, and adds what was lost to the next update."""

    unit: float

    def client(self, model: Tree) -> State:
        return {"lost": tree.zeros(model)}

    def encode(self, reply: Message, state: State, key: Key) -> tuple[Message, State]:
        wanted = tree.add(reply["update"], state["lost"])
        sent = {name: (value / self.unit).round().to(torch.int32) for name, value in wanted.items()}
        lost = {name: value - self.unit * sent[name] for name, value in wanted.items()}
        return reply | {"update": sent}, {"lost": lost}

    def decode(self, replies: Message, dtype: torch.dtype) -> Message:
        return replies | {"update": {k: self.unit * v.to(dtype) for k, v in replies["update"].items()}}


def test_a_codec_keeps_a_state_on_clients() -> None:
    kept = run("fedhbm", compress=ErrorFeedback(0.01))
    states = kept._states.gather(np.arange(len(SIZES)))
    assert states["codec"]["lost"].keys() == kept.parameters.keys()
    seen = torch.tensor(kept.clients["rounds"].to_numpy() > 0)
    for value in states["codec"]["lost"].values():
        assert float(value.abs().max()) <= 0.005 + 1e-12
        assert bool((value.flatten(1).abs().amax(1) > 0).eq(seen).all())
    assert "HeavyBall" in states


def test_codecs_by_name() -> None:
    assert codec.find("half") == Half()
    assert codec.find(ErrorFeedback(0.1)) == ErrorFeedback(0.1)
    with pytest.raises(ValueError, match="unknown codec 'hlaf'; did you mean 'half'"):
        codec.find("hlaf")
    with pytest.raises(TypeError, match="compress must be a name or a Codec"):
        codec.find(Half)  # type: ignore[arg-type]
