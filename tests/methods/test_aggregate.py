"""Aggregation rules against their definitions, and as an option of a run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import undrift as ud
from laws import TRAINING, classified, mlp
from quadratics import P3
from undrift.core import tree
from undrift.methods import aggregate
from undrift.methods.aggregate import mean, median


def stacked(count: int, dtype: torch.dtype = torch.float64) -> tree.Tree:
    generator = torch.Generator().manual_seed(count)
    return {
        "weight": torch.randn(count, 3, 4, generator=generator, dtype=dtype),
        "bias": torch.randn(count, generator=generator, dtype=dtype),
    }


@pytest.mark.parametrize("count", [1, 2, 3, 6, 7, 10, 49])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_median_of_equal_weights_is_numpys(count: int, dtype: torch.dtype) -> None:
    updates = stacked(count, dtype)
    found = median(updates, torch.full((count,), 1 / count, dtype=dtype))
    for name, value in found.items():
        assert value.dtype is dtype
        np.testing.assert_array_equal(value.numpy(), np.median(updates[name].numpy(), axis=0))


@pytest.mark.parametrize("seed", range(5))
def test_the_median_minimises_weighted_distances(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    values, weights = torch.randn(7, generator=generator).double(), torch.rand(7, generator=generator).double()
    weights = weights / weights.sum()

    def distance(point: torch.Tensor) -> float:
        return float((weights * (point - values).abs()).sum())

    found = median({"x": values[:, None]}, weights)["x"][0]
    assert distance(found) == pytest.approx(min(distance(v) for v in values), rel=1e-12)


def test_a_tie_is_its_midpoint_and_a_majority_wins() -> None:
    values = {"x": torch.tensor([[4.0], [1.0], [2.0]])}
    assert median(values, torch.tensor([0.5, 0.2, 0.3]))["x"].tolist() == [3.0]
    assert median(values, torch.tensor([0.6, 0.2, 0.2]))["x"].tolist() == [4.0]
    assert median(values, torch.tensor([0.0, 0.5, 0.5]))["x"].tolist() == [1.5]


def test_mean_is_the_weighted_sum() -> None:
    updates, weights = stacked(3), torch.tensor([0.5, 0.2, 0.3], dtype=torch.float64)
    assert_close(mean(updates, weights), tree.mean(updates, weights), rtol=0, atol=0)


def test_rules_by_name() -> None:
    assert aggregate.find("mean") is mean
    assert aggregate.find("median") is median
    assert aggregate.find(median) is median
    with pytest.raises(ValueError, match="unknown aggregation rule 'medain'; did you mean 'median'"):
        aggregate.find("medain")
    with pytest.raises(TypeError, match="aggregate must be a name or a function"):
        aggregate.find(3)  # type: ignore[arg-type]


# As an option of a run


def test_one_round_by_hand() -> None:
    """One full step each: the server's step is the median of the clients' steps."""
    path, _ = P3.run("fedavg", 1, steps=1, aggregate="median")
    steps = -P3.lr * P3.a * (np.array(P3.start) - P3.b)
    np.testing.assert_allclose(path[0], np.array(P3.start) + np.median(steps, axis=0), rtol=1e-12)


def test_the_size_of_an_outlier_does_not_matter() -> None:
    far, farther = (replace(P3, centre=((0.0,), (4.0,), (outlier,))) for outlier in (100.0, 1e6))
    np.testing.assert_array_equal(
        far.run("fedavg", 5, aggregate="median")[0], farther.run("fedavg", 5, aggregate="median")[0]
    )


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold", "fednova", "fedbn"])
def test_engines_agree(algorithm: str) -> None:
    runs = [
        ud.simulate(algorithm, mlp(), classified(), **TRAINING, aggregate="median", engine=engine).parameters
        for engine in ("sequential", "batched:2")
    ]
    assert_close(runs[1], runs[0], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("algorithm", ["mafsvrg", "gafsvrg"])
def test_algorithms_that_group_updates_refuse_other_rules(algorithm: str) -> None:
    with pytest.raises(ValueError, match="FSVRG groups updates itself; aggregate must be 'mean'"):
        ud.simulate(algorithm, mlp(), classified(), **TRAINING, aggregate="median")
