"""A small federation on Flower's messages in one process, and the simulation with the same numbers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from flwr.app import Context

import undrift as ud
from grids import InProcessGrid
from laws import LAWS, SHORT, Law, classified
from undrift.core.random import sample
from undrift.flower import Samples, client_app
from undrift.flower.server import serve
from undrift.reporting.record import FAILURE_COLUMNS, TIMES
from undrift.simulation.arguments import settings

CLIENTS = classified()
TEST = classified((16,))[0]


def training_samples(context: Context) -> Samples:
    return Samples(*CLIENTS[int(context.node_config["partition-id"])], classes=3)


HELD_OUT = Samples(*TEST, classes=3)


def configuration(options: Mapping[str, Any], out: Path, **federation: Any) -> dict[str, Any]:
    """As Flower hands it to an app."""
    paths = {option.name: option.path for option in settings()}
    given = {paths[name]: value for name, value in options.items() if value is not None}
    federation = {"clients": len(CLIENTS), "out": str(out), "wait": 0, "deadline": 1} | federation
    return given | {f"federation.{name}": value for name, value in federation.items()}


class Federation:
    """An app and its grid; started again, the server finds what it left."""

    def __init__(
        self, home: Path, algorithm: Any, options: Mapping[str, Any], fate: Any = None, **objects: Any
    ) -> None:
        self.objects = {"algorithm": algorithm, **objects}
        self.config = configuration({k: v for k, v in options.items() if k != "loss"}, home / "run")
        app = client_app(training_samples, **self.objects)
        chosen = {} if fate is None else {"fate": fate}
        self.grid = InProcessGrid(app, len(CLIENTS), self.config, home / "clients", **chosen)

    def serve(self, **changed: Any) -> ud.Run:
        return serve(self.grid, self.config | changed, HELD_OUT, **self.objects)


def simulated(law: Law, **changed: Any) -> ud.Run:
    options = SHORT | dict(law.options) | {"engine": "sequential"} | changed
    return ud.simulate(law.algorithm, law.model(), CLIENTS, TEST, **options)


def federation(law: Law, home: Path, fate: Any = None, **changed: Any) -> Federation:
    options = {k: v for k, v in (SHORT | dict(law.options) | changed).items() if k != "engine"}
    loss = options.get("loss")
    return Federation(home, law.algorithm, options, fate, model=law.model(), loss=loss)


def assert_same(a: ud.Run, b: ud.Run, *, but: tuple[str, ...] = ()) -> None:
    """Models and histories are the same to the bit."""
    for name, value in b.parameters.items():
        assert torch.equal(a.parameters[name], value), name
    one, other = (run.history.drop(columns=[*TIMES, *but]) for run in (a, b))
    one = one.drop(columns=[name for name in FAILURE_COLUMNS if name not in other])  # which a simulation has not
    pd.testing.assert_frame_equal(one, other, check_exact=True)


def draw(round: int) -> Any:
    """The cohort of a round of `SHORT`."""
    return sample(0, round, len(CLIENTS), SHORT["cohort"]).numpy()


def options_of(**changed: Any) -> dict[str, Any]:
    return SHORT | {"engine": "sequential", "cohort": None} | changed


BY_ALGORITHM = {law.algorithm.name(): law for law in reversed(LAWS) if law.name != "fsvrg-census"}
SCAFFOLD = BY_ALGORITHM["scaffold"]
MIME = BY_ALGORITHM["mime"]
