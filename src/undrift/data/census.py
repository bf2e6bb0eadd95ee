"""How often the features of samples occur, over all clients."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from undrift.data.federated import FederatedData


class Census(NamedTuple):
    frequency: Tensor  # [features], share of all samples in which a feature is not zero
    holders: Tensor  # [features], clients that have it in some sample


def census(data: FederatedData) -> Census:
    """Counted over the training samples of all clients; of normalised inputs, in which zeros have no meaning, one."""
    features = data.x[0].numel()
    if data.normalise is not None:
        return Census(torch.ones(features), torch.full((features,), float(len(data))))
    count, holders = torch.zeros(features, dtype=torch.float64), torch.zeros(features, dtype=torch.float64)
    for client in range(len(data)):
        own = (data.client(client)[0].flatten(1) != 0).sum(0)
        count, holders = count + own, holders + (own > 0)
    return Census(count / len(data.rows), holders)
