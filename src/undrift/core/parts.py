"""The parts of a round, as a profile names them.

``with mark(Part.TRAINING):`` says where one begins and ends; time belongs to the innermost. Marks stand around what
happens a few times a round, never around a local step. What is replayed or compiled has none inside and is one part.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from enum import StrEnum

from torch.autograd import profiler

from undrift.core import torch_private

_NOTHING = nullcontext()


class Part(StrEnum):
    COHORT = "undrift: cohort and states"  # who takes part, what they remember and are sent
    BATCHES = "undrift: batches"  # which samples they see when
    TRAINING = "undrift: local training"
    AGGREGATION = "undrift: aggregation"
    DIAGNOSTICS = "undrift: diagnostics"
    REPLAY = "undrift: replayed round"  # a graph of the above, launched
    COMPILED = "undrift: compiled round"  # code for the above, called
    WAITING = "undrift: waiting for device"
    EVALUATION = "undrift: evaluation"
    SAVING = "undrift: saving"  # rows and checkpoints

    @property
    def label(self) -> str:
        return self.removeprefix("undrift: ").capitalize()


def mark(part: Part) -> AbstractContextManager[object]:
    """What is done inside belongs to this part of the round; costs nothing while no profile is taken."""
    # PyTorch's own mark would take some 20 µs even then, which small rounds would feel.
    return profiler.record_function(part) if torch_private.is_profiling() else _NOTHING
