"""Callbacks that log runs to a tool that draws and compares them, one file a tool. To add one, list it in `_BUILT_IN`.

    ud.simulate("fedhbm", data="digits", out="runs/a", callbacks=[ud.trackers.TensorBoard()])

What a tool needs is one of undrift's extras, imported when a tracker is made. A run directory has every round in
``rounds.jsonl`` all the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from undrift.core.check import nearest, shown
from undrift.trackers.mlflow import MLflow
from undrift.trackers.tensorboard import TensorBoard
from undrift.trackers.tracker import Log, Tracker
from undrift.trackers.wandb import WandB

__all__ = ["Log", "MLflow", "TensorBoard", "Tracker", "WandB", "available", "named"]

_BUILT_IN: tuple[type[Tracker], ...] = (TensorBoard, MLflow, WandB)


def available() -> dict[str, type[Tracker]]:
    """Trackers by the name users type."""
    return {kind.name(): kind for kind in _BUILT_IN}


def named(names: str | Sequence[str]) -> list[Tracker]:
    """The trackers of these names, with their default settings."""
    listed = [names] if isinstance(names, str) else list(names)
    known = available()
    for name in listed:
        if not isinstance(name, str) or name.lower() not in known:
            raise ValueError(f"unknown tracker {shown(name)}{nearest(str(name).lower(), known)}")
    if len({name.lower() for name in listed}) < len(listed):
        raise ValueError(f"trackers must differ, got {', '.join(listed)}")
    return [known[name.lower()]() for name in listed]
