"""What models see: bytes scaled, augmented, normalised; positions that are not predicted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import undrift as ud
from undrift.client.evaluate import Weights, evaluate
from undrift.client.learner import Learner, cross_entropy
from undrift.core.random import Key
from undrift.data.augment import crop, crop_flip
from undrift.data.text import IGNORED

MEAN, STD = (0.2, 0.5, 0.7), (0.25, 0.5, 0.3)
RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (48, 3, 8, 8), dtype=np.uint8)
LABELS = RNG.integers(0, 4, 48)
PARTS = np.split(np.arange(48), [10, 22, 40])


def federation(normalise: Any = (MEAN, STD)) -> ud.FederatedData:
    return ud.FederatedData(IMAGES, LABELS, PARTS, (IMAGES[:7], LABELS[:7]), normalise=normalise)


def by_hand(images: Any) -> Tensor:
    """The recipe of torchvision: ToTensor, then Normalize."""
    x = torch.as_tensor(images).double() / 255
    return (x - torch.tensor(MEAN).double()[:, None, None]) / torch.tensor(STD).double()[:, None, None]


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 4)).double()


@pytest.mark.parametrize("engine", ["sequential", "batched"])
def test_training_and_evaluation_see_normalised_images(engine: str) -> None:
    """The same as images normalised beforehand."""
    x = by_hand(IMAGES)
    options: dict[str, Any] = {"rounds": 3, "batch_size": 5, "lr": 0.1, "engine": engine}
    before = ud.simulate("fedavg", model(), ud.FederatedData(x, LABELS, PARTS, (x[:7], LABELS[:7])), **options)
    during = ud.simulate("fedavg", model(), federation(), **options)
    for name, value in before.parameters.items():
        torch.testing.assert_close(during.parameters[name], value)
    assert during.history["loss"].tolist() == pytest.approx(before.history["loss"].tolist())


def test_full_passes_see_normalised_images() -> None:
    x = by_hand(IMAGES)
    options: dict[str, Any] = {"rounds": 2, "batch_size": None, "lr": 0.1}
    before = ud.simulate("mimesvrg", model(), ud.FederatedData(x, LABELS, PARTS), **options)
    during = ud.simulate("mimesvrg", model(), federation(), **options)
    torch.testing.assert_close(during.parameters["1.weight"], before.parameters["1.weight"])


def test_crops_pad_raw_images() -> None:
    """What a crop adds is black, which after normalisation is −mean/std."""
    seen: list[Tensor] = []

    class Watcher(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(192, 4).double()

        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                seen.append(x.detach())
            out: Tensor = self.linear(x.flatten(1))
            return out

    white = np.full((1, 3, 8, 8), 255, dtype=np.uint8)
    data = ud.FederatedData(white, [0], [[0]], normalise=(MEAN, STD))
    run = ud.simulate("fedavg", Watcher(), data, rounds=8, augment="crop", engine="sequential")
    assert run.rounds == 8
    black, full = by_hand(np.zeros((1, 3, 1, 1))), by_hand(np.full((1, 3, 1, 1), 255))
    steps = seen[-8:]
    for x in steps:
        assert bool((torch.isclose(x, black) | torch.isclose(x, full)).all())
    assert any(bool(torch.isclose(x, black).any()) for x in steps)


@pytest.mark.parametrize("augment", ["crop", "flip", "crop-flip"])
def test_engines_augment_alike(augment: str) -> None:
    runs = [
        ud.simulate("scaffold", model(), federation(), rounds=3, batch_size=6, lr=0.1, augment=augment, engine=engine)
        for engine in ("sequential", "batched")
    ]
    plain = ud.simulate("scaffold", model(), federation(), rounds=3, batch_size=6, lr=0.1)
    first, second = (run.parameters["1.weight"] for run in runs)
    torch.testing.assert_close(first, second)
    assert not torch.allclose(first, plain.parameters["1.weight"])


def test_a_crop_is_a_shifted_copy() -> None:
    x = torch.from_numpy(IMAGES[:20]).double()
    padded = F.pad(x, (4, 4, 4, 4))
    found = set()
    for image, cropped in zip(padded, crop(x, Key(0, 1, torch.tensor(3)), 0), strict=True):
        places = [
            (top, left)
            for top in range(9)
            for left in range(9)
            if torch.equal(image[:, top : top + 8, left : left + 8], cropped)
        ]
        assert len(places) == 1
        found.add(places[0])
    assert len(found) > 10  # every image has its own place
    assert not torch.equal(crop_flip(x, Key(0, 1, torch.tensor(3)), 0), crop_flip(x, Key(0, 2, torch.tensor(3)), 0))


# Positions


def test_padding_is_not_predicted() -> None:
    """The mean over the two real positions of the first sentence, over all three of the second."""
    output = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0))
    target = torch.tensor([[1, 4, IGNORED], [0, 2, 3]])
    each = -output.log_softmax(-1)
    expected = [(each[0, 0, 1] + each[0, 1, 4]) / 2, (each[1, 0, 0] + each[1, 1, 2] + each[1, 2, 3]) / 3]
    torch.testing.assert_close(cross_entropy(output, target), torch.stack(expected))
    assert float(cross_entropy(output, torch.full((2, 3), IGNORED)).sum()) == 0


class Fixed(nn.Module):
    """Says word 1 everywhere, more or less."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.Parameter(torch.tensor([0.0, 2.0, 1.0]))

    def forward(self, x: Tensor) -> Tensor:
        assert x.dtype is torch.int64
        return self.scores.expand(*x.shape, 3)


def test_accuracy_counts_real_positions() -> None:
    y = torch.tensor([[1, 1, IGNORED, IGNORED], [2, 1, 0, 1]], dtype=torch.int16)
    learner = Learner(Fixed())
    test = torch.zeros(2, 4, dtype=torch.int8), y
    figures = evaluate(learner, Weights(learner.parameters, None), test)
    assert figures["accuracy"] == 4 / 6


def test_small_tokens_train_as_large_ones() -> None:
    tokens = RNG.integers(0, 3, (12, 5))
    y = np.where(RNG.random((12, 5)) < 0.3, IGNORED, tokens)
    y[:, 0] = 1
    runs = [
        ud.simulate("fedavg", Fixed(), ud.FederatedData(tokens.astype(t), y.astype(t), PARTS_12, classes=3), rounds=2)
        for t in (np.int64, np.int16, np.int8)
    ]
    for run in runs[1:]:
        assert torch.equal(run.parameters["scores"], runs[0].parameters["scores"])


PARTS_12 = np.split(np.arange(12), 3)


def test_labels_outside_are_still_refused() -> None:
    y = np.full((12, 5), IGNORED)
    y[0, 0] = -1
    with pytest.raises(ValueError, match=r"labels must lie in 0\.\.2 for a model with 3 outputs, got -1"):
        ud.simulate("fedavg", Fixed(), ud.FederatedData(np.zeros((12, 5), np.int16), y, PARTS_12, classes=3))
