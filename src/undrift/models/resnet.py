"""Residual networks (He et al., 2016) with batch or group normalisation.

Tensors are named as in the published ImageNet weights, so that `with_head` can load them; hence a group normalisation
named "bn1".
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

from undrift.models.common import GlobalAveragePool, he, image

Norm = Callable[[int], nn.Module]


def two_groups(width: int) -> nn.Module:
    return nn.GroupNorm(2, width)


class Block(nn.Module):
    """Two convolutions and a shortcut."""

    def __init__(self, inner: int, width: int, stride: int, norm: Norm, *, shortcut: nn.Module) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inner, width, 3, stride, padding=1, bias=False)
        self.bn1 = norm(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = norm(width)
        self.downsample = shortcut

    def forward(self, x: Tensor) -> Tensor:
        residual = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(residual + self.downsample(x))


class Subsample(nn.Module):
    """He's option A, the shortcut without parameters: every other pixel, and zeros for the new channels."""

    def forward(self, x: Tensor) -> Tensor:  # [B, C, H, W] -> [B, 2C, H/2, W/2]
        half = x.shape[1] // 2
        return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, half, half))


def resnet18_gn(shape: tuple[int, ...], classes: int) -> nn.Module:
    """ResNet-18 with group normalisation, FedDPC's for CIFAR-100 and Tiny ImageNet: 3×3 stem, 2 groups.

    FedDPC says "Resnet18 model with group normalization". Chosen here: the stem (3×3, common for small images) and the
    number of groups (2, as in FedHBM). 11 173 962 parameters on colour images of ten classes, with either norm.
    """
    return _resnet18("resnet18-gn", shape, classes, two_groups)


def resnet18_bn(shape: tuple[int, ...], classes: int) -> nn.Module:
    """ResNet-18 (He et al., 2016) with batch normalisation and a 3×3 stem for small images."""
    return _resnet18("resnet18-bn", shape, classes, nn.BatchNorm2d)


def resnet18_imagenet(shape: tuple[int, ...], classes: int) -> nn.Module:
    """ResNet-18 (He et al., 2016) as on ImageNet: 7×7 stem, batch norm; FedPGVC's backbone, for published weights."""
    channels, _, _ = image("resnet18-imagenet", shape, 32)
    stem = OrderedDict(
        conv1=nn.Conv2d(channels, 64, 7, 2, padding=3, bias=False),
        bn1=nn.BatchNorm2d(64),
        relu=nn.ReLU(),
        maxpool=nn.MaxPool2d(3, 2, padding=1),
    )
    return _resnet(stem, classes, widths=(64, 128, 256, 512), depth=2, norm=nn.BatchNorm2d, projection=True)


def resnet20_gn(shape: tuple[int, ...], classes: int) -> nn.Module:
    """ResNet-20 with group normalisation of 2 groups, FedHBM's for CIFAR; 269 722 parameters for ten classes.

    The shortcut is option A, as in He et al. (2016) and in the code that FedHBM names; with option B, a convolution,
    there would be 272 474.
    """
    stem = _stem("resnet20-gn", shape, 16, two_groups)
    return _resnet(stem, classes, widths=(16, 32, 64), depth=3, norm=two_groups, projection=False)


def _resnet18(name: str, shape: tuple[int, ...], classes: int, norm: Norm) -> nn.Module:
    stem = _stem(name, shape, 64, norm)
    return _resnet(stem, classes, widths=(64, 128, 256, 512), depth=2, norm=norm, projection=True)


def _stem(name: str, shape: tuple[int, ...], width: int, norm: Norm) -> OrderedDict[str, nn.Module]:
    channels, _, _ = image(name, shape, 8)
    return OrderedDict(conv1=nn.Conv2d(channels, width, 3, padding=1, bias=False), bn1=norm(width), relu=nn.ReLU())


def _resnet(
    stem: OrderedDict[str, nn.Module],
    classes: int,
    *,
    widths: tuple[int, ...],
    depth: int,
    norm: Norm,
    projection: bool,
) -> nn.Module:
    parts, inner = stem, widths[0]
    for stage, width in enumerate(widths, 1):
        first = _downsampling(inner, width, norm, projection) if stage > 1 else _same(width, norm)
        parts[f"layer{stage}"] = nn.Sequential(first, *(_same(width, norm) for _ in range(depth - 1)))
        inner = width
    parts |= {"avgpool": GlobalAveragePool(), "flatten": nn.Flatten(), "fc": nn.Linear(inner, classes)}
    return he(parts)


def _same(width: int, norm: Norm) -> Block:
    return Block(width, width, 1, norm, shortcut=nn.Identity())


def _downsampling(inner: int, width: int, norm: Norm, projection: bool) -> Block:
    """A block that halves the image and changes the number of channels."""
    if not projection:
        return Block(inner, width, 2, norm, shortcut=Subsample())
    shortcut = nn.Sequential(nn.Conv2d(inner, width, 1, 2, bias=False), norm(width))
    return Block(inner, width, 2, norm, shortcut=shortcut)
