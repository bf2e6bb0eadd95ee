"""The weights that a user's module had when its run was started.

They are stored so that `resume` takes any module of the same architecture, however that one was initialised: clients
that have not been seen yet, and buffers that every round begins with, need them for as long as the run goes on.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from undrift.core.files import StorageError, sync
from undrift.core.tree import Tree
from undrift.storage.checkpoint import separate
from undrift.storage.files import DamageError

FILE = "initial.safetensors"
DRAFT = f".{FILE}.new"


def write(home: Path, module: nn.Module) -> None:
    """Store what is trained, and buffers; parameters that are frozen are part of the architecture.

    A module of which some part fits no such file (quantised, sparse, complex) must be given with the same weights.
    """
    tensors = _changing(module)
    if not tensors or not all(map(_fits, tensors.values())):
        return
    draft = home / DRAFT
    try:
        save_file(separate(tensors), draft)
        sync(draft)
        os.replace(draft, home / FILE)
    except (OSError, SafetensorError) as error:
        raise StorageError(f"{home / FILE} cannot be written: {error}") from error
    finally:
        draft.unlink(missing_ok=True)


def restored(home: Path, module: nn.Module) -> Tree | None:
    """The stored weights for a module of the same architecture; None if none are stored. Raises what does not fit."""
    if not (home / FILE).exists():
        return None
    try:
        stored = load_file(home / FILE)
    except (SafetensorError, OSError) as error:
        raise DamageError(f"{home / FILE} cannot be read: {error}") from None
    given = _changing(module)
    for name in {**given, **stored}:
        if name not in given:
            raise ValueError(f"it has no {name!r}")
        if name not in stored:
            raise ValueError(f"it has {name!r}, which that one had not")
        if _kind(given[name]) != _kind(stored[name]):
            raise ValueError(f"its {name!r} is {_kind(given[name])}, not {_kind(stored[name])}")
    return stored


def _changing(module: nn.Module) -> Tree:
    frozen = {name for name, value in module.named_parameters(remove_duplicate=False) if not value.requires_grad}
    return {k: v for k, v in module.state_dict().items() if isinstance(v, Tensor) and k not in frozen}


def _fits(value: Tensor) -> bool:
    return value.layout is torch.strided and not value.is_quantized and not value.is_complex()


def _kind(value: Tensor) -> str:
    return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
