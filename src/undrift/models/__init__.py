"""Models by name. A factory takes the shape of a sample and the number of classes.

A new model is a file here and an entry of `_FACTORIES`; the first line of its docstring is its description in lists.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from undrift.core import check
from undrift.models.char_lstm import char_lstm
from undrift.models.cnn import cnn
from undrift.models.head import with_head
from undrift.models.hog import softmax_hog
from undrift.models.lenet import cnn5, cnn5_bn, lenet, lenet5, lenet_bn, lenet_hsu
from undrift.models.mlp import mlp
from undrift.models.mobilenet import mobilenetv2
from undrift.models.pair_lstm import pair_lstm
from undrift.models.resnet import resnet18_bn, resnet18_gn, resnet18_imagenet, resnet20_gn
from undrift.models.softmax import softmax
from undrift.models.vgg import vgg11_bn, vgg19, vgg19_bn
from undrift.models.vit import vit_b32
from undrift.models.word_lstm import word_lstm

Factory = Callable[[tuple[int, ...], int], nn.Module]
_FACTORIES: dict[str, Factory] = {
    "softmax": softmax,
    "softmax-hog": softmax_hog,
    "mlp": mlp,
    "cnn": cnn,
    "lenet": lenet,
    "lenet-bn": lenet_bn,
    "lenet5": lenet5,
    "lenet-hsu": lenet_hsu,
    "cnn5": cnn5,
    "cnn5-bn": cnn5_bn,
    "vgg11-bn": vgg11_bn,
    "vgg19": vgg19,
    "vgg19-bn": vgg19_bn,
    "resnet18-gn": resnet18_gn,
    "resnet18-bn": resnet18_bn,
    "resnet18-imagenet": resnet18_imagenet,
    "resnet20-gn": resnet20_gn,
    "mobilenetv2": mobilenetv2,
    "vit-b32": vit_b32,
    "char-lstm": char_lstm,
    "word-lstm": word_lstm,
    "pair-lstm": pair_lstm,
}

FEATURES = {"softmax-hog": "hog"}  # features that are computed before training for a model

_OWN: dict[str, Callable[[tuple[int, ...], int | None], nn.Module]] = {}  # of users, as `add` was given them

__all__ = ["FEATURES", "add", "available", "build", "with_head"]


def available() -> dict[str, str]:
    """Names and one line about each: what it is, and which paper uses it."""
    return {name: (factory.__doc__ or "").strip().splitlines()[0] for name, factory in _FACTORIES.items()}


def build(name: str, shape: tuple[int, ...], classes: int | None, seed: int = 0) -> nn.Module:
    """A named model for samples of this shape; its initial weights depend on the seed only."""
    if name not in _FACTORIES and name not in _OWN:
        raise check.unknown("model", name, _FACTORIES, "-m")
    if name in _OWN:
        return _seeded(lambda: _OWN[name](tuple(shape), classes), seed)
    if classes is None:
        raise ValueError(
            f"model {name!r} needs to know the number of classes: targets that are class numbers, "
            "or a FederatedData with classes=..."
        )
    check.integer("classes", classes, 1)
    return _seeded(lambda: _FACTORIES[name](tuple(shape), classes), seed)


def add(name: str, factory: Callable[[tuple[int, ...], int | None], nn.Module]) -> None:
    """Make a user's own model known by a name, in this process; it is told None classes where there are none."""
    _OWN[name] = factory


def _seeded(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # only the CPU's, which is restored afterwards
        return make()
