"""Samples in the shape of data sets that are not here."""

from __future__ import annotations

import pytest
import torch

from undrift.data.catalogue import CATALOGUE
from undrift.data.outline import random_samples
from undrift.models import build


@pytest.mark.parametrize("name", CATALOGUE)
def test_models_take_them(name: str) -> None:
    x, y = random_samples(name, 2)
    built = build(str(CATALOGUE[name].defaults["model"]), tuple(x.shape[1:]), CATALOGUE[name].classes)
    built.eval()
    with torch.no_grad():
        assert torch.isfinite(torch.nn.functional.cross_entropy(built(x).flatten(0, -2), y.flatten()))


def test_features_take_the_place_of_images() -> None:
    assert random_samples("mnist", 3, "hog")[0].shape == (3, 576)
