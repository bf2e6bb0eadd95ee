"""Variance-reduced local steps around the mean gradient of the cohort, with factors for sparse features (FSVRG)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from undrift.client.task import Task
from undrift.core import tree
from undrift.core.tree import Tree
from undrift.data.census import Census
from undrift.methods.correction import At, Correction, Heard
from undrift.methods.setting import Setting
from undrift.protocol import Message, State

FEATURE_SCALINGS = ("cohort", "printed", "census", "off")


@dataclass(frozen=True)
class Features:
    """Factors for the columns of a linear model's weight [classes, features], from how often features occur.

    φ_i^j is the fraction of client i's samples whose feature j is not zero, φ^j that of all samples, ω^j the number of
    clients that have the feature at all: Λ_i = diag(φ^j / φ_i^j), A = diag(|S| / ω^j), 1 where a feature is absent.
    """

    weight: str | None  # None: every factor is one, nothing is counted and nothing sent
    all_clients: bool = False  # φ and ω of all clients that have taken part so far instead of the cohort's
    counted: Census | None = field(default=None, compare=False)  # φ and ω of all clients, counted beforehand

    @classmethod
    def of(cls, setting: Setting, scaling: str) -> Features:
        """Only a model that is one linear layer has a column for every input feature."""
        weight = None if scaling == "off" else setting.layout.only_linear
        counted = setting.census() if weight and scaling == "census" and setting.census else None
        return cls(weight, all_clients=scaling == "printed", counted=counted)

    def server(self, model: Tree) -> State:
        if self.weight is None:
            return {}
        ones = model[self.weight].new_ones(model[self.weight].shape[-1])
        if self.counted and len(self.counted.frequency) == len(ones):
            return {"frequency": self.counted.frequency.to(ones), "enlargement": ones}
        state: State = {"frequency": ones, "enlargement": ones}
        if self.all_clients:
            zeros, zero = torch.zeros_like(ones), ones.new_zeros(())
            state["heard"] = {"frequency": zeros, "holders": zeros, "share": zero, "clients": zero}
        return state

    def client(self, model: Tree) -> State:
        if self.weight is None:
            return {}
        return {"frequency": model[self.weight].new_zeros(model[self.weight].shape[-1])}

    def ledger(self, model: Tree) -> State:
        if self.weight is None or not self.all_clients:
            return {}
        return {"heard": model[self.weight].new_zeros(())}

    def count(self, model: Tree, task: Task) -> Message:
        """φ_i, from a client's own samples."""
        return {} if self.weight is None else {"frequency": _frequency(task, model[self.weight].shape[-1])}

    def sent(self, found: Message) -> Message:
        """The part of a client's count that the server does not know yet."""
        return found if self.counted is None else {}

    def digest(self, server: State, heard: Heard) -> State:
        if self.weight is None:
            return {}
        if self.counted is not None:
            frequency = server["frequency"]
            if len(self.counted.holders) != len(frequency):  # the layer's inputs are not the samples themselves
                return {"frequency": frequency, "enlargement": torch.ones_like(frequency)}
            return _factors(frequency, self.counted.holders.to(frequency), len(heard.cohort.ids))
        own, cohort = heard.replies["frequency"], heard.cohort  # [n, features]
        here = (own > 0).to(own.dtype)
        if not self.all_clients:
            return _factors(cohort.weights @ own, here.sum(0), len(own))
        first = 1 - server["ledger"]["heard"]  # [n], so that every client counts once
        added = {
            "frequency": (first * cohort.shares) @ own,
            "holders": first @ here,
            "share": first @ cohort.shares,
            "clients": first.sum(),
        }
        known = tree.add(server["heard"], added)
        holders = known["holders"] * (cohort.population / known["clients"])
        factors = _factors(known["frequency"] / known["share"], holders, len(own))
        return factors | {"heard": known, "ledger": {"heard": torch.ones_like(first)}}

    def scaled(self, drift: Tree, client: State, at: At) -> Tree:
        """Λ_i times a difference of gradients; weight decay does not depend on features and is not scaled."""
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
    """The fraction of the client's samples in which a feature is not zero [features]."""
    count = torch.zeros(features, dtype=task.samples.dtype, device=task.samples.device)
    # Where the layer's inputs are not the samples themselves, or are normalised, zeros have no meaning.
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
        found = self.features.count(anchor, task)
        return {"gradient": task.full_gradient(anchor, buffers).gradient} | self.features.sent(found), found

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
