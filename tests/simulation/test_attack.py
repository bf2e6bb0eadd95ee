"""Clients that attack: who they are, what they send, and that robust rules withstand them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import undrift as ud
from laws import FIRST_OF_EVERY_KIND, SHORT, Law, classified, mlp, normed
from quadratics import Quadratics
from undrift.core.random import Key
from undrift.methods import attack
from undrift.methods.attack import Attack

pytestmark = pytest.mark.usefixtures("networks_are_tried_once")

HALF = Attack("sign-flip", share=0.4)  # two of five


def run(algorithm: Any = "fedavg", model: Any = mlp, **options: Any) -> ud.Run:
    return ud.simulate(algorithm, model(), classified(), **SHORT | {"attack": HALF} | options)


def test_attackers_are_a_share_of_all_clients_drawn_by_the_seed() -> None:
    chosen = Attack("noise", share=0.3)
    assert len(chosen.attackers(0, 100)) == len(set(chosen.attackers(0, 100).tolist())) == 30
    assert chosen.attackers(0, 100).tolist() == chosen.attackers(0, 100).tolist() != chosen.attackers(1, 100).tolist()
    assert len(Attack("noise", share=0.0).attackers(0, 10)) == 0


def test_what_attackers_send() -> None:
    reply, key = {"update": {"a": torch.tensor([3.0, -4.0])}}, Key(0, 1, torch.tensor(2))
    assert Attack("sign-flip").changed(reply, key)["update"]["a"].tolist() == [-3.0, 4.0]
    assert Attack("sign-flip", scale=2.0).changed(reply, key)["update"]["a"].tolist() == [-6.0, 8.0]
    assert Attack("large-norm").changed(reply, key)["update"]["a"].tolist() == [300.0, -400.0]
    wide = {"update": {"a": torch.full((50, 50), 0.1), "b": torch.full((50,), 5.0)}}
    noise = Attack("noise", scale=3.0).changed(wide, key)["update"]
    assert float(noise["a"].std()) == pytest.approx(0.3, rel=0.1)
    assert float(noise["b"].std()) == pytest.approx(15, rel=0.4)
    assert abs(float(noise["a"].mean())) < 0.03


def test_a_round_by_hand() -> None:
    problem = Quadratics(((1.0,),) * 4, ((0.0,), (4.0,), (1.0,), (2.0,)), (1.0,), lr=0.1)
    evil = Attack("sign-flip", share=0.5, scale=3.0)
    signs = np.ones(4)
    signs[evil.attackers(0, 4).numpy()] = -3
    steps = -0.1 * (1.0 - np.array([0.0, 4.0, 1.0, 2.0]))
    path, _ = problem.run("fedavg", 1, steps=1, attack=evil)
    np.testing.assert_allclose(path[0], 1.0 + (signs * steps).mean(), rtol=1e-12)


def test_flipped_labels_are_those_of_other_data() -> None:
    evil = Attack("label-flip", share=0.4)
    flipped = [
        (x, 2 - y) if client in evil.attackers(0, 5).tolist() else (x, y) for client, (x, y) in enumerate(classified())
    ]
    expected = ud.simulate("scaffold(option=I)", mlp(), flipped, **SHORT)
    for engine in ("sequential", "batched:2"):
        found = run("scaffold(option=I)", attack=evil, engine=engine)
        assert_close(found.parameters, expected.parameters, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("law", FIRST_OF_EVERY_KIND)
def test_every_algorithm_can_be_attacked(law: Law) -> None:
    """An attack that changes nothing does so, and another one does not; updates are as large as ever."""
    options = {"engine": "batched:2", "rounds": 2, **law.options}
    plain = run(law.algorithm, law.model, attack=None, **options)
    nothing = run(law.algorithm, law.model, attack="large-norm(share=0.4, scale=1)", **options)
    assert_close(nothing.parameters, plain.parameters, rtol=1e-12, atol=1e-12)
    attacked = run(law.algorithm, law.model, attack="sign-flip(share=0.4, scale=0.5)", **options)
    assert any(not torch.equal(value, plain.parameters[name]) for name, value in attacked.parameters.items())
    assert (attacked.history.bytes_up == plain.history.bytes_up).all()


@pytest.mark.parametrize("kind", ["sign-flip", "noise", "large-norm", "label-flip"])
def test_engines_agree_and_resume_is_exact(kind: str, tmp_path: Path) -> None:
    options = {"attack": f"{kind}(share=0.4)", "aggregate": "median"}
    alone = run(**options, engine="sequential")
    assert_close(run(**options, engine="batched:2").parameters, alone.parameters, rtol=1e-9, atol=1e-9)
    run(**options, engine="sequential", rounds=2, out=tmp_path / "run")
    resumed = ud.resume(tmp_path / "run", rounds=3, model=mlp(), data=classified())
    assert_close(resumed.parameters, alone.parameters, rtol=0, atol=0)


def test_seeds_have_attackers_of_their_own() -> None:
    """Runs of several seeds would train together; those that are attacked must not."""
    found = ud.compare(["fedavg"], mlp(), classified(), seeds=2, **SHORT | {"attack": HALF, "weighting": "samples"})
    alone = [run(seed=seed, weighting="samples").history.train_loss.tolist() for seed in range(2)]
    assert [r.history.train_loss.tolist() for r in found.records] == [pytest.approx(each) for each in alone]


def test_statistics_of_layers_stay_honest() -> None:
    assert run(model=normed, attack="sign-flip(share=1, scale=50)").buffers["1.running_var"].min() > 0


def test_attacks_by_name() -> None:
    assert attack.find("sign-flip(share=0.3)") == Attack("sign-flip", share=0.3)
    assert str(Attack("noise", share=0.3, scale=2.0)) == "noise(share=0.3, scale=2.0)"
    assert str(Attack("label-flip")) == "label-flip"
    for text, message in {
        "signflip": "attack: unknown attack 'signflip'; did you mean 'sign-flip'",
        "noise(size=3)": "the attack noise has no option 'size'",
        "label-flip(scale=2)": "label-flip has no scale",
        "noise(share=2)": "share must be",
    }.items():
        with pytest.raises(ValueError, match=message):
            attack.find(text)
    with pytest.raises(TypeError, match="attack must be"):
        run(attack=0.3)
    numbers = [(torch.randn(4, 2), torch.randn(4, 1))] * 3
    with pytest.raises(ValueError, match="attack='label-flip' needs samples with class labels"):
        ud.simulate(
            "fedavg", torch.nn.Linear(2, 1), numbers, loss=lambda o, t: (o - t).square().mean(1), attack="label-flip"
        )
