"""Which parameters of a model form its layers, its head and its normalisations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor, nn
from torch.nn.utils import parametrize

from undrift.core import torch_private
from undrift.core.check import nearest, shown

_PARAMETRISATIONS = "parametrizations"  # PyTorch's name of the part that holds them

Layers = int | str | Sequence[str]


class AtMost(int):
    """A default number of layers: a model that has fewer uses all of them; an explicit number would be refused."""


@dataclass(frozen=True)
class Layout:
    """Names of the trainable parameters, in the order of the modules that own them."""

    names: tuple[str, ...]
    layers: tuple[tuple[str, ...], ...]  # by module, those of normalisations left out
    norms: tuple[str, ...]
    batch_norms: tuple[str, ...]  # those of `norms` that belong to batch normalisations
    modules: tuple[str, ...]  # names of all submodules
    last_linear: str | None  # the last `nn.Linear` among them
    only_linear: str | None  # the weight of a model with no other weights or statistics than one `nn.Linear`'s

    @classmethod
    def of(cls, module: nn.Module) -> Layout:
        names = tuple(name for name, p in module.named_parameters() if p.requires_grad)
        known, layers, norms = set(names), [], []
        batch_norms: list[str] = []
        for prefix, part in module.named_modules():
            if _PARAMETRISATIONS in prefix.split("."):
                continue
            own = [f"{prefix}.{n}".removeprefix(".") for n, _ in _own_parameters(part)]
            own = [name for name in own if name in known]
            if _normalises(part):
                norms.extend(own)
                batch_norms.extend(own if torch_private.is_batch_norm(part) else ())
            elif own:
                layers.append(tuple(own))
        modules = {prefix: part for prefix, part in module.named_modules() if prefix}
        linear = [prefix for prefix, part in modules.items() if isinstance(part, nn.Linear)]
        return cls(
            names=names,
            layers=tuple(layers),
            norms=tuple(norms),
            batch_norms=tuple(batch_norms),
            modules=tuple(modules),
            last_linear=linear[-1] if linear else None,
            only_linear=_only_linear(module, known),
        )

    def head(self, layers: Layers) -> tuple[str, ...]:
        """The last layers: how many, ``"all"``, or names; normalisations after the first of them are included."""
        if layers == "all":
            return self.names
        if isinstance(layers, AtMost):
            return self._last(min(layers, len(self.layers)))
        if isinstance(layers, int) and not isinstance(layers, bool):
            return self._last(layers)
        if isinstance(layers, str) or not isinstance(layers, Sequence):
            raise TypeError(f"layers must be a number, 'all' or a list of parameter names, got {shown(layers)}")
        for name in layers:
            if not isinstance(name, str) or name not in self.names:
                raise ValueError(f"layers: no parameter {shown(name)}{nearest(name, self.names)}")
        return tuple(name for name in self.names if name in set(layers))

    def by_layer(self, names: Sequence[str]) -> tuple[tuple[str, ...], ...]:
        """The names of each layer together; those of a normalisation are a layer of their own."""
        layers = {name: layer[0] for layer in self.layers for name in layer}
        groups: dict[str, list[str]] = {}
        for name in names:
            groups.setdefault(layers.get(name, name.rpartition(".")[0]), []).append(name)
        return tuple(tuple(group) for group in groups.values())

    @cached_property
    def named_layers(self) -> dict[str, tuple[str, ...]]:
        """The names of each layer's parameters by the name of the module that owns them."""
        return {_owner(group[0]): group for group in self.by_layer(self.names)}

    def _last(self, count: int) -> tuple[str, ...]:
        if not 0 <= count <= len(self.layers):
            raise ValueError(f"layers must lie between 0 and the model's {len(self.layers)} layers, got {shown(count)}")
        if count == 0:
            return ()
        return self.names[self.names.index(self.layers[-count][0]) :]


def _owner(name: str) -> str:
    """The module that a parameter belongs to; of the outermost module, the parameter itself."""
    module = name.partition(f".{_PARAMETRISATIONS}.")[0] if _PARAMETRISATIONS in name else name.rpartition(".")[0]
    return module or name


def _own_parameters(part: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters of a module without those of its submodules; parametrisations belong to the module they are for."""
    yield from part.named_parameters(recurse=False)
    if parametrize.is_parametrized(part):
        yield from part.get_submodule(_PARAMETRISATIONS).named_parameters(_PARAMETRISATIONS)


def _normalises(part: nn.Module) -> bool:
    return torch_private.is_batch_or_instance_norm(part) or isinstance(part, nn.GroupNorm | nn.LayerNorm | nn.RMSNorm)


def _only_linear(module: nn.Module, trainable: set[str]) -> str | None:
    holders = [
        (prefix, part)
        for prefix, part in module.named_modules()
        if any(True for _ in part.parameters(recurse=False)) or any(True for _ in part.buffers(recurse=False))
    ]
    if len(holders) != 1 or not isinstance(holders[0][1], nn.Linear):
        return None
    weight = f"{holders[0][0]}.weight".removeprefix(".")
    return weight if weight in trainable else None
