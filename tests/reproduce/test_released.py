"""What the authors' public code does beside their algorithms: images of FedHBM, model and settings of FedPMVR."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import undrift as ud
from undrift.core.random import Key

HOME = Path(__file__).parents[2] / "docs" / "reproduction"
FEDHBM = runpy.run_path(str(HOME / "released.py"))
FEDPMVR = runpy.run_path(str(HOME / "released_fedpmvr.py"))


def test_all_images_of_a_batch_are_cropped_and_flipped_alike() -> None:
    image = torch.arange(3 * 6 * 6.0).reshape(3, 6, 6) + 1
    padded = F.pad(image, (4,) * 4)
    shifted = [padded[:, row : row + 6, column : column + 6] for row in range(9) for column in range(9)]
    possible = torch.stack([each for one in shifted for each in (one, one.flip(-1))])
    seen = set()
    for step in range(40):
        batch = FEDHBM["crop_flip_batches"](image.expand(5, -1, -1, -1), Key(0, 1, torch.tensor(0)), step)
        assert (batch == batch[0]).all()
        (found,) = (possible == batch[0]).flatten(1).all(1).nonzero()
        seen.add(int(found))
    assert len(seen) > 20


def test_the_model_of_the_public_code_of_fedpmvr() -> None:
    model = FEDPMVR["model"]("lenet", 0)
    layers = [part for part in model.modules() if isinstance(part, nn.Conv2d | nn.Linear)]
    assert [tuple(part.weight.shape[:2]) for part in layers] == [(6, 1), (6, 6), (120, 6), (84, 1920), (10, 84)]
    assert model(torch.rand(3, 1, 28, 28)).shape == (3, 10)
    for part in layers:
        assert part.bias is not None
        assert not part.bias.any()
        area = part.weight[0, 0].numel() if part.weight.dim() == 4 else 1
        bound = (6 / (area * (part.weight.shape[0] + part.weight.shape[1]))) ** 0.5
        assert 0.8 * bound < part.weight.abs().max() <= bound


def test_it_is_trained_as_that_code_does(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.rand(80, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    y = torch.arange(80) % 10
    data = ud.FederatedData(x, y, [range(30), range(30, 80)], (x[:20], y[:20]), normalise=((0.1,), (0.3,)))
    monkeypatch.setattr(ud.data, "load", lambda *_, **__: data)
    rows = FEDPMVR["measure"]("mnist", 0, 2)
    assert list(rows) == ["round", "accuracy", "train_loss", "data", "seed"]
    assert list(rows["round"]) == [1, 2]
    assert rows.accuracy.notna().all()
    assert data.normalise is None  # pixels between 0 and 1, as there


@pytest.mark.parametrize(("images", "their_scale"), [("as they are", False), ("batches, their scale", True)])
def test_fedhbm_is_trained_with_the_images_of_its_public_code(
    images: str, their_scale: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.rand(300, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    y = torch.arange(300) % 10
    parts = [range(5 * client, 5 * client + 5) for client in range(20)]
    data = ud.FederatedData(x, y, parts, (x[:20], y[:20]), normalise=((0.5,) * 3, (0.25,) * 3))
    monkeypatch.setattr(ud.data, "load", lambda *_, **__: data)
    rows = FEDHBM["measure"](images, "fedhbm(beta=1.0)", 0.0004, 0, 1, "cpu")
    assert rows[["round", "images", "algorithm", "weight_decay", "seed"]].to_numpy().tolist() == [
        [1, images, "fedhbm(beta=1.0)", 0.0004, 0]
    ]
    assert rows.accuracy.notna().all()
    assert (data.normalise == FEDHBM["THEIR_SCALE"]) is their_scale
