"""What all trackers have in common: which rounds are logged, under which identity, and what becomes of failures."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from undrift.core.log import warning
from undrift.simulation.callbacks import Callback
from undrift.simulation.run import Run
from undrift.storage import tracked


class Log(ABC):
    """One run in a tool."""

    identity: dict[str, str]  # by which it is found again when the run is resumed
    rounds: int  # the last round that it has

    @abstractmethod
    def write(self, row: dict[str, float], round: int) -> None:
        """Keep the figures of a round."""

    @abstractmethod
    def finish(self, figures: dict[str, float], *, complete: bool) -> None:
        """Keep the final figures, and close; `complete` tells a run that ended as intended."""


class Tracker(Callback, ABC):
    """Configuration when a run begins, figures of every round, final figures at the end.

    A run that is resumed continues where the tool has its last round; rounds that it lacks, because the run was trained
    without it for a while, are added. Runs that train together are kept apart. Where a tool fails during training, this
    is said once, and the run goes on.
    """

    def __init__(self) -> None:
        self._logs: dict[Run, Log] = {}
        self._failed: set[Run] = set()

    @classmethod
    def name(cls) -> str:
        return cls.__name__.lower()

    @abstractmethod
    def open(self, run: Run, identity: Mapping[str, str]) -> Log:
        """The log of a run: the one with this identity, or a new one, with the configuration, where that is empty."""

    def begin(self, run: Run) -> None:
        known = {} if run.out is None else tracked.read(run.out)
        log = self._logs[run] = self.open(run, known.get(self.name(), {}))
        if run.out is not None and known.get(self.name()) != log.identity:
            tracked.write(run.out, known | {self.name(): log.identity})
        self._log(run)

    def round(self, row: dict[str, Any], run: Run) -> None:
        self._log(run)

    def _log(self, run: Run) -> None:
        if run in self._failed:
            return
        try:
            self._catch_up(run, self._logs[run])
        except Exception as error:  # whatever a tool raises: a run is worth more than its log
            self._failed.add(run)
            warning(f"{title(run)}: {self.name()} failed, and the run goes on: {_line(error)}")

    def end(self, run: Run) -> None:
        log = self._logs.pop(run, None)
        if log is None:  # it did not begin
            return
        self._failed.discard(run)
        try:
            self._catch_up(run, log)
            log.finish(final_figures(run.rows), complete=_complete(run))
        except Exception as error:
            missing = f"; rounds from {log.rounds + 1} on are missing there" if log.rounds < run.rounds else ""
            warning(f"{title(run)}: {self.name()} failed{missing}: {_line(error)}")

    def _catch_up(self, run: Run, log: Log) -> None:
        for row in run.rows[log.rounds : run.rounds]:  # one that diverged is no round
            log.write(figures(row), row["round"])
            log.rounds = row["round"]


def title(run: Run) -> str:
    """What a person tells the runs of a comparison apart by."""
    return f"{run.label}, seed {run.options.seed}"


def figures(row: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a round; a round that was not evaluated has no accuracy."""
    return {
        name: value
        for name, value in row.items()
        if name != "round" and isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }


def final_figures(rows: list[dict[str, Any]]) -> dict[str, float]:
    """What a run came to: the last of what was evaluated, the best accuracy, and sums of traffic and time."""
    kept = [row for row in rows if not row["diverged"]]
    found: dict[str, float] = {"rounds": len(kept), "diverged": int(len(kept) < len(rows))}
    evaluated = [figures(row) for row in kept if math.isfinite(row["loss"])]
    sums = {"bytes_down", "bytes_up", "seconds"}
    found |= {name: value for name, value in (evaluated[-1] if evaluated else {}).items() if name not in sums}
    if accuracies := [(row["accuracy"], -row["round"]) for row in kept if math.isfinite(row["accuracy"])]:
        best, round = max(accuracies)
        found |= {"best_accuracy": best, "best_round": -round}
    return found | {name: sum(row[name] for row in kept) for name in sorted(sums)}


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A configuration as one level of names, as in ``options.lr``."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


def _complete(run: Run) -> bool:
    return run.rounds >= run.options.rounds or run.ended or run.reached_target


def _line(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__
