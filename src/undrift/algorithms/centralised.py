"""Training on the pooled data: no federated algorithm, but what they are measured by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from undrift.client.optim import SGD, Optimizer
from undrift.core import check
from undrift.core.tree import Tree
from undrift.methods.algorithm import Algorithm
from undrift.methods.averaging import Averaging
from undrift.methods.correction import At, Correction
from undrift.methods.setting import Setting
from undrift.protocol import Method, State


@dataclass(frozen=True)
class KeptOptimizer(Correction):
    """Steps of an optimiser whose state outlasts the round: momentum is kept across epochs."""

    key: ClassVar[str] = "optimizer"

    optimizer: Optimizer

    def client(self, model: Tree) -> State:
        return self.optimizer.init(model)

    def step(self, grad: Tree, client: State, at: At) -> tuple[Tree, State]:
        return self.optimizer.update(grad, client)


@dataclass(frozen=True)
class Centralised(Algorithm):
    """One model is trained on the samples of all clients in one place, as a reference.

    Paper:
        Zaccone, Masone, Ciccone. Communication-efficient heterogeneous federated learning with generalized heavy-ball
        momentum. 2023. Table 6.
        https://arxiv.org/abs/2311.18578
    Idea:
        What could be reached if the data need not stay where they are. Model, loss, batch size, rate and optimiser are
        those of the federated runs; the optimiser keeps its momentum from epoch to epoch.
    Equations:
        b ← ρ b + g(x);  x ← x − η b  over the samples of all clients, epoch after epoch
    Options:
        epochs: passes over all samples, one in a round; None for as many as the clients of a federated run with these
            settings take in all.
    Use:
        `undrift compare --centralised`, for relative targets and as a line to look at the others against.
    Pitfalls:
        It is no bound: with momentum or another rate than the best for it, a federated run may end higher.
    Elsewhere:
        Papers often train their reference with other settings than the federated runs: a momentum of 0.9, cosine decay.
    """

    pooled: ClassVar[bool] = True

    epochs: int | None = None

    def __post_init__(self) -> None:
        if self.epochs is not None:
            check.integer("epochs", self.epochs, 1)
        if self.pgvc is not None:
            raise ValueError("Centralised has no clients that could differ, so that pgvc has no meaning")

    def method(self, setting: Setting) -> Method:
        return Averaging((KeptOptimizer(setting.optimizer),), optimizer=SGD())
