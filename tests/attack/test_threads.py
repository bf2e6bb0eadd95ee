"""Bits and threads: what docs/reproducibility.md promises, on random models, algorithms, cohorts and options."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
import torch
from torch import nn

import undrift as ud
from undrift.reporting.record import TIMES

ALGORITHMS = (
    "fedavg",
    "scaffold",
    "fedhbm",
    "feddyn",
    "moon",
    "mime",
    "fednova",
    "feddpc",
    "fedvarp",
    "fedadam",
    "fedbn",
)
THREADS = (1, 2, 3)


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def perceptron(rng: Random) -> tuple[nn.Module, tuple[int, ...]]:
    """Wide enough for PyTorch to split its sums and products."""
    width, hidden = rng.choice((30, 300, 700)), rng.choice((40, 257, 512))
    layers: list[nn.Module] = [nn.Linear(width, hidden), rng.choice((nn.ReLU(), nn.Tanh()))]
    if rng.random() < 0.4:
        layers.append(rng.choice((nn.LayerNorm(hidden), nn.BatchNorm1d(hidden))))
    if rng.random() < 0.4:
        layers.append(nn.Dropout(0.3))
    return nn.Sequential(*layers, nn.Linear(hidden, 5)), (width,)


def convolution(rng: Random) -> tuple[nn.Module, tuple[int, ...]]:
    channels, side = rng.choice((3, 16)), rng.choice((8, 13))
    layers: list[nn.Module] = [nn.Conv2d(2, channels, 3, padding=1), nn.ReLU()]
    if rng.random() < 0.5:
        layers.append(rng.choice((nn.BatchNorm2d(channels), nn.GroupNorm(1, channels))))
    return nn.Sequential(*layers, nn.MaxPool2d(2), nn.Flatten(), nn.LazyLinear(5)), (2, side, side)


def run(case: dict[str, Any], threads: int, **more: Any) -> ud.Run:
    torch.set_num_threads(threads)
    found = ud.simulate(**case, **more)
    assert torch.get_num_threads() == threads  # as the caller had it
    return found


def assert_same(a: ud.Run, b: ud.Run) -> None:
    others = b.parameters
    assert all(torch.equal(v, others[k]) for k, v in a.parameters.items())
    assert a.history.drop(columns=TIMES).equals(b.history.drop(columns=TIMES))
    assert a.evaluate().equals(b.evaluate())


def case(rng: Random, model: nn.Module, shape: tuple[int, ...]) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(rng.randrange(1 << 30))
    sizes = [rng.randint(3, 60) for _ in range(rng.choice((1, 2, 5, 9)))]
    x, y = torch.randn(300, *shape, generator=generator), torch.randint(5, (300,), generator=generator)
    torch.manual_seed(rng.randrange(1 << 30))
    with torch.no_grad():
        model.eval()(x[:2])  # makes lazy layers
    for part in model.modules():
        if callable(reset := getattr(part, "reset_parameters", None)):
            reset()
    data = [(torch.randn(n, *shape, generator=generator), torch.randint(5, (n,), generator=generator)) for n in sizes]
    algorithm = rng.choice(ALGORITHMS)
    return {
        "algorithm": algorithm,
        "model": model,
        "data": data,
        "test": (x, y),
        "rounds": 2,
        "batch_size": rng.choice((7, 32, None)),
        "cohort": rng.choice((None, rng.randint(1, len(sizes)))),
        "clip": rng.choice((None, 1.0)),
        "optimizer": rng.choice(("sgd", "adam", "rmsprop")),
        "weight_decay": rng.choice((0.0, 1e-3)),
        "seed": rng.randrange(1 << 30),
    }


@pytest.mark.attack(short=3, long=120)
def test_sequential(rng: Random) -> None:
    """One core for a client, whatever the number of threads."""
    given = case(rng, *rng.choice((perceptron, convolution))(rng)) | {"engine": "sequential"}
    first, *others = (run(given, threads) for threads in THREADS)
    for other in others:
        assert other.environment["engine"] == "sequential"
        assert_same(first, other)


@pytest.mark.attack(short=1, long=40)
def test_cores_of_a_client_are_part_of_the_setting(rng: Random) -> None:
    given = case(rng, *convolution(rng)) | {"engine": f"sequential:{rng.choice((2, 3))}"}
    first, *others = (run(given, threads) for threads in THREADS)
    for other in others:
        assert_same(first, other)


@pytest.mark.attack(short=2, long=40)
def test_what_auto_chose_can_be_repeated(rng: Random) -> None:
    """The engine that was chosen, given by its setting, makes the same bits on another number of threads."""
    given = case(rng, *convolution(rng))
    first = run(given, rng.choice(THREADS))
    assert_same(first, run(given | {"engine": first.environment["engine"]}, rng.choice(THREADS)))


@pytest.mark.attack(short=2, long=40)
def test_reruns_of_every_engine(rng: Random) -> None:
    given = case(rng, *perceptron(rng)) | {"engine": rng.choice(("batched", "batched:2", "auto"))}
    threads = rng.choice(THREADS)
    assert_same(run(given, threads), run(given, threads))
