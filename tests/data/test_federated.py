"""Federations: how they are made, what they hold, how they differ."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from PIL import Image

import undrift as ud
from hub_files import encoded
from undrift.data.heterogeneity import heterogeneity, summary
from undrift.data.split import counts

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((12, 3)).astype(np.float32), np.arange(12) % 3
ROWS = [[0, 3, 6], [1], [2, 4, 5, 7]]


def same(a: ud.FederatedData, b: ud.FederatedData) -> bool:
    return a.fingerprint() == b.fingerprint()


# Rows


def test_from_rows_is_the_same_federation() -> None:
    flat = ud.FederatedData.from_rows(X, Y, np.concatenate(ROWS), [3, 1, 4], test=(X[:2], Y[:2]), name="mine")
    assert same(flat, ud.FederatedData(X, Y, ROWS, (X[:2], Y[:2])))
    assert [flat.client(i)[1].tolist() for i in range(3)] == [[0, 0, 0], [1], [2, 1, 2, 1]]
    assert flat.name == "mine"


@pytest.mark.parametrize(
    ("rows", "sizes", "words"),
    [
        ([0, 1, 2], [1, 1], "sizes must add up to the number of rows, got 2 and 3"),
        ([0, 1, 2], [3, 0], "client 1 has none"),
        ([0, 1, 2], [4, -1], "client 1 has none"),
        ([0, 1, 12], [3], "row numbers must lie in 0..11, got 0..12"),
        ([], [], "at least one client"),
    ],
)
def test_rows_that_cannot_be_are_refused(rows: list[int], sizes: list[int], words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        ud.FederatedData.from_rows(X, Y, rows, sizes)


def test_tables_of_small_numbers_stay_small() -> None:
    tokens = RNG.integers(0, 50, (12, 5)).astype(np.int16)
    data = ud.FederatedData(tokens, tokens, ROWS)
    assert data.x.dtype is data.y.dtype is torch.int16
    assert ud.FederatedData(X, Y.astype(np.int8), ROWS).y.dtype is torch.int64


# Normalisation


@pytest.mark.parametrize(
    ("x", "scale", "words"),
    [
        (X, ([0.5], [0.5]), "needs images [channels, height, width]"),
        (np.zeros((12, 3, 2, 2)), ([0.5], [0.5]), "got 1 and 1 for samples of shape (3, 2, 2)"),
        (np.zeros((12, 1, 2, 2)), ([0.5], [0.0]), "a standard deviation must be greater than 0, got 0.0"),
    ],
)
def test_a_scale_that_does_not_fit_is_refused(x: Any, scale: Any, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        ud.FederatedData(x, Y, ROWS, normalise=scale)


def test_the_scale_is_part_of_the_fingerprint() -> None:
    images = RNG.integers(0, 256, (12, 1, 4, 4), dtype=np.uint8)
    plain = ud.FederatedData(images, Y, ROWS)
    scaled = ud.FederatedData(images, Y, ROWS, normalise=([0.1], [0.2]))
    assert scaled.normalise == ((0.1,), (0.2,))
    assert not same(plain, scaled)


# Tables

PICTURES = RNG.integers(0, 256, (12, 3, 6, 5), dtype=np.uint8)
USERS = np.array(["ann", "bob", "ann"] * 4)


def as_pillow(images: Any) -> list[Any]:
    return [Image.fromarray(image.transpose(1, 2, 0)) for image in images]


class Dataset:
    """As much of a Hugging Face data set as is used."""

    def __init__(self, **columns: Any) -> None:
        self._columns, self.column_names = columns, list(columns)

    def __getitem__(self, name: str) -> Any:
        return self._columns[name]


@pytest.mark.parametrize(
    "dataset",
    [
        {"img": PICTURES, "label": Y, "user": USERS},
        Dataset(img=as_pillow(PICTURES), label=Y.tolist(), user=USERS.tolist()),
        Dataset(img=[encoded(image) for image in PICTURES], label=Y.tolist(), user=USERS.tolist()),
        pd.DataFrame({"img": [encoded(image)["bytes"] for image in PICTURES], "label": Y, "user": USERS}),
        pa.table({"img": [encoded(image) for image in PICTURES], "label": Y, "user": USERS}),
    ],
    ids=["arrays", "pillow", "encoded", "frame", "arrow"],
)
def test_from_any_table(dataset: Any) -> None:
    expected = ud.FederatedData(PICTURES, Y, [np.flatnonzero(name == USERS) for name in ("ann", "bob")])
    assert same(ud.FederatedData.from_hub(dataset, "natural", x="img", user="user"), expected)
    split = ud.FederatedData.from_hub(dataset, "classes:1", 3, x="img", test=dataset, normalise=([0.5] * 3, [0.2] * 3))
    assert [len(set(split.client(i)[1].tolist())) for i in range(3)] == [1, 1, 1]
    assert split.test is not None
    assert torch.equal(split.test[0], torch.from_numpy(PICTURES))


def test_wrong_tables_are_refused() -> None:
    table = Dataset(img=as_pillow(PICTURES), label=Y.tolist())
    with pytest.raises(ValueError, match="there is no column 'image'; there are: 'img', 'label'"):
        ud.FederatedData.from_hub(table, "iid", 2)
    with pytest.raises(ValueError, match="there is no column 'image'"):
        ud.FederatedData.from_hub([1, 2], "iid", 2)
    ragged = {"image": as_pillow(PICTURES[:11]) + as_pillow(PICTURES[:1, :, :3]), "label": Y}
    with pytest.raises(ValueError, match="row 11 of column 'image' is 3×5 colour; all images must be 6×5 colour"):
        ud.FederatedData.from_hub(ragged, "iid", 2)
    with pytest.raises(ValueError, match="have no users"):
        ud.FederatedData.from_hub({"image": X, "label": Y}, "natural")


# Folders


def test_folders_of_pictures(tmp_path: Path) -> None:
    wanted = {("ann", "cat"): PICTURES[:2], ("ann", "dog"): PICTURES[2:3], ("bob", "emu"): PICTURES[3:6]}
    for (client, kind), images in wanted.items():
        for number, image in enumerate(as_pillow(images)):
            (tmp_path / "train" / client / kind).mkdir(parents=True, exist_ok=True)
            image.save(tmp_path / "train" / client / kind / f"{number}.png")
    (tmp_path / "test" / "dog").mkdir(parents=True)
    as_pillow(PICTURES[6:7])[0].save(tmp_path / "test" / "dog" / "x.png")
    data = ud.FederatedData.from_folders(tmp_path / "train", tmp_path / "test")
    assert same(
        data,
        ud.FederatedData.from_clients(
            [(PICTURES[:3], [0, 0, 1]), (PICTURES[3:6], [2, 2, 2])], (PICTURES[6:7], np.array([1]))
        ),
    )
    assert data.classes == 3
    (tmp_path / "train" / "bob" / "emu" / "9.png").write_bytes(b"no picture")
    with pytest.raises(ValueError, match=r"9.png is not a readable image"):
        ud.FederatedData.from_folders(tmp_path / "train")


def test_folders_of_arrays(tmp_path: Path) -> None:
    for client, rows in zip("ab", ([0, 1], [2, 3, 4]), strict=True):
        (tmp_path / client).mkdir()
        np.save(tmp_path / client / "x.npy", X[rows])
        np.save(tmp_path / client / "y.npy", Y[rows])
    assert same(ud.FederatedData.from_folders(tmp_path), ud.FederatedData(X[:5], Y[:5], [[0, 1], [2, 3, 4]]))
    (tmp_path / "c").mkdir()
    with pytest.raises(ValueError, match=r"c holds neither x.npy and y.npy nor folders of images"):
        ud.FederatedData.from_folders(tmp_path)
    with pytest.raises(ValueError, match="is not a directory"):
        ud.FederatedData.from_folders(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="holds no folders"):
        ud.FederatedData.from_folders(tmp_path / "c")


# Local test sets


def test_clients_hold_out_a_part_of_every_class() -> None:
    data = ud.data.load("digits", "classes:2", 20, test_share=0.25)
    whole = ud.data.load("digits", "classes:2", 20)
    for i in range(20):
        held = data.client_test(i)
        assert held is not None
        train = data.client(i)[1].bincount(minlength=10)
        assert torch.equal(train + held[1].bincount(minlength=10), whole.client(i)[1].bincount(minlength=10))
        assert len(held[1]) == round(0.25 * whole.sizes[i])
        seen = train.nonzero().flatten()
        assert torch.equal(held[1].bincount(minlength=10).nonzero().flatten(), seen)
    assert data.local_tests is not None
    assert not set(data.rows) & set(data.local_tests.rows)
    assert whole.client_test(0) is None
    assert data.recipe["test_share"] == 0.25


def test_without_a_server_s_test_set_it_gets_the_clients() -> None:
    data = ud.FederatedData(X, Y, ROWS).hold_out(0.5)
    assert data.test is not None
    assert data.local_tests is not None
    assert torch.equal(data.test[0], data.x[torch.from_numpy(data.local_tests.rows)])
    assert data.sizes.tolist() == [1, 1, 2]  # of three, two are held out: numpy rounds half to even
    with pytest.raises(ValueError, match="test_share must be greater than 0 and less than 1, got 1"):
        data.hold_out(1)


def test_clients_own_models_are_tested_on_their_own_samples() -> None:
    """A client of one class whose test samples are labelled as nobody else's learns them by heart."""
    x = np.repeat(np.eye(4, dtype=np.float32), 8, axis=0)
    y = np.repeat(np.arange(4), 8)
    data = ud.FederatedData(x, y, np.split(np.arange(32), 4), test=(x[::8], (y[::8] + 1) % 4)).hold_out(0.25)
    run = ud.simulate("perfedavg", "softmax", data, rounds=20, lr=0.5)
    assert run.history["accuracy"].iloc[-1] < 0.5  # the server's test set is wrong on purpose
    assert (run.clients["accuracy"] == 1).all()


