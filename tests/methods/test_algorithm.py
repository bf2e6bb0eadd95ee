"""What every algorithm has: a label, options, a method made of corrections and plug-ins."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch

from laws import mlp
from undrift import PGVC, Algorithm
from undrift.algorithms import FedAvg, FedDyn, FedHBM, FedProx, FedPVR, LocalGHB
from undrift.client.layout import Layout
from undrift.client.optim import SGD
from undrift.methods.aggregate import mean, median
from undrift.methods.algorithm import build_method
from undrift.methods.averaging import Averaging
from undrift.methods.codec import Coded
from undrift.methods.codecs import Half
from undrift.methods.correction import At, Correction
from undrift.methods.plugin import Plugin
from undrift.methods.setting import Setting
from undrift.protocol import State

SETTING = Setting(
    layout=Layout.of(mlp()), optimizer=SGD(), server_lr=1.0, buffer_policy="averaged", population=5, seed=0
)


def keys(algorithm: Algorithm, **changes: Any) -> list[str]:
    method = build_method(algorithm, replace(SETTING, **changes))
    assert isinstance(method, Averaging)
    return [c.key for c in method.corrections]


@pytest.mark.parametrize(
    ("algorithm", "label"),
    [
        (FedAvg(), "FedAvg"),
        (FedProx(), "FedProx"),
        (FedProx(mu=0.1), "FedProx(mu=0.1)"),
        (FedProx(mu=0.1, pgvc=PGVC()), "FedProx(mu=0.1, pgvc=PGVC())"),
        (FedProx(pgvc=PGVC(layers=1)), "FedProx(pgvc=PGVC(layers=1))"),
        (FedPVR(layers=["a"], option="I"), "FedPVR(layers=['a'], option='I')"),
        (FedHBM(variant={"weight": torch.ones(3)}), "FedHBM(variant={...})"),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_labels_show_what_differs_from_the_defaults(algorithm: Algorithm, label: str) -> None:
    assert algorithm.label == label


@pytest.mark.parametrize(
    ("kind", "option", "hint"),
    [
        (FedProx, "nu", "did you mean 'mu'?"),
        (FedHBM, "Beta", "did you mean 'beta'?"),
        (FedAvg, "lr", "allowed: 'pgvc'"),
        (PGVC, "layer", "did you mean 'layers'?"),
    ],
)
def test_unknown_options_are_refused_with_the_nearest(kind: type[Any], option: str, hint: str) -> None:
    with pytest.raises(TypeError, match=re.escape(f"{kind.__name__} has no option '{option}'; {hint}")):
        kind(**{option: 1})


def test_the_signature_of_an_algorithm_lists_its_options() -> None:
    assert list(inspect.signature(FedDyn).parameters) == ["alpha", "pgvc"]
    algorithm = FedDyn(0.5)
    assert copy.deepcopy(algorithm) == pickle.loads(pickle.dumps(algorithm)) == algorithm


def test_options_of_every_algorithm_are_listed_when_set() -> None:
    assert FedProx().options() == {"mu": 0.01}
    assert FedProx(pgvc=PGVC()).options() == {"mu": 0.01, "pgvc": PGVC()}


@dataclass(frozen=True)
class Nothing(Correction):
    pass


@dataclass(frozen=True)
class Idle(Plugin):
    def corrections(self, setting: Setting) -> tuple[Correction, ...]:
        assert setting.population == 5
        return (Nothing(),)


def test_plugins_come_before_the_algorithms_own_corrections() -> None:
    assert keys(FedProx(pgvc=PGVC()), plugins=(Idle(),)) == ["Nothing", "EstimatedLayers", "Proximal"]
    assert keys(FedProx(pgvc=Idle())) == ["Nothing", "Proximal"]
    with pytest.raises(ValueError, match="corrections must differ"):
        keys(FedProx(pgvc=PGVC()), plugins=(PGVC(),))
    with pytest.raises(TypeError, match="pgvc must be None or a plug-in"):
        keys(FedProx(pgvc=2))  # type: ignore[arg-type]


def test_the_setting_decides_on_aggregation_and_codec() -> None:
    plain = build_method(FedAvg(), SETTING)
    assert isinstance(plain, Averaging)
    assert plain.aggregate is mean
    robust = build_method(FedAvg(), replace(SETTING, aggregate=median))
    assert isinstance(robust, Averaging)
    assert robust.aggregate is median
    coded = build_method(FedAvg(), replace(SETTING, codec=Half()))
    assert isinstance(coded, Coded)
    assert coded.method == plain


def test_a_fixed_server_step_refuses_another() -> None:
    with pytest.raises(ValueError, match=r"FedDyn fixes its own server step; server_lr must be 1, got 0\.5"):
        build_method(FedDyn(), replace(SETTING, server_lr=0.5))


# The key of a correction


def test_a_key_is_the_class_name_unless_said_otherwise() -> None:
    @dataclass(frozen=True)
    class Renamed(Correction):
        key: ClassVar[str] = "Nothing"

        def step(self, grad: dict[str, Any], client: State, at: At) -> tuple[dict[str, Any], State]:
            return grad, client

    assert (Nothing.key, Renamed.key) == ("Nothing", "Nothing")
    with pytest.raises(ValueError, match="corrections must differ"):
        Averaging((Nothing(), Renamed()))


def test_checkpoints_of_version_0_1_hold_both_heavy_balls_under_one_key() -> None:
    assert keys(FedHBM()) == keys(LocalGHB()) == ["HeavyBall"]
