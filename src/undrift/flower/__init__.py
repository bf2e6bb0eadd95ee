"""The same algorithm in a real federation: undrift on Flower.

A Flower app is made of `server_app` and `client_app`; `undrift flower new` writes one.
"""

from typing import TYPE_CHECKING, Any

from undrift.core.importing import imported

if TYPE_CHECKING:
    from undrift.flower.client import client_app
    from undrift.flower.samples import Samples
    from undrift.flower.server import server_app

__all__ = ["Samples", "client_app", "server_app"]

_HOMES = {"Samples": "samples", "client_app": "client", "server_app": "server"}


def __getattr__(name: str) -> Any:
    """Names are imported when they are first used, so that an app is written without waiting for torch and Flower."""
    if name in _HOMES:
        return getattr(imported(f"undrift.flower.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'undrift.flower' has no attribute {name!r}")
