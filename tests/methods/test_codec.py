"""Message codecs: what travels is encoded and counted, what the server hears is decoded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import undrift as ud
from laws import FIRST_OF_EVERY_KIND, SHORT, SIZES, Law, classified, mlp, normed
from undrift.core import tree
from undrift.core.random import Key
from undrift.core.tree import Tree
from undrift.methods import codecs
from undrift.methods.codec import Codec, Received
from undrift.methods.codecs import Half, Quantise, RandomK, TopK, WithFeedback
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
    heard = Half().decode(sent, Received({}, torch.float32, Key(0, 1, torch.tensor([[0]]))))
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


@pytest.mark.parametrize("law", FIRST_OF_EVERY_KIND)
def test_every_algorithm_trains_with_it(law: Law) -> None:
    """Engines agree, states keep their structure, less is sent up."""
    options = {**law.options, "compress": "half"}
    alone = run(law.algorithm, law.model, engine="sequential", **options)
    together = run(law.algorithm, law.model, engine="batched:2", **options)
    # Rounding to bfloat16 may fall to either side of a tie, so that engines agree to its precision only.
    for name, value in alone.parameters.items():
        assert_close(together.parameters[name], value, rtol=0.02, atol=0.02 * float(value.abs().max()))
    plain = run(law.algorithm, law.model, engine="sequential", **law.options)
    assert tree.same_structure(plain.memory.server, alone.memory.server)
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

    def decode(self, replies: Message, at: Received) -> Message:
        return replies | {"update": {k: self.unit * v.to(at.dtype) for k, v in replies["update"].items()}}


def test_a_codec_keeps_a_state_on_clients() -> None:
    kept = run("fedhbm", compress=ErrorFeedback(0.01))
    states = kept.memory.own.gather(np.arange(len(SIZES)))
    assert states["codec"]["lost"].keys() == kept.parameters.keys()
    seen = torch.tensor(kept.clients["rounds"].to_numpy() > 0)
    for value in states["codec"]["lost"].values():
        assert float(value.abs().max()) <= 0.005 + 1e-12
        assert bool((value.flatten(1).abs().amax(1) > 0).eq(seen).all())
    assert "HeavyBall" in states


def test_codecs_by_name() -> None:
    assert codecs.find("half") == Half()
    assert codecs.find(ErrorFeedback(0.1)) == ErrorFeedback(0.1)
    with pytest.raises(ValueError, match="unknown codec 'hlaf'; did you mean 'half'"):
        codecs.find("hlaf")
    with pytest.raises(TypeError, match="compress must be a name or a Codec"):
        codecs.find(Half)  # type: ignore[arg-type]


# Compressed updates


def key(client: int, round: int = 1) -> Key:
    return Key(7, round, torch.tensor(client))


UPDATE = {"weight": torch.tensor([[0.5, -3.0, 0.1], [2.0, 0.0, -0.2]]), "bias": torch.tensor([0.3, -0.4])}


def travel(codec: WithFeedback, update: Tree, lost: State, client: int = 0, round: int = 1) -> tuple[Tree, State]:
    """What the server hears of one client's update, and what the client keeps."""
    sent, state = codec.encode({"update": update}, lost, key(client, round))
    stacked = tree.map_nest(lambda v: v[None], sent)
    at = Received(update, next(iter(update.values())).dtype, Key(7, round, torch.tensor([[client]])))
    return tree.row(codec.decode(stacked, at)["update"], 0), state


def test_top_k_by_hand() -> None:
    codec = TopK(share=0.3)  # two of six, one of two
    heard, state = travel(codec, UPDATE, codec.client(UPDATE))
    assert_close(
        heard, {"weight": torch.tensor([[0.0, -3.0, 0.0], [2.0, 0.0, 0.0]]), "bias": torch.tensor([0.0, -0.4])}
    )
    assert_close(tree.add(heard, state["lost"]), UPDATE)
    heard, _ = travel(codec, UPDATE, state)  # 0.5 + 0.5 and 0.3 + 0.3: what was lost is sent later
    assert_close(heard["bias"], torch.tensor([0.6, 0.0]))
    tied, _ = travel(codec, {"weight": torch.tensor([1.0, -1.0, 1.0])}, {"lost": {"weight": torch.zeros(3)}})
    assert tied["weight"].tolist() == [1.0, 0.0, 0.0]


