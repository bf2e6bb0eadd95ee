"""What a client is told besides a message's tensors, as a record of plain values.

A client's process knows nothing of earlier messages, so that every one says which run it belongs to, with which
settings and how many clients.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import numpy as np
import torch

from undrift.client.learner import SideEffects, Trial, Tried
from undrift.core import check
from undrift.core.extras import needs
from undrift.flower.wire import WireError, numbers_from
from undrift.methods.setting import Plan
from undrift.simulation.options import Options
from undrift.transport import Order

with needs("flower"):
    from flwr.app import ConfigRecord


T = TypeVar("T")

_NAME = re.compile("[0-9a-f]{16}")  # of a run

# What a census asks and answers.
CENSUS_QUESTION: Mapping[str, type] = {"facts": str, "options": str, "clients": int}
CENSUS_ANSWER: Mapping[str, type] = {"client": int, "samples": int, "tests": int, "facts": str}

# Parts of a question besides its mail: which of what a client remembers is asked for; which model is evaluated, the
# client's own or the server's in the mail, with buffers or without.
PRIVATE, BUFFERS, OWN = "private", "buffers", "own"


def new_name() -> str:
    """Of a run, which no other run has."""
    return secrets.token_hex(8)


@dataclass(frozen=True)
class Terms:
    """What is the same in all messages of a run."""

    run: str  # its own name
    facts: str  # digest of what both sides agreed on
    population: int
    plan: Plan
    options: Options
    tried: Tried  # what the server found of the model, which clients need not find out for every message


class Told:
    """The order of one client, with the terms of the run."""

    _KINDS: Mapping[str, type] = {
        **{"run": str, "facts": str, "population": int, "plan": str, "options": str, "tried": str},
        **{"client": int, "position": int, "round": int, "phase": int, "seed": int, "heard": int},
        **{"lr": float, "participation": float, "share": float, "part": str},
    }

    def __init__(self, terms: Terms, order: Order, client: int, part: str = "") -> None:
        """`client` is its number on its own machine, `order` that of its position in the population alone."""
        self.terms, self.order, self.client, self.part = terms, order, client, part

    def record(self) -> ConfigRecord:
        terms, order = self.terms, self.order
        return ConfigRecord(
            {
                "run": terms.run,
                "facts": terms.facts,
                "population": terms.population,
                "plan": json.dumps(asdict(terms.plan)),
                "options": json.dumps(asdict(terms.options)),
                "tried": json.dumps([terms.tried.trial, terms.tried.effects]),
                "client": self.client,
                "position": int(order.ids[0]),
                "round": order.round,
                "phase": order.phase,
                "seed": order.seed,
                "heard": int(order.heard[0]),
                "lr": float(order.lr),
                "participation": float(order.participation),
                "share": float(order.shares[0]),
                "part": self.part,
            }
        )

    @classmethod
    def read(cls, record: Any) -> Told:
        given = numbers_from(record, cls._KINDS, "the server's order")
        options, plan = read_options(given["options"]), _read(Plan, given["plan"])
        if not _NAME.fullmatch(given["run"]):  # a folder of the client is called by it
            raise WireError(f"the server's order: {check.shown(given['run'])} is no name of a run")
        if not 0 <= given["position"] < given["population"]:
            raise WireError(f"the server's order: client {given['position']} of {given['population']}")
        order = Order(
            round=given["round"],
            phase=given["phase"],
            seed=given["seed"],
            lr=given["lr"],
            participation=given["participation"],
            ids=np.array([given["position"]], dtype=np.int64),
            shares=torch.tensor([given["share"]], dtype=torch.float64),
            heard=np.array([given["heard"]], dtype=np.int64),
        )
        tried = _read_tried(given["tried"])
        terms = Terms(given["run"], given["facts"], given["population"], plan, options, tried)
        return cls(terms, order, given["client"], given["part"])


def read_options(text: str) -> Options:
    """The server's settings."""
    return _read(Options, text)


def _read_tried(text: str) -> Tried:
    try:
        (training, evaluation, differentiates), (changed, moving, changes_input, sparse) = json.loads(text)
        effects = SideEffects(tuple(changed), tuple(moving), bool(changes_input), tuple(sparse))
        return Tried(Trial(bool(training), bool(evaluation), bool(differentiates)), effects)
    except (TypeError, ValueError) as error:
        raise WireError(f"what the server found of the model cannot be used here: {error}") from None


def _read(kind: type[T], text: str) -> T:
    try:
        return kind(**json.loads(text))
    except (TypeError, ValueError) as error:
        raise WireError(f"the server's settings cannot be used here: {error}") from None
