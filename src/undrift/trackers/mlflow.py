"""MLflow: runs in a database, or on a tracking server, shown by ``mlflow ui``."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from undrift.core import check
from undrift.core.extras import needs
from undrift.simulation.run import Run
from undrift.trackers.tracker import Log, Tracker, flat, title

if TYPE_CHECKING:
    from mlflow import MlflowClient

_LAST = "participants"  # a figure that every round has
_BATCH, _LONGEST = 100, 6000  # parameters of one call, and characters of a value, that MLflow takes


class MLflow(Tracker):
    """Every run becomes a run of an experiment; settings are parameters, columns of the history metrics.

    `experiment` is by default that of ``MLFLOW_EXPERIMENT_NAME``, or "undrift"; `uri`, a server or database such as
    ``sqlite:///runs.db``, what ``MLFLOW_TRACKING_URI`` says, or ``mlflow.db`` in the working directory.

    Needs ``pip install "undrift[mlflow]"``.
    """

    def __init__(self, experiment: str | None = None, uri: str | None = None) -> None:
        super().__init__()
        for name, value in (("experiment", experiment), ("uri", uri)):
            if value is not None and (not isinstance(value, str) or not value):
                raise TypeError(f"{name} must be a text, got {check.shown(value)}")
        with needs("mlflow"):
            from mlflow import MlflowClient
        self.experiment = experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or "undrift"
        with _explained():
            self._client = MlflowClient(tracking_uri=uri)

    def open(self, run: Run, identity: Mapping[str, str]) -> Log:
        with _explained():
            if known := identity.get("run"):
                return _Continued(self._client, known)
            return _New(self._client, self.experiment, run)


class _Metrics(Log):
    """A run of MLflow; all calls name it, as several are open at once."""

    def __init__(self, client: MlflowClient, run: str, rounds: int) -> None:
        self.identity, self.rounds = {"run": run}, rounds
        self._client, self._run = client, run

    def write(self, row: dict[str, float], round: int) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self._client.log_batch(self._run, [Metric(name, float(value), now, round) for name, value in row.items()])

    def finish(self, figures: dict[str, float], *, complete: bool) -> None:
        self.write({f"final/{name}": value for name, value in figures.items()}, self.rounds)
        status = "FAILED" if figures["diverged"] else "FINISHED" if complete else "KILLED"
        self._client.set_terminated(self._run, status)


class _New(_Metrics):
    def __init__(self, client: MlflowClient, experiment: str, run: Run) -> None:
        from mlflow.entities import Param

        found = client.get_experiment_by_name(experiment)
        home = client.create_experiment(experiment) if found is None else found.experiment_id
        made = client.create_run(home, run_name=title(run))
        super().__init__(client, made.info.run_id, 0)
        settings = [Param(name, str(value)[:_LONGEST]) for name, value in flat(run.config).items()]
        for start in range(0, len(settings), _BATCH):
            client.log_batch(self._run, params=settings[start : start + _BATCH])


class _Continued(_Metrics):
    def __init__(self, client: MlflowClient, run: str) -> None:
        client.update_run(run, status="RUNNING")
        done = max((metric.step for metric in client.get_metric_history(run, _LAST)), default=0)
        super().__init__(client, run, done)


@contextmanager
def _explained() -> Iterator[None]:
    """What is wrong with experiment, URI or server is said in one line, before anything trains."""
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as error:
        raise ValueError(f"MLflow: {str(error).partition(chr(10))[0]}") from error
