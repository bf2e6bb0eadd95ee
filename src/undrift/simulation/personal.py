"""Accuracy of clients' own models, for algorithms that give them one."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from undrift.client.evaluate import evaluate
from undrift.core import tree
from undrift.protocol import State
from undrift.simulation.prepare import Experiment
from undrift.simulation.round import describe_cohort
from undrift.storage.states import ClientStates, Ids

_TOGETHER = 32  # clients whose models are held at a time


def accuracies(
    experiment: Experiment, server: State, states: ClientStates, ledger: ClientStates, ids: Ids, round: int
) -> dict[int, float]:
    """Of these clients at the start of a round, each on its own test set or, without one, the server's test samples
    of its classes."""
    phase, test, data = experiment.method.personal, experiment.test, experiment.data
    if phase is None or test is None or data.classes is None:
        return {}
    found: dict[int, float] = {}
    for start in range(0, len(ids), _TOGETHER):
        block = ids[start : start + _TOGETHER]
        cohort = describe_cohort(experiment, block, round)
        rows = ledger.gather(block)
        mail = phase.ask(server | {"ledger": rows} if rows else server, cohort)
        work = experiment.work(block, round, cohort.shares)
        replies = experiment.engine.run(phase, mail, states.gather(block), work).replies
        for place, client in enumerate(block.tolist()):
            own = tree.row(replies, place)
            x, y = data.client_test(client) or _of_its_classes(test, data.client(client)[1])
            if len(y):
                x, y = x.to(test[0].device), y.to(test[1].device)
                figures = evaluate(experiment.learner, own["model"], own["buffers"] or None, x, y)
                found[client] = figures.get("accuracy", math.nan)
    return found


def _of_its_classes(test: tuple[Tensor, Tensor], labels: Tensor) -> tuple[Tensor, Tensor]:
    known = torch.isin(test[1], labels.to(test[1].device))
    return test[0][known], test[1][known]
