"""The principal plane against a singular value decomposition, k-means against scikit-learn."""

from __future__ import annotations

import numpy as np
import torch
from sklearn.cluster import KMeans
from torch import Tensor

from undrift.core.tree import Tree
from undrift.methods.grouping import Plane, lloyd, plus_plus

SPOTS = np.array([[0.0, 0.0], [6.0, 1.0], [-2.0, 5.0]])


def trees(rows: Tensor) -> Tree:
    """Rows [n, 7] as stacked trees of two tensors."""
    return {"a": rows[:, :4].reshape(-1, 2, 2), "b": rows[:, 4:]}


def flat(stacked: Tree) -> np.ndarray:
    return torch.cat([v.flatten(1) for v in stacked.values()], dim=1).numpy()


def scattered(count: int, width: int = 7, seed: int = 0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    return generator.normal(size=(count, width)) @ np.diag(np.arange(width, 0, -1.0)) + 3.0


def around(spots: np.ndarray, each: int, seed: int = 0) -> Tensor:
    noise = np.random.default_rng(seed).normal(size=(each, *spots.shape))
    return torch.from_numpy((spots + noise).reshape(-1, spots.shape[1]))


def test_plane_is_that_of_the_singular_vectors() -> None:
    """Distances of U^T(z_i − z̄) and of U^T(c − z̄), and the way back U p + z̄; signs of U do not matter."""
    z, c = scattered(10), scattered(3, seed=1)
    u = np.linalg.svd((z - z.mean(0)).T)[0][:, :2]  # [d, 2]
    plane = Plane.through(trees(torch.from_numpy(z)), 2)
    mine = np.vstack([plane.points.numpy(), plane.project(trees(torch.from_numpy(c))).numpy()])
    theirs = np.vstack([z - z.mean(0), c - z.mean(0)]) @ u
    np.testing.assert_allclose(mine @ mine.T, theirs @ theirs.T, rtol=1e-10, atol=1e-10)
    back = flat(plane.lift(plane.project(trees(torch.from_numpy(c)))))
    np.testing.assert_allclose(back, (c - z.mean(0)) @ u @ u.T + z.mean(0), rtol=1e-10)


def test_plane_with_as_many_dimensions_as_the_rows_loses_nothing() -> None:
    z = scattered(4)
    plane = Plane.through(trees(torch.from_numpy(z)), 3)
    np.testing.assert_allclose(flat(plane.lift(plane.points)), z, rtol=1e-10)


def test_plane_of_few_rows() -> None:
    """Of one row, or of equal ones, it is their point; dimensions that are not there hold nothing."""
    for count in (1, 3):
        z = np.repeat(scattered(1), count, axis=0)
        plane = Plane.through(trees(torch.from_numpy(z)), 3)
        assert not plane.points.any()
        np.testing.assert_allclose(
            flat(plane.lift(plane.project(trees(torch.from_numpy(scattered(2, seed=1)))))), z[[0, 0]]
        )


def test_lloyd_is_that_of_scikit_learn() -> None:
    points, starts = around(SPOTS, 20), around(SPOTS, 1, seed=1) * 0.5
    theirs = KMeans(3, init=starts.numpy(), n_init=1, algorithm="lloyd", tol=0).fit(points.numpy())
    groups = lloyd(points, starts)
    np.testing.assert_allclose(groups.centres, theirs.cluster_centers_, rtol=1e-10)
    np.testing.assert_array_equal(groups.members, theirs.labels_)


def test_lloyd_by_hand() -> None:
    """First only 0 is nearer to −4 than to 4.5; then the centres are 0 and 5, and 1 changes sides."""
    points = torch.tensor([[0.0], [1.0], [4.0], [10.0]], dtype=torch.float64)
    groups = lloyd(points, torch.tensor([[-4.0], [4.5]], dtype=torch.float64))
    np.testing.assert_allclose(groups.centres[:, 0], [0.5, 7.0])
    assert groups.members.tolist() == [0, 0, 1, 1]


def test_an_empty_group_keeps_its_centre() -> None:
    points = torch.tensor([[0.0, 0.0], [2.0, 0.0]], dtype=torch.float64)
    groups = lloyd(points, torch.tensor([[1.0, 1.0], [50.0, 60.0]], dtype=torch.float64))
    assert groups.centres.tolist() == [[1.0, 0.0], [50.0, 60.0]]
    assert groups.members.tolist() == [0, 0]


def test_plus_plus_draws_by_squared_distance() -> None:
    """From the points 0, 1 and 3: the first uniformly, the second by the squared distance to it."""
    points = torch.tensor([[0.0], [1.0], [3.0]], dtype=torch.float64)
    counts = np.zeros((4, 4))
    for seed in range(800):
        first, second = plus_plus(points, 2, seed=seed, round=1, clients=torch.arange(3))[:, 0].long().tolist()
        counts[first, second] += 1
    expected = np.zeros((4, 4))
    expected[0, [1, 3]], expected[1, [0, 3]], expected[3, [0, 1]] = (0.1, 0.9), (0.2, 0.8), (9 / 13, 4 / 13)
    error = np.sqrt(expected / 3 / 800)  # at least the standard deviation
    assert (abs(counts / 800 - expected / 3) <= 4.5 * error).all()


def test_plus_plus_belongs_to_seed_round_and_clients() -> None:
    points, clients = around(SPOTS, 4), torch.arange(12) * 7
    order = torch.from_numpy(np.random.default_rng(3).permutation(12))
    drawn = plus_plus(points, 3, seed=5, round=2, clients=clients)
    assert torch.equal(drawn, plus_plus(points[order], 3, seed=5, round=2, clients=clients[order]))
    others = [
        plus_plus(points, 3, seed=6, round=2, clients=clients),
        plus_plus(points, 3, seed=5, round=3, clients=clients),
    ]
    assert not any(torch.equal(drawn, other) for other in others)


def test_plus_plus_takes_no_point_twice_while_there_are_others() -> None:
    points = torch.tensor([[0.0], [0.0], [1.0]], dtype=torch.float64)
    for seed in range(20):
        drawn = plus_plus(points, 3, seed=seed, round=1, clients=torch.arange(3))[:, 0].tolist()
        assert set(drawn[:2]) == {0.0, 1.0}
        assert drawn[2] in {0.0, 1.0}  # only copies are left
