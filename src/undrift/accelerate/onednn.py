"""Consecutive convolutions that keep their tensors in oneDNN's blocked layout.

oneDNN, which computes PyTorch's convolutions on a CPU, keeps channels in blocks of 8 or 16. Every convolution converts
its input to that layout and its output back, and ReLU and pooling between two of them are slower in the ordinary
layout. Inside an `nn.Sequential`, such layers can pass their tensors on without conversions. ReLU is moved behind
pooling, where it gives the same numbers for a quarter of the work.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn

from undrift.core import torch_private

Layer = Callable[[Tensor], Tensor]


def connect(module: nn.Module) -> bool:
    """Let the layers of every `nn.Sequential` in this module pass blocked tensors on; returns whether there are any.

    Changes the module in place. It may then be called in single precision on a CPU only, and not under `vmap`.
    """
    found = False
    for part in module.modules() if torch.backends.mkldnn.is_available() else ():
        if not isinstance(part, nn.Sequential) or type(part).forward is not nn.Sequential.forward:
            continue
        if inner := _blocked(list(part)):
            found, part.forward = True, partial(_forward, part, inner, _steps(list(part), inner))  # type: ignore[method-assign]
    return found


def _blocked(layers: list[nn.Module]) -> frozenset[int]:
    """Indices of the layers in the blocked layout: convolutions and what follows them, never one convolution alone."""
    found: set[int] = set()
    for index, (layer, after) in enumerate(pairwise(layers)):
        if (_convolves(layer) or index in found) and _fits(after):
            found |= {index, index + 1}
    return frozenset(found)


def _steps(layers: list[nn.Module], inner: frozenset[int]) -> list[tuple[Layer, bool]]:
    """The layers in the order of computation, and whether each uses the blocked layout."""
    order = list(range(len(layers)))
    for first, second in pairwise(range(len(layers))):
        if {first, second} <= inner and type(layers[first]) is nn.ReLU and type(layers[second]) is nn.MaxPool2d:
            order[first], order[second] = second, first
    return [(torch.relu if type(layers[i]) is nn.ReLU else layers[i], i in inner) for i in order]


def _forward(stack: nn.Sequential, inner: frozenset[int], steps: list[tuple[Layer, bool]], x: Tensor) -> Tensor:
    if any(_has_hooks(layer) for index, layer in enumerate(stack) if index in inner):
        for plain in stack:  # hooks expect ordinary tensors in the order of the layers
            x = plain(x)
        return x
    for layer, blocked in steps:
        if blocked != x.is_mkldnn:
            x = x.to_mkldnn() if blocked else x.to_dense()
        x = layer(x)
    return x.to_dense() if x.is_mkldnn else x


def _has_hooks(layer: nn.Module) -> bool:
    return (
        torch_private.has_forward_hooks(layer)
        or torch_private.has_forward_pre_hooks(layer)
        or torch_private.has_backward_hooks(layer)
    )


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
