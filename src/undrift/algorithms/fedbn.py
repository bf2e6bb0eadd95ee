"""FedBN: batch normalisation stays on the client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from undrift.methods.algorithm import Algorithm
from undrift.methods.setting import Setting


@dataclass(frozen=True)
class FedBN(Algorithm):
    """Federated averaging of everything but batch normalisation, of which every client keeps its own.

    Paper:
        Li, Jiang, Zhang, Kamp, Dou. FedBN: federated learning on non-IID features via local batch normalization.
        ICLR 2021.
        https://arxiv.org/abs/2102.07623
    Idea:
        When inputs look different on every client (another camera, another scanner), feature statistics differ most.
        Batch normalisation absorbs that if it is never averaged.
    Equations:
        x = (u, v), v all tensors of batch normalisations: scale, shift, running mean and variance
        client: trains (u, v_i) from the received u and its own v_i, keeps v_i
        u ← u + η_g mean_S (u_i − u)
    Use:
        Feature shift between few permanent clients.
    Pitfalls:
        Without batch normalisation it is FedAvg (`lenet-bn` and `cnn5-bn` have it); group and layer normalisations are
        shared like other parameters. There is no global model: `run.clients` has the accuracy of every client's own
        (u, v_i), the history that of u with the mean v of the clients seen so far, and `run.parameters` holds u and the
        initial v.
    Elsewhere:
        Looking for "bn" in names misses batch normalisations in `nn.Sequential` and in the shortcuts of a ResNet; here
        modules are found by their type. In fluke 0.8.1 clients that join late begin with an average of the others'
        normalisations.
    """

    weighting: ClassVar[str] = "uniform"

    def private(self, setting: Setting) -> tuple[str, ...]:
        return setting.layout.batch_norms

    def buffer_policy(self, setting: Setting) -> str:
        return "local"
