"""How the accuracy depends on a setting: means over seeds and bands, for runs that differ in one setting."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from undrift.core.extras import needs
from undrift.reporting.colours import hue
from undrift.reporting.record import Record
from undrift.reporting.task import recipe_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Point(NamedTuple):
    """The final accuracies with one value, of all seeds that did not fail."""

    value: Any
    accuracies: tuple[float, ...]

    @property
    def mean(self) -> float:
        return math.fsum(self.accuracies) / len(self.accuracies) if self.accuracies else math.nan

    @property
    def std(self) -> float:
        return float(np.std(self.accuracies, ddof=1)) if len(self.accuracies) > 1 else math.nan

    @property
    def low(self) -> float:
        return min(self.accuracies, default=math.nan)

    @property
    def high(self) -> float:
        return max(self.accuracies, default=math.nan)


class Line(NamedTuple):
    """One algorithm; a single point without a value is of one that does not have the setting."""

    label: str
    points: tuple[Point, ...]
    number: int  # of its colour

    @property
    def constant(self) -> bool:
        return len(self.points) == 1 and self.points[0].value is None


class Sensitivity(NamedTuple):
    key: str  # the setting
    quantity: str
    lines: tuple[Line, ...]

    @property
    def values(self) -> list[Any]:
        """In order: numbers by size, others as they come."""
        seen = {repr(p.value): p.value for line in self.lines for p in line.points if p.value is not None}
        found = list(seen.values())
        return sorted(found) if all(map(_is_number, found)) else found

    @property
    def numeric(self) -> bool:
        return all(map(_is_number, self.values))

    @property
    def logarithmic(self) -> bool:
        """Whether values are ratios of each other rather than steps."""
        values = self.values
        return self.numeric and values[0] > 0 and values[-1] >= 10 * values[0]

    def place(self, value: Any) -> float:
        """Where a value is on the horizontal axis."""
        if not self.numeric:
            return float([repr(each) for each in self.values].index(repr(value)))
        return math.log10(value) if self.logarithmic else float(value)

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return self._asdict() | {"lines": [line._asdict() for line in self.lines]}

    @classmethod
    def read(cls, content: Mapping[str, Any]) -> Sensitivity:
        """Of what `plain` gave."""
        lines = [
            Line(line["label"], tuple(Point(value, tuple(known)) for value, known in line["points"]), line["number"])
            for line in content["lines"]
        ]
        return cls(content["key"], content["quantity"], tuple(lines))

    def table(self) -> pd.DataFrame:
        """A row per algorithm and value: mean, standard deviation, lowest and highest over seeds."""
        return pd.DataFrame(
            [
                {"label": line.label, self.key: p.value, "accuracy": p.mean, "std": p.std, "low": p.low, "high": p.high}
                for line in self.lines
                for p in line.points
            ]
        )


def sensitivity_of(records: Sequence[Record]) -> Sensitivity | None:
    """Of runs that differ in one setting, besides the algorithm and the seed; None of others.

    Algorithms that have only one value are there for comparison.
    """
    families: dict[str, list[Record]] = {}
    for record in records:
        families.setdefault(_algorithm(record), []).append(record)
    settings = {id(record): _settings(record) for record in records}
    differing = {
        key
        for family in families.values()
        for key in {key for record in family for key in settings[id(record)]}
        if len({repr(settings[id(record)].get(key)) for record in family}) > 1
    }
    if len(differing) != 1:
        return None
    key = differing.pop()
    lines = [_line(family, key, settings, number) for number, family in enumerate(families.values())]
    found = Sensitivity(key.removeprefix("options.").removeprefix("data."), "Final test accuracy", tuple(lines))
    known = any(math.isfinite(p.mean) for line in lines for p in line.points)
    return found if known and len(found.values) > 1 else None


def _line(records: Sequence[Record], key: str, settings: Mapping[int, Mapping[str, Any]], number: int) -> Line:
    points: dict[str, tuple[Any, list[float]]] = {}
    for record in records:
        value = settings[id(record)].get(key)
        _, accuracies = points.setdefault(repr(value), (value, []))
        known = [each for each in record.history["accuracy"].tolist() if math.isfinite(each)]
        if known and not record.failed:
            accuracies.append(known[-1])
    label = records[0].label if len({record.label for record in records}) == 1 else _class_name(records[0].label)
    found = [Point(value, tuple(each)) for value, each in points.values()]
    if len(found) == 1 and key.startswith("algorithm."):
        found = [Point(None, found[0].accuracies)]
    return Line(label, tuple(found), number)


def _class_name(label: str) -> str:
    return label.partition("(")[0].partition(",")[0]


def _algorithm(record: Record) -> str:
    """Its name, or the label of a run that has no configuration."""
    algorithm = record.config.get("algorithm")
    name = algorithm.get("name") if isinstance(algorithm, Mapping) else None
    return name if isinstance(name, str) else record.label


_BY_MACHINE = ("seed", "engine", "device", "target", "patience", "eval_every")  # no settings of what is trained


def _settings(record: Record) -> dict[str, Any]:
    """What may be varied: how the data are split, options of the run and of the algorithm."""
    algorithm, options = record.config.get("algorithm"), record.config.get("options")
    own = algorithm.get("options") if isinstance(algorithm, Mapping) else None
    found = {f"data.{key}": value for key, value in recipe_of(record.config).items() if key != "digest"}
    found["model"] = json.dumps(record.config.get("model"), sort_keys=True, default=str)
    found |= {f"options.{key}": value for key, value in (options or {}).items() if key not in _BY_MACHINE}
    return found | {f"algorithm.{key}": value for key, value in (own or {}).items()}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def draw(found: Sensitivity, axes: Axes | None = None) -> Axes:
    """Accuracy against the value by matplotlib: mean and band from the lowest to the highest seed."""
    with needs("plot"):
        import matplotlib.pyplot as plt  # slow to import

    axes = plt.subplots(layout="constrained")[1] if axes is None else axes
    places = [found.place(value) for value in found.values]
    for line in found.lines:
        colour = hue(line.number)
        dashes = "--" if colour.dashed else "-"
        if line.constant:
            axes.axhline(100 * line.points[0].mean, color=colour.light, linestyle=":", label=line.label)
            continue
        points = sorted(line.points, key=lambda point: found.place(point.value))
        where = [found.place(point.value) for point in points]
        axes.plot(where, [100 * p.mean for p in points], f"o{dashes}", color=colour.light, label=line.label)
        low, high = [100 * p.low for p in points], [100 * p.high for p in points]
        axes.fill_between(where, low, high, color=colour.light, alpha=0.2, linewidth=0)
    axes.set_xticks(places, [value_text(value) for value in found.values])
    axes.set(xlabel=found.key, ylabel=f"{found.quantity} (%)")
    axes.legend()
    return axes


def value_text(value: Any) -> str:
    return f"{value:g}" if _is_number(value) else str(value)
