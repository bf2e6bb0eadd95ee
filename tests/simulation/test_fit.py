"""What a model, a loss and an augmentation may be, found out before the first round."""

from __future__ import annotations

import logging
import random
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import undrift as ud

ENGINES = ("sequential", "batched")


def data() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [(torch.randn(n, 6, generator=generator), torch.randint(3, (n,), generator=generator)) for n in (5, 4, 7)]


def simulate(model: nn.Module, engine: str = "sequential", **options: Any) -> ud.Run:
    given: dict[str, Any] = {"data": data(), "rounds": 2, "lr": 0.1, "batch_size": 4, "device": "cpu"} | options
    return ud.simulate("fedavg", model, engine=engine, **given)


def losses(output: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(output, target, reduction="none")


class Centres(nn.Module):
    """The distance to a centre of each class, which other libraries would train."""

    def __init__(self) -> None:
        super().__init__()
        self.centres = nn.Parameter(torch.zeros(3, 3))

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        return (output - self.centres[target]).square().sum(1)


class Normalised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3, affine=False)

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        return losses(self.norm(output), target)


def test_a_loss_with_parameters_would_not_be_trained() -> None:
    with pytest.raises(ValueError, match="the loss Centres has a parameter of its own, 'centres'"):
        simulate(nn.Linear(6, 3), loss=Centres())
    for engine in ENGINES:
        assert simulate(nn.Linear(6, 3), engine, loss=Centres().requires_grad_(False)).rounds == 2


def test_a_loss_with_statistics_is_refused_and_left_as_it_was() -> None:
    loss = Normalised()
    with pytest.raises(ValueError, match=r"changes its buffer 'norm.running_mean'"):
        simulate(nn.Linear(6, 3), loss=loss)
    assert torch.equal(loss.norm.running_mean, torch.zeros(3))  # type: ignore[arg-type]
    assert simulate(nn.Linear(6, 3), loss=loss.eval()).rounds == 2


def test_an_augmentation_keeps_the_type() -> None:
    with pytest.raises(ValueError, match=r"augment must keep the type of samples, torch.float32, got torch.int64"):
        simulate(nn.Linear(6, 3), augment=lambda x, key, step: x.long())


class Doubling(nn.Linear):
    """Changes its input."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.mul_(2))


def test_a_model_that_writes_to_its_inputs_does_not_change_the_data() -> None:
    federation = ud.FederatedData.from_clients(data())
    test, before = data()[0], federation.x.clone()
    torch.manual_seed(0)
    model, plain = Doubling(6, 3), nn.Linear(6, 3)
    plain.load_state_dict(model.state_dict())
    with torch.no_grad():
        plain.weight *= 2
    for engine in ENGINES:
        run = simulate(model, engine, data=federation, test=test, lr=1e-12)
        assert torch.equal(federation.x, before)
        assert torch.equal(test[0], data()[0][0])
        expected = simulate(plain, engine, test=test, lr=1e-12)
        torch.testing.assert_close(torch.tensor(run.history.loss), torch.tensor(expected.history.loss))


class Complex(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return torch.view_as_complex(super().forward(x).view(len(x), 3, 2))


def test_complex_outputs_need_a_loss() -> None:
    with pytest.raises(ValueError, match=r"cross-entropy needs real outputs, got torch.complex64"):
        simulate(Complex(6, 6))
    for engine in ENGINES:
        run = simulate(Complex(6, 6), engine, test=data()[0], loss=lambda output, target: losses(output.abs(), target))
        assert run.rounds == 2


class Counting(nn.Linear):
    """Keeps something between calls that is no buffer."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x) * self.calls


def test_what_is_kept_between_calls_is_refused() -> None:
    with pytest.raises(ValueError, match=r"the model gives other numbers when it is called again"):
        simulate(Counting(6, 3))


class Later(nn.Linear):
    """Draws for some batches only: those of a single sample."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (random.random() if len(x) == 1 else 1)


def test_draws_of_later_calls_are_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "undrift"):
        simulate(Later(6, 3))
    assert "Python's global generator (random) was used during the run" in caplog.text


class Partly(nn.Module):
    """Some parameters have no influence, which is fine."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused, self.detached = nn.Linear(6, 3), nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.used(x) + self.detached(x).detach())


@pytest.mark.parametrize("engine", ENGINES)
def test_parameters_without_influence_stay(engine: str) -> None:
    model = Partly()
    parameters = simulate(model, engine).parameters
    for name, value in model.named_parameters():
        assert torch.equal(parameters[name], value) == (not name.startswith("used"))


class Noisy(nn.Linear):
    def __init__(self, rng: Any) -> None:
        super().__init__(6, 3)
        self.inner = nn.Identity()
        self.inner.rng = rng

    def forward(self, x: Tensor) -> Tensor:
        rng: Any = self.inner.rng
        if isinstance(rng, torch.Generator):
            return super().forward(x) + torch.rand(3, generator=rng)
        return super().forward(x) * float(rng.random())


@pytest.mark.parametrize(
    "rng", [np.random.default_rng(0), random.Random(0), torch.Generator(), np.random.RandomState(0)]
)
def test_a_generator_of_a_submodule_is_named(rng: Any) -> None:
    with pytest.raises(ValueError, match=r"draws random numbers from .* 'inner\.rng'"):
        simulate(Noisy(rng))


class Seeding(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return super().forward(x) + torch.rand(3)


def test_seeding_the_default_generator_is_refused() -> None:
    """The fixed numbers that are expected would be replaced."""
    with pytest.raises(ValueError, match="give the function that draws them generator="):
        simulate(Seeding(6, 3))


class Mapped(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        dropped: Tensor = torch.vmap(lambda sample: F.dropout(sample, 0.5), randomness="different")(x)
        return super().forward(dropped)


def test_draws_under_a_vmap_of_the_model_are_refused() -> None:
    with pytest.raises(ValueError, match=r"under torch.vmap would be the same"):
        simulate(Mapped(6, 3))
