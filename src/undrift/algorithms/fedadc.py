"""FedADC: the server's momentum, spread over the clients' local steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from undrift.core import check, tree
from undrift.core.tree import Tree
from undrift.methods.algorithm import Algorithm
from undrift.methods.correction import At, Correction, Heard
from undrift.methods.setting import Setting
from undrift.protocol import Message, State


@dataclass(frozen=True)
class SpreadMomentum(Correction):
    """d = g + γ m / K_i;  m⁺ = (x − mean y_i)/η − (γ − β) m;  the server steps along −η m⁺.

    Either way m⁺ = β m + the mean of the clients' summed gradients. v1: γ = β. v2: γ = 1, and the server subtracts
    what clients have applied beyond β.
    """

    beta: float
    share: float  # γ, how much of the momentum clients apply
    lookahead: bool

    def server(self, model: Tree) -> State:
        return {"momentum": tree.zeros(model)}

    def broadcast(self, server: State, model: Tree) -> Message:
        return server

    def locate(self, at: At, client: State) -> At:
        if not self.lookahead:
            return at
        ahead = tree.add(at.params, at.inbox["momentum"], -at.task.lr * self.share / at.task.steps)
        return at._replace(params=ahead, origin=ahead)

    def step(self, grad: Tree, client: State, at: At) -> tuple[Tree, State]:
        if self.lookahead:
            return grad, client
        # Under the local optimiser a constant direction counts A_i times instead of K_i times.
        assert at.walked is not None, "`FedADC.corrections` refuses such optimisers"
        return tree.add(grad, at.inbox["momentum"], self.share * at.task.lr / at.walked), client

    def finish(self, update: Tree, client: State, at: At) -> tuple[Tree, State, Message]:
        return update, client, {"lr": at.task.steps * 0 + at.task.lr}

    def advance(self, update: Tree, server: State, heard: Heard) -> tuple[Tree, State]:
        lr = heard.replies["lr"][0]  # the same for all
        step = tree.add(update, server["momentum"], lr * (self.share - self.beta))
        return step, {"momentum": tree.scale(step, -1 / lr)}


@dataclass(frozen=True)
class FedADC(Algorithm):
    """Every local step carries its share of the server's momentum.

    Paper:
        Ozfatura, Ozfatura, Gündüz. FedADC: accelerated federated learning with drift control. ISIT 2021.
        https://doi.org/10.1109/ISIT45174.2021.9517850
    Idea:
        Server momentum applied after the round comes too late to prevent drift. Embedded in local steps, it keeps
        clients on the common direction while they train, and the server's own step already contains it.
    Equations:
        y ← y − η (g_i(y) + m̄);  lookahead: y ← y − η m̄, then y ← y − η g_i(y)
        v1: m̄ = β m / K_i,  m ← (x − mean y_i)/η;  v2: m̄ = m / K_i,  m ← (x − mean y_i)/η − (1 − β) m
        x ← x − a η m,  a = η_g
    Options:
        beta: momentum β; 0 in form v1 is FedAvg with equal weights.
        form: which version of the paper, "v2" or "v1".
        lookahead: take the step of the momentum first, and the gradient after it.
    Use:
        Like FedAvgM, with fewer rounds when clients take many steps.
    Pitfalls:
        The fixed point is FedAvg's, not the optimum. v1 and v2 are different methods once K_i > 1. With local momentum
        A_i replaces K_i (not with lookahead, which bypasses the optimiser). Adam and RMSprop are refused: their steps
        do not add up to m̄.
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
                f"FedADC adds momentum up over local steps, which {type(setting.optimizer).__name__} rescales; "
                "optimizer must be 'sgd' or 'nesterov'"
            )
        return (SpreadMomentum(self.beta, 1.0 if self.form == "v2" else self.beta, self.lookahead),)
