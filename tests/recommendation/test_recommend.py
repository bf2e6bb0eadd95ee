"""`ud.recommend` and `undrift recommend`: the nearest settings, what is allowed, and how sure the answer is."""

from __future__ import annotations

import json
from typing import Any

import pandas as pd
import pytest
from typer.testing import CliRunner

import undrift as ud
from undrift.cli import app
from undrift.overview import algorithms
from undrift.recommendation import choose, measured
from undrift.recommendation.situation import nearest, situation, skew

TASKS = [task for task in measured.TASKS if task.endswith("one class, all")]


def runs(figures: dict[str, list[float]], tasks: list[str] = TASKS) -> pd.DataFrame:
    """Accuracies by seed, at every rate."""
    return pd.DataFrame(
        [
            (task, name, lr, seed, value, value, False, 100, 1000)
            for task in tasks
            for name, values in figures.items()
            for lr in measured.RATES
            for seed, value in enumerate(values)
        ],
        columns=measured.COLUMNS,
    )


def answer(figures: dict[str, list[float]], monkeypatch: pytest.MonkeyPatch, **given: Any) -> ud.Recommendation:
    return answer_from(runs(figures), monkeypatch, **given)


def answer_from(rows: pd.DataFrame, monkeypatch: pytest.MonkeyPatch, **given: Any) -> ud.Recommendation:
    monkeypatch.setattr(measured, "rows", lambda: rows)
    monkeypatch.setattr(measured, "stored", lambda: measured.outcomes(rows))
    return ud.recommend(**({"clients": 5, "classes_per_client": 1, "can_keep_state": True} | given))


FEDAVG = [0.50, 0.52, 0.51]


def test_a_clear_winner(monkeypatch: pytest.MonkeyPatch) -> None:
    found = answer({"fedavg": FEDAVG, "fedhbm": [0.80, 0.81, 0.82], "moon": [0.40, 0.41, 0.43]}, monkeypatch)
    assert (found.algorithm, found.verdict) == ("fedhbm", "clear")
    assert [row.algorithm for row in found.rows] == ["fedhbm", "fedavg", "moon"]
    assert found.rows[0].over_fedavg == pytest.approx(0.3)
    assert found.settings == tuple(TASKS)


def test_a_tie_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    tied = {"fedhbm": [0.80, 0.81, 0.82], "feddyn": [0.81, 0.80, 0.81]}
    found = answer({"fedavg": FEDAVG} | tied, monkeypatch)
    assert (found.algorithm, found.verdict) == ("fedhbm", "tie")
    assert "feddyn" in found.sure


def test_without_a_difference_fedavg_is_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    found = answer({"fedavg": FEDAVG, "fedhbm": [0.40, 0.62, 0.53]}, monkeypatch)
    assert (found.algorithm, found.verdict) == ("fedavg", "no difference shown")
    assert "no difference" in found.answer


@pytest.mark.parametrize(("there", "settings"), [(["fedavg", "fedhbm", "moon"], TASKS), (["fedavg"], TASKS[:1])])
def test_a_setting_counts_if_most_algorithms_were_measured_there(
    there: list[str], settings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = {"fedavg": FEDAVG, "fedhbm": [0.8, 0.81, 0.82], "moon": [0.4, 0.41, 0.43], "feddyn": [0.6, 0.62, 0.64]}
    rows = pd.concat([runs(figures, TASKS[:1]), runs({name: figures[name] for name in there}, TASKS[1:])])
    found = answer_from(rows, monkeypatch)
    assert found.settings == tuple(settings)
    assert {row.algorithm for row in found.rows} == set(there if settings == TASKS else figures)


def test_what_is_not_measured_is_said() -> None:
    found = ud.recommend(clients=5, classes_per_client=2, can_keep_state=True)
    absent = set(algorithms()) - {row.algorithm for row in found.rows} - {"fedbn", "mimelite", "mimesvrg"}
    assert all(any(name in note for note in found.notes) for name in absent)


def test_clients_without_state_are_given_algorithms_that_keep_none() -> None:
    names = {row.algorithm for row in ud.recommend(clients=10_000, participation=0.01, alpha=0.1).rows}
    assert "fedavg" in names
    assert all(algorithms()[name].cost.stateless for name in names)
    kept = {row.algorithm for row in ud.recommend(clients=100, participation=0.1, alpha=0.1, can_keep_state=True).rows}
    assert {"scaffold", "fedhbm"} <= kept - names


def test_traffic_is_bounded() -> None:
    rows = ud.recommend(clients=20, partition="iid", can_keep_state=True, traffic=1.5).rows
    assert max(row.traffic for row in rows) == pytest.approx(1.5, abs=0.01)


def test_near_is_participation_then_how_much_clients_differ() -> None:
    assert skew("classes:2", 10) == pytest.approx(0.8)
    (only,), others = nearest(situation(50, 0.02, None, 0.9, None, 10), measured.TASKS)
    assert (only.partition, only.part) == ("Dirichlet 1", "10 %")
    assert len(others) == 7
    (both,), _ = nearest(situation(5, 1.0, 2, None, None, 2), measured.TASKS)  # two of two classes are no skew
    assert both.partition == "IID"


def test_between_two_settings_both_are_asked() -> None:
    kinds, others = nearest(situation(5, 1.0, 2, None, None, 10), measured.TASKS)
    assert [each.partition for each in kinds] == ["one class", "Dirichlet 0.1"]
    assert [each.partition for each in others[:2]] == ["Dirichlet 1", "IID"]
    assert {each.part for each in kinds} == {"all"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"clients": 5}, "say how clients differ"),
        ({"clients": 5, "alpha": 1, "classes_per_client": 2}, "got 2 of them"),
        ({"clients": 0, "alpha": 1}, "clients"),
        ({"clients": 5, "alpha": 1, "participation": 0}, "participation"),
        ({"clients": 5, "classes_per_client": 11}, "classes_per_client"),
        ({"clients": 5, "partition": "dirichlt:1"}, "dirichlet"),
        ({"clients": 5, "alpha": 1, "traffic": 0.5}, "no algorithm sends"),
    ],
)
def test_what_cannot_be_answered_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ud.recommend(**given)


def test_the_command() -> None:
    options = ["recommend", "--clients", "5", "--classes-per-client", "2", "--can-keep-state"]
    printed = CliRunner().invoke(app, options)
    found = ud.recommend(clients=5, classes_per_client=2, can_keep_state=True)
    assert printed.exit_code == 0
    assert found.answer in printed.output
    assert json.loads(CliRunner().invoke(app, [*options, "--json"]).output)["algorithm"] == found.algorithm
    assert choose.recommend is ud.recommend
