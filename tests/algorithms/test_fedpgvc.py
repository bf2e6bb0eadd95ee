"""FedPGVC against its equations, and PGVC as an option of other algorithms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import undrift as ud
from laws import FIRST_OF_EVERY_KIND, SHORT, TRAINING, Law, classified, mlp, normed, seeded
from undrift import PGVC
from undrift.algorithms import MAFSVRG, MOON, FedAvg, FedBN, FedNova, FedPGVC, FedProx
from undrift.core.tree import Tree
from undrift.methods.setting import Plan

FORMS = ("product", "magnitude", "additive", "normalised", "loss", "norm", "decay")
LISTED = "'product', 'magnitude', 'additive', 'normalised', 'loss', 'norm', 'decay'"
LR, DECAY, MU = 0.05, 0.1, 0.4
DATA = classified((5, 3, 4), features=4)
HEAD = ("1.weight", "1.bias")
SETTINGS: dict[str, Any] = {"rounds": 3, "steps": 2, "batch_size": None, "lr": LR, "weight_decay": DECAY}


def net() -> nn.Module:
    return seeded(lambda: nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 3)))


def slopes(model: Tree, client: int) -> tuple[Tree, Tree, Tensor]:
    """∇ℓ̄, ρ = (1/B) Σ_b ℓ_b ∇ℓ_b from per-sample gradients, and ℓ̄; softmax by hand."""
    x, y = DATA[client]
    g, rho = ({k: torch.zeros_like(v) for k, v in model.items()} for _ in range(2))
    losses = []
    for xb, yb in zip(x, y, strict=True):
        hidden = model["0.weight"] @ xb + model["0.bias"]
        p = torch.softmax(model["1.weight"] @ hidden + model["1.bias"], 0)
        loss, out = -torch.log(p[yb]), p - torch.eye(3).double()[yb]
        back = model["1.weight"].T @ out
        each = {"0.weight": torch.outer(back, xb), "0.bias": back, "1.weight": torch.outer(out, hidden), "1.bias": out}
        losses.append(loss)
        for k, v in each.items():
            g[k] += v / len(x)
            rho[k] += loss * v / len(x)
    return g, rho, torch.stack(losses).mean()


def norm_of(tree: Tree, names: Sequence[str]) -> Tensor:
    return torch.cat([tree[k].flatten() for k in names]).norm()


def layers_of(names: Sequence[str]) -> list[list[str]]:
    """Weight and bias of a module together."""
    return [layer for prefix in ("0.", "1.") if (layer := [k for k in names if k.startswith(prefix)])]


def changed(form: str, y: Tree, received: Tree, client: int, head: Sequence[str], sigma: list[float]) -> Tree:
    """What a step moves along: the table of forms; weight decay is in g, and not in ρ."""
    slope, rho, loss = slopes(y, client)
    if received is not y:
        rho = slopes(received, client)[1]
    g = {k: v + DECAY * y[k] for k, v in slope.items()}
    if form == "normalised":
        factors = {
            k: s / norm_of(g, names) if s else 1 for s, names in zip(sigma, layers_of(head), strict=True) for k in names
        }
        return {k: factors.get(k, 1) * v for k, v in g.items()}
    acts = {
        "product": lambda k: rho[k] * g[k],
        "magnitude": lambda k: rho[k].abs() * g[k],
        "additive": lambda k: g[k] + rho[k],
        "loss": lambda k: loss * g[k],
        "norm": lambda k: norm_of(slope, head) * g[k],
        "decay": lambda k: g[k],
    }
    return {k: acts[form](k) if k in head else v for k, v in g.items()}


def reference(
    form: str,
    head: Sequence[str],
    *,
    mu: float = 0.0,
    weights: Sequence[float] = (1 / 3,) * 3,
    server_lr: float = 1.0,
    sigma: float | None = None,
    received: bool = False,
    printed: bool = False,
) -> Tree:
    """Rounds of FedPGVC, or with μ of FedProx whose gradient PGVC has changed before the spring is added."""
    model = {k: v.detach().clone() for k, v in net().named_parameters()}
    goal = np.full(len(layers_of(head)), sigma or 0.0)  # 0: not known yet
    for _ in range(3):
        ends, met = [], []
        for client in range(3):
            y = model
            norms = np.zeros(len(goal))
            for _ in range(2):
                g = {k: v + DECAY * y[k] for k, v in slopes(y, client)[0].items()}
                norms += [float(norm_of(g, names)) / 2 for names in layers_of(head)]
                d = changed(form, y, model if received else y, client, head, list(goal))
                y = {k: v - LR * (d[k] + mu * (v - model[k])) for k, v in y.items()}
            if form == "decay":
                rho = slopes(y, client)[1]
                shares = {
                    k: torch.cat([rho[n].flatten() for n in names]).mean() for names in layers_of(head) for k in names
                }
                y = {k: (1 - LR * shares.get(k, 0)) * v for k, v in y.items()}
            ends.append(y)
            met.append(norms)
        mean = {k: sum(w * end[k] for w, end in zip(weights, ends, strict=True)) for k in model}
        model = {k: (1 - server_lr) * v + (1 if printed else server_lr) * mean[k] for k, v in model.items()}
        if sigma is None:
            found = np.array(weights) @ met
            goal = np.where(goal > 0, 0.9 * goal + 0.1 * found, found)
    return model


@pytest.mark.parametrize("engine", ["sequential", "batched"])
@pytest.mark.parametrize("form", FORMS)
def test_every_round_is_the_papers(form: str, engine: str) -> None:
    run = ud.simulate(FedPGVC(layers=1, form=form), net(), DATA, engine=engine, server_lr=0.5, **SETTINGS)
    assert_close(run.parameters, reference(form, HEAD, server_lr=0.5), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("form", ["product", "magnitude", "additive"])
def test_the_penalty_of_the_received_model(form: str) -> None:
    """ρ^{r−1} of Algorithm 1, line 10; g is that of the step."""
    run = ud.simulate(FedPGVC(layers=1, form=form, penalty_at="received"), net(), DATA, **SETTINGS)
    assert_close(run.parameters, reference(form, HEAD, received=True), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("engine", ["sequential", "batched"])
def test_a_given_sigma(engine: str) -> None:
    """Every layer's gradient has the norm σ (Eq. 10), nothing is estimated and nothing more is sent."""
    run = ud.simulate(FedPGVC(layers=2, form="normalised", sigma=0.3), net(), DATA, engine=engine, **SETTINGS)
    names = tuple(k for k, _ in net().named_parameters())
    assert_close(run.parameters, reference("normalised", names, sigma=0.3), rtol=1e-11, atol=1e-11)
    plain = ud.simulate(FedAvg(), net(), DATA, **SETTINGS)
    for column in ("bytes_down", "bytes_up"):
        assert (run.history[column] == plain.history[column]).all()


