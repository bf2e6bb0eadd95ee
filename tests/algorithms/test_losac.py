from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import undrift as ud
from quadratics import BY_ONES, P2, P3, SIZED, Point, half_square, remembered
from undrift.algorithms import SCAFFOLD, LoSAC

COUNTS, COHORTS = np.array([1, 4, 2]), [[0, 1], [1, 2], [0, 2], [0, 1, 2], [1]]
LOCAL = [{}, {"momentum": 0.5}, {"lr_decay": 0.8}, {"weight_decay": 0.1}, {"server_lr": 0.5}]

# Clients with five, three and two different samples (a, b).
A = [np.array([1.0, 2.0, 0.5, 1.5, 1.0]), np.array([0.5, 1.0, 2.0]), np.array([2.0, 1.0])]
B = [np.array([0.0, 1.0, 4.0, -2.0, 3.0]), np.array([5.0, 2.0, -1.0]), np.array([1.0, -3.0])]
SIZES = np.array([5, 3, 2])


def path_of(
    partitions: int,
    steps: np.ndarray,
    shares: np.ndarray,
    *,
    a: list[np.ndarray],
    b: list[np.ndarray],
    momentum: float = 0.0,
    lr_decay: float = 1.0,
    weight_decay: float = 0.0,
    server_lr: float = 1.0,
) -> list[tuple[float, float, list[list[float]]]]:
    """LoSAC as its equations say: x, Φ and all tables after every round. Partition m of M is every M-th sample."""
    counts = [min(partitions, len(each)) for each in a]
    parts = [[(a[i][m::count], b[i][m::count]) for m in range(count)] for i, count in enumerate(counts)]
    x, estimate, tables, turns = 1.0, 0.0, [[0.0] * count for count in counts], [0, 0, 0]
    states = []
    for number, cohort in enumerate(COHORTS):
        lr, weights = 0.1 * lr_decay**number, shares[cohort] / shares[cohort].sum()
        moved = refreshed = 0.0
        for weight, i in zip(weights, cohort, strict=True):
            y, q, buffer = x, estimate, 0.0
            for _ in range(steps[i]):
                m = turns[i] % counts[i]
                curvature, centre = parts[i][m]
                fresh = (curvature * (y - centre)).mean() + weight_decay * y
                buffer = momentum * buffer + fresh - tables[i][m] + q
                y = y - lr * buffer
                q = q + shares[i] * len(centre) / len(a[i]) * (fresh - tables[i][m])
                tables[i][m] = fresh
                turns[i] += 1
            moved += weight * (y - x)
            refreshed += q - estimate
        x, estimate = x + server_lr * moved, estimate + refreshed
        states.append((x, estimate, [list(table) for table in tables]))
    return states


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
@pytest.mark.parametrize("local", LOCAL)
def test_one_partition_by_hand(weighting: str, local: dict[str, float]) -> None:
    """Partial participation, unequal steps, both objectives; Φ is the mean of everybody's tables in every round."""
    shares = np.full(3, 1 / 3) if weighting == "uniform" else COUNTS / COUNTS.sum()
    expected = path_of(1, COUNTS, shares, a=list(P3.a), b=list(P3.b), **local)

    def compare(row: dict[str, Any], run: ud.Run) -> None:
        x, estimate, tables = expected[row["round"] - 1]
        server, clients = remembered(run, "LocalAverageControl")
        np.testing.assert_allclose(run.parameters["point"], [x], rtol=1e-12)
        np.testing.assert_allclose(clients["table"][:, :, 0], tables, rtol=1e-12, atol=1e-15)
        np.testing.assert_allclose(server["estimate"], [estimate], rtol=1e-11)
        np.testing.assert_allclose(server["estimate"], [shares @ np.array(tables)[:, 0]], rtol=1e-11)

    options = {"cohort": COHORTS, "weighting": weighting, **BY_ONES, **local}
    SIZED.run(LoSAC(), len(COHORTS), callbacks=[compare], **options)


def run(partitions: int, rounds: int, **options: Any) -> ud.Run:
    data = [
        (torch.zeros(len(a), 1, dtype=torch.float64), torch.tensor(np.stack([a, b], 1)[:, :, None]))
        for a, b in zip(A, B, strict=True)
    ]
    settings: dict[str, Any] = {"lr": 0.1, "steps": 3, "rounds": rounds} | options
    return ud.simulate(LoSAC(partitions), Point((1.0,)), data, loss=half_square, **settings)


@pytest.mark.parametrize("engine", ["sequential", "batched"])
@pytest.mark.parametrize("partitions", [2, 3, 4])
@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_partitions_by_hand(engine: str, partitions: int, weighting: str) -> None:
    """Partitions of unequal size count by their samples; a client has no more of them than samples."""
    shares = np.full(3, 1 / 3) if weighting == "uniform" else SIZES / SIZES.sum()
    expected = path_of(partitions, np.array([3, 3, 3]), shares, a=A, b=B, weight_decay=0.1)

    def compare(row: dict[str, Any], run: ud.Run) -> None:
        x, estimate, tables = expected[row["round"] - 1]
        server, clients = remembered(run, "LocalAverageControl")
        np.testing.assert_allclose(run.parameters["point"], [x], rtol=1e-12)
        for table, rows in zip(tables, clients["table"][:, :, 0], strict=True):
            np.testing.assert_allclose(rows[: len(table)], table, rtol=1e-12, atol=1e-15)
            assert (rows[len(table) :] == 0).all()
        np.testing.assert_allclose(server["estimate"], [estimate], rtol=1e-11)
        each = [sum(s * len(a[m :: len(t)]) / len(a) for m, s in enumerate(t)) for a, t in zip(A, tables, strict=True)]
        np.testing.assert_allclose(server["estimate"], [shares @ np.array(each)], rtol=1e-11, atol=1e-15)

    options = {"cohort": COHORTS, "weighting": weighting, "engine": engine, "weight_decay": 0.1}
    run(partitions, len(COHORTS), callbacks=[compare], **options)


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_partitions_end_at_the_optimum(weighting: str) -> None:
    """Partial participation, steps on parts of the samples: no noise is left."""
    shares = np.full(3, 1 / 3) if weighting == "uniform" else SIZES / SIZES.sum()
    pull = sum(p * (a * b).mean() for p, a, b in zip(shares, A, B, strict=True))
    stiff = sum(p * a.mean() for p, a in zip(shares, A, strict=True))
    reached = run(3, 200, cohort=2, lr=0.05, weighting=weighting).parameters["point"]
    np.testing.assert_allclose(reached, [pull / stiff], rtol=1e-8)


@pytest.mark.parametrize("cohort", [None, 2])
def test_ends_at_the_optimum(cohort: int | None) -> None:
    np.testing.assert_allclose(P3.run(LoSAC(), 120, cohort=cohort)[0][-1], 7 / 3, rtol=1e-10)


def test_one_step_is_scaffolds() -> None:
    options = {"cohort": 2, "steps": 1}
    np.testing.assert_allclose(P3.run(LoSAC(), 8, **options)[0], P3.run(SCAFFOLD(), 8, **options)[0], rtol=1e-13)


def test_refusals() -> None:
    with pytest.raises(ValueError, match="partitions must be at least 1, got 0"):
        LoSAC(0)
    with pytest.raises(TypeError, match="partitions must be a whole number"):
        LoSAC(2.5)  # type: ignore[arg-type]
    P2.run(LoSAC(), 1, server_lr=0.5)
