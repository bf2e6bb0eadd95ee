"""A new head on a backbone, with pre-trained weights if given."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from undrift.core import check
from undrift.models.weights import Weights, read_weights


class WithHead(nn.Module):
    """A backbone's features and an MLP on them. A frozen backbone also keeps its batch statistics."""

    def __init__(self, backbone: nn.Module, head: nn.Module, frozen: bool) -> None:
        super().__init__()
        self.backbone, self.head, self.frozen = backbone, head, frozen
        if frozen:
            backbone.requires_grad_(False)

    def train(self, mode: bool = True) -> WithHead:
        super().train(mode)
        if self.frozen:
            self.backbone.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.backbone(x))
        return out


def with_head(
    backbone: nn.Module,
    *,
    classes: int,
    hidden: Sequence[int] = (256, 128),
    weights: Weights | None = None,
    freeze: bool = True,
    side: int | None = None,
    seed: int = 0,
) -> nn.Module:
    """The backbone with its classifier, the last `nn.Linear`, replaced by linear layers and a new classifier.

    FedPGVC puts two linear layers and a classifier on pre-trained networks and states neither their sizes nor whether
    the backbone is trained. `weights` are a `.safetensors` file, a PyTorch file or a state dict, of which the old
    classifier's tensors are ignored; None keeps those of the backbone. `side` enlarges images to the size that the
    weights were trained on. The given backbone is not changed.
    """
    check.integer("classes", classes, 1)
    for units in hidden:
        check.integer("hidden", units, 1)
    check.flag("freeze", freeze)
    backbone = copy.deepcopy(backbone)
    linear = {name: part for name, part in backbone.named_modules() if name and isinstance(part, nn.Linear)}
    if not linear:
        raise ValueError(f"backbone: {type(backbone).__name__} has no nn.Linear that a head could replace")
    classifier, old = list(linear.items())[-1]
    backbone.set_submodule(classifier, nn.Identity())
    if weights is not None:
        _load(backbone, read_weights("weights", weights), classifier)
    if side is not None:
        check.integer("side", side, 1)
        backbone = nn.Sequential(nn.Upsample(size=(side, side), mode="bilinear"), backbone)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # only the CPU's, which is restored afterwards
        return WithHead(backbone, _mlp([old.in_features, *hidden], classes), freeze)


def _mlp(widths: list[int], classes: int) -> nn.Module:
    layers: list[nn.Module] = []
    for inner, width in pairwise(widths):
        layers += [nn.Linear(inner, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], classes))


def _load(backbone: nn.Module, given: Mapping[str, Tensor], classifier: str) -> None:
    """Load the tensors; all must be there and fit, except counters, which older files do not have."""
    wanted = backbone.state_dict()
    given = {name: value for name, value in given.items() if not name.startswith(f"{classifier}.")}
    missing = [name for name in wanted if name not in given and not name.endswith("num_batches_tracked")]
    unknown = [name for name in given if name not in wanted]
    if missing or unknown:
        absent = f"{_first_few(missing)} missing" if missing else ""
        extra = f"{_first_few(unknown)} not in the backbone" if unknown else ""
        raise ValueError(f"weights do not fit the backbone: {' and '.join(part for part in (absent, extra) if part)}")
    for name, value in given.items():
        if value.shape != wanted[name].shape:
            raise ValueError(f"weights: {name!r} must have shape {_shape(wanted[name])}, got {_shape(value)}")
    backbone.load_state_dict(given, strict=False)


def _first_few(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(map(repr, names[:3])) + more


def _shape(value: Tensor) -> tuple[int, ...]:
    return tuple(value.shape)
