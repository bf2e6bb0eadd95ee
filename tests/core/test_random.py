"""The generator gives the published numbers, and its draws depend on nothing but seed, round and client."""

from __future__ import annotations

import importlib.util
import os
import sys
import time

import pytest
import torch
from torch import Tensor
from torch.func import vmap

import kernel_draws
from undrift.core import random
from undrift.core.random import Key, Stream


def key(client: int | Tensor, seed: int = 5, round: int = 3) -> Key:
    return Key(seed, round, torch.as_tensor(client))


@pytest.mark.parametrize(
    ("counter", "secret", "expected"),
    [  # Random123, kat_vectors: philox4x32 10
        ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)
def test_known_answers(counter: str, secret: str, expected: str) -> None:
    def words(text: str) -> list[int]:
        return [int(word, 16) for word in text.split()]

    drawn = random.philox(tuple(torch.tensor(w) for w in words(counter)), tuple(words(secret)))  # type: ignore[arg-type]
    assert [int(w) for w in drawn] == words(expected)


def test_a_longer_draw_begins_with_a_shorter_one() -> None:
    long = random.bits(key(7), Stream.BATCHES, 0, 103)
    for count in (1, 4, 6, 102):
        assert torch.equal(random.bits(key(7), Stream.BATCHES, 0, count), long[:count])


def test_everything_in_the_key_matters() -> None:
    base = random.bits(key(7), Stream.BATCHES, 0, 8)
    others = [
        random.bits(key(8), Stream.BATCHES, 0, 8),
        random.bits(key(7, seed=6), Stream.BATCHES, 0, 8),
        random.bits(key(7, round=4), Stream.BATCHES, 0, 8),
        random.bits(key(7), Stream.DROPOUT, 0, 8),
        random.bits(key(7), Stream.BATCHES, 1, 8),
    ]
    draws = torch.stack([base, *others]).flatten()
    assert len(draws.unique()) == len(draws)


@pytest.mark.parametrize("draw", [random.uniform, random.normal])
def test_the_same_under_vmap_as_alone(draw: object) -> None:
    clients = torch.tensor([0, 3, 2**31, 99])
    alone = torch.stack([draw(key(c), Stream.DROPOUT, 2, (3, 5)) for c in clients])  # type: ignore[operator]
    together = vmap(lambda c: draw(key(c), Stream.DROPOUT, 2, (3, 5)))(clients)  # type: ignore[operator]
    assert torch.equal(together, alone)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
@pytest.mark.skipif("TRITON_INTERPRET" not in os.environ, reason="set TRITON_INTERPRET=1")
def test_the_kernel_under_the_interpreter() -> None:
    kernel_draws.compare("cpu")


def test_a_kernel_that_fails_is_not_used(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setitem(sys.modules, "undrift.core.random_kernel", None)  # its import fails
    assert random._kernel.__wrapped__(torch.device("cpu")) is None
    assert "random numbers take longer" in caplog.text


def test_uniform_fills_the_unit_interval() -> None:
    numbers = random.uniform(key(1), Stream.DROPOUT, 0, (100_000,))
    counts = torch.histc(numbers, 50, 0, 1)
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert ((counts - 2000) ** 2 / 2000).sum() < 90  # chi-square, 49 degrees of freedom: beyond 90 once in 3000


def test_normal_has_the_moments_of_a_normal() -> None:
    numbers = random.normal(key(1), Stream.DROPOUT, 0, (200_000,)).double()
    for power, moment in ((1, 0.0), (2, 1.0), (3, 0.0), (4, 3.0)):
        assert (numbers**power).mean() == pytest.approx(moment, abs=0.05)
    assert numbers.isfinite().all()


class TestPermutations:
    sizes = torch.tensor([5, 1, 12, 8])
    clients = torch.tensor([[4], [0], [9], [70_000]])

    def orders(self, width: int, step: int = 0) -> Tensor:
        return random.permutations(Key(5, 3, self.clients), Stream.BATCHES, step, self.sizes, width)

    def test_rows_are_permutations_then_padding(self) -> None:
        for row, size in zip(self.orders(12), self.sizes.tolist(), strict=True):
            assert sorted(row[:size].tolist()) == list(range(size))
            assert row[size:].tolist() == list(range(size, 12))

    def test_do_not_depend_on_the_width(self) -> None:
        narrow, wide = self.orders(12), self.orders(31)
        for size, short, long in zip(self.sizes.tolist(), narrow, wide, strict=True):
            assert torch.equal(short[:size], long[:size])

    def test_do_not_depend_on_the_company(self) -> None:
        alone = random.permutations(Key(5, 3, self.clients[2:3]), Stream.BATCHES, 0, self.sizes[2:3], 12)
        assert torch.equal(alone[0], self.orders(12)[2])

    def test_differ_between_epochs(self) -> None:
        assert not torch.equal(self.orders(12, 0)[2], self.orders(12, 1)[2])

    def test_all_orders_are_equally_likely(self) -> None:
        clients = torch.arange(6000)[:, None]
        drawn = random.permutations(Key(0, 1, clients), Stream.BATCHES, 0, torch.full((6000,), 3), 3)
        _, counts = drawn.unique(dim=0, return_counts=True)
        assert len(counts) == 6
        assert ((counts - 1000) ** 2 / 1000.0).sum() < 25  # chi-square, 5 degrees of freedom


class TestSample:
    @pytest.mark.parametrize(("population", "count"), [(10, 3), (10, 5), (10, 9), (10, 10), (10**9, 50), (1, 1)])
    def test_distinct_sorted_and_in_range(self, population: int, count: int) -> None:
        for round in range(1, 20):
            ids = random.sample(0, round, population, count)
            assert len(ids) == count
            assert (ids.diff() > 0).all()
            assert 0 <= ids[0] <= ids[-1] < population

    @pytest.mark.parametrize("count", [2, 7])
    def test_everybody_is_equally_likely(self, count: int) -> None:
        rounds, population = 1000, 10
        drawn = torch.cat([random.sample(1, r, population, count) for r in range(rounds)])
        expected = rounds * count / population
        assert ((drawn.bincount(minlength=population) - expected) ** 2 / expected).sum() < 30  # chi-square, 9 degrees

    def test_a_function_of_seed_and_round(self) -> None:
        first = random.sample(3, 8, 1000, 20)
        assert torch.equal(first, random.sample(3, 8, 1000, 20))
        assert not torch.equal(first, random.sample(3, 9, 1000, 20))
        assert not torch.equal(first, random.sample(4, 8, 1000, 20))

    def test_costs_nothing_per_client_left_out(self) -> None:
        started = time.process_time()  # of this process alone, however busy the machine is
        random.sample(0, 1, 2**31 - 1, 100)  # a pass over everybody would take a minute
        assert time.process_time() - started < 10
