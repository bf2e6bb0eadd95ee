"""Drift diagnostics: by hand on quadratics, the same on every engine, and nothing of them in the training."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import undrift as ud
from quadratics import P2, Point, Quadratics, half_square, walk
from undrift.diagnostics import DIAGNOSTICS
from undrift.reporting.record import Record
from undrift.simulation import round as rounds

EVERYTHING = list(DIAGNOSTICS)
ONE_MODEL = [name for name, each in DIAGNOSTICS.items() if each.one_model]

# Two clients in a plane, of one and three samples, so that means are weighted.
PLANE = Quadratics(((1.0, 2.0), (3.0, 0.5)), ((0.0, 1.0), (4.0, -2.0)), (1.0, 1.0), lr=0.1, steps=2, samples=(1, 3))
WEIGHTS = np.array([0.25, 0.75])


def figures(run: ud.Run, name: str, round: int = 1) -> dict[str, float]:
    """Of the whole model, by statistic."""
    row = run.history.iloc[round - 1]
    return {key.split("/")[1]: row[key] for key in row.index if key.startswith(f"{name}/") and key.count("/") == 1}


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


class TestByHand:
    def updates(self, start: np.ndarray) -> np.ndarray:
        def gradient(y: np.ndarray, client: int) -> np.ndarray:
            return np.asarray(PLANE.a[client] * (y - PLANE.b[client]))

        clients = (partial(gradient, client=client) for client in range(len(PLANE.a)))
        return np.array([walk(start, each, PLANE.steps, lr=PLANE.lr) for each in clients]) - start

    def test_updates(self) -> None:
        path, run = PLANE.run("fedavg", 2, diagnostics=EVERYTHING)
        starts = [np.array(PLANE.start), path[0]]
        for number, start in enumerate(starts, 1):
            updates = self.updates(start)
            mean, norms = WEIGHTS @ updates, np.linalg.norm(updates, axis=1)
            cosines = np.array([cosine(update, mean) for update in updates])
            variance = WEIGHTS @ ((updates - mean) ** 2).sum(1)
            expected = {
                "client_distance": {"mean": WEIGHTS @ norms, "max": norms.max()},
                "update_cosine": {"mean": WEIGHTS @ cosines, "min": cosines.min()},
                "update_variance": {"value": variance},
                "update_ratio": {"value": np.linalg.norm(mean) / (WEIGHTS @ norms)},
            }
            for name, values in expected.items():
                assert figures(run, name, number) == pytest.approx(values)

    def test_the_servers_last_step(self) -> None:
        path, run = PLANE.run("fedavg(server_lr=0.7)", 3, diagnostics="global_cosine,previous_cosine")
        assert np.isnan([*figures(run, "global_cosine").values(), *figures(run, "previous_cosine").values()]).all()
        steps = np.diff([PLANE.start, *path], axis=0)
        for number in (2, 3):
            last = steps[number - 2]
            assert figures(run, "global_cosine", number)["value"] == pytest.approx(cosine(steps[number - 1], last))
            cosines = np.array([cosine(update, last) for update in self.updates(path[number - 2])])
            expected = {"mean": WEIGHTS @ cosines, "min": cosines.min()}
            assert figures(run, "previous_cosine", number) == pytest.approx(expected)

    def test_gradient_norms_over_steps_and_clients(self) -> None:
        _, run = P2.run("fedavg", 1, diagnostics=["gradient_norm"])
        norms = np.array([1, 0.9, 9, 6.3])  # a (x − b) at 1, 0.9 and at 1, 1.9
        expected = {"mean": norms.mean(), "variance": norms.var(), "max": 9}
        assert figures(run, "gradient_norm") == pytest.approx(expected)

    def test_constants_of_bounds(self) -> None:
        _, run = P2.run("fedavg", 1, diagnostics=EVERYTHING)
        # At 1, the clients' gradients are 1 and −9, their losses 1/2 and 27/2.
        assert figures(run, "gradient_dissimilarity") == pytest.approx({"delta": 5, "B": (41**0.5) / 4, "norm": 4})
        assert figures(run, "gradient_noise") == {"sigma": 0}
        assert figures(run, "gradient_bound") == pytest.approx({"G": 9, "zeta": 41**0.5})
        assert figures(run, "penalty_bound") == pytest.approx({"G_rho": 121.5})

    def test_noise_of_a_batch(self) -> None:
        targets = torch.tensor([[[1.0], [0.0]], [[1.0], [4.0]]], dtype=torch.float64)  # gradients at 1: 1 and −3
        data = [(torch.zeros(2, 1, dtype=torch.float64), targets)] * 2
        run = ud.simulate(
            "fedavg", Point([1.0]), data, loss=half_square, rounds=1, batch_size=1, lr=0.1, clip=0.5,
            diagnostics=["gradient_noise", "gradient_bound"],
        )  # fmt: skip
        assert figures(run, "gradient_noise") == pytest.approx({"sigma": 2})  # whichever sample; ∇f_i = −1
        assert figures(run, "gradient_bound")["G"] in (1, 3), "not clipped"

    def test_weight_decay_belongs_to_the_objective(self) -> None:
        _, run = P2.run("fedavg", 1, weight_decay=2.0, diagnostics=["gradient_norm", "gradient_dissimilarity"])
        assert figures(run, "gradient_dissimilarity")["norm"] == pytest.approx(2)  # (1 + 2 − 9 + 2)/2
        assert figures(run, "gradient_norm")["max"] == pytest.approx(7)

    def test_alignment_of_no_correction(self) -> None:
        _, run = P2.run("fedavg", 1, diagnostics=["correction_alignment"])
        found = figures(run, "correction_alignment")
        assert found["direction"] == found["gradient"] == pytest.approx(0)  # ∓1, as the clients pull apart
        assert np.isnan([found["correction"], found["ideal"]]).all()

    def test_alignment_of_a_correction(self) -> None:
        _, run = P2.run("scaffold", 2, diagnostics=["correction_alignment"])
        assert np.isnan(figures(run, "correction_alignment", 1)["correction"]), "controls are zero"
        # Controls are gradients of round 1, and the server's their mean: each correction points from ∇f_i to ∇f.
        found = figures(run, "correction_alignment", 2)
        assert found["ideal"] == pytest.approx(1)
        assert found["correction"] == pytest.approx(0)


def federation(sizes: tuple[int, ...] = (10, 7, 16, 3)) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [(torch.randn(n, 6, generator=generator), torch.randint(4, (n,), generator=generator)) for n in sizes]


def model(batch_norm: bool = False) -> nn.Module:
    torch.manual_seed(0)
    normalised = [nn.BatchNorm1d(5)] if batch_norm else []
    return nn.Sequential(nn.Linear(6, 5), *normalised, nn.Tanh(), nn.Linear(5, 4))


def simulated(algorithm: Any = "scaffold", batch_norm: bool = False, **options: Any) -> ud.Run:
    defaults: dict[str, Any] = {"rounds": 3, "cohort": 3, "lr": 0.05, "batch_size": 4, "dtype": "float64"}
    given = defaults | {"device": "cpu", "engine": "batched"} | options
    return ud.simulate(algorithm, model(batch_norm), federation(), **given)


def all_figures(run: ud.Run | Record) -> np.ndarray:
    return run.history.drop(columns=["seconds", "evaluation_seconds"]).to_numpy(dtype=float)


@pytest.mark.parametrize("algorithm", ["mime", "fedbn", "fedga", "perfedavg", "mafsvrg", "gafsvrg"])
def test_engines_agree(algorithm: str) -> None:
    names = [name for name in EVERYTHING if "fsvrg" not in algorithm or name not in ONE_MODEL]
    options: dict[str, Any] = {"diagnostics": names, "batch_norm": algorithm == "fedbn", "weight_decay": 0.01}
    one, other = (simulated(algorithm, engine=engine, rounds=2, **options) for engine in ("sequential", "batched:2"))
    assert np.allclose(all_figures(one), all_figures(other), rtol=1e-9, atol=1e-9, equal_nan=True)
    assert one.history["client_distance/mean/0"].gt(0).all()


@pytest.mark.parametrize("engine", ["sequential", "batched"])
@pytest.mark.parametrize("options", [{}, {"compress": "half", "dtype": None, "clip": 0.5}], ids=["plain", "compressed"])
def test_training_is_the_same_to_the_bit(engine: str, options: dict[str, Any]) -> None:
    off = simulated(engine=engine, **options)
    on, again = (simulated(engine=engine, diagnostics=EVERYTHING, **options) for _ in range(2))
    assert all(torch.equal(value, on.parameters[name]) for name, value in off.parameters.items())
    columns = off.history.columns.drop(["seconds", "evaluation_seconds"])  # traffic among them
    assert off.history[columns].equals(on.history[columns])
    assert np.array_equal(all_figures(on), all_figures(again), equal_nan=True)


def test_off_it_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "Watch", None)
    run = simulated()
    assert "diagnostics" not in run.memory.server
    assert not any("/" in column for column in run.history.columns)
    assert run.diagnostics.empty


def test_a_layer_is_a_module() -> None:
    table = simulated("fedavg", batch_norm=True, diagnostics=["client_distance", "global_cosine"]).diagnostics
    assert list(table.columns) == ["round", "name", "layer", "statistic", "value"]
    assert sorted(table["layer"].unique()) == ["", "0", "1", "3"]
    assert table["round"].is_monotonic_increasing
    means = table[(table["name"] == "client_distance") & (table["statistic"] == "mean") & (table["round"] == 1)]
    whole = means[means["layer"] == ""]["value"].item()
    assert 0 < means[means["layer"] == "3"]["value"].item() < whole < means["value"].sum()


def test_runs_that_train_together() -> None:
    options: dict[str, Any] = {"rounds": 2, "cohort": 3, "lr": 0.05, "batch_size": 4, "dtype": "float64"}
    options |= {"diagnostics": EVERYTHING, "engine": "batched"}
    together = ud.compare(["scaffold"], model(), federation(), seeds=[0, 1], **options)
    for record in together.records:
        alone = simulated(rounds=2, diagnostics=EVERYTHING, seed=record.seed, weighting="samples")
        assert np.allclose(all_figures(record), all_figures(alone), rtol=1e-9, atol=1e-9, equal_nan=True)


def test_resumed(tmp_path: Path) -> None:
    whole = simulated(diagnostics=EVERYTHING, out=tmp_path / "whole")
    simulated(diagnostics=EVERYTHING, out=tmp_path / "part", rounds=1)
    resumed = simulated(diagnostics=EVERYTHING, out=tmp_path / "part", resume=True)
    assert np.array_equal(all_figures(whole), all_figures(resumed), equal_nan=True)
    with pytest.raises(ValueError, match="was begun with diagnostics="):
        simulated(diagnostics=["client_distance"], out=tmp_path / "part", resume=True)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (["client_distanse"], "unknown diagnostic 'client_distanse'; did you mean 'client_distance'"),
        ("client_distance,drift", "unknown diagnostic 'drift'; allowed: 'client_distance'"),
        (3, "diagnostics must be names"),
        ([3], "diagnostics must be names such as 'client_distance', got"),
    ],
)
def test_refused(given: Any, complaint: str) -> None:
    with pytest.raises((TypeError, ValueError), match=complaint):
        simulated(diagnostics=given)


def test_refused_where_models_change_places() -> None:
    with pytest.raises(ValueError, match=r"global_cosine .* but MAFSVRG keeps 2 models that change places"):
        simulated("mafsvrg(models=2)", diagnostics=["client_distance", "global_cosine"])
