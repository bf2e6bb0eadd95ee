"""Aggregation rules against their definitions, and as an option of a run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

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
from undrift.methods.robust import GeometricMedian, Krum, NormClip, TrimmedMean


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


@pytest.mark.parametrize("algorithm", ["fedavg", "fedhbm", "fedadam", "fedbn"])
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


# Robust rules


def uniform(count: int) -> torch.Tensor:
    return torch.full((count,), 1 / count, dtype=torch.float64)


def as_rows(updates: tree.Tree) -> np.ndarray:
    return np.concatenate([u.reshape(len(u), -1).numpy() for u in updates.values()], axis=1)


def as_row(update: tree.Tree) -> np.ndarray:
    return np.concatenate([u.reshape(-1).numpy() for u in update.values()])


ROBUST = ("median", "trimmed-mean", "krum", "krum(keep=3)", "geometric-median", "norm-clip", "norm-clip(limit=0.5)")


@pytest.mark.parametrize(
    ("count", "share", "cut"), [(5, 0.1, 1), (10, 0.1, 1), (10, 0.3, 3), (7, 0.0, 0), (30, 0.1, 3)]
)
def test_the_trimmed_mean_is_numpys(count: int, share: float, cut: int) -> None:
    updates = stacked(count)
    found = TrimmedMean(share)(updates, uniform(count))
    expected = np.sort(as_rows(updates), axis=0)[cut : count - cut].mean(0)
    np.testing.assert_allclose(as_row(found), expected, rtol=1e-12, atol=1e-12)


def test_the_trimmed_mean_keeps_the_weights_of_what_is_left() -> None:
    values = {"x": torch.tensor([[9.0], [1.0], [2.0], [-7.0]])}
    found = TrimmedMean(0.25)(values, torch.tensor([0.4, 0.1, 0.3, 0.2]))
    assert found["x"].tolist() == pytest.approx([(0.1 * 1 + 0.3 * 2) / 0.4])


@pytest.mark.parametrize(("share", "keep"), [(0.0, 1), (0.2, 1), (0.3, 1), (0.2, 4)])
def test_krum_by_hand(share: float, keep: int) -> None:
    updates, count = stacked(10), 10
    rows = as_rows(updates)
    neighbours = count - round(share * count) - 2
    scores = []
    for i in range(count):
        apart = sorted(((rows[i] - rows[j]) ** 2).sum() for j in range(count) if j != i)
        scores.append(sum(apart[:neighbours]))
    chosen = np.argsort(scores, kind="stable")[:keep]
    found = Krum(share, keep)(updates, uniform(count))
    np.testing.assert_allclose(as_row(found), rows[chosen].mean(0), rtol=1e-12)


def test_krum_takes_the_first_of_equals() -> None:
    values = {"x": torch.tensor([[9.0], [1.0], [1.0], [1.0], [-9.0]])}
    assert Krum()(values, uniform(5))["x"].tolist() == [1.0]
    apart = {"x": torch.eye(5)}
    assert Krum()(apart, uniform(5))["x"].tolist() == [1.0, 0.0, 0.0, 0.0, 0.0]


def test_krum_tells_apart_what_single_precision_cannot() -> None:
    """Distances are small differences of large squares."""
    values = {"x": torch.tensor([[4096.0], [4096.0009765625], [4097.0], [4098.0], [-1.0]])}
    assert Krum(share=0.2)(values, uniform(5))["x"].tolist() == [4096.0009765625]


def test_the_geometric_median_minimises_the_sum_of_distances() -> None:
    updates, weights = stacked(7), torch.tensor([0.1, 0.2, 0.1, 0.2, 0.1, 0.2, 0.1], dtype=torch.float64)
    rows = as_rows(updates)
    found = as_row(GeometricMedian(iterations=300)(updates, weights))

    def distance(point: np.ndarray) -> float:
        return float((weights.numpy() * np.linalg.norm(rows - point, axis=1)).sum())

    rng = np.random.default_rng(0)
    assert all(distance(found) < distance(found + 1e-3 * rng.normal(size=found.shape)) for _ in range(50))


def test_the_geometric_median_of_few_points() -> None:
    corners = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.5, 3**0.5 / 2]], dtype=torch.float64)
    found = GeometricMedian(100)({"x": corners}, uniform(3))["x"]
    assert_close(found, corners.mean(0), rtol=0, atol=1e-9)
    majority = {"x": torch.tensor([[1.0, 2.0], [1.0, 2.0], [1.0, 2.0], [50.0, 9.0]], dtype=torch.float64)}
    assert_close(GeometricMedian()(majority, uniform(4))["x"], majority["x"][0], rtol=0, atol=1e-5)


def test_norm_clipping_by_hand() -> None:
    updates = {"a": torch.tensor([[3.0], [0.3], [30.0]]), "b": torch.tensor([[4.0], [0.4], [40.0]])}
    assert_close(NormClip(limit=1.0)(updates, uniform(3)), {"a": torch.tensor([1.5 / 3]), "b": torch.tensor([2.0 / 3])})
    assert_close(NormClip()(updates, uniform(3)), {"a": torch.tensor([6.3 / 3]), "b": torch.tensor([8.4 / 3])})


@pytest.mark.parametrize("rule", ROBUST)
@pytest.mark.parametrize("count", [1, 2, 3, 9])
def test_rules_of_any_number_of_clients(rule: str, count: int) -> None:
    """Equal updates are their own aggregate, order does not matter, and a huge outlier moves it little."""
    found = aggregate.find(rule)
    one = tree.scale(tree.row(stacked(count), 0), 0.01)
    assert_close(found(tree.map_nest(lambda v: v.expand(count, *v.shape), one), uniform(count)), one)
    if count in (2, 3) and rule == "krum":  # the nearest two are equally near, and the first wins
        return
    updates = stacked(count)
    backwards = tree.row(updates, torch.arange(count - 1, -1, -1))
    assert_close(found(backwards, uniform(count)), found(updates, uniform(count)))
    if count == 9:
        attacked = tree.map_nest(torch.clone, updates)
        for value in attacked.values():
            value[4] = 1e12
        assert np.linalg.norm(as_row(found(attacked, uniform(count)))) < np.linalg.norm(as_rows(updates), axis=1).max()


@pytest.mark.parametrize("rule", ["median", "trimmed-mean", "krum", "geometric-median", "norm-clip"])
def test_rules_move_with_scale_and_shift(rule: str) -> None:
    found, updates = aggregate.find(rule), stacked(9)
    result = found(updates, uniform(9))
    assert_close(found(tree.scale(updates, 2.5), uniform(9)), tree.scale(result, 2.5), rtol=1e-5, atol=1e-5)
    if rule != "norm-clip":  # which clips at the origin
        shifted = {k: v + 3.0 for k, v in updates.items()}
        assert_close(found(shifted, uniform(9)), {k: v + 3.0 for k, v in result.items()}, rtol=1e-9, atol=1e-9)


def test_rules_with_options() -> None:
    assert aggregate.find("krum(share=0.3, keep=2)") == Krum(0.3, 2)
    assert aggregate.find("norm-clip") == NormClip()
    assert str(Krum(0.3)) == "krum(share=0.3)"
    assert str(TrimmedMean()) == "trimmed-mean"
    for text, message in {
        "krum(shore=0.3)": "the aggregation rule krum has no option 'shore'; did you mean 'share'",
        "median(share=0.3)": "the aggregation rule median has no option 'share'",
        "krum(share=0.7)": "share must be",
        "trimmed-mean(0.1)": r"options of the aggregation rule are written name\(option=value, ...\)",
        "norm-clip(limit=0)": "limit must be",
    }.items():
        with pytest.raises(ValueError, match=message):
            aggregate.find(text)


@pytest.mark.parametrize(
    ("rule", "cohort", "message"),
    [
        ("krum", 4, r"aggregate='krum' expects 1 of a cohort's 4 clients to send anything, .* needs at least 5"),
        (TrimmedMean(0.4), 4, r"'trimmed-mean\(share=0.4\)' expects 2 of a cohort's 4 clients .* at least 5"),
        ("krum(share=0, keep=6)", 5, "keeps 6 updates, but of a cohort of 5 clients at most 5"),
        ("krum", [[0, 1, 2, 3, 4], [0, 1]], "expects 1 of a cohort's 2 clients"),
    ],
)
def test_too_few_clients_are_refused(rule: Any, cohort: Any, message: str) -> None:
    options = TRAINING | {"cohort": cohort, "rounds": 2}
    with pytest.raises(ValueError, match=message):
        ud.simulate("fedavg", mlp(), classified(), **options, aggregate=rule)


@pytest.mark.parametrize(
    "rule", ["trimmed-mean(share=0.2)", "krum(share=0.1, keep=2)", "geometric-median", "norm-clip"]
)
def test_engines_agree_on_robust_rules(rule: str) -> None:
    runs = [
        ud.simulate("fedavg", mlp(), classified(), **TRAINING | {"cohort": 5}, aggregate=rule, engine=engine).parameters
        for engine in ("sequential", "batched:2")
    ]
    assert_close(runs[1], runs[0], rtol=1e-10, atol=1e-10)


def test_a_rule_is_restored_by_resume(tmp_path: Path) -> None:
    given = TRAINING | {"cohort": 5, "aggregate": Krum(share=0.1)}
    whole = ud.simulate("fedavg", "softmax", "digits", **given)
    ud.simulate("fedavg", "softmax", "digits", **given | {"rounds": 2}, out=tmp_path / "run")
    assert_close(ud.resume(tmp_path / "run", rounds=4).parameters, whole.parameters, rtol=0, atol=0)
    with pytest.raises(ValueError, match=r"'krum\(share=0.1\)'"):
        ud.resume(tmp_path / "run", rounds=5, aggregate=Krum())
