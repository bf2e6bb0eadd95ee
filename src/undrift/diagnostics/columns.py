"""Names of the columns that diagnostics add to a history, and the same figures as a table.

``client_distance/mean`` is of the whole model, ``client_distance/mean/fc1`` of a layer. A metric's name has no slash.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

_SLASH = "/"


def column_name(diagnostic: str, statistic: str, layer: str = "") -> str:
    return _SLASH.join([diagnostic, statistic, layer] if layer else [diagnostic, statistic])


def is_diagnostic(column: str) -> bool:
    return _SLASH in column


def is_of_layer(column: str) -> bool:
    return column.count(_SLASH) > 1


def tidy(history: pd.DataFrame) -> pd.DataFrame:
    """The diagnostics of a history: a row per round, name, layer (empty: the whole model) and statistic."""
    import pandas as pd  # which the processes of clients, one for every message on Flower, do not wait for

    found = [name for name in map(str, history.columns) if is_diagnostic(name)]
    long = history[["round", *found]].melt("round", var_name="column")
    parts = pd.DataFrame(_parts(long["column"]), columns=["name", "statistic", "layer"], index=long.index)
    table = pd.concat([long["round"], parts[["name", "layer", "statistic"]], long["value"]], axis=1)
    return table.sort_values("round", kind="stable", ignore_index=True)


def _parts(columns: Iterable[str]) -> list[tuple[str, str, str]]:
    split = ([*column.split(_SLASH, 2), ""] for column in columns)
    return [(name, statistic, layer) for name, statistic, layer, *_ in split]
