"""FedADC: the server's momentum, paid out over the clients' steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from undrift.core import check, tree
from undrift.core.tree import Tree
from undrift.methods.algorithm import Algorithm, Setting
from undrift.methods.correction import At, Correction, Heard
from undrift.protocol import Message, State


@dataclass(frozen=True)
class SpreadMomentum(Correction):
    """d = g + γ m / K_i;  m⁺ = (x − mean y_i)/η − (γ − β) m;  the server steps along −η m⁺.

    Either way m⁺ = β m + the mean of the clients' summed gradients. v1: γ = β. v2: γ = 1, and the server takes back
    the part that clients were lent.
    """

    beta: float
    lent: float  # γ
    lookahead: bool

    def server(self, model: Tree) -> State:
        return {"momentum": tree.zeros(model)}

    def broadcast(self, server: State, model: Tree) -> Message:
        return server

    def shift(self, params: Tree, client: State, at: At) -> Tree:
        if not self.lookahead:
            return params
        return tree.add(params, at.inbox["momentum"], -at.task.lr * self.lent / at.task.steps)

    def step(self, grad: Tree, client: State, at: At) -> tuple[Tree, State]:
        if self.lookahead:
            return grad, client
        # The local optimiser stretches what it is given from K_i to A_i steps.
        assert at.walked is not None, "refused when made"
        return tree.add(grad, at.inbox["momentum"], self.lent * at.task.lr / at.walked), client

    def finish(self, update: Tree, client: State, at: At) -> tuple[Tree, State, Message]:
        return update, client, {"lr": at.task.steps * 0 + at.task.lr}

    def advance(self, update: Tree, server: State, heard: Heard) -> tuple[Tree, State]:
        lr = heard.replies["lr"][0]  # the same for all
        step = tree.add(update, server["momentum"], lr * (self.lent - self.beta))
        return step, {"momentum": tree.scale(step, -1 / lr)}


@dataclass(frozen=True)
class FedADC(Algorithm):
    """Every local step carries its share of the server's momentum.

    Paper:
        Ozfatura, Ozfatura, Gündüz. FedADC: accelerated federated learning with drift control. ISIT 2021.
    Idea:
        Server momentum applied after the round comes too late to hold clients together. Embedded in their steps, it
        steers them along the common course while they train, and the server's own step contains it already.
    Equations:
        y ← y − η (g_i(y) + m̄);  lookahead: y ← y − η m̄, then y ← y − η g_i(y)
        v1: m̄ = β m / K_i,  m ← (x − mean y_i)/η;  v2: m̄ = m / K_i,  m ← (x − mean y_i)/η − (1 − β) m
        x ← x − a η m,  a = η_g
    Use:
        As FedAvgM, with fewer rounds when clients take many steps.
    Pitfalls:
        The fixed point is FedAvg's, not the optimum. v1 and v2 are different methods once K_i > 1. With local momentum
        A_i takes the place of K_i (not with lookahead, which passes the optimiser by); Adam is refused, whose steps do
        not add up to m̄.
    Elsewhere:
        v1 is FedCM and GHB(1) in other units. One public version adds m̄ once an epoch instead of every step.
    """

    weighting: ClassVar[str] = "uniform"

    beta: float = 0.9
    form: str = "v2"
    lookahead: bool = False

    def __post_init__(self) -> None:
        check.number("beta", self.beta, 0, 1, open_high=True)
        check.choice("form", self.form, ("v2", "v1"))
        check.flag("lookahead", self.lookahead)

    def corrections(self, setting: Setting) -> tuple[Correction, ...]:
        if setting.optimizer.gain(torch.ones(())) is None:
            raise ValueError(
                "FedADC adds momentum up over local steps, which Adam rescales; optimizer must be 'sgd' or 'nesterov'"
            )
        return (SpreadMomentum(self.beta, 1.0 if self.form == "v2" else self.beta, self.lookahead),)
