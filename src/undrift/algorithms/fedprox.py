"""FedProx: a proximal term keeps clients near the model they received."""

from __future__ import annotations

from dataclasses import dataclass

from undrift.core import check, tree
from undrift.core.tree import Tree
from undrift.methods.algorithm import Algorithm
from undrift.methods.correction import At, Correction
from undrift.methods.setting import Setting
from undrift.protocol import State


@dataclass(frozen=True)
class Proximal(Correction):
    """d = g + μ (y − x): the gradient of f_i(y) + (μ/2) ‖y − x‖²."""

    mu: float

    def step(self, grad: Tree, client: State, at: At) -> tuple[Tree, State]:
        return tree.add(grad, tree.sub(at.params, at.anchor), self.mu), client


@dataclass(frozen=True)
class FedProx(Algorithm):
    """Clients are pulled back to the model they received.

    Paper:
        Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith. Federated optimization in heterogeneous networks. MLSys 2020.
        https://arxiv.org/abs/1812.06127
    Idea:
        A quadratic penalty on the distance to the received model keeps clients close. It limits drift at the price of
        slower learning.
    Equations:
        y ← y − η (g_i(y) + μ (y − x))
        x ← x + η_g Σ w_i (y_i − x)
    Options:
        mu: strength μ of the pull towards the received model; 0 is FedAvg.
    Use:
        When clients do very different amounts of work.
    Pitfalls:
        The fixed point is not the optimum; a large μ (η μ near 1) freezes the model.
    Elsewhere:
        RickZack/GHBM, fedsim and others add (μ/2)(y − x), which halves the stated μ; Flower's documented loss takes the
        norm without its square.
    """

    mu: float = 0.01

    def __post_init__(self) -> None:
        check.number("mu", self.mu, 0)

    def corrections(self, setting: Setting) -> tuple[Correction, ...]:
        return (Proximal(self.mu),)
