"""How much clients differ: measures for every client of a federation.

With q_i the shares of classes at client i and q those of all samples:

* entropy: −Σ q_i log₂ q_i in bits; 0 for a single class, log₂ of the number of classes if all are equally frequent;
* Jensen–Shannon distance of q_i to q, base 2: 0 if equal, 1 if disjoint;
* earth mover's distance of q_i to q with distance 1 between any two classes, which is the total variation
  ½ Σ |q_i − q| (Zhao et al., 2018, print twice that).

Sizes: the earth mover's distance of the clients' sizes to equal ones, in units of the mean size.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from undrift.data.federated import FederatedData
from undrift.data.split import counts, has_classes

Array = np.ndarray[Any, Any]
_BLOCK = 1 << 22  # cells of clients × classes computed at once


def heterogeneity(data: FederatedData) -> pd.DataFrame:
    """A row per client: samples and, where targets are classes, classes, entropy, jensen_shannon, earth_mover."""
    frame = pd.DataFrame({"samples": data.sizes})
    frame.index.name = "client"
    if not has_classes(data):
        return frame
    total = np.bincount(data.y.numpy()[data.rows], minlength=data.classes or 0)
    share = total / total.sum()
    parts = []
    step = max(1, _BLOCK // len(share))
    for start in range(0, len(data), step):
        table = counts(data, start, start + step)
        own = table / table.sum(1, keepdims=True)
        parts.append(
            pd.DataFrame(
                {
                    "classes": (table > 0).sum(1),
                    "entropy": np.abs(_relative_entropy(own, 1.0)),  # without the sign of a zero
                    "jensen_shannon": _jensen_shannon(own, share),
                    "earth_mover": np.abs(own - share).sum(1) / 2,
                }
            )
        )
    return frame.join(pd.concat(parts, ignore_index=True).rename_axis("client"))


def _jensen_shannon(rows: Array, share: Array) -> Array:
    middle = (rows + share) / 2
    squared = (_relative_entropy(rows, middle) + _relative_entropy(share, middle)) / 2
    found: Array = np.sqrt(np.maximum(squared, 0))  # rounding may make a zero slightly negative
    return found


def _relative_entropy(p: Array, q: Array | float) -> Array:
    """Σ p log₂ (p / q) of every row."""
    ratio = np.divide(p, q, out=np.ones(np.broadcast(p, q).shape), where=p > 0)
    found: Array = (p * np.log2(ratio)).sum(-1)
    return found


def summary(frame: pd.DataFrame) -> dict[str, Any]:
    """Smallest, mean and largest of every measure, and how unequal the sizes are."""
    sizes = frame["samples"].to_numpy()
    return {
        "clients": len(frame),
        "samples": int(sizes.sum()),
        "size_inequality": float(np.abs(sizes - sizes.mean()).mean() / sizes.mean()),
        "per_client": {
            name: {"min": float(values.min()), "mean": float(values.mean()), "max": float(values.max())}
            for name, values in frame.items()
        },
    }
