"""The curves of an experiment as a picture: accuracy over rounds, a panel for every case."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from undrift.core.extras import needs
from undrift.reporting.colours import Colour, hue
from undrift.reporting.notebook import draw
from undrift.reporting.record import TIMES, Record
from undrift.reproduce.results import Results

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

POINTS = 40  # of a curve, at most: each is the mean over a window of rounds
BASELINE = "FedAvg"
_COLUMNS = 2  # panels beside each other
_WIDE, _HIGH = 5.4, 3.6  # inches of a panel
_NAMES = 16  # that fit beside a panel of this height; it is higher where there are more
_UNEQUAL = 4  # times as many rounds as others have: then rounds are drawn on a logarithmic scale
_RISE = 0.2  # of a curve's rounds, in which it may rise from chance level
_HUES = 5  # of the others, before they come again, dashed


def svg(results: Results) -> bytes:
    """The same bytes for the same results and version of matplotlib."""
    with needs("plot"):
        from matplotlib import rc_context

    written = io.BytesIO()
    with rc_context(
        {"svg.hashsalt": "undrift", "svg.fonttype": "none", "text.parse_math": False, "font.size": 9}
    ):  # letters stay letters
        _figure(results).savefig(written, format="svg", facecolor="white", metadata={"Date": None})
    return b"\n".join(line.rstrip() for line in written.getvalue().splitlines()) + b"\n"


def windows(record: Record) -> Record:
    """A run with few points: its accuracy, averaged over windows of rounds, at the last round of each.

    One that failed before it was evaluated has a point without accuracy.
    """
    known = record.history.dropna(subset="accuracy")
    known = record.history.tail(1) if known.empty else known
    window = np.arange(len(known)) // max(1, -(-len(known) // POINTS))
    points = known.groupby(window).agg({"round": "max", "accuracy": "mean"})
    failed = [False] * (len(points) - 1) + [record.failed]
    # Rounds are all that curves are drawn against here.
    unused = dict.fromkeys([*TIMES, "bytes_down", "bytes_up", "loss", "train_loss"], np.nan)
    return record._replace(history=points.assign(diverged=failed, **unused).reset_index(drop=True))


def window_rounds(results: Results) -> int:
    """Over how many rounds a point is averaged, at most; 1 where every evaluated round is a point."""
    every = [results.evaluated_every(case) for case in results.records]
    counts = [record.history["accuracy"].count() for records in results.records.values() for record in records]
    averaged = -(-max(counts) // POINTS)
    return max(every) * averaged if averaged > 1 else 1


def stand_out(results: Results) -> list[str]:
    """The paper's algorithm, or, where none has its name, those that its claims are about; and the baseline."""
    labels = [each.label for each in results.experiment.entries]
    named = [label for label in labels if label == results.experiment.paper]
    claimed = [claim.better for claim in results.experiment.claims]
    return list(dict.fromkeys([*(named or claimed), *(label for label in labels if label == BASELINE)]))


