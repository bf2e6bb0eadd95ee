"""The Mime family: clients imitate a server that optimises with the global gradient and momentum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from undrift.client.task import Task
from undrift.core import check, tree
from undrift.core.tree import Tree
from undrift.methods.algorithm import Algorithm
from undrift.methods.correction import At, Correction, Heard
from undrift.methods.setting import Setting
from undrift.protocol import Message, State


@dataclass(frozen=True)
class Imitation(Correction):
    """d = (1 − β)(g_i(y; ζ) − g_i(x; ζ) + c) + β m, both gradients on the same batch; without β there is no m.

    c is the cohort's mean gradient at x, on a `share` of every client's samples; m ← (1 − β) c + β m once a round.
    """

    beta: float = 0.0
    share: float = 1.0

    def server(self, model: Tree) -> State:
        gradient: State = {"gradient": tree.zeros(model)}
        return gradient | {"momentum": tree.zeros(model)} if self.beta else gradient

    def survey(self, anchor: Tree, client: State, task: Task, buffers: Tree) -> tuple[Message, State]:
        return {"gradient": task.full_gradient(anchor, buffers, self.share).gradient}, client

    def digest(self, server: State, heard: Heard) -> State:
        return server | {"gradient": tree.mean(heard.replies["gradient"], heard.cohort.weights)}

    def broadcast(self, server: State, model: Tree) -> Message:
        return server

    def step(self, grad: Tree, client: State, at: At) -> tuple[Tree, State]:
        centred = tree.add(tree.sub(grad, at.gradient(at.anchor)), at.inbox["gradient"])
        return tree.mix(centred, at.inbox["momentum"], self.beta) if self.beta else centred, client

    def advance(self, update: Tree, server: State, heard: Heard) -> tuple[Tree, State]:
        if not self.beta:
            return update, server
        return update, server | {"momentum": tree.mix(server["gradient"], server["momentum"], self.beta)}


@dataclass(frozen=True)
class FrozenMomentum(Correction):
    """d = (1 − β) g_i(y) + β m; after the round m ← (1 − β) mean_S g_i(x) + β m."""

    beta: float

    def server(self, model: Tree) -> State:
        return {"momentum": tree.zeros(model)}

    def broadcast(self, server: State, model: Tree) -> Message:
        return server

    def step(self, grad: Tree, client: State, at: At) -> tuple[Tree, State]:
        return tree.mix(grad, at.inbox["momentum"], self.beta), client

    def finish(self, update: Tree, client: State, at: At) -> tuple[Tree, State, Message]:
        return update, client, {"gradient": at.task.full_gradient(at.anchor, at.anchor_buffers).gradient}

    def advance(self, update: Tree, server: State, heard: Heard) -> tuple[Tree, State]:
        gradient = tree.mean(heard.replies["gradient"], heard.cohort.weights)
        return update, {"momentum": tree.mix(gradient, server["momentum"], self.beta)}


@dataclass(frozen=True)
class Mime(Algorithm):
    """Every local step is the server's full-gradient step, corrected by the change of the client's gradient.

    Paper:
        Karimireddy, Jaggi, Kale, Mohri, Reddi, Stich, Suresh. Breaking the centralized barrier for cross-device
        federated learning. NeurIPS 2021.
        https://arxiv.org/abs/2008.03606
    Idea:
        The cohort first computes its mean gradient c at the received model; locally a client only adds the change of
        its own gradient since then. A single step is exactly the server's, whatever the minibatch.
    Equations:
        c = mean_S ∇f_i(x)
        y ← y − η (g_i(y; ζ) − g_i(x; ζ) + c), the same batch ζ at y and x
        x ← x + η_g mean_S (y_i − x)
    Use:
        Many stateless clients that take part often or in large cohorts; reaches the optimum if all take part.
    Pitfalls:
        Two exchanges: x down and the gradients up, then x and c down. A pass over all data and twice the gradients.
        With partial participation the noise of sampling clients remains. Long local paths break it, as with one class
        per client: `clip=1`, fewer steps or a lower rate mend that (docs/stability.md).
    Elsewhere:
        Averaging the means of batches with equal weight is wrong for a short last batch; one library does not count the
        gradients' bytes.
    """

    weighting: ClassVar[str] = "uniform"

    def corrections(self, setting: Setting) -> tuple[Correction, ...]:
        return (Imitation(),)


@dataclass(frozen=True)
class MimeMom(Algorithm):
    """Mime with the server's momentum in every local step.

    Paper:
        Karimireddy, Jaggi, Kale, Mohri, Reddi, Stich, Suresh. Breaking the centralized barrier for cross-device
        federated learning. NeurIPS 2021.
        https://arxiv.org/abs/2008.03606
    Idea:
        Like Mime, and the server's momentum, frozen for the round, is part of every local step. It averages over
        earlier cohorts, which damps the noise of sampling clients.
    Equations:
        c = mean_S ∇f_i(x)
        y ← y − η ((1 − β)(g_i(y; ζ) − g_i(x; ζ) + c) + β m)
        x ← x + η_g mean_S (y_i − x);  m ← (1 − β) c + β m
    Options:
        beta: momentum β of the server, applied in every local step; 0 is Mime.
    Use:
        Like Mime, when cohorts are small.
    Pitfalls:
        Averaged form: rates published for the accumulating form (m ← β m + g) are (1 − β) times smaller. Three models
        down in the second exchange.
    Elsewhere:
        Papers' grids (β 0.9 or 0.99, η about 0.1) refer to the accumulating form; a public version leaves weight decay
        out of the server's momentum.
    """

    weighting: ClassVar[str] = "uniform"

    beta: float = 0.9

    def __post_init__(self) -> None:
        check.number("beta", self.beta, 0, 1, open_high=True)

    def corrections(self, setting: Setting) -> tuple[Correction, ...]:
        return (Imitation(self.beta),)


@dataclass(frozen=True)
class MimeSVRG(Algorithm):
    """Mime whose global gradient may be estimated on part of the data.

    Paper:
        Karimireddy, Jaggi, Kale, Mohri, Reddi, Stich, Suresh. Breaking the centralized barrier for cross-device
        federated learning. NeurIPS 2021. The name comes from a comparison in the paper of MA-FSVRG.
        https://arxiv.org/abs/2008.03606
    Idea:
        Mime without momentum is SVRG across clients. The gradient at the received model, its anchor, needs a pass over
        all data; on a fraction of it the pass is shorter and the anchor noisier.
    Equations:
        c = mean_S (mean of ∇ℓ(x) over `anchor_fraction` of the client's samples, redrawn every round)
        y ← y − η (g_i(y; ζ) − g_i(x; ζ) + c)
        x ← x + η_g mean_S (y_i − x)
    Options:
        anchor_fraction: share of a client's samples on which the global gradient is estimated; 1 is Mime.
    Use:
        Like Mime, when a pass over all data is too slow.
    Pitfalls:
        With a fraction below one the optimum is not a fixed point.
    Elsewhere:
        No other algorithm of this name is known; with `anchor_fraction=1` it is Mime.
    """

    weighting: ClassVar[str] = "uniform"

    anchor_fraction: float = 1.0

    def __post_init__(self) -> None:
        check.number("anchor_fraction", self.anchor_fraction, 0, 1, open_low=True)

    def corrections(self, setting: Setting) -> tuple[Correction, ...]:
        return (Imitation(share=self.anchor_fraction),)


@dataclass(frozen=True)
class MimeLite(Algorithm):
    """Mime without the global gradient: for plain SGD, federated averaging with equal weights.

    Paper:
        Karimireddy, Jaggi, Kale, Mohri, Reddi, Stich, Suresh. Breaking the centralized barrier for cross-device
        federated learning. NeurIPS 2021.
        https://arxiv.org/abs/2008.03606
    Idea:
        MimeLite keeps the server's statistics frozen in local steps and drops the correction by the global gradient.
        SGD has no statistics, so only the model is sent.
    Equations:
        y ← y − η g_i(y)
        x ← x + η_g mean_S (y_i − x)
    Use:
        As the baseline of the family.
    Pitfalls:
        It drifts as FedAvg does.
    Elsewhere:
        Some versions compute and send gradients at x that are never used.
    """

    weighting: ClassVar[str] = "uniform"


@dataclass(frozen=True)
class MimeLiteMom(Algorithm):
    """The server's momentum in every local step, in one exchange.

    Paper:
        Karimireddy, Jaggi, Kale, Mohri, Reddi, Stich, Suresh. Breaking the centralized barrier for cross-device
        federated learning. NeurIPS 2021.
        https://arxiv.org/abs/2008.03606
    Idea:
        Local steps follow the server's momentum, which is computed from full gradients at the received model and so
        does not drift. Unlike in MimeMom these gradients are sent with the update, after training.
    Equations:
        y ← y − η ((1 − β) g_i(y) + β m)
        x ← x + η_g mean_S (y_i − x);  m ← (1 − β) mean_S ∇f_i(x) + β m, at the x before the round
    Options:
        beta: momentum β of the server, applied in every local step; 0 is FedAvg with equal weights.
    Use:
        Small cohorts of many stateless clients, when a second exchange is too slow.
    Pitfalls:
        Averaged form: rates published for the accumulating form (m ← β m + g) are (1 − β) times smaller. The fixed
        point is near the optimum, not at it. Twice the traffic and a pass over all data.
    Elsewhere:
        Papers' grids (β 0.9 or 0.99, η about 0.1) refer to the accumulating form.
    """

    weighting: ClassVar[str] = "uniform"

    beta: float = 0.9

    def __post_init__(self) -> None:
        check.number("beta", self.beta, 0, 1, open_high=True)

    def corrections(self, setting: Setting) -> tuple[Correction, ...]:
        return (FrozenMomentum(self.beta),)