def test_random_k_sends_values_only_and_other_ones_every_round() -> None:
    codec, update = RandomK(share=0.25), {"weight": torch.arange(1.0, 101.0)}
    sent, state = codec.encode({"update": update}, codec.client(update), key(3))
    assert [v.shape for v in tree.leaves(sent)] == [(25,)]
    heard = [
        travel(codec, update, codec.client(update), client, round)[0]["weight"]
        for client, round in [(3, 1), (3, 2), (4, 1)]
    ]
    places = [set(value.nonzero().flatten().tolist()) for value in heard]
    assert all(len(place) == 25 for place in places)
    assert places[0] != places[1] != places[2] != places[0]
    assert all(bool((value[value != 0] == update["weight"][value != 0]).all()) for value in heard)
    assert_close(heard[0] + state["lost"]["weight"], update["weight"])
    often = torch.stack([travel(codec, update, codec.client(update), 0, r)[0]["weight"] != 0 for r in range(1, 61)])
    assert float(often.double().mean(0).min()) > 0.05  # everything has its turn
    assert float(often.double().mean(0).max()) < 0.5


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_quantisation_rounds_to_neighbours_and_is_right_on_average(bits: int) -> None:
    codec = Quantise(bits)
    update = {"weight": torch.randn(33, generator=torch.Generator().manual_seed(1), dtype=torch.float64)}
    unit = float(update["weight"].abs().max()) / codec.levels
    heard = torch.stack([travel(codec, update, codec.client(update), 0, r)[0]["weight"] for r in range(1, 101)])
    assert float((heard - update["weight"]).abs().max()) <= unit * (1 + 1e-6)
    assert_close(heard / unit, (heard / unit).round(), rtol=0, atol=1e-9)
    assert float((heard.mean(0) - update["weight"]).abs().max()) < 5 * unit / 2 / 100**0.5
    zero, state = travel(codec, tree.zeros(update), codec.client(update))
    assert not zero["weight"].any()
    assert not state["lost"]["weight"].any()
    spoilt, _ = travel(codec, {"weight": torch.tensor([1.0, torch.nan])}, {"lost": {"weight": torch.zeros(2)}})
    assert bool(spoilt["weight"].isnan().any())  # so that divergence is seen


def expected_bytes(codec: str, sizes: list[int], number: int) -> int:
    """Of one client, by hand; numbers take `number` bytes."""
    if codec.startswith("quantise"):
        return sum(-(-size * 4 // 8) + number for size in sizes)
    counts = [-(-size // 10) for size in sizes]
    places = 0 if codec.startswith("random") else sum(counts)  # a byte each: all tensors have up to 256 entries
    return sum(counts) * number + places


@pytest.mark.parametrize("codec", ["top-k(share=0.1)", "random-k(share=0.1)", "quantise(bits=4)"])
def test_traffic_engines_and_resume_of_compressed_updates(codec: str, tmp_path: Path) -> None:
    alone = run(compress=codec, engine="sequential")
    together = run(compress=codec, engine="batched:2")
    assert_close(together.parameters, alone.parameters, rtol=1e-9, atol=1e-9)
    sizes = [p.numel() for p in mlp().parameters()]
    assert max(sizes) <= 256
    assert (alone.history.bytes_up == 3 * expected_bytes(codec, sizes, 8)).all()  # three clients, float64
    assert (alone.history.bytes_up == together.history.bytes_up).all()
    run(compress=codec, engine="sequential", rounds=2, out=tmp_path / "run")
    resumed = ud.resume(tmp_path / "run", rounds=3, model=mlp(), data=classified())
    assert_close(resumed.parameters, alone.parameters, rtol=0, atol=0)
    kept = alone.memory.own.gather(np.arange(len(SIZES)))["codec"]["lost"]
    assert any(bool(value.any()) for value in kept.values())


@pytest.mark.parametrize("name", ["top-k(share=0.3)", "quantise(bits=2)"])
def test_what_is_lost_is_sent_later(name: str) -> None:
    """Of six coordinates two travel; around the optimum, where updates cancel but are not zero, all are learned."""
    chosen, points = codecs.find(name), []
    assert isinstance(chosen, WithFeedback)
    centres = [{"x": torch.randn(6, generator=torch.Generator().manual_seed(seed))} for seed in range(2)]
    point, states = {"x": torch.full((6,), 9.0)}, [chosen.client(centres[0])] * 2
    for round in range(1, 81):
        heard = []
        for client, centre in enumerate(centres):
            update, states[client] = travel(
                chosen, tree.scale(tree.sub(centre, point), 0.1), states[client], client, round
            )
            heard.append(update)
        point = tree.add(point, tree.mean(tree.stack(heard), torch.full((2,), 0.5)))
        points.append(point["x"])
    assert_close(torch.stack(points[40:]).mean(0), (centres[0]["x"] + centres[1]["x"]) / 2, rtol=0, atol=0.15)


def test_private_parameters_are_not_compressed() -> None:
    found = run("fedbn", normed, compress="top-k(share=0.5)")
    assert found.rounds == 3
    lost = found.memory.own.gather(np.arange(len(SIZES)))["codec"]["lost"]
    assert not lost["1.weight"].any()
    assert lost["0.weight"].any()


def test_codecs_with_options() -> None:
    assert codecs.find("top-k(share=0.05)") == TopK(0.05)
    assert codecs.written(Quantise(2)) == "quantise(bits=2)"
    for text, message in {
        "top-k(k=3)": "the codec top-k has no option 'k'",
        "quantise(bits=3)": "bits must be 2, 4 or 8, got 3",
        "random-k(share=0)": "share must be",
        "topk": "unknown codec 'topk'; did you mean 'top-k'",
    }.items():
        with pytest.raises(ValueError, match=message):
            codecs.find(text)
