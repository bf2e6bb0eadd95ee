"""FedBN against a plain PyTorch version, and what is evaluated."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

import undrift as ud
from laws import TRAINING, classified, mlp, seeded
from undrift.algorithms import FedAvg, FedBN
from undrift.reporting.record import TIMES

DATA = classified((6, 9, 4))
DATA[2] = (DATA[2][0], torch.tensor([0, 1, 1, 0]))  # a client that lacks a class
TEST = classified((50,))[0]
COHORTS = [[0, 1], [0, 2], [1, 2]]
SETTINGS: dict[str, Any] = {"rounds": 3, "cohort": COHORTS, "steps": 2, "batch_size": None, "lr": 0.2}


class Block(nn.Module):
    """Names that say nothing of normalisation, as in the short cut of a ResNet."""

    def __init__(self) -> None:
        super().__init__()
        self.shortcut = nn.Sequential(nn.Linear(6, 6, bias=False), nn.BatchNorm1d(6))
        self.scale = nn.LayerNorm(6)

    def forward(self, x: Tensor) -> Tensor:
        return self.scale(x + self.shortcut(x))


def net() -> nn.Module:
    return seeded(lambda: nn.Sequential(Block(), nn.Tanh(), nn.Linear(6, 3)))


def own(name: str) -> bool:
    return name.startswith("0.shortcut.1.")


def reference(server_lr: float = 1.0) -> tuple[dict[str, Tensor], dict[int, dict[str, Tensor]]]:
    """The shared part after the last round, and every client's own tensors; all in `state_dict`, buffers too."""
    shared = {k: v.clone() for k, v in net().state_dict().items()}
    kept: dict[int, dict[str, Tensor]] = {}
    for cohort in COHORTS:
        ends = []
        for client in cohort:
            local = net()
            local.load_state_dict(shared | kept.get(client, {}))
            optimiser = torch.optim.SGD(local.parameters(), lr=0.2)
            for _ in range(2):
                optimiser.zero_grad()
                F.cross_entropy(local(DATA[client][0]), DATA[client][1]).backward()
                optimiser.step()
            state = copy.deepcopy(local.state_dict())
            kept[client] = {k: v for k, v in state.items() if own(k)}
            ends.append(state)
        for k in (k for k in shared if not own(k)):
            mean = torch.stack([end[k] for end in ends]).mean(0)
            shared[k] = shared[k] + server_lr * (mean - shared[k])
    return shared, kept


@pytest.mark.parametrize("engine", ["sequential", "batched"])
@pytest.mark.parametrize("server_lr", [1.0, 0.5])
def test_every_round_is_the_papers(engine: str, server_lr: float) -> None:
    run = ud.simulate(FedBN(), net(), DATA, engine=engine, server_lr=server_lr, **SETTINGS)
    shared, kept = reference(server_lr)
    assert_close(run.parameters, {k: shared[k] for k in run.parameters}, rtol=1e-10, atol=1e-10)
    for client, tensors in kept.items():
        state = run.memory.own.gather(np.array([client]))
        found = {k: v[0] for k, v in (state["private"] | state["buffers"]).items()}
        assert_close(found, tensors, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("engine", ["sequential", "batched"])
def test_clients_are_evaluated_with_their_own_tensors(engine: str) -> None:
    run = ud.simulate(FedBN(), net(), DATA, test=TEST, engine=engine, **SETTINGS)
    shared, kept = reference()
    expected = []
    for client in range(3):
        model = net().eval()
        model.load_state_dict(shared | kept[client])
        known = torch.isin(TEST[1], DATA[client][1])
        expected.append(float((model(TEST[0][known]).argmax(1) == TEST[1][known]).double().mean()))
    np.testing.assert_allclose(run.clients["accuracy"], expected)
    assert len(set(expected)) > 1


def test_who_has_not_taken_part_uses_the_servers_model() -> None:
    run = ud.simulate(FedBN(), net(), DATA, test=TEST, **SETTINGS | {"rounds": 1, "cohort": [[1]]})
    for client in (0, 2):
        known = torch.isin(TEST[1], DATA[client][1])
        right = run.predict(TEST[0][known]).argmax(1) == TEST[1][known]
        assert run.clients["accuracy"][client] == pytest.approx(float(right.double().mean()))


@pytest.mark.parametrize(("weighting", "weights"), [("uniform", [1, 1, 1]), ("samples", [6, 9, 4])])
def test_the_history_shows_the_shared_part_with_the_mean_of_the_rest(weighting: str, weights: list[int]) -> None:
    run = ud.simulate(FedBN(), net(), DATA, test=TEST, weighting=weighting, **SETTINGS)
    states = run.memory.own.gather(np.arange(3))
    w = torch.tensor(weights).double() / sum(weights)
    floats = {k: v for k, v in (states["private"] | states["buffers"]).items() if v.is_floating_point()}
    model = net().eval()
    model.load_state_dict(
        net().state_dict() | run.parameters | {k: torch.tensordot(w, v, 1) for k, v in floats.items()}
    )
    loss = F.cross_entropy(model(TEST[0]), TEST[1])
    assert run.history["loss"].iloc[-1] == pytest.approx(loss.item(), abs=1e-10)


def grouped() -> nn.Module:
    return seeded(lambda: nn.Sequential(nn.Linear(6, 8), nn.GroupNorm(2, 8), nn.Linear(8, 3)))


@pytest.mark.parametrize("model", [mlp, grouped])
def test_without_batch_normalisation_it_is_fedavg(model: Any) -> None:
    options = TRAINING | {"weighting": "uniform"}
    fedbn, fedavg = (ud.simulate(a, model(), classified(), **options) for a in (FedBN(), FedAvg()))
    assert_close(fedbn.parameters, fedavg.parameters, rtol=0, atol=0)
    assert fedbn.history["bytes_up"].tolist() == fedavg.history["bytes_up"].tolist()


def test_one_client_trains_as_ever() -> None:
    """Only the place where batch normalisations are kept differs."""
    options = SETTINGS | {"cohort": None}
    fedbn, fedavg = (ud.simulate(a, net(), DATA[:1], **options) for a in (FedBN(), FedAvg()))
    mine = {k: v for k, v in fedbn.parameters.items() if not own(k)}
    assert_close(mine, {k: fedavg.parameters[k] for k in mine}, rtol=1e-12, atol=1e-12)


def test_evaluation_survives_resuming(tmp_path: Any) -> None:
    whole = ud.simulate(FedBN(), net(), DATA, test=TEST, **SETTINGS)
    ud.simulate(
        FedBN(),
        net(),
        DATA,
        test=TEST,
        out=tmp_path / "run",
        callbacks=[lambda row, run: row["round"] == 1],
        **SETTINGS,
    )
    again = ud.resume(tmp_path / "run", model=net(), data=DATA, test=TEST)
    assert again.clients.equals(whole.clients)
    assert again.history.drop(columns=TIMES).equals(whole.history.drop(columns=TIMES))
