"""PGVC, partial gradient variance control: changes the gradient of the last layers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from undrift.client.layout import AtMost, Layers
from undrift.client.learner import Batch, Loss, Losses
from undrift.core import check, tree
from undrift.core.tree import Tree
from undrift.methods.correction import At, Correction, Heard
from undrift.methods.plugin import Plugin
from undrift.methods.setting import Plan, Setting
from undrift.protocol import Message, State

_PENALTIES = ("product", "magnitude", "additive")  # forms with the ρ of Eq. 14, a number for every weight
_WEIGHTS = ("loss", "norm")  # forms with one number for the last layers
FORMS = (*_PENALTIES, "normalised", *_WEIGHTS, "decay")
_KEPT = 0.9  # share of the earlier rounds in the running mean of norms


@dataclass(frozen=True)
class GradientPenalty(Correction):
    """On `names`, g becomes ρ ⊙ g, |ρ| ⊙ g or g + ρ, where ρ = ∇ (1/2B) Σ_b ℓ_b² (Eq. 73); the rest is left alone."""

    names: tuple[str, ...]
    form: str
    received: bool  # ρ at the received model instead of the current one

    def step(self, grad: Tree, client: State, at: At) -> tuple[Tree, State]:
        penalty = self._penalty(at)
        if self.form == "additive":
            return tree.add(grad, penalty), client
        if self.form == "magnitude":
            penalty = {k: p.abs() for k, p in penalty.items()}
        return grad | {k: p * grad[k] for k, p in penalty.items()}, client

    def _penalty(self, at: At) -> Tree:
        """ρ from the losses of the data alone, by a backward pass that ends at the first of `names`."""
        point, buffers = (at.anchor, at.anchor_buffers) if self.received else (at.params, at.batch.buffers)
        head, batch = tree.take(point, self.names), at.batch._replace(buffers=buffers)
        return at.task.gradient(head, batch, _losses_of_head(point, at), of=_half_square).gradient


@dataclass(frozen=True)
class ScalarWeight(Correction):
    """On `names`, g becomes ρ g with one number ρ: the batch's mean loss, or ‖∇ℓ‖ over `names` (§3.3.1)."""

    names: tuple[str, ...]
    form: str

    def step(self, grad: Tree, client: State, at: At) -> tuple[Tree, State]:
        head = tree.take(grad, self.names)
        if self.form == "loss":
            return grad | tree.scale(head, at.loss.detach()), client
        slope = tree.add(head, at.params, -at.task.weight_decay)  # of the loss of the data alone
        return grad | tree.scale(head, tree.dot(slope, slope).sqrt()), client


@dataclass(frozen=True)
class NormalisedLayers(Correction):
    """Each of `layers` takes g_l ← σ g_l / ‖g_l‖ (Eq. 8–10)."""

    layers: tuple[tuple[str, ...], ...]
    sigma: float

    def step(self, grad: Tree, client: State, at: At) -> tuple[Tree, State]:
        return _scaled(grad, self.layers, self.sigma / _norms(grad, self.layers)), client


@dataclass(frozen=True)
class EstimatedLayers(Correction):
    """The same with a σ of its own for every layer: the running mean over rounds of the norms that clients met.

    The first round, which knows none, leaves g alone.
    """

    layers: tuple[tuple[str, ...], ...]

    def server(self, model: Tree) -> State:
        return {"sigma": next(iter(model.values())).new_zeros(len(self.layers))}

    def broadcast(self, server: State, model: Tree) -> Message:
        return server

    def begin(self, start: Tree, client: State, at: At) -> tuple[Tree, State]:
        return start, {"norms": torch.zeros_like(at.inbox["sigma"])}

    def step(self, grad: Tree, client: State, at: At) -> tuple[Tree, State]:
        norms, sigma = _norms(grad, self.layers), at.inbox["sigma"]
        factors = torch.where(sigma > 0, sigma / norms, 1)
        return _scaled(grad, self.layers, factors), {"norms": client["norms"] + norms / at.task.steps}

    def finish(self, update: Tree, client: State, at: At) -> tuple[Tree, State, Message]:
        return update, {}, client

    def collect(self, updates: Tree, server: State, heard: Heard) -> tuple[Tree, State]:
        before, found = server["sigma"], tree.mean(heard.replies, heard.cohort.weights)["norms"]
        return updates, server | {"sigma": torch.where(before > 0, _KEPT * before + (1 - _KEPT) * found, found)}


