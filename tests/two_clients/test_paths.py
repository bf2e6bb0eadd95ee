"""The points of the picture are those of the algorithm."""

from __future__ import annotations

import numpy as np
import pytest

import undrift as ud
from undrift.two_clients.drawing import Panel
from undrift.two_clients.paths import walk
from undrift.two_clients.problem import CLIENTS, START, Point, quadratic


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


def test_fedavg_stops_where_walks_cancel_and_scaffold_at_the_optimum() -> None:
    """What the page says: the walks of the clients from FedAvg's last model cancel out."""
    fedavg, scaffold, fedhbm = (walk(each, rounds=20, steps=10, lr=0.3) for each in ("fedavg", "scaffold", "fedhbm"))
    np.testing.assert_allclose(fedavg.clients[-1, :, -1].mean(0), fedavg.server[-2], atol=1e-2)
    assert fedavg.distances[-1] > 0.9
    assert fedhbm.distances[-1] < 0.75
    assert scaffold.distances[-1] < 1e-3
    gradient = sum(loss.curvature @ (scaffold.server[-1] - loss.centre) for loss in CLIENTS)
    np.testing.assert_allclose(gradient, 0, atol=1e-3)


def test_divergence_is_drawn_up_to_its_round() -> None:
    paths = walk("fedavg", rounds=30, steps=4, lr=1e9)
    assert paths.diverged
    assert 1 < paths.rounds == len(paths.clients) < 30
    assert len(paths.server) == paths.rounds + 1
    assert np.isfinite(paths.server).all()
    assert np.isfinite(paths.clients).all()
    assert Panel(paths).caption == f"diverges in round {paths.rounds + 1}"
    assert np.isfinite(Panel(paths).strip).all()
