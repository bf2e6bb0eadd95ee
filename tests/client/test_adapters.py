"""Adapters (LoRA) on a frozen model: only they are trained, kept, sent and stored, whatever the algorithm."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.testing import assert_close

import undrift as ud
from laws import classified, mlp
from undrift.storage import model_file
from undrift.storage.directory import RunDirectory

EXAMPLE = Path(__file__).parents[2] / "examples" / "lora.py"


class Adapted(nn.Module):
    """W x + B A x, of which W is frozen; B starts at zero."""

    def __init__(self, base: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        draw = torch.Generator().manual_seed(0)
        self.down = nn.Parameter(torch.randn(rank, base.in_features, dtype=torch.float64, generator=draw))
        self.up = nn.Parameter(torch.zeros(base.out_features, rank, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        base: Tensor = self.base(x)
        return base + x @ self.down.T @ self.up.T


def adapted() -> nn.Sequential:
    return nn.Sequential(*(Adapted(part) if isinstance(part, nn.Linear) else part for part in mlp()))


ADAPTERS = {f"{layer}.{part}" for layer in (0, 2, 4) for part in ("down", "up")}


def run(algorithm: str, **options: Any) -> ud.Run:
    settings: dict[str, Any] = {"rounds": 2, "batch_size": 4, "lr": 0.05} | options
    return ud.simulate(algorithm, adapted(), classified(), **settings)


@pytest.mark.parametrize(
    "algorithm", ["fedavg", "fedbn", "moon", "scaffold", "fedpvr", "mime", "perfedavg", "fedadam", "mafsvrg", "fedhbm"]
)
def test_only_adapters_are_trained(algorithm: str) -> None:
    before, after = adapted(), run(algorithm)
    assert after.parameters.keys() == ADAPTERS
    assert any(after.parameters[name].any() for name in ADAPTERS if name.endswith("up"))
    frozen = {name: value for name, value in after.model.state_dict().items() if name not in ADAPTERS}
    assert_close(frozen, {name: value for name, value in before.state_dict().items() if name not in ADAPTERS})


def test_only_adapters_travel_and_are_stored(tmp_path: Path) -> None:
    after = run("fedavg", out=tmp_path / "run", test=classified((30,))[0])
    size = sum(after.parameters[name].nbytes for name in ADAPTERS)
    assert (after.history["bytes_up"] == 5 * size).all()
    stored, _ = model_file.of_directory(RunDirectory.open(tmp_path / "run"))
    assert stored.keys() == ADAPTERS
    assert load_file(after.export(tmp_path / "m.safetensors")).keys() == adapted().state_dict().keys()


@pytest.mark.parametrize("algorithm", ["fedavg", "fedhbm"])
def test_a_transformer_with_adapters_of_peft(
    algorithm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("transformers", reason="the example needs transformers")
    pytest.importorskip("peft", reason="the example needs peft")
    monkeypatch.chdir(tmp_path)
    spec = importlib.util.spec_from_file_location("lora", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    after = example.main(algorithm, rounds=2)
    assert all("lora_" in name or "classifier" in name for name in after.parameters)
    assert (tmp_path / "adapters" / "adapter_model.safetensors").is_file()
    assert "2.9% of the model" in capsys.readouterr().out
