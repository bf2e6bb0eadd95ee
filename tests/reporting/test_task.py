"""Runs of different tasks: told apart, named, and never ranked together."""

from __future__ import annotations

from typing import Any

import pytest

from records import FEDAVG, FEDHBM, record
from undrift.reporting import notebook, report
from undrift.reporting.facts import facts_of, names_of
from undrift.reporting.record import Record
from undrift.reporting.task import by_task

OPTIONS = {
    **{"rounds": 4, "cohort": 8, "epochs": 1, "steps": None, "batch_size": 32},
    **{"lr": 0.1, "optimizer": "sgd", "weighting": None},
}
DATA = {"name": "digits", "partition": "classes:2", "clients": 40, "test_share": 0.0}


def run(label: str = "FedAvg", seed: int = 0, **changes: Any) -> Record:
    """A run with a whole configuration, of which some is changed."""
    options = OPTIONS | {key: value for key, value in changes.items() if key in OPTIONS}
    others = {key: value for key, value in changes.items() if key not in OPTIONS}
    algorithm = {"name": label.lower(), "options": {}}
    config = {"algorithm": algorithm, "model": "mlp", "data": DATA | {"seed": seed}, "options": options}
    return record(label, FEDAVG, seed=seed, config=config | others)


def labels(records: list[Record]) -> list[list[str]]:
    return [[each.label for each in task] for task in by_task(records)]


@pytest.mark.parametrize(
    "change",
    [
        {"model": "cnn"},
        {"data": DATA | {"partition": "iid"}},
        {"data": DATA | {"clients": 20}},
        {"data": {"fingerprint": "a"}},
        {"loss": {"fingerprint": "mine"}},
        {"rounds": 8},
        {"cohort": 4},
        {"epochs": 2},
        {"attack": "sign-flip(share=0.3)"},
    ],
)
def test_what_makes_another_task(change: dict[str, Any]) -> None:
    assert labels([run("A"), run("B", **change), run("C")]) == [["A", "C"], ["B"]]


def test_what_does_not() -> None:
    runs = [run("A"), run("B", lr=1.0), run("C", batch_size=64), run("D", seed=1), run("E", aggregate="median")]
    assert labels(runs) == [["A", "B", "C", "D", "E"]]


def test_batches_count_where_steps_do() -> None:
    assert labels([run("A", steps=5), run("B", steps=5, batch_size=64)]) == [["A"], ["B"]]


def test_own_data_with_a_partition_for_every_seed() -> None:
    def own(label: str, seed: int, kind: str = "mine") -> Record:
        return run(label, seed, data={"fingerprint": f"{kind} {seed}"})

    runs = [own("A", 0), own("A", 1), own("B", 0), own("B", 1), own("C", 0, "other"), own("C", 1, "other")]
    assert labels(runs) == [["A", "A", "B", "B"], ["C", "C"]]
    assert names_of(by_task(runs)) == ["own data · mlp · task 1", "own data · mlp · task 2"]
    assert names_of(by_task(runs), brief=True) == ["task 1", "task 2"]


def test_names_say_what_differs() -> None:
    tasks = by_task([run("A"), run("B", rounds=8), run("C", model="cnn", rounds=8)])
    assert [name.replace("\u00a0", " ") for name in names_of(tasks)] == [
        "digits · classes:2, 40 clients · mlp · 4 rounds",
        "digits · classes:2, 40 clients · mlp · 8 rounds",
        "digits · classes:2, 40 clients · cnn · 8 rounds",
    ]
    brief = [name.replace("\u00a0", " ") for name in names_of(tasks, brief=True)]
    assert brief == ["mlp · 4 rounds", "mlp · 8 rounds", "cnn · 8 rounds"]


def test_facts() -> None:
    facts = facts_of([run("A", weighting="samples"), run("B", lr=0.5, weighting="samples")], None)
    assert {fact.name: fact.value.replace("\u00a0", " ") for fact in facts} == {
        "Data": "digits",
        "Partition": "classes:2, 40 clients",
        "Model": "mlp",
        "Local training": "1 epoch, batches of 32, SGD",
        "Learning rate": "0.1 (A); 0.5 (B)",
        "Weighting": "samples",
    }


def test_facts_of_what_acts_on_updates() -> None:
    plain: dict[str, Any] = {"aggregate": "mean", "compress": None, "privacy": None, "attack": "noise"}
    runs = [run("A", **plain), run("B", **plain | {"aggregate": "krum(keep=3)", "compress": {"name": "half"}})]
    facts = dict(facts_of(runs, None))
    assert facts["Aggregation"] == "mean (A); krum(keep=3) (B)"
    assert facts["Compression"] == "none (A); half (B)"
    assert facts["Attack"] == "noise"
    assert "Privacy" not in facts
    coded = run("C", compress={"name": "top-k", "share": 0.1}, aggregate={"fingerprint": "mine.rule"})
    assert dict(facts_of([coded], None))["Compression"] == "top-k(share=0.1)"
    assert dict(facts_of([coded], None))["Aggregation"] == "own"
    tasks = by_task([run("A"), run("B", attack="noise")])
    assert [name.replace("\u00a0", " ") for name in names_of(tasks, brief=True)] == ["no attack", "attack noise"]


def test_facts_of_many_values() -> None:
    runs = [run(f"A{rate}", lr=rate) for rate in (0.1, 0.2, 0.3, 0.4)]
    assert dict(facts_of(runs, None))["Learning rate"] == "0.1, 0.2, 0.3, 0.4"


def test_the_page_shows_tasks_apart() -> None:
    better = run("FedHBM", model="cnn")._replace(history=record("FedHBM", FEDHBM).history)
    html = report.render([run("FedAvg"), better, run("FedProx")]).replace("\u00a0", " ")
    assert "2 tasks, each on its own: results of different tasks are not comparable." in html
    first, second = html.split("<article")[1:]
    assert "FedAvg" in first
    assert "FedProx" in first
    assert "FedHBM" not in first
    assert "FedHBM ended at 95.0 % accuracy after 4 rounds." in second
    assert "points" not in second.split("<script")[0]


def test_the_page_shows_the_partition() -> None:
    assert '<div class="partition"' in report.render([run()])
    elsewhere = report.render([run(data=DATA | {"name": "a set of another version"})])
    assert '<div class="partition"' not in elsewhere
    assert "a set of another version" in elsewhere
    stored = {"clients": 2, "sizes": [3, 4], "table": [[3, 0], [2, 2]], "client_names": [], "class_names": ["a", "b"]}
    own = report.render([run(data={"fingerprint": "x"}, split=stored)]).replace("\u00a0", " ")
    assert '<div class="partition"' in own
    assert "<dt>Partition</dt><dd>2 clients</dd>" in own
    assert "class_names" not in own


def test_notebooks_show_tasks_apart() -> None:
    html = notebook.html_table([run("FedAvg"), run("FedHBM", model="cnn")])
    assert html.count("<table>") == 2
    axes = notebook.draw([run("FedAvg"), run("FedAvg", model="cnn")])
    assert [str(line.get_label()).split(" · ")[-1] for line in axes.get_lines()] == ["mlp", "cnn"]
