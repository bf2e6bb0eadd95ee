"""The run configuration of a Flower app: the settings of `undrift run CONFIG.toml`, and those of the federation.

    [tool.flwr.app.config]
    algorithm = "fedhbm"
    [tool.flwr.app.config.local]
    lr = 0.05
    [tool.flwr.app.config.federation]
    clients = 10
    out = "/home/me/runs/fedhbm"

Flower hands it to both sides as ``{"local.lr": 0.05, ...}``, with what ``flwr run --run-config`` replaces.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from undrift.core import check
from undrift.data.census import Census
from undrift.simulation.arguments import read_settings

ALGORITHM, MODEL = "algorithm", "model.name"
FEDERATION, DATA = "federation.", "data."  # sections; that of data is for the app's own functions


@dataclass(frozen=True)
class Federation:
    """What a deployment has besides a simulation."""

    clients: int  # numbered from 0, as their nodes' configuration says
    out: Path  # the server's run directory, which a restarted server continues
    wait: float = 600.0  # seconds until round 1 begins without clients that have not come, a later one with too few
    deadline: float = 3600.0  # seconds that a client has for an answer

    def __post_init__(self) -> None:
        check.integer(f"{FEDERATION}clients", self.clients, 1)
        for name in ("wait", "deadline"):
            check.number(FEDERATION + name, getattr(self, name), 0, open_low=name == "deadline")


def read_federation(config: Mapping[str, Any]) -> Federation:
    """The section of the federation."""
    given = {key.removeprefix(FEDERATION): value for key, value in config.items() if key.startswith(FEDERATION)}
    known = list(Federation.__dataclass_fields__)
    for key in given:
        if key not in known:
            raise ValueError(f"unknown key {FEDERATION + key!r}{check.nearest(key, known)}")
    for key in ("clients", "out"):
        if key not in given:
            raise ValueError(f"{FEDERATION}{key} is missing in [tool.flwr.app.config] of pyproject.toml")
    out = check.path(f"{FEDERATION}out", given.pop("out")).expanduser()
    if not out.is_absolute():  # Flower starts apps in folders of its own
        raise ValueError(f"{FEDERATION}out must be an absolute path, got {check.shown(str(out))}")
    return Federation(out=out, **given)


def read_arguments(config: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of `simulate`; what is not in the configuration is left out."""
    own = (ALGORITHM, MODEL)
    others = {key: v for key, v in config.items() if key not in own and not key.startswith((FEDERATION, DATA))}
    return read_settings(others, besides=own)


def no_census() -> Census:
    """Instead of how often features occur over all clients, which no machine of a federation can count."""
    raise ValueError('feature_scaling="census" needs the samples of all clients in one place; use "cohort"')
