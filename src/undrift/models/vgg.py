"""VGG for small images (Simonyan & Zisserman, 2015)."""

from __future__ import annotations

from torch import nn

from undrift.models.common import GlobalAveragePool, he, image

# Widths of the convolutions between pooling layers.
_11 = ((64,), (128,), (256, 256), (512, 512), (512, 512))
_19 = ((64, 64), (128, 128), (256,) * 4, (512,) * 4, (512,) * 4)


def vgg19(shape: tuple[int, ...], classes: int) -> nn.Module:
    """VGG-19 of FedPMVR (CIFAR-10), configuration E: 16 convolutions, 3 linear layers, no normalisation.

    FedPMVR names the network only. The linear layers have 512 units instead of ImageNet's 4096, as is common for CIFAR,
    and no dropout: 20 554 826 parameters on 3×32×32 with ten classes.
    """
    return _vgg("vgg19", shape, classes, _19, normalised=False)


def vgg19_bn(shape: tuple[int, ...], classes: int) -> nn.Module:
    """VGG-19 with batch normalisation, without which FedBN is FedAvg; otherwise as vgg19."""
    return _vgg("vgg19-bn", shape, classes, _19, normalised=True)


def vgg11_bn(shape: tuple[int, ...], classes: int) -> nn.Module:
    """VGG-11, FedPVR's network (Li et al., 2023), with batch normalisation: 8 convolutions, 3 linear layers."""
    return _vgg("vgg11-bn", shape, classes, _11, normalised=True)


def _vgg(
    name: str, shape: tuple[int, ...], classes: int, stages: tuple[tuple[int, ...], ...], normalised: bool
) -> nn.Module:
    width, _, _ = image(name, shape, 32)
    layers: list[nn.Module] = []
    for stage in stages:
        for wider in stage:
            layers.append(nn.Conv2d(width, wider, 3, padding=1))
            layers.extend([nn.BatchNorm2d(wider), nn.ReLU()] if normalised else [nn.ReLU()])
            width = wider
        layers.append(nn.MaxPool2d(2))
    head = [nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, classes)]
    return he(*layers, GlobalAveragePool(), nn.Flatten(), *head)
