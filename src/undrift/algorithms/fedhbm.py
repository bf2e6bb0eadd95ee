"""Generalised heavy-ball momentum: FedHBM, LocalGHB and GHB(τ).

All three add a multiple of (x − anchor) to every local step, after the optimiser and not scaled by the learning rate;
they differ in what x and the anchor are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from undrift.core import check, random, tree
from undrift.core.random import Key, Stream
from undrift.core.tree import Tree
from undrift.methods.algorithm import Algorithm
from undrift.methods.correction import At, Correction, Heard
from undrift.methods.setting import Plan, Setting
from undrift.protocol import Message, State

Variant = str | Mapping[str, Tensor] | None


@dataclass(frozen=True)
class HeavyBall(Correction):
    """FedHBM: w ← w − η g + (β C / J_i)(w − a_i), a_i the model the client trained at its last participation."""

    beta: float
    variant: Variant
    nesterov: bool

    def client(self, model: Tree) -> State:
        return _never_seen(model, self.variant)

    def begin(self, start: Tree, client: State, at: At) -> tuple[Tree, State]:
        return start, _redrawn(client, at) if self.variant == "random" else client

    def velocity(self, client: State, at: At) -> Tree:
        here = tree.where(client["seen"] > 0, at.params, at.anchor)
        return tree.scale(tree.sub(here, client["anchor"]), _factor(self.beta, self.variant, client, at))

    def locate(self, at: At, client: State) -> At:
        return _ahead(at, self.velocity(client, at)) if self.nesterov else at

    def move(self, change: Tree, client: State, at: At) -> Tree:
        return change if self.nesterov else tree.add(change, self.velocity(client, at))

    def finish(self, update: Tree, client: State, at: At) -> tuple[Tree, State, Message]:
        return update, {"anchor": at.params, "seen": torch.ones_like(client["seen"])}, {}


@dataclass(frozen=True)
class LocalHeavyBall(Correction):
    """LocalGHB: w ← w − η g + (β C / J_i)(x − a_i), a_i the model the client received at its last participation."""

    key: ClassVar[str] = "HeavyBall"  # the name in checkpoints of version 0.1

    beta: float
    variant: Variant
    nesterov: bool

    def client(self, model: Tree) -> State:
        return _never_seen(model, self.variant)

    def begin(self, start: Tree, client: State, at: At) -> tuple[Tree, State]:
        return start, _redrawn(client, at) if self.variant == "random" else client

    def velocity(self, client: State, at: At) -> Tree:
        return tree.scale(tree.sub(at.anchor, client["anchor"]), _factor(self.beta, self.variant, client, at))

    def locate(self, at: At, client: State) -> At:
        return _ahead(at, self.velocity(client, at)) if self.nesterov else at

    def move(self, change: Tree, client: State, at: At) -> Tree:
        return change if self.nesterov else tree.add(change, self.velocity(client, at))

    def finish(self, update: Tree, client: State, at: At) -> tuple[Tree, State, Message]:
        return update, {"anchor": at.anchor, "seen": torch.ones_like(client["seen"])}, {}


@dataclass(frozen=True)
class GlobalHeavyBall(Correction):
    """w ← w − η g + (β/(τ J_i))(x^{t−1} − x^{t−τ−1}), from the server's history; zero in the first τ rounds."""

    beta: float
    tau: int
    nesterov: bool

    def server(self, model: Tree) -> State:
        history = {k: v.expand(self.tau, *v.shape).clone() for k, v in model.items()}  # oldest first
        return {
            "history": history,
            "age": torch.zeros((), dtype=torch.int64, device=next(iter(model.values())).device),
        }

    def broadcast(self, server: State, model: Tree) -> Message:
        oldest = {k: h[0] for k, h in server["history"].items()}
        momentum = tree.scale(tree.sub(model, oldest), self.beta / self.tau)
        return {"momentum": tree.where(server["age"] >= self.tau, momentum, tree.zeros(model))}

    def velocity(self, at: At) -> Tree:
        return tree.scale(at.inbox["momentum"], (1 / at.task.steps).to(_dtype(at.params)))

    def locate(self, at: At, client: State) -> At:
        return _ahead(at, self.velocity(at)) if self.nesterov else at

    def move(self, change: Tree, client: State, at: At) -> Tree:
        return change if self.nesterov else tree.add(change, self.velocity(at))

    def advance(self, update: Tree, server: State, heard: Heard) -> tuple[Tree, State]:
        history = {k: torch.cat([h[1:], heard.model[k][None]]) for k, h in server["history"].items()}
        return update, {"history": history, "age": server["age"] + 1}


