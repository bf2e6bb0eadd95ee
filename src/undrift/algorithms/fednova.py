"""FedNova: average directions, not displacements."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from undrift.client.optim import Optimizer
from undrift.client.task import Task
from undrift.core import check, tree
from undrift.core.tree import Tree
from undrift.methods.algorithm import Algorithm
from undrift.methods.correction import At, Correction, Heard
from undrift.methods.setting import Setting
from undrift.protocol import Message, State


@dataclass(frozen=True)
class ProximalStep(Correction):
    """y ← y − η s − η μ (y − x), s the optimiser's step: the proximal term stays out of the momentum buffer."""

    mu: float

    def move(self, change: Tree, client: State, at: At) -> Tree:
        return tree.add(change, tree.sub(at.params, at.anchor), -at.task.lr * self.mu)


@dataclass(frozen=True)
class NormalisedAveraging(Correction):
    """Δ = τ_eff Σ w_i Δ_i / A_i;  τ_eff = Σ w_i A_i, or Σ w_i K_i with a proximal term."""

    optimizer: Optimizer
    mu: float

    def length(self, task: Task) -> Tensor:
        """A_i = Σ_k (1 − ημ)^{K_i − k} (A(k) − A(k − 1)): later proximal steps shrink what step k added.

        A(k) is the optimiser's own gain over k steps, or k where it has none (Adam, RMSprop: the mean of the steps that
        it took); without a proximal term the sum is A(K_i).
        """
        numbers = torch.arange(1, len(task.active) + 1, dtype=task.steps.dtype, device=task.steps.device)  # [J]
        gain, before = self._gain(numbers), self._gain(numbers - 1)
        left = task.steps - numbers  # [J], negative where this client has finished
        kept = torch.where(left >= 0, (1 - task.lr * self.mu) ** left.clamp_min(0), 0)
        return ((gain - before) * kept).sum()

    def _gain(self, steps: Tensor) -> Tensor:
        gain = self.optimizer.gain(steps)
        return steps if gain is None else gain

    def finish(self, update: Tree, client: State, at: At) -> tuple[Tree, State, Message]:
        length = self.length(at.task)
        return tree.scale(update, 1 / length), client, {"length": at.task.steps if self.mu else length}

    def advance(self, update: Tree, server: State, heard: Heard) -> tuple[Tree, State]:
        return tree.scale(update, heard.cohort.weights @ heard.replies["length"]), server


@dataclass(frozen=True)
class FedNova(Algorithm):
    """Clients that take more steps do not count for more.

    Paper:
        Wang, Liu, Liang, Joshi, Poor. Tackling the objective inconsistency problem in heterogeneous federated
        optimization. NeurIPS 2020.
        https://arxiv.org/abs/2007.07481
    Idea:
        A client's displacement is a weighted sum of its gradients. Dividing it by the sum of the weights, A_i, before
        averaging makes the objective independent of how many steps each client takes; the average is then scaled back.
    Equations:
        y ← y − η s − η μ (y − x),  s the optimiser's step (μ = 0: plain)
        x ← x + η_g τ_eff Σ w_i (y_i − x) / A_i,  τ_eff = Σ w_i A_i  (μ > 0: Σ w_i K_i)
        A_i = K_i for SGD, [K_i − ρ(1 − ρ^{K_i})/(1 − ρ)]/(1 − ρ) for momentum ρ, [1 − (1 − ημ)^{K_i}]/(ημ) for μ > 0
        A_i as for SGD for Adam and RMSprop
    Options:
        mu: strength μ of FedProx's pull, which may be added; 0 for none.
    Use:
        Clients with very different numbers of samples or amounts of work.
    Pitfalls:
        It corrects unequal work, not drift: the fixed point is the optimum only as η → 0. A displacement of Adam or
        RMSprop is not a weighted sum of gradients: there the mean of a client's steps, (y_i − x)/K_i, is averaged, and
        no theorem says where that ends. η μ must be well below 1.
    Elsewhere:
        Several public versions, fedsim's among them, scale the weights τ_eff w_i / A_i to sum to one, which cancels
        τ_eff; fluke 0.8.1 leaves x out, which is right for equal A_i only; the authors' code counts momentum together
        with μ twice and lets the proximal term into the momentum buffer.
    """

    mu: float = 0.0

    def __post_init__(self) -> None:
        check.number("mu", self.mu, 0)

    def corrections(self, setting: Setting) -> tuple[Correction, ...]:
        normalised = NormalisedAveraging(setting.optimizer, self.mu)
        return (normalised, ProximalStep(self.mu)) if self.mu else (normalised,)
