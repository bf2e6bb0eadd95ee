"""On a GPU: the same numbers as on a CPU, and bit-identical reruns. `pytest -m gpu` on a machine that has one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import undrift as ud
from undrift import random
from undrift.random import Key, Stream

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def federation(seed: int = 0) -> list[tuple[Tensor, Tensor]]:
    """Six clients of unequal size, images of 1×8×8, four classes."""
    generator = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(n, 1, 8, 8, generator=generator), torch.randint(4, (n,), generator=generator))
        for n in (10, 7, 16, 9, 12, 5)
    ]


def plain() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 4))


def convolutional() -> nn.Module:
    """Batch normalisation, dropout of units and of maps: all that could draw or count differently."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.Tanh(),
        nn.Dropout2d(0.2),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(144, 4),
    )


def run(algorithm: Any, model: nn.Module, device: str, **options: Any) -> ud.Run:
    settings: dict[str, Any] = {
        "rounds": 4,
        "cohort": 3,
        "lr": 0.05,
        "batch_size": 4,
        "dtype": "float64",
        "device": device,
    }
    return ud.simulate(algorithm, model, federation(), **(settings | options))


def close(a: ud.Run, b: ud.Run, tolerance: float = 1e-9) -> bool:
    return all(torch.allclose(v.cpu(), b.parameters[k].cpu(), rtol=0, atol=tolerance) for k, v in a.parameters.items())


def test_draws_are_the_same_bits() -> None:
    for client in (0, 5, 2**31):
        here = random.bits(Key(3, 7, torch.tensor(client)), Stream.BATCHES, 2, 1001)
        there = random.bits(Key(3, 7, torch.tensor(client, device="cuda")), Stream.BATCHES, 2, 1001)
        assert torch.equal(here, there.cpu())


@pytest.mark.parametrize("name", sorted(ud.algorithms.available()))
def test_every_algorithm_gives_the_numbers_of_the_cpu(name: str) -> None:
    model = convolutional() if name in ("fedbn", "moon") else plain()
    assert close(run(name, model, "cuda"), run(name, model, "cpu", engine="sequential"))


@pytest.mark.parametrize("engine", ["batched", "batched:2", "sequential"])
def test_dropout_and_batch_normalisation(engine: str) -> None:
    model = convolutional()
    here = run("fedavg", model, "cpu", engine="sequential")
    there = run("fedavg", model, "cuda", engine=engine)
    assert close(here, there)
    assert all(torch.allclose(v.double(), there.buffers[k].cpu().double()) for k, v in here.buffers.items())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_rerun_gives_the_same_bits(dtype: str) -> None:
    first, second = (run("scaffold", convolutional(), "cuda", dtype=dtype, rounds=6) for _ in range(2))
    assert all(torch.equal(v, second.parameters[k]) for k, v in first.parameters.items())


def test_resume_gives_the_same_bits(tmp_path: Any) -> None:
    whole = run("fedhbm", plain(), "cuda", rounds=6)
    run("fedhbm", plain(), "cuda", rounds=3, out=tmp_path / "run")
    rest = ud.resume(tmp_path / "run", rounds=6, model=plain(), data=federation())
    assert all(torch.equal(v, rest.parameters[k]) for k, v in whole.parameters.items())


def test_auto_batches_convolutions() -> None:
    assert run("fedavg", convolutional(), "cuda").engine.startswith("batched")
