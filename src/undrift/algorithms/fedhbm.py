"""Generalised heavy-ball momentum: FedHBM, LocalGHB and GHB(τ).

All add a multiple of (x − anchor) to every local step, after the optimiser and not scaled by the learning rate; they
differ in what x and the anchor are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from undrift.core import check, tree
from undrift.core.random import Key
from undrift.core.tree import Tree
from undrift.methods.algorithm import Algorithm
from undrift.methods.correction import At, Correction, Heard
from undrift.methods.setting import Plan, Setting
from undrift.models.weights import read_weights
from undrift.protocol import Message, State

Variant = str | Path | Mapping[str, Tensor] | None

_STABLE = 0.9  # a default β lets nothing grow by more than this from one participation, or round, to the next


@dataclass(frozen=True)
class Momentum(Correction):
    """w ← w − η g(w) + push; with `nesterov`, the gradient is taken at w + push."""

    nesterov: bool

    def push(self, client: State, at: At) -> tuple[Tree, Tensor]:
        """A difference and its factor."""
        raise NotImplementedError

    def locate(self, at: At, client: State) -> At:
        return at._replace(params=tree.add(at.params, *self.push(client, at))) if self.nesterov else at

    def move(self, change: Tree, client: State, at: At) -> Tree:
        return tree.add(change, *self.push(client, at))


@dataclass(frozen=True)
class First:
    """The anchor of a client's first participation: the initial model, a given one, or one that it draws itself."""

    given: Mapping[str, Tensor] | None = None
    draw: Callable[[Key], Tree] | None = field(default=None, compare=False)

    def anchor(self, model: Tree) -> Tree:
        given = model if self.given is None else self.given
        if missing := [k for k, v in model.items() if k not in given or given[k].shape != v.shape]:
            raise ValueError(f"variant: the given state has no tensor of the model's shape for {missing[0]!r}")
        return {k: given[k].detach().to(v) for k, v in model.items()}


@dataclass(frozen=True)
class Anchored(Momentum):
    """push = (β C / J_i)(x − a_i), a_i kept by the client; none at its first participation if `first` is None."""

    beta: float
    first: First | None

    def client(self, model: Tree) -> State:
        anchor = model if self.first is None else self.first.anchor(model)
        return {"anchor": anchor, "seen": torch.zeros((), device=next(iter(model.values())).device)}

    def begin(self, start: Tree, client: State, at: At) -> tuple[Tree, State]:
        if self.first is None or self.first.draw is None:
            return start, client
        drawn = self.first.draw(Key(at.task.key.seed, 0, at.task.key.client))
        return start, tree.where(client["seen"] > 0, client, self.client(drawn))

    def factor(self, client: State, at: At) -> Tensor:
        """β C / J_i, or 0 at a first participation without an anchor."""
        factor = self.beta * at.task.participation / at.task.steps * (client["seen"] if self.first is None else 1.0)
        return factor.to(_dtype(at.params))


@dataclass(frozen=True)
class HeavyBall(Anchored):
    """FedHBM, Eq. 5: w ← w − η g + (β C / J_i)(w − a_i), a_i the model the client trained at its last participation."""

    def push(self, client: State, at: At) -> tuple[Tree, Tensor]:
        here = at.origin
        if self.first is not None:  # its first participation is as LocalGHB's
            here = tree.where(client["seen"] > 0, at.origin, at.anchor)
        return tree.sub(here, client["anchor"]), self.factor(client, at)

    def finish(self, update: Tree, client: State, at: At) -> tuple[Tree, State, Message]:
        return update, {"anchor": at.params, "seen": torch.ones_like(client["seen"])}, {}


