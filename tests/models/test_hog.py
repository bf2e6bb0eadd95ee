"""Histograms of oriented gradients, pixel by pixel."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.func import vmap
from torch.testing import assert_close

from undrift import models
from undrift.models.hog import HOG


def by_hand(image: Tensor) -> list[float]:
    """The definition in plain loops: features [bins][rows of blocks][columns of blocks], sums of magnitudes."""
    side = len(image)

    def at(row: int, column: int) -> float:
        return float(image[min(max(row, 0), side - 1), min(max(column, 0), side - 1)])

    blocks = range(0, side - 6, 3)
    features = {}
    for top in blocks:
        for left in blocks:
            histogram = [0.0] * 9
            for row in range(top, top + 7):
                for column in range(left, left + 7):
                    across = (at(row, column + 1) - at(row, column - 1)) / 2
                    down = (at(row + 1, column) - at(row - 1, column)) / 2
                    angle = math.atan2(down, across) % (2 * math.pi)
                    histogram[min(8, int(angle / (2 * math.pi / 9)))] += math.hypot(across, down)
            for number, value in enumerate(histogram):
                features[number, top, left] = value
    return [features[number, top, left] for number in range(9) for top in blocks for left in blocks]


def test_a_random_image_by_hand() -> None:
    image = torch.rand(16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = torch.tensor(by_hand(image), dtype=torch.float64)
    assert len(expected) == 9 * 4 * 4
    assert_close(HOG()(image[None, None])[0], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("right", "down", "bin"), [(1, 0, 0), (0, 1, 2), (-1, 0, 4), (0, -1, 6), (1, -0.1, 8)])
def test_a_slope_falls_into_one_bin(right: float, down: float, bin: int) -> None:
    """Nine bins of 40°, directions with their sign: 0°, 90°, 180°, 270° and 354°."""
    rows, columns = torch.meshgrid(torch.arange(28.0), torch.arange(28.0), indexing="ij")
    features = HOG()((right * columns + down * rows)[None, None]).view(9, 8, 8)
    inside = features[:, 1:-1, 1:-1]  # at the border a slope is halved in one direction
    assert_close(inside[bin], torch.full((6, 6), 49 * math.hypot(right, down)))
    assert_close(inside.sum(0), inside[bin])


def test_a_flat_image_has_no_features() -> None:
    assert not HOG()(torch.full((2, 1, 28, 28), 0.7)).any()


def test_grey_and_colour() -> None:
    grey = torch.rand(2, 1, 16, 16, dtype=torch.float64)
    assert_close(HOG()(grey.expand(-1, 3, -1, -1)), HOG()(grey))
    green, blue = (torch.zeros(1, 3, 16, 16, dtype=torch.float64) for _ in range(2))
    green[:, 1], blue[:, 2] = grey[:1, 0], grey[1:, 0]
    mixed = 0.587 * grey[:1] + 0.114 * grey[1:]
    assert_close(HOG()(green + blue), HOG()(mixed))


def test_batches_over_clients() -> None:
    x = torch.rand(3, 2, 1, 13, 13)
    assert_close(vmap(HOG())(x), HOG()(x.flatten(0, 1)).unflatten(0, (3, 2)), rtol=0, atol=0)


def test_only_the_regression_is_trained() -> None:
    model = models.build("softmax-hog", (1, 28, 28), 10)
    assert [tuple(p.shape) for p in model.parameters()] == [(10, 576), (10,)]
    assert not list(model.buffers())
