"""Figures of a run's models: the server's after a round, and those that clients would use themselves."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from undrift.client import metrics as further
from undrift.client.classification import class_accuracies, confusion, scores_classes
from undrift.client.evaluate import STATISTICS, Weights, evaluate, figures, predict, totals
from undrift.client.fairness import Figures, fairness
from undrift.client.metrics import CONFUSION, FAIRNESS, PER_CLASS, PERSONAL, class_column, fairness_column
from undrift.core import tree
from undrift.core.tree import Nest, Tree
from undrift.data.federated import FederatedData
from undrift.data.text import IGNORED
from undrift.engines.cuda_graph import CudaGraphs
from undrift.methods.averaging import mean_buffers
from undrift.protocol import Mail
from undrift.reporting.record import SEVERAL_MODELS
from undrift.simulation import cohort as participation
from undrift.simulation.clients import trainees
from undrift.simulation.memory import Memory
from undrift.simulation.remote import RemoteStates, between_rounds
from undrift.simulation.setup import Experiment
from undrift.storage.states import Ids

Confusion = np.ndarray[Any, np.dtype[np.int64]]  # [true class, answer], counts of samples


class Evaluation(NamedTuple):
    """What is known of a model after a round: numbers, and what was asked for besides."""

    figures: dict[str, float]  # by their columns of the history
    confusion: Confusion | None = None
    client_accuracies: Figures | None = None


class Evaluator:
    """Evaluates the server's model round after round; on a GPU as one graph."""

    def __init__(self, experiment: Experiment) -> None:
        self._experiment = experiment
        self._replayer = CudaGraphs() if experiment.engine.replayed else None

    def __call__(self, memory: Memory, ids: Ids, round: int) -> Evaluation:
        """After a round, in which or before which the clients `ids` have taken part."""
        experiment = self._experiment
        if (test := experiment.test) is None:
            return Evaluation({})
        model, buffers = model_in_use(experiment, memory)
        given: Nest = {"model": model} | ({"buffers": buffers} if buffers else {})
        metrics = experiment.metrics

        def summed(given: Nest) -> tuple[Nest, None]:
            weights = Weights(given["model"], given.get("buffers"))
            return totals(experiment.learner, weights, test, metrics.need_outputs, experiment.engine.spread), None

        found, _ = summed(given) if self._replayer is None else self._replayer("evaluation", summed, given)
        row = figures(found, test[1], metrics.functions)
        if "accuracy" in row:
            row |= self._of_all_models(memory, row["accuracy"])
        if PER_CLASS in metrics:
            shares = class_accuracies(found["outputs"], test[1]).tolist()
            row |= {class_column(number): share for number, share in enumerate(shares)}
        matrix = confusion(found["outputs"], test[1]).cpu().numpy() if CONFUSION in metrics else None
        clients = client_accuracies(experiment, memory, ids, round + 1) if metrics.need_clients else None
        if clients is not None and FAIRNESS in metrics:
            row |= {fairness_column(name): value for name, value in fairness(clients).items()}
        if clients is not None and PERSONAL in metrics:
            row[PERSONAL] = _weighted(clients, experiment.data.sizes)
        return Evaluation(row, matrix, clients)

    def _of_all_models(self, memory: Memory, first: float) -> dict[str, float]:
        """The best, mean and worst accuracy, of algorithms that keep several models; `first` is the presented one's."""
        experiment = self._experiment
        test, others = experiment.test, experiment.method.models(memory.server)[1:]
        if not others or test is None:
            return {}
        private, buffers = _mean_of_clients(experiment, memory, "private"), _buffers(experiment, memory)
        weights = (Weights(model | private, buffers) for model in others)
        learner, spread = experiment.learner, experiment.engine.spread
        found = [first, *(evaluate(learner, each, test, spread=spread)["accuracy"] for each in weights)]
        return dict(zip(SEVERAL_MODELS, (max(found), sum(found) / len(found), min(found)), strict=True))


