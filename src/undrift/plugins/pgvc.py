"""PGVC, partial gradient variance control: changes the gradient of the last layers."""

from __future__ import annotations

from dataclasses import dataclass

from undrift.client.layout import AtMost, Layers
from undrift.client.learner import Batch, Losses
from undrift.core import check, tree
from undrift.core.tree import Tree
from undrift.methods.correction import At, Correction
from undrift.methods.plugin import Plugin
from undrift.methods.setting import Setting
from undrift.protocol import State


@dataclass(frozen=True)
class GradientPenalty(Correction):
    """On `names`, g becomes ρ ⊙ g, |ρ| ⊙ g or g + ρ, where ρ = ∇ (1/2B) Σ_b ℓ_b² (Eq. 73); the rest is left alone."""

    names: tuple[str, ...]
    form: str

    def step(self, grad: Tree, client: State, at: At) -> tuple[Tree, State]:
        penalty = self._penalty(at)
        if self.form == "additive":
            return tree.add(grad, penalty), client
        if self.form == "magnitude":
            penalty = {k: p.abs() for k, p in penalty.items()}
        return grad | {k: p * grad[k] for k, p in penalty.items()}, client

    def _penalty(self, at: At) -> Tree:
        """ρ from the losses of the data alone, by a backward pass that ends at the first of `names`."""

        def losses(head: Tree, batch: Batch) -> Losses:
            return at.task.learner.losses(at.params | head, batch)

        head = tree.take(at.params, self.names)
        return at.task.gradient(head, at.batch, losses, of=lambda values: values.square() / 2).gradient


@dataclass(frozen=True)
class PGVC(Plugin):
    """FedPGVC as an option of another algorithm: ``FedProx(mu=0.1, pgvc=PGVC(layers=2))``.

    It acts on the batch gradient (weight decay included) before the algorithm's own correction; see
    `undrift.algorithms.FedPGVC` for the equations and the forms.
    """

    layers: Layers = AtMost(2)
    form: str = "product"

    def __post_init__(self) -> None:
        check.choice("form", self.form, ("product", "magnitude", "additive"))

    def corrections(self, setting: Setting) -> tuple[Correction, ...]:
        names = setting.layout.head(self.layers)
        return (GradientPenalty(names, self.form),) if names else ()
