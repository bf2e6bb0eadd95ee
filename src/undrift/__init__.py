"""undrift: federated learning that holds together when clients differ."""

from typing import TYPE_CHECKING, Any

from undrift.core.importing import imported
from undrift.core.version import __version__ as __version__

if TYPE_CHECKING:
    from undrift import algorithms, data, models, trackers
    from undrift.data.federated import FederatedData
    from undrift.methods.algorithm import Algorithm
    from undrift.methods.attack import Attack
    from undrift.methods.codecs import Half
    from undrift.methods.private import Privacy
    from undrift.plugins.pgvc import PGVC
    from undrift.recommendation.choose import Recommendation, recommend
    from undrift.simulation.callbacks import Callback
    from undrift.simulation.compare import compare
    from undrift.simulation.comparison import Comparison
    from undrift.simulation.divergence import DivergenceError
    from undrift.simulation.loop import Interrupted
    from undrift.simulation.run import Run
    from undrift.simulation.simulate import resume, simulate
    from undrift.transport.faults import Faults
    from undrift.tuning.tuner import Tuning, tune
    from undrift.two_clients.picture import draw_drift

__all__ = [
    "PGVC",
    "Algorithm",
    "Attack",
    "Callback",
    "Comparison",
    "DivergenceError",
    "Faults",
    "FederatedData",
    "Half",
    "Interrupted",
    "Privacy",
    "Recommendation",
    "Run",
    "Tuning",
    "algorithms",
    "compare",
    "data",
    "draw_drift",
    "models",
    "recommend",
    "resume",
    "simulate",
    "trackers",
    "tune",
]

_HOMES = {
    "Algorithm": "methods.algorithm",
    "Attack": "methods.attack",
    "Comparison": "simulation.comparison",
    "compare": "simulation.compare",
    "FederatedData": "data.federated",
    "Faults": "transport.faults",
    "PGVC": "plugins.pgvc",
    "DivergenceError": "simulation.divergence",
    "Run": "simulation.run",
    "Callback": "simulation.callbacks",
    "Half": "methods.codecs",
    "Interrupted": "simulation.loop",
    "Privacy": "methods.private",
    "resume": "simulation.simulate",
    "simulate": "simulation.simulate",
    "Tuning": "tuning.tuner",
    "tune": "tuning.tuner",
    "Recommendation": "recommendation.choose",
    "recommend": "recommendation.choose",
    "draw_drift": "two_clients.picture",
}


def __getattr__(name: str) -> Any:
    """Names are imported when they are first used, so that the command line's help does not wait for torch."""
    if name in _HOMES:
        return getattr(imported(f"undrift.{_HOMES[name]}"), name)
    if name in ("algorithms", "data", "models", "trackers"):
        return imported(f"undrift.{name}")
    raise AttributeError(f"module 'undrift' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
