"""FedPGVC: gradients of the last layers are brought to a common size, or weighted by a penalty."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from undrift.client.layout import AtMost, Layers
from undrift.core import check, tree
from undrift.core.tree import Tree
from undrift.methods.algorithm import Algorithm
from undrift.methods.correction import Correction, Heard
from undrift.methods.setting import Plan, Setting
from undrift.plugins.pgvc import PGVC
from undrift.protocol import State


@dataclass(frozen=True)
class PrintedServerStep(Correction):
    """x ← (1 − η_g) x + mean y_i (Eq. 16 as printed), as an update that is multiplied by η_g afterwards."""

    server_lr: float

    def advance(self, update: Tree, server: State, heard: Heard) -> tuple[Tree, State]:
        printed = tree.add(update, heard.model, 1 - self.server_lr)
        return tree.scale(printed, 1 / self.server_lr), server


@dataclass(frozen=True)
class FedPGVC(Algorithm):
    """Clients bring the gradients of their last layers to a common size before every step.

    Paper:
        Sahoo, Tripathi, Saha, Mondal. Harnessing heterogeneity: improving convergence through partial variance control
        in federated learning.
        https://openreview.net/forum?id=I9VhJ5iLNr
    Idea:
        Drift is strongest in the last layers, and a client whose gradients are large there pulls the model away from
        the others. Every local step of these layers is controlled by a factor ρ, so that classifiers of different
        clients stay closer together; earlier layers may differ.
    Equations:
        ρ = (1/B) Σ_b ℓ_b ∇ℓ_b = ∇ (1/2B) Σ_b ℓ_b²  (Eq. 14, 73), at the current or at the received model
        last layers: y ← y − η (ρ ⊙ g)  `form="product"`, Eq. 15
                     y ← y − η (|ρ| ⊙ g)  `form="magnitude"`, keeps the direction of descent
                     y ← y − η (g + ρ)  `form="additive"`, §8: "an auxiliary gradient step"
                     y_l ← y_l − η σ g_l / ‖g_l‖  `form="normalised"`, Eq. 8–10, in every layer l
                     y ← y − η ℓ̄ g  `form="loss"`, §3.3.1, ℓ̄ the mean loss of the batch
                     y ← y − η ‖∇ℓ‖ g  `form="norm"`, §3.3.1, ∇ℓ in the last layers
                     y ← y − η g, after training y_l ← (1 − η ρ̄_l) y_l  `form="decay"`, the first author's code
        the rest:    y ← y − η g
        x ← (1 − η_g) x + η_g mean_S y_i
    Options:
        layers: how many of the last layers are corrected; also a list of parameter names, or "all".
        form: which reading of the paper, see the equations: "normalised" (Eq. 8–10), "product" (Eq. 15), "magnitude",
            "additive" (§8), "loss" or "norm" (§3.3.1), "decay" (the first author's public code). The default is the
            one that came nearest to the paper's claim (docs/readings.md).
        sigma: with "normalised", the norm σ of a layer's gradient; None for the running mean of the norms that clients
            met in this layer, which takes a number per layer down and up.
        penalty_at: where ρ is taken: "current", at every step's own model (Eq. 14), or "received", at the model from
            the server (ρ^{r−1} of Algorithm 1, line 10), on the batch of the step.
        server_step: "average", or "printed" for x ← (1 − η_g) x + mean_S y_i (Eq. 16); the same for η_g = 1.
    Use:
        Few, very heterogeneous clients, at FedAvg's traffic and without any state. As an option of another algorithm it
        is ``pgvc=ud.PGVC(layers=2)``.
    Pitfalls:
        ρ ⊙ g is almost always positive, so that as printed the weights of the last layers can only decrease: "product"
        cannot learn a head that must grow, and says so before the first round. Where losses are small, "product" and
        "magnitude" scale steps by the gradient itself and hardly move. With "normalised" and a given σ steps do not
        shrink at an optimum. A loss that is c times as large makes steps of "product" and "magnitude" c³ times as long,
        those of "loss" and "norm" c² times. One more backward pass through the last layers for the forms with ρ. Weight
        decay is in g and not in ρ; a local optimiser receives the modified gradient, and Adam and RMSprop undo most of
        a factor that changes slowly ("loss", "norm").
    Elsewhere:
        The paper says that "loss" and "norm" are not enough; Eq. 9 needs σ of a federation without heterogeneity, which
        is not known: it is given or estimated. Clients are averaged uniformly (Eq. 16) where the objective weights them
        by samples (Eq. 1); `weighting="samples"` does that. Eq. 16 prints (1 − η_g) x + mean y_i, which is an average
        only for η_g = 1. The first author's code trains plainly, then multiplies layers by 1 − η ρ̄_l. For ρ̄_l it takes
        the loss of one sample times the mean entry of one tensor's summed gradient; here it is the mean entry of ρ over
        all samples and the layer. In a softmax layer that is 0, so that only layers before the last one shrink or grow.
        Gradients per sample are not needed: Eq. 73 gives ρ in one pass.
    """

    weighting: ClassVar[str] = "uniform"

    layers: Layers = AtMost(2)
    form: str = "normalised"
    sigma: float | None = None
    penalty_at: str = "current"
    server_step: str = "average"

    def __post_init__(self) -> None:
        if self.pgvc is not None:
            raise ValueError(f"FedPGVC is PGVC already; pgvc must be None, got {check.shown(self.pgvc)}")
        check.choice("server_step", self.server_step, ("average", "printed"))
        self._control()  # checks the options that are PGVC's

    def _control(self) -> PGVC:
        return PGVC(self.layers, self.form, self.sigma, self.penalty_at)

    def corrections(self, setting: Setting) -> tuple[Correction, ...]:
        server = (PrintedServerStep(setting.server_lr),) if self.server_step == "printed" else ()
        return (*self._control().corrections(setting), *server)

    def warnings(self, plan: Plan) -> tuple[str, ...]:
        return self._control().warnings(plan)
