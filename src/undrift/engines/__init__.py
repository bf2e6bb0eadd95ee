"""Engines: who computes the clients' answers, and how. They know nothing of algorithms."""

from undrift.engines.batched import Batched
from undrift.engines.choose import choose
from undrift.engines.sequential import Sequential
from undrift.engines.work import Engine, LocalTraining, Outcome, Stacked, States, Work
from undrift.engines.workload import Workload

__all__ = [
    "Batched",
    "Engine",
    "LocalTraining",
    "Outcome",
    "Sequential",
    "Stacked",
    "States",
    "Work",
    "Workload",
    "choose",
]
