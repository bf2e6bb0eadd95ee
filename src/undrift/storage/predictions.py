"""Predictions of a run's final model on the test samples, in a file of its directory (safetensors)."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from undrift.core.files import StorageError, sync
from undrift.statistics.predictions import Array, Predictions
from undrift.storage.files import DamageError

FILE = "predictions.safetensors"
_ABOUT = "undrift"  # the key of the file's metadata; one only, as their order is not fixed


def write(home: Path, predictions: Predictions, round: int) -> None:
    """Store what the model of a round says; the file is there as a whole or not at all."""
    arrays = {"targets": predictions.targets, "labels": predictions.labels}
    if predictions.probabilities is not None:
        arrays["probabilities"] = predictions.probabilities
    path, draft = home / FILE, home / f".{FILE}.new"
    about = json.dumps({"round": round, "sha256": _digest(arrays)})
    try:
        save_file(arrays, draft, metadata={_ABOUT: about})
        sync(draft)
        os.replace(draft, path)
    except (OSError, SafetensorError) as error:
        raise StorageError(f"{path} cannot be written: {error}") from error
    finally:
        draft.unlink(missing_ok=True)


def read(home: Path, round: int) -> Predictions:
    """What the model of a round says; raises `DamageError` where the file is missing, of another round or damaged."""
    path = home / FILE
    if not path.exists():
        raise DamageError(f"{path} is missing")
    try:
        with safe_open(path, framework="numpy") as file:
            about = json.loads((file.metadata() or {})[_ABOUT])
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (it is no dict)
        written, digest = about["round"], about["sha256"]
        known = {name: arrays.pop(name) for name in ("targets", "labels", "probabilities") if name in arrays}
        if arrays or digest != _digest(known):
            raise ValueError("its content does not match its checksum")
        found = Predictions(**known)
    except (SafetensorError, OSError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise DamageError(f"{path} is damaged: {error}") from None
    if written != round:
        raise DamageError(f"{path} is of round {written}, not of round {round}, the last one")
    return found


def _digest(arrays: dict[str, Array]) -> str:
    found = hashlib.sha256()
    for name in sorted(arrays):
        found.update(f"{name} {arrays[name].dtype} {arrays[name].shape}".encode())
        found.update(arrays[name].tobytes())
    return found.hexdigest()
