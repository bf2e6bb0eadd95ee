"""Arrays of users: what becomes of them, and how others are refused."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import undrift as ud

X, Y = np.arange(12, dtype=np.float32).reshape(6, 2), np.arange(6) % 2
MASK = np.array([True, False, True, False, False, True])


def test_a_mask_is_a_mask() -> None:
    """Not row 1 for True and row 0 for False."""
    data = ud.FederatedData(X, Y, [MASK, (~MASK).tolist(), torch.tensor(MASK)])
    assert [data.client(i)[0].tolist() for i in range(3)] == [X[MASK].tolist(), X[~MASK].tolist(), X[MASK].tolist()]


@pytest.mark.parametrize(
    ("clients", "words"),
    [
        ([[0], MASK[:5]], "client 1: a mask must have an entry for each of the 6 samples, got 5"),
        ([[0], [True, 2]], "client 1: row numbers must be whole numbers"),
        ([[0], [1.5]], "client 1: row numbers must be whole numbers"),
        ([[0], [[1]]], "client 1: rows must be a list of numbers or a mask"),
        ([[0], [-1]], "row numbers must lie in 0..5, got -1..0, the first of them from client 1"),
        ([[0], MASK & False], "client 1 has none"),
        ({"a": [0]}, "clients must be a list with an entry per client, got dict"),
        ([0, 1], "client 0: rows must be a list"),
    ],
)
def test_rows_that_are_none(clients: Any, words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=re.escape(words)):
        ud.FederatedData(X, Y, clients)


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (np.ma.masked_array(X, mask=X > 5), "x must be a plain array, got a masked one"),
        (torch.tensor(X).to_sparse(), "x must be a plain, dense tensor, got a torch.sparse_coo one"),
        (torch.zeros(6, 2, device="meta"), "x must be a tensor with values, got one on the device 'meta'"),
        (X.astype(object), "x must be an array or a tensor of numbers, got ndarray of object"),
        (X.astype(complex), "x must be an array or a tensor of numbers, got ndarray of complex128"),
        (X[:, :0], "x must have at least one number per sample, got shape (6, 0)"),
        (3.0, "x must have a row per sample"),
    ],
)
def test_arrays_that_are_none(x: Any, words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=re.escape(words)):
        ud.FederatedData(x, Y, [[0], [1]])


@pytest.mark.parametrize(
    ("test", "words"),
    [
        ((X[:2].astype(np.uint8), Y[:2]), "test samples are bytes, which become numbers between 0 and 1 (torch.uint8)"),
        ((X[:2].astype(np.int64), Y[:2]), "test samples are whole numbers"),
        ((X[:2], Y[:2].astype(float)), "test targets have the type torch.float64, those of clients torch.int64"),
        ((X[:2].astype(np.float64) * 1e300, Y[:2]), "test x holds 3e+300, beyond the model's torch.float32"),
    ],
)
def test_test_samples_of_another_kind(test: Any, words: str) -> None:
    for given in ({"data": ud.FederatedData(X, Y, [[0, 1], [2]], test)}, {"data": [(X, Y)], "test": test}):
        with pytest.raises(ValueError, match=re.escape(words)):
            ud.simulate("fedavg", nn.Linear(2, 2), rounds=1, **given)


def test_wider_test_samples_are_alike() -> None:
    runs = [
        ud.simulate("fedavg", "softmax", [(X, Y)], test=(X[:2].astype(kind), Y[:2]), rounds=1)
        for kind in (np.float32, np.float64)
    ]
    assert runs[0].history["loss"].tolist() == runs[1].history["loss"].tolist()


def test_large_labels_take_no_memory() -> None:
    data = ud.FederatedData(X, Y * 10**12, [[0], [1]])
    assert data.classes is None
    with pytest.raises(ValueError, match="needs to know the number of classes"):
        ud.simulate("fedavg", "softmax", data, rounds=1)
    with pytest.raises(ValueError, match=re.escape("labels must lie in 0..1 where there are classes=2, got 0..2")):
        ud.FederatedData(X, Y * 2, [[0]], classes=2)
