"""undrift: federated learning that holds together when clients differ."""

from undrift import algorithms, data, models
from undrift.algorithm import Algorithm
from undrift.compare import Comparison, compare
from undrift.data.federated import FederatedData
from undrift.pgvc import PGVC
from undrift.run import DivergenceError, Run
from undrift.simulate import Interrupted, resume, simulate

__version__ = "0.1.0"

__all__ = [
    "PGVC",
    "Algorithm",
    "Comparison",
    "DivergenceError",
    "FederatedData",
    "Interrupted",
    "Run",
    "algorithms",
    "compare",
    "data",
    "models",
    "resume",
    "simulate",
]
