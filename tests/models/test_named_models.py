"""Every named model: its size, its outputs, its seed, what it refuses, and the same numbers from both engines."""

from __future__ import annotations

import re
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import undrift as ud
from undrift import models
from undrift.models.common import GlobalAveragePool
from undrift.models.vit import Attention, VisionTransformer

Shape = tuple[int, ...]

# Layer by layer: a convolution has (inputs × side² + 1) × maps parameters, a linear layer (inputs + 1) × outputs, a
# normalisation 2 × maps, an LSTM 4 × units × (inputs + units + biases).
COUNTS: list[tuple[str, Shape, int, int]] = [
    ("softmax", (1, 28, 28), 10, 785 * 10),
    ("softmax-hog", (1, 28, 28), 10, 577 * 10),  # 64 blocks of 9 bins, as the paper says
    ("softmax-hog", (3, 32, 32), 10, (81 * 9 + 1) * 10),
    ("mlp", (1, 8, 8), 10, 65 * 64 + 65 * 64 + 65 * 10),
    ("cnn", (1, 8, 8), 10, 10 * 16 + 145 * 32 + (32 * 2 * 2 + 1) * 64 + 65 * 10),
    ("lenet", (1, 28, 28), 10, 44_426),  # 156 + 2 416 + 30 840 + 10 164 + 850
    ("lenet-bn", (1, 28, 28), 10, 44_426 + 2 * 22),
    ("lenet5", (1, 28, 28), 10, 61_706),
    ("lenet5", (1, 32, 32), 10, 61_706),
    ("lenet5", (3, 32, 32), 10, 62_006),
    ("cnn5", (3, 32, 32), 10, 62_006),
    ("cnn5", (3, 32, 32), 100, 62_006 + 85 * 90),
    ("cnn5-bn", (3, 32, 32), 10, 62_006 + 2 * 22),
    ("lenet-hsu", (3, 32, 32), 10, 4_864 + 102_464 + 614_784 + 73_920 + 1_930),
    # Convolutions of VGG-11 and VGG-19: 9 220 480 and 20 024 384; two linear layers of 512: 525 312.
    ("vgg11-bn", (3, 32, 32), 10, 9_220_480 + 2 * 2_752 + 525_312 + 5_130),
    ("vgg19", (3, 32, 32), 10, 20_024_384 + 525_312 + 5_130),
    ("vgg19-bn", (3, 32, 32), 10, 20_024_384 + 2 * 5_504 + 525_312 + 5_130),
    ("resnet18-gn", (3, 32, 32), 10, 11_173_962),
    ("resnet18-bn", (3, 32, 32), 10, 11_173_962),
    ("resnet18-gn", (3, 64, 64), 200, 11_173_962 + 513 * 190),
    ("resnet18-imagenet", (3, 224, 224), 1000, 11_689_512),
    ("resnet20-gn", (3, 32, 32), 10, 269_722),
    ("resnet20-gn", (3, 32, 32), 100, 269_722 + 65 * 90),
    ("mobilenetv2", (3, 224, 224), 1000, 3_504_872),
    ("mobilenetv2", (3, 96, 96), 2028, 3_504_872 + 1281 * 1028),
    ("vit-b32", (3, 224, 224), 1000, 88_224_232),
    ("vit-b32", (3, 64, 64), 1000, 88_224_232 - 45 * 768),  # 5 positions for 50
    ("char-lstm", (80,), 80, 640 + 400 * (8 + 100 + 2) + 400 * (100 + 100 + 2) + 101 * 80),
    ("word-lstm", (20,), 10_004, 4_050_748),  # Reddi et al. (2021), with one bias
    ("pair-lstm", (2, 30), 2, 2_560_000 + 2 * 512 * (128 + 128 + 2) + 513 * 128 + 129 * 64 + 65 * 2),
]


@pytest.mark.parametrize(("name", "shape", "classes", "count"), COUNTS)
def test_the_number_of_parameters(name: str, shape: Shape, classes: int, count: int) -> None:
    with torch.device("meta"):
        model = models.build(name, shape, classes)
    assert sum(p.numel() for p in model.parameters()) == count


def test_every_model_is_counted() -> None:
    assert {name for name, *_ in COUNTS} == set(models.available())


