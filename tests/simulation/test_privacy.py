"""Client-level differential privacy: clipped updates, noise on the mean, and what it is worth."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import undrift as ud
from laws import SHORT, classified, mlp
from undrift.core import tree
from undrift.core.tree import Tree
from undrift.methods import private
from undrift.methods.averaging import Averaging
from undrift.methods.codec import Coded
from undrift.methods.codecs import Half
from undrift.methods.private import Privacy, Private, deployed, keyed_noise, secure_noise
from undrift.protocol import Cohort
from undrift.simulation.accounting import epsilon

pytestmark = pytest.mark.usefixtures("networks_are_tried_once")


def run(**options: Any) -> ud.Run:
    return ud.simulate("fedavg", mlp(), classified(), **SHORT | {"privacy": Privacy(clip=0.1)} | options)


def cohort(clients: int, round: int = 1) -> Cohort:
    weights = torch.full((clients,), 1 / clients, dtype=torch.float64)
    return Cohort(torch.arange(clients), weights, torch.ones_like(weights), population=clients, round=round)


# What it is worth


def test_sampling_without_replacement() -> None:
    """Ten of a hundred clients, 100 rounds: counted as if each took part by a coin of its own, it would be 7.9."""
    assert epsilon(Privacy(noise=1.0, delta=1e-5), 10, 100, 100) == pytest.approx(14.1, abs=0.05)


def test_everyone_is_the_gaussian_mechanism() -> None:
    """RDP of T rounds at order α is T α / (2 σ²); the bound on ε at the best order."""
    rounds, sigma, delta = 20, 4.0, 1e-5
    orders = np.linspace(1.01, 100, 5000)
    bounds = rounds * orders / (2 * sigma**2) + np.log1p(-1 / orders) - np.log(delta * orders) / (orders - 1)
    found = epsilon(Privacy(noise=sigma, delta=delta), 50, 50, rounds)
    assert found == pytest.approx(bounds.min(), rel=0.02)
    assert epsilon(Privacy(noise=sigma, delta=delta), None, 50, rounds) == found  # cohorts that are given hide nobody


def test_more_noise_fewer_clients_and_fewer_rounds_spend_less() -> None:
    base = epsilon(Privacy(), 10, 100, 20)
    assert epsilon(Privacy(noise=2.0), 10, 100, 20) < base
    assert epsilon(Privacy(), 5, 100, 20) < base
    assert epsilon(Privacy(), 10, 100, 10) < base
    assert epsilon(Privacy(delta=1e-3), 10, 100, 20) < base
    assert epsilon(Privacy(clip=7.0), 10, 100, 20) == base


# Cut and noise


def test_updates_are_cut_as_a_whole() -> None:
    update = {"a": torch.tensor([3.0]), "b": torch.tensor([0.0, 4.0])}
    assert_close(Privacy(clip=1.0).clipped(update), {"a": torch.tensor([0.6]), "b": torch.tensor([0.0, 0.8])})
    assert_close(Privacy(clip=9.0).clipped(update), update)
    assert_close(Privacy().clipped(tree.zeros(update)), tree.zeros(update))


@pytest.mark.parametrize("source", [keyed_noise(3), secure_noise])
def test_noise_is_standard_normal(source: private.Noise) -> None:
    drawn = source(
        {"a": torch.zeros(100, 100), "b": torch.zeros(3, dtype=torch.float64), "c": torch.zeros(())}, cohort(2)
    )
    assert drawn["a"].dtype is torch.float32
    assert drawn["b"].dtype is torch.float64
    assert drawn["c"].shape == ()
    values = drawn["a"].double().flatten()
    assert abs(float(values.mean())) < 0.05
    assert float(values.std()) == pytest.approx(1, abs=0.04)
    assert float((values.abs() < 1).double().mean()) == pytest.approx(0.6827, abs=0.03)


def test_keyed_noise_depends_on_seed_and_round_and_secure_noise_never_repeats() -> None:
    like = {"a": torch.zeros(5), "b": torch.zeros(5)}

    def drawn(seed: int, round: int) -> Tree:
        return keyed_noise(seed)(like, cohort(2, round))

    assert_close(drawn(0, 1), drawn(0, 1), rtol=0, atol=0)
    assert not torch.equal(drawn(0, 1)["a"], drawn(0, 1)["b"])
    assert not torch.equal(drawn(0, 1)["a"], drawn(1, 1)["a"])
    assert not torch.equal(drawn(0, 1)["a"], drawn(0, 2)["a"])
    assert not torch.equal(secure_noise(like, cohort(2))["a"], secure_noise(like, cohort(2))["a"])


def test_the_step_is_the_mean_of_cut_updates_and_noise() -> None:
    plain = run(privacy=None, rounds=1, weighting="uniform", cohort=None)
    wide = run(privacy=Privacy(clip=1e6, noise=1e-12), rounds=1, cohort=None)
    assert_close(wide.parameters, plain.parameters, rtol=0, atol=1e-5)
    noisy = run(privacy=Privacy(clip=1e-9, noise=3e9), rounds=1, cohort=None)  # five clients: deviation 2 · 3 / 5
    start = {name: p.detach() for name, p in mlp().named_parameters()}
    step = torch.cat([(noisy.parameters[name] - start[name]).flatten() for name in start])
    expected = keyed_noise(0)(start, cohort(5))
    assert_close(step, 1.2 * torch.cat([expected[name].flatten() for name in start]), rtol=1e-6, atol=1e-6)


def test_a_deployed_method_has_secret_noise_and_silent_clients() -> None:
    method = Coded(Private(Averaging(), Privacy(), keyed_noise(0)), Half(), seed=0)
    secured = deployed(method)
    assert isinstance(secured, Coded)
    assert isinstance(secured.method, Private)
    assert secured.method.noise is secure_noise
    assert secured.method.silent
    assert deployed(Averaging()) == Averaging()


# As an option of a run


def test_history_engines_and_resume(tmp_path: Path) -> None:
    alone = run(engine="sequential")
    history = alone.history
    assert history.epsilon.tolist() == [epsilon(Privacy(), 3, 5, rounds) for rounds in (1, 2, 3)]
    assert history.epsilon.is_monotonic_increasing
    assert (history.delta == 1e-5).all()
    assert_close(run(engine="batched:2").parameters, alone.parameters, rtol=1e-9, atol=1e-9)
    run(engine="sequential", rounds=2, out=tmp_path / "run", privacy="gaussian(clip=0.1)")
    resumed = ud.resume(tmp_path / "run", rounds=3, model=mlp(), data=classified())
    assert_close(resumed.parameters, alone.parameters, rtol=0, atol=0)
    assert resumed.history.epsilon.tolist() == history.epsilon.tolist()
    assert "epsilon" not in run(privacy=None).history


def test_runs_of_several_seeds_have_noise_of_their_own() -> None:
    found = ud.compare({"a": "fedavg"}, mlp(), classified(), seeds=2, **SHORT | {"privacy": "gaussian(clip=0.1)"})
    assert [record.config["options"]["weighting"] for record in found.records] == ["uniform"] * 2
    assert "ε" in found.to_markdown()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weighting": "samples"}, "privacy needs equal weights, got weighting='samples'"),
        ({"weighting": None}, "privacy needs equal weights, got weighting='samples'"),
        ({"aggregate": "median"}, "noise that is made for the mean"),
        ({"compress": "half"}, "arrive as they were clipped; give compress=None"),
        ({"privacy": "laplace(clip=1)"}, "unknown privacy mechanism 'laplace'"),
        ({"privacy": "gaussian(clop=1)"}, "the privacy mechanism gaussian has no option 'clop'; did you mean 'clip'"),
        ({"privacy": "gaussian(noise=0)"}, "noise must be"),
    ],
)
def test_what_does_not_fit_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(**options)
    with pytest.raises(TypeError, match="privacy must be"):
        run(privacy=3)


def test_deviation() -> None:
    assert math.isclose(Privacy(clip=2.0, noise=1.5).deviation(12), 0.5)
    assert str(Privacy(noise=2.0)) == "gaussian(noise=2.0)"
