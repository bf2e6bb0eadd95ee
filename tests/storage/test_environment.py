"""What may change the last bits of a run is stored with it, and a resumed run says what differs."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import undrift as ud
from undrift.storage import environment
from undrift.storage.directory import RunDirectory

HERE = environment.describe(
    torch.device("cpu"), precision="fp32", engine="batched:4", reason="as asked", workers=1, split=True
)


def test_all_that_matters_is_stored(tmp_path: Path) -> None:
    begin(tmp_path / "run", "batched:2")
    stored = json.loads((tmp_path / "run/environment.json").read_text(encoding="utf-8"))
    assert stored["engine"] == "batched:2"
    assert stored["cpu"] == torch.backends.cpu.get_cpu_capability()
    assert (stored["threads"], stored["workers"], stored["precision"]) == (torch.get_num_threads(), 1, "fp32")


def test_differences() -> None:
    assert environment.differences(HERE, HERE) == ""
    assert environment.differences({}, HERE) == ""  # of an older version, which stored less
    assert environment.differences(HERE | {"torch": "2.0"}, HERE) == f"torch {torch.__version__} instead of 2.0"
    assert "threads" in environment.differences(HERE | {"threads": 99}, HERE)
    assert environment.differences(HERE | {"threads": 99}, HERE | {"threads_matter": False}) == ""


@pytest.mark.parametrize(("engine", "told"), [("batched", True), ("sequential", False)])
def test_resume_names_what_differs(tmp_path: Path, caplog: pytest.LogCaptureFixture, engine: str, told: bool) -> None:
    begin(tmp_path / "run", engine)
    directory = RunDirectory.open(tmp_path / "run")
    with directory.writing():
        directory.write_environment(directory.environment | {"threads": 99})
    with caplog.at_level(logging.INFO, "undrift"):
        ud.resume(tmp_path / "run", rounds=3, model=model(), data=data())
    said = [record.message for record in caplog.records if "last bits may differ" in record.message]
    assert bool(said) == told
    assert not said or f"threads {torch.get_num_threads()} instead of 99" in said[0]


def begin(out: Path, engine: str) -> ud.Run:
    return ud.simulate("fedavg", model(), data(), rounds=2, engine=engine, out=out)


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(3, 2)


def data() -> list[tuple[Any, Any]]:
    generator = torch.Generator().manual_seed(0)
    return [(torch.randn(4, 3, generator=generator), torch.tensor([0, 1, 0, 1])) for _ in range(3)]
