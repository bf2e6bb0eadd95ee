"""MobileNetV2 (Sandler et al., 2018), its tensors named as in the published ImageNet weights."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from undrift.models.common import GlobalAveragePool, he, image

# Table 2 of the paper: expansion, width, blocks, stride of the first.
_STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


class InvertedResidual(nn.Module):
    """Expand, convolve every channel separately, project; added to its input where the shapes agree."""

    def __init__(self, inner: int, width: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = inner * expansion
        layers: list[nn.Module] = [] if expansion == 1 else [_convolution(inner, wide, 1)]
        layers += [_convolution(wide, wide, 3, stride, groups=wide)]
        layers += [nn.Conv2d(wide, width, 1, bias=False), nn.BatchNorm2d(width)]
        self.conv = nn.Sequential(*layers)
        self.residual = stride == 1 and inner == width

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.conv(x)
        return x + out if self.residual else out


def mobilenetv2(shape: tuple[int, ...], classes: int) -> nn.Module:
    """MobileNetV2 (Sandler et al., 2018), FedHBM's for Landmarks and iNaturalist; 3 504 872 parameters, 1000 classes.

    FedHBM starts from ImageNet weights and says nothing of normalisation; here it is the original's batch
    normalisation, and the dropout of 0.2 before the classifier that the published weights were trained with.
    """
    channels, _, _ = image("mobilenetv2", shape, 32)
    features: list[nn.Module] = [_convolution(channels, 32, 3, 2)]
    inner = 32
    for expansion, width, blocks, stride in _STAGES:
        for block in range(blocks):
            features.append(InvertedResidual(inner, width, stride if block == 0 else 1, expansion))
            inner = width
    features.append(_convolution(inner, 1280, 1))
    parts = OrderedDict(
        features=nn.Sequential(*features),
        avgpool=GlobalAveragePool(),
        flatten=nn.Flatten(),
        classifier=nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, classes)),
    )
    return he(parts)


def _convolution(inner: int, width: int, size: int, stride: int = 1, groups: int = 1) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(inner, width, size, stride, padding=size // 2, groups=groups, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU6(),
    )
