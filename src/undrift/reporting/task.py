"""Which runs solve the same task, so that they may be ranked together."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from undrift.reporting.record import Record

# Of the options, what makes up the effort. A batch's size changes it only where steps are counted instead of epochs.
_BUDGET = ("rounds", "cohort", "epochs", "steps")


def by_task(records: Sequence[Record]) -> list[list[Record]]:
    """Records of the same data, partition, model, loss and budget together, in order of first appearance.

    Data that were given as an object are known by a fingerprint, which differs between seeds if each seed has a
    partition of its own: labels belong together if they share a fingerprint. A reference, whose budget is its own, is
    part of every task of its data, model and loss.
    """
    if not records:
        raise ValueError("a report needs at least one record, got none")
    tasks = _tasks([record for record in records if not record.reference])
    for references in _tasks([record for record in records if record.reference]):
        kind, samples = _problem(references[0].config), {_samples(each.config) for each in references}
        home = [
            task
            for task in tasks
            if _problem(task[0].config) == kind and not samples.isdisjoint(_samples(each.config) for each in task)
        ]
        for task in home:
            task.extend(references)
        if not home:
            tasks.append(references)
    return tasks


def _tasks(records: Sequence[Record]) -> list[list[Record]]:
    groups: list[tuple[str, set[str], list[Record]]] = []
    labels: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        labels.setdefault((_known(record.config), record.label), []).append(record)
    for (known, _), runs in labels.items():
        samples = {_samples(run.config) for run in runs}
        for group in groups:
            if group[0] == known and not samples.isdisjoint(group[1]):
                group[1].update(samples)
                group[2].extend(runs)
                break
        else:
            groups.append((known, samples, runs))
    return [runs for _, _, runs in groups]


def _known(config: Mapping[str, Any]) -> str:
    """What must be equal and does not depend on the seed."""
    options = config.get("options", {})
    budget = {key: options.get(key) for key in _BUDGET}
    if options.get("steps") is not None:
        budget["batch_size"] = options.get("batch_size")
    return json.dumps([_problem(config), budget, config.get("attack")], sort_keys=True, default=str)


def _problem(config: Mapping[str, Any]) -> str:
    """The same without the effort that is made."""
    parts = {key: config.get(key) for key in ("model", "loss", "augment")}
    return json.dumps([recipe_of(config), parts], sort_keys=True, default=str)


def recipe_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """How data that were given by name are loaded and split, without the seed of the split; empty for others."""
    data = config.get("data")
    if not isinstance(data, Mapping) or not isinstance(data.get("name"), str):
        return {}
    return {key: value for key, value in data.items() if key != "seed"}


def _samples(config: Mapping[str, Any]) -> str:
    """The fingerprints of data and test samples that were given as objects."""
    data = None if recipe_of(config) else config.get("data")
    return json.dumps([data, config.get("test")], sort_keys=True, default=str)
