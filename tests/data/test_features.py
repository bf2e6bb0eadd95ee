"""Features of images that are computed once, before training, and kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close
from typer.testing import CliRunner

import undrift as ud
from undrift import models
from undrift.cli import app
from undrift.core import hog
from undrift.data import cache, features
from undrift.data.features import with_features

IMAGES = np.random.default_rng(0).integers(0, 256, (40, 1, 28, 28), dtype=np.uint8)
IMAGES[:, :, :, 14:] = 0  # half of the blocks have no features
LABELS = np.arange(40) % 4


@pytest.fixture
def mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Forty images in the place of MNIST."""
    monkeypatch.setenv("UNDRIFT_CACHE", str(tmp_path))
    store(IMAGES)
    return tmp_path


def store(images: Any) -> None:
    with cache.writing("mnist", {"source": "test"}) as draft:
        for part in ("train", "test"):
            draft.put(f"{part}_x", images)
            draft.put(f"{part}_y", LABELS)


def expected() -> torch.Tensor:
    return hog.features(torch.from_numpy(IMAGES).float() / 255)


def test_a_named_data_set_has_them_in_the_cache(mnist: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = ud.data.load("mnist", "iid", 4, features="hog")
    assert_close(first.x, expected())
    assert first.test is not None
    assert_close(first.test[0], expected())
    assert (first.normalise, first.features, first.image) == (None, "hog", (1, 28, 28))
    assert (mnist / "mnist-hog" / "train_x.npy").is_file()
    monkeypatch.setattr(features, "compute", None)  # nothing is computed again
    again = ud.data.load(**first.recipe)
    assert torch.equal(again.x, first.x)
    assert np.array_equal(again.rows, ud.data.load("mnist", "iid", 4).rows)


def test_they_are_computed_again_where_the_images_are_others(mnist: Path) -> None:
    ud.data.load("mnist", "iid", 4, features="hog")
    store(IMAGES[::-1].copy())
    assert_close(ud.data.load("mnist", "iid", 4, features="hog").x, expected().flip(0))


def test_damaged_features_are_computed_again(mnist: Path) -> None:
    ud.data.load("mnist", "iid", 4, features="hog")
    (mnist / "mnist-hog" / "train_x.npy").write_bytes(b"nothing")
    assert_close(ud.data.load("mnist", "iid", 4, features="hog").x, expected())


def test_a_cache_that_cannot_be_written(mnist: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: Any) -> Any:
        raise OSError("read-only")

    monkeypatch.setattr(cache, "writing", refuse)
    assert_close(ud.data.load("mnist", "iid", 4, features="hog").x, expected())


@pytest.mark.parametrize("algorithm", ["fsvrg", "mafsvrg(models=2, feature_scaling='cohort')"])
def test_the_papers_model_is_trained_on_features(mnist: Path, algorithm: str) -> None:
    """`softmax-hog` on images is `softmax` on their features: Λ_i and A act, as zeros have a meaning."""
    options: dict[str, Any] = {"rounds": 2, "cohort": 2, "lr": 0.1}
    named = ud.simulate(algorithm, "softmax-hog", ud.data.load("mnist", "iid", 4), **options)
    plain = ud.simulate(algorithm, "softmax", ud.data.load("mnist", "iid", 4, features="hog"), **options)
    assert all(torch.equal(value, plain.parameters[name]) for name, value in named.parameters.items())
    enlargement = named.memory.server["VarianceReduction"]["enlargement"]
    assert len(enlargement) == 576
    assert named.experiment.data.recipe["features"] == "hog"


def test_features_are_scaled(mnist: Path) -> None:
    """A client that has a feature in fewer samples than others has a factor."""
    x = IMAGES.copy()
    x[:10, :, :14] = 0
    clients = [(x[:10], LABELS[:10]), (x[10:], LABELS[10:])]
    runs = [
        ud.simulate(f"fsvrg(feature_scaling={scaling})", "softmax-hog", clients, rounds=2, lr=0.5, batch_size=4)
        for scaling in ("cohort", "off")
    ]
    assert not torch.allclose(runs[0].parameters["1.weight"], runs[1].parameters["1.weight"])


def test_samples_of_a_user(tmp_path: Path) -> None:
    """Images as bytes or as numbers, tests of the server and of clients; `predict` takes images and features."""
    data = ud.FederatedData(IMAGES, LABELS, [range(20), range(20, 40)]).hold_out(0.2)
    found = with_features(data, "hog")
    assert_close(found.x, expected())
    assert found.local_tests is not None
    assert found.local_tests.x is found.x
    run = ud.simulate("fedavg", "softmax-hog", data, test=(IMAGES, LABELS), rounds=2, out=tmp_path / "run")
    assert_close(run.predict(IMAGES), run.predict(expected()))
    assert run.history.accuracy.notna().all()
    assert ud.resume(tmp_path / "run", rounds=3, data=data, test=(IMAGES, LABELS)).rounds == 3


def test_a_run_of_the_named_model_is_resumed_by_name(mnist: Path, tmp_path: Path) -> None:
    data = ud.data.load("mnist", "iid", 4)
    whole = ud.simulate("fsvrg", "softmax-hog", data, rounds=3)
    ud.simulate("fsvrg", "softmax-hog", data, rounds=2, out=tmp_path / "run")
    again = ud.resume(tmp_path / "run", rounds=3)
    assert all(torch.equal(value, again.parameters[name]) for name, value in whole.parameters.items())


def test_from_the_command_line(mnist: Path) -> None:
    settings = ["--set", "data.features=hog", "--set", "run.rounds=1", "--set", "run.cohort=1"]
    command = ["run", "-a", "fsvrg", "-d", "mnist", "-m", "softmax", "--partition", "iid", *settings]
    result = CliRunner().invoke(app, [*command, "--set", "data.clients=4"])
    assert result.exit_code == 0, result.output
    result = CliRunner().invoke(app, [*command, "--set", "data.features=hogg"])
    assert result.exit_code == 2
    assert "hog" in result.output


@pytest.mark.parametrize(
    ("images", "words"),
    [
        (np.zeros((4, 2, 28, 28)), "1 or 3 channels"),
        (np.zeros((4, 1, 6, 28)), "at least 7×7"),
        (np.zeros((4, 5, 5)), "images"),
    ],
)
def test_what_has_no_features_is_refused(images: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ud.simulate("fedavg", "softmax-hog", [(images, np.arange(4) % 2)], rounds=1)


def test_a_model_of_features_or_of_images() -> None:
    of_images, of_features = (models.build("softmax-hog", shape, 10, seed=1) for shape in ((1, 28, 28), (576,)))
    images = torch.rand(3, 1, 28, 28)
    assert_close(of_images(images), of_features(hog.features(images)))


def test_augmentation_of_images_is_left_out(mnist: Path) -> None:
    """CIFAR-10 is augmented by default, which features are not."""
    from undrift.simulation.arguments import Objects
    from undrift.simulation.defaults import resolve_defaults
    from undrift.simulation.options import AUTO, Options

    data = ud.FederatedData(IMAGES, LABELS, [range(20), range(20, 40)], name="cifar10")
    for model, augment in (("softmax-hog", None), ("softmax", "crop-flip")):
        found = resolve_defaults(Objects("fedavg", model, data, augment=AUTO), Options(), data)
        assert found.objects.augment == augment