def model_in_use(experiment: Experiment, memory: Memory) -> Weights:
    """The server's model as it is evaluated; what clients keep for themselves is the mean over those seen."""
    model = experiment.method.presented(memory.server)
    return Weights(model | _mean_of_clients(experiment, memory, "private"), _buffers(experiment, memory))


def server_models(experiment: Experiment, memory: Memory) -> list[dict[str, float]]:
    """All the server's models on the test samples, in their order."""
    if experiment.test is None:
        raise ValueError("evaluate needs test samples; give simulate test=(x, y)")
    private, buffers = _mean_of_clients(experiment, memory, "private"), _buffers(experiment, memory)
    (x, y), learner, method = experiment.test, experiment.learner, experiment.method
    averages = {name: further.FUNCTIONS[name] for name in ("precision", "recall", "f1")}
    rows = []
    for model in (method.presented(memory.server), *method.models(memory.server)[1:]):
        found = totals(learner, Weights(model | private, buffers), (x, y), True, experiment.engine.spread)
        classified = averages if scores_classes(found["outputs"], y) else {}
        rows.append(figures(found, y, {**classified, **experiment.metrics.functions}))
    return rows


def client_accuracies(experiment: Experiment, memory: Memory, ids: Ids, round: int) -> Figures:
    """Accuracy of the model that every client would use at the start of a round [clients].

    The clients `ids` have taken part and use their own, where the algorithm gives them one, the others the server's.
    Each is tested on its own test set or, without one, on the server's test samples of its classes, which clients on
    machines of their own do not have; NaN where there are none.
    """
    if experiment.deployed:
        own = ids if experiment.method.personal is not None else ids[:0]
        found = _accuracies_elsewhere(experiment, memory, np.setdiff1d(np.arange(len(experiment.data)), own), round)
    else:
        found = _server_accuracies(experiment, memory)
    for client, accuracy in _personal_accuracies(experiment, memory, ids, round).items():
        found[client] = accuracy
    return found


def _server_accuracies(experiment: Experiment, memory: Memory) -> Figures:
    """Accuracy of the server's model for every client, from one pass over the samples."""
    data, weights = experiment.data, model_in_use(experiment, memory)
    if data.local_tests is not None:
        x, y, rows, offsets = data.local_tests
        own = torch.from_numpy(rows)
        right, scored = (np.concatenate([[0], counts.cumsum()]) for counts in _answers(experiment, weights, x, y, own))
        return _ratio(*(np.diff(counts[offsets]) for counts in (right, scored)))
    if experiment.test is None or data.classes is None or data.y.ndim != 1:
        return np.full(len(data), math.nan)
    x, y = experiment.test
    right, scored = _answers(experiment, weights, x, y, torch.arange(len(y)))
    labels = y.cpu().numpy()
    known = (labels >= 0) & (labels < data.classes)
    by_class = [_summed(labels[known], counts[known], data.classes) for counts in (right, scored)]
    owner, label = class_holders(data, data.classes)
    return _ratio(*(_summed(owner, counts[label], len(data)) for counts in by_class))


def _accuracies_elsewhere(experiment: Experiment, memory: Memory, ids: Ids, round: int) -> Figures:
    """Accuracy of the server's model for these clients, each on its own machine; NaN for others and without answer."""
    found, states = np.full(len(experiment.data), math.nan), memory.states
    if not len(ids) or not isinstance(states, RemoteStates):
        return found
    model, buffers = model_in_use(experiment, memory)
    order = between_rounds(experiment, ids, round)._replace(heard=states.heard[ids])
    who, counts = states.transport.personal(order, Mail({"model": model, "buffers": buffers or {}}), own=False)
    found[who] = _ratio(*counts.numpy().T)
    return found


def _summed(places: Ids, values: Figures, count: int) -> Figures:
    """Sums of the values with the same place [count]."""
    return np.bincount(places, values, count).astype(np.float64)


