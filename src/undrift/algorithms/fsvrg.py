"""FSVRG: variance-reduced local steps around the gradient of all, with sparse features scaled up."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from undrift.client.layout import Layout
from undrift.client.task import Task
from undrift.core import check, tree
from undrift.core.tree import Tree
from undrift.methods.algorithm import Algorithm, Setting
from undrift.methods.correction import At, Correction, Heard
from undrift.protocol import Message, State

FEATURE_SCALINGS = ("cohort", "printed", "off")


@dataclass(frozen=True)
class Features:
    """Factors for the columns of a linear model's weight [classes, features], from how often features occur.

    φ_i^j is the part of client i's samples whose feature j is not zero, φ^j that of all samples, ω^j the number of
    clients that have the feature at all: Λ_i = diag(φ^j / φ_i^j), A = diag(|S| / ω^j), 1 where a feature is absent.
    """

    weight: str | None  # None: every factor is one, nothing is counted and nothing sent
    everybody: bool = False  # φ and ω of all clients, as far as they have been heard, instead of the cohort's

    @classmethod
    def of(cls, layout: Layout, scaling: str) -> Features:
        """Only a model that is one linear layer has a column for every input feature."""
        return cls(None if scaling == "off" else layout.only_linear, everybody=scaling == "printed")

    def server(self, model: Tree) -> State:
        if self.weight is None:
            return {}
        ones = model[self.weight].new_ones(model[self.weight].shape[-1])
        state: State = {"frequency": ones, "enlargement": ones}
        if self.everybody:
            zeros, zero = torch.zeros_like(ones), ones.new_zeros(())
            state["heard"] = {"frequency": zeros, "holders": zeros, "share": zero, "clients": zero}
        return state

    def client(self, model: Tree) -> State:
        if self.weight is None:
            return {}
        return {"frequency": model[self.weight].new_zeros(model[self.weight].shape[-1])}

    def ledger(self, model: Tree) -> State:
        if self.weight is None or not self.everybody:
            return {}
        return {"heard": model[self.weight].new_zeros(())}

    def look(self, model: Tree, task: Task) -> Message:
        """What a client finds in its own data: φ_i."""
        return {} if self.weight is None else {"frequency": _frequency(task, model[self.weight].shape[-1])}

    def digest(self, server: State, heard: Heard) -> State:
        if self.weight is None:
            return {}
        own, cohort = heard.replies["frequency"], heard.cohort  # [n, features]
        here = (own > 0).to(own.dtype)
        if not self.everybody:
            return _factors(cohort.weights @ own, here.sum(0), len(own))
        first = 1 - server["ledger"]["heard"]  # [n], so that every client counts once
        news = {
            "frequency": (first * cohort.shares) @ own,
            "holders": first @ here,
            "share": first @ cohort.shares,
            "clients": first.sum(),
        }
        known = tree.add(server["heard"], news)
        holders = known["holders"] * (cohort.population / known["clients"])
        factors = _factors(known["frequency"] / known["share"], holders, len(own))
        return factors | {"heard": known, "ledger": {"heard": torch.ones_like(first)}}

    def scaled(self, drift: Tree, client: State, at: At) -> Tree:
        """Λ_i times a difference of gradients; weight decay, which is no matter of features, stays as it is."""
        if self.weight is None:
            return drift
        own, name = client["frequency"], self.weight
        factor = torch.where(own > 0, at.inbox["frequency"] / own, 1)
        decay = at.task.weight_decay * (at.params[name] - at.anchor[name])
        return drift | {name: factor * (drift[name] - decay) + decay}

    def enlarged(self, update: Tree, server: State) -> Tree:
        """A times an update, or a stack of them."""
        return update if self.weight is None else update | {self.weight: server["enlargement"] * update[self.weight]}


def _factors(frequency: Tensor, holders: Tensor, clients: int) -> State:
    return {"frequency": frequency, "enlargement": torch.where(holders > 0, clients / holders, 1)}


def _frequency(task: Task, features: int) -> Tensor:
    """In which part of the client's samples a feature is not zero [features]."""
    count = torch.zeros(features, dtype=task.samples.dtype, device=task.samples.device)
    # A layer that sees something made of the inputs, or inputs moved by their mean, sees no zeros.
    if math.prod(task.x.shape[1:]) != features or task.learner.normalise is not None:
        return count + 1
    for rows, weight in task.everything:
        present = (task.fetch(task.x, rows).flatten(1) != 0).to(count.dtype)
        count = count + (present.sum(0) if weight is None else weight @ present)
    return count / task.samples


