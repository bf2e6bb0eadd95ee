"""FedPGVC against its equations, and PGVC as an option of other algorithms."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import undrift as ud
from laws import LAWS, TRAINING, Law, classified, mlp, normed, seeded
from undrift import PGVC
from undrift.algorithms import MOON, FedAvg, FedBN, FedNova, FedPGVC, FedProx

FORMS = ("product", "magnitude", "additive")
LR, DECAY, MU = 0.05, 0.1, 0.4
DATA = classified((5, 3, 4), features=4)
HEAD = ("1.weight", "1.bias")
SETTINGS: dict[str, Any] = {"rounds": 3, "steps": 2, "batch_size": None, "lr": LR, "weight_decay": DECAY}


def net() -> nn.Module:
    return seeded(lambda: nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 3)))


def slopes(model: dict[str, Tensor], client: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """g with weight decay, and ρ = (1/B) Σ_b ℓ_b ∇ℓ_b from per-sample gradients; softmax by hand."""
    x, y = DATA[client]
    g, rho = ({k: torch.zeros_like(v) for k, v in model.items()} for _ in range(2))
    for xb, yb in zip(x, y, strict=True):
        hidden = model["0.weight"] @ xb + model["0.bias"]
        p = torch.softmax(model["1.weight"] @ hidden + model["1.bias"], 0)
        loss, out = -torch.log(p[yb]), p - torch.eye(3).double()[yb]
        back = model["1.weight"].T @ out
        each = {"0.weight": torch.outer(back, xb), "0.bias": back, "1.weight": torch.outer(out, hidden), "1.bias": out}
        for k, v in each.items():
            g[k] += v / len(x)
            rho[k] += loss * v / len(x)
    return {k: v + DECAY * model[k] for k, v in g.items()}, rho


def changed(form: str, g: Tensor, rho: Tensor) -> Tensor:
    return {"product": rho * g, "magnitude": rho.abs() * g, "additive": g + rho}[form]


def reference(
    form: str, head: tuple[str, ...], *, mu: float, weights: list[float], server_lr: float
) -> dict[str, Tensor]:
    """Rounds of FedPGVC, or with μ of FedProx whose gradient PGVC has changed before the spring is added."""
    model = {k: v.detach().clone() for k, v in net().named_parameters()}
    for _ in range(3):
        ends = []
        for client in range(3):
            y = model
            for _ in range(2):
                g, rho = slopes(y, client)
                d = {k: changed(form, v, rho[k]) if k in head else v for k, v in g.items()}
                y = {k: v - LR * (d[k] + mu * (v - model[k])) for k, v in y.items()}
            ends.append(y)
        mean = {k: sum(w * end[k] for w, end in zip(weights, ends, strict=True)) for k in model}
        model = {k: (1 - server_lr) * v + server_lr * mean[k] for k, v in model.items()}
    return model


@pytest.mark.parametrize("engine", ["sequential", "batched"])
@pytest.mark.parametrize("form", FORMS)
def test_every_round_is_the_papers(form: str, engine: str) -> None:
    run = ud.simulate(FedPGVC(layers=1, form=form), net(), DATA, engine=engine, server_lr=0.5, **SETTINGS)
    assert_close(
        run.parameters, reference(form, HEAD, mu=0.0, weights=[1 / 3] * 3, server_lr=0.5), rtol=1e-11, atol=1e-11
    )


@pytest.mark.parametrize("engine", ["sequential", "batched"])
@pytest.mark.parametrize("form", FORMS)
def test_in_fedprox_it_comes_first(form: str, engine: str) -> None:
    algorithm = FedProx(mu=MU, pgvc=PGVC(layers=1, form=form))
    run = ud.simulate(algorithm, net(), DATA, engine=engine, **SETTINGS)
    assert_close(
        run.parameters,
        reference(form, HEAD, mu=MU, weights=[5 / 12, 3 / 12, 4 / 12], server_lr=1.0),
        rtol=1e-11,
        atol=1e-11,
    )


def test_all_layers_and_a_named_one() -> None:
    for layers, head in (("all", tuple(k for k, _ in net().named_parameters())), (["0.bias"], ("0.bias",))):
        run = ud.simulate(FedPGVC(layers=layers), net(), DATA, **SETTINGS)
        assert_close(
            run.parameters,
            reference("product", head, mu=0.0, weights=[1 / 3] * 3, server_lr=1.0),
            rtol=1e-11,
            atol=1e-11,
        )


def test_as_an_option_of_fedavg_it_is_the_algorithm() -> None:
    options = TRAINING | {"weighting": "uniform"}
    for form in FORMS:
        pair = [
            ud.simulate(a, mlp(), classified(), **options).parameters
            for a in (FedPGVC(form=form), FedAvg(pgvc=PGVC(form=form)))
        ]
        assert_close(*pair, rtol=0, atol=0)


def test_in_fednova() -> None:
    """With equal steps FedNova is FedAvg, so with PGVC it is FedPGVC."""
    options = TRAINING | {"steps": 3, "epochs": 1, "weighting": "samples"}
    pair = [
        ud.simulate(a, mlp(), classified(), **options).parameters
        for a in (FedNova(pgvc=PGVC(form="magnitude")), FedPGVC(form="magnitude"))
    ]
    assert_close(*pair, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("engine", ["sequential", "batched:2"])
def test_in_fedbn(engine: str) -> None:
    """One client and one round: the same training, wherever batch normalisations are kept."""
    options = TRAINING | {"rounds": 1, "cohort": None, "engine": engine}
    plugged = FedBN(pgvc=PGVC(layers=2))
    run = ud.simulate(plugged, normed(), classified((9,)), **options)
    alone = ud.simulate(FedPGVC(layers=2), normed(), classified((9,)), **options)
    own = run._states.gather(np.arange(1))["private"]
    assert own.keys() == {"1.weight", "1.bias"}
    assert_close(run.parameters | {k: v[0] for k, v in own.items()}, alone.parameters, rtol=1e-12, atol=1e-12)


def test_the_penalty_comes_from_the_data_loss_alone() -> None:
    """At first participation MOON adds a constant to every loss: no gradient, and no penalty either."""
    options = TRAINING | {"rounds": 1, "cohort": None}
    pair = [
        ud.simulate(a, mlp(), classified(), **options).parameters
        for a in (MOON(mu=5.0, pgvc=PGVC()), FedAvg(pgvc=PGVC()))
    ]
    assert_close(*pair, rtol=1e-10, atol=1e-10)


def test_the_optimiser_receives_the_changed_gradient() -> None:
    """Adam's first step is the sign of it."""
    run = ud.simulate(FedPGVC(layers=1), net(), DATA[:1], **SETTINGS | {"optimizer": "adam", "rounds": 1, "steps": 1})
    start = {k: v.detach() for k, v in net().named_parameters()}
    g, rho = slopes(start, 0)
    for k, v in run.parameters.items():
        d = changed("product", g[k], rho[k]) if k in HEAD else g[k]
        assert_close(v, start[k] - LR * d / (d.abs() + 1e-8), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("law", [x for x in LAWS if x.algorithm.name() != "fedpgvc"], ids=lambda law: law.name)
def test_it_goes_with_every_algorithm(law: Law) -> None:
    def trained(pgvc: PGVC | None) -> dict[str, Tensor]:
        options = {**TRAINING, **law.options, "rounds": 2}
        return ud.simulate(replace(law.algorithm, pgvc=pgvc), law.model(), classified(), **options).parameters

    plain, empty, full = (trained(p) for p in (None, PGVC(layers=0), PGVC(layers=1, form="additive")))
    assert_close(empty, plain, rtol=0, atol=0)
    assert any(not torch.allclose(v, plain[k]) for k, v in full.items())


# Repr and resuming

PLUGGED = [
    FedProx(mu=0.3, pgvc=PGVC()),
    FedProx(mu=0.3, pgvc=PGVC(layers=1, form="magnitude")),
    FedAvg(pgvc=PGVC(layers=["2.weight", "4.bias"], form="additive")),
    FedAvg(pgvc=PGVC(layers=("4.bias",))),
    FedPGVC(layers="all"),
]


@pytest.mark.parametrize("algorithm", PLUGGED, ids=repr)
def test_repr(algorithm: ud.Algorithm) -> None:
    assert eval(repr(algorithm)) == algorithm


def test_without_a_plug_in_there_is_nothing_to_see() -> None:
    assert repr(FedProx(mu=0.3)) == "FedProx(mu=0.3)"
    assert FedAvg().options() == {}


@pytest.mark.parametrize("algorithm", PLUGGED, ids=repr)
@pytest.mark.parametrize("given", [False, True])
def test_resuming(algorithm: ud.Algorithm, given: bool, tmp_path: Path) -> None:
    whole = ud.simulate(algorithm, mlp(), classified(), **TRAINING)
    ud.simulate(
        algorithm, mlp(), classified(), out=tmp_path / "run", callbacks=[lambda row, run: row["round"] == 2], **TRAINING
    )
    again = ud.resume(tmp_path / "run", algorithm=algorithm if given else None, model=mlp(), data=classified())
    assert_close(again.parameters, whole.parameters, rtol=0, atol=0)


def test_resuming_with_another_plug_in_is_refused(tmp_path: Path) -> None:
    ud.simulate(FedAvg(pgvc=PGVC()), mlp(), classified(), out=tmp_path / "run", **TRAINING)
    for other in (FedAvg(), FedAvg(pgvc=PGVC(form="additive"))):
        with pytest.raises(ValueError, match="the given algorithm is not the one this run was started with"):
            ud.resume(tmp_path / "run", rounds=6, algorithm=other, model=mlp(), data=classified())


def test_refusals() -> None:
    with pytest.raises(ValueError, match="form must be one of 'product', 'magnitude', 'additive', got 'sum'"):
        PGVC(form="sum")
    with pytest.raises(ValueError, match="form must be one of 'product', 'magnitude', 'additive', got 'sum'"):
        FedPGVC(form="sum")
    with pytest.raises(ValueError, match="FedPGVC is PGVC already; pgvc must be None"):
        FedPGVC(pgvc=PGVC())
    with pytest.raises(TypeError, match=r"pgvc must be None or a plug-in such as ud.PGVC\(layers=2\), got 2"):
        ud.simulate(FedAvg(pgvc=2), mlp(), classified(), **TRAINING)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="layers must lie between 0 and the model's 3 layers, got 4"):
        ud.simulate(FedAvg(pgvc=PGVC(layers=4)), mlp(), classified(), **TRAINING)
    with pytest.raises(TypeError, match="positional"):
        FedProx(0.1, PGVC())  # type: ignore[call-arg]