# The smallest samples that do not make a normalisation divide by nothing.
SMALL: dict[str, tuple[Shape, int]] = {
    "softmax": ((1, 4, 4), 3),
    "softmax-hog": ((3, 10, 10), 3),
    "mlp": ((5,), 3),
    "cnn": ((2, 8, 8), 3),
    "lenet": ((1, 16, 16), 3),
    "lenet-bn": ((1, 16, 16), 3),
    "lenet5": ((1, 28, 28), 3),
    "lenet-hsu": ((1, 16, 16), 3),
    "cnn5": ((3, 16, 16), 3),
    "cnn5-bn": ((3, 16, 16), 3),
    "vgg11-bn": ((3, 32, 32), 3),
    "vgg19": ((3, 32, 32), 3),
    "vgg19-bn": ((3, 32, 32), 3),
    "resnet18-gn": ((3, 8, 8), 3),
    "resnet18-bn": ((3, 16, 16), 3),
    "resnet18-imagenet": ((3, 64, 64), 3),
    "resnet20-gn": ((3, 8, 8), 3),
    "mobilenetv2": ((3, 64, 64), 3),
    "vit-b32": ((3, 32, 32), 3),
    "char-lstm": ((7,), 9),
    "word-lstm": ((4,), 11),
    "pair-lstm": ((2, 5), 2),
}
LARGE = {"vgg11-bn", "vgg19", "vgg19-bn", "vit-b32", "resnet18-gn", "resnet18-bn", "resnet18-imagenet"}


def samples(name: str, count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    shape, classes = SMALL[name]
    generator = torch.Generator().manual_seed(seed)
    if name.endswith("-lstm"):
        x = torch.randint(9, (count, *shape), generator=generator)
    else:
        x = torch.rand(count, *shape, generator=generator)
    return x, torch.randint(classes, (count, *shape) if name == "word-lstm" else (count,), generator=generator)


def federation(name: str, sizes: tuple[int, ...]) -> ud.FederatedData:
    x, y = samples(name, sum(sizes))
    return ud.FederatedData(x, y, torch.arange(len(x)).split(sizes), classes=SMALL[name][1])


@pytest.mark.parametrize("name", [n for n in SMALL if n != "vit-b32"])
def test_the_shape_of_outputs(name: str) -> None:
    shape, classes = SMALL[name]
    model = models.build(name, shape, classes).eval()
    with torch.no_grad():
        out = model(samples(name, 2)[0])
    assert out.shape == ((2, *shape, classes) if name == "word-lstm" else (2, classes))
    assert out.isfinite().all()


# The largest take minutes here, and resnet18-bn differs from resnet18-imagenet by its stem; on a GPU all are tested
# (`test_engines_agree_on_a_gpu`).
SLOW = {"vit-b32", "vgg11-bn", "vgg19", "vgg19-bn", "resnet18-bn"}
LONG = {"mobilenetv2", "resnet18-gn", "resnet18-imagenet"}


@pytest.mark.usefixtures("networks_are_tried_once")
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.long if n in LONG else ()) for n in SMALL if n not in SLOW]
)
def test_engines_agree(name: str) -> None:
    """Two local steps of SCAFFOLD in double precision; one of plain averaging where a network is large."""
    shape, classes = SMALL[name]
    large = name in LARGE
    # Three samples in batches of two pad the second, which leaves a lone sample: deep networks would divide by nothing.
    sizes, steps = ((2, 2), 1) if large or name == "mobilenetv2" else ((3, 2), 2)
    settings: dict[str, Any] = {"rounds": 1, "steps": steps, "batch_size": 2, "lr": 0.01}
    single = large and not name.endswith("-bn")  # normalising two samples magnifies rounding, layer by layer
    settings |= {"dtype": "float32" if single else "float64", "on_divergence": "stop"}
    model = models.build(name, shape, classes, seed=1)
    alone, together = (
        ud.simulate("fedavg" if large else "scaffold", model, federation(name, sizes), engine=engine, **settings)
        for engine in ("sequential", "batched")
    )
    assert together.engine.startswith("batched")
    near = 1e-4 if single else 1e-9
    assert_close(together.parameters, alone.parameters, rtol=near, atol=near)
    assert_close(together.buffers, alone.buffers, rtol=near, atol=near)
    # Next to one patch, attention has hardly anything to learn in a step; biases before a normalisation have nothing.
    weights = {k: v for k, v in model.named_parameters() if v.ndim > 1 and "self_attention" not in k}
    assert not any(torch.equal(alone.parameters[k].to(v.dtype), v) for k, v in weights.items())


