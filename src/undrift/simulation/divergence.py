"""Divergence: what is said of it, and what to try against it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from undrift.core.check import SMALLEST
from undrift.simulation.cohort import instabilities
from undrift.simulation.setup import Experiment

if TYPE_CHECKING:
    from undrift.simulation.run import Run


def remedy(experiment: Experiment) -> str:
    """What to try against numbers that explode."""
    options = experiment.options
    clip = "clip=1" if options.clip is None else f"clip={_third(options.clip)} instead of {options.clip:g}"
    rate = f"lr={_third(options.lr)} instead of {options.lr:g}"
    return "; ".join([f"try {rate}, or {clip}", *instabilities(experiment)])


def _third(value: float) -> str:
    """About a third of it, in one digit: 0.03 of 0.1."""
    return f"{float(f'{max(value / 3, SMALLEST):.1g}'):g}"


class DivergenceError(ArithmeticError):
    """Training produced a number that is not finite.

    `round`, `clients` (those that did), `checkpoint` (the last good one, or None without `out`) and `run` (the rounds
    before) say what is left.
    """

    def __init__(self, round: int, clients: list[int], checkpoint: Path | None, run: Run) -> None:
        named = [run.experiment.data.client_name(client) for client in clients[:5]]
        shown = ", ".join(named) + (f" and {len(clients) - 5} more" if len(clients) > 5 else "")
        saved = f"; last good checkpoint: {checkpoint}" if checkpoint else ""
        super().__init__(
            f"diverged in round {round}: loss or model of client {shown} is not finite{saved}; {remedy(run.experiment)}"
        )
        self.round, self.clients, self.checkpoint, self.run = round, clients, checkpoint, run
