"""MOON against a plain PyTorch version of its paper."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

import undrift as ud
from laws import TRAINING, classified, mlp, seeded
from undrift.algorithms import MOON, FedAvg

MU, TEMPERATURE, LR = 3.0, 0.3, 0.2
DATA = classified((6, 9, 4))
COHORTS = [[0], [0, 1], [0, 1, 2], [1, 2]]
SETTINGS: dict[str, Any] = {"rounds": 4, "cohort": COHORTS, "steps": 2, "batch_size": None, "lr": LR}


class Net(nn.Module):
    """An encoder with batch normalisation, a projection and a classifier on it."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(6, 7), nn.BatchNorm1d(7), nn.Tanh())
        self.projection = nn.Linear(7, 5)
        self.classifier = nn.Linear(5, 3)

    def represent(self, x: Tensor) -> Tensor:
        return self.projection(self.encoder(x))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.represent(x))


def net() -> Net:
    return seeded(Net)


def reference() -> dict[str, Tensor]:
    """The paper's rounds: frozen nets in evaluation mode; the last model of a newcomer is the received one."""
    server = net()
    last: dict[int, Net] = {}
    for cohort in COHORTS:
        trained, sizes = [], []
        for client in cohort:
            x, y = DATA[client]
            local, received = copy.deepcopy(server).train(), copy.deepcopy(server).eval()
            previous = last.get(client, received).eval()
            optimiser = torch.optim.SGD(local.parameters(), lr=LR)
            for _ in range(2):
                z = local.represent(x)
                with torch.no_grad():
                    z_global, z_previous = received.represent(x), previous.represent(x)
                near = torch.exp(F.cosine_similarity(z, z_global) / TEMPERATURE)
                far = torch.exp(F.cosine_similarity(z, z_previous) / TEMPERATURE)
                # The classifier on z, in the same pass: batch normalisation is updated once.
                loss = F.cross_entropy(local.classifier(z), y) - MU * torch.log(near / (near + far)).mean()
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
            last[client] = copy.deepcopy(local)
            trained.append(local.state_dict())
            sizes.append(len(x))
        weights = torch.tensor(sizes).double() / sum(sizes)
        server.load_state_dict(
            {
                k: sum(w * state[k] for w, state in zip(weights, trained, strict=True))
                if v.is_floating_point()
                else max(state[k] for state in trained)
                for k, v in server.state_dict().items()
            }
        )
    return {k: v.detach() for k, v in server.state_dict().items()}


@pytest.mark.parametrize("engine", ["sequential", "batched"])
def test_every_round_is_the_papers(engine: str) -> None:
    run = ud.simulate(MOON(MU, TEMPERATURE), net(), DATA, engine=engine, **SETTINGS)
    assert_close(run.parameters | run.buffers, reference(), rtol=1e-10, atol=1e-10, check_dtype=False)


def test_a_submodule_can_be_named() -> None:
    """The output of the projection is the input of the classifier."""
    unnamed = ud.simulate(MOON(MU), net(), DATA, **SETTINGS).parameters
    named = ud.simulate(MOON(MU, representation="projection"), net(), DATA, **SETTINGS).parameters
    earlier = ud.simulate(MOON(MU, representation="encoder.0"), net(), DATA, **SETTINGS).parameters
    assert_close(named, unnamed, rtol=0, atol=0)
    assert not torch.allclose(earlier["projection.weight"], unnamed["projection.weight"])


@pytest.mark.parametrize("engine", ["sequential", "batched"])
def test_at_their_first_participation_clients_do_as_in_fedavg(engine: str) -> None:
    options = TRAINING | {"rounds": 3, "cohort": [[0, 2], [1, 3], [4]], "engine": engine}
    moon, fedavg = (ud.simulate(a, mlp(), classified(), **options) for a in (MOON(mu=5.0), FedAvg()))
    assert_close(moon.parameters, fedavg.parameters, rtol=1e-11, atol=1e-11)
    # ℓ_con is the constant log 2.
    excess = torch.tensor((moon.history["train_loss"] - fedavg.history["train_loss"]).to_numpy())
    assert_close(excess, torch.full((3,), 5 * torch.log(torch.tensor(2.0)).item()).double())


def test_a_high_temperature_turns_it_off() -> None:
    moon, fedavg = (ud.simulate(a, mlp(), classified(), **TRAINING).parameters for a in (MOON(1.0, 1e12), FedAvg()))
    assert_close(moon, fedavg, rtol=1e-9, atol=1e-9)


class Counting(nn.Module):
    passes = 0

    def forward(self, x: Tensor) -> Tensor:
        Counting.passes += 1
        return x


def test_three_forward_passes_a_step() -> None:
    model = seeded(lambda: nn.Sequential(nn.Linear(6, 4), Counting(), nn.Linear(4, 3)))
    counts: list[int] = []
    count = [lambda row, run: counts.append(Counting.passes)]
    ud.simulate(MOON(), model, DATA[:1], rounds=2, steps=4, engine="sequential", callbacks=count)
    assert counts[1] - counts[0] == 3 * 4


@pytest.mark.parametrize("engine", ["sequential", "batched"])
def test_a_representation_of_zeros(engine: str) -> None:
    """A dead layer has no direction to compare."""
    model = seeded(lambda: nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3)))
    with torch.no_grad():
        model.get_parameter("0.bias").fill_(-1e3)
    run = ud.simulate(MOON(), model, DATA, engine=engine, **SETTINGS)
    assert all(v.isfinite().all() for v in run.parameters.values())


class Aside(nn.Module):
    """A model with a submodule that it never calls."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.unused = nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.first(x)


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (lambda: nn.Sequential(nn.Conv1d(6, 3, 1), nn.Flatten()), {}, "this model has none; give representation="),
        (net, {"representation": "projektion"}, "no submodule 'projektion'; did you mean 'projection'?"),
        (Aside, {}, "the input of 'unused' is no tensor with one row per sample"),
    ],
)
def test_models_without_a_representation(model: Any, options: dict[str, Any], message: str) -> None:
    data = [(x.unsqueeze(2) if "none" in message else x, y) for x, y in DATA]
    with pytest.raises(ValueError, match=message.replace("?", r"\?")):
        ud.simulate(MOON(**options), seeded(model), data, **SETTINGS)


def test_refusals() -> None:
    with pytest.raises(ValueError, match="temperature must be greater than 0, got 0"):
        MOON(temperature=0)
    with pytest.raises(ValueError, match="mu must be at least 0, got -1"):
        MOON(mu=-1)
    with pytest.raises(TypeError, match="representation must be None or the name of a submodule, got 3"):
        MOON(representation=3)  # type: ignore[arg-type]
