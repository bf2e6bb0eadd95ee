"""Arithmetic on trees of tensors, for packages that add algorithms; the code is in `undrift.core.tree`."""

from undrift.core.tree import *