def test_engines_agree_on_a_small_transformer() -> None:
    torch.manual_seed(0)
    model = VisionTransformer((1, 8, 8), 3, patch=4, depth=2, width=12, heads=3, hidden=16).double()
    x, y = torch.rand(5, 1, 8, 8, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1])
    data = [(x[:3], y[:3]), (x[3:], y[3:])]
    alone, together = (
        ud.simulate("scaffold", model, data, rounds=2, epochs=2, batch_size=2, lr=0.1, engine=engine)
        for engine in ("sequential", "batched")
    )
    assert_close(together.parameters, alone.parameters, rtol=1e-10, atol=1e-10)
    assert all(not torch.equal(alone.parameters[k], v) for k, v in model.named_parameters())


def test_attention_is_pytorchs() -> None:
    torch.manual_seed(0)
    theirs, ours = nn.MultiheadAttention(12, 3, batch_first=True).double(), Attention(12, 3).double()
    nn.init.normal_(theirs.in_proj_bias)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 5, 12, dtype=torch.float64)
    assert_close(ours(x), theirs(x, x, x, need_weights=False)[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", [n for n in SMALL if n not in LARGE])
def test_a_seed_is_a_model(name: str) -> None:
    shape, classes = SMALL[name]
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, again, other = (models.build(name, shape, classes, seed).state_dict() for seed in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), before)
    assert_close(again, first, rtol=0, atol=0)
    assert any(not torch.equal(first[k], other[k]) for k in first)


# Names, shapes and numbers of tensors of the published ImageNet weights.
PUBLISHED: dict[str, tuple[int, dict[str, Shape]]] = {
    "resnet18-imagenet": (
        122,
        {
            "conv1.weight": (64, 3, 7, 7),
            "bn1.running_mean": (64,),
            "layer1.1.conv2.weight": (64, 64, 3, 3),
            "layer2.0.downsample.0.weight": (128, 64, 1, 1),
            "layer4.0.downsample.1.running_var": (512,),
            "fc.weight": (1000, 512),
        },
    ),
    "mobilenetv2": (
        314,
        {
            "features.0.0.weight": (32, 3, 3, 3),
            "features.1.conv.0.0.weight": (32, 1, 3, 3),
            "features.1.conv.1.weight": (16, 32, 1, 1),
            "features.2.conv.1.1.running_mean": (96,),
            "features.17.conv.3.weight": (320,),
            "features.18.0.weight": (1280, 320, 1, 1),
            "classifier.1.bias": (1000,),
        },
    ),
    "vit-b32": (
        152,
        {
            "class_token": (1, 1, 768),
            "conv_proj.weight": (768, 3, 32, 32),
            "encoder.pos_embedding": (1, 50, 768),
            "encoder.layers.encoder_layer_0.self_attention.in_proj_weight": (2304, 768),
            "encoder.layers.encoder_layer_11.mlp.linear_2.weight": (768, 3072),
            "encoder.ln.bias": (768,),
            "heads.head.weight": (1000, 768),
        },
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_weights_would_fit(name: str) -> None:
    count, some = PUBLISHED[name]
    with torch.device("meta"):
        state = models.build(name, (3, 224, 224), 1000).state_dict()
    assert len(state) == count
    assert {k: tuple(state[k].shape) for k in some} == some


def test_the_shortcut_of_resnet20_has_no_parameters() -> None:
    model = models.build("resnet20-gn", (3, 32, 32), 10)
    assert not any("downsample" in name for name, _ in model.named_parameters())
    assert sum(isinstance(m, nn.GroupNorm) and m.num_groups == 2 for m in model.modules()) == 19
    around = model.get_submodule("layer2.0.downsample")
    x = torch.rand(1, 16, 4, 4)
    out = around(x)
    assert torch.equal(out[:, 8:24], x[:, :, ::2, ::2])
    assert not out[:, :8].any()
    assert not out[:, 24:].any()


@pytest.mark.parametrize("name", ["vgg19", "resnet18-gn"])
def test_deep_networks_keep_the_variance(name: str) -> None:
    """Outputs differ from image to image as much as after a few layers, or training would not start."""
    with torch.no_grad():
        out = models.build(name, (3, 32, 32), 10)(torch.randn(4, 3, 32, 32))
    assert out.std(0).mean() > 1e-2


@pytest.mark.parametrize("name", ["lenet-bn", "cnn5-bn"])
def test_with_batch_normalisation_fedbn_is_not_fedavg(name: str) -> None:
    """Statistics and scales stay with the clients, after two convolutions; a batch of one sample is no obstacle."""
    shape, classes = SMALL[name]
    model, data = models.build(name, shape, classes, seed=1), federation(name, (3, 2))
    settings: dict[str, Any] = {"rounds": 2, "batch_size": 2, "lr": 0.05, "weighting": "uniform"}
    bn, average = (ud.simulate(algorithm, model, data, **settings) for algorithm in ("fedbn", "fedavg"))
    assert set(bn.memory.own.gather(np.arange(2))["private"]) == {"1.weight", "1.bias", "5.weight", "5.bias"}
    assert not torch.allclose(bn.parameters["0.weight"], average.parameters["0.weight"])


WRONG: list[tuple[str, Shape, str]] = [
    ("softmax-hog", (28, 28), "[channels, height, width] of at least 7×7"),
    ("softmax-hog", (2, 28, 28), "1 or 3 channels"),
    ("cnn", (1, 3, 3), "at least 4×4"),
    ("lenet", (784,), "[channels, height, width]"),
    ("lenet5", (1, 8, 8), "at least 28×28"),
    ("lenet-hsu", (3, 32), "[channels, height, width]"),
    ("cnn5", (3, 15, 32), "at least 16×16"),
    ("vgg11-bn", (1, 28, 28), "at least 32×32"),
    ("vgg19", (1, 28, 28), "at least 32×32"),
    ("vgg19-bn", (1, 28, 28), "at least 32×32"),
    ("resnet18-gn", (80,), "at least 8×8"),
    ("resnet18-bn", (80,), "at least 8×8"),
    ("resnet18-imagenet", (3, 8, 8), "at least 32×32"),
    ("resnet20-gn", (80,), "at least 8×8"),
    ("mobilenetv2", (3, 16, 16), "at least 32×32"),
    ("vit-b32", (3, 40, 32), "multiples of 32"),
    ("char-lstm", (1, 28, 28), "[length] of token numbers"),
    ("word-lstm", (2, 20), "[length] of token numbers"),
    ("pair-lstm", (20,), "[2, length] of token numbers"),
    ("pair-lstm", (3, 20), "[2, length] of token numbers"),
]


@pytest.mark.parametrize(("name", "shape", "needed"), WRONG)
def test_wrong_samples_are_refused(name: str, shape: Shape, needed: str) -> None:
    with pytest.raises(ValueError, match=re.escape(needed)) as caught:
        models.build(name, shape, 10)
    assert repr(name) in str(caught.value)


def test_wrong_names_and_classes_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown model 'resnet20'; did you mean 'resnet20-gn'"):
        models.build("resnet20", (1, 28, 28), 10)
    with pytest.raises(ValueError, match="'word-lstm' needs to know the number of classes"):
        models.build("word-lstm", (20,), None)
    with pytest.raises(ValueError, match="classes must be at least 1, got 0"):
        models.build("softmax", (5,), 0)


def test_every_model_has_a_line_that_fits_a_screen() -> None:
    for name, line in models.available().items():
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name)
        assert 20 < len(line) <= 113, name
        assert line.endswith("."), name


def test_pooling_of_all_clients_at_once() -> None:
    """With channels last, as on a GPU, `vmap` warns of what it does client by client."""
    x = torch.randn(3, 4, 5, 5, 8).permute(0, 1, 4, 2, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        together = torch.func.vmap(GlobalAveragePool())(x)
    assert_close(together, torch.stack([nn.AdaptiveAvgPool2d(1)(each) for each in x]), rtol=0, atol=0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", SMALL)
def test_engines_agree_on_a_gpu(name: str) -> None:
    shape, classes = SMALL[name]
    settings: dict[str, Any] = {"rounds": 1, "steps": 1, "batch_size": 2, "lr": 0.01, "device": "cuda"}
    settings |= {"dtype": "float64"}  # batch normalisation of two samples amplifies rounding without bound
    model, data = models.build(name, shape, classes), federation(name, (2, 2))
    alone, together, again = (
        ud.simulate("fedavg", model, data, engine=engine, **settings) for engine in ("sequential", "batched", "batched")
    )
    assert_close(together.parameters, alone.parameters, rtol=1e-6, atol=1e-6)
    assert_close(again.parameters, together.parameters, rtol=0, atol=0)
