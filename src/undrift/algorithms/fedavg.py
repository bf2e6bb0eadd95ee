"""Federated averaging: the algorithm that all others correct."""

from __future__ import annotations

from dataclasses import dataclass

from undrift.methods.algorithm import Algorithm


@dataclass(frozen=True)
class FedAvg(Algorithm):
    """Clients train locally, the server averages their models.

    Paper:
        McMahan, Moore, Ramage, Hampson, Agüera y Arcas. Communication-efficient learning of deep networks from
        decentralized data. AISTATS 2017.
        https://arxiv.org/abs/1602.05629
    Idea:
        Every client takes several local steps between two exchanges, which saves rounds. When clients differ, they
        drift apart (client drift), and the average converges to a point away from the optimum.
    Equations:
        y ← x;  y ← y − η g_i(y)  for K_i steps
        x ← x + η_g Σ w_i (y_i − x)
    Use:
        As the baseline, and when clients have similar data.
    Pitfalls:
        With unequal numbers of steps and weights by samples the objective is weighted by n_i K_i.
    Elsewhere:
        Some libraries average `parameters()` only, so that BatchNorm statistics are those of one client.
    """
