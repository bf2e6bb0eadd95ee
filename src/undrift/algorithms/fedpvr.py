"""FedPVR: SCAFFOLD's correction for the last layers only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from undrift.algorithms.scaffold import ControlVariates
from undrift.client.layout import AtMost, Layers
from undrift.core import check
from undrift.methods.algorithm import Algorithm
from undrift.methods.correction import Correction
from undrift.methods.setting import Setting


@dataclass(frozen=True)
class FedPVR(Algorithm):
    """Control variates for the last layers, where clients differ most; the rest is averaged.

    Paper:
        Li, Schmidt, Alstrøm, Stich. On the effectiveness of partial variance reduction in federated learning with
        heterogeneous data. CVPR 2023.
        https://arxiv.org/abs/2212.02191
    Idea:
        Clients learn similar features and different classifiers. Correcting the drift of the classifier alone leaves
        the lower layers free and saves most of SCAFFOLD's extra traffic.
    Equations:
        y ← y − η (g_i(y) + e ⊙ (c − c_i)),  e marks the last layers
        c_i⁺ = e ⊙ (c_i − c + (x − y_i) / (K_i η))   (option II)   or   e ⊙ ∇f_i(x)   (option I)
        x ← x + η_g mean_S (y_i − x);  c ← c + (1/N) Σ_S (c_i⁺ − c_i)
    Options:
        layers: how many of the last layers are corrected; also a list of parameter names, or "all"; 0 is FedAvg, all is
            SCAFFOLD.
        option: how a client's control is renewed, "II" or "I", as in SCAFFOLD.
    Use:
        Classification with different classes on every client, when SCAFFOLD costs or corrects too much.
    Pitfalls:
        Only the corrected layers reach the optimum. `layers=0` is FedAvg with uniform weights, `layers="all"` SCAFFOLD.
        With local momentum ρ the number of steps is replaced by FedNova's ‖a_i‖₁.
    Elsewhere:
        The authors' code has momentum 0.9 on the lower layers and none on the corrected ones, for FedPVR alone; it
        corrects all three linear layers of VGG-11, where later papers say the last two layers.
    """

    weighting: ClassVar[str] = "uniform"

    layers: Layers = AtMost(2)
    option: str = "II"

    def __post_init__(self) -> None:
        check.choice("option", self.option, ("II", "I"))

    def corrections(self, setting: Setting) -> tuple[Correction, ...]:
        head = setting.layout.head(self.layers)
        return (ControlVariates(head, self.option),) if head else ()
