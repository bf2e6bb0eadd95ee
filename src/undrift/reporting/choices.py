"""What a tuning chose out of what, for the terminal, the report and the file that a later report is made from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from undrift.reporting.sensitivity import Sensitivity


class Choices(NamedTuple):
    """Rows of texts, and how the accuracy depends on the values."""

    figure: str  # by which it chose: "accuracy" or "loss"
    chosen: list[list[str]]  # a row per algorithm: its label, configuration, figure, how many were tried and failed
    tried: list[list[str]]  # a row per configuration: as it is written, rounds, figure, seeds that failed
    notes: list[str]  # on values at the edge of what was tried
    pictures: list[Sensitivity]

    @property
    def headings(self) -> list[str]:
        return ["Method", "Chosen", f"Held-out {self.figure}", "Tried", "Failed"]

    @property
    def headings_of_tried(self) -> list[str]:
        return ["Configuration", "Rounds", f"Held-out {self.figure}", "Failed"]

    def plain(self) -> dict[str, Any]:
        """As JSON has them."""
        return self._asdict() | {"pictures": [each.plain() for each in self.pictures]}

    @classmethod
    def read(cls, content: Mapping[str, Any]) -> Choices:
        """Of what `plain` gave."""
        found = cls(**content)
        return found._replace(pictures=[Sensitivity.read(each) for each in content["pictures"]])
