"""Partitions: true ones, always; and what each of them promises."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from undrift.data.holdout import stratified
from undrift.data.partition import SCHEMES, UNASSIGNED, by_owner, owners, partition
from undrift.data.partition.divide import dirichlet_shares

LABELS = np.random.default_rng(0).integers(0, 10, 5000)


def table(scheme: str, labels: Any, clients: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """Samples of every class at every client."""
    counts = np.zeros((clients, labels.max() + 1), dtype=np.int64)
    for client, rows in enumerate(partition(scheme, labels, clients, seed)):
        counts[client] = np.bincount(labels[rows], minlength=counts.shape[1])
    return counts


# Any labels, any scheme

schemes = st.one_of(
    st.just("iid"),
    st.builds("dirichlet:{}".format, st.sampled_from([1e-320, 1e-9, 0.01, 0.1, 1, 1000, 1e12])),
    st.builds("dirichlet:{},balanced".format, st.sampled_from([1e-320, 0.01, 1, 1e12])),
    st.builds("dirichlet-client:{}".format, st.sampled_from([0, 1e-320, 1e-6, 0.1, 1, 1e4, 1e12])),
    st.builds("classes:{}".format, st.integers(1, 6)),
    st.builds("shards:{}".format, st.integers(1, 4)),
    st.just("shards"),
    st.builds("quantity:{}".format, st.sampled_from([1e-9, 0.05, 0.5, 10, 1e9])),
)
minimum = st.one_of(st.just(""), st.builds(",min={}".format, st.integers(0, 5)))
POSSIBLE = ("must not", "cannot", "needs", "need ", "too few")  # reasons to refuse


@settings(max_examples=300, deadline=None)
@given(
    labels=st.lists(st.integers(-3, 6), min_size=1, max_size=120),
    clients=st.integers(1, 40),
    scheme=schemes,
    least=minimum,
    seed=st.integers(0, 2**32 - 1),
)
def test_every_sample_has_exactly_one_client(
    labels: list[int], clients: int, scheme: str, least: str, seed: int
) -> None:
    try:
        parts = partition(scheme + least, labels, clients, seed)
    except ValueError as error:
        if not any(reason in str(error) for reason in POSSIBLE):
            raise
        return
    assert len(parts) == clients
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))
    assert min(len(rows) for rows in parts) >= max(1, int(least[5:] or 1))
    again = partition(scheme + least, labels, clients, seed)
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))


@pytest.mark.parametrize(
    "scheme",
    ["iid", "dirichlet:0.3", "quantity:0.3", "dirichlet:0.01,min=2", "dirichlet:0.01,balanced,min=2", "shards:1"],
)
def test_these_are_possible_whenever_there_are_samples_enough(scheme: str) -> None:
    rng = np.random.default_rng(1)
    for seed in range(50):
        clients = int(rng.integers(1, 30))
        labels = rng.integers(0, rng.integers(1, 12), clients * 2 + int(rng.integers(0, 100)))
        assert len(partition(scheme, labels, clients, seed)) == clients


@pytest.mark.parametrize("scheme", [name for name in SCHEMES if name not in ("iid", "natural", "shards")])
def test_another_seed_is_another_partition(scheme: str) -> None:
    first, second = (owners(f"{scheme}:1", LABELS, 20, seed) for seed in (0, 1))
    assert (first != second).mean() > 0.5


# What each promises


def test_iid_parts_are_equal_and_alike() -> None:
    counts = table("iid", LABELS, 7)
    assert np.ptp(counts.sum(1)) <= 1
    assert counts.min() > 0.7 * len(LABELS) / 70


@pytest.mark.parametrize("k", [1, 2, 3, 7, 10])
def test_classes_gives_every_client_exactly_k(k: int) -> None:
    counts = table(f"classes:{k}", LABELS, 30)
    assert set((counts > 0).sum(1)) == {k}
    assert np.ptp((counts > 0).sum(0)) <= 1  # clients per class
    for shares in counts.T:
        assert np.ptp(shares[shares > 0]) <= 1


def test_classes_pairs_classes_at_random() -> None:
    pairs = {tuple(np.flatnonzero(row)) for row in table("classes:2", LABELS, 400)}
    assert len(pairs) == 45  # all there are


def test_shards_are_runs_of_sorted_labels() -> None:
    counts = table("shards", LABELS, 50)
    assert np.ptp(counts.sum(1)) <= 2
    assert (counts > 0).sum(1).max() <= 4  # two shards, each of which may span two classes
    assert (counts > 0).sum(1).mean() < 2.5
    assert ((table("shards:1", LABELS, 50) > 0).sum(1)).max() <= 2


def test_one_class_each_as_on_cifar() -> None:
    labels = np.repeat(np.arange(10), 5000)
    for clients, each in ((100, 500), (500, 100)):  # the two federations of FedHBM's paper
        counts = table("dirichlet-client:0", labels, clients)
        assert ((counts > 0).sum(1) == 1).all()
        assert (counts.max(1) == each).all()


def test_one_class_each_follows_the_sizes_of_classes() -> None:
    labels = np.repeat([0, 1, 2], [600, 300, 3])
    counts = table("dirichlet-client:0", labels, 10)
    assert ((counts > 0).sum(1) == 1).all()
    assert (counts > 0).sum(0).tolist() == [6, 3, 1]


def test_dirichlet_client_has_equal_sizes_and_the_variance_of_its_law() -> None:
    """q ~ Dir(α p) has variance p (1 − p) / (α + 1); a multinomial of s draws adds p (1 − p) α / ((α + 1) s)."""
    labels, alpha, size = np.repeat(np.arange(4), 40_000), 3.0, 40
    counts = table(f"dirichlet-client:{alpha}", labels, 4000)
    assert (counts.sum(1) == size).all()
    early = counts[:1500] / size  # no class has run out yet
    expected = 0.25 * 0.75 * (1 / (alpha + 1) + alpha / ((alpha + 1) * size))
    assert early.mean(0) == pytest.approx(0.25, abs=0.02)
    assert early.var(0).mean() == pytest.approx(expected, rel=0.08)


def test_a_large_alpha_makes_clients_alike() -> None:
    counts = table("dirichlet-client:10000", LABELS, 10)[:-1]  # the last one gets what is left
    share = np.bincount(LABELS) / len(LABELS)
    assert np.abs(counts / counts.sum(1, keepdims=True) - share).max() < 0.06


def test_dirichlet_divides_classes_by_its_law() -> None:
    """Shares p ~ Dir(α) over N clients have E Σ p² = (α + 1) / (N α + 1)."""
    labels, clients, alpha = np.repeat(np.arange(400), 1000), 20, 0.3
    shares = table(f"dirichlet:{alpha}", labels, clients) / 1000
    assert (shares**2).sum(0).mean() == pytest.approx((alpha + 1) / (clients * alpha + 1), rel=0.06)


@pytest.mark.parametrize("alpha", [[0.05, 0.2], [1.0, 3.0], [40.0, 10.0]])
def test_draws_are_dirichlet(alpha: list[float]) -> None:
    """Mean α_k / α_0, variance α_k (α_0 − α_k) / (α_0² (α_0 + 1))."""
    a, total = np.array(alpha), sum(alpha)
    draws = dirichlet_shares(a, 20_000, np.random.default_rng(0))
    assert draws.sum(1) == pytest.approx(1)
    assert draws.mean(0) == pytest.approx(a / total, abs=0.01)
    assert draws.var(0) == pytest.approx(a * (total - a) / (total**2 * (total + 1)), rel=0.05)


def test_the_smallest_alpha_gives_a_class_to_one_client() -> None:
    counts = table("dirichlet:1e-300", LABELS, 8)
    assert (np.sort(counts, axis=0)[:-1].sum(0) <= 8).all()  # others got a single sample only if they had none


def test_a_balanced_client_with_its_equal_part_gets_no_further_class() -> None:
    counts = table("dirichlet:0.2,balanced", LABELS, 20)
    before = np.cumsum(counts, axis=1) - counts  # what a client has when a class is divided
    full = before >= len(LABELS) / 20
    assert full.any()
    assert (counts[full] == 0).all()
    plain = table("dirichlet:0.2", LABELS, 20)
    assert counts.sum(1).std() < 0.6 * plain.sum(1).std()
    assert ((counts > 0).sum(1) <= 8).any()  # labels are still skewed


def test_a_balanced_partition_is_drawn_again_until_the_minimum_holds() -> None:
    """Nobody gives samples away: a class has no owner besides those its last draw has."""
    for seed in range(20):
        plain = table("dirichlet:0.1,balanced", LABELS, 20, seed)
        enough = table("dirichlet:0.1,balanced,min=30", LABELS, 20, seed)
        full = np.cumsum(enough, axis=1) - enough >= len(LABELS) / 20
        assert enough.sum(1).min() >= 30
        assert (enough[full] == 0).all()
        assert (plain.sum(1).min() < 30) != np.array_equal(plain, enough)


def test_quantity_skews_sizes_not_labels() -> None:
    counts = table("quantity:0.3", LABELS, 10)
    assert counts.sum(1).max() > 3 * counts.sum(1).min()
    largest = counts[counts.sum(1).argmax()]
    assert np.abs(largest / largest.sum() - np.bincount(LABELS) / len(LABELS)).max() < 0.05


def test_the_richest_give_to_the_poorest() -> None:
    before = table("quantity:0.2", LABELS, 100).sum(1)
    after = table("quantity:0.2,min=10", LABELS, 100).sum(1)
    assert after.min() == 10
    assert (after[before < 10] == 10).all()
    level = after.max()
    untouched = (before >= 10) & (before < level)
    assert (after[untouched] == before[untouched]).all()
    assert level < before.max()


# Users

USERS = np.array(["b", "a", "b", "c", "b", "a", "d"])


def test_natural_takes_users_as_they_are() -> None:
    assert [part.tolist() for part in partition("natural", USERS, users=USERS)] == [[1, 5], [0, 2, 4], [3], [6]]


def test_natural_leaves_small_users_out() -> None:
    assert [part.tolist() for part in partition("natural,min=2", USERS, users=USERS)] == [[1, 5], [0, 2, 4]]


def test_natural_draws_some_users() -> None:
    draws = [owners("natural", USERS, 2, seed, users=USERS) for seed in range(40)]
    chosen = {tuple(np.unique(USERS[owner != UNASSIGNED])) for owner in draws}
    assert len(chosen) == 6
    rows, sizes = by_owner(owners("natural", USERS, 2, 0, users=USERS))
    assert len(sizes) == 2
    assert sizes.sum() == len(rows)


# Test sets of clients


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=8),
    share=st.floats(0.01, 0.99),
    seed=st.integers(0, 1000),
)
def test_local_test_sets_have_their_client_s_classes(sizes: list[int], share: float, seed: int) -> None:
    owner = np.repeat(np.arange(len(sizes)), sizes)
    labels = np.random.default_rng(seed).integers(0, 3, len(owner))
    held = stratified(owner, labels, share, seed)
    for client, size in enumerate(sizes):
        tested = held[owner == client].sum()
        assert tested == (0 if size == 1 else min(max(round(share * size), 1), size - 1))
        for label in range(3):
            those = (owner == client) & (labels == label)
            assert abs(held[those].sum() - tested / size * those.sum()) <= 1


# Refusals


@pytest.mark.parametrize(
    ("scheme", "clients", "words"),
    [
        ("dirichlet:-0.1", 10, "alpha of partition 'dirichlet' must be greater than 0, got -0.1"),
        ("dirichlet:0", 10, "greater than 0, got 0"),
        ("dirichlet:nan", 10, "greater than 0, got nan"),
        ("dirichlet", 10, "partition 'dirichlet' needs a number, as in 'dirichlet:1'"),
        ("dirichlet-client:-1", 10, "must be at least 0, got -1"),
        ("dirichlet-client:0", 9, "at least as many clients as the 10 classes"),
        ("quantity:-2", 10, "alpha of partition 'quantity' must be greater than 0, got -2"),
        ("quantity", 10, "needs a number"),
        ("classes:11", 10, "must not exceed the 10 classes, got 11"),
        ("classes:0", 10, "whole number from 1"),
        ("classes:1.5", 10, "whole number from 1"),
        ("classes:2", 4, "4 clients of 2 classes cannot hold all 10 classes"),
        ("shards:3", 2000, "2000 clients of 3 shards need 6000 samples, there are 5000"),
        ("iid:3", 10, "'iid' takes no number, got 'iid:3'"),
        ("iid", 5001, "clients must not be more than the 5000 samples, got 5001"),
        ("iid", 0, "clients must be at least 1, got 0"),
        ("iid,min=501", 10, "min=501 for 10 clients needs 5010 samples, there are 5000"),
        ("classes:1,min=500", 10, "min=500 cannot be satisfied: partition 'classes:1,min=500' gives some client"),
        ("iid,max=5", 10, "only a minimum may follow the comma, as in 'iid,min=10'"),
        ("iid,balanced", 10, "only a minimum may follow the comma, as in 'iid,min=10'"),
        (
            "dirichlet:1,balance",
            10,
            "only 'balanced' and a minimum may follow the comma, as in 'dirichlet:1,balanced,min=10'",
        ),
        ("iid,min=-5", 10, "only a minimum may follow the comma"),
        ("dirichelt:1", 10, "did you mean 'dirichlet'?"),
        ("natural", 10, "these data have no users"),
    ],
)
def test_refused(scheme: str, clients: int, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        partition(scheme, LABELS, clients)


def test_refused_by_users_and_targets() -> None:
    with pytest.raises(ValueError, match="not be more than the 4 users, got 5"):
        partition("natural", USERS, 5, users=USERS)
    with pytest.raises(ValueError, match="no user has min=4 samples; the largest has 3"):
        partition("natural,min=4", USERS, users=USERS)
    with pytest.raises(ValueError, match="one class per sample, got targets of shape \\(3,\\)"):
        partition("classes:1", np.zeros((9, 3)), 2)
    with pytest.raises(TypeError, match="clients must be a whole number, got None"):
        partition("iid", LABELS)
    assert len(partition("iid", np.zeros((9, 3)), 2)) == 2
