"""A new head on a backbone: which weights it takes, what it trains, what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.testing import assert_close

import undrift as ud
from undrift import models
from undrift.models import with_head

SHAPE = (3, 16, 16)


def backbone(seed: int = 0, classes: int = 4) -> nn.Module:
    return models.build("resnet20-gn", SHAPE, classes, seed)


def normalised(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 7))


def images(count: int = 6, shape: tuple[int, ...] = SHAPE) -> Tensor:
    return torch.rand(count, *shape, generator=torch.Generator().manual_seed(1))


def test_the_head_takes_the_place_of_the_classifier() -> None:
    given = backbone()
    before = {k: v.clone() for k, v in given.state_dict().items()}
    model = with_head(given, classes=5, hidden=(32, 16))
    linear = [tuple(p.weight.shape) for p in model.modules() if isinstance(p, nn.Linear)]
    assert linear == [(32, 64), (16, 32), (5, 16)]
    assert model(images()).shape == (6, 5)
    assert_close(dict(given.state_dict()), before, rtol=0, atol=0)


def test_two_layers_of_256_and_128_unless_said_otherwise() -> None:
    model = with_head(backbone(), classes=5)
    trained = {k: tuple(p.shape) for k, p in model.named_parameters() if p.requires_grad and p.ndim == 2}
    assert list(trained.values()) == [(256, 64), (128, 256), (5, 128)]


@pytest.mark.parametrize("kind", ["safetensors", "pt", "dict"])
def test_weights_are_loaded(kind: str, tmp_path: Path) -> None:
    source = backbone(seed=7, classes=10)  # another classifier, which does not matter
    state = source.state_dict()
    weights: Any = state
    if kind == "safetensors":
        weights = tmp_path / "weights.safetensors"
        save_file(state, weights)
    elif kind == "pt":
        weights = str(tmp_path / "weights.pt")
        torch.save(state, weights)
    model = with_head(backbone(seed=0), classes=5, weights=weights)
    features = source.get_submodule("fc").register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    seen: list[Tensor] = []
    with features:
        source(images())
    assert_close(model.get_submodule("backbone")(images()), seen[0], rtol=0, atol=0)


def test_a_frozen_backbone_stays_as_it_is() -> None:
    torch.manual_seed(0)
    data = [(torch.rand(5, 3, 2, 2), torch.randint(3, (5,))) for _ in range(2)]
    start = with_head(normalised(), classes=3, hidden=(4, 4))
    for engine in ("sequential", "batched"):
        run = ud.simulate("fedavg", start, data, rounds=2, batch_size=2, lr=0.1, engine=engine)
        assert all(name.startswith("head.") for name in run.parameters)
        kept = {k: v for k, v in start.state_dict().items() if k in run.buffers}
        assert kept
        assert_close(run.buffers, kept, rtol=0, atol=0)


def test_a_backbone_can_be_trained_too() -> None:
    torch.manual_seed(0)
    data = [(torch.rand(5, 3, 2, 2), torch.randint(3, (5,))) for _ in range(2)]
    start = with_head(normalised(), classes=3, hidden=(4, 4), freeze=False)
    runs = [ud.simulate("fedavg", start, data, rounds=1, batch_size=2, engine=e) for e in ("sequential", "batched")]
    assert set(runs[0].parameters) == {name for name, _ in start.named_parameters()}
    assert not torch.equal(runs[0].buffers["backbone.2.running_mean"], start.get_buffer("backbone.2.running_mean"))
    assert_close(runs[1].parameters, runs[0].parameters, rtol=1e-4, atol=1e-5)


def test_images_are_enlarged_to_what_the_weights_expect() -> None:
    source = models.build("lenet", (1, 28, 28), 10, seed=3)
    model = with_head(models.build("lenet", (1, 28, 28), 10), classes=2, weights=source.state_dict(), side=28)
    flat = torch.full((1, 1, 7, 7), 0.3)
    assert_close(model(flat), model(torch.full((1, 1, 28, 28), 0.3)))
    data = [(images(3, (1, 7, 7)), torch.tensor([0, 1, 0]))] * 2
    runs = [ud.simulate("fedavg", model, data, rounds=1, batch_size=2, engine=e) for e in ("sequential", "batched")]
    assert_close(runs[1].parameters, runs[0].parameters, rtol=1e-4, atol=1e-5)


def test_a_seed_is_a_head() -> None:
    first, again, other = (with_head(backbone(), classes=3, seed=s).state_dict() for s in (1, 1, 2))
    assert_close(again, first, rtol=0, atol=0)
    assert not torch.equal(first["head.0.weight"], other["head.0.weight"])


def test_counters_may_be_missing() -> None:
    state = {k: v for k, v in normalised(seed=2).state_dict().items() if "num_batches" not in k}
    model = with_head(normalised(), classes=3, weights=state)
    assert torch.equal(model.state_dict()["backbone.1.weight"], state["1.weight"])


class TestRefusals:
    def test_missing_and_unknown_tensors(self) -> None:
        state = dict(backbone().state_dict())
        del state["layer1.0.conv1.weight"]
        with pytest.raises(ValueError, match=r"do not fit the backbone: 'layer1\.0\.conv1\.weight' missing$"):
            with_head(backbone(), classes=3, weights=state)
        with pytest.raises(ValueError, match=r"'stray' not in the backbone$"):
            with_head(backbone(), classes=3, weights=dict(backbone().state_dict()) | {"stray": torch.zeros(1)})

    def test_another_network_is_told_in_one_line(self) -> None:
        with pytest.raises(ValueError, match=r"and \d+ more missing and '0\.weight'") as caught:
            with_head(backbone(), classes=3, weights=models.build("lenet", (3, 28, 28), 4).state_dict())
        assert "\n" not in str(caught.value)

    def test_mismatching_shapes(self) -> None:
        weights = models.build("resnet20-gn", (1, 16, 16), 4).state_dict()
        with pytest.raises(ValueError, match=r"'conv1.weight' must have shape \(16, 3, 3, 3\), got \(16, 1, 3, 3\)"):
            with_head(backbone(), classes=3, weights=weights)

    def test_files(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match=r"weights: there is no file '.*nowhere\.pt'"):
            with_head(backbone(), classes=3, weights=tmp_path / "nowhere.pt")
        for name in ("broken.pt", "broken.safetensors"):
            path = tmp_path / name
            path.write_bytes(b"these are no weights at all")
            with pytest.raises(ValueError, match="holds no weights that can be read safely"):
                with_head(backbone(), classes=3, weights=path)
        empty = tmp_path / "empty.pt"
        empty.write_bytes(b"")
        with pytest.raises(ValueError, match="holds no weights that can be read safely"):
            with_head(backbone(), classes=3, weights=empty)

    def test_code_in_a_file_is_not_run(self, tmp_path: Path) -> None:
        path = tmp_path / "module.pt"
        torch.save(backbone(), path)
        with pytest.raises(ValueError, match="read safely"):
            with_head(backbone(), classes=3, weights=path)

    def test_things_that_are_no_weights(self, tmp_path: Path) -> None:
        path = tmp_path / "checkpoint.pt"
        torch.save({"state_dict": {}, "epoch": 3}, path)
        with pytest.raises(ValueError, match="tensors by name"):
            with_head(backbone(), classes=3, weights=path)
        with pytest.raises(TypeError, match="weights must be a file or a state dict, got int"):
            with_head(backbone(), classes=3, weights=3)  # type: ignore[arg-type]

    def test_arguments(self) -> None:
        with pytest.raises(ValueError, match=r"has no nn\.Linear"):
            with_head(nn.Sequential(nn.Conv2d(1, 1, 1)), classes=3)
        with pytest.raises(ValueError, match="classes must be at least 1"):
            with_head(backbone(), classes=0)
        with pytest.raises(ValueError, match="hidden must be at least 1"):
            with_head(backbone(), classes=2, hidden=(4, 0))
        with pytest.raises(TypeError, match="freeze must be True or False"):
            with_head(backbone(), classes=2, freeze=1)  # type: ignore[arg-type]
