"""Models that return a dict, or an object with logits, as those of transformers do."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from torch import Tensor, nn
from torch.testing import assert_close

import undrift as ud
from laws import classified, mlp

TEST = classified((30,))[0]


class Wrapped(nn.Module):
    def __init__(self, inner: nn.Module, wrap: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.inner, self.wrap = inner, wrap

    def forward(self, x: Tensor) -> Any:
        return self.wrap(self.inner(x))


class ModelOutput(OrderedDict[str, Any]):
    """As in transformers: a dict whose entries are attributes, too; entries that are None are left out."""

    def __getattr__(self, name: str) -> Any:
        return self[name]


@pytest.mark.parametrize("engine", ["sequential", "batched"])
@pytest.mark.parametrize(
    "wrap",
    [
        lambda y: {"hidden": y + 1, "logits": y},
        lambda y: SimpleNamespace(loss=None, logits=y),
        lambda y: ModelOutput(logits=y),
    ],
    ids=["dict", "object", "ModelOutput"],
)
def test_logits_are_trained_and_evaluated(wrap: Callable[[Tensor], Any], engine: str) -> None:
    settings: dict[str, Any] = {"rounds": 2, "batch_size": 4, "lr": 0.1, "test": TEST, "engine": engine}
    run = ud.simulate("scaffold", Wrapped(mlp(), wrap), classified(), **settings)
    plain = ud.simulate("scaffold", mlp(), classified(), **settings)
    assert_close({f"inner.{k}": v for k, v in plain.parameters.items()}, run.parameters, rtol=0, atol=0)
    assert run.history["accuracy"].tolist() == plain.history["accuracy"].tolist()
    assert_close(run.predict(TEST[0]), plain.predict(TEST[0]), rtol=0, atol=0)


def test_what_has_no_logits_is_refused() -> None:
    with pytest.raises(ValueError, match="a dict or an object with such logits, got a dict with 'scores', 'hidden'"):
        ud.simulate("fedavg", Wrapped(mlp(), lambda y: {"scores": y, "hidden": y}), classified(), rounds=1)
    with pytest.raises(ValueError, match=r"the model must return a tensor .*, got tuple for 2 samples"):
        ud.simulate("fedavg", Wrapped(mlp(), lambda y: (y, y)), classified(), rounds=1)
