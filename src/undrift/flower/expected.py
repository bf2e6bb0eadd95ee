"""What messages must look like: a round in miniature, by which each side knows the structure of what the other sends.

One client with two samples goes through the phases of the algorithm, from the initial model. Names, dtypes and shapes
of its messages are those of the round, as states keep theirs; some algorithms send more from a certain round on.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch

from undrift.core import tree
from undrift.core.tree import Nest
from undrift.data.batches import Schedule, Table
from undrift.data.federated import FederatedData
from undrift.engines import Sequential
from undrift.engines.determinism import arithmetic, threads
from undrift.flower.wire import structure
from undrift.protocol import Cohort, Mail, Phase, State
from undrift.simulation.setup import Setup
from undrift.storage.arena import Space
from undrift.storage.states import ClientStates
from undrift.transport import Order, Site, Trainees


class Expected(NamedTuple):
    """The structure of one client's messages in a phase."""

    mail: Nest
    reply: Nest
    report: Nest


def expected_messages(setup: Setup, population: int, round: int) -> list[Expected]:
    """Of every phase, also that of diagnostics."""
    site, (server, cohort) = _site(setup), _start(setup, population, round)
    one = cohort.shares
    found, first = [], np.zeros(1, dtype=np.int64)
    with torch.no_grad(), arithmetic(setup.precision), threads(1):
        for number, phase in enumerate(site.trainees.phases):
            mail = phase.ask(server, cohort)
            order = Order(
                round=round,
                phase=number,
                seed=setup.options.seed,
                lr=setup.options.rate(1),
                participation=1 / population,
                ids=first,
                shares=one.cpu(),
                heard=np.zeros_like(first),
            )
            answers = site.answer(order, mail)
            sent = (inbox(mail, 0), tree.row(answers.replies, 0), tree.row(answers.reports, 0))
            found.append(Expected(*map(structure, sent)))
            server = phase.hear(server, answers.replies, cohort)
    return found


def personal_mail(setup: Setup, population: int, round: int) -> Nest:
    """The structure of what a client is sent to evaluate its own model."""
    assert setup.method.personal is not None
    with torch.no_grad():
        return structure(inbox(setup.method.personal.ask(*_start(setup, population, round)), 0))


def served_mail(setup: Setup, buffers: bool) -> Nest:
    """The structure of what a client is sent to evaluate the server's model, with its buffers or without."""
    learner = setup.learner
    return structure({"model": learner.parameters, "buffers": learner.buffers if buffers else {}})


def phases(setup: Setup) -> tuple[Phase, ...]:
    """Those of the algorithm, and that of diagnostics."""
    probe = setup.observer.probe
    return (*setup.method.phases, *(() if probe is None else (probe,)))


def inbox(mail: Mail, position: int) -> Nest:
    """What one client of a cohort is sent."""
    return mail.shared | tree.row(mail.each, position)


def _start(setup: Setup, population: int, round: int) -> tuple[State, Cohort]:
    """The server as it begins, and a cohort of one."""
    learner, method = setup.learner, setup.method
    server, ledger = method.server(learner.parameters, learner.buffers), method.ledger(learner.parameters)
    one = torch.ones(1, dtype=learner.dtype, device=learner.device)
    cohort = Cohort(torch.zeros(1, dtype=torch.int64, device=learner.device), one, one, population, round)
    return server | ({"ledger": tree.map_nest(lambda v: v[None], ledger)} if ledger else {}), cohort


def _site(setup: Setup) -> Site:
    data, learner = setup.data, setup.learner
    twice = torch.zeros(2, dtype=torch.int64)
    few = FederatedData.from_rows(data.x[twice], data.y[twice], np.arange(2), [2], classes=data.classes)
    trainees = Trainees(
        phases=phases(setup),
        training_phases=len(setup.method.phases),
        personal=None,
        training=replace(setup.training, table=Table.of(few, learner.device), schedule=Schedule(2, 1, None)),
        engine=Sequential(),
        sizes=few.sizes,
        extremes=(2, 2),
        tests=lambda client: None,
    )
    initial = setup.method.client(learner.parameters, learner.buffers)
    return Site(trainees, ClientStates(initial, 1, Space(learner.device)))
