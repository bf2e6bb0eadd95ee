"""Softmax regression on histograms of oriented gradients."""

from __future__ import annotations

from torch import Tensor, nn

from undrift.core import hog


class HOG(nn.Module):
    """The features of `undrift.core.hog`; nothing to train."""

    def forward(self, x: Tensor) -> Tensor:  # [B, 1 or 3, H, W] -> [B, features]
        return hog.features(x)


def softmax_hog(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Softmax regression on HOG features, computed once, before training; as in the paper of MA- and GA-FSVRG.

    Runs see samples that are features already; of images, the module computes them itself.
    """
    if len(shape) == 1:
        return nn.Sequential(nn.Flatten(), nn.Linear(shape[0], classes))
    hog.check("the features of model 'softmax-hog'", shape)
    return nn.Sequential(HOG(), nn.Linear(hog.count(shape), classes))
