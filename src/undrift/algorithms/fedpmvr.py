"""FedPMVR: a client's momentum on its last layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from undrift.client.layout import AtMost, Layers
from undrift.core import check, tree
from undrift.core.tree import Tree
from undrift.methods.algorithm import Algorithm
from undrift.methods.correction import At, Correction
from undrift.methods.setting import Plan, Setting
from undrift.protocol import Message, State


@dataclass(frozen=True)
class HeadMomentum(Correction):
    """m ← α g + (1 − α) m on `names`, or m ← α g + m if momentum accumulates; kept from round to round, or not."""

    alpha: float
    names: tuple[str, ...]
    keep: bool
    accumulate: bool

    def client(self, model: Tree) -> State:
        return {"momentum": tree.zeros(tree.take(model, self.names))} if self.keep else {}

    def _after(self, gradient: Tree, client: State) -> Tree:
        """The momentum once it has seen a gradient; without a state it starts from zero."""
        new = tree.scale(tree.take(gradient, self.names), self.alpha)
        return tree.add(new, client["momentum"], 1 if self.accumulate else 1 - self.alpha) if client else new


@dataclass(frozen=True)
class DriftMomentum(HeadMomentum):
    """After training, g = y − x (`sign` 1) or x − y (`sign` −1), and y ← y − m on `names`."""

    key: ClassVar[str] = "HeadMomentum"  # the name in checkpoints of version 0.1

    sign: int

    def finish(self, update: Tree, client: State, at: At) -> tuple[Tree, State, Message]:
        momentum = self._after(tree.scale(update, self.sign), client)
        return tree.sub(update, momentum), {"momentum": momentum} if self.keep else {}, {}


@dataclass(frozen=True)
class GradientMomentum(HeadMomentum):
    """After training, g = ∇f_i(y): y ← y − m on `names`, y ← y − η g elsewhere."""

    key: ClassVar[str] = "HeadMomentum"  # the name in checkpoints of version 0.1

    def finish(self, update: Tree, client: State, at: At) -> tuple[Tree, State, Message]:
        gradient = at.task.full_gradient(at.params, at.batch.buffers).gradient
        momentum = self._after(gradient, client)
        update = tree.add(update, tree.drop(gradient, self.names), -at.task.lr)
        return tree.sub(update, momentum), {"momentum": momentum} if self.keep else {}, {}


@dataclass(frozen=True)
class AddedMomentum(HeadMomentum):
    """In every step, d = g + m on `names`, where m has seen g."""

    def begin(self, start: Tree, client: State, at: At) -> tuple[Tree, State]:
        return start, client or {"momentum": tree.zeros(tree.take(start, self.names))}

    def step(self, grad: Tree, client: State, at: At) -> tuple[Tree, State]:
        momentum = self._after(grad, client)
        return tree.add(grad, momentum), {"momentum": momentum}

    def finish(self, update: Tree, client: State, at: At) -> tuple[Tree, State, Message]:
        return update, client if self.keep else {}, {}


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
        The last layers of clients drift apart most. They are corrected by a momentum that each client computes for
        itself, after training or in every step. The other layers are trained by plain steps; with "gradient" they take
        one more of them after training.
    Equations:
        after training, on the last layers m_i ← α g + (1 − α) m_i and y_i ← y_i − m_i  (Eq. 5–6), where
          gradient:        g = ∇f_i(y_i); the rest takes y_i ← y_i − η g  (Algorithm 1, lines 15–22)
          drift:           g = y_i − x; the rest is left alone  (§2.2.1, the first author's code)
          pseudogradient:  g = x − y_i, the other sign; the rest is left alone  (§2.2.1)
        in every step, on the last layers
          sum:             m_i ← α g + (1 − α) m_i and y ← y − η (g + m_i)  (Eq. 18, 27 with Eq. 5)
          stepwise:        m_i ← α m_i + (1 − α) g and y ← y − η m_i  (Eq. 12–14)
        x ← x + η_g Σ w_i (y_i − x)
    Options:
        alpha: share α of the new gradient in the momentum; with "stepwise", of the old momentum.
        layers: how many of the last layers are corrected; also a list of parameter names, or "all".
        form: which reading of the paper, see the equations: "gradient" (Algorithm 1), "drift" (§2.2.1),
            "pseudogradient" (the same with the other sign), "sum" (Eq. 18, 27) or "stepwise" (Eq. 12–14).
        keep_momentum: keep the momentum from round to round (line 2) instead of starting from zero (line 11).
        accumulate: m ← α g + m instead of α g + (1 − α) m, as the first author's code has it; not with "stepwise".
    Use:
        Few clients that always take part, at FedAvg's traffic.
    Pitfalls:
        The forms are readings of one paper and behave differently. In "gradient" m is not multiplied by η; small α is
        best. "drift" without a kept momentum multiplies the last layers' update by 1 − α, as Eq. 16 says of their
        drift, and small α is best (Fig. 10): FedAvg with a lower rate there. In "drift" a kept momentum grows until it
        cancels all of a client's movement, and the last layers converge away from any optimum, sooner if it
        accumulates; with α = 1 they never train. "pseudogradient" lengthens the last layers' update: by 1 + α without a
        kept momentum, up to twofold with one; if it accumulates, it is an undamped momentum and oscillates. "sum"
        doubles the step in the long run. Optimiser momentum acts on top of "stepwise" and "sum".
    Elsewhere:
        Algorithm 1 both keeps the momentum (line 2) and zeroes it every round (line 11); `keep_momentum` chooses. Eq. 7
        averages clients by samples, as here by default; line 27, Eq. 2 and the first author's code uniformly:
        `weighting="uniform"`. That code (Pranabiitp/FedPMVR) is meant as ``FedPMVR(form="drift", accumulate=True,
        layers=1)``, its last two tensors being one layer, but looks for indices -2 and -1 among 0, 1, ... and so never
        corrects anything: what it computes is FedAvg.
    """

    alpha: float = 0.1
    layers: Layers = AtMost(2)
    form: str = "gradient"
    keep_momentum: bool = True
    accumulate: bool = False

    def __post_init__(self) -> None:
        check.number("alpha", self.alpha, 0, 1)
        check.choice("form", self.form, ("gradient", "drift", "pseudogradient", "sum", "stepwise"))
        check.flag("keep_momentum", self.keep_momentum)
        check.flag("accumulate", self.accumulate)
        if self.accumulate and self.form == "stepwise":
            raise ValueError("accumulate=True belongs to the other forms; in form='stepwise' momentum is an average")

    def corrections(self, setting: Setting) -> tuple[Correction, ...]:
        names = setting.layout.head(self.layers)
        if self.form == "stepwise":
            return (SteppedMomentum(self.alpha, names, self.keep_momentum),)
        momentum = (self.alpha, names, self.keep_momentum, self.accumulate)
        if self.form == "sum":
            return (AddedMomentum(*momentum),)
        if self.form == "gradient":
            return (GradientMomentum(*momentum),)
        return (DriftMomentum(*momentum, sign=1 if self.form == "drift" else -1),)

    def warnings(self, plan: Plan) -> tuple[str, ...]:
        if self.form != "drift" or not self.keep_momentum or not self.alpha:
            return ()
        return (
            "form='drift' with a kept momentum stops the last layers: it grows until it cancels what a client has "
            "trained; keep_momentum=False (Algorithm 1, line 11) multiplies that by 1 - alpha instead",
        )
