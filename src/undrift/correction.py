"""The parts of an algorithm, for packages that add algorithms; the code is in `undrift.methods.correction`."""

from undrift.methods.correction import At, Correction, Heard, displacement_slope

__all__ = ["At", "Correction", "Heard", "displacement_slope"]