def _never_seen(model: Tree, variant: Variant) -> State:
    """The state of a client before its first participation."""
    anchor = model if variant in (None, "shared", "random") else _pretrained(variant, model)
    return {"anchor": anchor, "seen": torch.zeros((), device=next(iter(model.values())).device)}


def _factor(beta: float, variant: Variant, client: State, at: At) -> Tensor:
    """β C / J_i; without a variant the first participation has no momentum."""
    factor = beta * at.task.participation / at.task.steps
    return (factor * (client["seen"] if variant is None else 1.0)).to(_dtype(at.params))


def _ahead(at: At, velocity: Tree) -> At:
    """Nesterov: the momentum comes before the gradient."""
    ahead = tree.add(at.params, velocity)
    return at._replace(params=ahead, origin=ahead)


def _dtype(model: Tree) -> torch.dtype:
    return next(iter(model.values())).dtype


def _redrawn(client: State, at: At) -> State:
    """Before its first participation, a random anchor: every tensor drawn with the mean and spread of the model's."""
    key = Key(at.task.key.seed, 0, at.task.key.client)
    drawn = {
        k: v.mean() + v.std(correction=0) * random.normal(key, Stream.INITIAL, i, tuple(v.shape)).to(v.dtype)
        for i, (k, v) in enumerate(client["anchor"].items())
    }
    return client | {"anchor": tree.where(client["seen"] > 0, client["anchor"], drawn)}


def _pretrained(given: Any, model: Tree) -> Tree:
    missing = [k for k in model if k not in given or given[k].shape != model[k].shape]
    if missing:
        raise ValueError(f"variant: the given state has no tensor of the model's shape for {missing[0]!r}")
    return {k: given[k].detach().to(v) for k, v in model.items()}


def _check_variant(variant: Variant) -> None:
    if isinstance(variant, str):
        check.choice("variant", variant, ("shared", "random"))
    elif variant is not None and not isinstance(variant, Mapping):
        raise TypeError(f"variant must be None, 'shared', 'random' or a state dict, got {check.shown(variant)}")


@dataclass(frozen=True)
class FedHBM(Algorithm):
    """Heavy-ball momentum from each client's own past, at no extra traffic.

    Paper:
        Zaccone, Masone, Ciccone. Communication-efficient heterogeneous federated learning with generalized heavy-ball
        momentum. 2023.
        https://arxiv.org/abs/2311.18578
    Idea:
        A client keeps the model it trained last time; the difference to its current model is what all other clients
        have done since. Adding a fraction of it to every local step keeps the client on the common direction.
    Equations:
        y ← y − η g_i(y) + (β C / J_i)(y − a_i),  C = |S|/N,  J_i local steps
        a_i ← y_i, the model trained at this participation;  first participation: no momentum
        x ← x + η_g Σ w_i (y_i − x)
    Options:
        beta: momentum β; 0 is FedAvg.
        variant: momentum at a client's first participation: None for none; "shared" from the initial model, "random"
            from random weights, or from a given state dict.
        nesterov: take gradients after the momentum's step.
    Use:
        Very heterogeneous clients that take part repeatedly: FedAvg's traffic, one model of memory per client.
    Pitfalls:
        Made for partial participation: between participations a client's own drift is multiplied by e^{βC} − 1, so that
        βC above 0.69 diverges, as β = 1 does when everyone takes part. With rare participation and a large rate lower
        `beta`: momentum grows with the distance the model moved meanwhile.
    Elsewhere:
        The momentum is not multiplied by η, not clipped and not decayed; adding it to the gradient changes all three.
    """

    beta: float = 1.0
    variant: Variant = None
    nesterov: bool = False

    def __post_init__(self) -> None:
        check.number("beta", self.beta, 0)
        check.flag("nesterov", self.nesterov)
        _check_variant(self.variant)

    def corrections(self, setting: Setting) -> tuple[Correction, ...]:
        return (HeavyBall(self.beta, self.variant, self.nesterov),)

    def warnings(self, plan: Plan) -> tuple[str, ...]:
        growth = (1 + self.beta * plan.participation / plan.steps) ** plan.steps - 1
        if growth <= 1:
            return ()
        stable = math.floor(100 * plan.steps * (2 ** (1 / plan.steps) - 1) / plan.participation) / 100
        return (
            f"beta={self.beta:g} is unstable with {plan.participation:.0%} of the clients in a round: from one "
            f"participation to the next, a client's own drift is multiplied by {growth:.2g}; beta={stable:g}, or fewer "
            "clients in a round, keep that below 1",
        )


