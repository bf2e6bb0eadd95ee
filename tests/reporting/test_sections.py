"""Parts of the report on classes and clients."""

from __future__ import annotations

from typing import Any

import pytest

from records import record
from undrift.reporting.report import render
from undrift.reporting.sections.classes import MOST_CLASSES, classes
from undrift.reporting.sections.clients import MOST_DOTS, clients

HALF = [0.5, 0.5]
COLUMNS: dict[str, Any] = {
    "client_accuracy_mean": HALF,
    "client_accuracy_std": [0.1, 0.1],
    "client_accuracy_worst": [0.2, 0.2],
    "client_accuracy_worst_tenth": [0.25, 0.25],
    "client_accuracy_best": [0.9, 0.9],
    "client_accuracy_gap": [0.7, 0.7],
    "client_accuracy_jain": [0.875, 0.875],
}


def test_nothing_is_said_of_what_nobody_asked_for() -> None:
    assert classes([record("FedAvg", HALF)]) is None
    assert clients([record("FedAvg", HALF)]) is None


def test_clients_have_dots_box_and_figures() -> None:
    run = record("<b>mine</b>", HALF, **COLUMNS)._replace(detail={"client_accuracy": [0.2, None, 0.5, 0.6, 0.9]})
    other = record("FedAvg", HALF)  # of which nothing is known
    section = clients([run, other])
    assert section is not None
    html = section.html
    assert html.count("<circle") == 4
    assert '<circle cx="0.00%"' in html  # the axis begins at 20 %
    assert '<line class="median" x1="43.75%"' in html  # 55 %, between 20 % and 100 %
    assert "from 20.0\u00a0% to 90.0\u00a0%, median 55.0\u00a0%" in html
    assert "70.0\u00a0%</td><td>0.875</td>" in html
    assert "<b>mine" not in html
    assert "&lt;b&gt;mine" in html
    assert "Clients" in render([run, other])


def test_many_clients_are_thinned() -> None:
    many = [number / 2000 for number in range(2000)]
    section = clients([record("FedAvg", HALF, **COLUMNS)._replace(detail={"client_accuracy": many})])
    assert section is not None
    assert section.html.count("<circle") == MOST_DOTS


def test_classes_of_several_seeds() -> None:
    shares: dict[str, Any] = {"accuracy_class_0": [0.1, 0.5], "accuracy_class_1": [0.2, 0.25]}
    runs = [
        record("FedAvg", HALF, seed=seed, **shares)._replace(detail={"confusion": [[2, 2], [3 * seed, 4 - 3 * seed]]})
        for seed in (0, 1)
    ]
    section = classes(runs)
    assert section is not None
    assert ">50.0\u00a0%</td>" in section.html
    assert ">25.0\u00a0%</td>" in section.html
    assert "<title>1 as 0: 37.5\u00a0%</title>" in section.html  # 3 of 8
    assert section.html.count('class="square"') == 4


@pytest.mark.parametrize(("count", "shown"), [(MOST_CLASSES, True), (MOST_CLASSES + 1, False)])
def test_many_classes_are_left_out(count: int, shown: bool) -> None:
    eye = [[int(row == column) for column in range(count)] for row in range(count)]
    assert (classes([record("FedAvg", HALF)._replace(detail={"confusion": eye})]) is not None) == shown
