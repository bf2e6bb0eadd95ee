"""Layers that pass tensors on in the blocked layout give the numbers of layers that do not."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import undrift as ud
from laws import seeded
from undrift import models
from undrift.accelerate import onednn
from undrift.client.learner import Learner

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="PyTorch was built without oneDNN")


class Around(nn.Module):
    """A stack whose input has a gradient, and which is not all there is."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 1)
        self.inside = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return (x + self.inside(x)).flatten(1)


STACKS: dict[str, Callable[[], nn.Module]] = {
    "pooling after ReLU": lambda: nn.Sequential(nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
    "pooling before ReLU": lambda: nn.Sequential(nn.Conv2d(3, 6, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten()),
    "in place": lambda: nn.Sequential(nn.Conv2d(3, 6, 5), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten()),
    "to the end": lambda: nn.Sequential(nn.Conv2d(3, 6, 5), nn.ReLU()),
    "two convolutions": lambda: nn.Sequential(nn.Conv2d(3, 6, 3), nn.Conv2d(6, 4, 3), nn.Flatten()),
    "windows that overlap": lambda: nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)),
    "groups, strides, no bias": lambda: nn.Sequential(
        nn.Conv2d(3, 6, 3, stride=2, padding=1, groups=3, bias=False), nn.ReLU(), nn.Conv2d(6, 6, 3, dilation=2)
    ),
    "normalisation between": lambda: nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.ReLU(), nn.GroupNorm(2, 6), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 4, 3), nn.ReLU()
    ),
    "inside another module": Around,
    "lenet5": lambda: models.build("lenet5", (3, 32, 32), 10),
}


def gradients(module: nn.Module, x: Tensor) -> list[Tensor]:
    """Of the output and of something that depends on all of it."""
    x = x.clone().requires_grad_()
    output = module(x)
    weights = torch.linspace(-1, 1, output.numel()).view_as(output)
    return [output, *torch.autograd.grad((output * weights).sum(), [x, *module.parameters()])]


@pytest.mark.parametrize("name", STACKS)
def test_values_and_gradients_are_the_same(name: str) -> None:
    plain = seeded(STACKS[name]).float()
    connected = copy.deepcopy(plain)
    assert onednn.connect(connected)
    x = torch.randn(5, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    assert_close(gradients(connected, x), gradients(plain, x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("level", [-1.0, 0.0, 1.0])
def test_ties_are_broken_in_the_same_way(level: float) -> None:
    """Outside of a digit all pixels are alike, and so are the activations."""
    plain = seeded(STACKS["pooling after ReLU"]).float()
    with torch.no_grad():
        plain.get_parameter("0.bias").fill_(level)
    connected = copy.deepcopy(plain)
    onednn.connect(connected)
    for a, b in zip(
        gradients(connected, torch.zeros(2, 3, 8, 8)), gradients(plain, torch.zeros(2, 3, 8, 8)), strict=True
    ):
        assert torch.equal(a, b)


class Own(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = super().forward(x)  # type: ignore[no-untyped-call]
        return output + 1


def chain(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers)


LEFT_ALONE: dict[str, Callable[[], nn.Module]] = {
    "a convolution alone": lambda: chain(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.MaxPool2d(2)),
    "circular padding": lambda: chain(nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular"), nn.ReLU()),
    "padding by name": lambda: chain(nn.Conv2d(3, 4, 3, padding="same"), nn.ReLU()),
    "windows over the edge": lambda: chain(nn.Conv2d(3, 4, 3), nn.MaxPool2d(4, ceil_mode=True)),
    "windows with holes": lambda: chain(nn.Conv2d(3, 4, 3), nn.MaxPool2d(2, dilation=2)),
    "another forward": lambda: Own(nn.Conv2d(3, 4, 3), nn.ReLU()),
    "no convolution": lambda: chain(nn.ReLU(), nn.MaxPool2d(2)),
}


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_other_layers_are_unchanged(name: str) -> None:
    plain = seeded(LEFT_ALONE[name]).float()
    connected = copy.deepcopy(plain)
    assert not onednn.connect(connected)
    x = torch.randn(2, 3, 11, 11)
    assert torch.equal(connected(x), plain(x))


def test_tensors_are_converted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One conversion at the start, one at the end, none between."""
    converted: list[str] = []

    def recorded(way: str, original: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        def convert(x: Tensor) -> Tensor:
            converted.append(way)
            return original(x)

        return convert

    for way in ("to_mkldnn", "to_dense"):
        monkeypatch.setattr(Tensor, way, recorded(way, getattr(Tensor, way)))
    lenet = models.build("lenet5", (1, 28, 28), 10)
    onednn.connect(lenet)
    lenet(torch.zeros(2, 1, 28, 28))
    assert converted == ["to_mkldnn", "to_dense"]


@pytest.mark.parametrize("side", ["input", "output"])
@pytest.mark.parametrize("layer", ["1", "2", "3"])
def test_hooks_see_ordinary_tensors(layer: str, side: str) -> None:
    """Layers with hooks get the same tensors as without the blocked layout, in their own order."""
    learner = Learner(models.build("lenet5", (1, 28, 28), 10))
    x, seen = torch.rand(3, 1, 28, 28), []
    for each in (learner, learner.replica(0)):
        with each.watch(layer, side) as noted:
            each.outputs(learner.parameters, learner.buffers, x)
        seen.append(noted)
    assert len(seen[0]) == len(seen[1]) == 1
    assert_close(seen[1], seen[0], rtol=1e-4, atol=1e-5)


def test_parameters_keep_their_names() -> None:
    plain = models.build("lenet5", (1, 28, 28), 10)
    connected = copy.deepcopy(plain)
    onednn.connect(connected)
    assert_close(dict(connected.state_dict()), dict(plain.state_dict()), rtol=0, atol=0)


@pytest.mark.parametrize("algorithm", ["scaffold", "moon", "mime"])
def test_engines_agree(algorithm: str) -> None:
    """The batched engine, under `vmap`, does not use the blocked layout."""
    generator = torch.Generator().manual_seed(1)
    data = [
        (torch.rand(n, 1, 16, 16, generator=generator), torch.randint(3, (n,), generator=generator)) for n in (9, 6, 7)
    ]
    model = models.build("lenet", (1, 16, 16), 3)
    runs = [
        ud.simulate(algorithm, model, data, data[0], rounds=2, batch_size=4, lr=0.05, engine=engine)
        for engine in ("sequential", "batched")
    ]
    assert_close(runs[0].parameters, runs[1].parameters, rtol=1e-4, atol=1e-5)
    assert_close(runs[0].history.loss.iloc[-1], runs[1].history.loss.iloc[-1], rtol=1e-4, atol=1e-5)
