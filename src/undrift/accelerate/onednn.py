"""Convolutions that follow one another, in the layout in which a CPU computes them.

oneDNN, which computes PyTorch's convolutions on a CPU, keeps channels in blocks of 8 or 16. Every convolution turns its
input into that layout and its output back, and what lies between two of them, ReLU and pooling, is slower in the
ordinary layout than in theirs. Inside an `nn.Sequential`, such layers can hand their tensors on as they are; and ReLU
has a quarter of the work after a 2×2 pooling, where it gives the same numbers as before it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn

Layer = Callable[[Tensor], Tensor]


def connect(module: nn.Module) -> bool:
    """Let the layers of every `nn.Sequential` in this module hand their tensors on, in place; says whether any can.

    The module may then be called with single precision on a CPU, and not under `vmap`.
    """
    found = False
    for part in module.modules() if torch.backends.mkldnn.is_available() else ():
        if type(part) is nn.Sequential and (inner := _stacked(list(part))):
            found, part.forward = True, partial(_forward, part, inner, _steps(list(part), inner))  # type: ignore[method-assign]
    return found


def _stacked(layers: list[nn.Module]) -> frozenset[int]:
    """Places of the layers that may work in blocks: convolutions, and what follows them; never a convolution alone."""
    found: set[int] = set()
    for place, (layer, after) in enumerate(pairwise(layers)):
        if (_convolves(layer) or place in found) and _fits(after):
            found |= {place, place + 1}
    return frozenset(found)


def _steps(layers: list[nn.Module], inner: frozenset[int]) -> list[tuple[Layer, bool]]:
    """What to compute one after another, and whether in blocks."""
    order = list(range(len(layers)))
    for first, second in pairwise(range(len(layers))):
        if {first, second} <= inner and type(layers[first]) is nn.ReLU and type(layers[second]) is nn.MaxPool2d:
            order[first], order[second] = second, first
    return [(torch.relu if type(layers[i]) is nn.ReLU else layers[i], i in inner) for i in order]


def _forward(stack: nn.Sequential, inner: frozenset[int], steps: list[tuple[Layer, bool]], x: Tensor) -> Tensor:
    if any(layer._forward_hooks or layer._forward_pre_hooks for i, layer in enumerate(stack) if i in inner):
        for plain in stack:  # somebody watches what lies between
            x = plain(x)
        return x
    for layer, in_blocks in steps:
        if in_blocks != x.is_mkldnn:
            x = x.to_mkldnn() if in_blocks else x.to_dense()
        x = layer(x)
    return x.to_dense() if x.is_mkldnn else x


def _fits(layer: nn.Module) -> bool:
    return type(layer) is nn.ReLU or _convolves(layer) or _pools(layer)


def _convolves(layer: nn.Module) -> bool:
    return type(layer) is nn.Conv2d and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)


def _pools(layer: nn.Module) -> bool:
    return (
        type(layer) is nn.MaxPool2d
        and layer.dilation in (1, (1, 1))
        and not layer.ceil_mode
        and not layer.return_indices
    )
