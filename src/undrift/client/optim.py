"""Local optimisers: what a client does with a direction. Their state starts afresh in every round.

Adam and RMSprop, which take a dozen operations, do them on one vector where a model is small: launching as many kernels
for every tensor takes longer than computing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from undrift.core import check, tree
from undrift.core.tree import State, Tree
from undrift.core.wide import widest


class Optimizer(Protocol):
    def init(self, params: Tree) -> State: ...
    def update(self, direction: Tree, state: State) -> tuple[Tree, State]: ...
    def gain(self, steps: Tensor) -> Tensor | None:
        """A_i: the displacement of `steps` steps along a constant unit direction at rate one.

        It takes the place of K_i wherever a displacement is divided by ``K_i * lr`` (FedNova's ‖a_i‖₁). None when the
        displacement is no linear function of the gradients.
        """
        ...


@dataclass(frozen=True)
class SGD:
    """``b ← ρ b + d``; step along ``b`` (heavy ball) or ``d + ρ b`` (Nesterov), as `torch.optim.SGD` does."""

    momentum: float = 0.0
    nesterov: bool = False

    def init(self, params: Tree) -> State:
        return {"buffer": tree.zeros(params)} if self.momentum else {}

    def update(self, direction: Tree, state: State) -> tuple[Tree, State]:
        if not self.momentum:
            return direction, state
        buffer = tree.add(direction, state["buffer"], self.momentum)
        step = tree.add(direction, buffer, self.momentum) if self.nesterov else buffer
        return step, {"buffer": buffer}

    def gain(self, steps: Tensor) -> Tensor | None:
        rho = self.momentum
        if not rho:
            return steps
        heavy_ball = (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)
        return steps + rho * heavy_ball if self.nesterov else heavy_ball


@dataclass(frozen=True)
class Adam:
    """Kingma and Ba, with the bias corrections of `torch.optim.Adam`."""

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8

    def init(self, params: Tree) -> State:
        device = next(iter(params.values())).device
        step, zeros = torch.zeros((), dtype=widest(device), device=device), tree.zeros(tree.to_vectors(params))
        return {"mean": zeros, "square": zeros, "step": step}

    def update(self, direction: Tree, state: State) -> tuple[Tree, State]:
        step, given = state["step"] + 1, tree.to_vectors(direction)
        mean = tree.mix(state["mean"], given, 1 - self.beta1)
        square = {k: self.beta2 * state["square"][k] + (1 - self.beta2) * d * d for k, d in given.items()}
        rise, spread = 1 - self.beta1**step, torch.sqrt(1 - self.beta2**step)
        update = {
            k: (m / rise.to(m.dtype)) / (torch.sqrt(square[k]) / spread.to(m.dtype) + self.eps) for k, m in mean.items()
        }
        return tree.from_vectors(update, direction), {"mean": mean, "square": square, "step": step}

    def gain(self, steps: Tensor) -> Tensor | None:
        return None


@dataclass(frozen=True)
class RMSprop:
    """``v ← α v + (1 − α) d²``; step along ``d / (√v + ε)``, as `torch.optim.RMSprop` does."""

    alpha: float = 0.99
    eps: float = 1e-8

    def init(self, params: Tree) -> State:
        return {"square": tree.zeros(tree.to_vectors(params))}

    def update(self, direction: Tree, state: State) -> tuple[Tree, State]:
        given = tree.to_vectors(direction)
        square = {k: self.alpha * state["square"][k] + (1 - self.alpha) * d * d for k, d in given.items()}
        update = {k: d / (torch.sqrt(square[k]) + self.eps) for k, d in given.items()}
        return tree.from_vectors(update, direction), {"square": square}

    def gain(self, steps: Tensor) -> Tensor | None:
        return None


def _sgd(momentum: float) -> Optimizer:
    return SGD(momentum)


def _nesterov(momentum: float) -> Optimizer:
    if not momentum:
        raise ValueError("optimizer='nesterov' needs a momentum greater than 0, got 0.0")
    return SGD(momentum, nesterov=True)


def _adam(momentum: float) -> Optimizer:
    if momentum:
        raise ValueError(f"momentum belongs to 'sgd' and 'nesterov'; optimizer='adam' has its own, got {momentum}")
    return Adam()


def _rmsprop(momentum: float) -> Optimizer:
    if momentum:
        raise ValueError(f"momentum belongs to 'sgd' and 'nesterov'; optimizer='rmsprop' has none, got {momentum}")
    return RMSprop()


_FACTORIES: dict[str, Callable[[float], Optimizer]] = {
    "sgd": _sgd,
    "nesterov": _nesterov,
    "adam": _adam,
    "rmsprop": _rmsprop,
}
OPTIMIZERS = tuple(_FACTORIES)


def optimizer(name: str, momentum: float) -> Optimizer:
    """An optimiser by name."""
    check.choice("optimizer", name, OPTIMIZERS)
    check.number("momentum", momentum, 0, 1, open_high=True)
    return _FACTORIES[name](momentum)
