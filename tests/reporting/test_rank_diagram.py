"""The critical-difference diagram: numbers of ranks have room."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from undrift.reporting import rank_diagram
from undrift.reporting.significance import Ranks

pytest.importorskip("scikit_posthocs")


@pytest.mark.parametrize(
    ("count", "numbered"), [(3, [1, 2, 3]), (15, list(range(1, 16))), (34, [1, 5, 10, 15, 20, 25, 30])]
)
def test_ranks_are_numbered_as_far_as_there_is_room(count: int, numbered: list[int]) -> None:
    labels = [f"method {number}" for number in range(count)]
    table = pd.DataFrame({"label": labels, "average_rank": np.arange(1.0, count + 1)})
    alike = pd.DataFrame(np.ones((count, count)), index=labels, columns=labels)
    ranks = Ranks(table, alike, tasks=4, friedman_p=0.5, critical_difference=1.0)
    axes = rank_diagram.draw(ranks, Figure().subplots())
    assert axes.get_xticks().tolist() == numbered
