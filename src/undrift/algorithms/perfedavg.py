"""Per-FedAvg: a model that is good after one step on a client's own data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from undrift.client.task import Task
from undrift.core import check, tree
from undrift.core.tree import Tree
from undrift.methods.algorithm import Algorithm
from undrift.methods.correction import At, Correction
from undrift.methods.setting import Setting
from undrift.protocol import State


@dataclass(frozen=True)
class MetaStep(Correction):
    """ỹ = y − α g(y; D), q = g(ỹ; D'); d = q, or q − α (g(y + δq; D'') − g(y − δq; D'')) / (2δ)."""

    alpha: float
    hessian: bool
    delta: float

    def locate(self, at: At, client: State) -> At:
        """The gradient is taken at ỹ, the step starts at y."""
        return at._replace(params=tree.add(at.origin, _with_batch(at, 1).gradient(at.origin), -self.alpha))

    def step(self, grad: Tree, client: State, at: At) -> tuple[Tree, State]:
        if not self.hessian:
            return grad, client
        at = _with_batch(at, 2)
        ahead = at.gradient(tree.add(at.origin, grad, self.delta))
        behind = at.gradient(tree.add(at.origin, grad, -self.delta))
        return tree.add(grad, tree.sub(ahead, behind), -self.alpha / (2 * self.delta)), client

    def adapt(self, model: Tree, client: State, task: Task, buffers: Tree) -> Tree:
        return tree.add(model, task.full_gradient(model, buffers).gradient, -self.alpha)


def _with_batch(at: At, draw: int) -> At:
    """The same point with an independent batch; the step's own batch is D'."""
    return at._replace(batch=at.task.batch(at.batch.step, at.batch.buffers, draw))


@dataclass(frozen=True)
class PerFedAvg(Algorithm):
    """A model that becomes good after one gradient step on a client's own data.

    Paper:
        Fallah, Mokhtari, Ozdaglar. Personalized federated learning with theoretical guarantees: a model-agnostic
        meta-learning approach. NeurIPS 2020.
        https://arxiv.org/abs/2002.07948
    Idea:
        The objective is the loss after one step of rate α on the client's own data, so the global model is a starting
        point, not the model to use. Its gradient needs a Hessian, dropped ("fo") or taken by differences ("hf").
    Equations:
        F(x) = Σ p_i f_i(x − α ∇f_i(x))
        ỹ = y − α g_i(y; D);  q = g_i(ỹ; D')
        fo: y ← y − η q
        hf: y ← y − η (q − α (g_i(y + δq; D'') − g_i(y − δq; D'')) / (2δ))
        x ← x + η_g mean_S (y_i − x)
    Options:
        alpha: inner rate α, of the step on a client's own data; `lr` is the outer one.
        form: the derivative of the inner step: dropped ("fo"), or by differences of gradients ("hf").
        delta: δ of these differences.
    Use:
        When every client will use a model of its own and has some data for it.
    Pitfalls:
        `lr` is the outer rate η, `alpha` the inner one. The history evaluates x; `run.clients` the model of each client
        after one step of rate α on all of its own samples. Two gradients a step ("hf": four). Local momentum does not
        affect the inner step.
    Elsewhere:
        fluke 0.8.1 keeps the inner step, so that a client moves by both. A public benchmark adapts for an epoch before
        it evaluates, which is another protocol.
    """

    weighting: ClassVar[str] = "uniform"

    alpha: float = 0.01
    form: str = "fo"
    delta: float = 1e-3

    def __post_init__(self) -> None:
        check.number("alpha", self.alpha, 0)
        check.choice("form", self.form, ("fo", "hf"))
        check.number("delta", self.delta, 0, open_low=True)

    def corrections(self, setting: Setting) -> tuple[Correction, ...]:
        return (MetaStep(self.alpha, self.form == "hf", self.delta),)
