"""MOON: representations are pulled to the received model's and pushed away from the client's previous ones."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from undrift.client.learner import Batch, Learner, Loss, Losses
from undrift.core import check, tree
from undrift.core.tree import Tree
from undrift.methods.algorithm import Algorithm
from undrift.methods.correction import At, Correction
from undrift.methods.setting import Setting
from undrift.protocol import Message, State


@dataclass(frozen=True)
class Contrast(Correction):
    """ℓ + μ ℓ_con, ℓ_con = −log[e^{cos(z, z_x)/T} / (e^{cos(z, z_x)/T} + e^{cos(z, z_prev)/T})].

    z is the input or output (`side`) of `module` in the model being trained, z_x and z_prev the same in the received
    model and in the one this client trained last time, both frozen.
    """

    mu: float
    temperature: float
    module: str
    side: str
    buffers: Tree = field(compare=False, repr=False)  # the model's initial ones

    def client(self, model: Tree) -> State:
        never = torch.zeros((), device=next(iter(model.values())).device)
        return {"model": model, "seen": never, "buffers": self.buffers}

    def begin(self, start: Tree, client: State, at: At) -> tuple[Tree, State]:
        # At its first participation a client has no previous model; the received one makes ℓ_con constant.
        received = {"model": at.anchor, "buffers": at.anchor_buffers}
        previous = {"model": client["model"], "buffers": client["buffers"]}
        return start, tree.where(client["seen"] > 0, previous, received) | {"seen": torch.ones_like(client["seen"])}

    def objective(self, loss: Loss, client: State, at: At) -> Loss:
        if not self.mu:
            return loss
        learner = at.task.learner
        received = self._frozen(learner, at.anchor, at.anchor_buffers, at.batch.x)
        previous = self._frozen(learner, client["model"], client["buffers"], at.batch.x)

        def contrasted(params: Tree, batch: Batch) -> Losses:
            with learner.watch(self.module, self.side) as seen:
                losses = loss(params, batch)
            here = self._vectors(seen)
            away = F.cosine_similarity(here, previous) - F.cosine_similarity(here, received)
            return losses._replace(values=losses.values + self.mu * F.softplus(away / self.temperature))

        return contrasted

    def finish(self, update: Tree, client: State, at: At) -> tuple[Tree, State, Message]:
        return update, client | {"model": at.params, "buffers": at.batch.buffers}, {}

    def _frozen(self, learner: Learner, params: Tree, buffers: Tree, x: Tensor) -> Tensor:
        with learner.watch(self.module, self.side) as seen:
            learner.outputs(params, buffers, x)
        return self._vectors(seen)

    def _vectors(self, seen: list[Tensor]) -> Tensor:
        if not seen or not isinstance(seen[-1], Tensor) or seen[-1].ndim < 2:
            raise ValueError(
                f"representation: the {self.side} of {self.module!r} is no tensor with one row per sample; "
                "name another submodule"
            )
        return seen[-1].flatten(1)


@dataclass(frozen=True)
class MOON(Algorithm):
    """Contrastive learning between a client's model, the received one and the client's last one.

    Paper:
        Li, He, Song. Model-contrastive federated learning. CVPR 2021.
        https://arxiv.org/abs/2103.16257
    Idea:
        The received model represents images better than a client's own, which has seen a skewed part of the data. A
        contrastive term pulls the representation towards the former and away from the latter.
    Equations:
        ℓ = cross-entropy + μ ℓ_con
        ℓ_con = −log[e^{cos(z, z_x)/T} / (e^{cos(z, z_x)/T} + e^{cos(z, z_prev)/T})]
        x ← x + η_g Σ w_i (y_i − x);  the client keeps y_i for its next z_prev
    Options:
        mu: weight μ of the contrastive term; 0 is FedAvg.
        temperature: temperature T of the contrastive term.
        representation: name of the submodule whose output is compared; None for the input of the last linear layer.
    Use:
        Image classification with skewed labels and clients that take part repeatedly.
    Pitfalls:
        Two more forward passes a step and one model of memory per client. At its first participation a client's last
        model is the received one, and the step FedAvg's. The paper puts a projection head before the classifier; to
        compare, give all algorithms the same model. `representation=None` takes the input of the last `nn.Linear`.
    Elsewhere:
        The authors' code starts clients that join late with a random previous model; another version leaves the
        received model in training mode, so that dropout differs between the three passes.
    """

    mu: float = 1.0
    temperature: float = 0.5
    representation: str | None = None

    def __post_init__(self) -> None:
        check.number("mu", self.mu, 0)
        check.number("temperature", self.temperature, 0, open_low=True)
        given: object = self.representation
        if not isinstance(given, str | None):
            raise TypeError(f"representation must be None or the name of a submodule, got {check.shown(given)}")

    def corrections(self, setting: Setting) -> tuple[Correction, ...]:
        layout = setting.layout
        if self.representation is not None:
            if self.representation not in layout.modules:
                raise ValueError(
                    f"representation: no submodule {check.shown(self.representation)}"
                    f"{check.nearest(self.representation, layout.modules)}"
                )
            return (self._contrast(self.representation, "output", setting),)
        if layout.last_linear is None:
            raise ValueError(
                "MOON compares representations, the input of the last nn.Linear, and this model has none; "
                "give representation= the name of a submodule"
            )
        return (self._contrast(layout.last_linear, "input", setting),)

    def _contrast(self, module: str, side: str, setting: Setting) -> Contrast:
        return Contrast(self.mu, self.temperature, module=module, side=side, buffers=setting.buffers)
