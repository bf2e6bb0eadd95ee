"""No algorithm fails in silence: instability is said before round 1, and losses that explode are flagged."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import undrift as ud
from records import record
from undrift.algorithms import FSVRG, GHB, FedAvg, FedHBM, LocalGHB
from undrift.methods.setting import Plan
from undrift.reporting.headline import headline
from undrift.reporting.table import columns

CLIENTS = [(torch.linspace(0, 1, 8).view(4, 2) + i, torch.full((4,), float(i))) for i in range(3)]


def squared(output: Tensor, target: Tensor) -> Tensor:
    return (output[:, 0] - target).square()


def simulate(algorithm: str | ud.Algorithm, **given: Any) -> ud.Run:
    torch.manual_seed(0)
    settings: dict[str, Any] = {"rounds": 3, "loss": squared, "engine": "sequential", "device": "cpu"}
    return ud.simulate(algorithm, nn.Linear(2, 1), CLIENTS, **settings | given)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


@pytest.mark.parametrize(
    ("beta", "participation", "steps", "unstable"),
    [
        (1.0, 1.0, 2, True),  # 1.5² − 1 = 1.25
        (1.0, 1.0, 1, False),  # 2 − 1
        (0.8, 1.0, 2, False),  # 1.4² − 1 = 0.96
        (0.8, 1.0, 50, True),  # e^0.8 − 1 = 1.2
        (1.0, 0.2, 50, False),
    ],
)
def test_fedhbm_knows_when_it_is_unstable(beta: float, participation: float, steps: int, unstable: bool) -> None:
    assert bool(FedHBM(beta).warnings(Plan(participation, steps))) == unstable
    assert not FedAvg().warnings(Plan(participation, steps))


def test_the_beta_that_is_advised_is_stable() -> None:
    for steps in (2, 3, 17):
        (text,) = FedHBM(1.0).warnings(Plan(1.0, steps))
        advised = float(text.split("; beta=")[1].split(",")[0])
        assert not FedHBM(advised).warnings(Plan(1.0, steps))
        assert FedHBM(advised + 0.02).warnings(Plan(1.0, steps))


@pytest.mark.parametrize(
    ("participation", "steps", "beta"),
    [(1.0, 1, 0.9), (1.0, 2, 0.75), (1.0, 10_000, 0.64), (0.8, 10_000, 0.8), (0.6, 10_000, 1.0), (0.1, 8, 1.0)],
)
def test_a_default_beta_is_stable_and_the_largest(participation: float, steps: int, beta: float) -> None:
    """(1 + βC/J)^J − 1 ≤ 0.9, in hundredths, and never over the paper's 1; a notice says what is not 1."""
    plan = Plan(participation, steps)
    said = FedHBM().notices(plan)
    assert (float(said[0].split("=")[1].split()[0]) if said else 1.0) == beta
    assert (1 + beta * participation / steps) ** steps - 1 <= 0.9 + 1e-12
    assert beta == 1 or (1 + (beta + 0.01) * participation / steps) ** steps - 1 > 0.9
    assert not FedHBM().warnings(plan)
    assert not FedHBM(beta=beta).notices(plan), "what was given needs no notice"


@pytest.mark.parametrize("kind", [LocalGHB, lambda beta: FedHBM(beta, anchor="step")], ids=["localghb", "step"])
def test_momentum_over_rounds_is_stable_below_one(kind: Any) -> None:
    for participation, beta, unstable in ((0.5, 1.0, False), (0.5, 1.01, True), (1.0, 0.99, False), (1.0, 1.0, True)):
        assert bool(kind(beta).warnings(Plan(participation, 4))) == unstable
        assert bool(GHB(beta, tau=1 if participation == 1 else 2).warnings(Plan(1.0, 4))) == unstable
    assert not LocalGHB().warnings(Plan(1.0, 4))
    assert not FedHBM(anchor="step").warnings(Plan(1.0, 4))
    assert "beta=0.9 instead of the paper's 1" in FedHBM(anchor="step").notices(Plan(1.0, 4))[0]


@pytest.mark.parametrize(
    ("unstable", "stable"),
    [(FedHBM(beta=0.9), FedHBM()), (LocalGHB(beta=1.2), LocalGHB()), (GHB(beta=1.2, tau=1), GHB(tau=1))],
    ids=repr,
)
def test_the_limits_are_those_of_paths(unstable: ud.Algorithm, stable: ud.Algorithm) -> None:
    """At a small rate, what clients part by in the first round is all there is to grow."""
    settings: dict[str, Any] = {"lr": 1e-4, "rounds": 60, "steps": 4, "batch_size": None}
    assert simulate(unstable, **settings).record.exploded
    assert not simulate(stable, **settings).record.exploded


