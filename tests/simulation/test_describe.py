"""What a run directory stores of plug-ins, aggregation rules and codecs, and how `resume` finds them again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import undrift as ud
from undrift.methods.aggregate import mean
from undrift.methods.codecs import Half

SETTINGS: dict[str, Any] = {"rounds": 4, "cohort": 4, "lr": 0.1, "engine": "sequential"}


def doubled(updates: dict[str, Tensor], weights: Tensor) -> dict[str, Tensor]:
    return {k: 2 * v for k, v in mean(updates, weights).items()}


@pytest.mark.parametrize(
    "given",
    [
        {"plugins": [ud.PGVC()]},  # its default of two layers is more than this model has
        {"plugins": (ud.PGVC(layers=1, form="magnitude"),)},
        {"plugins": "pgvc(layers=1)"},
        {"aggregate": "median"},
        {"compress": "half"},
        {"compress": ud.Half()},
        {"metrics": ["f1"], "patience": 3},
    ],
    ids=str,
)
def test_resumed_by_name(given: dict[str, Any], tmp_path: Path) -> None:
    whole = ud.simulate("fedprox(mu=0.1)", "softmax", "digits", **given, **SETTINGS)
    stop = [lambda row, run: row["round"] == 2]
    ud.simulate("fedprox(mu=0.1)", "softmax", "digits", callbacks=stop, out=tmp_path / "run", **given, **SETTINGS)
    again = ud.resume(tmp_path / "run")
    assert all(torch.equal(v, again.parameters[k]) for k, v in whole.parameters.items())
    assert again.label == "FedProx(mu=0.1)"


def test_a_function_is_given_again(tmp_path: Path) -> None:
    ud.simulate("fedavg", "softmax", "digits", aggregate=doubled, out=tmp_path / "run", **SETTINGS)
    with pytest.raises(ValueError, match="started with aggregate given as an object; give aggregate= again"):
        ud.resume(tmp_path / "run", rounds=5)
    with pytest.raises(ValueError, match="the given aggregate is not the one"):
        ud.resume(tmp_path / "run", rounds=5, aggregate=mean)
    assert ud.resume(tmp_path / "run", rounds=5, aggregate=doubled).rounds == 5


@dataclass(frozen=True)
class OwnCodec(Half):
    pass


@dataclass(frozen=True)
class OwnPlugin(ud.PGVC):
    pass


@pytest.mark.parametrize(("part", "own"), [("compress", OwnCodec()), ("plugins", [OwnPlugin(layers=1)])])
def test_own_codecs_and_plugins_are_given_again(part: str, own: Any, tmp_path: Path) -> None:
    ud.simulate("fedavg", "mlp", "digits", out=tmp_path / "run", **SETTINGS, **{part: own})
    with pytest.raises(ValueError, match=f"given as an object; give {part}= again"):
        ud.resume(tmp_path / "run", rounds=5)
    assert ud.resume(tmp_path / "run", rounds=5, **{part: own}).rounds == 5


def test_plugins_are_those_of_the_option(tmp_path: Path) -> None:
    """`plugins=` for every algorithm, `pgvc=` for one: the same numbers."""
    one = ud.simulate(ud.algorithms.FedProx(mu=0.1, pgvc=ud.PGVC(layers=1)), "mlp", "digits", **SETTINGS)
    two = ud.simulate("fedprox(mu=0.1)", "mlp", "digits", plugins=[ud.PGVC(layers=1)], **SETTINGS)
    assert all(torch.equal(v, two.parameters[k]) for k, v in one.parameters.items())


def test_the_median_is_not_the_mean() -> None:
    data = ud.data.load("digits", partition="iid", clients=8)  # clients that agree, so that the median learns as well
    first, second = (ud.simulate("fedavg", "softmax", data, aggregate=rule, **SETTINGS) for rule in ("mean", "median"))
    assert not torch.allclose(first.parameters["1.weight"], second.parameters["1.weight"])
    assert second.history.accuracy.iloc[-1] > 0.3


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        ({"aggregate": "medain"}, ValueError, "unknown aggregation rule 'medain'; did you mean 'median'"),
        ({"compress": "quarter"}, ValueError, "unknown codec 'quarter'"),
        ({"compress": 3}, TypeError, "compress must be a name or a Codec"),
        ({"plugins": [3]}, TypeError, "plugins must be a list of plug-ins"),
        ({"metrics": 3}, TypeError, "metrics must be names or a dict of functions"),
    ],
)
def test_refused(given: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        ud.simulate("fedavg", "softmax", "digits", **given, **SETTINGS)
