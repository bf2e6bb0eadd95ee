"""A run: its state while it trains, its result afterwards."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from torch import nn

from undrift.client.classification import confusion
from undrift.client.evaluate import MOST_BYTES, predict, predictions
from undrift.client.fairness import Figures, fairness
from undrift.core.log import failure, notice, warning
from undrift.core.parts import Part, mark
from undrift.core.tree import Tree
from undrift.data.arrays import tensor
from undrift.data.features import as_samples
from undrift.diagnostics.columns import tidy
from undrift.engines.determinism import arithmetic, threads
from undrift.protocol import State
from undrift.reporting import notebook
from undrift.reporting.record import (
    COLUMNS,
    EXPLODED,
    FAILURE_COLUMNS,
    SEVERAL_MODELS,
    Record,
    exploded,
    history_frame,
)
from undrift.reporting.wording import count_text, unit_of_traffic
from undrift.simulation import accounting
from undrift.simulation.connection import connected
from undrift.simulation.divergence import DivergenceError, remedy
from undrift.simulation.evaluation import (
    Confusion,
    Evaluator,
    class_holders,
    client_accuracies,
    model_in_use,
    server_models,
)
from undrift.simulation.fit import check_samples
from undrift.simulation.memory import Memory, RoundResult
from undrift.simulation.options import Options
from undrift.simulation.place import transport_opener
from undrift.simulation.setup import Experiment
from undrift.statistics.predictions import Predictions
from undrift.storage import model_file
from undrift.storage import predictions as predictions_file
from undrift.storage.details import Detail
from undrift.storage.directory import Found, RunDirectory
from undrift.storage.files import DamageError
from undrift.transport import ClientsLostError, LostStatesError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SAVING_SHARE = 0.05  # checkpoints may take this part of the time
_SAVING_SPEED = 200e6  # bytes a second; what is new since the last checkpoint is expected to take so long


class Run:
    """What `simulate` returns."""

    def __init__(
        self,
        experiment: Experiment,
        config: dict[str, Any],
        environment: dict[str, Any],
        directory: RunDirectory | None,
    ) -> None:
        self._experiment = experiment
        self.config, self.environment = config, environment
        self._directory = directory
        self.memory = Memory(experiment, self.out)  # what the next round starts from
        self.open_transport = transport_opener(experiment.options)  # to clients elsewhere; None: they are here
        self._evaluate = Evaluator(experiment)
        several = SEVERAL_MODELS if len(experiment.method.models(self.memory.server)) > 1 else {}
        # columns of the history besides those of every run
        failing = FAILURE_COLUMNS if experiment.answers_may_fail else {}
        spent = accounting.spent(experiment, 1)
        self._further = (*experiment.metrics.columns, *several, *spent, *experiment.observer.columns, *failing)
        self._obstacle = ""
        self._rows: list[dict[str, Any]] = []
        self._exploded = False  # and it has been said
        self._saved_at, self._save_seconds, self._saved_bytes = time.monotonic(), 0.0, 0
        self._checkpoint: Path | None = None
        self._found: Found | None = None  # what the run continues from, until the directory has been put in order
        self.ended = False  # by a callback, or because the accuracy no longer improves
        self._accuracies: tuple[int, Figures] | None = None  # of the models that clients use, after which round
        self._confusion: tuple[int, Confusion] | None = None  # likewise, of the server's model
        self._detail: Detail | None = None  # what the last evaluation found besides numbers
        self._predictions: tuple[int, Predictions | None] | None = None  # of the test samples, after which round

    # results

    @property
    def parameters(self) -> Tree:
        """The server's model, ``{name: tensor}``, as it is evaluated."""
        return _copied(self._experiment.method.presented(self.memory.server))

    @property
    def models(self) -> list[Tree]:
        """All the server's models, for algorithms that keep several, as training goes on from them."""
        return [_copied(model) for model in self._experiment.method.models(self.memory.server)]

    @property
    def buffers(self) -> Tree:
        """The server's buffers (BatchNorm statistics and the like), where they are averaged."""
        return _copied(self._experiment.method.buffers(self.memory.server))

    @property
    def model(self) -> nn.Module:
        """A copy of the module that was given, with what was trained, in evaluation mode: the model whose accuracy is
        in the history.

        Buffers (BatchNorm statistics) included. What clients keep for themselves (FedBN) is the mean over the clients
        that have taken part; with ``buffers="dropped"``, statistics are the initial ones.
        """
        params, buffers = model_in_use(self._experiment, self.memory)
        return self._experiment.learner.module_with(params | (buffers or {}))

    def predict(self, x: Any) -> torch.Tensor:
        """Outputs of the model for samples `x`, which are prepared (bytes, normalisation) as those of training were.

        They are on the device of `x`; for a classifier, ``run.predict(x).argmax(-1)`` are the classes.
        """
        data = self._experiment.data
        given = x if data.features is None else as_samples(data, tensor("x", x))
        samples = check_samples(given, data.x)
        weights = model_in_use(self._experiment, self.memory)
        with arithmetic(self.precision), threads(self._experiment.engine.threads):
            outputs = predict(self._experiment.learner, weights, samples, self._experiment.engine.spread)
        return outputs.to(x.device) if isinstance(x, torch.Tensor) else outputs

    def export(self, path: str | Path) -> Path:
        """Write `model` to a safetensors file, with the names that its `load_state_dict` accepts; returns the path.

        The file is there as a whole or not at all. Of files that exist, only an earlier export is replaced.
        """
        about = {"label": self.label, "round": str(self.rounds)}
        return model_file.write(path, self.model.state_dict(), about)

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
    def diagnostics(self) -> pd.DataFrame:
        """The drift diagnostics: a row per round, name, layer (empty: the whole model) and statistic."""
        return tidy(self.history)

    @property
    def record(self) -> Record:
        """What a report needs."""
        found = self._bare_record
        return found if found.trial else found._replace(predictions=self.predictions)

    @property
    def _bare_record(self) -> Record:
        """Without the predictions, which take an evaluation where they are not known yet."""
        known = self.label, self.options.seed, self.history, self.config, self.environment
        return Record(*known, detail=self._detail)

    @property
    def predictions(self) -> Predictions | None:
        """What the model says of the test samples after the last round: `targets`, `labels` and `probabilities`.

        None where targets are not class numbers, without test samples, and of a run that diverged or has no round.
        """
        if not self._rows or self._rows[-1]["diverged"] or self._experiment.test is None:
            return None
        if self._predictions is None or self._predictions[0] != self.rounds:
            weights = model_in_use(self._experiment, self.memory)
            learner, engine = self._experiment.learner, self._experiment.engine
            with arithmetic(self.precision), threads(engine.threads):
                found = predictions(learner, weights, self._experiment.test, engine.spread)
            self._predictions = self.rounds, found
        return self._predictions[1]

    @property
    def clients(self) -> pd.DataFrame:
        """A row per client: samples, classes, rounds taken part in, and the accuracy of the model it would use.

        That is its own, where the algorithm gives it one and it has taken part, and else the server's; tested on the
        client's own test samples (`FederatedData.hold_out`), or on those of its classes among all test samples.
        Computed when it is asked for.
        """
        data = self._experiment.data
        frame = pd.DataFrame({"samples": data.sizes, "rounds": self.memory.taken_part.copy()})
        if data.classes is not None and data.y.ndim == 1 and not self._experiment.deployed:  # which has no labels here
            frame.insert(1, "classes", np.bincount(class_holders(data, data.classes)[0], minlength=len(data)))
        frame["accuracy"] = self._client_accuracies()
        if data.client_names is not None:
            frame.index = pd.Index(data.client_names)
        frame.index.name = "client"
        return frame

    @property
    def fairness(self) -> dict[str, float]:
        """How the accuracies in `clients` are spread, every client counted once.

        ``clients``, how many have one; ``mean``, ``std`` (standard deviation), ``worst``, ``worst_tenth`` (the mean
        over the tenth of clients with the lowest), ``best``, ``gap`` (best minus worst) and ``jain`` (Jain's index, 1
        where all are equal). ``metrics=["fairness"]`` makes columns of the history of them.
        """
        known = self._client_accuracies()
        return {"clients": int(np.isfinite(known).sum())} | fairness(known)

    @property
    def confusion(self) -> pd.DataFrame:
        """How many test samples of every class (row) the model takes for which (column), after the last round.

        Classes are called by their names where these are known. ``metrics=["confusion"]`` keeps the figures of every
        evaluated round in the run directory, in ``details.jsonl``.
        """
        experiment = self._experiment
        if self._confusion is None or self._confusion[0] != self.rounds:
            if experiment.test is None:
                raise ValueError("confusion needs test samples; give simulate test=(x, y)")
            (x, y), weights = experiment.test, model_in_use(experiment, self.memory)
            with arithmetic(self.precision), threads(experiment.engine.threads):
                outputs = predict(experiment.learner, weights, x, experiment.engine.spread)
            self._confusion = self.rounds, confusion(outputs, y).cpu().numpy()
        matrix = self._confusion[1]
        known = experiment.data.class_names or ()
        names = pd.Index(known if len(known) == len(matrix) else range(len(matrix)))
        return pd.DataFrame(matrix, names.rename("class"), names.rename("answer"))

    def evaluate(self) -> pd.DataFrame:
        """All the server's models on the test samples, a row each, in the order of `models`.

        Loss, accuracy and, averaged over classes, precision, recall and F1 (averaged over samples they are the
        accuracy). ``.max()`` and ``.mean()`` give the best and the mean of an algorithm that keeps several models.
        """
        with arithmetic(self.precision), threads(self._experiment.engine.threads):
            return pd.DataFrame(server_models(self._experiment, self.memory)).rename_axis("model")

    @property
    def options(self) -> Options:
        return self._experiment.options

    @property
    def experiment(self) -> Experiment:
        return self._experiment

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
        actors = f"; on {count_text(self.options.actors, 'actor')} of Ray" if self.options.actors else ""
        return f"{self._experiment.engine.name} ({self._experiment.engine_reason}{obstacle}{actors})"

    @property
    def states(self) -> str:
        """How much is remembered of clients, and where: on the device, in memory, on disk."""
        size, unit = unit_of_traffic(self.memory.kept.values())
        return ", ".join(f"{kept / size:.3g} {unit} {place}" for place, kept in self.memory.kept.items()) or "none"

    @property
    def out(self) -> Path | None:
        """The run directory."""
        return None if self._directory is None else self._directory.path

    def __repr__(self) -> str:
        last = next((r["accuracy"] for r in reversed(self._rows) if not math.isnan(r["accuracy"])), None)
        ending = "" if last is None else f", accuracy {last:.4f}"
        return f"Run({self._experiment.algorithm!r}, {self.rounds} rounds{ending})"

    def plot(self, column: str | None = None, axes: Axes | None = None) -> Axes:
        """Draw a column of the history over rounds, by default the accuracy.

        Returns matplotlib's axes, new ones unless some are given.
        """
        if not self._rows:
            raise ValueError("plot needs at least one round, and this run has none yet")
        return notebook.draw([self._bare_record], column, axes)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        words = f"<p>{escape(repr(self))}</p>"
        return words + notebook.html_table([self._bare_record], self.options.target) if self._rows else words

    # rounds

    def keep(self, result: RoundResult, seconds: float) -> dict[str, Any]:
        """Keep a round that took so long; raises `DivergenceError` and keeps nothing if a number is not finite."""
        started = time.perf_counter() - seconds
        number, wrong, self._obstacle = self.rounds + 1, result.diverged, result.obstacle
        travels = not self._experiment.algorithm.pooled
        row: dict[str, Any] = {
            "round": number,
            "loss": math.nan,
            "accuracy": math.nan,
            "train_loss": result.train_loss,
            "bytes_down": result.bytes_down * travels,
            "bytes_up": result.bytes_up * travels,
            "participants": len(result.ids),
            "evaluation_seconds": 0.0,
            "diverged": bool(len(wrong)),
        } | dict.fromkeys(self._further, math.nan)
        row |= {name: result.failures.get(name, 0) for name in FAILURE_COLUMNS if name in self._further}
        if len(wrong):
            row["seconds"] = time.perf_counter() - started
            checkpoint = self.save()  # before the row, which is no part of it
            self._keep_row(row)
            raise DivergenceError(number, wrong.tolist(), checkpoint, self)
        row |= self._diagnosed(result) | accounting.spent(self._experiment, number)
        with mark(Part.COHORT):
            self.memory.keep(result, number)
            self._note_places()
        if number % self.options.eval_every == 0 or number == self.options.rounds:
            trained = time.perf_counter()
            with mark(Part.EVALUATION):
                row |= self._evaluated(number)
            row["evaluation_seconds"] = time.perf_counter() - trained
        row["seconds"] = time.perf_counter() - started
        self._watch(row)
        return self._keep_row(row)

    def _diagnosed(self, result: RoundResult) -> dict[str, float]:
        """The diagnostics of a round; NaN where one is not defined, as in a file."""
        figures = zip(self._experiment.observer.columns, result.diagnostics, strict=True)
        return {name: value if math.isfinite(value) else math.nan for name, value in figures}

    def _evaluated(self, number: int) -> dict[str, float]:
        """Figures of the model after a round; what was found besides is kept."""
        found = self._evaluate(self.memory, self.memory.clients, number)
        detail: Detail = {}
        if found.confusion is not None:
            self._confusion = number, found.confusion
            detail["confusion"] = found.confusion.tolist()
        if found.client_accuracies is not None:
            self._accuracies = number, found.client_accuracies
            detail["client_accuracy"] = found.client_accuracies.tolist()
        if detail:
            self._detail = {"round": number} | detail
            if self._directory is not None:
                self._directory.append_detail(self._detail)
        return found.figures

    def _watch(self, row: dict[str, Any]) -> None:
        """Say once that the training loss has exploded, which a table flags as well."""
        start = self._rows[0]["train_loss"] if self._rows else math.nan
        if self._exploded or not exploded(row["train_loss"], start):
            return
        self._exploded = True
        failure(
            f"{self.label}, seed {self.options.seed}: in round {row['round']} the training loss is "
            f"{row['train_loss']:.3g}, over {EXPLODED} times that of the first round; {remedy(self._experiment)}"
        )

    @contextmanager
    def reaching_clients(self) -> Iterator[None]:
        """During the block clients are where the option `place` says; afterwards what they remember is here again."""
        if self.open_transport is None:
            yield
            return
        try:
            with connected(self._experiment, self.open_transport, self.memory):
                yield
        except (ClientsLostError, LostStatesError) as error:
            raise ClientsLostError(f"{error}; {self._where_to_go_on()}") from error

    def _where_to_go_on(self) -> str:
        if self._checkpoint is None:
            return "there is no checkpoint to resume from"
        return f"resume from {self._checkpoint} with: undrift resume {shlex.quote(str(self.out))}"

    def _note_places(self) -> None:
        """Put on record where states are kept, and say so when some are on disk."""
        before, places = self.environment.get("states"), ", ".join(self.memory.kept)
        if places in ("", before):
            return
        self.environment = self.environment | {"states": places}
        if self._directory is not None:
            self._directory.write_environment(self.environment)
        if "on disk" in self.memory.kept:
            notice(f"{self.label}: client states fill the memory; further ones go to disk, in {self.memory.space.home}")

    def _keep_row(self, row: dict[str, Any]) -> dict[str, Any]:
        row = {name: row[name] for name in (*(column.name for column in COLUMNS), *self._further)}
        self._rows.append(row)
        if self._directory is not None:
            with mark(Part.SAVING):
                self._directory.append(row)
        return row

    def _client_accuracies(self) -> Figures:
        """Accuracy of the model that every client would use, after the last round."""
        if self._accuracies is None or self._accuracies[0] != self.rounds:
            ids = self.memory.clients
            with arithmetic(self.precision), threads(self._experiment.engine.threads):
                found = client_accuracies(self._experiment, self.memory, ids, self.rounds + 1)
            self._accuracies = self.rounds, found
        return self._accuracies[1]

    # checkpoints

    def save(self) -> Path | None:
        """Write a checkpoint of the last good round, if there is a run directory and it has none yet."""
        if self._directory is None or not self.rounds or self._checkpoint == self._directory.checkpoint(self.rounds):
            return self._checkpoint
        return self._save(self._directory)

    def keep_predictions(self) -> None:
        """Write what the model says of the test samples, unless the run directory has it, or has no use for it."""
        if self._directory is None or self._bare_record.trial or not self._rows or self._rows[-1]["diverged"]:
            return
        home = self._directory.path
        try:
            self._predictions = self.rounds, predictions_file.read(home, self.rounds)
        except DamageError:  # missing, or of an earlier round
            if (found := self.predictions) is not None:
                predictions_file.write(home, found, self.rounds)
                if found.probabilities is None:
                    notice(
                        f"{self.label}: of predictions on the test samples only labels are kept, as "
                        f"probabilities would take more than {MOST_BYTES >> 20} MB or are not finite"
                    )

    def end(self) -> None:
        """Put on record that the run ends here, before its last round."""
        self.ended = True
        if self._directory is not None:
            self._save(self._directory)

    def _save(self, directory: RunDirectory) -> Path:
        started = time.monotonic()
        with mark(Part.SAVING):
            names = self._experiment.learner.state_names()
            self._checkpoint = directory.save(self.rounds, self._parts(), ended=self.ended, names=names)
        self._saved_at, self._saved_bytes = time.monotonic(), self.memory.nbytes
        self._save_seconds = self._saved_at - started
        return self._checkpoint

    def save_if_due(self) -> None:
        """Save so often that saving takes a small share of the time."""
        expected = self._save_seconds + (self.memory.nbytes - self._saved_bytes) / _SAVING_SPEED
        durable = self.memory.remote is not None and self.memory.remote.transport.durable
        if durable or time.monotonic() - self._saved_at >= expected / _SAVING_SHARE:
            self.save()

    def _parts(self) -> Iterator[State]:
        """Of a checkpoint; the first has the model in use as well."""
        parts = self.memory.parts(with_heard=self.open_transport is not None)
        yield next(parts) | model_file.in_use(self.memory.server, *model_in_use(self._experiment, self.memory))
        yield from parts

    def restore(self) -> None:
        """Go back to the newest good checkpoint of the run directory, or to the start. Nothing changes on disk yet."""
        assert self._directory is not None
        found = self._found = self._directory.find()
        if found.checkpoint is None:
            return
        for number, part in enumerate(found.checkpoint.parts()):
            if misfit := self.memory.misfit(part, first=number == 0):
                raise ValueError(f"{found.checkpoint.path} is not of this algorithm and model: {misfit}")
            self.memory.restore(part)
        self._rows, self.ended = found.rows, found.checkpoint.ended
        self._detail = found.detail
        self._exploded = any(exploded(row["train_loss"], self._rows[0]["train_loss"]) for row in self._rows)
        self._checkpoint = found.checkpoint.path

    def prepare_directory(self) -> None:
        """Put the run directory in order before the first round: what comes after the checkpoint is dropped."""
        if self._directory is None or self._found is None:
            return
        found, self._found = self._found, None
        if found.problems or (found.checkpoint is None and found.dropped):
            start = "the start, as there is no checkpoint yet" if found.checkpoint is None else found.checkpoint.path
            warning("; ".join([*dict.fromkeys(found.problems), f"{self.label} continues from {start}"]))
        self._directory.go_back_to(found)
        self._directory.change_rounds(self.options.rounds)
        self._note_places()


def _copied(tree: Tree) -> Tree:
    """What callers may change without changing the run."""
    return {k: v.clone() for k, v in tree.items()}
