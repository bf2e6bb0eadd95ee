"""Checks of options, for packages that add algorithms; the code is in `undrift.core.check`."""

from undrift.core.check import *
