"""A run: its state while it goes on, its result afterwards."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from undrift import tree
from undrift.averaging import mean_buffers
from undrift.data.federated import FederatedData
from undrift.directory import RunDirectory
from undrift.evaluate import class_averages, evaluate
from undrift.experiment import Experiment, Options
from undrift.personal import accuracies
from undrift.protocol import State
from undrift.rounds import Played, describe_cohort, play
from undrift.states import ClientStates, Ids
from undrift.tree import Tree

COLUMNS = (
    "round",
    "loss",
    "accuracy",
    "train_loss",
    "bytes_down",
    "bytes_up",
    "participants",
    "seconds",
    "diverged",
)
_SAVING_SHARE = 0.05  # checkpoints may take this part of the time


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
        self._states = ClientStates(method.client(learner.parameters, learner.buffers))
        self._ledger = ClientStates(method.ledger(learner.parameters))
        self._rows: list[dict[str, Any]] = []
        self._taken_part: dict[int, int] = {}
        self._saved_at, self._save_seconds = time.monotonic(), 0.0
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
        target = self._experiment.options.target
        return target is not None and any(row["accuracy"] >= target for row in self._rows)

    @property
    def history(self) -> pd.DataFrame:
        """A row per round."""
        return history_frame(self._rows)

    @property
    def clients(self) -> pd.DataFrame:
        """A row per client: samples, classes, rounds taken part in, and the accuracy of its own model, where the
        algorithm gives it one, on the test samples of its own classes."""
        data = self._experiment.data
        counts = np.zeros(len(data), dtype=np.int64)
        if self._taken_part:
            counts[list(self._taken_part)] = list(self._taken_part.values())
        frame = pd.DataFrame({"samples": data.sizes, "rounds": counts})
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
        experiment = self._experiment
        if experiment.test is None:
            raise ValueError("evaluate needs test samples; give simulate test=(x, y)")
        private, buffers, rows = self._typical("private"), self._statistics(), []
        for model in self.models:
            given = (experiment.learner, model | private, buffers, *experiment.test)
            rows.append(evaluate(*given) | class_averages(*given))
        return pd.DataFrame(rows).rename_axis("model")

    @property
    def options(self) -> Options:
        return self._experiment.options

    @property
    def label(self) -> str:
        return str(self.config["label"])

    @property
    def engine(self) -> str:
        """The engine that trains, and why."""
        return f"{self._experiment.engine.name} ({self._experiment.engine_reason})"

    @property
    def out(self) -> Path | None:
        """The run directory."""
        return None if self._directory is None else self._directory.path

    def __repr__(self) -> str:
        last = next((r["accuracy"] for r in reversed(self._rows) if not math.isnan(r["accuracy"])), None)
        ending = "" if last is None else f", accuracy {last:.4f}"
        return f"Run({self._experiment.algorithm!r}, {self.rounds} rounds{ending})"

    # progress

    def advance(self) -> dict[str, Any]:
        """Play one more round and keep it; raises `DivergenceError` and keeps nothing if a number is not finite."""
        started = time.perf_counter()
        number = self.rounds + 1
        played = play(self._experiment, self._server, self._states, self._ledger, number)
        wrong = played.diverged
        row: dict[str, Any] = {
            "round": number,
            "loss": math.nan,
            "accuracy": math.nan,
            "train_loss": played.train_loss,
            "bytes_down": played.bytes_down,
            "bytes_up": played.bytes_up,
            "participants": len(played.ids),
            "diverged": bool(len(wrong)),
        }
        if len(wrong):
            row["seconds"] = time.perf_counter() - started
            self._keep_row(row)
            checkpoint = self.save() if self.rounds else None
            raise DivergenceError(number, wrong.tolist(), checkpoint, self)
        self._keep(played)
        if number % self._experiment.options.eval_every == 0 or number == self._experiment.options.rounds:
            row |= self._evaluated()
        row["seconds"] = time.perf_counter() - started
        self._keep_row(row)
        return row

    def _keep(self, played: Played) -> None:
        self._server = played.server
        self._states.scatter(played.ids, played.clients)
        self._ledger.scatter(played.ids, played.ledger)
        for client in played.ids.tolist():
            self._taken_part[client] = self._taken_part.get(client, 0) + 1

    def _keep_row(self, row: dict[str, Any]) -> None:
        row = {column: row[column] for column in COLUMNS}
        self._rows.append(row)
        if self._directory is not None:
            self._directory.append(row)

    def _evaluated(self) -> dict[str, float]:
        experiment = self._experiment
        if experiment.test is None:
            return {}
        model = experiment.method.presented(self._server) | self._typical("private")
        return evaluate(experiment.learner, model, self._statistics(), *experiment.test)

    def _statistics(self) -> Tree | None:
        """The buffers that the server's models are evaluated with."""
        return self._experiment.method.buffers(self._server) or self._typical("buffers") or None

    def _typical(self, part: str) -> Tree:
        """The mean, over the clients seen, of a part of the model that they keep for themselves."""
        seen = self._states.export()
        if part not in seen.get("states", {}):
            return {}
        cohort = describe_cohort(self._experiment, seen["ids"].cpu().numpy(), self.rounds)
        return mean_buffers(seen["states"][part], cohort.weights)

    def _personal(self) -> pd.Series[float]:
        """Accuracy of the clients' own models, for those that have taken part."""
        if self._accuracies is None or self._accuracies[0] != self.rounds:
            ids = np.array(sorted(self._taken_part), dtype=np.int64)
            found = accuracies(self._experiment, self._server, self._states, self._ledger, ids, self.rounds + 1)
            self._accuracies = self.rounds, pd.Series(found, dtype="float64")
        return self._accuracies[1]

    # checkpoints

    def save(self) -> Path | None:
        """Write a checkpoint of the last good round, if there is a run directory."""
        if self._directory is None:
            return None
        started = time.monotonic()
        memory = {"server": self._server, "clients": self._states.export(), "ledger": self._ledger.export()}
        self._checkpoint = self._directory.save(self.rounds, memory, self._taken_part)
        self._saved_at = time.monotonic()
        self._save_seconds = self._saved_at - started
        return self._checkpoint

    def save_if_due(self) -> None:
        """Save so often that saving takes a small share of the time."""
        if self._directory is not None and (
            time.monotonic() - self._saved_at >= self._save_seconds / _SAVING_SHARE or not self._checkpoint
        ):
            self.save()

    def restore(self) -> None:
        """Go back to the newest checkpoint of the run directory, or to the start."""
        assert self._directory is not None
        found = self._directory.load()
        if found is None:
            self._rows = self._directory.rewind(0)
            return
        number, memory, self._taken_part = found
        # Copies are aligned as those of a run that never stopped, on which the last bit of a product may depend.
        memory = tree.map_nest(lambda v: v.to(self._experiment.learner.device, copy=True), memory)
        self._server = tree.arranged(memory["server"], self._server)
        self._states.restore(memory.get("clients", {}))
        self._ledger.restore(memory.get("ledger", {}))
        self._rows = self._directory.rewind(number)
        self._checkpoint = self._directory.checkpoint(number)


def _copied(tree: Tree) -> Tree:
    """What callers may change without changing the run."""
    return {k: v.clone() for k, v in tree.items()}


def history_frame(rows: list[dict[str, Any]]) -> pd.DataFrame:
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    return frame.astype({"round": "int64", "loss": "float64", "accuracy": "float64", "diverged": "bool"})


def _classes_seen(data: FederatedData, classes: int) -> Ids:
    owner = np.repeat(np.arange(len(data)), data.sizes)
    seen = np.unique(owner * classes + data.y.numpy()[data.rows])
    return np.bincount(seen // classes, minlength=len(data))
