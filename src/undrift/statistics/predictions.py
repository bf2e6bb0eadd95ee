"""What a trained model says of the test samples, and what is true."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Predictions:
    """Class numbers of the test samples, in their order; of sequences, of every position that is scored.

    `labels` are the classes with the highest score. `probabilities` are the softmax of the scores; None where they
    would take more room than is given to them, or are not finite.
    """

    targets: Array  # int64 [n]
    labels: Array  # int64 [n]
    probabilities: Array | None = None  # float32 [n, classes]

    def __post_init__(self) -> None:
        shape = self.targets.shape
        if len(shape) != 1 or self.labels.shape != shape:
            raise ValueError(f"targets and labels must be of one length, got {shape} and {self.labels.shape}")
        if self.targets.dtype != np.int64 or self.labels.dtype != np.int64:
            raise ValueError(f"targets and labels must be int64, got {self.targets.dtype} and {self.labels.dtype}")
        if (scores := self.probabilities) is None:
            return
        if scores.ndim != 2 or len(scores) != len(self.targets) or scores.dtype != np.float32:
            raise ValueError(f"probabilities must be float32 [{len(self.targets)}, classes], got {scores.shape}")
        if not np.isfinite(scores).all() or (scores < 0).any() or (scores > 1).any():
            raise ValueError("probabilities must be between 0 and 1")

    def __len__(self) -> int:
        return len(self.targets)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Predictions) and all(
            np.array_equal(a, b) if a is not None and b is not None else a is b
            for a, b in (
                (self.targets, other.targets),
                (self.labels, other.labels),
                (self.probabilities, other.probabilities),
            )
        )

    __hash__ = None  # type: ignore[assignment]

    @property
    def correct(self) -> Array:
        """Which samples are classified correctly, bool [n]."""
        found: Array = self.labels == self.targets
        return found

    @property
    def accuracy(self) -> float:
        return float(self.correct.mean()) if len(self) else float("nan")
