"""The base class of algorithms, for packages that add algorithms; the code is in `undrift.methods`."""

from undrift.methods.algorithm import Algorithm, build_method
from undrift.methods.setting import Setting

__all__ = ["Algorithm", "Setting", "build_method"]