def class_holders(data: FederatedData, classes: int) -> tuple[Ids, Ids]:
    """Every pair of a client and a class it has samples of, once."""
    owner = np.repeat(np.arange(len(data)), data.sizes)
    return np.divmod(np.unique(owner * classes + data.y.numpy()[data.rows]), classes)


def _answers(experiment: Experiment, weights: Weights, x: Tensor, y: Tensor, rows: Tensor) -> tuple[Figures, Figures]:
    """Right answers and answers of every sample among `rows` [n]; a sample may have several answers, or none."""
    right, scored = np.zeros(len(rows)), np.zeros(len(rows))
    for start in range(0, len(rows), STATISTICS):
        part = slice(start, start + STATISTICS)
        chosen, target = x[rows[part].to(x.device)], y[rows[part].to(y.device)]
        output = predict(experiment.learner, weights, chosen, experiment.engine.spread)
        if scores_classes(output, target):
            right[part] = _per_sample(output.argmax(-1) == target)
            scored[part] = _per_sample(target != IGNORED)
    return right, scored


def _per_sample(answers: Tensor) -> Figures:
    counts: Figures = answers.reshape(len(answers), -1).sum(1).cpu().numpy()
    return counts


def _weighted(accuracies: Figures, sizes: Ids) -> float:
    """The mean over the clients that have an accuracy, weighted by their training samples."""
    known = np.isfinite(accuracies)
    return float(np.average(accuracies[known], weights=sizes[known])) if known.any() else math.nan


def _ratio(right: Figures, scored: Figures) -> Figures:
    found: Figures = np.divide(right, scored, out=np.full(len(right), math.nan), where=scored > 0)
    return found


def _personal_accuracies(experiment: Experiment, memory: Memory, ids: Ids, round: int) -> dict[int, float]:
    """Accuracy of clients' own models, for algorithms that give them one."""
    phase, test, data = experiment.method.personal, experiment.test, experiment.data
    if phase is None or test is None or data.classes is None:
        return {}
    found: dict[int, float] = {}
    here, states = trainees(experiment), memory.states
    for part in here.blocks(len(ids)):
        block = ids[part]
        cohort = participation.on_device(participation.describe(experiment, block, round), experiment.learner.device)
        rows = memory.ledger.gather(block)
        mail = phase.ask(memory.server | {"ledger": rows} if rows else memory.server, cohort)
        order = between_rounds(experiment, block, round)
        if isinstance(states, RemoteStates):
            block, counts = states.transport.personal(order._replace(heard=states.heard[block]), mail)
        else:
            counts = here.personal_counts(order, mail, states.of(block))
        accuracies = _ratio(*counts.numpy().T)
        found |= dict(zip(block.tolist(), accuracies.tolist(), strict=True))
    return {client: accuracy for client, accuracy in found.items() if not math.isnan(accuracy)}


def _buffers(experiment: Experiment, memory: Memory) -> Tree | None:
    """The buffers that the server's models are evaluated with."""
    return experiment.method.buffers(memory.server) or _mean_of_clients(experiment, memory, "buffers") or None


def _mean_of_clients(experiment: Experiment, memory: Memory, part: str) -> Tree:
    """The mean, over the clients seen, of a part of the model that they keep for themselves."""
    states = memory.states
    if part not in states.initial or not len(states):
        return {}
    ids, blocks = states.seen, states.blocks(part)
    if isinstance(states, RemoteStates):  # some may not answer
        blocks = iter(answered := list(blocks))
        if not answered:
            return {}
        ids = np.concatenate([block["ids"].numpy() for block in answered])
    weights = participation.describe(experiment, ids, 0).weights.to(experiment.learner.device)
    means = []
    for block in blocks:
        own, weights = weights[: len(block["ids"])], weights[len(block["ids"]) :]
        means.append(mean_buffers(block["states"][part], own))
    return mean_buffers(tree.stack(means), weights.new_ones(len(means)))
