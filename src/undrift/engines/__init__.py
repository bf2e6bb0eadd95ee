"""Engines: who computes the clients' answers, and how. They know nothing of algorithms."""

from undrift.engines.batched import Batched
from undrift.engines.choose import Rehearsal, choose
from undrift.engines.sequential import Sequential
from undrift.engines.work import Engine, Outcome, Work

__all__ = ["Batched", "Engine", "Outcome", "Rehearsal", "Sequential", "Work", "choose"]
