"""Ways to search: all configurations to the end, successive halving, or Optuna.

Each is a function of the numbers alone, so that a search that was interrupted makes the same choices again.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from undrift.algorithms.text import SETTINGS
from undrift.core.extras import needs
from undrift.tuning.grid import Configuration, Space
from undrift.tuning.trial import Trial

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

# Trains configurations to a number of rounds, from another that they have already.
Train = Callable[[Sequence[Configuration], int, int], list[Trial]]

METHODS = ("grid", "halving", "optuna")
SHARE = 3  # successive halving keeps a third, for three times the rounds
_BATCH = 4  # trials that Optuna proposes at a time


def rungs(configurations: int, rounds: int) -> list[tuple[int, int]]:
    """Of successive halving: how many configurations are trained to which round."""
    last = 0
    while SHARE ** (last + 1) <= configurations:
        last += 1
    steps = [(-(-configurations // SHARE**k), -(-rounds // SHARE ** (last - k))) for k in range(last + 1)]
    return [step for step, after in zip(steps, [*steps[1:], (0, 0)], strict=True) if step[1] != after[1]]


def halving(configurations: Mapping[str, Sequence[Configuration]], rounds: int, train: Train) -> list[Trial]:
    """Successive halving for every algorithm, all at the same time."""
    (count,) = {len(each) for each in configurations.values()}
    return climb(configurations, rungs(count, rounds), train)


def climb(
    configurations: Mapping[str, Sequence[Configuration]], steps: Sequence[tuple[int, int]], train: Train
) -> list[Trial]:
    """Of every algorithm, the best at a step go on to the next."""
    trials: dict[str, Trial] = {}
    left = {label: list(each) for label, each in configurations.items()}
    before = 0
    for count, rounds in steps:
        left = {label: _best(each, trials, count) for label, each in left.items()}
        for trial in train([one for each in left.values() for one in each], rounds, before):
            trials[trial.configuration.name] = trial
        before = rounds
    return [trials[one.name] for each in configurations.values() for one in each]


def _best(configurations: Sequence[Configuration], trials: Mapping[str, Trial], count: int) -> list[Configuration]:
    """The best so far, in the order in which they were given."""
    if len(configurations) <= count:
        return list(configurations)
    kept = sorted(configurations, key=lambda one: trials[one.name].rank)[:count]
    return [one for one in configurations if one in kept]


def optuna(space: Space, budget: int, rounds: int, seed: int, train: Train) -> list[Trial]:
    """Optuna's TPE between the smallest and the largest value of each axis, with pruning after a ninth and a third.

    Trials are proposed as long as the rounds of a whole one are left; values that are no numbers are a choice.
    """
    with needs("tune"):
        from optuna import create_study
        from optuna.pruners import MedianPruner
        from optuna.samplers import TPESampler
        from optuna.trial import TrialState

    axes = {key: _axis(key, values) for key, values in space.axes.items()}
    found: dict[str, Trial] = {}
    spent = 0
    with _quiet():
        with warnings.catch_warnings(action="ignore"):  # that `constant_liar`, for several at a time, is experimental
            sampler = TPESampler(seed=seed, constant_liar=True, n_startup_trials=min(10, max(2, budget // 2)))
        study = create_study(direction="maximize", sampler=sampler, pruner=MedianPruner(n_startup_trials=3))
        asked = 0
        # A configuration that was tried before costs nothing: their number is limited as well.
        while (room := budget - -(-spent // rounds)) > 0 and asked < 10 * budget:
            proposed = [study.ask(axes) for _ in range(min(_BATCH, room))]
            asked += len(proposed)
            configurations = [space.configuration(_short(each.params)) for each in proposed]
            going = list(zip(proposed, configurations, strict=True))
            before = 0
            for _, until in rungs(SHARE**2, rounds):
                unique = {one.name: one for _, one in going}
                new = [one for one in unique.values() if one.name not in found or found[one.name].rounds < until]
                for trial in train(new, until, before) if new else ():
                    found[trial.configuration.name] = trial
                    spent += until - before
                for each, one in going:
                    each.report(found[one.name].score, until)
                pruned = [each for each, _ in going if until < rounds and each.should_prune()]
                for each in pruned:
                    study.tell(each, state=TrialState.PRUNED)
                going = [(each, one) for each, one in going if each not in pruned]
                before = until
            for each, one in going:
                study.tell(each, found[one.name].score)
    return list(found.values())


def _axis(key: str, values: Sequence[Any]) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    if len(numbers) < len(values) or len(values) == 1:
        return CategoricalDistribution(list(values))
    low, high = min(numbers), max(numbers)
    if key not in SETTINGS and all(isinstance(value, int) for value in numbers):
        return IntDistribution(int(low), int(high), log=low > 0 and high >= 10 * low)
    return FloatDistribution(low, high, log=low > 0 and high >= 10 * low)


def _short(values: Mapping[str, Any]) -> dict[str, Any]:
    """With three digits, so that a configuration can be read and written."""
    return {key: float(f"{value:.3g}") if isinstance(value, float) else value for key, value in values.items()}


@contextmanager
def _quiet() -> Iterator[None]:
    """Optuna tells of every trial."""
    from optuna import logging

    level = logging.get_verbosity()
    logging.set_verbosity(logging.WARNING)
    try:
        yield
    finally:
        logging.set_verbosity(level)
