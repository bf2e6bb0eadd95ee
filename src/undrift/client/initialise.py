"""Another draw of a model: the parameters that the module's own initialiser makes of other random numbers."""

from __future__ import annotations

import copy
import math

import torch
from torch import nn
from torch.func import functional_call

from undrift.client.draws import Draws
from undrift.core.random import Key, Stream
from undrift.core.tree import Tree


def skeleton(module: nn.Module) -> nn.Module:
    """A module without values, whose initialiser `drawn` calls; it shares no tensor with the given one."""
    return module.to("meta")


def drawn(skeleton: nn.Module, like: Tree, key: Key) -> Tree:
    """Parameters in place of `like`, drawn for a client; the same for one alone and for many under `vmap`.

    Initialisers are the methods `reset_parameters` of the module and its parts, as PyTorch's own layers have them.
    """
    own = key.client * 0  # under `vmap`, tensors that depend on the client can be filled with its numbers
    fresh = {k: torch.full_like(v, math.nan) + own.to(v.dtype) for k, v in like.items()}
    module = _Initialising(copy.deepcopy(skeleton))  # clients are trained by several threads
    with torch.no_grad(), Draws(key, 0, Stream.INITIAL):
        functional_call(module, {f"module.{k}": v for k, v in fresh.items()}, ())
    return fresh


def without_initialiser(skeleton: nn.Module, like: Tree) -> list[str]:
    """The names of parameters that no initialiser sets."""
    client = torch.zeros((), dtype=torch.int64, device=next(iter(like.values())).device)
    return [k for k, v in drawn(skeleton, like, Key(0, 0, client)).items() if v.isnan().any()]


class _Initialising(nn.Module):
    """Initialises its module when it is called, so that `functional_call` can put other tensors into it."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self) -> None:
        _initialise(self.module)


def _initialise(module: nn.Module) -> None:
    """As constructors do: the parts first, then what the whole makes of them."""
    for part in module.children():
        _initialise(part)
    for name in ("reset_parameters", "_reset_parameters"):  # the latter of PyTorch's attention
        if callable(initialiser := getattr(module, name, None)):
            initialiser()
            return
