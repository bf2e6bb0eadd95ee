"""What a user's function gives for one machine: a client's samples, or the server's test samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from undrift.core import check
from undrift.data.arrays import tensor
from undrift.data.federated import FederatedData, Scale


@dataclass(frozen=True)
class Samples:
    """Inputs `x` and targets `y`, arrays or tensors with a row a sample.

    The other fields are the same on every machine, as the model depends on them: `classes`, how many there are in the
    whole federation; `normalise`, mean and deviation of the channels of images; `name`, of a data set of undrift, whose
    settings are used where the app leaves some open. A server without test samples gives `x` and `y` without rows.
    `test` is a pair (x, y) of a client's own test samples, for metrics of its own model.
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

    @classmethod
    def of_client(cls, data: FederatedData, client: int) -> Samples:
        """Those of one client of a federation that is split on this machine, as an example."""
        check.integer("the client's number (partition-id)", client, 0, len(data) - 1)
        return cls(*data.client(client), data.classes, data.normalise, data.name, data.client_test(client))

    @classmethod
    def of_test(cls, data: FederatedData) -> Samples:
        """The server's test samples of such a federation."""
        x, y = (data.x[:0], data.y[:0]) if data.test is None else data.test
        return cls(x, y, data.classes, data.normalise, data.name)

    @property
    def kind(self) -> dict[str, Any]:
        """What all machines must agree on, in plain values."""
        return {
            "samples": f"{str(self.x.dtype).removeprefix('torch.')} {list(self.x.shape[1:])}",
            "targets": f"{str(self.y.dtype).removeprefix('torch.')} {list(self.y.shape[1:])}",
            "classes": self.classes,
            "normalise": None if self.normalise is None else [list(map(float, part)) for part in self.normalise],
        }
