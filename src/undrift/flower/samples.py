"""What a user's function gives for one machine: a client's samples, or the server's test samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from undrift.core import check
from undrift.data.arrays import tensor
from undrift.data.federated import FederatedData, Scale


@dataclass(frozen=True)
class Samples:
    """Inputs `x` and targets `y`, arrays or tensors with a row a sample.

    The other fields are the same on every machine, as the model depends on them: `classes`, how many there are in the
    whole federation; `normalise`, mean and deviation of the channels of images; `name`, of a data set of undrift, whose
    settings are used where the app leaves some open. A server without test samples gives `x` and `y` without rows.
    `test` is a pair (x, y) of a client's own test samples, for metrics of clients (``fairness``).
    """

    x: Any
    y: Any
    classes: int | None = None
    normalise: Scale | None = None
    name: str = ""
    test: tuple[Any, Any] | None = None

    def __post_init__(self) -> None:
        for field in ("x", "y"):
            object.__setattr__(self, field, tensor(field, getattr(self, field)))
        if len(self.x) != len(self.y):
            raise ValueError(f"x and y must have equally many rows, got {len(self.x)} and {len(self.y)}")
        if self.classes is not None:
            check.integer("classes", self.classes, 1)
        if self.test is not None:
            object.__setattr__(self, "test", _test(self.test, self.x, self.y))

    @classmethod
    def of_client(cls, data: FederatedData, client: int) -> Samples:
        """Those of one client of a federation that is split on this machine, as an example.

        Where clients have no test samples of their own, they test on the server's of their classes, as in a simulation.
        """
        check.integer("the client's number (partition-id)", client, 0, len(data) - 1)
        (x, y), test = data.client(client), data.client_test(client)
        if test is None and data.test is not None and data.classes is not None and y.ndim == 1:
            known = torch.isin(data.test[1], y)
            test = data.test[0][known], data.test[1][known]
        return cls(x, y, data.classes, data.normalise, data.name, test)

    @classmethod
    def of_test(cls, data: FederatedData) -> Samples:
        """The server's test samples of such a federation."""
        x, y = (data.x[:0], data.y[:0]) if data.test is None else data.test
        return cls(x, y, data.classes, data.normalise, data.name)

    @property
    def tests(self) -> int:
        """How many test samples a client has."""
        return 0 if self.test is None else len(self.test[0])

    @property
    def kind(self) -> dict[str, Any]:
        """What all machines must agree on, in plain values."""
        return {
            "samples": f"{str(self.x.dtype).removeprefix('torch.')} {list(self.x.shape[1:])}",
            "targets": f"{str(self.y.dtype).removeprefix('torch.')} {list(self.y.shape[1:])}",
            "classes": self.classes,
            "normalise": None if self.normalise is None else [list(map(float, part)) for part in self.normalise],
        }


def _test(given: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """A client's test samples, which are like those it trains on."""
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise TypeError(f"test must be a pair (x, y), got {check.shown(given)}")
    own = tensor("test x", given[0]), tensor("test y", given[1])
    for name, mine, like in zip(("x", "y"), own, (x, y), strict=True):
        if (mine.dtype, mine.shape[1:]) != (like.dtype, like.shape[1:]):
            raise ValueError(
                f"test {name} must be like {name}, {like.dtype} {list(like.shape[1:])}, got {mine.dtype} "
                f"{list(mine.shape[1:])}"
            )
    if len(own[0]) != len(own[1]):
        raise ValueError(f"test x and y must have equally many rows, got {len(own[0])} and {len(own[1])}")
    return own
