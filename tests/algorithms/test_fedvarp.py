from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from quadratics import BY_ONES, P3, SIZED, length, walk
from undrift.algorithms import MIFA, FedAvg, FedVARP

COUNTS, COHORTS = np.array([1, 4, 2]), [[0, 1], [1, 2], [2], [0, 1, 2], [1, 0]]
LOCAL: list[dict[str, float]] = [{}, {"rho": 0.5}, {"decay": 0.8}, {"rate": 0.5}]


def slope(x: np.ndarray, i: int, lr: float, rho: float) -> np.ndarray:
    """(x − y_i)/(η A_i) after the K_i steps of client i."""
    y = walk(x, lambda y: P3.a[i] * (y - P3.b[i]), COUNTS[i], lr=lr, momentum=rho)
    return (x - y) / (lr * length(COUNTS[i], rho))


def path_of(
    algorithm: FedVARP | MIFA, p: np.ndarray, rho: float = 0.0, decay: float = 1.0, rate: float = 1.0
) -> list[np.ndarray]:
    """Both algorithms with K_i = (1, 4, 2), momentum ρ, a rate that decays and objective weights p."""
    x, table, expected = np.array(P3.start), np.zeros((3, 1)), []
    for number, cohort in enumerate(COHORTS):
        lr = P3.lr * decay**number
        fresh = np.array([slope(x, i, lr, rho) for i in cohort])
        lengths = np.array([length(COUNTS[i], rho) for i in cohort])
        common = (p[cohort] / p[cohort].sum()) @ lengths
        old_mean = p @ table
        news = fresh - table[cohort]
        table[cohort] = fresh
        corrected = (len(p) * p[cohort] / len(cohort)) @ news + old_mean
        v = p @ table if isinstance(algorithm, MIFA) else corrected
        x = x - rate * lr * common * v
        expected.append(x)
    return expected


@pytest.mark.parametrize("algorithm", [FedVARP(), MIFA()], ids=lambda a: a.name())
@pytest.mark.parametrize("weighting", ["uniform", "samples"])
@pytest.mark.parametrize("local", LOCAL)
def test_by_hand(algorithm: FedVARP | MIFA, weighting: str, local: dict[str, float]) -> None:
    """Five rounds of partial participation and unequal steps."""
    names = {"rho": "momentum", "decay": "lr_decay", "rate": "server_lr"}
    settings: dict[str, Any] = {names[k]: v for k, v in local.items()}
    p = np.full(3, 1 / 3) if weighting == "uniform" else COUNTS / COUNTS.sum()
    path, _ = SIZED.run(algorithm, 5, cohort=COHORTS, **BY_ONES, weighting=weighting, **settings)
    np.testing.assert_allclose(path, path_of(algorithm, p, **local), rtol=1e-12)


@pytest.mark.parametrize("algorithm", [FedVARP(), MIFA()], ids=lambda a: a.name())
@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_the_server_keeps_the_mean_of_the_table(algorithm: FedVARP | MIFA, weighting: str) -> None:
    """Σ_all p_j u_j after every round, with clients that have never been heard at zero."""
    p = np.full(3, 1 / 3) if weighting == "uniform" else COUNTS / COUNTS.sum()
    for rounds in range(1, 6):
        cohorts = COHORTS[:rounds]
        _, run = SIZED.run(algorithm, rounds, cohort=cohorts, **BY_ONES, weighting=weighting)
        (own,) = (part for key, part in run.memory.server.items() if key != "model")
        (ledger,) = run.memory.ledger.gather(np.arange(3)).values()
        table = ledger["direction"]["point"].numpy()
        np.testing.assert_allclose(own["mean"]["point"], p @ table, rtol=1e-12)
        assert (table[:, 0] != 0).tolist() == [any(i in cohort for cohort in cohorts) for i in range(3)]


def test_first_round_is_fedavg_on_the_cohort() -> None:
    varp, average = (P3.run(a, 1, cohort=[[0, 2]], weighting="uniform")[0] for a in (FedVARP(), FedAvg()))
    np.testing.assert_allclose(varp, average, rtol=1e-12)


def test_difference_to_mifa() -> None:
    """From the same table, v_VARP − v_MIFA = (1/|S| − 1/N) Σ_S (Δ_i − u_i)."""
    everyone, some = [0, 1, 2], [0, 2]
    varp, mifa = (P3.run(a, 2, cohort=[everyone, some])[0] for a in (FedVARP(), MIFA()))
    x0, x1 = np.array(P3.start), varp[0]
    np.testing.assert_allclose(mifa[0], x1, rtol=1e-12)  # all clients: both are FedAvg
    moved = 1 - (1 - P3.lr * P3.a) ** P3.steps
    news = (moved * (x1 - P3.b) - moved * (x0 - P3.b))[some].sum(0)
    np.testing.assert_allclose(varp[1] - mifa[1], -(1 / 2 - 1 / 3) * news, rtol=1e-9)


def test_adam_is_normalised_by_its_steps() -> None:
    """All clients in the first round: the mean of K_i times the mean of (y_i − x)/K_i."""
    settings: dict[str, Any] = BY_ONES | {"optimizer": "adam", "weighting": "uniform"}
    trained = np.array([SIZED.run(FedAvg(), 1, cohort=[[i]], **settings)[0][0] for i in range(3)])
    expected = 1 + COUNTS.mean() * ((trained - 1) / COUNTS[:, None]).mean(0)
    np.testing.assert_allclose(SIZED.run(FedVARP(), 1, **settings)[0][0], expected, rtol=1e-12)


def test_sampling_noise_dies_out() -> None:
    """Two of three clients a round: FedAvg's point for all clients, where FedAvg itself is restless."""
    restless, _ = P3.run(FedAvg(), 40, cohort=2, weighting="uniform")
    still, _ = P3.run(FedVARP(), 120, cohort=2)
    assert restless[-20:].std() > 0.1
    np.testing.assert_allclose(still[-1], [2.264150943396], rtol=1e-9)
