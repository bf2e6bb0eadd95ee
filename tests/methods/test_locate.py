"""The hook `locate`: where and on which samples a gradient is taken, and where the step starts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from quadratics import P2
from undrift import Algorithm
from undrift.core.tree import Tree
from undrift.methods.correction import At, Correction
from undrift.methods.setting import Setting
from undrift.protocol import State

OFFSET = 0.5


@dataclass(frozen=True)
class Offset(Correction):
    moves_origin: bool

    def locate(self, at: At, client: State) -> At:
        assert all(at.origin[name] is value for name, value in at.params.items())
        moved: Tree = {name: value + OFFSET for name, value in at.params.items()}
        return at._replace(params=moved, origin=moved if self.moves_origin else at.origin)


@dataclass(frozen=True)
class Displaced(Algorithm):
    """Gradients are taken beside the current point."""

    moves_origin: bool = False

    def corrections(self, setting: Setting) -> tuple[Correction, ...]:
        return (Offset(self.moves_origin),)


@pytest.mark.parametrize("moves_origin", [False, True])
@pytest.mark.parametrize("engine", ["sequential", "batched"])
def test_gradients_are_taken_at_params_and_steps_start_at_origin(moves_origin: bool, engine: str) -> None:
    path, _ = P2.run(Displaced(moves_origin), 1, engine=engine)
    ends = np.repeat([P2.start], 2, axis=0)
    for _ in range(P2.steps):
        ends = ends + moves_origin * OFFSET - P2.lr * P2.a * (ends + OFFSET - P2.b)
    np.testing.assert_allclose(path[0], ends.mean(0), rtol=1e-12)
