"""Who has how many samples of which class: what the picture of a partition shows, and a run stores of own data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from undrift.data.federated import FederatedData

Table = np.ndarray[Any, np.dtype[np.int64]]
MAX_CLIENTS = 1000  # more would be thinner than a pixel
_MOST_STORED = 2000  # numbers


@dataclass(frozen=True)
class Split:
    """The first clients of a federation, as many as can be shown."""

    clients: int  # in all
    sizes: Table  # [shown]
    table: Table  # samples of every client and class [shown, classes]; no columns where targets are no classes
    client_names: tuple[str, ...]  # of those shown; empty where they have none
    class_names: tuple[str, ...]

    @classmethod
    def of(cls, data: FederatedData) -> Split:
        shown = min(len(data), MAX_CLIENTS)
        table = counts(data, 0, shown) if has_classes(data) else np.zeros((shown, 0), dtype=np.int64)
        names = data.class_names or tuple(str(number) for number in range(table.shape[1]))
        return cls(len(data), data.sizes[:shown], table, (data.client_names or ())[:shown], names)

    @property
    def shown(self) -> int:
        return len(self.sizes)

    def client(self, number: int) -> str:
        return self.client_names[number] if self.client_names else str(number)

    def plain(self) -> dict[str, Any]:
        """As plain values; of a large one only the number of clients."""
        if self.clients > self.shown or self.sizes.size + self.table.size > _MOST_STORED:
            return {"clients": self.clients}
        return {
            "clients": self.clients,
            "sizes": self.sizes.tolist(),
            "table": self.table.tolist(),
            "client_names": list(self.client_names),
            "class_names": list(self.class_names),
        }

    @classmethod
    def from_plain(cls, stored: Any) -> Split | None:
        """What `plain` gave; None where that is only the number of clients, or something else."""
        try:
            sizes = np.array(stored["sizes"], dtype=np.int64)
            table = np.array(stored["table"], dtype=np.int64).reshape(len(sizes), -1)
            names = tuple(map(str, stored["client_names"])), tuple(map(str, stored["class_names"]))
            clients = int(stored["clients"])
        except (TypeError, KeyError, ValueError, OverflowError):
            return None
        whole = len(names[0]) in (0, len(sizes)) and len(names[1]) == table.shape[1]
        return cls(clients, sizes, table, *names) if whole and len(sizes) and sizes.min() > 0 else None


def has_classes(data: FederatedData) -> bool:
    return data.y.ndim == 1 and data.classes is not None


def counts(data: FederatedData, start: int = 0, stop: int | None = None) -> Table:
    """Samples of every class at the clients from `start` to `stop` [clients, classes]."""
    stop = len(data) if stop is None else min(stop, len(data))
    labels = data.y.numpy()[data.rows[data.offsets[start] : data.offsets[stop]]]
    owner = np.repeat(np.arange(stop - start), data.sizes[start:stop])
    classes = data.classes or 0
    return np.bincount(owner * classes + labels, minlength=(stop - start) * classes).reshape(-1, classes)
