"""LeNet and its relatives: two 5×5 convolutions with pooling, two hidden layers, the classes."""

from __future__ import annotations

from torch import nn

from undrift.models.common import image


def lenet(shape: tuple[int, ...], classes: int) -> nn.Module:
    """LeNet of FedPMVR and FedPGVC (MNIST, FMNIST): 6 and 16 maps, unpadded; 44 426 parameters on 1×28×28.

    The papers say no more than "LeNet (LeCun et al., 1998)". Chosen here, as in MOON's public code: ReLU and max
    pooling for the original's tanh and averages, all maps connected, and 28×28 images not padded. With padding it is
    `lenet5`.
    """
    return _network("lenet", shape, classes, maps=(6, 16), hidden=(120, 84))


def lenet_bn(shape: tuple[int, ...], classes: int) -> nn.Module:
    """`lenet` with batch normalisation after each convolution, so that FedBN differs from FedAvg; 44 470 parameters.

    The papers compare FedBN on LeNet and do not say where it is normalised. After convolutions only, so that a batch of
    one sample has statistics, too.
    """
    return _network("lenet-bn", shape, classes, maps=(6, 16), hidden=(120, 84), normalised=True)


def lenet5(shape: tuple[int, ...], classes: int) -> nn.Module:
    """LeNet-5 (LeCun et al., 1998; FedDPC's for CIFAR-10) with ReLU: 6 and 16 maps; images below 32×32 are padded by 2.

    61 706 parameters on 1×28×28, 62 006 on 3×32×32.
    """
    _, height, _ = image("lenet5", shape, 28)
    return _network("lenet5", shape, classes, maps=(6, 16), hidden=(120, 84), padding=2 if height < 32 else 0)


def cnn5(shape: tuple[int, ...], classes: int) -> nn.Module:
    """The 5-layer CNN of FedPMVR (CIFAR-10) and FedPGVC (CIFAR-100), MOON's encoder: 5×5 convolutions, 120, 84.

    FedPMVR names kernels, pooling and hidden layers and refers to MOON (Li et al., 2021) for the rest: 6 and 16 maps.
    The projection head that MOON puts before the classifier is not mentioned, and left out.
    """
    return _network("cnn5", shape, classes, maps=(6, 16), hidden=(120, 84))


def cnn5_bn(shape: tuple[int, ...], classes: int) -> nn.Module:
    """`cnn5` with batch normalisation after each convolution, so that FedBN differs from FedAvg."""
    return _network("cnn5-bn", shape, classes, maps=(6, 16), hidden=(120, 84), normalised=True)


def lenet_hsu(shape: tuple[int, ...], classes: int) -> nn.Module:
    """The LeNet of Hsu et al. (2020), FedHBM's for CIFAR: twice 64 maps, 384, 192; 797 962 parameters on 3×32×32."""
    return _network("lenet-hsu", shape, classes, maps=(64, 64), hidden=(384, 192))


def _network(
    name: str,
    shape: tuple[int, ...],
    classes: int,
    maps: tuple[int, int],
    hidden: tuple[int, int],
    padding: int = 0,
    normalised: bool = False,
) -> nn.Module:
    channels, *sides = image(name, shape, 16)
    height, width = ((((side + 2 * padding - 4) // 2) - 4) // 2 for side in sides)
    norms = [nn.BatchNorm2d(count) for count in maps] if normalised else []
    return nn.Sequential(
        nn.Conv2d(channels, maps[0], 5, padding=padding),
        *norms[:1],
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(maps[0], maps[1], 5),
        *norms[1:],
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(maps[1] * height * width, hidden[0]),
        nn.ReLU(),
        nn.Linear(hidden[0], hidden[1]),
        nn.ReLU(),
        nn.Linear(hidden[1], classes),
    )
