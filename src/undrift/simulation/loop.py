"""The training loop: rounds until the end, callbacks, checkpoints, interruption."""

from __future__ import annotations

import shlex
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from types import FrameType
from typing import Any

from undrift.client.generators import noticed
from undrift.core.files import StorageError
from undrift.core.log import failure
from undrift.engines import allocation
from undrift.engines.determinism import arithmetic, threads
from undrift.simulation.callbacks import Callback, EarlyStopping
from undrift.simulation.describe import given_as_objects
from undrift.simulation.divergence import DivergenceError
from undrift.simulation.memory import Memory, RoundResult
from undrift.simulation.progress import progress_bar
from undrift.simulation.remote import RemoteStates
from undrift.simulation.remote_round import RemoteRounds
from undrift.simulation.round import RoundRunner
from undrift.simulation.run import Run
from undrift.transport import TooFewAnswersError

Runner = Callable[[Sequence[Memory], int], list[RoundResult]]  # the next round of a group of runs


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, or SIGTERM, during a run: the rounds so far are in `run` and, with `out`, in a checkpoint for `resume`.

    `signal` is the number of the signal.
    """

    def __init__(self, run: Run, signal: int) -> None:
        super().__init__(f"interrupted after round {run.rounds}{_how_to_continue(run)}")
        self.run, self.signal = run, signal


def _how_to_continue(run: Run) -> str:
    if run.out is None:
        return ""
    if run.options.place == "flower":
        return "; continue with the same flwr run"
    if run.config.get("group"):
        return "; repeat the comparison to continue it"
    if objects := given_as_objects(run.config):
        return f"; resume with: ud.resume({str(run.out)!r}, {', '.join(f'{name}={name}' for name in objects)})"
    return f"; resume with: undrift resume {shlex.quote(str(run.out))}"


def train(runs: Sequence[Run], callbacks: Sequence[Callback], on_divergence: str) -> None:
    """Train a run, or several that train together, to the end."""
    first, watching = runs[0], bool(callbacks)
    if first.options.patience is not None:
        patience = EarlyStopping(first.options.patience)
        callbacks = (*callbacks, patience)
        for run in runs:  # that may have ended before
            run.ended = run.ended or (bool(run.rows) and patience.round(run.rows[-1], run))
    label = first.label if len(runs) == 1 else f"{first.label} × {len(runs)}"
    with (
        arithmetic(first.precision),
        allocation.keep_freed_memory(),
        _signals() as received,
        progress_bar(label, first.options.rounds, len(runs)) as tick,
        nullcontext() if watching or first.experiment.deployed else noticed(),  # callbacks and Flower may draw
        _watched(runs, callbacks),
        _stored(first),
        ExitStack() as places,
    ):
        for run in runs:
            run.prepare_directory()
            places.enter_context(run.reaching_clients())
        tick(min(run.rounds for run in runs), None)
        for done, row in rounds(runs, callbacks, on_divergence):
            tick(done, row)
            if (number := received()) is not None:
                for run in runs:
                    run.save()
                raise Interrupted(first, number)
        for run in runs:
            run.save()
        for run in runs:
            run.keep_predictions()


def rounds(
    runs: Sequence[Run], callbacks: Sequence[Callback], on_divergence: str
) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """Train round after round, as far as it is iterated; yields how many are done, and the row of one of the runs.

    Runs that are further along than others (after an interruption) are computed again with those that are behind, and
    the result is thrown away: the bits of a run depend on how many train together, though not on their values.
    """
    total, training = runs[0].options.rounds, [run for run in runs if not run.ended]
    group: list[Run] = []
    while training := [run for run in training if run.rounds < total and not run.reached_target]:
        done, row = min(run.rounds for run in training), None
        behind = [run for run in training if run.rounds == done]
        if group != (together := [run for run in runs if run in behind or run.rounds > done]):
            group, runner = together, _runner(together)
        for run, kept in _round(runner, group, behind, on_divergence):
            if kept is None:
                training.remove(run)
                continue
            row = kept
            wishes = [callback.round(row, run) for callback in callbacks]  # all are called, whatever the first one says
            if any(wishes):
                training.remove(run)
                run.end()
            else:
                run.save_if_due()
        yield done + 1, row


def _runner(group: Sequence[Run]) -> Runner:
    """What computes the rounds of a group; a run whose clients are elsewhere is alone in it."""
    if isinstance(group[0].memory.states, RemoteStates):
        (run,) = group
        rounds = RemoteRounds(run.experiment)
        return lambda memories, round: [rounds.run(memories[0], round)]
    return RoundRunner([run.experiment for run in group]).run


def _round(
    runner: Runner, group: Sequence[Run], behind: Sequence[Run], on_divergence: str
) -> list[tuple[Run, dict[str, Any] | None]]:
    """The next round of a group: a row for each of its runs that are `behind`, None for those that diverged.

    A function of its own, so that nothing else of a round is held during the next one.
    """
    rows: list[tuple[Run, dict[str, Any] | None]] = []
    with threads(group[0].experiment.engine.threads):
        started = time.perf_counter()
        try:
            results = runner([run.memory for run in group], behind[0].rounds + 1)
        except TooFewAnswersError as error:
            for run in group:
                run.save()
            raise TooFewAnswersError(f"{error}{_how_to_continue(group[0])}") from None
        seconds = (time.perf_counter() - started) / len(group)
        for run, result in zip(group, results, strict=True):
            if run not in behind:
                continue
            try:
                rows.append((run, run.keep(result, seconds)))
            except DivergenceError as error:
                if on_divergence == "raise":
                    raise
                failure(f"{run.label}, seed {run.options.seed}: {error}")
                rows.append((run, None))
    return rows


@contextmanager
def _stored(run: Run) -> Iterator[None]:
    """Where something cannot be written, the run ends with its last checkpoint."""
    try:
        yield
    except StorageError as error:
        going_on = _how_to_continue(run).removeprefix("; ")
        raise StorageError(f"{error}; once it can, {going_on}" if going_on else str(error)) from error


@contextmanager
def _watched(runs: Sequence[Run], callbacks: Sequence[Callback]) -> Iterator[None]:
    """Every callback learns of the beginning and of the end of every run."""
    for run in runs:
        for callback in callbacks:
            callback.begin(run)
    try:
        yield
    finally:
        for run in runs:
            for callback in callbacks:
                callback.end(run)


@contextmanager
def _signals() -> Iterator[Callable[[], int | None]]:
    """Ctrl-C and SIGTERM end a run after the current round, so that it can be saved; a second one ends it at once.

    Yields which of them was received. Handlers that the application has installed stay in place: Flower's, for one, end
    a ServerApp at once when its SuperLink has died, without which the round would never end.
    """
    received: int | None = None

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal received
        if received is not None:
            raise KeyboardInterrupt
        received = number

    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    defaults = (signal.default_int_handler, signal.SIG_DFL, signal.SIG_IGN), (signal.SIG_DFL,)
    pairs = zip((signal.SIGINT, signal.SIGTERM), defaults, strict=True)
    watched = [number for number, handlers in pairs if signal.getsignal(number) in handlers]
    before = {number: signal.signal(number, note) for number in watched}
    try:
        yield lambda: received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
