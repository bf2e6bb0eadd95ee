"""Runs an experiment; what is there already is not repeated."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from undrift.core.log import notice
from undrift.reporting.record import Record
from undrift.reproduce.plan import Plan
from undrift.reproduce.results import Chosen, Results, Tried, correct_answers
from undrift.simulation.arguments import read_settings
from undrift.simulation.callbacks import CallbackLike
from undrift.simulation.compare import compare
from undrift.simulation.vary import Loaded
from undrift.storage.comparison import folders_of, unique_folder
from undrift.tuning import tune
from undrift.tuning.trial import Trial

_TUNING = "tuning"  # the folder of a case's trials


def run(plan: Plan, home: Path, callbacks: Sequence[CallbackLike] = ()) -> Results:
    """All cases of a plan, in folders of their own; `callbacks` watch the runs that count, not those of a tuning.

    Cases have the folders that they have when all of the experiment is run, so that later plans find what is there.
    """
    cases = tuple(plan.experiment.cases)
    folders = folders_of(cases) if len(cases) > 1 else {"": ""}
    records, chosen = {}, {}
    for case in plan.cases:
        if case:
            notice(f"{plan.experiment.name}: {case}")
        chosen[case], records[case] = _run_case(plan, case, home / folders[case], callbacks)
    return Results(plan.experiment, records, chosen, fast=plan.fast, correct=correct_answers(records))


def _run_case(plan: Plan, case: str, home: Path, callbacks: Sequence[CallbackLike]) -> tuple[Chosen, list[Record]]:
    """The algorithms with their rates, and the runs."""
    settings = plan.settings(case)
    data, model = Loaded(plan.data(case)), settings["model.name"]
    others = {key: value for key, value in settings.items() if not key.startswith(("data.", "model."))}
    arguments: dict[str, Any] = read_settings(others)
    chosen, first = Chosen(plan.algorithms), 0
    if (tuning := plan.tuning) is not None:
        rounds = {} if tuning.rounds is None else {"rounds": min(tuning.rounds, plan.rounds(case))}
        chosen, first = _tuned(plan, model, data, arguments | rounds, home / _TUNING), tuning.seeds
    seeds = list(range(first, first + plan.seeds))
    runs = compare(chosen.algorithms, model, data, seeds=seeds, callbacks=callbacks, out=home, **arguments)
    return chosen, runs.records


def _tuned(plan: Plan, model: str, data: Loaded, arguments: dict[str, Any], home: Path) -> Chosen:
    """Every algorithm in a folder of its own, so that those which are run later add up."""
    assert plan.tuning is not None
    best: dict[str, str] = {}
    tried: list[Tried] = []
    for label, text in plan.algorithms.items():
        tuned = tune(
            {label: text},
            model,
            data,
            seeds=plan.tuning.seeds,
            grid=plan.grid(label),
            budget=plan.budget,
            out=home / unique_folder(label),
            **arguments,
        )
        best |= tuned.best()
        tried += map(_tried, tuned.trials)
    return Chosen(best, tried)


def _tried(trial: Trial) -> Tried:
    configuration = trial.configuration
    return Tried(configuration.label, configuration.text, None if trial.failed else round(trial.accuracy, 6))