@dataclass(frozen=True)
class LocalGHB(Algorithm):
    """Heavy-ball momentum between the models a client received at its last two participations.

    Paper:
        Zaccone, Masone, Ciccone. Communication-efficient heterogeneous federated learning with generalized heavy-ball
        momentum. 2023.
        https://arxiv.org/abs/2311.18578
    Idea:
        The displacement of the server's model since a client last took part, measured by the client itself, is a
        momentum over about 1/C rounds. Every local step adds a fraction of it.
    Equations:
        y ← y − η g_i(y) + (β C / J_i)(x − a_i),  C = |S|/N,  J_i local steps
        a_i ← x, the model received at this participation;  first participation: no momentum
        x ← x + η_g Σ w_i (y_i − x)
    Options:
        beta: momentum β; 0 is FedAvg.
        variant: momentum at a client's first participation, as in FedHBM.
        nesterov: take gradients after the momentum's step.
    Use:
        Like FedHBM; the momentum is constant within a round, which is easier to analyse.
    Pitfalls:
        With full participation and one step it is the classical heavy ball: β near 1 oscillates.
    Elsewhere:
        No other library is known to have it.
    """

    beta: float = 1.0
    variant: Variant = None
    nesterov: bool = False

    def __post_init__(self) -> None:
        check.number("beta", self.beta, 0)
        check.flag("nesterov", self.nesterov)
        _check_variant(self.variant)

    def corrections(self, setting: Setting) -> tuple[Correction, ...]:
        return (LocalHeavyBall(self.beta, self.variant, self.nesterov),)


@dataclass(frozen=True)
class GHB(Algorithm):
    """Heavy-ball momentum over the server's last τ rounds.

    Paper:
        Zaccone, Masone, Ciccone. Communication-efficient heterogeneous federated learning with generalized heavy-ball
        momentum. 2023.
        https://arxiv.org/abs/2311.18578
    Idea:
        Momentum over τ rounds averages τ cohorts, so it is less biased towards the last one. The server keeps its last
        τ models and sends the difference.
    Equations:
        y ← y − η g_i(y) + (β / (τ J_i)) (x^{t−1} − x^{t−τ−1}),  J_i local steps
        x ← x + η_g Σ w_i (y_i − x)
    Options:
        beta: momentum β; 0 is FedAvg.
        tau: rounds τ over which the momentum reaches back; about the number of clients over that of participants.
        nesterov: take gradients after the momentum's step.
    Use:
        Clients that cannot keep a state; τ about N/|S|.
    Pitfalls:
        One and a half times the traffic; no momentum in the first τ rounds.
    Elsewhere:
        FedCM and FedADC (first version) are GHB(1) up to scaling.
    """

    beta: float = 0.9
    tau: int = 10
    nesterov: bool = False

    def __post_init__(self) -> None:
        check.number("beta", self.beta, 0)
        check.integer("tau", self.tau, 1)
        check.flag("nesterov", self.nesterov)

    def corrections(self, setting: Setting) -> tuple[Correction, ...]:
        return (GlobalHeavyBall(self.beta, self.tau, self.nesterov),)
