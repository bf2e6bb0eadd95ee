"""Images as the authors' code of FedHBM prepares them: cropped and flipped by batches."""

from __future__ import annotations

import runpy
from pathlib import Path

import torch
import torch.nn.functional as F

from undrift.core.random import Key

BATCHES = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "reproduction" / "released.py"))["crop_flip_batches"]


def test_all_images_of_a_batch_are_cropped_and_flipped_alike() -> None:
    image = torch.arange(3 * 6 * 6.0).reshape(3, 6, 6) + 1
    padded = F.pad(image, (4,) * 4)
    shifted = [padded[:, row : row + 6, column : column + 6] for row in range(9) for column in range(9)]
    possible = torch.stack([each for one in shifted for each in (one, one.flip(-1))])
    seen = set()
    for step in range(40):
        batch = BATCHES(image.expand(5, -1, -1, -1), Key(0, 1, torch.tensor(0)), step)
        assert (batch == batch[0]).all()
        (found,) = (possible == batch[0]).flatten(1).all(1).nonzero()
        seen.add(int(found))
    assert len(seen) > 20
