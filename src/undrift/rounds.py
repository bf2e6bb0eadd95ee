"""One round: sample a cohort, let every phase be asked, answered and heard, and count what travelled."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from undrift import random, tree
from undrift.experiment import Experiment, cohort_size
from undrift.protocol import Cohort, Mail, Message, State
from undrift.states import ClientStates, Ids


@dataclass(frozen=True)
class Played:
    """What a round leaves behind; nothing is remembered until the caller keeps it."""

    ids: Ids
    server: State
    clients: State  # of the cohort, stacked [n, ...]
    ledger: State  # what the server remembers of the cohort, stacked [n, ...]
    bytes_down: int
    bytes_up: int
    train_loss: float
    diverged: Ids  # clients that made a number infinite or not a number


def draw_cohort(experiment: Experiment, round: int) -> Ids:
    """Who takes part in this round: a function of seed and round."""
    options, population = experiment.options, len(experiment.data)
    count = cohort_size(options, population)
    if count is None:
        return np.array(options.cohort[round - 1], dtype=np.int64)  # type: ignore[index]  # a list, as checked
    if count == population:
        return np.arange(population)
    return random.sample(options.seed, round, population, count).numpy()


def describe_cohort(experiment: Experiment, ids: Ids, round: int) -> Cohort:
    """Weights and shares of the objective, by samples or alike."""
    data, learner = experiment.data, experiment.learner
    sizes = torch.from_numpy(data.sizes[ids]).to(learner.device, torch.float64)
    if experiment.weighting == "samples":
        weights, shares = sizes / sizes.sum(), sizes / (len(data.rows) / len(data))
    else:
        weights, shares = torch.full_like(sizes, 1 / len(ids)), torch.ones_like(sizes)
    return Cohort(
        torch.from_numpy(ids).to(learner.device),
        weights.to(learner.dtype),
        shares.to(learner.dtype),
        len(data),
        round,
    )


def play(experiment: Experiment, server: State, states: ClientStates, ledger: ClientStates, round: int) -> Played:
    """A whole round; pure: what is given stays as it is."""
    ids = draw_cohort(experiment, round)
    cohort = describe_cohort(experiment, ids, round)
    work = experiment.work(ids, round, cohort.shares)
    clients = states.gather(ids)
    if rows := ledger.gather(ids):
        server = server | {"ledger": rows}
    down = up = 0
    reports: dict[str, Tensor] = {}
    heard: list[Message] = []
    with torch.no_grad():
        for phase in experiment.method.phases:
            mail = phase.ask(server, cohort)
            replies, clients, report = experiment.engine.run(phase, mail, clients, work)
            server = phase.hear(server, replies, cohort)
            down += _sent(mail, len(ids))
            up += tree.nbytes(replies)
            reports |= report
            heard.append(replies)
    losses = reports["loss"]
    after = server.get("ledger", {})
    server = {k: v for k, v in server.items() if k != "ledger"}
    diverged = ids[_not_finite(server, losses, heard).cpu().numpy()]
    return Played(ids, server, clients, after, down, up, float((losses * cohort.weights).sum()), diverged)


def _not_finite(server: State, losses: Tensor, heard: list[Message]) -> Tensor:
    """Whose loss or reply is not finite [n]; everybody's, if only the server's state is not."""
    wrong = ~torch.isfinite(losses)
    if bool(wrong.any()) or all(bool(torch.isfinite(leaf).all()) for leaf in _floats(server)):
        return wrong
    for leaf in (leaf for replies in heard for leaf in _floats(replies)):
        wrong |= ~torch.isfinite(leaf.reshape(len(leaf), -1)).all(1)
    return wrong if bool(wrong.any()) else ~wrong


def _sent(mail: Mail, clients: int) -> int:
    return clients * tree.nbytes(mail.shared) + tree.nbytes(mail.each)


def _floats(nest: Message) -> list[Tensor]:
    return [leaf for leaf in tree.leaves(nest) if leaf.is_floating_point()]
