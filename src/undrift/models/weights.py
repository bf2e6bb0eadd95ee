"""Weights that were trained elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

Weights = str | Path | Mapping[str, Tensor]


def read_weights(option: str, weights: Weights) -> Mapping[str, Tensor]:
    """Tensors by name: those given, or those of a `.safetensors` or PyTorch file; errors name the `option`."""
    if isinstance(weights, Mapping):
        state: object = weights
    elif isinstance(weights, str | Path):
        state = _read_file(option, Path(weights))
    else:
        raise TypeError(f"{option} must be a file or a state dict, got {type(weights).__name__}")
    if not isinstance(state, Mapping) or not all(isinstance(value, Tensor) for value in state.values()):
        raise ValueError(f"{option} must be tensors by name, as `module.state_dict()` gives them")
    return state


def _read_file(option: str, path: Path) -> object:
    if not path.is_file():
        raise ValueError(f"{option}: there is no file {str(path)!r}")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # other kinds of files fail in many ways, even with an IndexError
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{option}: {str(path)!r} holds no weights that can be read safely: {reason}") from error