@dataclass(frozen=True)
class StepHeavyBall(HeavyBall):
    """FedHBM, Algorithm 1 line 6: a_ij, the client's model before step j of its last participation, in place of a_i."""

    steps: int  # the most that a client takes: a state has so many models, whatever its client needs

    def client(self, model: Tree) -> State:
        state = super().client(model)
        return {"path": {str(j): state["anchor"] for j in range(self.steps)}, "seen": state["seen"]}

    def begin(self, start: Tree, client: State, at: At) -> tuple[Tree, State]:
        start, client = super().begin(start, client, at)
        return start, client | {"anchor": client["path"]["0"]}

    def locate(self, at: At, client: State) -> At:
        return super().locate(at, client | {"anchor": client["path"][self._entry(at)]})

    def step(self, grad: Tree, client: State, at: At) -> tuple[Tree, State]:
        path, j = client["path"], self._entry(at)
        return grad, client | {"path": path | {j: at.origin}, "anchor": path[j]}

    def _entry(self, at: At) -> str:
        return str(min(at.step, self.steps - 1))  # the trial of an engine may take more steps than the run

    def finish(self, update: Tree, client: State, at: At) -> tuple[Tree, State, Message]:
        return update, {"path": client["path"], "seen": torch.ones_like(client["seen"])}, {}


@dataclass(frozen=True)
class LocalHeavyBall(Anchored):
    """LocalGHB: w ← w − η g + (β C / J_i)(x − a_i), a_i the model the client received at its last participation."""

    key: ClassVar[str] = "HeavyBall"  # the name in checkpoints of version 0.1

    def push(self, client: State, at: At) -> tuple[Tree, Tensor]:
        return tree.sub(at.anchor, client["anchor"]), self.factor(client, at)

    def finish(self, update: Tree, client: State, at: At) -> tuple[Tree, State, Message]:
        return update, {"anchor": at.anchor, "seen": torch.ones_like(client["seen"])}, {}


@dataclass(frozen=True)
class GlobalHeavyBall(Momentum):
    """GHB, Table 1: w ← w − η g + (β/(τ J_i))(x^{t−1} − x^{t−τ−1}), from the server's history; zero for τ rounds."""

    beta: float
    tau: int

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

    def push(self, client: State, at: At) -> tuple[Tree, Tensor]:
        return at.inbox["momentum"], (1 / at.task.steps).to(_dtype(at.params))

    def advance(self, update: Tree, server: State, heard: Heard) -> tuple[Tree, State]:
        history = {k: torch.cat([h[1:], heard.model[k][None]]) for k, h in server["history"].items()}
        return update, {"history": history, "age": server["age"] + 1}


def _dtype(model: Tree) -> torch.dtype:
    return next(iter(model.values())).dtype


def _checked_variant(variant: Variant) -> Variant:
    """The variant, a file as a path: a text with a dot is one."""
    if isinstance(variant, str) and "." in variant:
        return Path(variant)
    if isinstance(variant, str):
        check.choice("variant", variant, ("shared", "random"))
    elif not isinstance(variant, Path | Mapping | None):
        raise TypeError(f"variant must be None, 'shared', 'random', a file or a state dict, got {check.shown(variant)}")
    return variant


def _first(variant: Variant, setting: Setting) -> First | None:
    if variant is None:
        return None
    if variant == "shared":
        return First()
    if variant == "random":
        assert setting.initialiser is not None
        return First(draw=setting.initialiser())
    return First(read_weights("variant", variant))


def _growth(beta: float, plan: Plan) -> float:
    """By how much a client's own drift is multiplied from one participation to the next: (1 + βC/J)^J − 1.

    Without gradients, w − a grows by 1 + βC/J in every step, so that w − x ends at (1 − (1 + βC/J)^J)(a − x).
    """
    return math.pow(1 + beta * plan.participation / plan.longest, plan.longest) - 1


def _largest_beta(growth: float, plan: Plan) -> float:
    """The largest β, in hundredths, whose `_growth` is at most this."""
    exact = plan.longest * (math.pow(1 + growth, 1 / plan.longest) - 1) / plan.participation
    return math.floor(100 * exact + 1e-9) / 100


