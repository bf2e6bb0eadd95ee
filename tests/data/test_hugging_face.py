"""Data sets of the Hugging Face library `datasets`, where it is installed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from PIL import Image

import undrift as ud

datasets = pytest.importorskip("datasets")

PIXELS = np.random.default_rng(0).integers(0, 256, (12, 6, 6, 3), dtype=np.uint8)
HOSPITALS = ["Ulm", "Bonn", "Ulm", "Kiel"] * 3


@pytest.fixture(scope="module")
def images() -> Any:
    features = {"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])}
    features = datasets.Features({**features, "hospital": datasets.Value("string")})
    columns = {"image": list(map(Image.fromarray, PIXELS)), "label": [0, 1] * 6, "hospital": HOSPITALS}
    return datasets.Dataset.from_dict(columns, features=features)


@pytest.fixture(scope="module")
def patients() -> Any:
    columns = {"age": [30.0 + i for i in range(12)], "weight": range(60, 72), "smokes": [True, False] * 6}
    return datasets.Dataset.from_dict({**columns, "ill": ["yes", "no"] * 6, "hospital": HOSPITALS})


@pytest.mark.parametrize("form", [None, "numpy", "torch", "pandas", "arrow"])
def test_images_by_client(images: Any, form: str | None) -> None:
    data = ud.FederatedData.from_hub(images.with_format(form), user="hospital")
    assert data.client_names == ("Bonn", "Kiel", "Ulm")
    assert data.sizes.tolist() == [3, 3, 6]
    assert data.class_names == ("cat", "dog")
    assert np.array_equal(data.x.numpy(), PIXELS.transpose(0, 3, 1, 2))


def test_columns_of_numbers(patients: Any) -> None:
    split = patients.train_test_split(4, seed=0)
    columns: dict[str, Any] = {"x": ["age", "weight", "smokes"], "y": "ill", "user": "hospital"}
    data = ud.FederatedData.from_hub(split["train"], test=split["test"], **columns)
    first = split["train"][0]
    assert data.x[0].tolist() == [first["age"], first["weight"], first["smokes"]]
    assert data.class_names == ("no", "yes")
    assert ud.simulate("fedavg", "softmax", data, rounds=1, lr=0.001).clients.index.tolist() == ["Bonn", "Kiel", "Ulm"]


def test_a_transform_of_the_user_is_applied(images: Any) -> None:
    def inverted(rows: Any) -> Any:
        return {**rows, "image": [255 - np.asarray(image).transpose(2, 0, 1) for image in rows["image"]]}

    data = ud.FederatedData.from_hub(images.with_transform(inverted), user="hospital")
    assert np.array_equal(data.x.numpy(), 255 - PIXELS.transpose(0, 3, 1, 2))


def test_what_is_wrong_is_said(images: Any, patients: Any) -> None:
    def refused(table: Any, message: str, **columns: Any) -> None:
        with pytest.raises(ValueError, match=message):
            ud.FederatedData.from_hub(table, **{"y": "ill", "user": "hospital"} | columns)

    refused(patients.train_test_split(4), "this is a dict of splits, .*; there are: 'train', 'test'")
    refused(patients, "there is no column 'image'; there are: 'age', 'weight'")
    refused(patients, "column 'ill' is no column of numbers, which several side by side must be", x=["age", "ill"])
    unknown = patients.map(lambda row: {"hospital": None if row["age"] == 31 else "Ulm"})
    refused(unknown, "column 'hospital' has no value in row 1", x="age")
    with pytest.raises(TypeError, match=r"got Dataset; ud\.FederatedData\.from_hub\(table, "):
        ud.simulate("fedavg", "mlp", images)
