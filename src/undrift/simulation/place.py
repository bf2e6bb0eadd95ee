"""Where the clients of a simulation are computed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch

from undrift.client.evaluate import Samples
from undrift.simulation import cohort
from undrift.simulation.options import Options
from undrift.simulation.setup import Experiment
from undrift.storage.arena import Space
from undrift.storage.states import ClientStates
from undrift.transport import Faults, FaultyTransport, InProcess, Site, Trainees, Transport


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


def _tests(experiment: Experiment, client: int) -> Samples | None:
    """A client's own test samples or, without, the server's test samples of its classes."""
    data, test = experiment.data, experiment.test
    if data.local_tests is not None or test is None:
        return data.client_test(client)
    known = torch.isin(test[1], data.client(client)[1].to(test[1].device))
    return test[0][known], test[1][known]


def site(experiment: Experiment) -> Site:
    """All clients of the federation, in this process."""
    learner = experiment.learner
    initial = experiment.method.client(learner.parameters, learner.buffers)
    return Site(trainees(experiment), ClientStates(initial, len(experiment.data), Space(learner.device)))


def in_process(experiment: Experiment) -> Transport:
    return InProcess(site(experiment))


def on_flower(experiment: Experiment) -> Transport:
    raise ValueError("place='flower' is the place of a Flower app's run, which `flwr run` starts and continues")


def _on_ray(experiment: Experiment) -> Transport:
    from undrift.simulation.on_ray.transport import RayTransport  # imports Ray

    return RayTransport(experiment)


def session(options: Options) -> AbstractContextManager[None]:
    """Inside, what the place of these options needs is there; entered before a run is prepared."""
    if options.place != "ray":
        return nullcontext()
    from undrift.simulation.on_ray import cluster  # imports Ray

    return cluster.session(options.address)


def with_actors(options: Options, clients: int) -> Options:
    """With the number of actors where it is left open, so that a resumed run has as many."""
    if options.place != "ray":
        return options
    from undrift.simulation.on_ray import cluster  # imports Ray

    return cluster.with_actors(options, clients, cohort.largest(options, clients))


def budget(options: Options) -> AbstractContextManager[None]:
    """Inside, an engine is chosen for the threads and the memory that it will have."""
    if options.place != "ray":
        return nullcontext()
    from undrift.simulation.on_ray import cluster  # imports Ray

    return cluster.budget(options)


Opener = Callable[[Experiment], Transport]

# By the name that the option `place` takes; None: in the server's own process, as a part of its rounds.
PLACES: dict[str, Opener | None] = {"local": None, "ray": _on_ray, "flower": on_flower}


def opener(options: Options) -> Opener | None:
    """What opens the transport to the clients of a run; None: rounds need none."""
    opened, faults = PLACES[options.place], options.faults
    if not isinstance(faults, Faults):
        return opened

    def failing(experiment: Experiment) -> Transport:
        return FaultyTransport((opened or in_process)(experiment), faults, len(experiment.method.phases))

    return failing