def _momentum_warnings(beta: float, fading: bool, when: str) -> tuple[str, ...]:
    """Of momentum that is a multiple β of a mean of earlier displacements of the server's model.

    Where the loss is flat, a steady velocity is multiplied by β in every round. At β = 1 it is kept; only if the mean
    is over several rounds (`fading`) it fades where the loss is curved: for a part C of the clients and a curvature λ,
    the square of an oscillation is multiplied by 1 − C(1 − β) − ηλ(1 − C) in a round.
    """
    if beta < 1 or (beta == 1 and fading):
        return ()
    fate = "never fades" if beta == 1 else "grows from round to round"
    bound = "at most 1" if fading else f"below 1 {when}"
    return (f"beta={beta:g} is unstable: where the loss is flat, momentum {fate}; beta must be {bound}",)


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
        y ← y − η g_i(y) + (β C / J_i)(y − a_i),  C = |S|/N,  J_i local steps  (Eq. 5)
        a_i ← y_i, the model trained at this participation;  first participation: no momentum
        x ← x + η_g Σ w_i (y_i − x)
        anchor="step" (Algorithm 1, line 6): y_j − a_ij instead, a_ij ← y_j, the model before step j
    Options:
        beta: momentum β; 0 is FedAvg. None: 1, the paper's, or the largest at which a client's own drift is multiplied
            by at most 0.9 from one participation to the next (see Pitfalls); a notice says which.
        variant: the anchor of a client's first participation, during which x stays at the received model as in
            LocalGHB. None: no momentum then. "shared": the server's initial model, which a client can make from the
            seed (FedHBM-shared). "random": a model of its own, drawn by the model's initialiser, the methods
            `reset_parameters` of its modules (FedHBM-random). Or a pre-trained model: a file such as
            start.safetensors (in quotes if its name has more than letters, digits and dots), or a state dict.
        nesterov: take the gradient at y plus its momentum instead of at y, as in Nesterov's method; the paper finds
            no difference (Table 11).
        anchor: "trained", the model a client ended with (Eq. 5 and the authors' code), or "step", the one it had before
            the same step (Algorithm 1 and §3), for which it keeps as many models as the largest client takes steps.
    Use:
        Very heterogeneous clients that take part repeatedly: FedAvg's traffic, one model of memory per client.
    Pitfalls:
        Made for partial participation: from one participation to the next a client's own drift is multiplied by
        (1 + βC/J)^J − 1, which is over 1 from βC = 1 at one step, 0.83 at two, 0.72 at eight, 0.69 at many. A larger β
        diverges; a warning says so before round 1. With everyone in a round and many steps the default is 0.64.
        anchor="step" has no such feedback: its momentum fades as long as β is below 1, or 1 where a part of the
        clients takes part; with everyone its default is 0.9. On digits (100 rounds, one seed) it ended at 98 % with all
        clients and 92 % with a tenth, "trained" at 82.5 and 90 %, FedAvg at 80 and 45 %. With rare participation and a
        large rate lower `beta`: momentum grows with the distance the model moved meanwhile. Clients that take part once
        or twice have little of it without a variant (§4.3). Where they take part more often, variants need not help:
        with 5 of 500 clients on CIFAR-10 (2000 rounds, three seeds) it was 57.5 % without one and 56.7 with "shared";
        with "random" all weights grew fourfold within 350 rounds, and the model ended at chance level. On digits it did
        no harm.
    Elsewhere:
        The momentum is not multiplied by η, not clipped and not decayed; adding it to the gradient changes all three.
        The authors' code (RickZack/GHBM) agrees with anchor="trained" and variant None; under local momentum it sends
        the term through the optimiser's buffer. Its shared and random variants have no effect: the anchor is dropped
        before the first step.
    """

    beta: float | None = None
    variant: Variant = None
    nesterov: bool = False
    anchor: str = "trained"

    def __post_init__(self) -> None:
        if self.beta is not None:
            check.number("beta", self.beta, 0)
        check.flag("nesterov", self.nesterov)
        check.choice("anchor", self.anchor, ("trained", "step"))
        object.__setattr__(self, "variant", _checked_variant(self.variant))

    def corrections(self, setting: Setting) -> tuple[Correction, ...]:
        beta, first = self._beta(setting.plan), _first(self.variant, setting)
        if self.anchor == "step":
            return (StepHeavyBall(self.nesterov, beta, first, setting.plan.longest),)
        return (HeavyBall(self.nesterov, beta, first),)

    def _beta(self, plan: Plan) -> float:
        if self.beta is not None:
            return self.beta
        if self.anchor == "step":
            return 1.0 if plan.participation < 1 else _STABLE
        return min(1.0, _largest_beta(_STABLE, plan))

    def notices(self, plan: Plan) -> tuple[str, ...]:
        beta = self._beta(plan)
        if self.beta is not None or beta == 1:
            return ()
        return (
            f"beta={beta:g} instead of the paper's 1, which is unstable with {plan.participation:.0%} of the clients "
            f"in a round{f' and {plan.longest} local steps' if self.anchor == 'trained' else ''}",
        )

    def warnings(self, plan: Plan) -> tuple[str, ...]:
        beta = self._beta(plan)
        if self.anchor == "step":
            return _momentum_warnings(beta, plan.participation < 1, "with everyone in a round")
        if (growth := _growth(beta, plan)) <= 1:
            return ()
        return (
            f"beta={beta:g} is unstable with {plan.participation:.0%} of the clients in a round: from one "
            f"participation to the next, a client's own drift is multiplied by {growth:.2g}; "
            f"beta={_largest_beta(1, plan):g}, or fewer clients in a round, keep that below 1",
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
        beta: momentum β; 0 is FedAvg. The paper has no value; 0.9 is that of the authors' code (see Pitfalls).
        variant: momentum at a client's first participation, as in FedHBM.
        nesterov: take the gradient at y plus its momentum instead of at y, as in Nesterov's method.
    Use:
        Like FedHBM; the momentum is constant within a round, which is easier to analyse.
    Pitfalls:
        Where the loss is flat, the server's model moves on by β times a mean of its earlier moves, whatever C and J
        are: β above 1 diverges. At 1 momentum fades only where the loss is curved, and with everyone in a round and
        one step, the classical heavy ball, not at all. On digits with all clients β = 1 rose to 96 % and fell to 60 %
        in 100 rounds, where 0.9 ended at 98 %; with a tenth of them they had 91 and 89 %.
    Elsewhere:
        The authors' code (RickZack/GHBM) agrees. Its shared and random variants do not remember the model received at
        the first participation, so that the second has no momentum.
    """

    beta: float = 0.9
    variant: Variant = None
    nesterov: bool = False

    def __post_init__(self) -> None:
        check.number("beta", self.beta, 0)
        check.flag("nesterov", self.nesterov)
        object.__setattr__(self, "variant", _checked_variant(self.variant))

    def corrections(self, setting: Setting) -> tuple[Correction, ...]:
        return (LocalHeavyBall(self.nesterov, self.beta, _first(self.variant, setting)),)

    def warnings(self, plan: Plan) -> tuple[str, ...]:
        return _momentum_warnings(self.beta, plan.participation < 1, "with everyone in a round")


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
        nesterov: take the gradient at y plus its momentum instead of at y, as in Nesterov's method.
    Use:
        Clients that cannot keep a state; τ about N/|S|.
    Pitfalls:
        One and a half times the traffic; no momentum in the first τ rounds. β above 1 diverges, as in LocalGHB; at
        τ = 1 and β = 1 momentum never fades.
    Elsewhere:
        FedCM and FedADC (first version) are GHB(1) up to scaling. The authors' code (RickZack/GHBM) has 0.9, too.
    """

    beta: float = 0.9
    tau: int = 10
    nesterov: bool = False

    def __post_init__(self) -> None:
        check.number("beta", self.beta, 0)
        check.integer("tau", self.tau, 1)
        check.flag("nesterov", self.nesterov)

    def corrections(self, setting: Setting) -> tuple[Correction, ...]:
        return (GlobalHeavyBall(self.nesterov, self.beta, self.tau),)

    def warnings(self, plan: Plan) -> tuple[str, ...]:
        return _momentum_warnings(self.beta, self.tau > 1, "with tau=1")
