"""Users' own data: torch Datasets and DataLoaders, dicts of clients, tables with a column that names the client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    random_split,
)

import undrift as ud
from laws import classified, mlp
from undrift.reporting.record import TIMES

PAIRS = classified()


class Samples(Dataset[tuple[Any, Any]]):
    """A map-style Dataset, as users write them."""

    def __init__(self, items: Any) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index]


class Endless(IterableDataset[Tensor]):
    def __iter__(self) -> Iterator[Tensor]:
        return iter(())


def one_by_one(x: Tensor, y: Tensor) -> Samples:
    return Samples([(row, int(label)) for row, label in zip(x, y, strict=True)])


def same(data: Any, pairs: Any = PAIRS) -> bool:
    made = ud.FederatedData.from_clients(data)
    return made.fingerprint() == ud.FederatedData.from_clients(pairs).fingerprint()


# Datasets and DataLoaders


@pytest.mark.parametrize("make", [TensorDataset, one_by_one])
def test_datasets(make: Any) -> None:
    assert same([make(x, y) for x, y in PAIRS])
    assert same([DataLoader(make(x, y), batch_size=2, shuffle=True) for x, y in PAIRS])


def test_they_train_as_arrays_do() -> None:
    settings: dict[str, Any] = {"rounds": 2, "lr": 0.1, "batch_size": 4}
    given = ud.simulate("fedavg", mlp(), [one_by_one(*p) for p in PAIRS], test=one_by_one(*PAIRS[0]), **settings)
    plain = ud.simulate("fedavg", mlp(), PAIRS, test=PAIRS[0], **settings)
    assert given.history.drop(columns=TIMES).equals(plain.history.drop(columns=TIMES))


def test_parts_of_a_dataset_are_clients() -> None:
    x, y = PAIRS[3]
    parts = random_split(TensorDataset(x, y), [10, 4], generator=torch.Generator().manual_seed(0))
    assert same(parts, [(x[part.indices], y[part.indices]) for part in parts])
    loaders = [DataLoader(TensorDataset(x, y), sampler=SubsetRandomSampler(part.indices)) for part in parts]
    assert same(loaders, [(x[part.indices], y[part.indices]) for part in parts])


def test_images_become_bytes() -> None:
    pictures = np.random.default_rng(0).integers(0, 256, (3, 4, 5, 3), dtype=np.uint8)
    data = ud.FederatedData.from_clients([Samples([(Image.fromarray(p), 1) for p in pictures])])
    assert data.x.dtype is torch.uint8
    assert data.x.tolist() == pictures.transpose(0, 3, 1, 2).tolist()


@pytest.mark.parametrize(
    ("own", "kind", "words"),
    [
        (Endless(), TypeError, "client 0: Endless has no length; give a Dataset with __len__ and __getitem__"),
        (Samples([(1.0, 2, 3)]), TypeError, r"client 0: samples must be pairs \(x, y\), got a tuple of 3"),
        (Samples([{"image": 1}]), TypeError, "got dict; for a table with columns there is FederatedData.from_hub"),
        (Samples({1: (0.0, 1)}), ValueError, "client 0: sample 0 of its Samples: 0"),
        (Samples([([1.0], 0), ([1.0, 2.0], 0)]), ValueError, "client 0: samples must have one shape"),
        (Samples([]), ValueError, "client 0 has none"),
        (
            DataLoader(Samples([(1.0, 0)]), collate_fn=lambda batch: batch),
            ValueError,
            "client 0: a collate_fn is not called",
        ),
        (
            DataLoader(Samples([(1.0, 0)]), sampler=WeightedRandomSampler([1.0], 5)),
            ValueError,
            r"client 0: a sampler of its own is not called \(WeightedRandomSampler\)",
        ),
        ("abc", TypeError, r"client 0 must be a pair \(x, y\) or a torch Dataset, got str"),
    ],
)
def test_what_cannot_be_read_is_refused(own: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        ud.FederatedData.from_clients([own])


def test_a_single_dataset_is_no_federation() -> None:
    with pytest.raises(TypeError, match=r"one for every client, a dict of them, .* got TensorDataset"):
        ud.simulate("fedavg", mlp(), TensorDataset(*PAIRS[0]), rounds=1)  # type: ignore[arg-type]


# Names of clients and classes


def test_names_of_a_dict_are_kept() -> None:
    data = dict(zip(["Ulm", "Bonn", 3, 4, 5], PAIRS, strict=True))
    assert same(data)
    run = ud.simulate("fedavg", mlp(), data, rounds=1)
    assert run.clients.index.tolist() == ["Ulm", "Bonn", "3", "4", "5"]
    assert run.clients.index.name == "client"
    assert run.clients.loc["Bonn", "samples"] == 3
    assert ud.FederatedData.from_clients(data).hold_out(0.3).client_names == ("Ulm", "Bonn", "3", "4", "5")


def test_whoever_is_blamed_is_named() -> None:
    (x, y), good = PAIRS[0], PAIRS[1]
    with pytest.raises(ValueError, match=r"a sample of client 'Bonn' \(row 3\) has NaN"):
        ud.FederatedData.from_clients({"Ulm": good, "Bonn": (x * torch.nan, y)})
    with pytest.raises(TypeError, match=r"client 'x' must be a pair \(x, y\)"):
        ud.FederatedData.from_clients({"x": x, "y": y})
    with pytest.raises(ValueError, match=r"names of clients must differ, got \[1, '1'\]"):
        ud.FederatedData.from_clients({1: good, "1": good})
    with pytest.raises(ud.DivergenceError, match="model of client 'Bonn' is not finite"):
        ud.simulate("fedavg", mlp(), {"Ulm": good, "Bonn": (x * 1e300, y)}, rounds=2, lr=1e18)


def test_a_column_that_names_the_client() -> None:
    table = {
        "image": np.arange(12.0).reshape(6, 2),
        "label": np.array(["cat", "dog", "cat", "ant", "dog", "ant"]),
        "user": np.array(["b", "a", "b", "c", "a", "a"]),
    }
    data = ud.FederatedData.from_hub(table, user="user", test={"image": table["image"], "label": table["label"]})
    assert data.client_names == ("a", "b", "c")
    assert data.class_names == ("ant", "cat", "dog")
    assert data.classes == 3
    assert [data.client(i)[1].tolist() for i in range(3)] == [[2, 2, 0], [1, 1], [0]]
    assert data.test is not None
    assert data.test[1].tolist() == [1, 2, 1, 0, 2, 0]
    some = ud.FederatedData.from_hub(table, "natural,min=2", user="user")
    assert some.client_names == ("a", "b")
    assert ud.FederatedData.from_hub(table, "iid", 2, user="user").client_names is None


class HubTable(dict[str, Any]):
    """As a data set of the hub: a column of class numbers knows their names."""

    features: ClassVar[dict[str, Any]] = {"label": SimpleNamespace(names=["cat", "dog", "eel"]), "image": None}


def test_a_data_set_of_the_hub_knows_its_classes() -> None:
    table = HubTable(image=np.zeros((4, 2)), label=[0, 1, 1, 0], site=["x", "y", "x", "y"])
    data = ud.FederatedData.from_hub(table, user="site")
    assert data.class_names == ("cat", "dog", "eel")
    assert data.classes == 3
    assert data.client_names == ("x", "y")


def test_names_of_folders_are_kept(tmp_path: Path) -> None:
    for client, kinds in {"ulm": ("cat", "dog"), "bonn": ("ant",)}.items():
        for kind in kinds:
            (tmp_path / client / kind).mkdir(parents=True)
            Image.new("L", (4, 4)).save(tmp_path / client / kind / "1.png")
    data = ud.FederatedData.from_folders(tmp_path)
    assert data.client_names == ("bonn", "ulm")
    assert data.class_names == ("ant", "cat", "dog")
    run = ud.simulate("fedavg", nn.Sequential(nn.Flatten(), nn.Linear(16, 3)), data, rounds=1)
    assert run.clients.index.tolist() == ["bonn", "ulm"]


def test_several_columns_of_numbers() -> None:
    table = pd.DataFrame({"age": [50, 60, 70], "pulse": [60.5, 70.5, 80.5], "ill": [0, 1, 0], "ward": list("aba")})
    data = ud.FederatedData.from_hub(table, x=["age", "pulse"], y="ill", user="ward")
    assert data.x.tolist() == [[50, 60.5], [60, 70.5], [70, 80.5]]
    with pytest.raises(ValueError, match="column 'ward' is no column of numbers, which several side by side must be"):
        ud.FederatedData.from_hub(table, x=["age", "ward"], y="ill")
    with pytest.raises(ValueError, match="x must name at least one column, got none"):
        ud.FederatedData.from_hub(table, x=[], y="ill")
    table["ward"] = ["a", None, "b"]
    with pytest.raises(ValueError, match="column 'ward' has no value in row 1"):
        ud.FederatedData.from_hub(table, x="age", y="ill", user="ward")
    with pytest.raises(TypeError, match=r"got DataFrame; ud\.FederatedData\.from_hub\(table, "):
        ud.simulate("fedavg", "softmax", table)  # type: ignore[arg-type]
