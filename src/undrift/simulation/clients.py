"""The clients of a simulation, as a site that answers messages."""

from __future__ import annotations

import torch

from undrift.client.evaluate import Samples
from undrift.simulation.setup import Experiment
from undrift.storage.arena import Space
from undrift.storage.states import ClientStates
from undrift.transport import Site, Trainees


def trainees(experiment: Experiment) -> Trainees:
    """All clients of the federation."""
    data, method, probe = experiment.data, experiment.method, experiment.observer.probe
    return Trainees(
        phases=(*method.phases, *(() if probe is None else (probe,))),
        training_phases=len(method.phases),
        personal=method.personal,
        training=experiment.training,
        engine=experiment.engine,
        sizes=data.sizes,
        extremes=(int(data.sizes.min()), int(data.sizes.max())),
        tests=lambda client: _tests(experiment, client),
    )


def site(experiment: Experiment) -> Site:
    """All of them, in this process."""
    learner = experiment.learner
    initial = experiment.method.client(learner.parameters, learner.buffers)
    return Site(trainees(experiment), ClientStates(initial, len(experiment.data), Space(learner.device)))


def _tests(experiment: Experiment, client: int) -> Samples | None:
    """A client's own test samples or, without, the server's test samples of its classes."""
    data, test = experiment.data, experiment.test
    if data.local_tests is not None or test is None:
        return data.client_test(client)
    known = torch.isin(test[1], data.client(client)[1].to(test[1].device))
    return test[0][known], test[1][known]
