"""FSVRG: variance-reduced local steps around the mean gradient, with sparse features scaled up."""

from __future__ import annotations

from dataclasses import dataclass

from undrift.core import check
from undrift.methods.algorithm import Algorithm
from undrift.methods.correction import Correction
from undrift.methods.setting import Plan, Setting
from undrift.methods.variance_reduction import FEATURE_SCALINGS, Features, VarianceReduction

_SHORT = 0.01  # of all rates of a round together, below which hardly anything is learned


@dataclass(frozen=True)
class FSVRG(Algorithm):
    """Clients step along the mean gradient, corrected by the change of their own gradient.

    Paper:
        Konečný, McMahan, Ramage, Richtárik. Federated optimization: distributed machine learning for on-device
        intelligence. 2016.
        https://arxiv.org/abs/1610.02527
    Idea:
        A client's first step follows the mean gradient of the cohort; later steps add the change of its own gradient,
        on which clients agree better than on the gradient itself. With sparse data a client that rarely sees a feature
        underestimates it; Λ_i and A compensate for that.
    Equations:
        G = Σ w_i ∇f_i(x)
        y ← y − (η/n_i) (Λ_i [g_i(y) − g_i(x)] + G), both g_i on the same batch
        x ← x + η_g A Σ w_i (y_i − x)
        Λ_i = diag(φ^j / φ_i^j),  A = diag(|S| / ω^j): φ_i^j the fraction of client i's samples with feature j, φ^j that
        of the cohort's, ω^j the number of its clients that have it; 1 where nobody does
    Options:
        scale_step: divide the rate by the number of a client's samples, as in the paper.
        feature_scaling: how rare features are made up for: "cohort" counts them in the cohort, "printed" over all
            clients heard so far, "census" over all clients before round 1, "off" leaves them.
    Use:
        Softmax regression on sparse data, all clients in every round. The original has batches of one sample and one
        epoch, n_i steps at the rate η/n_i; `scale_step=False` makes the rate η. Where no `lr` is given, η is the data
        set's rate (or 0.01) times the mean number of a client's samples, so that the mean client steps at that rate.
    Pitfalls:
        Three models down and two up, in two exchanges, a full pass, and two gradients per step. With the same `steps`
        for all, η/n_i lets large clients move less. The optimum is a fixed point only under full participation.
        Features are scaled where the model is one linear layer on the inputs (`softmax`, `softmax-hog`); elsewhere, and
        on normalised images, Λ_i = A = 1. ``feature_scaling="printed"`` counts features over all clients, those not
        seen yet assumed to be like the others, while |S| stays the cohort: on dense data A is then the participation
        ratio, which shortens every step. Under Adam the direction d is what the optimiser receives.
    Elsewhere:
        The paper has no sampling of clients. Versions that scale weight decay along with the data's gradient make it
        strongest for the rarest features.
    """

    scale_step: bool = True
    feature_scaling: str = "cohort"

    def __post_init__(self) -> None:
        check.flag("scale_step", self.scale_step)
        check.choice("feature_scaling", self.feature_scaling, FEATURE_SCALINGS)

    @property
    def divides_rate(self) -> bool:
        return self.scale_step

    def warnings(self, plan: Plan) -> tuple[str, ...]:
        path = plan.lr * plan.steps / plan.samples
        if not self.scale_step or path >= _SHORT:
            return ()
        return (
            f"lr={plan.lr:g} is divided by a client's samples, {plan.samples:g} in the median: its local steps in a "
            f"round add up to a rate of {path:.2g}; lr={plan.lr * plan.samples:.2g} makes each a step of {plan.lr:g}, "
            "and so does scale_step=False",
        )

    def corrections(self, setting: Setting) -> tuple[Correction, ...]:
        return (VarianceReduction(Features.of(setting, self.feature_scaling), self.scale_step),)
