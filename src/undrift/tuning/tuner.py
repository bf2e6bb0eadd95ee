"""`tune`: rates and options for every algorithm, chosen on held-out training data with the same budget for all."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from torch import nn
from torch.utils.data import Dataset

from undrift.algorithms.text import Written
from undrift.core import check
from undrift.core.log import failures_expected, notice
from undrift.data import FederatedData, load
from undrift.data.federated import Clients
from undrift.methods.algorithm import Algorithm
from undrift.reporting.choices import Choices
from undrift.reporting.record import Record
from undrift.reporting.wording import count_text, list_text, number_text, percent_text
from undrift.simulation.compare import compare
from undrift.simulation.comparison import Comparison
from undrift.simulation.defaults import common_weighting
from undrift.simulation.given import Given, federations_of, labelled_algorithms, list_of_seeds, separated
from undrift.simulation.options import AUTO, Auto
from undrift.simulation.place import place_of
from undrift.simulation.prepare import find_features
from undrift.simulation.progress import counted, overall_bar, skipped
from undrift.simulation.stored import read_record
from undrift.simulation.together import Entry, train_all
from undrift.storage import files
from undrift.storage.comparison import unique_folder
from undrift.storage.directory import RunDirectory
from undrift.storage.tuning import COMPARISON, FILE, TRIALS
from undrift.tuning import edges, search
from undrift.tuning.grid import Configuration, Space, common_budget, default_grid, read_grid, spaces
from undrift.tuning.presets import Grid
from undrift.tuning.trial import Trial

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class _Problem:
    """What is compared, as it was given."""

    model: str | nn.Module | None
    data: Any
    test: Any
    lr: Any
    options: Mapping[str, Any]


class Tuning:
    """The configurations that were tried of every algorithm, and which one is the best."""

    def __init__(
        self,
        trials: Sequence[Trial],
        problem: _Problem,
        seeds: Sequence[int],
        out: Path | None,
        plan: Mapping[str, Any],
    ) -> None:
        self.trials, self.seeds, self.out, self.plan = list(trials), list(seeds), out, dict(plan)
        self._problem = problem

    @property
    def winners(self) -> dict[str, Trial]:
        """The best trial of every algorithm, by label."""
        labels = dict.fromkeys(trial.configuration.label for trial in self.trials)
        # Of equals, the one that was tried first.
        return {label: min(self.of(label), key=lambda trial: trial.rank) for label in labels}

    def of(self, label: str) -> list[Trial]:
        """The trials of one algorithm."""
        return [trial for trial in self.trials if trial.configuration.label == label]

    def best(self) -> dict[str, str]:
        """The best configuration of every algorithm as it is written: ``{"FedProx": "fedprox(mu=0.1, lr=0.03)"}``."""
        return {label: trial.configuration.text for label, trial in self.winners.items()}

    def table(self) -> pd.DataFrame:
        """A row per configuration, with its values, and mean and deviation over seeds on the held-out samples."""
        winners = self.winners.values()
        rows = [
            {
                "label": trial.configuration.label,
                **trial.configuration.values,
                "accuracy": trial.accuracy,
                "accuracy_std": trial.std,
                "loss": trial.loss,
                "rounds": trial.rounds,
                "seeds": len(trial.records),
                "failed": trial.failed,
                "best": any(trial is winner for winner in winners),
            }
            for trial in self.trials
        ]
        figures = ["accuracy", "accuracy_std", "loss", "rounds", "seeds", "failed", "best"]
        names = dict.fromkeys(name for row in rows for name in row)
        return pd.DataFrame(rows, columns=[*(name for name in names if name not in figures), *figures])

    @property
    def notes(self) -> list[str]:
        """What to know of the choice: values at the edge of what was tried, algorithms that failed throughout."""
        return [note for label, trial in self.winners.items() for note in edges.notes(trial, self.of(label))]

    def compare(self, seeds: int | Sequence[int] = 5, *, out: str | Path | None = None, **measures: Any) -> Comparison:
        """Compare the best of every algorithm: with seeds that were not used so far, all training data, the test set.

        Runs are kept in the folder ``comparison`` of the tuning's own, unless `out` names another. `measures` are
        `targets`, `last_k` and `centralised` of `undrift.compare`.
        """
        given = list_of_seeds(seeds)
        if isinstance(check.plain(seeds), int):
            given = [seed + max(self.seeds) + 1 for seed in given]
        if used := [seed for seed in given if seed in self.seeds]:
            raise ValueError(f"seeds must not be those of the tuning, {self.seeds}, got {used[0]} among them")
        home = out if out is not None else None if self.out is None else self.out / COMPARISON
        problem = self._problem
        chosen = {label: trial.configuration.written for label, trial in self.winners.items()}
        options = {"lr": problem.lr, **problem.options, **measures}
        comparison = compare(chosen, problem.model, problem.data, problem.test, given, out=home, **options)
        choices = self.choices
        for place, record in enumerate(comparison.records):  # the report says how the settings were chosen
            comparison.records[place] = record._replace(config=record.config | {"tuning": choices})
        return comparison

    @property
    def choices(self) -> Choices:
        """For people: what was chosen out of what, and how the accuracy depends on the values."""
        by_loss = all(math.isnan(trial.accuracy) for trial in self.trials)

        def reached(trial: Trial) -> str:
            return number_text(trial.loss) if by_loss else percent_text(trial.accuracy, trial.std)

        chosen = []
        for label, best in self.winners.items():
            failed = sum(trial.failed > 0 for trial in self.of(label))
            chosen.append([label, best.configuration.text, reached(best), str(len(self.of(label))), str(failed)])
        tried = [
            [trial.configuration.text, str(trial.rounds), reached(trial), str(trial.failed)] for trial in self.trials
        ]
        keys = dict.fromkeys(key for trial in self.trials for key in trial.configuration.values)
        found = [edges.sensitivity_to(key, self.trials) for key in keys] if not by_loss else []
        pictures = [each for each in found if len(each.values) > 1]
        return Choices("loss" if by_loss else "accuracy", chosen, tried, self.notes, pictures)

    def plot(self, key: str = "lr", axes: Axes | None = None) -> Axes:
        """Draw the accuracy on the held-out samples against a value; of several others, those that were best with it.

        The line is the mean over seeds, the band reaches from the lowest to the highest. Returns matplotlib's axes.
        """
        from undrift.reporting import sensitivity

        return sensitivity.draw(edges.sensitivity_to(key, self.trials), axes)


def tune(
    algorithms: Mapping[str, str | Algorithm | Written] | Sequence[str | Algorithm | Written],
    model: str | nn.Module | None = None,
    data: str | FederatedData | Clients | Callable[[int], FederatedData] | None = None,
    test: tuple[Any, Any] | Dataset[Any] | None = None,
    seeds: int | Sequence[int] = 1,
    *,
    grid: Grid | str | None = None,
    method: str = "grid",
    budget: int | None = None,
    validation_share: float = 0.2,
    lr: float | Auto = AUTO,
    out: str | Path | None = None,
    **options: Any,
) -> Tuning:
    """Try values of rates and options, the same number for every algorithm. Other arguments are those of `compare`.

    `grid` has the values of settings, for all algorithms (``"lr"``, ``"server_lr"``, ``"weight_decay"``) or for one
    (``"fedprox.mu"``, ``"fedadam.lr"``), or names a paper's grid; None tries rates around the data set's own, and for
    FedAdagrad, FedAdam and FedYogi also the server's. `budget` is the number of configurations of each algorithm, by
    default as many as the smallest grid has; of larger ones so many are drawn, every value about equally often.

    Every client holds out a `validation_share` of its training samples, by which the choice is made: the accuracy after
    the last round (without one, the loss), on average over seeds. The test set is not looked at. A configuration of
    which a seed diverges is worse than all others.

    `method` is "grid", all configurations to the last round; "halving", successive halving, in which the best third
    of every algorithm goes on with three times the rounds; or "optuna" (the extra ``tune``), which proposes values
    between the smallest and the largest of the grid by TPE, prunes after a ninth and a third of the rounds, and goes on
    until the rounds of `budget` configurations are spent. Runs that differ in seed and rate train together. With `out`,
    a tuning that is repeated continues where it was interrupted and comes to the same result.
    """
    labelled, chosen = labelled_algorithms(algorithms), list_of_seeds(seeds)
    check.choice("method", method, search.METHODS)
    check.number("validation_share", validation_share, 0, 1, open_low=True, open_high=True)
    objects, others = separated("tune", options)
    if others.get("weighting", AUTO) == AUTO:
        others["weighting"] = common_weighting(objects)
    given = None if grid is None else read_grid(grid)
    if given is not None:
        if "lr" in given and lr != AUTO:
            raise ValueError(f"lr={lr!r} is one rate for all, and the grid has some to try; give one of the two")
        every = spaces(labelled, given, paper=isinstance(grid, str))
    whole = federations_of(data, chosen)
    held = {id(each): _without_test(each, model, validation_share) for each in whole.values()}
    federations = {seed: held[id(each)] for seed, each in whole.items()}
    # Targets and patience would end some runs before others; they are for the comparison.
    endless = {key: value for key, value in others.items() if key not in ("target", "patience")}
    shared = Given(model, federations, None, objects, endless)
    resolved = {label: shared.resolved(label, written, lr, chosen[0]) for label, written in labelled.items()}
    if given is None:
        defaults = {label: default_grid(written, resolved[label].options.lr) for label, written in labelled.items()}
        every = [space for label in labelled for space in spaces({label: labelled[label]}, defaults[label])]
    rounds = next(iter(resolved.values())).options.rounds
    if endless.get("eval_every", AUTO) == AUTO:  # the last round decides, and is always evaluated
        shared = shared._replace(options={**endless, "eval_every": rounds})
    if method != "optuna":
        budget = common_budget(every, budget)
    elif budget is None:
        budget = min(space.size for space in every)
    else:
        check.integer("budget", budget, 1)
    _announce(every, budget, method, rounds)
    notice(next(iter(resolved.values())).notice)
    plan = {
        "algorithms": {space.label: space.written.label for space in every},
        "grid": {space.label: {key: list(values) for key, values in space.axes.items()} for space in every},
        "method": method,
        "budget": budget,
        "rounds": rounds,
        "seeds": chosen,
        "validation_share": validation_share,
        "data": [each.recipe or each.fingerprint() for each in held.values()],
    }
    home = None if out is None else check.path("out", out)
    with ExitStack() as stack:
        folder = home
        if home is not None:
            _check_same(home, plan)
        elif method != "grid":  # which continues runs
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        trainer = _Trainer(folder, shared, lr, chosen, plan)
        total = len(every) * len(chosen) * _client_rounds(budget, rounds, method)
        stack.enter_context(overall_bar(f"{len(every) * budget} configurations", total))
        first = next(iter(resolved.values())).options
        stack.enter_context(place_of(first).session(first))
        trials = _search(every, method, budget, rounds, trainer)
    tuning = Tuning(trials, _Problem(model, data, test, lr, {**objects, **others}), chosen, home, plan)
    if home is not None:
        kept = {"best": tuning.best(), "trials": _plain(tuning.table()), "choices": tuning.choices.plain()}
        files.write_json(home / FILE, {"plan": plan} | kept)
    for note in tuning.notes:
        notice(note)
    return tuning


def _search(every: Sequence[Space], method: str, budget: int, rounds: int, trainer: _Trainer) -> list[Trial]:
    if method == "optuna":
        return [trial for space in every for trial in search.optuna(space, budget, rounds, 0, trainer.train)]
    drawn = {space.label: space.configurations(budget, number) for number, space in enumerate(every)}
    if method == "halving":
        return search.halving(drawn, rounds, trainer.train)
    return search.climb(drawn, [(budget, rounds)], trainer.train)


def _client_rounds(budget: int, rounds: int, method: str) -> int:
    """Rounds of all configurations of an algorithm."""
    if method != "halving":
        return budget * rounds
    steps = search.rungs(budget, rounds)
    before = [0, *(until for _, until in steps)]
    return sum(count * (until - begin) for (count, until), begin in zip(steps, before, strict=False))


class _Trainer:
    """Trains configurations, each with all seeds, and keeps their runs in a folder."""

    def __init__(
        self, home: Path | None, shared: Given, lr: Any, seeds: Sequence[int], plan: Mapping[str, Any]
    ) -> None:
        self.home, self.shared, self.lr, self.seeds, self.plan = home, shared, lr, seeds, plan

    def train(self, configurations: Sequence[Configuration], rounds: int, before: int) -> list[Trial]:
        """To a number of rounds; those that have them already are read."""
        entries = [self._entry(one, seed, rounds) for one in configurations for seed in self.seeds]
        found = {number: record for number, entry in enumerate(entries) if (record := _stored(entry, rounds))}
        if len(found) == len(entries):
            skipped(len(entries) * (rounds - before))
        else:
            # Those that diverged since train with the others again: bits depend on how many train together.
            gone = [n for n, record in found.items() if record.diverged and len(record.history) <= before]
            left = [number for number in range(len(entries)) if number not in gone]
            skipped(len(gone) * (rounds - before))
            with counted(before), failures_expected():
                trained = train_all([entries[number] for number in left], begin=self._begin, trial=True)
            found |= dict(zip(left, trained, strict=True))
        each = len(self.seeds)
        return [
            Trial(one, rounds, [found[place * each + k] for k in range(each)])
            for place, one in enumerate(configurations)
        ]

    def _entry(self, one: Configuration, seed: int, rounds: int) -> Entry:
        run = self.shared.resolved(one.name, one.written, self.lr, seed)
        run = run._replace(options=replace(run.options, rounds=rounds))
        home = None if self.home is None else self.home / TRIALS / unique_folder(one.name) / f"seed-{seed}"
        return Entry(one.name, run, home)

    def _begin(self) -> None:
        if self.home is not None and not (self.home / FILE).exists():
            files.write_json(self.home / FILE, {"plan": self.plan})


def _stored(entry: Entry, rounds: int) -> Record | None:
    """The record of a run that has these rounds already, or ended before, up to them."""
    if entry.home is None or not RunDirectory.is_run(entry.home):
        return None
    record = read_record(RunDirectory.open(entry.home))
    record = record._replace(history=record.history[record.history["round"] <= rounds])
    return record if len(record.history) == rounds or record.diverged else None


def _check_same(home: Path, plan: Mapping[str, Any]) -> None:
    """A folder of another tuning is refused."""
    if not (home / FILE).exists():
        return
    stored = files.read_json(home / FILE).get("plan")
    now = files.as_json(dict(plan))
    for key, value in now.items():
        if not isinstance(stored, dict) or stored.get(key) != value:
            before = check.shown(stored.get(key)) if isinstance(stored, dict) else "nothing"
            raise ValueError(
                f"{home} holds a tuning with {key}={before}, not {check.shown(value)}; choose another directory"
            )


def _without_test(data: FederatedData, model: Any, share: float) -> FederatedData:
    """The same training data with a part of them in the place of the test set."""
    data = find_features(data, model)
    if not data.recipe:
        return data.validation(share)
    known = {key: value for key, value in data.recipe.items() if key != "digest"}
    return load(**known | {"validation_share": share})


def _announce(every: Sequence[Space], budget: int, method: str, rounds: int) -> None:
    effort = f"{count_text(budget, 'configuration')} of every algorithm, {count_text(rounds, 'round')} each"
    if method == "optuna":
        notice(f"the budget is the same for all: the rounds of {effort}")
        return
    drawn = [f"{space.label} {budget} of its {space.size}" for space in every if space.size > budget]
    parts = f"; of larger grids so many are drawn: {list_text(drawn)}" if drawn else ""
    notice(f"the budget is the same for all: {effort}{parts}")


def _plain(table: pd.DataFrame) -> list[dict[str, Any]]:
    rows = table.astype(object).where(table.notna(), None).to_dict("records")
    return [{str(key): check.plain(value) for key, value in row.items()} for row in rows]
