"""The parts of a round, as a profile names them.

``with record_function(Part.TRAINING):`` marks where one begins and ends; the time belongs to the innermost. Marks cost
microseconds, so they stand around what happens a few times a round and never around a local step. Inside a CUDA graph
nothing is marked: what is replayed is one part.
"""

from __future__ import annotations

from enum import StrEnum


class Part(StrEnum):
    COHORT = "undrift: cohort and states"  # who takes part, what they remember and are sent
    BATCHES = "undrift: batches"  # which samples they see when
    TRAINING = "undrift: local training"
    AGGREGATION = "undrift: aggregation"
    REPLAY = "undrift: replayed round"  # a graph of the above, launched
    WAITING = "undrift: waiting for device"
    EVALUATION = "undrift: evaluation"
    SAVING = "undrift: saving"  # rows and checkpoints

    @property
    def label(self) -> str:
        return self.removeprefix("undrift: ").capitalize()
