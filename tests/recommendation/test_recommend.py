"""`ud.recommend` and `undrift recommend`: the nearest settings, what is allowed, and how sure the answer is."""

from __future__ import annotations

import json
import math
from typing import Any

import pandas as pd
import pytest
from typer.testing import CliRunner

import undrift as ud
from undrift.cli import app
from undrift.overview import algorithms
from undrift.recommendation import choose, measured, ranks
from undrift.recommendation.situation import nearest, situation, skew

TASKS = [task for task in measured.TASKS if task.endswith("one class, all")]


def runs(figures: dict[str, list[float]], tasks: list[str] = TASKS) -> pd.DataFrame:
    """Accuracies by seed, at every rate; NaN is a run that diverged."""
    return pd.DataFrame(
        [
            (task, name, lr, seed, value, value, math.isnan(value), 100, 1000)
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
    return ud.recommend(**({"clients": 10, "classes_per_client": 1, "can_keep_state": True} | given))


FEDAVG = [0.50, 0.52, 0.51]


def test_a_clear_winner(monkeypatch: pytest.MonkeyPatch) -> None:
    found = answer({"fedavg": FEDAVG, "fedhbm": [0.80, 0.81, 0.82], "moon": [0.40, 0.41, 0.43]}, monkeypatch)
    assert (found.algorithm, found.verdict) == ("fedhbm", "clear")
    assert [row.algorithm for row in found.rows] == ["fedhbm", "fedavg", "moon"]
    assert found.rows[0].over_fedavg == pytest.approx(0.3)
    assert found.settings == tuple(TASKS)
    assert found.sure.startswith("Clearly better than FedAvg in these settings")


def test_a_lead_that_one_setting_does_not_show_is_not_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    """However small p is of all settings together."""
    figures = {"fedavg": FEDAVG, "fedhbm": [0.80, 0.81, 0.82]}
    lags = {"fedavg": FEDAVG, "fedhbm": [0.49, 0.51, 0.50]}
    task = "fashion-mnist, Dirichlet 0.1, all"
    rows = pd.concat([runs(figures), runs(figures, ["cifar10, Dirichlet 0.1, all"]), runs(lags, [task])])
    found = answer_from(rows, monkeypatch, classes_per_client=2)
    row = found.rows[0]
    assert (row.algorithm, row.everywhere, row.certain) == ("fedhbm", False, "likely")
    assert row.p_corrected < 0.001
    assert (found.algorithm, found.verdict) == ("fedhbm", "likely")
    assert "but not in every one of them" in found.sure
    ahead = answer_from(rows[rows.task != task], monkeypatch, classes_per_client=2)
    assert (ahead.rows[0].certain, ahead.verdict) == ("yes", "clear")


def test_runs_that_were_lost_count_in_the_difference_as_in_accuracy(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = {"moon": [math.nan, 0.60, 0.62], "feddyn": [math.nan] * 3}
    found = answer({"fedavg": FEDAVG} | lost, monkeypatch)
    rows = {row.algorithm: row for row in found.rows}
    assert (rows["moon"].lost, rows["feddyn"].lost) == (2, 6)
    for row in rows.values():
        assert row.over_fedavg == pytest.approx(row.accuracy - rows["fedavg"].accuracy)
    assert rows["moon"].over_fedavg == pytest.approx((1.22 - 1.53) / 3)
    assert found.algorithm == "fedavg"


@pytest.mark.parametrize("can_keep_state", [False, True])
@pytest.mark.parametrize("partition", ["classes:2", "dirichlet:0.3", "iid"])
@pytest.mark.parametrize("participation", [0.1, 1.0])
def test_no_stored_row_is_better_than_fedavg_with_less_accuracy(
    participation: float, partition: str, can_keep_state: bool
) -> None:
    found = ud.recommend(clients=20, participation=participation, partition=partition, can_keep_state=can_keep_state)
    rows = {row.algorithm: row for row in found.rows}
    differences = {name: row.accuracy - rows["fedavg"].accuracy for name, row in rows.items()}
    assert {name: row.over_fedavg for name, row in rows.items()} == pytest.approx(differences)


def test_a_tie_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    tied = {"fedhbm": [0.80, 0.81, 0.82], "feddyn": [0.81, 0.80, 0.81]}
    found = answer({"fedavg": FEDAVG} | tied, monkeypatch)
    assert (found.algorithm, found.verdict) == ("fedhbm", "tie")
    assert "fedhbm is not shown to be better than feddyn." in found.sure


def test_rivals_are_corrected_for_their_number_and_beaten_only_from_ahead() -> None:
    names = ["fedprox", "moon", "feddyn", "fednova", "fedcm", "mifa"]
    first = [0.80, 0.82, 0.84]
    far = [0.70, 0.735, 0.75]  # p by itself 0.002, of six 0.01
    near = [0.79, 0.80, 0.825]  # by itself 0.04, of four more than 0.05
    figures = {"fedavg": first} | dict.fromkeys(names, near) | {"fedprox": far, "moon": [0.9, 0.93, 0.95]}
    found = measured.outcomes(runs(figures, TASKS[:1]))
    tied = ranks.not_significantly_worse(found, TASKS[:1], "fedavg", names, corrected=True)
    assert tied == names[1:]
    assert ranks.not_significantly_worse(found, TASKS[:1], "fedavg", names, corrected=False) == ["moon"]


def test_the_first_is_named_where_others_are_surer(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = {"fedhbm": [0.56, 0.90, 0.64], "feddyn": [0.60, 0.62, 0.611], "moon": [0.50, 0.53, 0.50]}
    found = answer({"fedavg": FEDAVG} | figures, monkeypatch)
    assert (found.verdict, found.rows[0].algorithm) == ("likely", "fedhbm")
    assert "but not after a correction for 3 algorithms." in found.sure
    assert "Clearly better than FedAvg, though behind fedhbm in rank: feddyn." in found.sure


def test_without_a_difference_fedavg_is_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    found = answer({"fedavg": FEDAVG, "fedhbm": [0.40, 0.62, 0.53]}, monkeypatch)
    assert (found.algorithm, found.verdict) == ("fedavg", "no difference shown")
    assert found.answer == "Use fedavg; fedhbm has the best rank, but is not shown to be better than FedAvg."
    assert found.sure.startswith("fedhbm is not shown to be better than FedAvg in these settings (2\u00a0settings")


@pytest.mark.parametrize(
    ("best", "rate", "note"),
    [
        (0.03, 0.1, "was chosen here for fedavg: FedAvg, too, may be better with a larger one; tune both."),
        (0.1, 0.1, "was chosen here for fedhbm and fedavg: FedAvg, too, may be better with a larger one; tune both."),
        (0.1, 0.03, "was chosen here for fedhbm: it may be better with a larger one; tune both."),
        (0.03, 0.03, ""),
    ],
)
def test_a_rate_at_the_edge_is_said_of_fedavg_too(
    best: float, rate: float, note: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = runs({"fedavg": FEDAVG, "fedhbm": [0.80, 0.81, 0.82]})
    chosen = rows.algorithm.map({"fedavg": rate, "fedhbm": best})
    rows["held_out"] = (rows.lr == chosen).astype(float)
    notes = [each for each in answer_from(rows, monkeypatch).notes if "largest rate" in each]
    assert notes == ([f"The largest rate that was tried, 0.1, {note}"] if note else [])


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
    with pytest.raises(ValueError, match="no algorithm sends"):
        ud.recommend(clients=20, partition="iid", traffic=0.999)


@pytest.mark.parametrize("classes", [2, 10, 62, 200])
def test_alike_clients_differ_little_however_many_classes_there_are(classes: int) -> None:
    assert skew("iid", 100, classes) < 0.06
    kinds, _ = nearest(situation(100, 1.0, None, None, "iid", classes), measured.TASKS)
    assert [each.partition for each in kinds] == ["IID"]


def test_the_same_classes_per_client_are_the_same_situation() -> None:
    for partition, each in (("classes:2", 2), ("classes:2,min=5", 2), ("dirichlet-client:0", 1)):
        by_partition, by_number = (
            situation(300, 1.0, *given, 250) for given in [(None, None, partition), (each, None, None)]
        )
        assert by_partition == by_number


@pytest.mark.parametrize(
    ("participation", "said"), [(0.1, None), (0.12, "12 % in yours, 10 % there."), (0.25, "10 % there: far away.")]
)
def test_participation_is_far_away_beyond_a_factor_of_two(participation: float, said: str | None) -> None:
    lines = ud.recommend(clients=100, participation=participation, partition="iid").distance
    told = [line for line in lines if line.startswith("Participation")]
    assert len(told) == (said is not None)
    assert said is None or told[0].endswith(said)


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
        ({"clients": 1, "alpha": 1}, "clients must be at least 2, got 1"),
        ({"clients": 5, "alpha": 1, "participation": 0.05}, "at least 1/5 of 5 clients, got 0.05"),
        ({"clients": 5, "classes_per_client": 1}, "5 clients of 1 classes cannot hold all 10 classes"),
        ({"clients": 5, "partition": "classes:1"}, "5 clients of 1 classes cannot hold all 10 classes"),
        ({"clients": 20, "partition": "classes:11"}, "classes_per_client must be at least 1 and at most 10, got 11"),
        ({"clients": 20, "partition": "classes:x"}, "needs a whole number"),
        ({"clients": 100, "partition": "iid", "classes": 10**8}, "classes must be at most 1000"),
        ({"clients": 5, "alpha": 1, "participation": 0}, "participation"),
        ({"clients": 5, "classes_per_client": 11}, "classes_per_client"),
        ({"clients": 5, "partition": "dirichlt:1"}, "dirichlet"),
        ({"clients": 5, "alpha": 1, "traffic": 0.5}, "no algorithm sends"),
    ],
)
def test_what_cannot_be_answered_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ud.recommend(**given)


def test_a_third_of_three_clients_may_be_rounded() -> None:
    assert ud.recommend(clients=3, participation=0.33, classes_per_client=3.33).rows


def test_the_command() -> None:
    options = ["recommend", "--clients", "5", "--classes-per-client", "2", "--can-keep-state"]
    printed = CliRunner().invoke(app, options)
    found = ud.recommend(clients=5, classes_per_client=2, can_keep_state=True)
    assert printed.exit_code == 0
    assert found.answer in printed.output
    assert json.loads(CliRunner().invoke(app, [*options, "--json"]).output)["algorithm"] == found.algorithm
    assert choose.recommend is ud.recommend
