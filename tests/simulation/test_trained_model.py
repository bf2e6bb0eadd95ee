"""The model to take away: `run.model`, `run.predict`, `run.export`, `undrift export`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.testing import assert_close
from typer.testing import CliRunner

import undrift as ud
from laws import classified, mlp, seeded
from undrift.cli import app

TEST = classified((30,))[0]


def normalised() -> nn.Sequential:
    return seeded(lambda: nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3)))


class Tied(nn.Module):
    """A parameter with two names, a frozen one, and a buffer that no state_dict holds."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.frozen, self.last = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)
        self.last.weight = self.first.weight
        self.frozen.requires_grad_(False)
        self.register_buffer("scale", torch.full((1,), 2.0), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.frozen(self.first(x)))) * self.scale


def run(algorithm: str = "fedavg", model: nn.Module | None = None, **options: Any) -> ud.Run:
    settings: dict[str, Any] = {"rounds": 2, "batch_size": 4, "lr": 0.1, "test": TEST, "cohort": 3} | options
    return ud.simulate(algorithm, model or normalised(), classified(), dtype="float64", **settings)


@pytest.mark.parametrize("algorithm", ["fedavg", "fedexp", "fedbn", "mafsvrg"])
def test_the_model_is_the_one_that_was_evaluated(algorithm: str) -> None:
    """Also where it is not the one that is trained on, or where clients keep a part of it."""
    result = run(algorithm)
    outputs, last = result.model(TEST[0].double()), result.history.iloc[-1]
    assert last["loss"] == pytest.approx(nn.functional.cross_entropy(outputs, TEST[1]).item(), abs=1e-12)
    assert last["accuracy"] == (outputs.argmax(1) == TEST[1]).double().mean().item()
    assert_close(result.predict(TEST[0]), outputs, rtol=1e-12, atol=1e-12)


def test_it_is_a_copy_of_what_was_given() -> None:
    given = normalised()
    before = {name: value.clone() for name, value in given.state_dict().items()}
    result = run(model=given)
    assert type(result.model) is nn.Sequential
    assert not result.model.training
    assert_close(dict(result.model.named_parameters()), result.parameters)
    assert_close(dict(result.model.named_buffers()), result.buffers)
    for parameter in result.model.parameters():
        parameter.detach().zero_()
    assert all(parameter.any() for parameter in result.model.parameters()), "nor is the run's model changed"
    assert_close(dict(given.state_dict()), before)


def test_bytes_are_prepared_as_in_training() -> None:
    images = torch.randint(0, 256, (40, 1, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(40) % 2
    data = ud.FederatedData(images, labels, [range(20), range(20, 40)], test=(images, labels), normalise=([0.4], [0.2]))
    result = ud.simulate("fedavg", nn.Sequential(nn.Flatten(), nn.Linear(16, 2)), data, rounds=2)
    outputs = result.predict(images.numpy())
    assert_close(outputs, result.model((images / 255 - 0.4) / 0.2))
    assert (outputs.argmax(1) == labels).double().mean().item() == result.history["accuracy"].iloc[-1]


def test_predict_refuses_other_samples() -> None:
    result = run()
    with pytest.raises(ValueError, match=r"x must have samples of shape \(6,\), \[n, \.\.\.\], at least one, got"):
        result.predict(np.zeros((3, 7)))
    with pytest.raises(ValueError, match=r"x is whole numbers.* but the model was trained with real numbers"):
        result.predict(np.zeros((3, 6), dtype=int))


def test_an_exported_file_is_a_state_dict(tmp_path: Path) -> None:
    for number, model in enumerate([normalised(), seeded(Tied)]):
        result = run(model=model)
        path = result.export(tmp_path / f"{number}.safetensors")
        model.double().load_state_dict(load_file(path))
        assert_close(model.eval()(TEST[0].double()), result.predict(TEST[0]))
    assert sorted(tmp_path.iterdir()) == [tmp_path / "0.safetensors", tmp_path / "1.safetensors"]


def test_only_an_earlier_export_is_replaced(tmp_path: Path) -> None:
    result = run(rounds=1, model=mlp())
    result.export(tmp_path / "model.safetensors")
    result.export(tmp_path / "model.safetensors")
    save_file({"weight": torch.ones(2)}, tmp_path / "other.safetensors")
    (tmp_path / "notes.txt").write_text("notes")
    for name in ("other.safetensors", "notes.txt"):
        before = (tmp_path / name).read_bytes()
        with pytest.raises(ValueError, match="exists and is not a model that undrift exported; choose another name"):
            result.export(tmp_path / name)
        assert (tmp_path / name).read_bytes() == before
    with pytest.raises(ValueError, match="is a directory; give the name of a file"):
        result.export(tmp_path)
    with pytest.raises(ValueError, match="is not a directory, so that m cannot be written"):
        result.export(tmp_path / "missing" / "m")


def undrift(*words: object) -> Any:
    return CliRunner().invoke(app, list(map(str, words)), prog_name="undrift")


@pytest.mark.parametrize("algorithm", ["fedavg", "fedexp", "fedbn", "mafsvrg"])
def test_export_from_a_run_directory(algorithm: str, tmp_path: Path) -> None:
    result = run(algorithm, out=tmp_path / "run")
    shown = undrift("export", tmp_path / "run", tmp_path / "m.safetensors")
    assert shown.exit_code == 0
    assert f"{result.label} after round 2: 9 tensors\nmodel: " in shown.stdout
    assert_close(load_file(tmp_path / "m.safetensors"), dict(result.model.state_dict()), rtol=0, atol=0)


def test_export_of_an_own_model(tmp_path: Path) -> None:
    """Both names of a tied parameter are there; what is not trained is not."""
    result, model = run(model=seeded(Tied), out=tmp_path / "run"), seeded(Tied).double()
    assert undrift("export", tmp_path / "run", tmp_path / "m.safetensors").exit_code == 0
    loaded = model.load_state_dict(load_file(tmp_path / "m.safetensors"), strict=False)
    assert loaded.missing_keys == ["frozen.weight", "frozen.bias"]
    assert not loaded.unexpected_keys
    assert_close(model(TEST[0].double()), result.predict(TEST[0]))


def test_export_of_a_damaged_run(tmp_path: Path) -> None:
    run(model=mlp(), out=tmp_path / "run")
    states = sorted((tmp_path / "run" / "checkpoints").glob("*/state.safetensors"))
    for path in states:
        *content, last = path.read_bytes()
        path.write_bytes(bytes([*content, last ^ 1]))
    refused = undrift("export", tmp_path / "run", tmp_path / "m.safetensors")
    assert refused.exit_code == 2
    assert "is damaged: it does not match its checksum; no checkpoint is good" in refused.stderr
    assert not (tmp_path / "m.safetensors").exists()
    assert "is not a run directory" in undrift("export", tmp_path, tmp_path / "m.safetensors").stderr