def _norms(grad: Tree, layers: tuple[tuple[str, ...], ...]) -> Tensor:
    """Of every layer [layers], above zero."""
    parts = (tree.take(grad, names) for names in layers)
    return torch.stack([tree.dot(part, part).sqrt() for part in parts]).clamp_min(1e-30)


def _scaled(grad: Tree, layers: tuple[tuple[str, ...], ...], factors: Tensor) -> Tree:
    for names, factor in zip(layers, factors, strict=True):
        grad = grad | tree.scale(tree.take(grad, names), factor)
    return grad


@dataclass(frozen=True)
class LayerDecay(Correction):
    """After training, y_l ← (1 − η ρ_l) y_l; ρ_l is the mean entry of Eq. 14 over all samples, in layer l."""

    layers: tuple[tuple[str, ...], ...]

    def finish(self, update: Tree, client: State, at: At) -> tuple[Tree, State, Message]:
        head = tree.take(at.params, [name for names in self.layers for name in names])
        rho = at.task.full_pass(head, at.batch.buffers, _losses_of_head(at.params, at), _half_square).gradient
        for names in self.layers:
            mean = torch.cat([rho[name].flatten() for name in names]).mean()
            update = tree.add(update, tree.take(at.params, names), -at.task.lr * mean)
        return update, client, {}


def _losses_of_head(point: Tree, at: At) -> Loss:
    """The losses of the data as a function of a few parameters; the others are those of `point`."""

    def losses(head: Tree, batch: Batch) -> Losses:
        return at.task.learner.losses(point | head, batch)

    return losses


def _half_square(values: Tensor) -> Tensor:
    return values.square() / 2


@dataclass(frozen=True)
class PGVC(Plugin):
    """FedPGVC as an option of another algorithm: ``FedProx(mu=0.1, pgvc=PGVC(layers=2))``.

    It acts on the batch gradient (weight decay included) before the algorithm's own correction; see
    `undrift.algorithms.FedPGVC` for the equations, the forms and the other options.
    """

    layers: Layers = AtMost(2)
    form: str = "normalised"
    sigma: float | None = None
    penalty_at: str = "current"

    def __post_init__(self) -> None:
        check.choice("form", self.form, FORMS)
        check.choice("penalty_at", self.penalty_at, ("current", "received"))
        if self.sigma is not None:
            check.number("sigma", self.sigma, 0, open_low=True)
            if self.form != "normalised":
                raise ValueError(f"sigma belongs to form='normalised', got form={self.form!r}")
        if self.penalty_at != "current" and self.form not in _PENALTIES:
            raise ValueError(
                f"penalty_at belongs to the forms 'product', 'magnitude' and 'additive', got form={self.form!r}"
            )

    def corrections(self, setting: Setting) -> tuple[Correction, ...]:
        names = setting.layout.head(self.layers)
        if not names:
            return ()
        if self.form in _PENALTIES:
            return (GradientPenalty(names, self.form, self.penalty_at == "received"),)
        if self.form in _WEIGHTS:
            return (ScalarWeight(names, self.form),)
        layers = setting.layout.by_layer(names)
        if self.form == "decay":
            return (LayerDecay(layers),)
        return (EstimatedLayers(layers) if self.sigma is None else NormalisedLayers(layers, self.sigma),)

    def warnings(self, plan: Plan) -> tuple[str, ...]:
        if self.form != "product":
            return ()
        return (
            "form='product' (Eq. 15 as printed) multiplies two gradients that nearly always have the same sign, so the "
            "weights of the last layers can only fall and what must grow is not learned; every other form descends, as "
            "the default, form='normalised' (Eq. 8–10)",
        )