def test_the_server_step_as_printed() -> None:
    """Eq. 16, which is an average only for η_g = 1."""
    for server_lr in (0.5, 1.0):
        algorithm = FedPGVC(layers=1, form="magnitude", server_step="printed")
        run = ud.simulate(algorithm, net(), DATA, server_lr=server_lr, **SETTINGS)
        expected = reference("magnitude", HEAD, server_lr=server_lr, printed=True)
        assert_close(run.parameters, expected, rtol=1e-11, atol=1e-11)


def test_the_printed_product_only_lowers_the_weights_of_the_head() -> None:
    """The reason for the warning before round 1, wherever the plug-in is."""
    options: dict[str, Any] = SETTINGS | {"weight_decay": 0.0, "rounds": 1}
    start = {k: v.detach() for k, v in net().named_parameters()}
    run = ud.simulate(FedPGVC(layers=1, form="product"), net(), DATA, **options)
    assert all((run.parameters[k] <= start[k]).double().mean() > 0.8 for k in HEAD)


@pytest.mark.parametrize(
    ("algorithm", "plugins"),
    [
        (FedPGVC(form="product"), ()),
        (FedProx(pgvc=PGVC(form="product")), ()),
        (FedAvg(), (PGVC(form="product", penalty_at="received"),)),
    ],
    ids=["algorithm", "option", "plug-in"],
)
def test_the_printed_product_warns(
    algorithm: ud.Algorithm, plugins: tuple[PGVC, ...], caplog: pytest.LogCaptureFixture
) -> None:
    ud.simulate(algorithm, net(), DATA, plugins=plugins, **SETTINGS | {"rounds": 1})
    said = caplog.text
    assert "form='product' (Eq. 15 as printed) multiplies two gradients" in said
    assert "every other form descends, as the default, form='normalised'" in said


@pytest.mark.parametrize("form", FORMS[1:])
def test_the_other_forms_do_not_warn(form: str) -> None:
    assert not FedPGVC(form=form).warnings(Plan(participation=1.0, steps=3))


def test_the_estimate_needs_a_server_that_sends_it() -> None:
    with pytest.raises(ValueError, match="does without if a sigma is given"):
        ud.simulate(MAFSVRG(pgvc=PGVC(form="normalised")), mlp(), classified(), **TRAINING)
    ud.simulate(MAFSVRG(pgvc=PGVC(form="normalised", sigma=0.1)), mlp(), classified(), **TRAINING)


