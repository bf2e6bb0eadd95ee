"""FedDC: FedDyn's dynamic regulariser and SCAFFOLD's control variates together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from undrift.algorithms.feddyn import DynamicRegularizer
from undrift.algorithms.scaffold import ControlVariates
from undrift.core import check
from undrift.methods.algorithm import Algorithm
from undrift.methods.correction import Correction
from undrift.methods.setting import Setting


@dataclass(frozen=True)
class FedDC(Algorithm):
    """Every client's drift is tracked and added back on the server, and its gradient is corrected.

    Paper:
        Gao, Fu, Li, Chen, Xu, Xu. FedDC: federated learning with non-IID data via local drift decoupling and
        correction. CVPR 2022.
        https://arxiv.org/abs/2203.11751
    Idea:
        A client tracks how far it has drifted from the models it received, and is regularised towards the point that
        compensates for it; the server adds all clients' drift back. Control variates remove the difference between
        local and global gradients.
    Equations:
        y ← y − η (g_i(y) + α (y − x + h_i) + c − c_i)
        h_i ← h_i + y_i − x;  c_i⁺ = c_i − c + (x − y_i) / (K_i η)
        x ← mean_S y_i + mean_all h_i;  c ← c + (1/N) Σ_S (c_i⁺ − c_i)
        (FedDyn's ĝ_i is −α h_i: both corrections are listed as they are)
    Options:
        alpha: strength α of the pull towards the received model, drift included.
    Use:
        Like FedDyn, when twice the traffic is affordable.
    Pitfalls:
        The server overshoots: lower `lr` before `alpha`. With weights by samples α is α/(N p_i). With local momentum ρ
        the number of steps is replaced by FedNova's ‖a_i‖₁. It fixes the server's step, so `server_lr` is refused.
        With one class per client the drift adds up until it diverges, and no setting that was tried mends that
        (docs/stability.md).
    Elsewhere:
        The authors' code divides by the undecayed rate and by an average number of steps. Adding only the drift of the
        cohort, as some texts do, never converges under partial participation.
    """

    weighting: ClassVar[str] = "uniform"
    own_step: ClassVar[bool] = True

    alpha: float = 0.01

    def __post_init__(self) -> None:
        check.number("alpha", self.alpha, 0, open_low=True)

    def corrections(self, setting: Setting) -> tuple[Correction, ...]:
        return ControlVariates(setting.layout.names, "II"), DynamicRegularizer(self.alpha)
