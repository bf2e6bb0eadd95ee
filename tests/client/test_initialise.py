"""Another draw of a model: what its own initialiser makes of a client's random numbers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.func import vmap

from undrift import models
from undrift.client.learner import Learner
from undrift.core.random import Key
from undrift.models.vit import VisionTransformer


def small_vit() -> nn.Module:
    return VisionTransformer((1, 4, 4), 3, patch=2, depth=1, width=8, heads=2, hidden=16)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp": lambda: models.build("mlp", (6,), 3),
    "lenet": lambda: models.build("lenet5", (1, 28, 28), 3),
    "resnet": lambda: models.build("resnet20-gn", (3, 32, 32), 3),
    "lstm": lambda: models.build("char-lstm", (5,), 7),
    "vit": small_vit,
    "attention": lambda: nn.TransformerEncoderLayer(8, 2, 16),
    "torch lstm": lambda: nn.LSTM(3, 4),
}


@pytest.mark.parametrize("name", MODELS)
def test_draws_are_of_the_same_kind_and_the_same_under_vmap(name: str) -> None:
    """Constants are those of the model; what is random has its spread, and other numbers for every client."""
    learner = Learner(MODELS[name]())
    before = {k: v.clone() for k, v in learner.parameters.items()}
    draw = learner.initialiser()
    one = [draw(Key(0, 0, torch.tensor(client))) for client in (0, 1)]
    several = vmap(lambda client: draw(Key(0, 0, client)))(torch.arange(2))
    for key, value in learner.parameters.items():
        assert torch.equal(value, before[key]), "the model itself is left alone"
        torch.testing.assert_close(several[key], torch.stack([part[key] for part in one]), rtol=1e-6, atol=1e-7)
        if (value == value.flatten()[0]).all():
            assert torch.equal(one[0][key], value)
        else:
            assert not torch.equal(one[0][key], one[1][key])
            assert one[0][key].dtype == value.dtype
            assert 0.6 < one[0][key].std() / value.std() < 1.6 or value.numel() < 60
            assert one[0][key].abs().max() < 2 * value.abs().max()


def test_another_seed_draws_another_model_and_the_caller_s_generator_is_left_alone() -> None:
    draw, state = Learner(nn.Linear(3, 2)).initialiser(), torch.get_rng_state()
    mine, again, other = (draw(Key(seed, 0, torch.tensor(4)))["weight"] for seed in (0, 0, 1))
    assert torch.equal(mine, again)
    assert not torch.equal(mine, other)
    assert torch.equal(torch.get_rng_state(), state)


def test_what_has_no_initialiser_is_named() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)
            self.scale = nn.Parameter(torch.ones(2))

    with pytest.raises(ValueError, match=r"no reset_parameters\(\) of the model Own sets its parameter 'scale'"):
        Learner(Own()).initialiser()
