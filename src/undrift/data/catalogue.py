"""The named data sets: where they come from, what is in them, and how they are run by default.

A new data set is one entry of `CATALOGUE`, at the end of this file: listing, fetching, loading, the default partition
and the default settings of a run follow from it. A new kind of content is a class here and its reader in `fetch.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]
Settings = Mapping[str, Any]  # arguments of `simulate` by name


class BuiltIn(NamedTuple):
    """Samples that come with an installed package: nothing to fetch."""

    read: Callable[[], dict[str, Array]]  # train_x, train_y, test_x, test_y


class Images(NamedTuple):
    """Images of one shape, or (`resized`) of any, scaled and cropped to it."""

    shape: tuple[int, int, int]  # channels, height, width
    mean: tuple[float, ...]  # of the training images, per channel, in 0..1
    std: tuple[float, ...]
    resized: bool = False


class Characters(NamedTuple):
    """Windows of a role's text; the character after each is to be predicted."""

    length: int
    most: int  # training samples per user, at most


class Words(NamedTuple):
    """Sentences of a user; at every word, the next one is to be predicted."""

    length: int
    vocabulary: int
    most: int  # training sentences per user, at most


class Pairs(NamedTuple):
    """Two sentences to be compared."""

    length: int
    vocabulary: int


@dataclass(frozen=True)
class Description:
    about: str  # one line
    content: Images | Characters | Words | Pairs | BuiltIn
    inputs: tuple[str, ...]  # columns
    label: str | None  # column; None: the text itself is predicted
    classes: int
    hub: str | None  # data set on the Hugging Face hub; None: not there, it can only be imported from files
    samples: int | None = None  # for training; None: it depends on the source
    config: str | None = None
    train: str = "train"  # names of the hub's splits
    test: str | None = "test"  # None: a part of every user's samples is held out
    names: tuple[str, ...] | None = None  # of the classes; None: they are numbers
    user: str | None = None  # column with the user of a sample
    raw: str | None = None  # other files that can be imported: "idx" or "cifar"
    partition: str = "dirichlet:0.1"  # default
    clients: int = 100  # default of partitions that are not natural
    users: int | None = None  # clients of its own natural partition; None: all users
    defaults: Settings = field(default_factory=dict)  # settings of a run where none are given


def _digits() -> dict[str, Array]:
    """The test part of E. Alpaydin, C. Kaynak: Optical Recognition of Handwritten Digits. UCI Machine Learning
    Repository, 1998, doi:10.24432/C50P49, CC BY 4.0; images and order are those of scikit-learn's `load_digits`.
    """
    with np.load(Path(__file__).with_name("digits.npz")) as stored:
        images, labels = stored["images"], stored["target"]  # [1797, 8, 8] in 0..16, [1797]
    x = (images[:, None] / 16).astype(np.float32)
    y = labels.astype(np.int64)
    order = np.random.default_rng(0).permutation(len(y))  # one test set for all seeds and partitions
    test, train = order[:360], order[360:]
    return {"train_x": x[train], "train_y": y[train], "test_x": x[test], "test_y": y[test]}


_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))

_MNIST_DEFAULTS: Settings = {"model": "lenet5", "lr": 0.05, "cohort": 0.1}
_CIFAR_DEFAULTS: Settings = {  # FedHBM, cross-silo
    "model": "lenet-hsu",
    "batch_size": 64,
    "weight_decay": 1e-3,
    "cohort": 0.1,
    "augment": "crop-flip",
}
_PHOTOGRAPHS_DEFAULTS: Settings = {"model": "mobilenetv2", "cohort": 10, "eval_every": 10}

