"""SCAFFOLD as the code released with FedHBM's paper computes it (RickZack/GHBM), to compare with that paper's figures.

    undrift compare -a scaffold,examples/as_released.py:SummedSCAFFOLD -d digits --lr 0.01

It is not in the catalogue: the server's control lacks SCAFFOLD's 1/N, so that clients are not corrected by the
difference from the mean gradient but pushed along the sum of all clients' gradients, a momentum of N times their mean.

The first author's code of FedPMVR and FedPGVC needs no algorithm of its own. FedPMVR's (Pranabiitp/FedPMVR) looks for
the indices −2 and −1 among 0, 1, ..., finds none and corrects nothing: it is ``fedavg`` with ``weighting="uniform"``.
FedPGVC's (Pranabiitp/FedPGVC) is ``fedpgvc(form="decay")``.
"""

from __future__ import annotations

from dataclasses import dataclass

from undrift.algorithms.scaffold import SCAFFOLD, ControlVariates
from undrift.core import tree
from undrift.core.tree import Tree
from undrift.methods.correction import Correction, Heard
from undrift.methods.setting import Setting
from undrift.protocol import State


@dataclass(frozen=True)
class SummedControls(ControlVariates):
    """c ← c + Σ_S (c_i⁺ − c_i), where SCAFFOLD has (1/N) Σ_S."""

    def collect(self, updates: Tree, server: State, heard: Heard) -> tuple[Tree, State]:
        change = tree.mean(heard.replies["change"], heard.cohort.shares)
        return updates, {"control": tree.add(server["control"], change)}


@dataclass(frozen=True)
class SummedSCAFFOLD(SCAFFOLD):
    """SCAFFOLD with a server's control that is a sum over clients instead of their mean."""

    def corrections(self, setting: Setting) -> tuple[Correction, ...]:
        return (SummedControls(setting.layout.names, self.option),)
