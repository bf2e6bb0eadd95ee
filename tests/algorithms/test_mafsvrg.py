"""MA-FSVRG and GA-FSVRG against numpy; their traffic, states and neutral elements are laws."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import undrift as ud
from laws import classified, normed, seeded
from quadratics import Point, Quadratics, half_square
from undrift.algorithms import FSVRG, GAFSVRG, MAFSVRG
from undrift.core import tree
from undrift.methods.setting import Setting
from undrift.methods.several_models import SeveralModels
from undrift.protocol import State

# Three kinds of clients around three distant centres, in three dimensions.
_spread = np.random.default_rng(4)
SPOTS = np.array([[5.0, 0.0, 1.0], [-4.0, 3.0, 0.0], [0.0, -5.0, -3.0]])
KIND = np.array([0, 0, 0, 0, 1, 1, 1, 2, 2])
KINDS = Quadratics(
    curvature=tuple(map(tuple, _spread.uniform(0.5, 2.0, size=(9, 3)))),
    centre=tuple(map(tuple, SPOTS[KIND] + _spread.normal(scale=0.4, size=(9, 3)))),
    start=(0.4, 0.5, 0.7),
    lr=0.3,
    steps=4,
    samples=(2, 1, 3, 2, 1, 2, 2, 3, 1),
)
EVERYONE = list(range(9))
EQUAL = Quadratics(((1.0, 2.0), (3.0, 0.5), (0.7, 1.0)), ((0.0, 1.0), (4.0, -2.0), (-3.0, 5.0)), (1.0, 1.0), lr=0.3)


class Reference:
    """Equations 17–64 for quadratics, singular vectors from the matrix [d, n]; an empty group keeps its centre."""

    def __init__(self, models: np.ndarray, first: np.ndarray, second: np.ndarray) -> None:
        self.models, self.first, self.second = models, first, second  # [G, d]

    def round(self, problem: Quadratics, cohort: list[int], number: int, algorithm: MAFSVRG | GAFSVRG) -> None:
        a, b, n = problem.a[cohort], problem.b[cohort], np.array(problem.samples)[cohort]
        p = n / n.sum()

        def gradients(w: np.ndarray) -> np.ndarray:  # [n, G, d]
            return a[:, None] * (w - b[:, None])

        anchors = np.einsum("i,icd->cd", p, gradients(self.models))
        choice = (0.5 * a[:, None] * (self.models - b[:, None]) ** 2).sum(2).argmin(1)
        w = self.models[choice]
        for _ in range(problem.steps):
            w = w - (problem.lr / n)[:, None] * (a * (w - self.models[choice]) + anchors[choice])
        if isinstance(algorithm, MAFSVRG):
            aims = self.centres(w, self.models, algorithm.centred_starts)
        else:
            rate = (problem.lr / n).mean() if algorithm.group_lr is None else algorithm.group_lr
            aims = self.models - rate * self.centres(a * (w - b), anchors, algorithm.centred_starts)
        self.votes = np.bincount(choice, minlength=len(aims))
        self.models = aims
        if algorithm.acceleration != "off":
            now = np.einsum("i,icd->cd", p, gradients(aims))
            self.first = algorithm.beta1 * self.first + (1 - algorithm.beta1) * now
            self.second = algorithm.beta2 * self.second + (1 - algorithm.beta2) * now**2
            steps = number if algorithm.accelerate_first_rounds else number - algorithm.threshold
            rate = algorithm.alpha0 * np.sqrt(1 - algorithm.beta2**steps)
            if algorithm.acceleration == "printed":
                rate *= (1 - algorithm.beta1) / np.sqrt(1 - algorithm.beta2)
            root = np.sqrt(self.second + 1e-8) if algorithm.eps_in_root else np.sqrt(self.second) + 1e-8
            self.models = aims - rate * self.first / root

    @staticmethod
    def centres(z: np.ndarray, starts: np.ndarray, centred: bool) -> np.ndarray:
        mean = z.mean(0)
        u = np.linalg.svd((z - mean).T)[0][:, : len(starts) - 1]
        points, centres = (z - mean) @ u, (starts - mean if centred else starts) @ u
        for _ in range(100):
            members = np.linalg.norm(points[:, None] - centres, axis=2).argmin(1)
            for c in set(members):
                centres[c] = points[members == c].mean(0)
        return centres @ u.T + mean


class Drawn(Point):
    """A point that other models can be drawn like."""

    def reset_parameters(self) -> None:
        nn.init.normal_(self.point)


def watch(problem: Quadratics, algorithm: Any, rounds: int, **options: Any) -> tuple[list[dict[str, Any]], ud.Run]:
    """The server's state after every round."""
    states: list[dict[str, Any]] = []
    settings = {"lr": problem.lr, "steps": problem.steps, "batch_size": None} | options
    run = ud.simulate(
        algorithm,
        Drawn(problem.start),
        problem.data(),
        loss=half_square,
        rounds=rounds,
        callbacks=[lambda row, run: states.append(tree.map_nest(lambda v: v.clone().numpy(), run.memory.server))],
        **settings,
    )
    return states, run


