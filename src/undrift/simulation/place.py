"""Where the clients of a run are computed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar

from undrift.simulation.clients import site
from undrift.simulation.options import Options
from undrift.simulation.setup import Experiment
from undrift.transport import Faults, FaultyTransport, InProcess, Transport

Opener = Callable[[Experiment], Transport]


class Place:
    """The server's own process, where clients are reached by messages."""

    fused: ClassVar[bool] = False  # clients are a part of the server's rounds; messages only where some may be lost

    def session(self, options: Options) -> AbstractContextManager[None]:
        """Inside, what the place needs is there; entered before a run is prepared."""
        return nullcontext()

    def completed(self, options: Options, clients: int) -> Options:
        """Options with what the place decides where it is left open, so that a resumed run has the same."""
        return options

    def budget(self, options: Options) -> AbstractContextManager[None]:
        """Inside, an engine is chosen for the threads and the memory that it will have."""
        return nullcontext()

    def open(self, experiment: Experiment) -> Transport:
        return InProcess(site(experiment))


class Local(Place):
    """The server's own process, without messages."""

    fused = True


class _OfFlower(Place):
    """Flower's nodes, to which only a Flower app knows the way."""

    def open(self, experiment: Experiment) -> Transport:
        raise ValueError("place='flower' is the place of a Flower app's run, which `flwr run` starts and continues")


def _of_ray() -> Place:
    from undrift.simulation.on_ray.place import OnRay  # imports Ray

    return OnRay()


# By the name that the option `place` takes.
PLACES: dict[str, Callable[[], Place]] = {"local": Local, "ray": _of_ray, "flower": _OfFlower}


def place_of(options: Options) -> Place:
    return PLACES[options.place]()


def transport_opener(options: Options) -> Opener | None:
    """What opens the transport to the clients of a run; None: rounds need none."""
    place, faults = place_of(options), options.faults
    if not isinstance(faults, Faults):
        return None if place.fused else place.open

    def failing(experiment: Experiment) -> Transport:
        return FaultyTransport(place.open(experiment), faults, len(experiment.method.phases))

    return failing
