"""MA-FSVRG and GA-FSVRG: several global models, for clients of different kinds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from undrift.core import check
from undrift.methods.aggregate import mean
from undrift.methods.algorithm import Algorithm
from undrift.methods.averaging import Averaging
from undrift.methods.correction import Correction, defines
from undrift.methods.setting import Setting
from undrift.methods.several_models import Acceleration, Grouping, SeveralModels
from undrift.methods.variance_reduction import FEATURE_SCALINGS, Features, VarianceReduction


@dataclass(frozen=True)
class _Grouping(Algorithm):
    """What MA-FSVRG and GA-FSVRG share: their options."""

    by_gradient: ClassVar[bool]

    models: int = 4
    threshold: int = 4
    beta1: float = 0.9
    beta2: float = 0.999
    alpha0: float = 0.02
    acceleration: str = "adam"
    feature_scaling: str = "cohort"
    group_lr: float | None = None
    starts: str = "groups"
    accelerate_first_rounds: bool = True
    centred_starts: bool = True
    eps_in_root: bool = False
    scale_twice: bool = False

    def __post_init__(self) -> None:
        check.integer("models", self.models, 1)
        check.choice("starts", self.starts, ("groups", "random"))
        # Several models are made of the clients' after round `threshold`, so there must be such a round.
        check.integer("threshold", self.threshold, 1 if self.models > 1 and self.starts == "groups" else 0)
        check.number("beta1", self.beta1, 0, 1, open_high=True)
        check.number("beta2", self.beta2, 0, 1, open_high=True)
        check.number("alpha0", self.alpha0, 0)
        check.choice("acceleration", self.acceleration, ("adam", "printed", "off"))
        check.choice("feature_scaling", self.feature_scaling, FEATURE_SCALINGS)
        if self.group_lr is not None:
            check.number("group_lr", self.group_lr, 0, open_low=True)
        for name in ("accelerate_first_rounds", "centred_starts", "eps_in_root", "scale_twice"):
            check.flag(name, getattr(self, name))

    @property
    def divides_rate(self) -> bool:
        return True

    def corrections(self, setting: Setting) -> tuple[Correction, ...]:
        return (VarianceReduction(Features.of(setting, self.feature_scaling), scale_step=True),)

    def method(self, setting: Setting) -> SeveralModels:
        if self.models > setting.population:
            raise ValueError(
                f"models must be at most the number of clients, {setting.population}, whose models they are made of; "
                f"got {self.models}"
            )
        if setting.aggregate is not mean:
            raise ValueError(f"{type(self).__name__} groups updates itself; aggregate must be 'mean'")
        training = super().method(setting)
        assert isinstance(training, Averaging)
        reduction = training.corrections[-1]
        assert isinstance(reduction, VarianceReduction)
        if any(defines(correction, "broadcast") for correction in training.corrections[:-1]):
            raise ValueError(
                f"{type(self).__name__} sends its own messages only, and a plug-in needs one of the server; "
                "PGVC(form='normalised') does without if a sigma is given, as sigma=0.1"
            )
        return SeveralModels(
            training=training,
            reduction=reduction,
            acceleration=self._acceleration(),
            count=self.models,
            threshold=self.threshold,
            grouping=Grouping(
                by_gradient=self.by_gradient,
                lr=self.group_lr,
                centred_starts=self.centred_starts,
                scale_twice=self.scale_twice,
            ),
            seed=setting.seed,
            draw=setting.initialiser() if self.starts == "random" and setting.initialiser else None,
        )

    def _acceleration(self) -> Acceleration | None:
        if self.acceleration == "off":
            return None
        return Acceleration(
            beta1=self.beta1,
            beta2=self.beta2,
            alpha0=self.alpha0,
            printed=self.acceleration == "printed",
            eps_in_root=self.eps_in_root,
            first_rounds=self.accelerate_first_rounds,
        )


@dataclass(frozen=True)
class MAFSVRG(_Grouping):
    """Several global models, each the centre of a group of trained local models.

    Paper:
        Adaptive central acceleration on diversified global models (MA-FSVRG, GA-FSVRG). IEEE Transactions on Neural
        Networks and Learning Systems, 2024.
    Idea:
        Clients of different kinds get different models: each trains the one that fits its data best, and the server
        regroups the trained models by similarity. Local steps are FSVRG's; in a last exchange, gradients at the new
        models update Adam moments of each model, along which it takes one more step.
    Equations:
        c_i = argmin_c f_i(ŵ_c);  a_c = Σ w_i ∇f_i(ŵ_c) over the whole cohort
        w_i ← w_i − (η/n_i) (Λ_i [g_i(w_i) − g_i(ŵ_{c_i})] + a_{c_i}), from ŵ_{c_i}, both g_i on the same batch
        U: the top G−1 left singular vectors of the centred z_i = w_i;  centres: k-means on U^T (z_i − z̄), started at
        U^T (ŵ_c − z̄);  ŵ*_c = U centre_c + z̄
        w_c = ŵ_c + η_g A (ŵ*_c − ŵ_c), with FSVRG's Λ_i and A, which are 1 by default
        a = Σ w_i ∇f_i(w_c);  m ← β₁ m + (1 − β₁) a;  v ← β₂ v + (1 − β₂) a²
        ŵ_c ← w_c − α₀ √(1 − β₂^r) m / (√v + ε) in round r
        Rounds r ≤ T: one model, ŵ* = ŵ + Σ w_i (w_i − ŵ). After round T the G models are the centres of k-means,
        initialised by k-means++, on that round's w_i; all continue with the moments of the one model.
    Options:
        models: the number of global models, G.
        threshold: the round T after which there are several models.
        beta1: decay of the mean gradient, β₁, in the last step of a round.
        beta2: decay of its square, β₂.
        alpha0: length α₀ of that step, for each parameter.
        acceleration: the last step: "adam", "printed" (the paper's factors), or "off".
        feature_scaling: how rare features are made up for: "off" leaves them (see Pitfalls), "cohort" counts them in
            the cohort, "printed" over all clients heard so far, "census" over all clients before round 1 (Eq. 19).
        group_lr: of GAFSVRG; must be None here.
        starts: where the G models begin: "groups", the centres of round T's local models, or "random", the one model of
            rounds up to T and G − 1 others, drawn by the model's initialiser.
        accelerate_first_rounds: take the last step also in rounds up to T; False: only after them (Procedure 4), β₂'s
            power counting from there.
        centred_starts: start k-means at U^T (ŵ_c − z̄); False: at U^T ŵ_c, as printed (Eq. 39, 53).
        eps_in_root: divide by √(v + ε) instead of √v + ε, as Eq. 64 can also be read; ε is 1e-8.
        scale_twice: of GAFSVRG; must be False here.
    Use:
        Clients of a few kinds that no single model fits well; models small enough to send G of them. `run.models` has
        all, first the one that most clients of the last cohort prefer; it is `run.parameters`, and its accuracy is that
        of the history, which has the best, mean and worst of all models besides (`accuracy_best`, ...). The paper's
        settings: β₁ = 0, G = 4 and lr = 12 for MNIST, ``mafsvrg(beta1=0, lr=12)``, β₁ = 0.9, G = 3 and lr = 0.08 for
        CIFAR-10; the model `softmax-hog`, weight decay 0.01, one or two classes a client. On MNIST, 400 clients of two
        classes, a tenth of them a round, it has 96.7 % after 15 rounds, GA-FSVRG and FSVRG 95.5, FedAvg 94.5 (mean of
        three seeds; paper: 97.8 and 98.1 %; trained centrally, the model has 98.1 %).
    Pitfalls:
        Traffic: 3 models down and up until round T, then 2 G + 1 down and up (without acceleration 2, then G + 1), in
        three exchanges, and 2 G full passes: clients receive all models, the mean gradient at the one they prefer, and
        all new models; a census is not counted. The rate is η/n_i, as in FSVRG: `lr` is of the order of a client's
        samples, and where none is given it is the data set's rate times their mean. α₀ is a step per parameter:
        gradients of any size move the model by about α₀ per round. Feature scaling is fragile where clients hold few
        classes: between groups a model jumps, A = |S|/ω^j lengthens the jump, and where fewer than half of the cohort
        have feature j, A > 2, it ends farther beyond the centre than it began before it. A cohort much larger than G is
        needed to group well: models are moved into the plane of the cohort's, and with one client or with equal ones
        they all coincide. A model that no client prefers is not trained and may never recover; check
        ``run.evaluate()``. BatchNorm statistics are those of all models together.
    Elsewhere:
        Defaults are what is sound where the paper is not clear, and options what it prints. Eq. 64 has, in addition to
        √(1 − β₂^r), the factor (1 − β₁)/√(1 − β₂) of moments that are not normalised, with which the first step is 31
        times too long at β₁ = 0: ``acceleration="printed"``. Eq. 39 starts centres without the centring that Eq. 43
        adds back. A of Eq. 59 has the cohort above and all clients below the line: of dense data it is the
        participation ratio. The paper scales features; on digits (Dirichlet 0.1, a tenth of 100 clients) that ends at
        88, 16 and 29 % at three rates, without it at 96, 93 and 88 %, in the paper's own setting at 96.8 and 96.7 %
        (docs/readings.md). The paper does not say how the G models begin; equal ones would stay equal.
    """

    by_gradient: ClassVar[bool] = False

    feature_scaling: str = "off"  # A lengthens the jump of a model between groups

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.group_lr is not None:
            raise ValueError(f"group_lr belongs to GAFSVRG, whose server descends; got {self.group_lr}")
        if self.scale_twice:
            raise ValueError("scale_twice belongs to GAFSVRG, whose step the paper prints with A in Eq. 57 and 60")


@dataclass(frozen=True)
class GAFSVRG(_Grouping):
    """Several global models, each moved along the mean gradient of a group of clients.

    Paper:
        Adaptive central acceleration on diversified global models (MA-FSVRG, GA-FSVRG). IEEE Transactions on Neural
        Networks and Learning Systems, 2024.
    Idea:
        Like MAFSVRG, but clients are grouped by their gradients at the models they have trained, which show the
        direction each needs next. Every model descends along the centre of its group.
    Equations:
        c_i, a_c and the local steps as in MAFSVRG;  z_i = ∇f_i(w_i) at the trained w_i
        U: the top G−1 left singular vectors of the centred z_i;  centres: k-means on U^T (z_i − z̄), started at
        U^T (a_c − z̄);  ẑ_c = U centre_c + z̄
        ŵ*_c = ŵ_c − η_group ẑ_c,  η_group = `group_lr`, or the mean rate of a client's own steps, mean_S η/n_i
        then A, acceleration, and the rounds until T as in MAFSVRG
    Options:
        models: the number of global models, G.
        threshold: the round T after which there are several models.
        beta1: decay of the mean gradient, β₁, in the last step of a round.
        beta2: decay of its square, β₂.
        alpha0: length α₀ of that step, for each parameter.
        acceleration: the last step: "adam", "printed" (the paper's factors), or "off".
        feature_scaling: how rare features are made up for: "cohort" counts them in the cohort, "printed" over all
            clients heard so far, "census" over all clients before round 1 (Eq. 19), "off" leaves them.
        group_lr: rate of a group's step; None for the mean rate of a client's own steps, η/n_i.
        starts: where the G models begin: "groups", the centres of round T's local models, or "random", the one model of
            rounds up to T and G − 1 others, drawn by the model's initialiser.
        accelerate_first_rounds: take the last step also in rounds up to T; False: only after them (Procedure 4), β₂'s
            power counting from there.
        centred_starts: start k-means at U^T (ŵ_c − z̄); False: at U^T ŵ_c, as printed (Eq. 39, 53).
        eps_in_root: divide by √(v + ε) instead of √v + ε, as Eq. 64 can also be read; ε is 1e-8.
        scale_twice: multiply a group's step by A twice, as printed (Eq. 57 and 60).
    Use:
        Like MAFSVRG, when clients change or few of them take part in a round.
    Pitfalls:
        As for MAFSVRG, with one more full pass. Group c follows the gradients near a_c, which need not belong to the
        clients that prefer ŵ_c. Acceleration does most of the work: without it, MNIST as in MAFSVRG's page is at 61 %
        after 15 rounds.
    Elsewhere:
        The paper adds the gradient (Eq. 57–58) and has no rate; here the model descends, at the clients' own rate: at
        the length of a whole local path, 0.9 for five unequal clients of the digits, the CNN diverges after 22 rounds.
        Eq. 57 has A, and Eq. 60 once more: ``scale_twice=True``. Otherwise as in MAFSVRG.
    """

    by_gradient: ClassVar[bool] = True
