"""The base class of algorithms, for packages that add algorithms; the code is in `undrift.methods.algorithm`."""

from undrift.methods.algorithm import *
