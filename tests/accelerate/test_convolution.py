"""Convolutions for many clients at once: what surrounds the kernels, with kernels in plain PyTorch in their place.

The kernels themselves are tested against these on a GPU (`test_gpu.py`), or anywhere under Triton's interpreter.
"""

from __future__ import annotations

import copy
import importlib.util
import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

import plain_kernels
from undrift.accelerate import convolution

CLIENTS, BATCH = 3, 4


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution, "_kernels", lambda: plain_kernels)


def models() -> Iterator[Any]:
    """Name, layers, and how many convolutions are fused with what follows."""
    conv = nn.Conv2d(2, 4, 3, padding=1)
    yield pytest.param([conv, nn.ReLU(), nn.MaxPool2d(2)], 1, id="relu-pool")
    yield pytest.param([conv, nn.MaxPool2d(2), nn.ReLU()], 1, id="pool-relu")
    yield pytest.param([conv, nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 6, 2), nn.ReLU(), nn.MaxPool2d(2)], 2, id="two")
    yield pytest.param([conv, nn.Tanh(), nn.MaxPool2d(2)], 0, id="tanh")
    yield pytest.param([conv, nn.ReLU(), nn.MaxPool2d(3)], 0, id="pool-3")
    yield pytest.param([conv, nn.ReLU(), nn.MaxPool2d(2, stride=1)], 0, id="overlapping")
    yield pytest.param([conv, nn.ReLU(), nn.MaxPool2d(2, ceil_mode=True)], 0, id="ceiling")
    yield pytest.param([nn.Conv2d(2, 4, (3, 2), stride=(2, 1), bias=False), nn.ReLU()], 0, id="strided")
    yield pytest.param([nn.Conv2d(2, 4, 3, padding=3, dilation=2), nn.ReLU()], 0, id="dilated")
    yield pytest.param([conv, nn.ReLU(), nn.Conv2d(4, 4, 3, groups=2)], 0, id="grouped")
    yield pytest.param([nn.Conv2d(2, 4, 3, padding=1, padding_mode="reflect"), nn.ReLU()], 0, id="reflected")


def built(layers: list[nn.Module]) -> tuple[nn.Module, dict[str, Tensor], Tensor]:
    """The module, parameters for every client, and their samples of 2×7×9."""
    torch.manual_seed(0)
    x = torch.randn(CLIENTS, BATCH, 2, 7, 9)
    body = nn.Sequential(*copy.deepcopy(layers), nn.Flatten())
    module = nn.Sequential(body, nn.Linear(body(x[0]).shape[1], 3)).double()
    noise = {k: torch.randn(CLIENTS, *v.shape, dtype=v.dtype) for k, v in module.named_parameters()}
    return module, {k: v.detach() + 0.1 * noise[k] for k, v in module.named_parameters()}, x.double()


def slopes(module: nn.Module, params: dict[str, Tensor], x: Tensor, shared: bool = False) -> dict[str, Tensor]:
    def loss(own: dict[str, Tensor], samples: Tensor) -> Tensor:
        return functional_call(module, own, (samples,)).square().mean()

    if shared:
        return vmap(grad(loss), in_dims=(None, 0))({k: v[0] for k, v in params.items()}, x)
    return vmap(grad(loss))(params, x)


def close(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return all(torch.allclose(v, b[k], rtol=1e-10, atol=1e-12) for k, v in a.items())


@pytest.mark.parametrize(("layers", "fused"), list(models()))
@pytest.mark.parametrize("shared", [False, True])
def test_gradients_are_those_of_pytorch(layers: list[nn.Module], fused: int, shared: bool) -> None:
    module, params, x = built(layers)
    expected = slopes(module, params, x, shared)
    assert convolution.accelerate(module) or "reflect" in str(layers[0])
    plain_kernels.calls.clear()
    with convolution.for_many_clients(True):
        found = slopes(module, params, x, shared)
    assert close(found, expected)
    assert sum(name == "pooled" for name in plain_kernels.calls) == fused
    assert close(slopes(module, params, x, shared), expected)  # and as before, outside


def test_hooks_between_fused_layers_are_called() -> None:
    module, params, x = built([nn.Conv2d(2, 4, 3), nn.ReLU(), nn.MaxPool2d(2)])
    assert convolution.accelerate(module)
    seen: list[Tensor] = []
    handle = module[0][1].register_forward_hook(lambda part, given, output: seen.append(output))  # type: ignore[index]
    with convolution.for_many_clients(True):
        found = slopes(module, params, x)
    assert seen[0].shape[-2:] == (5, 7)  # not pooled yet
    handle.remove()
    assert close(found, slopes(module, params, x))


def test_a_copy_has_convolutions_of_its_own() -> None:
    module, _, x = built([nn.Conv2d(2, 4, 3), nn.ReLU(), nn.MaxPool2d(2)])
    assert convolution.accelerate(module)
    other = copy.deepcopy(module)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.fill_(torch.nan)
    with convolution.for_many_clients(True):
        out = vmap(lambda samples: other(samples))(x)
    assert bool(torch.isfinite(out).all())


def test_nan_is_propagated() -> None:
    module, params, x = built([nn.Conv2d(2, 4, 3), nn.ReLU(), nn.MaxPool2d(2)])
    assert convolution.accelerate(module)
    params["0.0.weight"][1] = torch.nan
    with convolution.for_many_clients(True):
        found = slopes(module, params, x)
    assert torch.isfinite(found["1.bias"]).all(1).tolist() == [True, False, True]


def test_nothing_to_accelerate() -> None:
    assert not convolution.accelerate(nn.Linear(2, 2))


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
@pytest.mark.skipif("TRITON_INTERPRET" not in os.environ, reason="set TRITON_INTERPRET=1")
@pytest.mark.parametrize("case", plain_kernels.CASES, ids=str)
def test_kernels_under_the_interpreter(case: plain_kernels.Case) -> None:
    plain_kernels.compare(case, "cpu", 1e-4)
