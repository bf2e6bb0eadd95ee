"""MIFA beside FedVARP: see also test_fedvarp.py, whose reference paths cover both."""

from __future__ import annotations

import numpy as np

from quadratics import P3
from undrift.algorithms import MIFA, FedAvg


def test_first_round_is_fedavg_with_a_shorter_step() -> None:
    """Tables start from zeros: η_g = |S|/N."""
    mifa, _ = P3.run(MIFA(), 1, cohort=[[0, 1]])
    average, _ = P3.run(FedAvg(), 1, cohort=[[0, 1]], weighting="uniform", server_lr=2 / 3)
    np.testing.assert_allclose(mifa, average, rtol=1e-12)


def test_clients_that_come_by_a_rule_of_their_own() -> None:
    """One client in every round, the others now and then: no bias towards it."""
    everybody, cohorts = 2.264150943396, [[1], [1, 2], [1], [0, 1]] * 25
    path, _ = P3.run(MIFA(), 100, cohort=cohorts)
    np.testing.assert_allclose(path[-1], everybody, rtol=1e-9)
    biased, _ = P3.run(FedAvg(), 20, cohort=cohorts[:20], weighting="uniform")
    assert (biased[-4:] > everybody + 1).all()
