"""Figures of a run's models: the server's after a round, and those that clients would use themselves."""

from __future__ import annotations

import math

import torch

from undrift.client.evaluate import Samples, Weights, class_averages, evaluate, figures, totals
from undrift.core import tree
from undrift.core.tree import Nest, Tree
from undrift.engines.cuda_graph import CudaGraphs
from undrift.methods.averaging import mean_buffers
from undrift.simulation import cohort as participation
from undrift.simulation.round import Memory
from undrift.simulation.setup import Experiment
from undrift.storage.states import Ids

_TOGETHER = 32  # clients whose models are held at a time,
_BYTES = 1 << 30  # or fewer, if they took more than this


class Evaluator:
    """Evaluates the server's model round after round; on a GPU as one graph."""

    def __init__(self, experiment: Experiment) -> None:
        self._experiment = experiment
        self._replayer = CudaGraphs() if experiment.engine.replayed else None

    def __call__(self, memory: Memory) -> dict[str, float]:
        experiment = self._experiment
        if (test := experiment.test) is None:
            return {}
        model, buffers = model_in_use(experiment, memory)
        given: Nest = {"model": model} | ({"buffers": buffers} if buffers else {})

        def summed(given: Nest) -> tuple[Nest, None]:
            weights = Weights(given["model"], given.get("buffers"))
            keep, spread = bool(experiment.metrics), experiment.engine.spread
            return totals(experiment.learner, weights, test, keep, spread), None

        found, _ = summed(given) if self._replayer is None else self._replayer("evaluation", summed, given)
        return figures(found, test[1], experiment.metrics)


def model_in_use(experiment: Experiment, memory: Memory) -> Weights:
    """The server's model as it is evaluated; what clients keep for themselves is the mean over those seen."""
    model = experiment.method.presented(memory.server)
    return Weights(model | _mean_of_clients(experiment, memory, "private"), _buffers(experiment, memory))


def server_models(experiment: Experiment, memory: Memory) -> list[dict[str, float]]:
    """All the server's models on the test samples, in their order."""
    if experiment.test is None:
        raise ValueError("evaluate needs test samples; give simulate test=(x, y)")
    private, buffers = _mean_of_clients(experiment, memory, "private"), _buffers(experiment, memory)
    rows = []
    for model in experiment.method.models(memory.server):
        weights = Weights(model | private, buffers)
        given = experiment.learner, weights, experiment.test
        spread = experiment.engine.spread
        found = evaluate(*given, metrics=experiment.metrics, spread=spread)
        rows.append(found | class_averages(*given, spread=spread))
    return rows


def client_accuracies(experiment: Experiment, memory: Memory, ids: Ids, round: int) -> dict[int, float]:
    """Accuracy of clients' own models at the start of a round, for algorithms that give them one.

    Each on its own test set or, without one, the server's test samples of its classes.
    """
    phase, test, data = experiment.method.personal, experiment.test, experiment.data
    if phase is None or test is None or data.classes is None:
        return {}
    found: dict[int, float] = {}
    together = max(1, min(_TOGETHER, _BYTES // tree.nbytes(experiment.learner.parameters)))
    for start in range(0, len(ids), together):
        block = ids[start : start + together]
        cohort = participation.on_device(participation.describe(experiment, block, round), experiment.learner.device)
        rows = memory.ledger.gather(block)
        mail = phase.ask(memory.server | {"ledger": rows} if rows else memory.server, cohort)
        work = participation.work(experiment, cohort, block)
        replies = experiment.engine.run(phase, mail, memory.states.of(block), work).replies
        for position, client in enumerate(block.tolist()):
            own = tree.row(replies, position)
            samples = data.client_test(client) or _of_its_classes(test, data.client(client)[1])
            if len(samples[1]):
                here = samples[0].to(test[0].device), samples[1].to(test[1].device)
                weights = Weights(own["model"], own["buffers"] or None)
                found[client] = _accuracy(experiment, weights, here)
    return found


def _accuracy(experiment: Experiment, weights: Weights, samples: Samples) -> float:
    found = evaluate(experiment.learner, weights, samples, spread=experiment.engine.spread)
    return found.get("accuracy", math.nan)


def _of_its_classes(test: Samples, labels: torch.Tensor) -> Samples:
    known = torch.isin(test[1], labels.to(test[1].device))
    return test[0][known], test[1][known]


def _buffers(experiment: Experiment, memory: Memory) -> Tree | None:
    """The buffers that the server's models are evaluated with."""
    return experiment.method.buffers(memory.server) or _mean_of_clients(experiment, memory, "buffers") or None


def _mean_of_clients(experiment: Experiment, memory: Memory, part: str) -> Tree:
    """The mean, over the clients seen, of a part of the model that they keep for themselves."""
    states = memory.states
    if part not in states.initial or not len(states):
        return {}
    weights = participation.describe(experiment, states.seen, 0).weights.to(experiment.learner.device)
    means = []
    for block in states.blocks(part):
        own, weights = weights[: len(block["ids"])], weights[len(block["ids"]) :]
        means.append(mean_buffers(block["states"][part], own))
    return mean_buffers(tree.stack(means), weights.new_ones(len(means)))