CATALOGUE: dict[str, Description] = {
    "digits": Description(
        "Handwritten digits, built in: 1797 images of 8×8, ten classes.",
        BuiltIn(_digits),
        inputs=(),
        label=None,
        classes=10,
        hub=None,
        samples=1_437,
        partition="classes:2",
        clients=40,
        defaults={"model": "cnn", "lr": 0.1},
    ),
    "mnist": Description(
        "Handwritten digits: 60 000 images of 28×28, ten classes.",
        Images((1, 28, 28), (0.1307,), (0.3081,)),
        inputs=("image",),
        label="label",
        classes=10,
        hub="ylecun/mnist",
        samples=60_000,
        raw="idx",
        defaults=_MNIST_DEFAULTS,
    ),
    "fashion-mnist": Description(
        "Pieces of clothing: 60 000 images of 28×28, ten classes.",
        Images((1, 28, 28), (0.2860,), (0.3530,)),
        inputs=("image",),
        label="label",
        classes=10,
        hub="zalando-datasets/fashion_mnist",
        samples=60_000,
        names=(
            *("T-shirt", "trousers", "pullover", "dress", "coat"),
            *("sandal", "shirt", "sneaker", "bag", "ankle boot"),
        ),
        raw="idx",
        defaults=_MNIST_DEFAULTS,
    ),
    "cifar10": Description(
        "Animals and vehicles: 50 000 colour images of 32×32, ten classes.",
        Images((3, 32, 32), (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
        inputs=("img",),
        label="label",
        classes=10,
        hub="uoft-cs/cifar10",
        samples=50_000,
        names=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
        raw="cifar",
        defaults=_CIFAR_DEFAULTS,
    ),
    "cifar100": Description(
        "50 000 colour images of 32×32, a hundred classes.",
        Images((3, 32, 32), (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
        inputs=("img",),
        label="fine_label",
        classes=100,
        hub="uoft-cs/cifar100",
        samples=50_000,
        raw="cifar",
        defaults=_CIFAR_DEFAULTS,
    ),
    "tiny-imagenet": Description(
        "100 000 colour images of 64×64, two hundred classes.",
        Images((3, 64, 64), (0.4802, 0.4481, 0.3975), (0.2770, 0.2691, 0.2821)),
        inputs=("image",),
        label="label",
        classes=200,
        hub="zh-plus/tiny-imagenet",
        samples=100_000,
        test="valid",
        defaults={"model": "resnet18-gn", "batch_size": 256, "cohort": 0.1},  # FedDPC
    ),
    "shakespeare": Description(
        "Shakespeare's plays by role: the character after 80 others; one client per role.",
        Characters(length=80, most=2000),
        inputs=("text",),
        label=None,
        classes=80,
        hub="flwrlabs/shakespeare",
        test=None,
        user="character_id",
        partition="natural,min=2000",  # FedHBM, and its settings
        users=100,
        defaults={
            "model": "char-lstm",
            "lr": 1.0,
            "batch_size": 100,
            "rounds": 250,
            "cohort": 10,
            "eval_every": 10,
        },
    ),
    "stackoverflow": Description(
        "Questions and answers by user: the next word of a sentence; one client per user.",
        Words(length=20, vocabulary=10_000, most=1000),
        inputs=("tokens",),
        label=None,
        classes=10_004,
        hub=None,
        user="client_id",
        partition="natural",
        defaults={  # FedHBM
            "model": "word-lstm",
            "lr": 0.3,
            "batch_size": 16,
            "rounds": 1500,
            "cohort": 50,
            "eval_every": 50,
        },
    ),
    "qqp": Description(
        "Quora question pairs: do two questions mean the same? 364 000 pairs.",
        Pairs(length=30, vocabulary=19_998),
        inputs=("question1", "question2"),
        label="label",
        classes=2,
        hub="nyu-mll/glue",
        samples=363_846,
        config="qqp",
        test="validation",  # the labels of the hub's test split are secret
        partition="dirichlet:0.5",
        defaults={"model": "pair-lstm", "cohort": 10},
    ),
    "landmarks-users-160k": Description(
        "Landmarks by photographer: 164 172 images as 224×224, 2028 classes; one client per photographer.",
        Images((3, 224, 224), *_IMAGENET, resized=True),
        inputs=("image",),
        label="class",
        classes=2028,
        hub=None,
        samples=164_172,
        user="user_id",
        partition="natural",
        defaults=_PHOTOGRAPHS_DEFAULTS,
    ),
    "inaturalist-users-120k": Description(
        "Species by observer: 120 300 images as 224×224, 1203 classes; one client per observer.",
        Images((3, 224, 224), *_IMAGENET, resized=True),
        inputs=("image",),
        label="class",
        classes=1203,
        hub=None,
        samples=120_300,
        user="user_id",
        partition="natural",
        defaults=_PHOTOGRAPHS_DEFAULTS,
    ),
}
