"""FedPMVR: a client's momentum on its last layers."""

from __future__ import annotations

from dataclasses import dataclass

from undrift.client.layout import AtMost, Layers
from undrift.core import check, tree
from undrift.core.tree import Tree
from undrift.methods.algorithm import Algorithm
from undrift.methods.correction import At, Correction
from undrift.methods.setting import Setting
from undrift.protocol import Message, State


@dataclass(frozen=True)
class HeadMomentum(Correction):
    """After training, m ← α g + (1 − α) m on `names`, and y ← y − m there.

    g is the drift y − x (Eq. 5–6); or the full gradient at y, along which the rest then takes one more step of rate η
    (Algorithm 1, lines 15–22).
    """

    alpha: float
    names: tuple[str, ...]
    drift: bool
    keep: bool

    def client(self, model: Tree) -> State:
        return {"momentum": tree.zeros(tree.take(model, self.names))} if self.keep else {}

    def finish(self, update: Tree, client: State, at: At) -> tuple[Tree, State, Message]:
        gradient = update if self.drift else at.task.full_gradient(at.params, at.batch.buffers).gradient
        momentum = tree.scale(tree.take(gradient, self.names), self.alpha)
        if self.keep:
            momentum = tree.add(momentum, client["momentum"], 1 - self.alpha)
        if not self.drift:
            update = tree.add(update, tree.drop(gradient, self.names), -at.task.lr)
        return tree.sub(update, momentum), {"momentum": momentum} if self.keep else {}, {}


@dataclass(frozen=True)
class SteppedMomentum(Correction):
    """In every step, m ← α m + (1 − α) g on `names`, and d = m there (Eq. 12–14)."""

    alpha: float
    names: tuple[str, ...]
    keep: bool

    def client(self, model: Tree) -> State:
        return {"momentum": tree.zeros(tree.take(model, self.names))} if self.keep else {}

    def begin(self, start: Tree, client: State, at: At) -> tuple[Tree, State]:
        return start, client or {"momentum": tree.zeros(tree.take(start, self.names))}

    def step(self, grad: Tree, client: State, at: At) -> tuple[Tree, State]:
        direction = tree.mix(grad, client["momentum"], self.alpha)
        return direction, {"momentum": tree.take(direction, self.names)}

    def finish(self, update: Tree, client: State, at: At) -> tuple[Tree, State, Message]:
        return update, client if self.keep else {}, {}


@dataclass(frozen=True)
class FedPMVR(Algorithm):
    """Clients correct their last layers by a momentum of their own.

    Paper:
        FedPMVR: addressing data heterogeneity in federated learning through partial momentum variance reduction.
    Idea:
        The last layers of clients drift apart most. A momentum that a client keeps for them from round to round is
        subtracted after training; the rest is trained as usual.
    Equations:
        after training, on the last layers m_i ← α g + (1 − α) m_i and y_i ← y_i − m_i, where
          gradient:  g = ∇f_i(y_i); the rest takes y_i ← y_i − η g  (Algorithm 1, lines 15–22)
          drift:     g = y_i − x; the rest is left alone  (Eq. 5–6)
        stepwise:    in every step, on the last layers m_i ← α m_i + (1 − α) g and y ← y − η m_i  (Eq. 12–14)
        x ← x + η_g Σ w_i (y_i − x)
    Options:
        alpha: share α of the new gradient in the momentum; with "stepwise", of the old momentum.
        layers: how many of the last layers are corrected; also a list of parameter names, or "all".
        form: which reading of the paper: "gradient" (Algorithm 1), "drift" (Eq. 5–6) or "stepwise" (Eq. 12–14).
        keep_momentum: keep the momentum from round to round instead of starting from zero.
    Use:
        Few clients that always take part, at FedAvg's traffic.
    Pitfalls:
        The three forms are three readings of one paper and behave differently. In "gradient" m is not multiplied by η;
        small α is best. In "drift" a kept momentum grows until it cancels all of a client's movement, and the last
        layers converge away from any optimum; with α = 1 they never train. Optimiser momentum acts on top of
        "stepwise".
    Elsewhere:
        Algorithm 1 both keeps the momentum (line 2) and zeroes it every round (line 11); `keep_momentum` chooses.
    """

    alpha: float = 0.1
    layers: Layers = AtMost(2)
    form: str = "gradient"
    keep_momentum: bool = True

    def __post_init__(self) -> None:
        check.number("alpha", self.alpha, 0, 1)
        check.choice("form", self.form, ("gradient", "drift", "stepwise"))
        check.flag("keep_momentum", self.keep_momentum)

    def corrections(self, setting: Setting) -> tuple[Correction, ...]:
        names = setting.layout.head(self.layers)
        if self.form == "stepwise":
            return (SteppedMomentum(self.alpha, names, self.keep_momentum),)
        return (HeadMomentum(self.alpha, names, self.form == "drift", self.keep_momentum),)
