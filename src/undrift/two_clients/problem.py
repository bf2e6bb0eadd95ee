"""Two clients whose losses are quadratics of two numbers, f_i(w) = ½ (w − b_i)ᵀ A_i (w − b_i).

The mean of their optima b_i is far from the optimum of the mean loss, (Σ A_i)⁻¹ Σ A_i b_i, because each client's loss
is steep in one direction and flat in the other. Federated averaging with many local steps ends near the former.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

Array = np.ndarray[Any, np.dtype[np.float64]]


class Point(nn.Module):
    """A model that is its parameter: its output for every sample is the point itself."""

    def __init__(self, start: Array) -> None:
        super().__init__()
        self.point = nn.Parameter(torch.tensor(start))

    def forward(self, x: Tensor) -> Tensor:
        return self.point.expand(len(x), -1)


def quadratic(output: Tensor, target: Tensor) -> Tensor:
    """½ (w − b)ᵀ A (w − b) with the rows of A and then b in the target [B, 3, 2]."""
    curvature, centre = target[:, :2], target[:, 2]
    offset = output - centre
    return 0.5 * (offset * (curvature @ offset[..., None])[..., 0]).sum(1)


@dataclass(frozen=True)
class Quadratic:
    """The loss of a client, or the mean of several."""

    curvature: Array  # A [2, 2]
    centre: Array  # b [2]

    @property
    def sample(self) -> tuple[Tensor, Tensor]:
        """What a client with this loss holds: one sample, whose target is the loss."""
        return torch.zeros(1, 1, dtype=torch.float64), torch.tensor(np.vstack([self.curvature, self.centre]))[None]

    def height(self, point: Array) -> float:
        """The loss at a point, above its minimum."""
        offset = point - self.centre
        return float(0.5 * offset @ self.curvature @ offset)


def _tilted(steep: float, flat: float, degrees: float, centre: tuple[float, float]) -> Quadratic:
    """A valley: steep across, flat along a line at this angle."""
    along = np.array([np.cos(np.radians(degrees)), np.sin(np.radians(degrees))])
    curvature = steep * np.eye(2) - (steep - flat) * np.outer(along, along)
    return Quadratic(curvature, np.array(centre))


CLIENTS = (
    _tilted(steep=1.0, flat=0.1, degrees=102, centre=(-1.5, -1.9)),
    _tilted(steep=0.8, flat=0.1, degrees=-12, centre=(2.3, 1.3)),
)
START = np.array([2.6, -0.9])


def mean_loss() -> Quadratic:
    """What all clients together minimise, up to a constant."""
    curvature = sum((each.curvature for each in CLIENTS), np.zeros((2, 2))) / len(CLIENTS)
    pull = sum((each.curvature @ each.centre for each in CLIENTS), np.zeros(2)) / len(CLIENTS)
    return Quadratic(curvature, np.asarray(np.linalg.solve(curvature, pull), dtype=np.float64))
