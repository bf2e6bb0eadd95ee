"""Choosing rates and options for every algorithm, with the same budget and without the test set."""

from undrift.tuning.presets import PRESETS
from undrift.tuning.tuner import Tuning, tune

__all__ = ["PRESETS", "Tuning", "tune"]
