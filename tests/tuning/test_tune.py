"""Tuning: the same budget for all, never the test set, the same result after an interruption."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import undrift as ud
from undrift.algorithms.text import parse
from undrift.simulation import together
from undrift.simulation.loop import train
from undrift.simulation.round import RoundRunner
from undrift.tuning import PRESETS, edges
from undrift.tuning import tuner as tuner_module
from undrift.tuning.grid import Space, spaces
from undrift.tuning.search import rungs

SETTING: dict[str, Any] = {"cohort": 3, "batch_size": 4, "engine": "batched"}
GENERATOR = np.random.default_rng(0)
MEANS = GENERATOR.normal(size=(3, 5))
Y = GENERATOR.integers(0, 3, 60)
X = (MEANS[Y] + 0.5 * GENERATOR.normal(size=(60, 5))).astype(np.float32)
CLIENTS = np.split(np.arange(60), [4, 11, 30, 33, 45])


def federation(test: Any = (X[:20], Y[:20])) -> ud.FederatedData:
    return ud.FederatedData(X, Y, CLIENTS, test, classes=3)


def module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 3), nn.Linear(3, 3))


def tune(algorithms: Any = ("fedavg", "fedprox"), **arguments: Any) -> ud.Tuning:
    given: dict[str, Any] = {"grid": {"lr": [0.001, 0.1]}, "rounds": 3} | arguments
    return ud.tune(algorithms, module(), given.pop("data", federation()), **given, **SETTING)


# What is tried


def test_the_best_of_every_algorithm() -> None:
    tuning = tune(grid={"lr": [0.001, 0.1], "fedprox.mu": [0.5, 2]}, seeds=2)
    table = tuning.table()
    assert table.columns[:3].tolist() == ["label", "lr", "mu"]
    assert tuning.best()["FedAvg"] == "fedavg(lr=0.1)"
    assert parse(tuning.best()["FedProx"]).settings == {"lr": 0.1}
    for label, trial in tuning.winners.items():
        of_label = table[table["label"] == label]
        assert trial.accuracy == of_label["accuracy"].max()
        assert of_label["best"].sum() == 1
    expected = ud.simulate(
        "fedavg", module(), federation(None).validation(0.2), lr=0.1, rounds=3, seed=1, weighting="samples", **SETTING
    )
    found = tuning.winners["FedAvg"].records[1].history
    assert found["accuracy"].isna().tolist() == [True, True, False]  # only what decides is evaluated
    np.testing.assert_allclose(found["accuracy"].iloc[-1], expected.history["accuracy"].iloc[-1], atol=1e-6)


def test_runs_that_differ_in_rate_and_seed_train_together(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    original = RoundRunner.run

    def run(self: RoundRunner, memories: Any, round: int) -> Any:
        seen.append(len(memories))
        return original(self, memories, round)

    monkeypatch.setattr(RoundRunner, "run", run)
    tune(["scaffold"], grid={"lr": [0.01, 0.03, 0.1]}, seeds=2, rounds=2)
    assert seen == [6, 6]


def test_the_test_set_is_never_looked_at() -> None:
    one, other = (tune(data=federation(test)).table() for test in ((X[:20], Y[:20]), (X[:20], (Y[:20] + 1) % 3)))
    pd.testing.assert_frame_equal(one, other)
    held = federation().validation(0.3)
    assert held.test is not None
    assert held.local_tests is not None
    assert not set(held.rows.tolist()) & set(held.local_tests.rows.tolist())
    assert len(held.test[0]) == len(held.local_tests.rows) == 60 - len(held.rows)


def test_predictions_of_trials_are_not_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("a trial has no use for predictions")

    with monkeypatch.context() as during:
        during.setattr("undrift.simulation.run.predictions", refuse)
        tuning = tune(out=tmp_path / "t")
    assert not list((tmp_path / "t").rglob("predictions.safetensors"))
    assert all(record.predictions is None for trial in tuning.trials for record in trial.records)
    caplog.clear()
    assert all(record.predictions is None for record in ud.Comparison.from_directories([tmp_path / "t"]).records)
    assert "predictions" not in caplog.text  # that a trial has none is no damage
    assert tuning.compare(1).records[0].predictions is not None


def test_every_algorithm_has_the_same_budget() -> None:
    tuning = tune(grid={"lr": [0.01, 0.1, 1.0], "fedprox.mu": [0.1, 0.2, 0.3, 0.4]}, rounds=1)
    table = tuning.table()
    assert table["label"].value_counts().to_dict() == {"FedAvg": 3, "FedProx": 3}
    drawn = table[table["label"] == "FedProx"]
    assert sorted(drawn["lr"]) == [0.01, 0.1, 1.0]  # every value about equally often
    assert drawn["mu"].nunique() == 3
    assert (table["rounds"] == 1).all()


def test_of_a_larger_grid_values_are_drawn_evenly() -> None:
    space = Space("A", parse("fedprox"), {"mu": [0.1, 0.2, 0.3], "lr": [1.0, 2.0, 3.0, 4.0]})
    chosen = [one.values for one in space.configurations(6, seed=0)]
    assert len({tuple(values.items()) for values in chosen}) == 6
    assert {sum(v["mu"] == mu for v in chosen) for mu in (0.1, 0.2, 0.3)} == {2}
    assert all(1 <= sum(v["lr"] == lr for v in chosen) <= 2 for lr in (1.0, 2.0, 3.0, 4.0))
    assert chosen == [one.values for one in space.configurations(6, seed=0)]


def test_rates_around_the_data_sets_own_by_default() -> None:
    tuning = ud.tune(["fedavg", "fedadam"], "softmax", "digits", rounds=1, budget=3, cohort=2)
    table = tuning.table()
    assert set(tuning.plan["grid"]["FedAvg"]) == {"lr"}
    assert tuning.plan["grid"]["FedAdam"]["server_lr"] == [0.001, 0.01, 0.1]
    rate = ud.simulate("fedavg", "softmax", "digits", rounds=1, cohort=2).options.lr
    assert tuning.plan["grid"]["FedAvg"]["lr"] == [float(f"{rate * f:.3g}") for f in (0.1, 0.3, 1, 3, 10)]
    assert table["label"].value_counts().to_dict() == {"FedAvg": 3, "FedAdam": 3}


def test_presets_have_options_that_exist() -> None:
    for name, preset in PRESETS.items():
        named = {key.partition(".")[0] for key in preset.grid if "." in key} | {"fedavg"}
        every = spaces({each: parse(each) for each in named}, preset.grid)
        assert {space.label for space in every} == named, name
    own_step = spaces({"F": parse("feddyn")}, PRESETS["fedhbm"].grid, paper=True)[0]
    assert set(own_step.axes) == {"lr", "alpha"}


def test_a_preset_by_name() -> None:
    tuning = tune(["feddpc", "fedcm"], grid="feddpc", rounds=1)
    assert tuning.table()["label"].value_counts().to_dict() == {"FedDPC": 5, "FedCM": 5}


# What becomes of trials


def test_divergence_is_the_worst_and_no_error() -> None:
    tuning = tune(["fedavg"], grid={"lr": [0.001, 1e15]}, rounds=4)
    assert tuning.best() == {"FedAvg": "fedavg(lr=0.001)"}
    assert tuning.table()["failed"].tolist() == [0, 1]
    hopeless = tune(["fedavg"], grid={"lr": [1e14, 1e15]}, rounds=4)
    assert hopeless.notes[0].startswith("FedAvg: every configuration failed")
    assert len(hopeless.best()) == 1


def test_a_value_at_the_edge_is_told() -> None:
    tuning = tune(["fedavg"], grid={"lr": [0.001, 0.01, 0.1]})
    assert tuning.notes == ["FedAvg: lr 0.1 is the largest tried; consider more, such as 1"]
    inner = tune(["fedavg"], grid={"lr": [0.001, 0.1, 1e15]})
    assert inner.notes == []
    # Where nothing further is possible, nothing is said: a momentum of 1 is refused.
    trials = tune(["fedavg"], grid={"momentum": [0.0, 0.9999999]}).trials
    assert edges.notes(trials[1], trials) == []


def test_accuracy_against_a_value(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib").use("Agg")
    tuning = tune(grid={"lr": [0.001, 0.1], "fedprox.mu": [0.5, 2]}, budget=2, seeds=2, rounds=1)
    drawn = edges.sensitivity_to("lr", tuning.trials)
    assert [line.label for line in drawn.lines] == ["FedAvg", "FedProx"]
    assert drawn.logarithmic
    best = tuning.winners["FedAvg"]
    assert drawn.lines[0].points[1].mean == best.accuracy
    figure = tuning.plot("lr").get_figure(root=True)
    assert figure is not None
    for kind in ("svg", "png", "pdf"):
        figure.savefig(tmp_path / f"lr.{kind}")
        assert (tmp_path / f"lr.{kind}").stat().st_size > 1000
    with pytest.raises(ValueError, match="key must be one of 'lr', 'mu'"):
        tuning.plot("nu")


def test_the_winners_are_compared_with_fresh_seeds(tmp_path: Path) -> None:
    tuning = tune(seeds=[0, 2])
    comparison = tuning.compare(2)
    assert [(r.label, r.seed) for r in comparison.records] == [(n, s) for n in ("FedAvg", "FedProx") for s in (3, 4)]
    expected = ud.simulate("fedavg", module(), federation(), lr=0.1, rounds=3, seed=3, weighting="samples", **SETTING)
    np.testing.assert_allclose(comparison.records[0].history["loss"], expected.history["loss"], atol=1e-5)
    page = comparison.report(tmp_path / "report.html").read_text(encoding="utf-8")
    assert "How the settings were chosen" in page
    assert "fedavg(lr=0.1)" in page
    with pytest.raises(ValueError, match=r"seeds must not be those of the tuning, \[0, 2\], got 2"):
        tuning.compare([1, 2])


def test_what_was_chosen_is_read_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    home = tmp_path / "t"
    tuning = tune(grid={"lr": [0.001, 0.1], "fedprox.mu": [0.5, 2]}, budget=2, rounds=1, out=home)
    assert [row[0] for row in tuning.choices.chosen] == ["FedAvg", "FedProx"]
    assert [row[0] for row in tuning.choices.tried[:2]] == ["fedavg(lr=0.001)", "fedavg(lr=0.1)"]
    trials = ud.Comparison.from_directories([home]).records
    assert len(trials) == 4
    assert all(record.config["tuning"] == tuning.choices for record in trials)
    # The comparison of the winners is what the folder is about, then.
    made = tuning.compare(1, targets=[0.25])
    read = ud.Comparison.from_directories([home])
    assert [record.label for record in read.records] == ["FedAvg", "FedProx"]
    assert read.targets == [0.25]
    made.report(tmp_path / "made.html")
    read.report(tmp_path / "read.html")
    assert (tmp_path / "made.html").read_bytes() == (tmp_path / "read.html").read_bytes()
    assert len(ud.Comparison.from_directories([home / "tuning"]).records) == 4
    # Without the file there is no section, and nothing else is missing.
    (home / "tuning.json").write_text("{")
    caplog.clear()
    assert ud.Comparison.from_directories([home]).records[0].config["tuning"] is None
    assert "how the settings were chosen is not shown" in caplog.text


# Successive halving, Optuna, and what is left of an interruption


def test_rungs() -> None:
    assert rungs(9, 30) == [(9, 4), (3, 10), (1, 30)]
    assert rungs(5, 30) == [(5, 10), (2, 30)]
    assert rungs(2, 30) == [(2, 30)]
    assert rungs(27, 3) == [(3, 1), (1, 3)]
    assert rungs(9, 1) == [(1, 1)]


RATES = [0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 1e15]


def test_successive_halving() -> None:
    tuning, short = tune(grid={"lr": RATES}, method="halving", rounds=9), tune(grid={"lr": RATES}, rounds=1)
    for label in ("FedAvg", "FedProx"):
        trials = tuning.of(label)
        assert sorted(trial.rounds for trial in trials) == [1] * 6 + [3] * 2 + [9]
        first = {trial.configuration.values["lr"]: trial for trial in short.of(label)}
        gone_on = {trial.configuration.values["lr"] for trial in trials if trial.rounds > 1}
        assert gone_on == set(sorted(first, key=lambda rate: first[rate].rank)[:3])
        assert tuning.winners[label].rounds == 9


@pytest.mark.parametrize("method", ["grid", "halving", "optuna"])
def test_an_interrupted_tuning_comes_to_the_same(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if method == "optuna":
        pytest.importorskip("optuna")
    rates = [0.01, 1.0] if method == "optuna" else RATES[5:]
    given: dict[str, Any] = {"grid": {"lr": rates}, "method": method, "rounds": 6, "budget": 4}
    whole = tune(["scaffold"], out=tmp_path / "whole", **given)
    rounds = 0

    def interrupted(runs: Any, callbacks: Any, on_divergence: str) -> None:
        class Stop(ud.Callback):
            def round(self, row: dict[str, Any], run: ud.Run) -> object:
                nonlocal rounds
                rounds += 1
                if rounds % 9 == 0:
                    for each in runs:
                        each.save()
                    raise KeyboardInterrupt
                return False

        train(runs, [*callbacks, Stop()], on_divergence)

    monkeypatch.setattr(together, "train", interrupted)
    for _ in range(100):
        try:
            again = tune(["scaffold"], out=tmp_path / "parts", **given)
            break
        except KeyboardInterrupt:
            continue
    assert rounds > 9
    pd.testing.assert_frame_equal(again.table(), whole.table(), check_exact=True)
    assert again.best() == whole.best()
    # A third time nothing is trained.
    monkeypatch.setattr(tuner_module, "train_all", None)
    third = tune(["scaffold"], out=tmp_path / "parts", **given)
    pd.testing.assert_frame_equal(third.table(), whole.table(), check_exact=True)


def test_optuna_searches_between_the_values() -> None:
    pytest.importorskip("optuna")
    tuning = tune(["fedprox"], grid={"lr": [0.001, 1.0], "fedprox.mu": [0.0, 1.0]}, method="optuna", budget=6, rounds=9)
    table = tuning.table()
    assert len(table) >= 6
    assert table["lr"].between(0.001, 1).all()
    assert table["lr"].nunique() > 3
    assert 5 * 9 < table["rounds"].sum() <= 6 * 9  # what is left is less than a whole one
    assert math.isclose(tuning.winners["FedProx"].accuracy, table[table["rounds"] == 9]["accuracy"].max())


def test_another_tuning_in_the_folder_is_refused(tmp_path: Path) -> None:
    tune(["fedavg"], out=tmp_path, rounds=1)
    with pytest.raises(ValueError, match="holds a tuning with rounds=1, not 2; choose another directory"):
        tune(["fedavg"], out=tmp_path, rounds=2)


# Wrong input


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"grid": {}}, "grid must have values to try"),
        ({"grid": {"lr": []}}, "grid: lr must have at least one value"),
        ({"grid": {"lr": 0.1}}, "grid: lr must be a list of values, got 0.1"),
        ({"grid": {"lr": [0.1, 0.1]}}, "grid: lr must be different values"),
        ({"grid": {"lr": [0.1, "fast"]}}, "grid: FedAvg: lr must be a number, got 'fast'"),
        ({"grid": {"lr": [0.1, -1]}}, "grid: FedAvg: lr must be greater than 0"),
        ({"grid": {"fedprox.nu": [1]}}, "grid: FedProx has no option 'nu'; did you mean 'mu'?"),
        ({"grid": {"fedprx.mu": [1]}}, "grid: fedprx.mu: 'fedprx' is none of the algorithms; did you mean 'fedprox'?"),
        ({"grid": {"mu": [1]}}, "grid: 'mu' is no setting of all algorithms; did you mean 'fedprox.mu'?"),
        ({"grid": {"fedprox.mu": [-1], "lr": [0.1]}}, "grid: FedProx: mu must be at least 0"),
        ({"grid": {"fedprox.mu": [1]}}, "grid: it has nothing to try of FedAvg"),
        ({"grid": "fedhmb"}, "unknown grid 'fedhmb'; did you mean 'fedhbm'?"),
        ({"grid": [0.1]}, "grid must be a dict"),
        ({"budget": 3}, "budget=3 cannot be the same for all: FedAvg has only 2 configurations"),
        ({"budget": 0}, "budget must be at least 1"),
        ({"method": "random"}, "method must be one of 'grid', 'halving', 'optuna'"),
        ({"validation_share": 1}, "validation_share must be greater than 0 and less than 1"),
        ({"lr": 0.1}, "lr=0.1 is one rate for all"),
        ({"algorithms": ["fedavg(lr=0.1)"]}, r"FedAvg(lr=0.1) has a value of lr of its own already"),
        ({"round": 3}, "tune has no argument 'round'; did you mean 'rounds'?"),
    ],
)
def test_wrong_input(arguments: dict[str, Any], message: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises((ValueError, TypeError)) as error:
        tune(**arguments, out=out)
    assert message in str(error.value)
    assert not out.exists()
