"""A run: its state while it trains, its result afterwards."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from undrift.core import tree
from undrift.core.log import notice
from undrift.core.parts import Part, mark
from undrift.core.tree import Tree
from undrift.data.federated import FederatedData
from undrift.engines.determinism import arithmetic
from undrift.protocol import State
from undrift.reporting.record import COLUMNS, Record, history_frame
from undrift.reporting.wording import unit_of_traffic
from undrift.simulation.evaluation import Evaluator, client_accuracies, server_models
from undrift.simulation.options import Options
from undrift.simulation.round import Memory, RoundResult
from undrift.simulation.setup import Experiment
from undrift.storage.arena import Space
from undrift.storage.directory import RunDirectory, write_json
from undrift.storage.states import ClientStates, Ids

_SAVING_SHARE = 0.05  # checkpoints may take this part of the time
_SAVING_SPEED = 200e6  # bytes a second; what is new since the last checkpoint is expected to take so long


class DivergenceError(ArithmeticError):
    """Training produced a number that is not finite.

    `round`, `clients` (those that did), `checkpoint` (the last good one, or None without `out`) and `run` (the rounds
    before) say what is left.
    """

    def __init__(self, round: int, clients: list[int], checkpoint: Path | None, run: Run) -> None:
        shown = ", ".join(map(str, clients[:5])) + (f" and {len(clients) - 5} more" if len(clients) > 5 else "")
        saved = f"; last good checkpoint: {checkpoint}" if checkpoint else ""
        super().__init__(f"diverged in round {round}: loss or model of client {shown} is not finite{saved}")
        self.round, self.clients, self.checkpoint, self.run = round, clients, checkpoint, run


class Run:
    """What `simulate` returns."""

    def __init__(
        self,
        experiment: Experiment,
        config: dict[str, Any],
        environment: dict[str, Any],
        directory: RunDirectory | None,
    ) -> None:
        learner, method = experiment.learner, experiment.method
        self._experiment = experiment
        self.config, self.environment = config, environment
        self._directory = directory
        self._server: State = method.server(learner.parameters, learner.buffers)
        population, self._space = len(experiment.data), Space(learner.device, self.out)
        self._states = ClientStates(method.client(learner.parameters, learner.buffers), population, self._space)
        self._ledger = ClientStates(method.ledger(learner.parameters), population, self._space)
        self._evaluate = Evaluator(experiment)
        self._obstacle = ""
        self._rows: list[dict[str, Any]] = []
        self._taken_part = np.zeros(population, dtype=np.int64)  # rounds, of every client
        self._saved_at, self._save_seconds, self._saved_bytes = time.monotonic(), 0.0, 0
        self._checkpoint: Path | None = None
        self._accuracies: tuple[int, pd.Series[float]] | None = None  # of clients' own models, after which round

    # results

    @property
    def parameters(self) -> Tree:
        """The server's model, ``{name: tensor}``."""
        return self.models[0]

    @property
    def models(self) -> list[Tree]:
        """All the server's models, for algorithms that keep several."""
        return [_copied(model) for model in self._experiment.method.models(self._server)]

    @property
    def buffers(self) -> Tree:
        """The server's buffers (BatchNorm statistics and the like), where they are averaged."""
        return _copied(self._experiment.method.buffers(self._server))

    @property
    def rounds(self) -> int:
        """How many rounds are done."""
        return len(self._rows) - sum(bool(row["diverged"]) for row in self._rows[-1:])

    @property
    def reached_target(self) -> bool:
        target = self.options.target
        return target is not None and any(row["accuracy"] >= target for row in self._rows)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rounds so far, as plain values."""
        return list(self._rows)

    @property
    def history(self) -> pd.DataFrame:
        """A row per round."""
        return history_frame(self._rows)

    @property
    def record(self) -> Record:
        """What a report needs."""
        return Record(self.label, self.options.seed, self.history, config=self.config, environment=self.environment)

    @property
    def clients(self) -> pd.DataFrame:
        """A row per client: samples, classes, rounds taken part in, and the accuracy of its own model, where the
        algorithm gives it one, on the test samples of its own classes."""
        data = self._experiment.data
        frame = pd.DataFrame({"samples": data.sizes, "rounds": self._taken_part.copy()})
        if data.classes is not None and data.y.ndim == 1:
            frame.insert(1, "classes", _classes_seen(data, data.classes))
        frame["accuracy"] = self._personal().reindex(frame.index)
        frame.index.name = "client"
        return frame

    def evaluate(self) -> pd.DataFrame:
        """All the server's models on the test samples, a row each, in the order of `models`.

        Loss, accuracy and, averaged over classes, precision, recall and F1 (averaged over samples they are the
        accuracy). ``.max()`` and ``.mean()`` give the best and the mean of an algorithm that keeps several models.
        """
        with arithmetic(self.precision):
            return pd.DataFrame(server_models(self._experiment, self.memory)).rename_axis("model")

    @property
    def options(self) -> Options:
        return self._experiment.options

    @property
    def experiment(self) -> Experiment:
        return self._experiment

    @property
    def memory(self) -> Memory:
        """What the next round starts from."""
        return Memory(self._server, self._states, self._ledger)

    @property
    def precision(self) -> str:
        """How products of single precision are computed: fp32, tf32 or bf16."""
        return self._experiment.precision

    @property
    def label(self) -> str:
        return str(self.config["label"])

    @property
    def engine(self) -> str:
        """The engine that trains, and why."""
        obstacle = f"; {self._obstacle}" if self._obstacle else ""
        return f"{self._experiment.engine.name} ({self._experiment.engine_reason}{obstacle})"

    @property
    def states(self) -> str:
        """How much is remembered of clients, and where: on the device, in memory, on disk."""
        size, unit = unit_of_traffic(self._kept.values())
        return ", ".join(f"{kept / size:.3g} {unit} {place}" for place, kept in self._kept.items()) or "none"

    @property
    def _kept(self) -> dict[str, int]:
        """Bytes of clients' states and of the ledger, by the place they are kept in."""
        both = self._states.kept, self._ledger.kept
        return {place: sum(kept.get(place, 0) for kept in both) for place in both[0] | both[1]}

    @property
    def out(self) -> Path | None:
        """The run directory."""
        return None if self._directory is None else self._directory.path

    def __repr__(self) -> str:
        last = next((r["accuracy"] for r in reversed(self._rows) if not math.isnan(r["accuracy"])), None)
        ending = "" if last is None else f", accuracy {last:.4f}"
        return f"Run({self._experiment.algorithm!r}, {self.rounds} rounds{ending})"

    # rounds

    def keep(self, result: RoundResult, seconds: float) -> dict[str, Any]:
        """Keep a round that took so long; raises `DivergenceError` and keeps nothing if a number is not finite."""
        started = time.perf_counter() - seconds
        number, wrong, self._obstacle = self.rounds + 1, result.diverged, result.obstacle
        row: dict[str, Any] = {
            "round": number,
            "loss": math.nan,
            "accuracy": math.nan,
            "train_loss": result.train_loss,
            "bytes_down": result.bytes_down,
            "bytes_up": result.bytes_up,
            "participants": len(result.ids),
            "diverged": bool(len(wrong)),
        } | dict.fromkeys(self._experiment.metrics, math.nan)
        if len(wrong):
            row["seconds"] = time.perf_counter() - started
            self._keep_row(row)
            checkpoint = self.save() if self.rounds else None
            raise DivergenceError(number, wrong.tolist(), checkpoint, self)
        with mark(Part.COHORT):
            self._keep(result)
        if number % self.options.eval_every == 0 or number == self.options.rounds:
            with mark(Part.EVALUATION):
                row |= self._evaluate(self.memory)
        row["seconds"] = time.perf_counter() - started
        return self._keep_row(row)

    def _keep(self, result: RoundResult) -> None:
        self._server = result.server
        self._states.scatter(result.ids, result.clients)
        self._ledger.scatter(result.ids, result.ledger)
        self._taken_part[result.ids] += 1
        self._note_places()

    def _note_places(self) -> None:
        """Put on record where states are kept, and say so when some are on disk."""
        before, places = self.environment.get("states"), ", ".join(self._kept)
        if places in ("", before):
            return
        self.environment = self.environment | {"states": places}
        if self._directory is not None:
            write_json(self._directory.path / "environment.json", self.environment)
        if "on disk" in self._kept:
            notice(f"{self.label}: client states fill the memory; further ones go to disk, in {self._space.home}")

    def _keep_row(self, row: dict[str, Any]) -> dict[str, Any]:
        row = {name: row[name] for name in (*(column.name for column in COLUMNS), *self._experiment.metrics)}
        self._rows.append(row)
        if self._directory is not None:
            with mark(Part.SAVING):
                self._directory.append(row)
        return row

    def _personal(self) -> pd.Series[float]:
        """Accuracy of the clients' own models, for those that have taken part."""
        if self._accuracies is None or self._accuracies[0] != self.rounds:
            ids = np.flatnonzero(self._taken_part)
            with arithmetic(self.precision):
                found = client_accuracies(self._experiment, self.memory, ids, self.rounds + 1)
            self._accuracies = self.rounds, pd.Series(found, dtype="float64")
        return self._accuracies[1]

    # checkpoints

    def save(self) -> Path | None:
        """Write a checkpoint of the last good round, if there is a run directory and it has none yet."""
        if self._directory is None or self._checkpoint == self._directory.checkpoint(self.rounds):
            return self._checkpoint
        started = time.monotonic()
        with mark(Part.SAVING):
            self._checkpoint = self._directory.save(self.rounds, self._parts())
        self._saved_at, self._saved_bytes = time.monotonic(), self._bytes
        self._save_seconds = self._saved_at - started
        return self._checkpoint

    def save_if_due(self) -> None:
        """Save so often that saving takes a small share of the time."""
        expected = self._save_seconds + (self._bytes - self._saved_bytes) / _SAVING_SPEED
        if self._directory is not None and time.monotonic() - self._saved_at >= expected / _SAVING_SHARE:
            self.save()

    @property
    def _bytes(self) -> int:
        """The size of a checkpoint."""
        return tree.nbytes(self._server) + sum(self._kept.values())

    def _parts(self) -> Iterator[State]:
        """All that is remembered, in parts that fit into memory."""
        nothing: State = {}
        blocks = zip_longest(self._states.blocks(), self._ledger.blocks(), fillvalue=nothing)
        clients, ledger = next(blocks, (nothing, nothing))
        who = np.flatnonzero(self._taken_part)
        taken_part = torch.from_numpy(np.stack([who, self._taken_part[who]], axis=1))
        yield {"server": self._server, "taken_part": taken_part, "clients": clients, "ledger": ledger}
        for clients, ledger in blocks:
            yield {"clients": clients, "ledger": ledger}

    def restore(self) -> None:
        """Go back to the newest checkpoint of the run directory, or to the start."""
        assert self._directory is not None
        found = self._directory.load()
        if found is None:
            self._rows = self._directory.rewind(0)
            return
        number, parts = found
        for part in parts:
            # Copies are aligned as those of a run that never stopped, on which the last bit of a product may depend.
            memory = tree.map_nest(lambda v: v.to(self._experiment.learner.device, copy=True), part)
            if "server" in memory:
                self._server = tree.ordered_like(memory["server"], self._server)
                who, rounds = part["taken_part"].numpy().T
                self._taken_part[who] = rounds
            for states, name in ((self._states, "clients"), (self._ledger, "ledger")):
                if name in memory:
                    states.scatter(part[name]["ids"].numpy(), tree.ordered_like(memory[name]["states"], states.initial))
        self._rows = self._directory.rewind(number)
        self._checkpoint = self._directory.checkpoint(number)
        self._note_places()


def _copied(tree: Tree) -> Tree:
    """What callers may change without changing the run."""
    return {k: v.clone() for k, v in tree.items()}


def _classes_seen(data: FederatedData, classes: int) -> Ids:
    owner = np.repeat(np.arange(len(data)), data.sizes)
    seen = np.unique(owner * classes + data.y.numpy()[data.rows])
    return np.bincount(seen // classes, minlength=len(data))
