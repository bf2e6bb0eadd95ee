"""A trained model in a file of its own: plain names and tensors, as `load_state_dict` takes them (safetensors)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from undrift.core import check
from undrift.core.files import StorageError, sync
from undrift.core.log import warning
from undrift.core.tree import Tree
from undrift.core.version import __version__
from undrift.protocol import State
from undrift.storage.checkpoint import separate
from undrift.storage.directory import RunDirectory

_OURS = "undrift"  # a key of a file's metadata


def write(path: str | Path, tensors: Mapping[str, Any], about: Mapping[str, str]) -> Path:
    """Write tensors and a few words `about` them; of files that exist, only one written by this is replaced."""
    path = check.path("path", path)
    _refuse_other_files(path)
    for name, value in tensors.items():
        if not isinstance(value, Tensor) or value.layout is not torch.strided or value.is_quantized:
            raise ValueError(
                f"{name!r} of the model cannot be stored in a safetensors file; "
                "use torch.save(run.model.state_dict(), ...) instead"
            )
    draft = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        # Other libraries look for "format".
        save_file(separate(dict(tensors)), draft, metadata={"format": "pt", _OURS: __version__, **about})
        sync(draft)
        os.replace(draft, path)
    except (OSError, SafetensorError) as error:
        raise StorageError(f"the model cannot be written to {path}: {error}") from error
    finally:
        draft.unlink(missing_ok=True)
    return path


def _refuse_other_files(path: Path) -> None:
    if path.is_dir():
        raise ValueError(f"{str(path)!r} is a directory; give the name of a file, such as model.safetensors")
    if not path.parent.is_dir():
        raise ValueError(f"{str(path.parent)!r} is not a directory, so that {path.name} cannot be written there")
    if os.path.lexists(path) and not _is_ours(path):
        raise ValueError(f"{str(path)!r} exists and is not a model that undrift exported; choose another name")


def _is_ours(path: Path) -> bool:
    try:
        with safe_open(path, framework="pt") as file:
            return _OURS in (file.metadata() or {})
    except (SafetensorError, OSError):
        return False


# The model of a run directory


def in_use(server: State, params: Tree, buffers: Tree | None) -> State:
    """What a checkpoint must hold besides the server's state for `of_directory` to find the model; often nothing."""
    same = _same(params, server.get("model", {})) and _same(buffers or {}, server.get("buffers", {}))
    return {} if same else {"model": params, "buffers": buffers or {}}


def of_directory(directory: RunDirectory) -> tuple[Tree, int]:
    """The trained tensors in the newest good checkpoint, by the names of a `state_dict`, and the round they are from.

    Parameters that are not trained are not among them.
    """
    found = directory.find()
    if found.checkpoint is None:
        raise ValueError(f"{directory.path} has no checkpoint yet, and so no trained model")
    if found.problems:
        warning("; ".join([*dict.fromkeys(found.problems), f"the model is that of {found.checkpoint.path}"]))
    part = next(found.checkpoint.parts())
    held = part if "model" in part else part.get("server", {})
    if "model" not in held:  # it was written before `in_use` was
        raise ValueError(f"{found.checkpoint.path} was written by an older version of undrift; resume the run first")
    tensors: Tree = held["model"] | held.get("buffers", {})
    names = found.checkpoint.names or {name: name for name in tensors}
    return {name: tensors[own] for name, own in names.items() if own in tensors}, found.checkpoint.round


def _same(a: Tree, b: Tree) -> bool:
    return a.keys() == b.keys() and all(a[name] is b[name] for name in a)
