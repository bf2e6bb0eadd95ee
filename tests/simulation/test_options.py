"""Options are declared once: signature, docstring, checks and configuration keys follow."""

from __future__ import annotations

import inspect
import subprocess
import sys
from dataclasses import asdict, fields
from typing import Any

import numpy as np
import pytest
import torch

import undrift as ud
from undrift.core.random import SEED_LIMIT
from undrift.simulation.arguments import Arguments, settings
from undrift.simulation.options import SEEDS, Options, declared


def test_the_signature_of_simulate_is_the_declaration() -> None:
    parameters = inspect.signature(ud.simulate).parameters
    assert set(parameters) == {f.name for f in fields(Arguments)}
    assert list(parameters)[:4] == ["algorithm", "model", "data", "test"]
    for option in declared(Options):
        assert parameters[option.name].default == option.default


def test_the_docstring_explains_every_argument() -> None:
    text = ud.simulate.__doc__ or ""
    for f in fields(Arguments):
        assert f"\n    {f.name}: " in text


def test_seeds_are_those_of_the_generator() -> None:
    assert SEEDS == SEED_LIMIT


def test_declarations_import_nothing_slow() -> None:
    """Otherwise the command line's help would wait for torch."""
    script = "import sys, undrift.simulation.arguments; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_every_option_has_a_key_of_its_own() -> None:
    paths = [option.path for option in settings()]
    assert len(set(paths)) == len(paths)
    assert {"local.lr", "server.lr", "run.rounds", "run.metrics", "server.aggregate"} <= set(paths)
    assert {option.section for option in settings()} == {"local", "server", "run"}


@pytest.mark.parametrize("option", settings(), ids=lambda option: option.name)
def test_defaults_pass_their_own_checks(option: Any) -> None:
    value = option.general if option.left_open else option.default
    if value is not None:
        option.kind.check(option.name, value)
    assert option.meaning
    assert option.kind.values()


def test_values_of_numpy_and_torch_are_stored_as_plain_ones() -> None:
    given = Options(lr=np.float64(0.5), cohort=np.array([[0, 1]]), rounds=np.int64(1), device=torch.device("cpu"))  # type: ignore[arg-type]
    assert asdict(given)["cohort"] == [[0, 1]]
    assert (type(given.lr), type(given.rounds), given.device) == (float, int, "cpu")
    assert Options(dtype=torch.float64).dtype == "float64"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"learning_rat": 1}, "simulate has no argument 'learning_rat'"),
        ({"wieghting": "samples"}, "simulate has no argument 'wieghting'; did you mean 'weighting'"),
    ],
)
def test_an_unknown_argument_is_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        ud.simulate("fedavg", "softmax", "digits", **given)


def test_a_missing_argument_is_named() -> None:
    with pytest.raises(TypeError, match="data is missing; give samples"):
        ud.simulate("fedavg", "softmax")
    with pytest.raises(TypeError, match="simulate: missing a required argument: 'algorithm'"):
        ud.simulate(data="digits")  # type: ignore[call-arg]


@pytest.mark.parametrize(("name", "value"), [("engine", 5), ("device", 5), ("cohort", "everyone"), ("rounds", 1.5)])
def test_wrong_types_are_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(TypeError, match=name):
        Options(**{name: value})
