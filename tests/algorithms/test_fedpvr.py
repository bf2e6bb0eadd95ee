from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import undrift as ud
from laws import TRAINING, classified, mlp
from quadratics import P2, Quadratics, half_square
from undrift.algorithms import SCAFFOLD, FedAvg, FedPVR


class Coordinate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.ones(1, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.value.expand(len(x), -1)


class TwoLayers(nn.Module):
    """A point in the plane whose coordinates are layers."""

    def __init__(self) -> None:
        super().__init__()
        self.low, self.high = Coordinate(), Coordinate()

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.low(x), self.high(x)], 1)


SEPARABLE = Quadratics(((1.0, 2.0), (3.0, 5.0)), ((0.0, 1.0), (4.0, -2.0)), (1.0, 1.0), lr=0.05, steps=3)


def settle(algorithm: ud.Algorithm, rounds: int = 80, **options: Any) -> np.ndarray:
    settings: dict[str, Any] = {"rounds": rounds, "lr": 0.05, "steps": 3, "batch_size": None} | options
    run = ud.simulate(algorithm, TwoLayers(), SEPARABLE.data(), loss=half_square, **settings)
    return np.array([run.parameters["low.value"].item(), run.parameters["high.value"].item()])


@pytest.mark.parametrize("option", ["I", "II"])
@pytest.mark.parametrize("layers", [1, ["high.value"]])
def test_corrected_coordinates_reach_the_optimum_and_the_others_fedavgs_point(option: str, layers: Any) -> None:
    np.testing.assert_allclose(settle(FedPVR(layers, option)), [2.9205298, -1.14285714], rtol=1e-7)


def test_fedavg_reaches_neither() -> None:
    np.testing.assert_allclose(settle(FedAvg()), [2.9205298, -1.0425438], rtol=1e-7)


@pytest.mark.parametrize("option", ["I", "II"])
def test_the_control_is_the_mean_of_all_in_every_round(option: str) -> None:
    def look(row: dict[str, Any], run: ud.Run) -> None:
        server = run.memory.server["ControlVariates"]["control"]
        clients = run.memory.own.gather(np.arange(5))["ControlVariates"]["control"]
        assert set(server) == {"2.weight", "2.bias", "4.weight", "4.bias"}
        for name, control in server.items():
            torch.testing.assert_close(control, clients[name].mean(0), rtol=1e-12, atol=1e-14)

    run = ud.simulate(FedPVR(option=option), mlp(), classified(), **TRAINING | {"callbacks": [look]})
    assert run.memory.server["ControlVariates"]["control"]["4.bias"].abs().max() > 0


@pytest.mark.parametrize("option", ["I", "II"])
def test_two_rounds_of_a_partial_cohort_by_hand(option: str) -> None:
    """The low coordinate is plain; the high one is corrected, and c is divided by everybody."""
    a, b, lr = SEPARABLE.a, SEPARABLE.b, 0.05
    x = np.ones(2)

    def trained(i: int, correction: np.ndarray) -> np.ndarray:
        y = x
        for _ in range(3):
            y = y - lr * (a[i] * (y - b[i]) + correction)
        return y

    first = trained(0, np.zeros(2))
    slope = a[0] * (x - b[0]) if option == "I" else (x - first) / (3 * lr)
    c = np.array([0, slope[1]]) / 2
    x = first
    second = trained(1, c)
    np.testing.assert_allclose(settle(FedPVR(1, option), 2, cohort=[[0], [1]]), second, rtol=1e-12)


def test_the_default_fits_models_of_one_layer() -> None:
    np.testing.assert_array_equal(P2.run(FedPVR(), 5)[0], P2.run(SCAFFOLD(), 5)[0])


def test_first_round_is_fedavg() -> None:
    np.testing.assert_array_equal(settle(FedPVR(1), 1), settle(FedAvg(), 1))


def test_refuses_more_layers_than_there_are() -> None:
    with pytest.raises(ValueError, match="layers must lie between 0 and the model's 2 layers, got 3"):
        settle(FedPVR(3), 1)
    with pytest.raises(ValueError, match="option"):
        FedPVR(option="2")
