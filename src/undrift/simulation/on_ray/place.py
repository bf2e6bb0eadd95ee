"""Actors of Ray as the place where clients are computed."""

from __future__ import annotations

from contextlib import AbstractContextManager

from undrift.simulation import cohort
from undrift.simulation.on_ray import cluster
from undrift.simulation.on_ray.transport import RayTransport
from undrift.simulation.options import Options
from undrift.simulation.place import Place
from undrift.simulation.setup import Experiment
from undrift.transport import Transport


class OnRay(Place):
    def session(self, options: Options) -> AbstractContextManager[None]:
        return cluster.session(options.address)

    def completed(self, options: Options, clients: int) -> Options:
        return cluster.with_actors(options, clients, cohort.largest(options, clients))

    def budget(self, options: Options) -> AbstractContextManager[None]:
        return cluster.budget(options)

    def open(self, experiment: Experiment) -> Transport:
        return RayTransport(experiment)
