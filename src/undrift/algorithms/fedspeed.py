"""FedSpeed: FedDyn's dynamic regulariser with gradients taken after an ascent step, as in SAM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from undrift.algorithms.feddyn import DynamicRegularizer
from undrift.client.learner import Batch, Loss, Losses
from undrift.core import check, tree
from undrift.core.tree import Tree
from undrift.methods.algorithm import Algorithm
from undrift.methods.correction import At, Correction
from undrift.methods.setting import Setting
from undrift.protocol import State

_TINY = 1e-7  # a gradient of zero has no direction


@dataclass(frozen=True)
class AscentStep(Correction):
    """The loss becomes (1 − a) f_i(y) + a f_i(y + ρ g₁/‖g₁‖), g₁ = g_i(y) held fixed, on the same batch."""

    rho: float
    mix: float

    def objective(self, loss: Loss, client: State, at: At) -> Loss:
        slope = at.task.gradient(at.params, at.batch).gradient
        ascent = tree.scale(slope, self.rho / (tree.dot(slope, slope).sqrt() + _TINY))

        def perturbed(params: Tree, batch: Batch) -> Losses:
            there = loss(tree.add(params, ascent), batch)
            if self.mix == 1:
                return there._replace(changed={})  # what a model does to parameters at another point is not kept
            here = loss(params, batch)
            return here._replace(values=torch.lerp(here.values, there.values, self.mix))

        return perturbed


@dataclass(frozen=True)
class FedSpeed(Algorithm):
    """FedDyn with gradients taken after a small ascent step, which favours flat minima.

    Paper:
        Sun, Shen, Huang, Ding, Tao. FedSpeed: larger local interval, less communication round, and higher
        generalization accuracy. ICLR 2023.
        https://arxiv.org/abs/2302.10429
    Idea:
        FedDyn's correction lets clients take many steps without drifting apart. Gradients at the worst point nearby
        lead them to flat minima, which generalise better.
    Equations:
        g₁ = g_i(y);  g₂ = g_i(y + ρ g₁/‖g₁‖) on the same batch;  g = (1 − a) g₁ + a g₂
        y ← y − η (g − ĝ_i + (1/λ)(y − x))
        ĝ_i ← ĝ_i − (1/λ)(y_i − x)
        h ← h − (1/(λN)) Σ_S (y_i − x);  x ← mean_S y_i − λ h
    Options:
        lam: λ, of which 1/λ is the strength of the proximal term.
        rho: length ρ of the ascent step; 0 is FedDyn with α = 1/λ.
        mix: share of the gradient that is taken after the ascent step.
    Use:
        Deep models with many local steps and few rounds.
    Pitfalls:
        Two gradients a step, three with a mix a between 0 and 1. With ρ > 0 the fixed point is not the optimum of the
        plain loss; `rho=0` is FedDyn with α = 1/λ. Weight decay is taken at y. It fixes the server's step, so
        `server_lr` is refused.
    Elsewhere:
        The paper writes y + ρ g₁, its code divides by the norm, as here. Averaging λ ĝ_i over the cohort alone never
        converges under partial participation.
    """

    weighting: ClassVar[str] = "uniform"
    own_step: ClassVar[bool] = True

    lam: float = 10.0
    rho: float = 0.1
    mix: float = 1.0

    def __post_init__(self) -> None:
        check.number("lam", self.lam, 0, open_low=True)
        check.number("rho", self.rho, 0)
        check.number("mix", self.mix, 0, 1)

    def corrections(self, setting: Setting) -> tuple[Correction, ...]:
        regularizer = DynamicRegularizer(1 / self.lam)
        return (AscentStep(self.rho, self.mix), regularizer) if self.rho and self.mix else (regularizer,)
