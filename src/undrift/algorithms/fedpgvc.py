"""FedPGVC: steps of the last layers are weighted by the gradient of the squared loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from undrift.client.layout import AtMost, Layers
from undrift.core import check
from undrift.methods.algorithm import Algorithm
from undrift.methods.correction import Correction
from undrift.methods.setting import Setting
from undrift.plugins.pgvc import PGVC


@dataclass(frozen=True)
class FedPGVC(Algorithm):
    """The last layers move by the product of two gradients: of the loss, and of its second moment.

    Paper:
        Sahoo, Tripathi, Saha, Mondal. Harnessing heterogeneity: improving convergence through partial variance control
        in federated learning.
        https://openreview.net/forum?id=I9VhJ5iLNr
    Idea:
        Drift is strongest in the last layers. There a gradient penalty ρ, large where losses are large, changes every
        local step, so that classifiers of different clients stay closer together; earlier layers may differ.
    Equations:
        ρ = (1/B) Σ_b ℓ_b ∇ℓ_b = ∇ (1/2B) Σ_b ℓ_b²
        last layers: y ← y − η (ρ ⊙ g)  `form="product"`, Eq. 15
                     y ← y − η (|ρ| ⊙ g)  `form="magnitude"`
                     y ← y − η (g + ρ)  `form="additive"`
        the rest:    y ← y − η g
        x ← (1 − η_g) x + η_g mean_S y_i
    Options:
        layers: how many of the last layers are corrected; also a list of parameter names, or "all".
        form: how the penalty acts: "product" as printed (Eq. 15), "magnitude" or "additive".
    Use:
        Few, very heterogeneous clients, at FedAvg's traffic and without any state. As an option of another algorithm it
        is ``pgvc=ud.PGVC(layers=2)``.
    Pitfalls:
        ρ ⊙ g is almost always positive, so that as printed the weights of the last layers can only decrease;
        "magnitude" keeps the direction of descent. Steps scale with the square of the loss's scale. One more backward
        pass through the last layers. Weight decay is in g and not in ρ; a local optimiser receives the modified
        gradient.
    Elsewhere:
        Eq. 16 prints (1 − η_g) x + mean y_i, which is an average only for η_g = 1. Gradients per sample are not needed:
        Eq. 73 gives ρ in one pass.
    """

    weighting: ClassVar[str] = "uniform"

    layers: Layers = AtMost(2)
    form: str = "product"

    def __post_init__(self) -> None:
        if self.pgvc is not None:
            raise ValueError(f"FedPGVC is PGVC already; pgvc must be None, got {check.shown(self.pgvc)}")
        PGVC(self.layers, self.form)  # checks its options

    def corrections(self, setting: Setting) -> tuple[Correction, ...]:
        return PGVC(self.layers, self.form).corrections(setting)
