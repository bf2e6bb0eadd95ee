"""The named data sets: where they come from and what is in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Images(NamedTuple):
    """Pictures of one shape, or (`resized`) of any, brought to it."""

    shape: tuple[int, int, int]  # channels, height, width
    mean: tuple[float, ...]  # of the training images, per channel, in 0..1
    std: tuple[float, ...]
    resized: bool = False


class Characters(NamedTuple):
    """Windows of a role's text and the character that follows."""

    length: int
    most: int  # training samples per user


class Words(NamedTuple):
    """Sentences of a user; at every word, the next one is to be predicted."""

    length: int
    vocabulary: int
    most: int  # training sentences per user


class Pairs(NamedTuple):
    """Two sentences to be compared."""

    length: int
    vocabulary: int


@dataclass(frozen=True)
class Description:
    about: str  # one line
    content: Images | Characters | Words | Pairs
    inputs: tuple[str, ...]  # columns
    label: str | None  # column; None: what to predict is part of the text
    classes: int
    hub: str | None  # data set on the Hugging Face hub; None: it is not there, only files can be imported
    config: str | None = None
    train: str = "train"  # names of the hub's splits
    test: str | None = "test"  # None: a part of every user's samples is held out
    user: str | None = None  # column that says whose a sample is
    raw: str | None = None  # other files that are understood: "idx" or "cifar"
    partition: str = "dirichlet:0.1"  # where none is asked for


_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))

CATALOGUE: dict[str, Description] = {
    "mnist": Description(
        "Handwritten digits: 60 000 images of 28×28, ten classes.",
        Images((1, 28, 28), (0.1307,), (0.3081,)),
        inputs=("image",),
        label="label",
        classes=10,
        hub="ylecun/mnist",
        raw="idx",
    ),
    "fashion-mnist": Description(
        "Pieces of clothing: 60 000 images of 28×28, ten classes.",
        Images((1, 28, 28), (0.2860,), (0.3530,)),
        inputs=("image",),
        label="label",
        classes=10,
        hub="zalando-datasets/fashion_mnist",
        raw="idx",
    ),
    "cifar10": Description(
        "Animals and vehicles: 50 000 colour images of 32×32, ten classes.",
        Images((3, 32, 32), (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
        inputs=("img",),
        label="label",
        classes=10,
        hub="uoft-cs/cifar10",
        raw="cifar",
    ),
    "cifar100": Description(
        "50 000 colour images of 32×32, a hundred classes.",
        Images((3, 32, 32), (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
        inputs=("img",),
        label="fine_label",
        classes=100,
        hub="uoft-cs/cifar100",
        raw="cifar",
    ),
    "tiny-imagenet": Description(
        "100 000 colour images of 64×64, two hundred classes.",
        Images((3, 64, 64), (0.4802, 0.4481, 0.3975), (0.2770, 0.2691, 0.2821)),
        inputs=("image",),
        label="label",
        classes=200,
        hub="zh-plus/tiny-imagenet",
        test="valid",
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
        partition="natural",
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
    ),
    "qqp": Description(
        "Quora question pairs: do two questions mean the same? 364 000 pairs.",
        Pairs(length=30, vocabulary=19_998),
        inputs=("question1", "question2"),
        label="label",
        classes=2,
        hub="nyu-mll/glue",
        config="qqp",
        test="validation",  # the labels of the hub's test split are secret
        partition="dirichlet:0.5",
    ),
    "landmarks-users-160k": Description(
        "Landmarks by photographer: 164 172 images as 224×224, 2028 classes; one client per photographer.",
        Images((3, 224, 224), *_IMAGENET, resized=True),
        inputs=("image",),
        label="class",
        classes=2028,
        hub=None,
        user="user_id",
        partition="natural",
    ),
    "inaturalist-users-120k": Description(
        "Species by observer: 120 300 images as 224×224, 1203 classes; one client per observer.",
        Images((3, 224, 224), *_IMAGENET, resized=True),
        inputs=("image",),
        label="class",
        classes=1203,
        hub=None,
        user="user_id",
        partition="natural",
    ),
}