def test_a_default_beta_is_said_before_the_first_round(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    given: dict[str, Any] = {"batch_size": 2, "lr": 1e-3}
    run = simulate("fedhbm", **given)
    assert (
        "FedHBM: beta=0.75 instead of the paper's 1, which is unstable with 100% of the clients in a round and 2 local "
        "steps" in [record.getMessage() for record in caplog.records]
    )
    same = simulate("fedhbm(beta=0.75)", **given)
    assert all(torch.equal(value, same.parameters[name]) for name, value in run.parameters.items())


def test_it_is_said_before_the_first_round(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[int] = []
    simulate("fedhbm(beta=1.0)", batch_size=2, lr=1e-3, callbacks=[lambda row, run: seen.append(len(warnings(caplog)))])
    assert seen[0] == 1
    assert warnings(caplog) == [
        "FedHBM(beta=1.0): beta=1 is unstable with 100% of the clients in a round: from one participation to the next, "
        "a client's own drift is multiplied by 1.2; beta=0.82, or fewer clients in a round, keep that below 1"
    ]
    caplog.clear()
    torch.manual_seed(0)
    given: dict[str, Any] = {"loss": squared, "rounds": 1, "batch_size": 2, "lr": 1e-3}
    ud.compare(["fedavg", "fedhbm(beta=1.0)"], nn.Linear(2, 1), CLIENTS, seeds=3, **given)
    assert len(warnings(caplog)) == 1, "once, for all seeds"


def test_a_loss_that_explodes_is_said_once_and_flagged(caplog: pytest.LogCaptureFixture) -> None:
    run = simulate("fedavg", lr=0.5, rounds=6)
    losses = run.history.train_loss
    first = int(run.history["round"][losses > 100 * losses[0]].iloc[0])
    (text,) = warnings(caplog)
    assert text.startswith(f"FedAvg, seed 0: in round {first} the training loss is ")
    assert text.endswith("over 100 times that of the first round; try lr=0.2 instead of 0.5, or clip=1")
    assert run.record.exploded
    assert not run.history.diverged.any()
    assert not simulate("fedavg", lr=0.01).record.exploded


def test_divergence_says_what_to_try(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ud.DivergenceError, match=r"; try lr=0\.3 instead of 1, or clip=1$"):
        simulate("fedavg", lr=1.0, rounds=100)
    with pytest.raises(ud.DivergenceError, match=r"or clip=3e\+17 instead of 1e\+18; beta=1 is unstable with 100%"):
        simulate("fedhbm(beta=1.0)", lr=1.0, rounds=200, clip=1e18, batch_size=2)


def test_a_comparison_says_what_diverged(caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    ud.compare(["fedavg(lr=1.0)"], nn.Linear(2, 1), CLIENTS, loss=squared, rounds=100)
    assert any(text.startswith("FedAvg(lr=1.0), seed 0: diverged in round ") for text in warnings(caplog))


def test_a_run_whose_loss_exploded_is_never_the_best() -> None:
    seeds = [record("FedAvg", [0.5, 0.6 + 0.01 * seed], seed=seed) for seed in range(2)]
    lucky = [record("Lucky", [0.5, 0.9 + 0.01 * seed], seed=seed) for seed in range(2)]
    accuracy = next(c for c in columns([*seeds, *lucky]) if c.heading == "Final accuracy")
    assert accuracy.best == {1}
    for each in lucky:
        each.history["train_loss"] = [1.0, 1000.0]
    method, *others = columns([*seeds, *lucky])
    assert method.cells == ["FedAvg", "Lucky (2 of 2 exploded)"]
    assert not any(1 in each.best for each in others)
    assert "The training loss of Lucky exploded." in headline([*seeds, *lucky])
    assert "Lucky ended" not in headline([*seeds, *lucky])


@pytest.mark.parametrize(("lr", "steps", "short"), [(0.1, 2, True), (3.6, 2, False), (0.1, 36, False)])
def test_fsvrg_knows_when_its_steps_are_tiny(lr: float, steps: int, short: bool) -> None:
    """lr/n_i: 0.1 is 0.003 for a client of 36 samples, which takes two steps, or one for each of them."""
    plan = Plan(participation=1.0, steps=steps, samples=36, lr=lr)
    said = FSVRG().warnings(plan)
    assert bool(said) == short
    assert not short or "lr=3.6 makes each a step of 0.1" in said[0]
    assert FSVRG(scale_step=False).warnings(plan) == ()
