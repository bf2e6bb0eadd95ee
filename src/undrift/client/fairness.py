"""How evenly a model serves clients: figures of the spread of their accuracies, every client counted once.

Mean, deviation and the mean over the worst tenth are those of q-FFL (Li et al., 2020), the worst client is what
agnostic federated learning (Mohri et al., 2019) optimises, and Jain's index (1984) is 1 where all are equal and 1/n
where one client has everything.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Figures = np.ndarray[Any, np.dtype[np.float64]]

# Their names and what they say, in the order in which they are shown.
FIGURES = {
    "mean": "mean over clients",
    "std": "standard deviation over clients",
    "worst": "of the worst client",
    "worst_tenth": "mean over the tenth of clients with the lowest",
    "best": "of the best client",
    "gap": "of the best client minus that of the worst",
    "jain": "Jain's index of all clients',  (Σa)²/(nΣa²)",
}


def fairness(accuracies: Figures) -> dict[str, float]:
    """The figures by name; NaN where no client has an accuracy."""
    known = np.sort(accuracies[np.isfinite(accuracies)])
    if not len(known):
        return dict.fromkeys(FIGURES, math.nan)
    squares = float(np.square(known).sum())
    return {
        "mean": float(known.mean()),
        "std": float(known.std()),
        "worst": float(known[0]),
        "worst_tenth": float(known[: math.ceil(len(known) / 10)].mean()),
        "best": float(known[-1]),
        "gap": float(known[-1] - known[0]),
        "jain": float(known.sum()) ** 2 / (len(known) * squares) if squares else math.nan,
    }
