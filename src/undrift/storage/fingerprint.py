"""What was given to a run as an object, in plain values: digests by which `resume` recognises it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

FINGERPRINT = "fingerprint"  # the key of a description that is a digest
FILE = "file"  # the key of a file's name beside the digest of what is in it


def of_tree(tree: Mapping[str, Tensor]) -> dict[str, str]:
    return {FINGERPRINT: _digest(tree)}


def of_module(module: nn.Module) -> dict[str, str]:
    """A digest of the weights and of the kinds of layers, some of which have none."""
    kinds = [(name, type(part).__qualname__) for name, part in module.named_modules()]
    return {FINGERPRINT: hashlib.sha256((repr(kinds) + _digest(module.state_dict())).encode()).hexdigest()}


def of_samples(samples: tuple[Tensor, Tensor]) -> dict[str, str]:
    return of_tree({"x": samples[0], "y": samples[1]})


def of_callable(f: Callable[..., Any]) -> dict[str, str]:
    """Its name: code cannot be compared."""
    return {FINGERPRINT: f"{getattr(f, '__module__', '')}.{getattr(f, '__qualname__', type(f).__qualname__)}"}


def of_file(path: Path) -> dict[str, str]:
    """Its name, with which it is read again, and a digest of what is in it."""
    with path.open("rb") as stream:
        return {FILE: str(path), "digest": hashlib.file_digest(stream, "sha256").hexdigest()}


def is_fingerprint(description: Any) -> bool:
    return isinstance(description, Mapping) and FINGERPRINT in description


def _digest(tree: Mapping[str, Any]) -> str:
    digest = hashlib.sha256()
    for key, value in tree.items():
        if not isinstance(value, Tensor):  # a module's extra state, which may be anything
            digest.update(repr((key, type(value).__qualname__)).encode())
            continue
        digest.update(repr((key, tuple(value.shape), str(value.dtype))).encode())
        digest.update(_dense(value.detach()).cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _dense(value: Tensor) -> Tensor:
    if value.is_quantized:
        return value.dequantize()
    return value if value.layout is torch.strided else value.to_dense()
