"""What a partition scheme is given, and the checks that several schemes share."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]
Ints = np.ndarray[Any, np.dtype[np.int64]]
UNASSIGNED = -1  # the owner of samples that are left out


class Request(NamedTuple):
    """Samples to be split among clients by the scheme ``name:argument``."""

    name: str
    argument: str
    labels: Array  # [n, ...]
    users: Ints  # [n], from 0, UNASSIGNED for users that cannot be clients; only for the scheme "natural"
    clients: int
    minimum: int  # samples that every client must have
    balanced: bool  # no client may take much more than its equal part; only for the scheme "dirichlet"
    rng: np.random.Generator

    @property
    def samples(self) -> int:
        return len(self.labels)

    def classes(self) -> Ints:
        """Labels [n] numbered from 0 without gaps."""
        if self.labels.ndim != 1:
            raise ValueError(
                f"partition {self.name!r} needs one class per sample, got targets of shape {self.labels.shape[1:]}; "
                "use 'iid', 'quantity' or 'natural'"
            )
        return np.unique(self.labels, return_inverse=True)[1]

    def number(self) -> float:
        """The argument as a number."""
        try:
            return float(self.argument)
        except ValueError:
            name = self.name
            raise ValueError(
                f"partition '{name}' needs a number, as in '{name}:1', got '{name}:{self.argument}'"
            ) from None

    def whole_number(self, default: str = "") -> int:
        """The argument as a whole number from 1."""
        name, text = self.name, self.argument or default
        if not text.isdecimal() or len(text) > 18 or int(text) < 1:
            raise ValueError(f"partition '{name}' needs a whole number from 1, as in '{name}:2', got '{name}:{text}'")
        return int(text)

    def refuse_argument(self) -> None:
        if self.argument:
            raise ValueError(f"partition '{self.name}' takes no number, got '{self.name}:{self.argument}'")
