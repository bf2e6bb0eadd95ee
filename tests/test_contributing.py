"""The example of CONTRIBUTING.md runs as it is printed."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.testing import assert_close

import undrift as ud
from laws import classified, mlp

TEXT = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")
CORRECTION, ALGORITHM, PUBLIC_IMPORTS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


@pytest.mark.parametrize("public", [False, True])
def test_the_example_trains(public: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With undrift's own imports, and with those of another package."""
    header, _, body = CORRECTION.partition("\n\n\n")
    first, _, _ = header.partition("from undrift.")
    blocks = (first + PUBLIC_IMPORTS, body) if public else (CORRECTION,)
    module = ModuleType("fedfriend")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec("\n\n".join((*blocks, ALGORITHM)), vars(module))
    algorithm = module.FedFriend
    settings: dict[str, Any] = {"rounds": 2, "batch_size": 4, "lr": 0.1}
    run = ud.simulate(algorithm(mu=0.5), mlp(), classified(), **settings)
    neutral, plain = (ud.simulate(a, mlp(), classified(), **settings) for a in (algorithm(mu=0.0), "fedavg"))
    assert_close(neutral.parameters, plain.parameters, rtol=0, atol=0)
    assert not torch.equal(run.parameters["0.weight"], plain.parameters["0.weight"])
