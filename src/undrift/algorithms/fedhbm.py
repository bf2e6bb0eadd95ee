"""Generalised heavy-ball momentum: FedHBM, LocalGHB and GHB(τ).

All three add b (x − anchor) to every local step, after the optimiser, unscaled by the learning rate; they differ in
what x and the anchor are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from undrift.core import check, random, tree
from undrift.core.random import Key, Stream
from undrift.core.tree import Tree
from undrift.methods.algorithm import Algorithm, Setting
from undrift.methods.correction import At, Correction, Heard
from undrift.protocol import Message, State

Variant = str | Mapping[str, Tensor] | None


@dataclass(frozen=True)
class HeavyBall(Correction):
    """w ← w − η g + (β C / J_i)(x − anchor), the anchor kept by the client from its last participation.

    FedHBM (`moving`): x is the local model as it moves, the anchor the model the client had trained.
    LocalGHB: x is the model received, the anchor the model received last time.
    """

    beta: float
    moving: bool
    variant: Variant
    nesterov: bool

    def client(self, model: Tree) -> State:
        anchor = model if self.variant in (None, "shared", "random") else _pretrained(self.variant, model)
        return {"anchor": anchor, "seen": torch.zeros((), device=next(iter(model.values())).device)}

    def begin(self, start: Tree, client: State, at: At) -> tuple[Tree, State]:
        if self.variant != "random":
            return start, client
        key = Key(at.task.key.seed, 0, at.task.key.client)
        return start, client | {
            "anchor": tree.where(client["seen"] > 0, client["anchor"], _redrawn(client["anchor"], key))
        }

    def velocity(self, client: State, at: At) -> Tree:
        seen, task = client["seen"], at.task
        here = tree.where(seen > 0, at.params, at.anchor) if self.moving else at.anchor
        factor = self.beta * task.participation / task.steps
        gate = seen if self.variant is None else 1.0  # without a variant the first participation has no momentum
        return tree.scale(tree.sub(here, client["anchor"]), (factor * gate).to(_dtype(here)))

    def shift(self, params: Tree, client: State, at: At) -> Tree:
        return tree.add(params, self.velocity(client, at)) if self.nesterov else params

    def move(self, change: Tree, client: State, at: At) -> Tree:
        return change if self.nesterov else tree.add(change, self.velocity(client, at))

    def finish(self, update: Tree, client: State, at: At) -> tuple[Tree, State, Message]:
        anchor = at.params if self.moving else at.anchor
        return update, {"anchor": anchor, "seen": torch.ones_like(client["seen"])}, {}


@dataclass(frozen=True)
class GlobalHeavyBall(Correction):
    """w ← w − η g + (β/(τ J_i))(x^{t−1} − x^{t−τ−1}), from the server's history; nothing until it is long enough."""

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
        walk = tree.scale(tree.sub(model, oldest), self.beta / self.tau)
        return {"momentum": tree.where(server["age"] >= self.tau, walk, tree.zeros(model))}

    def shift(self, params: Tree, client: State, at: At) -> Tree:
        return tree.add(params, at.inbox["momentum"], self._each(at, params)) if self.nesterov else params

    def move(self, change: Tree, client: State, at: At) -> Tree:
        return change if self.nesterov else tree.add(change, at.inbox["momentum"], self._each(at, change))

    def _each(self, at: At, like: Tree) -> Tensor:
        return (1 / at.task.steps).to(_dtype(like))

    def advance(self, update: Tree, server: State, heard: Heard) -> tuple[Tree, State]:
        history = {k: torch.cat([h[1:], heard.model[k][None]]) for k, h in server["history"].items()}
        return update, {"history": history, "age": server["age"] + 1}


def _dtype(model: Tree) -> torch.dtype:
    return next(iter(model.values())).dtype


def _redrawn(model: Tree, key: Key) -> Tree:
    """A model of its own for a client: every tensor drawn anew with its mean and spread."""
    return {
        k: v.mean() + v.std(correction=0) * random.normal(key, Stream.INITIAL, i, tuple(v.shape)).to(v.dtype)
        for i, (k, v) in enumerate(model.items())
    }


def _pretrained(given: Any, model: Tree) -> Tree:
    missing = [k for k in model if k not in given or given[k].shape != model[k].shape]
    if missing:
        raise ValueError(f"variant: the given state has no tensor of the model's shape for {missing[0]!r}")
    return {k: given[k].detach().to(v) for k, v in model.items()}


def _check_variant(variant: Variant) -> None:
    if isinstance(variant, str):
        check.choice("variant", variant, ("shared", "random"))
    elif variant is not None and not isinstance(variant, Mapping):
        raise TypeError(f"variant must be None, 'shared', 'random' or a state dict, got {variant!r}")


@dataclass(frozen=True)
class FedHBM(Algorithm):
    """Heavy-ball momentum from each client's own past, at no extra traffic.

    Paper:
        Communication-efficient heterogeneous federated learning with generalized heavy-ball momentum.
    Idea:
        A client remembers the model it trained last time; where it stands now minus that memory is what everybody else
        has done since. Adding a share of it to every local step keeps the client on the common course.
    Equations:
        y ← y − η g_i(y) + (β C / J_i)(y − a_i),  C = |S|/N,  J_i local steps
        a_i ← y_i, the model trained at this participation;  first participation: no momentum
        x ← x + η_g Σ w_i (y_i − x)
    Use:
        Strongly different clients that return now and then: FedAvg's traffic, one model of memory per client.
    Pitfalls:
        Made for partial participation: between participations a client's own drift is multiplied by e^{βC} − 1, so that
        βC above 0.69 diverges, as β = 1 does when everyone takes part. With rare participation and a large rate lower
        `beta`: momentum grows with the distance covered meanwhile.
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
        return (HeavyBall(self.beta, True, self.variant, self.nesterov),)


@dataclass(frozen=True)
class LocalGHB(Algorithm):
    """Heavy-ball momentum between the models a client received at its last two participations.

    Paper:
        Communication-efficient heterogeneous federated learning with generalized heavy-ball momentum.
    Idea:
        The walk of the server's model since a client was last heard, measured by the client itself, is a momentum over
        about 1/C rounds. Every local step gets its share of it.
    Equations:
        y ← y − η g_i(y) + (β C / J_i)(x − a_i),  C = |S|/N,  J_i local steps
        a_i ← x, the model received at this participation;  first participation: no momentum
        x ← x + η_g Σ w_i (y_i − x)
    Use:
        As FedHBM; the momentum is constant within a round, which is easier to analyse.
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
        return (HeavyBall(self.beta, False, self.variant, self.nesterov),)


@dataclass(frozen=True)
class GHB(Algorithm):
    """Heavy-ball momentum over the server's last τ rounds.

    Paper:
        Communication-efficient heterogeneous federated learning with generalized heavy-ball momentum.
    Idea:
        Momentum over τ rounds has heard τ cohorts, so it is less biased towards the last one. The server keeps its last
        τ models and sends the difference.
    Equations:
        y ← y − η g_i(y) + (β / (τ J_i)) (x^{t−1} − x^{t−τ−1}),  J_i local steps
        x ← x + η_g Σ w_i (y_i − x)
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