@pytest.mark.parametrize(
    "reading",
    [
        {"acceleration": "adam"},
        {"acceleration": "printed"},
        {"acceleration": "off"},
        {"accelerate_first_rounds": False},
        {"centred_starts": False},
        {"eps_in_root": True, "beta2": 0.999999999},  # v is about ε
        {"starts": "random"},
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", [MAFSVRG, GAFSVRG])
def test_rounds_after_the_threshold_by_hand(kind: Any, reading: dict[str, Any]) -> None:
    algorithm = kind(**{"models": 3, "threshold": 2, "alpha0": 0.03, "beta1": 0.6, "beta2": 0.9} | reading)
    cohorts = [EVERYONE, EVERYONE, EVERYONE, [0, 1, 3, 4, 6, 7, 8], EVERYONE]
    states, run = watch(KINDS, algorithm, 5, cohort=cohorts)
    begun = states[1]
    moments = begun.get("moments", {"first": {"point": 0.0}, "second": {"point": 0.0}})
    reference = Reference(begun["models"]["point"], moments["first"]["point"], moments["second"]["point"])
    for number in (3, 4, 5):
        reference.round(KINDS, cohorts[number - 1], number, algorithm)
        np.testing.assert_allclose(states[number - 1]["models"]["point"], reference.models, rtol=1e-9, atol=1e-9)
        np.testing.assert_array_equal(states[number - 1]["votes"], reference.votes)
    order = np.argsort(-reference.votes, kind="stable")
    found = np.array([model["point"].numpy() for model in run.models])
    np.testing.assert_allclose(found, reference.models[order], rtol=1e-9, atol=1e-9)
    assert_close(run.parameters["point"], run.models[0]["point"])


@pytest.mark.parametrize("reading", [{"centred_starts": False}, {"eps_in_root": True}, {"starts": "random"}], ids=str)
def test_a_reading_is_not_the_default(reading: dict[str, Any]) -> None:
    found, default = (
        watch(KINDS, MAFSVRG(models=3, threshold=1, beta2=1 - 1e-9, **given), 3)[0][-1]["models"]["point"]
        for given in (reading, {})
    )
    assert abs(found - default).max() > 1e-3


@pytest.mark.parametrize("engine", ["sequential", "batched"])
def test_until_the_threshold_without_acceleration_it_is_fsvrg(engine: str) -> None:
    """Procedure 4 as printed: nothing is asked for in the third exchange, and moments begin after round T."""
    late = MAFSVRG(models=3, threshold=2, accelerate_first_rounds=False)
    states, run = watch(KINDS, late, 3, engine=engine)
    plain, _ = watch(KINDS, FSVRG(), 1, engine=engine)
    np.testing.assert_allclose(states[0]["models"]["point"][0], plain[0]["model"]["point"], rtol=1e-12)
    assert not states[1]["moments"]["first"]["point"].any()
    assert states[2]["moments"]["first"]["point"].all()
    model = 3 * 8 * 9
    assert (run.history.bytes_down // model).tolist() == [2, 2, 7]
    assert (run.history.bytes_up // model).tolist() == [2, 2, 7]


@pytest.mark.parametrize("threshold", [0, 2])
def test_random_models_wait_until_the_threshold(threshold: int) -> None:
    """The first is trained in rounds up to T; the others stay as they were drawn, by the seed."""
    algorithm = MAFSVRG(models=3, threshold=threshold, starts="random")
    states, run = watch(KINDS, algorithm, 3)
    begun = run.experiment.method.server(run.experiment.learner.parameters, {})["models"]["point"].numpy()
    np.testing.assert_array_equal(begun[0], KINDS.start)
    assert len(np.unique(begun, axis=0)) == 3
    waiting = [np.array_equal(state["models"]["point"][1:], begun[1:]) for state in states]
    assert waiting == [number <= threshold for number in (1, 2, 3)]
    batched = watch(KINDS, algorithm, 3, engine="batched")[0][-1]["models"]["point"]
    sequential = watch(KINDS, algorithm, 3, engine="sequential")[0][-1]["models"]["point"]
    np.testing.assert_allclose(batched, sequential, rtol=1e-9)


def test_random_models_need_an_initialiser() -> None:
    with pytest.raises(ValueError, match=r"no reset_parameters\(\) of the model Point"):
        KINDS.run(MAFSVRG(models=3, starts="random"), 1)


def test_a_run_with_random_models_is_resumed_exactly(tmp_path: Path) -> None:
    algorithm = GAFSVRG(models=3, threshold=2, starts="random", accelerate_first_rounds=False)
    options: dict[str, Any] = {"batch_size": 4, "lr": 0.5}
    whole = ud.simulate(algorithm, linear(), classified(), rounds=4, **options)
    ud.simulate(algorithm, linear(), classified(), rounds=1, out=tmp_path / "run", **options)
    again = ud.resume(tmp_path / "run", rounds=4, model=linear(), data=classified())
    for mine, theirs in zip(again.models, whole.models, strict=True):
        assert all(torch.equal(value, theirs[name]) for name, value in mine.items())


def test_group_lr_is_the_length_of_the_servers_step() -> None:
    algorithm = GAFSVRG(models=3, threshold=1, acceleration="off", group_lr=0.05)
    states, _ = watch(KINDS, algorithm, 2)
    reference = Reference(states[0]["models"]["point"], np.zeros(1), np.zeros(1))
    reference.round(KINDS, EVERYONE, 2, algorithm)
    np.testing.assert_allclose(states[1]["models"]["point"], reference.models, rtol=1e-9)


@pytest.mark.parametrize("kind", [MAFSVRG, GAFSVRG])
def test_the_servers_rate_multiplies_the_step_of_every_group(kind: Any) -> None:
    """Groups begin at the local models, whatever the rate; the next round is half as long."""
    algorithm = kind(models=3, threshold=1, acceleration="off")
    (begun, whole), (also_begun, half) = (
        [state["models"]["point"] for state in watch(KINDS, algorithm, 2, server_lr=rate)[0]] for rate in (1.0, 0.5)
    )
    np.testing.assert_array_equal(also_begun, begun)
    np.testing.assert_allclose(half - begun, 0.5 * (whole - begun), rtol=1e-9)


@pytest.mark.parametrize("kind", [MAFSVRG, GAFSVRG])
def test_groups_begin_at_the_kinds_of_the_local_models(kind: Any) -> None:
    """After round T: the centres, in their plane, of that round's local models; moments are those of the one model."""
    states, run = watch(KINDS, kind(models=3, threshold=1), 1)
    x, n, a, b = np.array(KINDS.start), np.array(KINDS.samples), KINDS.a, KINDS.b
    mean = (n / n.sum()) @ (a * (x - b))
    w = np.tile(x, (9, 1))
    for _ in range(KINDS.steps):
        w = w - (KINDS.lr / n)[:, None] * (a * (w - x) + mean)
    state = states[0]
    u = np.linalg.svd((w - w.mean(0)).T)[0][:, :2]
    flat = (w - w.mean(0)) @ u @ u.T + w.mean(0)
    centres = state["models"]["point"]
    nearest = np.linalg.norm(flat[:, None] - centres, axis=2).argmin(1)
    np.testing.assert_allclose(centres, [flat[nearest == c].mean(0) for c in range(3)], rtol=1e-9)
    np.testing.assert_array_equal(state["votes"], np.bincount(nearest))
    aggregated = (n / n.sum()) @ w
    gradient = (n / n.sum()) @ (a * (aggregated - b))
    np.testing.assert_allclose(state["moments"]["first"]["point"], np.tile(0.1 * gradient, (3, 1)), rtol=1e-9)
    np.testing.assert_allclose(state["moments"]["second"]["point"], np.tile(0.001 * gradient**2, (3, 1)), rtol=1e-9)
    assert len(run.models) == 3


def test_the_beginning_of_groups_depends_on_the_seed_alone() -> None:
    """Four groups of five points without structure: where k-means ends depends on where it begins."""
    spread = np.random.default_rng(1).normal(size=(2, 12, 3))
    problem = Quadratics(
        tuple(map(tuple, np.exp(spread[0]))), tuple(map(tuple, 3 * spread[1])), (0.0, 0.0, 0.0), lr=0.1
    )

    def begun(seed: int) -> list[list[float]]:
        return watch(problem, MAFSVRG(models=4, threshold=1), 1, seed=seed)[0][0]["models"]["point"].tolist()

    assert begun(0) == begun(0)
    assert len({str(begun(seed)) for seed in range(4)}) > 1


@pytest.mark.parametrize(("kind", "models"), [(MAFSVRG, 1), (MAFSVRG, 3), (GAFSVRG, 3)])
def test_one_step_is_a_full_gradient_step(kind: Any, models: int) -> None:
    """J = 1, no features, equal clients, no acceleration: gradient descent; for GA while r ≤ T."""
    threshold = 5 if kind is GAFSVRG else 2
    path, _ = EQUAL.run(kind(models=models, threshold=threshold, acceleration="off"), 4, steps=1)
    x = np.array(EQUAL.start)
    for found in path:
        x = x - EQUAL.lr * (EQUAL.a * (x - EQUAL.b)).mean(0)
        np.testing.assert_allclose(found, x, rtol=1e-12)


@pytest.mark.parametrize("acceleration", ["adam", "printed"])
def test_acceleration_by_hand(acceleration: str) -> None:
    """One step of gradient descent, then one of the moments at the new point; no bias correction of the first."""
    beta1, beta2, alpha0 = 0.7, 0.8, 0.05
    extra = (1 - beta1) / np.sqrt(1 - beta2) if acceleration == "printed" else 1.0
    algorithm = MAFSVRG(models=2, threshold=9, beta1=beta1, beta2=beta2, alpha0=alpha0, acceleration=acceleration)
    path, _ = EQUAL.run(algorithm, 4, steps=1)
    x, m, v = np.array(EQUAL.start), np.zeros(2), np.zeros(2)
    for number, found in enumerate(path, 1):
        x = x - EQUAL.lr * (EQUAL.a * (x - EQUAL.b)).mean(0)
        gradient = (EQUAL.a * (x - EQUAL.b)).mean(0)
        m, v = beta1 * m + (1 - beta1) * gradient, beta2 * v + (1 - beta2) * gradient**2
        x = x - alpha0 * extra * np.sqrt(1 - beta2**number) * m / (np.sqrt(v) + 1e-8)
        np.testing.assert_allclose(found, x, rtol=1e-9)


def test_the_printed_first_step_is_31_times_as_long() -> None:
    def jump(acceleration: str) -> np.ndarray:
        algorithm = MAFSVRG(models=1, threshold=9, beta1=0.0, acceleration=acceleration)
        return EQUAL.run(algorithm, 1)[0][0] - EQUAL.run(MAFSVRG(models=1, acceleration="off"), 1)[0][0]

    np.testing.assert_allclose(abs(jump("adam")), 0.02, rtol=1e-6)
    np.testing.assert_allclose(jump("printed") / jump("adam"), 1 / np.sqrt(0.001), rtol=1e-9)


def test_ga_with_one_model_descends_along_the_gradients_of_the_trained() -> None:
    """No grouping: x ← x − η_group Σ p_i ∇f_i(w_i), η_group = mean η/n_i."""
    problem = Quadratics(EQUAL.curvature, EQUAL.centre, EQUAL.start, lr=0.3, steps=3, samples=(2, 1, 3))
    path, _ = problem.run(GAFSVRG(models=1, threshold=0, acceleration="off"), 3)
    a, b, n = problem.a, problem.b, np.array(problem.samples)
    p, x = n / n.sum(), np.array(problem.start)
    for found in path:
        mean, w = p @ (a * (x - b)), np.tile(x, (3, 1))
        for _ in range(3):
            w = w - (0.3 / n)[:, None] * (a * (w - x) + mean)
        x = x - (0.3 / n).mean() * (p @ (a * (w - b)))
        np.testing.assert_allclose(found, x, rtol=1e-12)
    losses = [p @ (a * (x - b) ** 2).sum(1) / 2 for x in (np.array(problem.start), *path)]
    assert losses == sorted(losses, reverse=True)


@dataclass(frozen=True)
class AtOneAndNine(SeveralModels):
    """Starts with two models, at 1 and at 9."""

    def server(self, model: tree.Tree, buffers: tree.Tree) -> State:
        return super().server(model, buffers) | {"models": {"point": torch.tensor([[1.0], [9.0]]).double()}}


@dataclass(frozen=True)
class TwoStarts(MAFSVRG):
    def method(self, setting: Setting) -> SeveralModels:
        return AtOneAndNine(**vars(super().method(setting)) | {"threshold": 0})


@pytest.mark.parametrize("decay", [0.0, 0.5])
def test_preference_is_by_the_objective(decay: float) -> None:
    """Between 1 and 9, a client with its centre at 6 prefers 9 by ½(w − 6)², but 1 with ½ · 0.5 · w² added."""
    problem = Quadratics(((1.0,), (1.0,)), ((6.0,), (0.0,)), (1.0,), lr=0.1)
    _, run = problem.run(TwoStarts(models=2), 1, weight_decay=decay)
    assert run.memory.ledger.gather(np.arange(2))["choice"].tolist() == [0 if decay else 1, 0]
    slopes = np.array([[[-5.0], [3.0]], [[1.0], [9.0]]]) + decay * np.array([[1.0], [9.0]])
    np.testing.assert_allclose(run.memory.server["VarianceReduction"]["gradient"]["point"], slopes.mean(0))


@pytest.mark.parametrize("kind", [MAFSVRG, GAFSVRG])
@pytest.mark.parametrize("acceleration", ["adam", "off"])
def test_traffic_before_and_after_the_threshold(kind: Any, acceleration: str) -> None:
    """Each client receives its own anchor only, not again the model; a preference and GA's rate are a number each."""
    _, run = watch(KINDS, kind(models=3, threshold=1, acceleration=acceleration), 2)
    model, extra = 3 * 8, acceleration == "adam"
    down, up = run.history.bytes_down / 9, run.history.bytes_up / 9
    assert down.tolist() == [(2 + extra) * model, (4 + 3 * extra) * model]  # 2 G + 1 with acceleration
    assert up.tolist() == [(2 + extra) * model, (4 + 3 * extra) * model + 8 + 8 * (kind is GAFSVRG)]


def sparse() -> list[tuple[Tensor, Tensor]]:
    """Clients that miss one feature or another."""
    return [(x * (x > 0.8) * (torch.arange(6) != i), y) for i, (x, y) in enumerate(classified())]


def linear() -> nn.Module:
    return seeded(lambda: nn.Linear(6, 3))


@pytest.mark.parametrize("scaling", ["cohort", "printed", "census", "off"])
def test_one_model_without_acceleration_is_fsvrg_on_sparse_data(scaling: str) -> None:
    options: dict[str, Any] = {"rounds": 4, "cohort": 3, "batch_size": 4, "lr": 0.8, "weight_decay": 0.01}
    mine = MAFSVRG(models=1, threshold=2, acceleration="off", feature_scaling=scaling)
    theirs = ud.simulate(FSVRG(feature_scaling=scaling), linear(), sparse(), **options)
    assert_close(ud.simulate(mine, linear(), sparse(), **options).parameters, theirs.parameters, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", [MAFSVRG, GAFSVRG])
def test_features_enlarge_the_step_of_every_group(kind: Any) -> None:
    """As printed, A is the participation ratio of dense data, from the moment that not everybody takes part."""
    cohorts = [[0, 1, 2, 3, 4], [0, 2, 3]]

    def moves(scaling: str, **options: Any) -> tree.Tree:
        seen: list[tree.Tree] = []
        algorithm = kind(models=2, threshold=1, acceleration="off", feature_scaling=scaling, **options)
        ud.simulate(
            algorithm,
            linear(),
            classified(),
            rounds=2,
            cohort=cohorts,
            batch_size=4,
            lr=0.5,
            callbacks=[lambda row, run: seen.append(run.memory.server["models"])],
        )
        return tree.sub(seen[1], seen[0])

    plain, printed = moves("off"), moves("printed")
    assert_close(printed, {"weight": 0.6 * plain["weight"], "bias": plain["bias"]}, rtol=1e-9, atol=1e-12)
    assert_close(moves("cohort"), plain, rtol=1e-9, atol=1e-12)
    assert_close(moves("census"), printed, rtol=1e-9, atol=1e-12)
    if kind is GAFSVRG:  # Eq. 57 and again Eq. 60
        twice = {"weight": 0.36 * plain["weight"], "bias": plain["bias"]}
        assert_close(moves("printed", scale_twice=True), twice, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("kind", "default", "other"), [(MAFSVRG, "off", "cohort"), (GAFSVRG, "cohort", "off")])
def test_rare_features_are_scaled_by_default_only_where_steps_are_short(kind: Any, default: str, other: str) -> None:
    """A multiplies the way from a model to its group's centre in MA, a gradient step in GA."""
    options: dict[str, Any] = {"rounds": 3, "batch_size": 4, "lr": 0.8}

    def weight(**scaling: str) -> Tensor:
        return ud.simulate(kind(models=2, threshold=1, **scaling), linear(), sparse(), **options).parameters["weight"]

    assert torch.equal(weight(), weight(feature_scaling=default))
    assert (weight() - weight(feature_scaling=other)).abs().max() > 1e-3


def kinds_of_classes() -> tuple[list[tuple[Tensor, Tensor]], tuple[Tensor, Tensor]]:
    """Four clients with the classes 0 and 1, three with 2 and 3; a test set with all."""
    generator = torch.Generator().manual_seed(0)
    spots = 2 * torch.randn(4, 5, dtype=torch.float64, generator=generator)

    def draw(classes: list[int], count: int) -> tuple[Tensor, Tensor]:
        y = torch.tensor(classes).repeat(count)
        return spots[y] + 2 * torch.randn(len(y), 5, dtype=torch.float64, generator=generator), y

    return [draw([0, 1] if i < 4 else [2, 3], 8) for i in range(7)], draw([0, 1, 2, 3], 10)


def test_evaluation() -> None:
    """Every model on the whole test set; every client on its own classes with the model it prefers."""
    data, (x, y) = kinds_of_classes()
    model = seeded(lambda: nn.Linear(5, 4))
    run = ud.simulate(
        MAFSVRG(models=2, threshold=3), model, data, test=(x, y), rounds=3, epochs=3, lr=16.0, weight_decay=0.01
    )
    scores = [x @ m["weight"].T + m["bias"] for m in run.models]
    table = run.evaluate()
    np.testing.assert_allclose(table.accuracy, [float((s.argmax(1) == y).double().mean()) for s in scores])
    for row, s in zip(table[["precision", "recall", "f1"]].to_numpy(dtype=float), scores, strict=True):
        hits = np.array([[int(((s.argmax(1) == k) & (y == c)).sum()) for k in range(4)] for c in range(4)])
        recall = np.diag(hits) / hits.sum(1)
        precision = np.diag(hits) / np.maximum(hits.sum(0), 1)
        f1 = 2 * np.diag(hits) / (hits.sum(0) + hits.sum(1))
        np.testing.assert_allclose(row, [precision.mean(), recall.mean(), f1.mean()])
    assert run.history.accuracy.iloc[-1] == table.accuracy[0]

    preferred, told_apart = set(), False
    for client, (mine_x, mine_y) in enumerate(data):
        objectives = [
            nn.functional.cross_entropy(mine_x @ m["weight"].T + m["bias"], mine_y)
            + 0.005 * sum(v.square().sum() for v in m.values())
            for m in run.models
        ]
        choice, own = int(torch.stack(objectives).argmin()), torch.isin(y, mine_y)
        accuracies = [float((s[own].argmax(1) == y[own]).double().mean()) for s in scores]
        assert run.clients.accuracy[client] == pytest.approx(accuracies[choice])
        preferred.add(choice)
        told_apart |= accuracies[0] != accuracies[1]
    assert preferred == {0, 1}
    assert told_apart


@pytest.mark.parametrize("kind", [MAFSVRG, GAFSVRG])
def test_the_history_has_the_best_mean_and_worst_of_all_models(kind: Any) -> None:
    """Also what a report needs: metrics may not take these names, and other algorithms have no such columns."""
    x, y = classified()[0]
    options: dict[str, Any] = {"rounds": 3, "batch_size": 4, "lr": 2.0, "test": (x, y), "cohort": 4}
    run = ud.simulate(kind(models=3, threshold=1), linear(), classified(), **options)
    last, models = run.history.iloc[-1], run.evaluate().accuracy
    assert len(set(models)) > 1
    assert last.accuracy == models[0]
    found = last[["accuracy_best", "accuracy_mean", "accuracy_worst"]].tolist()
    np.testing.assert_allclose(found, [models.max(), models.mean(), models.min()], rtol=1e-12)
    rare = ud.simulate(kind(models=3, threshold=1), linear(), classified(), **options | {"eval_every": 3})
    assert rare.history.accuracy_best.isna().tolist() == [True, True, False]
    assert "accuracy_best" not in ud.simulate("fedavg", linear(), classified(), **options).history
    with pytest.raises(ValueError, match="accuracy_best"):
        ud.simulate(kind(), linear(), classified(), **options, metrics={"accuracy_best": lambda out, y: 0.0})


def test_a_model_with_batch_normalisation() -> None:
    runs = [
        ud.simulate(
            GAFSVRG(models=2, threshold=1), normed(), classified(), rounds=3, batch_size=4, lr=0.5, engine=engine
        )
        for engine in ("sequential", "batched:2")
    ]
    assert_close(runs[0].models, runs[1].models, rtol=1e-9, atol=1e-9)
    assert_close(runs[0].buffers, runs[1].buffers, rtol=1e-9, atol=1e-9)
    assert int(runs[0].buffers["1.num_batches_tracked"]) > 0


def test_divergence_is_reported_as_such() -> None:
    with pytest.raises(ud.DivergenceError):
        watch(KINDS, MAFSVRG(models=3, threshold=1), 60, lr=1e9)


def test_pgvc_goes_with_it() -> None:
    """The plug-in comes first; local training is otherwise the same."""
    algorithm = MAFSVRG(models=2, threshold=1, pgvc=ud.PGVC(layers=1, form="additive"))
    plain = MAFSVRG(models=2, threshold=1)
    options: dict[str, Any] = {"rounds": 3, "batch_size": 4, "lr": 0.5}
    with_it = ud.simulate(algorithm, linear(), classified(), **options).parameters
    assert not torch.allclose(
        with_it["weight"], ud.simulate(plain, linear(), classified(), **options).parameters["weight"]
    )


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"models": 0}, "models"),
        ({"threshold": 0}, "threshold"),
        ({"beta1": 1.0}, "beta1"),
        ({"beta2": 1.0}, "beta2"),
        ({"alpha0": -1.0}, "alpha0"),
        ({"acceleration": "adma"}, "did you mean 'adam'"),
        ({"feature_scaling": "on"}, "feature_scaling"),
        ({"group_lr": 0.0}, "group_lr"),
        ({"starts": "randm"}, "did you mean 'random'"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], word: str) -> None:
    for kind in (MAFSVRG, GAFSVRG):
        with pytest.raises(ValueError, match=word):
            kind(**options)


def test_what_has_no_meaning_is_refused() -> None:
    with pytest.raises(ValueError, match="group_lr belongs to GAFSVRG"):
        MAFSVRG(group_lr=0.1)
    with pytest.raises(ValueError, match="scale_twice belongs to GAFSVRG"):
        MAFSVRG(scale_twice=True)
    with pytest.raises(TypeError, match="centred_starts"):
        MAFSVRG(centred_starts=1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="models must be at most the number of clients, 3"):
        EQUAL.run(MAFSVRG(models=4), 1)