# How clients differ


def test_figures_by_hand() -> None:
    """q = (½, ½). A client of one class: m = (¾, ¼), JS² = ½ log₂ 4/3 + ½ (½ log₂ 2/3 + ½ log₂ 2) ≈ 0.3113."""
    data = ud.FederatedData(np.zeros((8, 1)), [0, 0, 0, 1, 1, 1, 0, 1], [[0, 1, 2], [3, 4, 5], [6, 7]])
    assert counts(data).tolist() == [[3, 0], [0, 3], [1, 1]]
    frame = heterogeneity(data)
    squared = 0.5 * np.log2(4 / 3) + 0.5 * (0.5 * np.log2(2 / 3) + 0.5 * np.log2(2))
    assert frame["entropy"].tolist() == pytest.approx([0, 0, 1])
    assert frame["jensen_shannon"].tolist() == pytest.approx([np.sqrt(squared)] * 2 + [0])
    assert frame["earth_mover"].tolist() == pytest.approx([0.5, 0.5, 0])
    assert frame["classes"].tolist() == [1, 1, 2]
    found = summary(frame)
    assert found["size_inequality"] == pytest.approx((1 / 3 + 1 / 3 + 2 / 3) / 3 / (8 / 3))
    assert found["per_client"]["samples"] == {"min": 2, "mean": pytest.approx(8 / 3), "max": 3}


