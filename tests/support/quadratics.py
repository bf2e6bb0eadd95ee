"""Heterogeneous quadratics f_i(x) = ½ Σ_d a_id (x_d − b_id)², on which every path can be worked out by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import undrift as ud


class Point(nn.Module):
    """A model that is its parameter: the output for every sample is the point itself."""

    def __init__(self, start: Sequence[float]) -> None:
        super().__init__()
        self.point = nn.Parameter(torch.tensor(start, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.point.expand(len(x), -1)


def half_square(output: Tensor, target: Tensor) -> Tensor:
    """½ Σ a (x − b)² with the curvature a and the centre b in the target [B, 2, d]."""
    curvature, centre = target[:, 0], target[:, 1]
    return 0.5 * (curvature * (output - centre) ** 2).sum(1)


@dataclass(frozen=True)
class Quadratics:
    curvature: tuple[tuple[float, ...], ...]  # a, a row per client
    centre: tuple[tuple[float, ...], ...]  # b
    start: tuple[float, ...]
    lr: float
    steps: int = 2
    samples: tuple[int, ...] = ()  # copies of its sample that a client holds; default one each

    @property
    def a(self) -> np.ndarray:
        return np.array(self.curvature)

    @property
    def b(self) -> np.ndarray:
        return np.array(self.centre)

    def data(self) -> list[tuple[Tensor, Tensor]]:
        counts = self.samples or (1,) * len(self.curvature)
        return [
            (torch.zeros(n, 1, dtype=torch.float64), torch.tensor([[a, b]] * n, dtype=torch.float64))
            for a, b, n in zip(self.curvature, self.centre, counts, strict=True)
        ]

    def optimum(self, weights: Sequence[float] | None = None) -> np.ndarray:
        """The minimiser of Σ p_i f_i."""
        p = np.full(len(self.a), 1 / len(self.a)) if weights is None else np.array(weights)
        return (p[:, None] * self.a * self.b).sum(0) / (p[:, None] * self.a).sum(0)

    def run(self, algorithm: Any, rounds: int, **options: Any) -> tuple[np.ndarray, ud.Run]:
        """The server's points after every round [rounds, d], and the run; by default full batches and all clients."""
        path: list[np.ndarray] = []
        settings: dict[str, Any] = {"lr": self.lr, "steps": self.steps, "batch_size": None} | options
        callbacks = settings.pop("callbacks", ())
        run = ud.simulate(
            algorithm,
            Point(self.start),
            self.data(),
            loss=half_square,
            rounds=rounds,
            callbacks=[lambda row, run: path.append(run.models[0]["point"].numpy().copy()), *callbacks],
            **settings,
        )
        return np.array(path), run


@dataclass(frozen=True)
class Terrain:
    """What a fixed point depends on, ready for formulas: arrays that broadcast to [clients, d]."""

    a: np.ndarray  # [clients, d] curvatures
    b: np.ndarray  # [clients, d] centres
    p: np.ndarray  # [clients, 1] weights of the objective
    k: np.ndarray  # [clients, 1] local steps
    lr: float
    start: np.ndarray  # [d] the initial model

    def walk(self, rate: float | np.ndarray = 1.0) -> np.ndarray:
        """M = 1 − (1 − rate·lr·a)^k: the part of the way to its centre that a client walks in a round."""
        return 1 - (1 - rate * self.lr * self.a) ** self.k

    def balance(self, pull: np.ndarray) -> np.ndarray:
        """The point x with Σ p_i pull_i (x − b_i) = 0."""
        return (self.p * pull * self.b).sum(0) / (self.p * pull).sum(0)

    @property
    def optimum(self) -> np.ndarray:
        return self.balance(self.a)


def walk(
    start: np.ndarray, direction: Callable[[np.ndarray], np.ndarray], steps: int, *, lr: float, momentum: float = 0.0
) -> np.ndarray:
    """Where local steps along `direction` lead: b ← ρ b + d(y), y ← y − η b."""
    y, buffer = start, np.zeros_like(start)
    for _ in range(steps):
        buffer = momentum * buffer + direction(y)
        y = y - lr * buffer
    return y


def length(steps: int, momentum: float) -> float:
    """A = ‖a‖₁: how far such steps lead along a constant unit direction at rate one."""
    return sum((1 - momentum ** (steps - k)) / (1 - momentum) for k in range(steps))


def remembered(run: ud.Run, correction: str) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """What a correction keeps of points: on the server [d], and on all clients [clients, d]."""
    everyone = run.memory.own.gather(np.arange(len(run.clients)))

    def points(kept: dict[str, Any]) -> dict[str, np.ndarray]:
        return {k: v["point"].numpy().copy() for k, v in kept.get(correction, {}).items() if isinstance(v, dict)}

    return points(run.memory.server), points(everyone)


# Reference problems of the golden vectors
P2 = Quadratics(((1.0,), (3.0,)), ((0.0,), (4.0,)), (1.0,), lr=0.1)  # optimum 3
P3 = Quadratics(((1.0,), (3.0,), (2.0,)), ((0.0,), (4.0,), (1.0,)), (1.0,), lr=0.1)  # optimum 7/3
# P3 where the clients hold one, four and two copies of their sample: batches of one give as many steps an epoch.
SIZED = Quadratics(**vars(P3) | {"samples": (1, 4, 2)})
BY_ONES: dict[str, Any] = {"steps": None, "batch_size": 1}
