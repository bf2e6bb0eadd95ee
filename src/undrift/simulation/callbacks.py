"""What may watch a run, or end it: functions of (row, run), or objects with `begin`, `round` and `end`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from undrift.core import check

if TYPE_CHECKING:
    from undrift.simulation.run import Run


class Callback:
    """Every method does nothing by default. A true result of `round` ends the run; the others learn of it by `end`."""

    def begin(self, run: Run) -> None:
        """Before the first round, also of a run that is resumed; ``run.history`` has the rounds before."""

    def round(self, row: dict[str, Any], run: Run) -> object:
        """After every round that is kept, with its row of the history; of one that diverges only `end` learns."""

    def end(self, run: Run) -> None:
        """After the last round, however it came to be the last: also after an error or an interruption."""


CallbackLike = Callback | Callable[[dict[str, Any], Any], object]


class _Function(Callback):
    def __init__(self, function: Callable[[dict[str, Any], Any], object]) -> None:
        self._function = function

    def round(self, row: dict[str, Any], run: Run) -> object:
        return self._function(row, run)


class EarlyStopping(Callback):
    """Ends a run when accuracy (without one, the test loss) has not improved for `patience` evaluations."""

    def __init__(self, patience: int) -> None:
        check.integer("patience", patience, 1)
        self.patience = patience

    def round(self, row: dict[str, Any], run: Run) -> bool:
        # Counted from the history and not as rounds pass, so that a resumed run stops where it would have.
        values = _improving(run.rows)
        if not _improving([row]):  # this round was not evaluated
            return False
        best = values.index(max(values))
        return len(values) - 1 - best >= self.patience


def _improving(rows: Sequence[dict[str, Any]]) -> list[float]:
    """What ought to grow, of the rows that were evaluated."""
    accuracies = [row["accuracy"] for row in rows if not math.isnan(row["accuracy"])]
    return accuracies or [-row["loss"] for row in rows if not math.isnan(row["loss"])]


def as_callbacks(given: Any) -> tuple[Callback, ...]:
    wrong = TypeError(
        f"callbacks must be a list of functions of (row, run) or of ud.Callback objects, got {check.shown(given)}"
    )
    try:
        entries = iter(given)
    except TypeError:  # also of tensors that are single numbers
        raise wrong from None
    found: list[Callback] = []
    for each in entries:  # one by one, as what is given may be endless
        if isinstance(each, Callback):
            found.append(each)
        elif callable(each):
            check.function("callbacks: each", each, "row", "run")
            found.append(_Function(each))
        else:
            raise wrong
    return tuple(found)
