"""Adaptive federated optimisation: FedAdagrad, FedAdam and FedYogi, one rate per parameter on the server.

They differ in how the second moment s follows the square of the mean update D.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from undrift.core import check, tree
from undrift.core.tree import Tree
from undrift.methods.algorithm import Algorithm
from undrift.methods.correction import Correction, Heard
from undrift.methods.setting import Setting
from undrift.protocol import State


@dataclass(frozen=True)
class AdaptiveStep(Correction):
    """m ← β₁ m + (1 − β₁) D;  s by its rule;  the server steps along m / (√s + τ). All elementwise.

    adagrad: s ← s + D²;  adam: s ← β₂ s + (1 − β₂) D²;  yogi: s ← s − (1 − β₂) D² sign(s − D²)
    """

    rule: str
    beta1: float
    beta2: float  # Adagrad has none
    tau: float

    def server(self, model: Tree) -> State:
        return {
            "first": tree.zeros(model),
            "second": {k: torch.full_like(v, float(self.tau) ** 2) for k, v in model.items()},
        }

    def advance(self, update: Tree, server: State, heard: Heard) -> tuple[Tree, State]:
        first = tree.mix(update, server["first"], self.beta1)
        second = {k: self._second(server["second"][k], d.square()) for k, d in update.items()}
        step = {k: m / (second[k].sqrt() + self.tau) for k, m in first.items()}
        return step, {"first": first, "second": second}

    def _second(self, s: Tensor, square: Tensor) -> Tensor:
        if self.rule == "adagrad":
            return s + square
        if self.rule == "adam":
            return self.beta2 * s + (1 - self.beta2) * square
        return s - (1 - self.beta2) * square * torch.sign(s - square)


def _check(beta1: float, beta2: float, tau: float) -> None:
    check.number("beta1", beta1, 0, 1, open_high=True)
    check.number("beta2", beta2, 0, 1, open_high=True)
    check.number("tau", tau, 0, open_low=True)


@dataclass(frozen=True)
class FedAdagrad(Algorithm):
    """The server divides every parameter's step by the root of all its squared steps so far.

    Paper:
        Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan. Adaptive federated optimization. ICLR 2021.
        https://arxiv.org/abs/2003.00295
    Idea:
        The server treats the mean update as a gradient and can use any optimiser. Adagrad gives rarely moved parameters
        long steps, which suits sparse data.
    Equations:
        D = Σ w_i (y_i − x)
        m ← β₁ m + (1 − β₁) D;  s ← s + D²,  s = τ² at the start
        x ← x + η_g m / (√s + τ)
    Options:
        beta1: momentum β₁ of the server's steps.
        beta2: taken for exchange with FedAdam and FedYogi, and without effect.
        tau: added to the root that a step is divided by, τ: larger is less adaptive.
    Use:
        Language models with large vocabularies. `server_lr` is η_g, 0.1 where none is given; search it together with
        `lr` on a logarithmic grid, as the paper does for every data set.
    Pitfalls:
        A step has length about η_g in every parameter, whatever D is: `server_lr` = 1 is far too large for most models.
        s only grows, so steps shrink. The fixed point is FedAvg's, not the optimum. `beta2` is accepted so that FedAdam
        and FedYogi can be swapped in, and has no effect.
    Elsewhere:
        Most public code starts s at 0 (fluke 0.8.1, which scales D as well); some has momentum in FedAdagrad.
    """

    default_server_lr: ClassVar[float] = 0.1

    beta1: float = 0.0
    beta2: float = 0.99
    tau: float = 1e-3

    def __post_init__(self) -> None:
        _check(self.beta1, self.beta2, self.tau)

    def corrections(self, setting: Setting) -> tuple[Correction, ...]:
        return (AdaptiveStep("adagrad", self.beta1, self.beta2, self.tau),)


@dataclass(frozen=True)
class FedAdam(Algorithm):
    """The server divides every parameter's step by the root of its recent squared steps.

    Paper:
        Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan. Adaptive federated optimization. ICLR 2021.
        https://arxiv.org/abs/2003.00295
    Idea:
        The server treats the mean update as a gradient and can use any optimiser. Adam gives every parameter its own
        rate, so that one server rate serves layers of different scale.
    Equations:
        D = Σ w_i (y_i − x)
        m ← β₁ m + (1 − β₁) D;  s ← β₂ s + (1 − β₂) D²,  s = τ² at the start
        x ← x + η_g m / (√s + τ), without bias correction
    Options:
        beta1: momentum β₁ of the server's steps.
        beta2: decay β₂ of the mean of squared steps.
        tau: added to the root that a step is divided by, τ: larger is less adaptive.
    Use:
        Transformers and recurrent networks. `server_lr` is η_g, 0.01 where none is given; search it together with `lr`
        on a logarithmic grid, as the paper does for every data set.
    Pitfalls:
        A step has length about η_g in every parameter, whatever D is: `server_lr` = 1 is far too large for most models.
        τ sets how adaptive it is: far above |D| it is plain server momentum. The fixed point is FedAvg's, not the
        optimum.
    Elsewhere:
        Flower and FedJAX correct the bias, Flower with τ = 1e-9; other code starts s at 0 (FL-Simulator, and fluke
        0.8.1, which scales D as well) or squares m instead of D.
    """

    default_server_lr: ClassVar[float] = 0.01

    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3

    def __post_init__(self) -> None:
        _check(self.beta1, self.beta2, self.tau)

    def corrections(self, setting: Setting) -> tuple[Correction, ...]:
        return (AdaptiveStep("adam", self.beta1, self.beta2, self.tau),)


@dataclass(frozen=True)
class FedYogi(Algorithm):
    """Like FedAdam, but rates recover slowly after a burst of large steps.

    Paper:
        Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan. Adaptive federated optimization. ICLR 2021.
        https://arxiv.org/abs/2003.00295
    Idea:
        Adam forgets a large s within 1/(1 − β₂) rounds, however small the steps have become. Yogi changes s by no more
        than a fraction of D², so that a few small steps do not make the next one long.
    Equations:
        D = Σ w_i (y_i − x)
        m ← β₁ m + (1 − β₁) D;  s ← s − (1 − β₂) D² sign(s − D²),  s = τ² at the start
        x ← x + η_g m / (√s + τ), without bias correction
    Options:
        beta1: momentum β₁ of the server's steps.
        beta2: decay β₂ of the squared steps.
        tau: added to the root that a step is divided by, τ: larger is less adaptive.
    Use:
        Like FedAdam, when cohorts differ a lot from round to round; `server_lr` is 0.01 where none is given.
    Pitfalls:
        As for FedAdam: `server_lr` = 1 is far too large for most models, and the fixed point is FedAvg's.
    Elsewhere:
        Most public code starts s at 0 (fluke 0.8.1, which scales D as well); FedJAX corrects the bias.
    """

    default_server_lr: ClassVar[float] = 0.01

    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3

    def __post_init__(self) -> None:
        _check(self.beta1, self.beta2, self.tau)

    def corrections(self, setting: Setting) -> tuple[Correction, ...]:
        return (AdaptiveStep("yogi", self.beta1, self.beta2, self.tau),)
