"""The recurrence of our LSTM is PyTorch's: alone, for many clients at once, and by the fused cells of a GPU."""

from __future__ import annotations

import copy
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from undrift.accelerate import recurrence
from undrift.core import torch_private
from undrift.models.lstm import LSTM

CLIENTS, BATCH, TIME, INPUTS, UNITS = 3, 4, 6, 5, 7
on_gpu = (pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"))
DEVICES = ["cpu", pytest.param("cuda", marks=on_gpu)]


def pair(biases: int, device: str) -> tuple[LSTM, nn.LSTM]:
    torch.manual_seed(0)
    ours = LSTM(INPUTS, UNITS, biases).double().to(device)
    theirs = nn.LSTM(INPUTS, UNITS, batch_first=True).double().to(device)
    weights = {f"{k}_l0": v for k, v in ours.state_dict().items()}
    theirs.load_state_dict({"bias_hh_l0": torch.zeros_like(theirs.get_parameter("bias_hh_l0"))} | weights)
    return ours, theirs


def samples(device: str, *leading: int) -> Tensor:
    return torch.randn(*leading, BATCH, TIME, INPUTS, dtype=torch.float64, device=device)


def weighted(output: Tensor) -> Tensor:
    """A loss to which every output contributes differently."""
    return (output * torch.arange(output.numel(), device=output.device).view(output.shape).cos()).sum()


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("biases", [1, 2])
def test_alone(biases: int, device: str) -> None:
    ours, theirs = pair(biases, device)
    x = samples(device).requires_grad_()
    expected = theirs(x)[0]
    close(ours(x), expected)
    mine = torch.autograd.grad(weighted(ours(x)), [x, ours.weight_ih, ours.weight_hh, ours.bias_ih])
    same = [theirs.get_parameter(name) for name in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0")]
    wanted = torch.autograd.grad(weighted(expected), [x, *same])
    for a, b in zip(mine, wanted, strict=True):
        close(a, b)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("biases", [1, 2])
@pytest.mark.parametrize("shared", ["nothing", "samples", "weights"])
def test_many_clients_at_once(shared: str, biases: int, device: str) -> None:
    ours, theirs = pair(biases, device)
    ours.requires_grad_(False)
    x = samples(device, CLIENTS)
    stacked = {k: torch.stack([v + 0.1 * i for i in range(CLIENTS)]) for k, v in ours.state_dict().items()}
    axes = (None if shared == "weights" else 0, None if shared == "samples" else 0)
    given = (ours.state_dict() if shared == "weights" else stacked, x[0] if shared == "samples" else x)

    def loss(weights: dict[str, Tensor], x: Tensor) -> Tensor:
        return weighted(functional_call(ours, weights, (x,)))

    (by_weights, by_x), values = vmap(grad_and_value(loss, argnums=(0, 1)), in_dims=axes)(*given)
    for i in range(CLIENTS):
        own = {k: (v if shared == "weights" else v[i]) for k, v in given[0].items()}
        theirs.load_state_dict(theirs.state_dict() | {f"{k}_l0": v for k, v in own.items()})
        seen = (given[1] if shared == "samples" else x[i]).clone().requires_grad_()
        value = weighted(theirs(seen)[0])
        wanted = torch.autograd.grad(value, [seen, *(getattr(theirs, f"{k}_l0") for k in own)])
        for a, b in zip([values[i], by_x[i], *(by_weights[k][i] for k in own)], [value.detach(), *wanted], strict=True):
            close(a, b)


def test_one_step_of_time() -> None:
    """Nothing recurs, and the recurrent weight has no gradient."""
    ours, theirs = pair(2, "cpu")
    ours.requires_grad_(False)
    x = torch.randn(CLIENTS, BATCH, 1, INPUTS, dtype=torch.float64)

    def loss(weights: dict[str, Tensor], x: Tensor) -> Tensor:
        return weighted(functional_call(ours, weights, (x,)))

    found, values = vmap(grad_and_value(loss), in_dims=(None, 0))(ours.state_dict(), x)
    close(values[1], weighted(theirs(x[1])[0]).detach())
    assert not found["weight_hh"].any()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("options", [{}, {"num_layers": 2}, {"bias": False}, {"batch_first": False}], ids=str)
def test_pytorchs_own_for_many_clients_at_once(options: dict[str, Any], device: str) -> None:
    """Outputs, the last hidden states and the last cells, and the gradients of all three."""
    torch.manual_seed(0)
    theirs = nn.LSTM(INPUTS, UNITS, **{"batch_first": True} | options).double().to(device)
    ours = copy.deepcopy(theirs).requires_grad_(False)
    recurrence.accelerate(ours)
    stacked = {k: torch.stack([v + 0.1 * i for i in range(CLIENTS)]) for k, v in ours.state_dict().items()}
    x = samples(device, CLIENTS)

    def loss(module: nn.Module, weights: dict[str, Tensor], x: Tensor) -> Tensor:
        output, (hidden, cell) = functional_call(module, weights, (x,))
        return weighted(output) + weighted(hidden.square()) + weighted(cell.exp())

    found, values = vmap(grad_and_value(partial(loss, ours)))(stacked, x)
    for i in range(CLIENTS):
        own = {k: v[i].clone().requires_grad_() for k, v in stacked.items()}
        value = loss(theirs, own, x[i])
        for a, b in zip(found.values(), torch.autograd.grad(value, list(own.values())), strict=True):
            close(a[i], b)
        close(values[i], value.detach())


def test_alone_it_stays_as_it_was() -> None:
    module = nn.LSTM(INPUTS, UNITS, batch_first=True).double()
    x, start = samples("cpu"), (torch.ones(1, BATCH, UNITS).double(), torch.ones(1, BATCH, UNITS).double())
    expected = module(x, start)[0]
    recurrence.accelerate(module)
    assert torch.equal(module(x, start)[0], expected)
    twin = copy.deepcopy(module)
    with torch.no_grad():
        twin.get_parameter("weight_hh_l0").zero_()
    assert torch.equal(module(x, start)[0], expected)
    assert not torch.equal(twin(x, start)[0], expected)


@pytest.mark.parametrize("device", DEVICES)
def test_half_precision(device: str) -> None:
    """Two layers, as what comes out of the first one is in half precision already."""
    torch.manual_seed(0)
    module = nn.Sequential(LSTM(INPUTS, UNITS), LSTM(UNITS, UNITS)).to(device).requires_grad_(False)
    stacked = {k: torch.stack([v + 0.1 * i for i in range(CLIENTS)]) for k, v in module.state_dict().items()}
    x = samples(device, CLIENTS).float()

    def loss(half: bool) -> Any:
        def of(weights: dict[str, Tensor], x: Tensor) -> Tensor:
            with torch.autocast(device, torch.bfloat16, enabled=half, cache_enabled=False):
                output = functional_call(module, weights, (x,))
            return weighted(output.float())

        return vmap(grad_and_value(of))(stacked, x)

    (half, _), (single, _) = loss(True), loss(False)
    for name in stacked:
        assert half[name].dtype is torch.float32
        torch.testing.assert_close(half[name], single[name], rtol=0.1, atol=0.1)


@pytest.mark.parametrize("dtype", [pytest.param(d, marks=on_gpu) for d in (torch.float32, torch.bfloat16)])
def test_fused_cells_and_plain_operations_agree(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator("cuda").manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, device="cuda").to(dtype)

    inputs, weight = draw(CLIENTS, BATCH, TIME, 4 * UNITS), draw(CLIENTS, 4 * UNITS, UNITS)
    gradient, last = draw(CLIENTS, BATCH, TIME, UNITS), draw(CLIENTS, BATCH, UNITS)

    def both() -> list[Any]:
        hidden, _, gates, cells = recurrence._forward(inputs, weight)
        return [hidden, cells, *recurrence._backward(gradient, last, weight, hidden, gates, cells)]

    fused = both()
    monkeypatch.setattr(torch.ops, "aten", SimpleNamespace())  # a version of PyTorch without fused cells
    assert torch_private.fused_lstm_cell() is None
    near = 1e-4 if dtype is torch.float32 else 0.1
    for a, b in zip(fused, both(), strict=True):
        torch.testing.assert_close(a, b, rtol=near, atol=near)
