"""The option `precision` on a CPU; `test_gpu.py` tests what needs a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import undrift as ud


def federation() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [
        (torch.randn(n, 1, 8, 8, generator=generator), torch.randint(4, (n,), generator=generator))
        for n in (10, 7, 16, 9)
    ]


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.GroupNorm(2, 4),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(36, 4),
    )


def run(**options: Any) -> ud.Run:
    settings: dict[str, Any] = {"rounds": 3, "lr": 0.05, "batch_size": 4, "device": "cpu", "engine": "batched"}
    return ud.simulate("scaffold", model(), federation(), federation()[0], **(settings | options))


def distance(a: ud.Run, b: ud.Run) -> float:
    gap = sum(float((v - b.parameters[k]).square().sum()) for k, v in a.parameters.items())
    return (gap / sum(float(v.square().sum()) for v in b.parameters.values())) ** 0.5


@pytest.mark.parametrize("engine", ["batched", "sequential"])
def test_half_precision_rounds_products_and_keeps_parameters_in_single_precision(engine: str) -> None:
    exact, half = run(precision="fp32", engine=engine), run(precision="bf16", engine=engine)
    assert 1e-4 < distance(half, exact) < 2e-2  # eight bits of mantissa
    assert {v.dtype for v in half.parameters.values()} == {torch.float32}
    assert {v.dtype for v in half.buffers.values() if v.is_floating_point()} == {torch.float32}
    assert half.precision == "bf16"


def test_half_precision_is_reproducible() -> None:
    first, second = run(precision="bf16"), run(precision="bf16")
    assert all(torch.equal(v, second.parameters[k]) for k, v in first.parameters.items())


def test_resuming_keeps_the_precision(tmp_path: Any) -> None:
    whole = run(precision="bf16")
    run(precision="bf16", rounds=1, out=tmp_path / "run")
    rest = ud.resume(tmp_path / "run", rounds=3, model=model(), data=federation(), test=federation()[0])
    assert rest.precision == "bf16"
    assert all(torch.equal(v, rest.parameters[k]) for k, v in whole.parameters.items())


def test_the_default_on_a_cpu_is_fp32() -> None:
    found, exact = run(), run(precision="fp32")
    assert found.precision == "fp32"
    assert all(torch.equal(v, exact.parameters[k]) for k, v in found.parameters.items())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": "fp16"}, "precision must be one of"),
        ({"precision": "tf32"}, "needs a GPU"),
        ({"precision": "bf16", "dtype": "float64"}, "for models in float32, got float64"),
    ],
    ids=str,
)
def test_unsupported_precisions_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(**options)