def test_figures_are_those_of_scipy() -> None:
    stats, distance = pytest.importorskip("scipy.stats"), pytest.importorskip("scipy.spatial").distance
    data = ud.data.load("digits", "dirichlet:0.1", 20)
    table, frame = counts(data), heterogeneity(data)
    own, share = table / table.sum(1, keepdims=True), table.sum(0) / table.sum()
    assert np.allclose(frame["entropy"], stats.entropy(own, base=2, axis=1), rtol=1e-12)
    assert np.allclose(frame["jensen_shannon"], distance.jensenshannon(own, share[None], base=2, axis=1), rtol=1e-12)
    expected = stats.wasserstein_distance(data.sizes, [data.sizes.mean()]) / data.sizes.mean()
    assert summary(frame)["size_inequality"] == pytest.approx(expected, rel=1e-12)


def test_figures_order_partitions() -> None:
    means = [
        heterogeneity(ud.data.load("digits", scheme, 20))[["jensen_shannon", "earth_mover"]].mean()
        for scheme in ("iid", "dirichlet:1", "dirichlet:0.1", "dirichlet-client:0")
    ]
    for less, more in pairwise(means):
        assert (less < more).all()


def test_blocks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    data = ud.data.load("digits", "dirichlet:0.1", 20)
    whole = heterogeneity(data)
    monkeypatch.setattr("undrift.data.heterogeneity._BLOCK", 30)
    pd.testing.assert_frame_equal(heterogeneity(data), whole)
