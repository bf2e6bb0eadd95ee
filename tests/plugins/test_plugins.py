"""The registry of plug-ins, and plug-ins of a run."""

from __future__ import annotations

import pytest
from torch.testing import assert_close

import undrift as ud
from laws import TRAINING, classified, mlp
from undrift import plugins
from undrift.algorithms import FedProx


def test_names() -> None:
    assert plugins.available()["pgvc"] is ud.PGVC
    assert plugins.find("PGVC") is ud.PGVC
    with pytest.raises(ValueError, match="unknown plug-in 'pgcv'; did you mean 'pgvc'"):
        plugins.find("pgcv")


def test_a_plugin_of_the_run_is_one_of_the_algorithm() -> None:
    plugin = ud.PGVC(layers=1, form="additive")
    given = ud.simulate(FedProx(mu=0.5), mlp(), classified(), **TRAINING, plugins=(plugin,))
    own = ud.simulate(FedProx(mu=0.5, pgvc=plugin), mlp(), classified(), **TRAINING)
    assert_close(given.parameters, own.parameters, rtol=0, atol=0)
