"""For runs of the same few networks: what a trial finds out of one is found out once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from undrift.client.learner import Learner
from undrift.simulation import fit

_TRIED: dict[Any, Any] = {}


@pytest.fixture
def networks_are_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a trial finds out follows from the kinds and shapes of a network's parts, its samples and its loss."""
    for name in ("_try", "examine"):
        monkeypatch.setattr(fit, name, _once(name, getattr(fit, name)))


def _once(name: str, tried: Callable[..., Any]) -> Callable[..., Any]:
    def once(learner: Learner, *others: Any) -> Any:
        key = (name, *_parts(learner), *(_shape(each) for each in others if isinstance(each, tuple)))
        if key not in _TRIED:
            _TRIED[key] = tried(learner, *others)
        return _TRIED[key]

    return once


def _parts(learner: Learner) -> tuple[Any, ...]:
    module = learner.module
    kinds = tuple(type(part) for part in module.modules())
    shapes = tuple((k, tuple(v.shape), v.dtype) for k, v in module.state_dict().items())
    return kinds, repr(module), shapes, repr(learner.loss), learner.dtype


def _shape(samples: tuple[torch.Tensor, ...]) -> tuple[Any, ...]:
    return tuple((tuple(each.shape), each.dtype) for each in samples)