@dataclass(frozen=True)
class VarianceReduction(Correction):
    """d = Λ_i (g_i(y) − g_i(x)) + ∇f(x), both g on the same batch; the rate is η/n_i if `scale_step`, else η."""

    features: Features
    scale_step: bool

    def server(self, model: Tree) -> State:
        return {"gradient": tree.zeros(model)} | self.features.server(model)

    def client(self, model: Tree) -> State:
        return self.features.client(model)

    def ledger(self, model: Tree) -> State:
        return self.features.ledger(model)

    def survey(self, anchor: Tree, client: State, task: Task, buffers: Tree) -> tuple[Message, State]:
        found = self.features.look(anchor, task)
        return {"gradient": task.full_gradient(anchor, buffers).gradient} | found, found

    def digest(self, server: State, heard: Heard) -> State:
        gradient = tree.mean(heard.replies["gradient"], heard.cohort.weights)
        return {"gradient": gradient} | self.features.digest(server, heard)

    def broadcast(self, server: State, model: Tree) -> Message:
        return {k: server[k] for k in ("gradient", "frequency") if k in server}

    def step(self, grad: Tree, client: State, at: At) -> tuple[Tree, State]:
        drift = self.features.scaled(tree.sub(grad, at.gradient(at.anchor)), client, at)
        return tree.add(drift, at.inbox["gradient"]), client

    def move(self, change: Tree, client: State, at: At) -> Tree:
        return tree.scale(change, 1 / at.task.samples) if self.scale_step else change

    def advance(self, update: Tree, server: State, heard: Heard) -> tuple[Tree, State]:
        return self.features.enlarged(update, server), server


@dataclass(frozen=True)
class FSVRG(Algorithm):
    """Clients walk along the gradient of all, corrected by how much their own has changed on the way.

    Paper:
        Konečný, McMahan, Ramage, Richtárik. Federated optimization: distributed machine learning for on-device
        intelligence. 2016.
    Idea:
        A client's first step follows the gradient of all; further on it adds how its own gradient has changed, in which
        clients agree better than in the gradient itself. With sparse data a client that rarely sees a feature takes it
        too lightly, and Λ_i and A make up for that.
    Equations:
        G = Σ w_i ∇f_i(x)
        y ← y − (η/n_i) (Λ_i [g_i(y) − g_i(x)] + G), both g_i on the same batch
        x ← x + η_g A Σ w_i (y_i − x)
        Λ_i = diag(φ^j / φ_i^j),  A = diag(|S| / ω^j): φ_i^j the part of client i's samples with feature j, φ^j that of
        the cohort's, ω^j the number of its clients that have it; 1 where nobody does
    Use:
        Softmax regression on sparse data, all clients in every round. The original has batches of one sample and one
        epoch, n_i steps at the rate η/n_i; `scale_step=False` makes the rate η.
    Pitfalls:
        Three models down and two up, in two exchanges, and a full pass besides two gradients a step. With the same
        `steps` for all, η/n_i lets large clients move less. The optimum is a fixed point only when everybody takes
        part. Features are scaled where the model is one linear layer on the inputs; elsewhere Λ_i = A = 1.
        ``feature_scaling="printed"`` counts features over all clients, those not heard yet taken to be like the
        others, while |S| stays the cohort: on dense data A is then the participation ratio, which shortens every step.
        Under Adam the direction d is what the optimiser receives.
    Elsewhere:
        The paper has no sampling of clients. Versions that scale weight decay along with the data's gradient make it
        strongest for the rarest features.
    """

    scale_step: bool = True
    feature_scaling: str = "cohort"

    def __post_init__(self) -> None:
        check.flag("scale_step", self.scale_step)
        check.choice("feature_scaling", self.feature_scaling, FEATURE_SCALINGS)

    def corrections(self, setting: Setting) -> tuple[Correction, ...]:
        return (VarianceReduction(Features.of(setting.layout, self.feature_scaling), self.scale_step),)
