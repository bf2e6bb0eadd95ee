"""The paths of server and clients on two quadratics, as the algorithm itself walks them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from undrift.core.tree import Tree
from undrift.methods.algorithm import Algorithm
from undrift.methods.correction import At, Correction
from undrift.methods.plugin import Plugin
from undrift.methods.setting import Setting
from undrift.protocol import Message, State
from undrift.simulation.run import Run
from undrift.simulation.simulate import simulate
from undrift.two_clients.problem import CLIENTS, START, Array, Point, mean_loss, quadratic

Seen = dict[tuple[int, int, int], Array]  # by round, client and number of local steps taken


@dataclass(frozen=True)
class Watching(Correction):
    """Changes nothing; notes where a client is before every local step and at the end.

    It comes before the algorithm's own corrections, so that it sees the model itself and not where they take the
    gradient. A round that is computed twice is noted twice, with the same points.
    """

    seen: Seen

    def locate(self, at: At, client: State) -> At:
        self._note(at, at.step, at.params)
        return at

    def finish(self, update: Tree, client: State, at: At) -> tuple[Tree, State, Message]:
        self._note(at, at.step + 1, at.params)
        return update, client, {}

    def _note(self, at: At, steps: int, params: Tree) -> None:
        key = at.task.key
        self.seen[int(key.round), int(key.client), steps] = params["point"].numpy(force=True).copy()


@dataclass(frozen=True)
class Watch(Plugin):
    """`Watching` as a plug-in."""

    seen: Seen = field(default_factory=dict)

    def corrections(self, setting: Setting) -> tuple[Correction, ...]:
        return (Watching(self.seen),)


@dataclass(frozen=True)
class Paths:
    """Where an algorithm led server and clients."""

    label: str
    server: Array  # [rounds + 1, 2], the start first; of several models the one that most clients prefer
    clients: Array  # [rounds, clients, steps + 1, 2]
    diverged: bool  # in the round after the last
    lr: float  # what was asked for

    @property
    def rounds(self) -> int:
        return len(self.clients)

    @property
    def steps(self) -> int:
        return int(self.clients.shape[2]) - 1

    @property
    def distances(self) -> Array:
        """Of the server's model to the optimum of the mean loss [rounds + 1]."""
        return np.asarray(np.linalg.norm(self.server - mean_loss().centre, axis=1))


def walk(algorithm: str | Algorithm, *, rounds: int, steps: int, lr: float) -> Paths:
    """Run an algorithm on the two clients, who both take part in every round, and keep every point on the way.

    Settings of the run that are written with the algorithm, as in ``fedadam(server_lr=0.1)``, go before those given.
    """
    watch, server = Watch(), [START]

    def follow(row: Mapping[str, Any], run: Run) -> None:
        if not row["diverged"]:
            server.append(run.models[0]["point"].numpy(force=True).copy())

    run = simulate(
        algorithm,
        Point(START),
        [each.sample for each in CLIENTS],
        loss=quadratic,
        rounds=rounds,
        steps=steps,
        lr=lr,
        cohort=None,
        batch_size=None,
        engine="sequential",  # the only one that shows the points of single clients
        device="cpu",
        plugins=[watch],
        callbacks=[follow],
        on_divergence="stop",
    )
    clients = np.array(
        [
            [[watch.seen[round, client, step] for step in range(steps + 1)] for client in range(len(CLIENTS))]
            for round in range(1, len(server))
        ]
    ).reshape(-1, len(CLIENTS), steps + 1, 2)
    return Paths(run.label, np.array(server), clients, bool(run.history["diverged"].iloc[-1]), lr)
