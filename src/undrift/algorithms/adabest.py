"""AdaBest: a bias estimate that decays while its client is absent."""

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
class AdaptiveBias(Correction):
    """d = g − h_i, then h_i ← h_i/(t − t_i) + μ (x − y_i), t_i the round of the last participation.

    The server extrapolates in the direction in which the average moved: x ← x̄ + β (x̄ − x̄⁻).
    """

    mu: float
    beta: float
    per_step: bool

    def server(self, model: Tree) -> State:
        return {"average": model}

    def client(self, model: Tree) -> State:
        never = next(iter(model.values())).new_zeros((), dtype=torch.int64)
        return {"bias": tree.zeros(model), "last": never}

    def step(self, grad: Tree, client: State, at: At) -> tuple[Tree, State]:
        return tree.sub(grad, client["bias"]), client

    def finish(self, update: Tree, client: State, at: At) -> tuple[Tree, State, Message]:
        now, task = at.task.key.round, at.task  # rounds count from 1, so that a first participation divides by t ≥ 1
        decayed = tree.scale(client["bias"], 1 / (now - client["last"]).to(task.samples.dtype))
        rate = self.mu / task.steps if self.per_step else self.mu
        return update, {"bias": tree.add(decayed, update, -rate), "last": client["last"] * 0 + now}, {}

    def advance(self, update: Tree, server: State, heard: Heard) -> tuple[Tree, State]:
        average = tree.add(heard.model, update)
        return tree.add(update, tree.sub(average, server["average"]), self.beta), {"average": average}


@dataclass(frozen=True)
class AdaBest(Algorithm):
    """FedDyn with bias estimates that decay and a server correction that stays bounded.

    Paper:
        Varno, Saghayi, Rafiee Sevyeri, Gupta, Matwin, Havaei. AdaBest: minimizing client drift in federated learning
        via adaptive bias estimation. ECCV 2022.
        https://arxiv.org/abs/2204.13170
    Idea:
        A client subtracts an estimate of its own bias, which decays with the rounds it was absent. The server's
        correction is computed afresh in every round from the last two averages, so that it cannot grow as FedDyn's can.
    Equations:
        y ← y − η (g_i(y) − h_i)
        h_i ← h_i / (t − t_i) + μ (x − y_i);  t_i ← t
        x̄ ← mean_S y_i;  x ← x̄ − β (x̄⁻ − x̄)
    Options:
        mu: rate μ at which a client's estimate of its bias grows.
        beta: strength β of the server's correction, below 1.
        per_step: divide μ by the number of local steps.
    Use:
        Many clients that take part rarely, at FedAvg's traffic.
    Pitfalls:
        Under full participation it converges to the minimum of f + (μ(1−β)/2) ‖x − x⁰‖², not of f; β must be less than
        1. `per_step` uses μ/K_i instead of μ, and clients are then weighted by their steps: with uniform weights and
        K_i proportional to n_i that is the sample objective. It fixes the server's step, so `server_lr` is refused.
    Elsewhere:
        The authors' fedsim applies μ/K_i where h_i is used and not where it is stored, which is the same while K_i
        stays the same: `per_step` agrees with it. RickZack/GHBM never updates t_i, so that h_i is nearly erased.
    """

    weighting: ClassVar[str] = "uniform"
    own_step: ClassVar[bool] = True

    mu: float = 0.1
    beta: float = 0.8
    per_step: bool = False

    def __post_init__(self) -> None:
        check.number("mu", self.mu, 0)
        check.number("beta", self.beta, 0, 1, open_high=True)
        check.flag("per_step", self.per_step)

    def corrections(self, setting: Setting) -> tuple[Correction, ...]:
        return (AdaptiveBias(self.mu, self.beta, self.per_step),)
