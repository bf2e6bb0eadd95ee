"""The parts of an algorithm, for packages that add algorithms; the code is in `undrift.methods.correction`."""

from undrift.methods.correction import *
