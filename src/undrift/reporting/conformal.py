"""Conformal prediction sets of the runs' final models: a table, and a picture of their size against coverage."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from undrift.core.extras import needs
from undrift.reporting.colours import colours_of
from undrift.reporting.figures import by_label
from undrift.reporting.notebook import new_axes, with_tasks
from undrift.reporting.record import Record
from undrift.statistics.conformal import LEVELS, Conformal, Coverage, fewest

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def frame(records: Sequence[Record], levels: Sequence[float] | None, sets: Conformal, per_class: bool) -> pd.DataFrame:
    """A row per label and level, and class if asked for: means over the seeds that have probabilities, and their std.

    Without `levels`, those of `LEVELS` for which there are enough calibration samples in every run.
    """
    rows: list[dict[str, Any]] = []
    used = _used(records)
    if not used:
        raise ValueError(
            "conformal prediction needs the class probabilities of a run that did not fail, and none has them: "
            "targets must be classes, there must be test samples, and the run must be complete"
        )
    chosen = levels if levels is not None else _possible(used)
    if not chosen:
        fewest_samples = 2 * fewest(LEVELS[0])
        raise ValueError(f"conformal prediction needs at least {fewest_samples} test samples")
    for label, runs in by_label(used).items():
        found = [_evaluated(run, chosen, sets) for run in runs]
        for number, level in enumerate(chosen):
            at = [each[number] for each in found]
            about = {"label": label, "seeds": len(runs), "level": level}
            if not per_class:
                rows.append(about | _figures([each.coverage for each in at], [each.size for each in at]))
                continue
            for name in range(len(at[0].class_coverage)):
                shares, sizes = ([float(part[name]) for part in parts] for parts in _by_class(at))
                rows.append(about | {"class": name} | _figures(shares, sizes))
    return pd.DataFrame(rows)


def can_be_made(records: Sequence[Record]) -> bool:
    """Whether some run has probabilities, of enough test samples."""
    return bool(_possible(_used(records)))


def _used(records: Sequence[Record]) -> list[Record]:
    return [
        run
        for run in records
        if not run.failed and run.predictions is not None and run.predictions.probabilities is not None
    ]


def _possible(records: Sequence[Record]) -> tuple[float, ...]:
    calibration = min((len(run.predictions) // 2 for run in records if run.predictions is not None), default=0)
    return tuple(level for level in LEVELS if fewest(level) <= calibration)


def _evaluated(run: Record, levels: Sequence[float], sets: Conformal) -> list[Coverage]:
    assert run.predictions is not None
    assert run.predictions.probabilities is not None
    return sets.evaluate(run.predictions.probabilities, run.predictions.targets, levels)


def _by_class(at: Sequence[Coverage]) -> tuple[list[Any], list[Any]]:
    return [each.class_coverage for each in at], [each.class_size for each in at]


def _figures(shares: Sequence[float], sizes: Sequence[float]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, values in (("coverage", shares), ("size", sizes)):
        deviation = float(np.std(values, ddof=1)) if len(values) > 1 else np.nan
        found |= {name: float(np.mean(values)), f"{name}_std": deviation}
    return found


def draw(records: Sequence[Record], levels: Sequence[float] | None, sets: Conformal, axes: Axes | None = None) -> Axes:
    """Mean size of the sets against their coverage, a curve per label; bars are standard deviations over seeds.

    Of several tasks, labels name theirs.
    """
    records = with_tasks(records)
    table = frame(records, levels, sets, per_class=False)
    axes = new_axes() if axes is None else axes
    colours = colours_of(records)
    for label, rows in table.groupby("label", sort=False):
        colour = colours[str(label)]
        axes.errorbar(
            100 * rows["coverage"],
            rows["size"],
            None if rows["size_std"].isna().all() else rows["size_std"].fillna(0),  # one seed has no bars
            fmt="--o" if colour.dashed else "-o",
            markersize=4,
            capsize=2,
            color=colour.light,
            label=str(label),
        )
    axes.set(xlabel="Coverage (%)", ylabel="Mean set size")
    axes.legend()
    return axes


SUFFIXES = (".svg", ".png", ".pdf")


def picture(records: Sequence[Record], levels: Sequence[float] | None, sets: Conformal, form: str) -> bytes:
    """The picture in the form "svg", "png" or "pdf"; the same bytes for the same runs."""
    with needs("plot"):
        import matplotlib as mpl
        from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.4), dpi=200, layout="constrained")
    draw(records, levels, sets, figure.add_subplot())
    buffer, date = io.BytesIO(), {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    with mpl.rc_context({"svg.hashsalt": "undrift", "svg.fonttype": "none", "pdf.fonttype": 42}):
        figure.savefig(buffer, format=form, metadata=date.get(form))
    return buffer.getvalue()
