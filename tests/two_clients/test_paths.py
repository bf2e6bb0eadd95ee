"""The points of the picture are those of the algorithm."""

from __future__ import annotations

import numpy as np
import pytest

import undrift as ud
from undrift.two_clients.paths import Paths, walk
from undrift.two_clients.problem import CLIENTS, START, Point, mean_loss, quadratic


def test_local_steps_of_fedavg_are_gradient_steps() -> None:
    paths = walk("fedavg", rounds=2, steps=3, lr=0.2)
    server = START
    for number in range(2):
        ends = []
        for client, loss in enumerate(CLIENTS):
            point = server
            np.testing.assert_allclose(paths.clients[number, client, 0], point, rtol=1e-12)
            for step in range(1, 4):
                point = point - 0.2 * loss.curvature @ (point - loss.centre)
                np.testing.assert_allclose(paths.clients[number, client, step], point, rtol=1e-12)
            ends.append(point)
        server = np.mean(ends, axis=0)
        np.testing.assert_allclose(paths.server[number + 1], server, rtol=1e-12)


@pytest.mark.parametrize(
    "algorithm", ["scaffold", "fedhbm", "fedga", "mimemom", "fedspeed", "fedadc", "gafsvrg(models=2)"]
)
def test_watching_changes_nothing(algorithm: str) -> None:
    """A run without the plug-in ends at the last point, to the bit."""
    paths = walk(algorithm, rounds=4, steps=3, lr=0.2)
    run = ud.simulate(
        algorithm,
        Point(START),
        [each.sample for each in CLIENTS],
        loss=quadratic,
        rounds=4,
        steps=3,
        lr=0.2,
        cohort=None,
        batch_size=None,
        engine="sequential",
        device="cpu",
    )
    assert paths.server[-1].tolist() == run.models[0]["point"].tolist()
    assert paths.clients.shape == (4, 2, 4, 2)


def test_scaffold_cures_what_fedavg_has() -> None:
    def end(algorithm: str) -> Paths:
        return walk(algorithm, rounds=15, steps=20, lr=0.3)

    fedavg, scaffold = end("fedavg"), end("scaffold")
    assert fedavg.distances[-1] > 0.5
    assert scaffold.distances[-1] < 0.05
    middle = np.mean([client.centre for client in CLIENTS], axis=0)
    assert np.linalg.norm(middle - mean_loss().centre) > 1


def test_divergence_is_drawn_up_to_its_round() -> None:
    paths = walk("fedavg", rounds=300, steps=20, lr=3)
    assert paths.diverged
    assert len(paths.server) == paths.rounds + 1 < 301
    assert np.isfinite(paths.server).all()
