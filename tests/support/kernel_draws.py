"""The kernel of `undrift.core.random_kernel` against the tensor operations that it stands for."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import vmap

from undrift.core import random
from undrift.core.random import Key


def compare(device: str) -> None:
    """One client, a column of them, and many under `vmap`, with seeds of their own or a common one."""
    from undrift.core.random_kernel import Words  # needs Triton

    seeds, clients = torch.tensor([1, 2, 2**32 - 1]), torch.tensor([0, 5, 2**31])
    for count in (1, 5, 64, 1027):
        for step in (0, 9, 2**32 - 1):
            common, own = Key(7, 3, clients[:, None]), Key(seeds[:, None], 3, clients[:, None])
            for key in (Key(seeds[2], 3, clients[2]), common, own):
                seed = key.seed.to(device) if isinstance(key.seed, Tensor) else key.seed
                there = Key(seed, key.round, key.client.to(device))
                expected = random.bits(key, 4, step, count)
                assert torch.equal(random.by_kernel(Words.apply, there, 4, step, count).cpu(), expected)

            def drawn(seed: Tensor, client: Tensor, step: int = step, count: int = count) -> Tensor:
                return random.by_kernel(Words.apply, Key(seed, 3, client), 4, step, count)

            found = vmap(drawn)(seeds.to(device), clients.to(device))
            assert torch.equal(found.cpu(), random.bits(own, 4, step, count))
            alone = vmap(lambda seed, client, drawn=drawn: drawn(seed, client.view(1, 1)))  # a column of one client
            assert torch.equal(alone(seeds.to(device), clients.to(device)).cpu(), found.cpu()[:, None])
            alike = vmap(drawn, in_dims=(None, 0))(seeds[1].to(device), clients.to(device))
            assert torch.equal(alike.cpu(), random.bits(own._replace(seed=2), 4, step, count))