@pytest.mark.parametrize("engine", ["sequential", "batched"])
@pytest.mark.parametrize("form", FORMS)
def test_in_fedprox_it_comes_first(form: str, engine: str) -> None:
    algorithm = FedProx(mu=MU, pgvc=PGVC(layers=1, form=form))
    run = ud.simulate(algorithm, net(), DATA, engine=engine, **SETTINGS)
    assert_close(
        run.parameters,
        reference(form, HEAD, mu=MU, weights=(5 / 12, 3 / 12, 4 / 12)),
        rtol=1e-11,
        atol=1e-11,
    )


def test_all_layers_and_a_named_one() -> None:
    for layers, head in (("all", tuple(k for k, _ in net().named_parameters())), (["0.bias"], ("0.bias",))):
        run = ud.simulate(FedPGVC(layers=layers, form="product"), net(), DATA, **SETTINGS)
        assert_close(
            run.parameters,
            reference("product", head),
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
    own = run.memory.own.gather(np.arange(1))["private"]
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
    options: dict[str, Any] = SETTINGS | {"optimizer": "adam", "rounds": 1, "steps": 1}
    run = ud.simulate(FedPGVC(layers=1, form="product"), net(), DATA[:1], **options)
    start = {k: v.detach() for k, v in net().named_parameters()}
    directions = changed("product", start, start, 0, HEAD, [])
    for k, v in run.parameters.items():
        d = directions[k]
        assert_close(v, start[k] - LR * d / (d.abs() + 1e-8), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("law", [each for each in FIRST_OF_EVERY_KIND if each.id != "fedpgvc"])
def test_it_goes_with_every_algorithm(law: Law) -> None:
    def trained(pgvc: PGVC | None) -> dict[str, Tensor]:
        options = {**SHORT, **law.options, "rounds": 2}
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
    FedPGVC(form="normalised", server_step="printed"),
    FedProx(mu=0.3, pgvc=PGVC(form="normalised", sigma=0.2)),
    FedAvg(pgvc=PGVC(form="magnitude", penalty_at="received")),
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
    whole = ud.simulate(algorithm, mlp(), classified(), **SHORT)
    ud.simulate(
        algorithm, mlp(), classified(), out=tmp_path / "run", callbacks=[lambda row, run: row["round"] == 2], **SHORT
    )
    again = ud.resume(tmp_path / "run", algorithm=algorithm if given else None, model=mlp(), data=classified())
    assert_close(again.parameters, whole.parameters, rtol=0, atol=0)


def test_resuming_with_another_plug_in_is_refused(tmp_path: Path) -> None:
    ud.simulate(FedAvg(pgvc=PGVC()), mlp(), classified(), out=tmp_path / "run", **TRAINING)
    for other in (FedAvg(), FedAvg(pgvc=PGVC(form="additive"))):
        with pytest.raises(ValueError, match="the given algorithm is not the one this run was started with"):
            ud.resume(tmp_path / "run", rounds=6, algorithm=other, model=mlp(), data=classified())


def test_refusals() -> None:
    for kind in (PGVC, FedPGVC):
        with pytest.raises(ValueError, match=f"form must be one of {LISTED}, got 'sum'"):
            kind(form="sum")
        with pytest.raises(ValueError, match="sigma belongs to form='normalised', got form='product'"):
            kind(form="product", sigma=0.1)
        with pytest.raises(ValueError, match="sigma must be greater than 0"):
            kind(form="normalised", sigma=0.0)
        with pytest.raises(ValueError, match="penalty_at must be one of 'current', 'received', got 'sent'"):
            kind(penalty_at="sent")
        with pytest.raises(ValueError, match="penalty_at belongs to the forms 'product', 'magnitude' and 'additive'"):
            kind(form="loss", penalty_at="received")
    with pytest.raises(ValueError, match="server_step must be one of 'average', 'printed', got 'mean'"):
        FedPGVC(server_step="mean")
    with pytest.raises(ValueError, match="FedPGVC is PGVC already; pgvc must be None"):
        FedPGVC(pgvc=PGVC())
    with pytest.raises(TypeError, match=r"pgvc must be None or a plug-in such as ud.PGVC\(layers=2\), got 2"):
        ud.simulate(FedAvg(pgvc=2), mlp(), classified(), **TRAINING)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="layers must lie between 0 and the model's 3 layers, got 4"):
        ud.simulate(FedAvg(pgvc=PGVC(layers=4)), mlp(), classified(), **TRAINING)
    with pytest.raises(TypeError, match="positional"):
        FedProx(0.1, PGVC())  # type: ignore[call-arg]