def _colours(results: Results) -> dict[str, Colour]:
    """Blue for the paper's algorithm, grey for the baseline, the same in all panels."""
    first = [label for label in stand_out(results) if label != BASELINE][:1]
    colours = {BASELINE: hue(_HUES + 1)} | {label: hue(0) for label in first}
    others = [each.label for each in results.experiment.entries if each.label not in colours]
    for number, label in enumerate(others):
        light, dark, _ = hue(1 + number % _HUES)
        colours[label] = Colour(light, dark, bool(number // _HUES % 2))
    return colours


def _figure(results: Results) -> Figure:
    from matplotlib.figure import Figure

    columns = min(_COLUMNS, len(results.records))
    rows = -(-len(results.records) // columns)
    most = max(len(results.labels(case)) for case in results.records)
    figure = Figure(figsize=(_WIDE * columns, _HIGH * max(1.0, most / _NAMES) * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharey=True).flatten()
    for axes in grid[len(results.records) :]:
        axes.set_visible(False)
    for axes, (case, records) in zip(grid, results.records.items(), strict=False):
        _panel(axes, [windows(record) for record in records], _colours(results), stand_out(results))
        _scale_rounds(axes, results, case)
        axes.set_title(case, loc="left", fontsize="medium", fontweight="bold")
    alike = len({axes.get_xlim() for axes in grid[: len(results.records)]}) == 1
    for axes in grid[: len(results.records)]:
        axes.label_outer() if alike else _label_rounds(axes)
    _leave_out_rise(list(grid[: len(results.records)]))
    for axes in grid[: len(results.records)]:  # when the shared scale is known
        _name_curves(axes)
    return figure


def _panel(axes: Axes, records: Sequence[Record], colours: Mapping[str, Colour], strong: Sequence[str]) -> None:
    draw(records, "accuracy", axes, colours=colours)
    legend = axes.get_legend()
    assert legend is not None
    legend.remove()  # names stand beside the curves
    for line in axes.lines:
        line.set(linewidth=2.2 if line.get_label() in strong else 1.1, zorder=3 if line.get_label() in strong else 2)
        if np.size(line.get_xdata()) == 1:  # a line of one point is not seen
            line.set_marker("o")
    for band in axes.collections:
        band.set_alpha(0.13)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e3e5e8", linewidth=0.8)
    axes.set_axisbelow(True)


def _scale_rounds(axes: Axes, results: Results, case: str) -> None:
    """From the first round to the last; logarithmic where some algorithms have many more than others."""
    rounds = results.rounds_of(case).values()
    if rounds and max(rounds) > _UNEQUAL * min(rounds):
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_xlim(right=results.rounds(case))
    else:
        axes.set_xlim(0, results.rounds(case))
        axes.locator_params("x", integer=True)


def _leave_out_rise(panels: Sequence[Axes]) -> None:
    """The shared scale begins where curves and bands are after their rise, if that at least doubles their distances."""
    drawn = [np.asarray(line.get_xydata()) for axes in panels for line in axes.lines]
    drawn += [np.asarray(path.vertices) for axes in panels for band in axes.collections for path in band.get_paths()]
    late = [points[points[:, 0] > _RISE * points[:, 0].max(), 1] for points in drawn if len(points)]
    heights = np.concatenate([*late, []])
    if np.isnan(heights).all():  # all runs failed before they were evaluated
        return
    low, high = panels[0].get_ylim()
    begin, end = np.nanmin(heights), np.nanmax(heights)
    if 0 < end - begin < (high - low) / 2:
        panels[0].set_ylim(begin - 0.05 * (end - begin), end + 0.05 * (end - begin))


def _label_rounds(axes: Axes) -> None:
    """Of a panel whose rounds are not those of the others: the scale of accuracies is beside the first of its row."""
    place = axes.get_subplotspec()
    if place is not None and not place.is_first_col():
        axes.set_ylabel("")
        axes.tick_params(labelleft=False)


def _name_curves(axes: Axes) -> None:
    """Names and final values at the right, in the order of the curves' ends and as far apart as letters are high."""
    ends = [(float(np.asarray(line.get_ydata())[-1]), line) for line in axes.lines if len(np.asarray(line.get_ydata()))]
    named = sorted(
        ((end, line) for end, line in ends if not str(line.get_label()).startswith("_")), key=lambda each: each[0]
    )
    low, high = axes.get_ylim()
    heights = _spread_out([(end - low) / (high - low) for end, _ in named], 1 / max(_NAMES, len(named)))
    for (end, line), height in zip(named, heights, strict=True):
        axes.text(
            1.02,
            height,
            f"{line.get_label()}  {end:.1f}",
            transform=axes.transAxes,
            color=line.get_color(),
            fontweight="bold" if line.get_linewidth() > 2 else "normal",
            va="center",
        )


def _spread_out(places: Sequence[float], gap: float) -> list[float]:
    """Ascending places, moved to be `gap` apart and from 0 to 1; groups that touch stay centred where there is room."""
    groups: list[tuple[float, int]] = []  # where a group's middle is, and how many are in it
    for place in places:
        middle, count = place, 1
        while groups and middle - (count - 1) / 2 * gap < groups[-1][0] + (groups[-1][1] + 1) / 2 * gap:
            other, more = groups.pop()
            middle, count = (other * more + middle * count) / (more + count), more + count
        groups.append((middle, count))
    found = [middle + (number - (count - 1) / 2) * gap for middle, count in groups for number in range(count)]
    most = [1 - (len(found) - 1 - number) * gap for number in range(len(found))]
    return [max(number * gap, min(place, most[number])) for number, place in enumerate(found)]
