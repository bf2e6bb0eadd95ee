"""Long short-term memory of matrix products, which PyTorch can batch over clients; `nn.LSTM` it cannot."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class LSTM(nn.Module):
    """One layer, the same function of the same weights as `nn.LSTM`: [B, T, inputs] -> [B, T, units].

    With `biases=1` it has Keras's single bias instead of PyTorch's two, of which only the sum matters.
    """

    def __init__(self, inputs: int, units: int, biases: int = 2) -> None:
        super().__init__()
        self.units = units
        self.weight_ih = nn.Parameter(torch.empty(4 * units, inputs))
        self.weight_hh = nn.Parameter(torch.empty(4 * units, units))
        self.bias_ih = nn.Parameter(torch.empty(4 * units))
        self.bias_hh = nn.Parameter(torch.empty(4 * units)) if biases == 2 else None
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -(units**-0.5), units**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        bias = self.bias_ih if self.bias_hh is None else self.bias_ih + self.bias_hh
        inputs = F.linear(x, self.weight_ih, bias)  # [B, T, 4 units]: all steps in one product
        hidden = cell = x.new_zeros(len(x), self.units)
        seen: list[Tensor] = []
        for now in inputs.unbind(1):
            take, keep, new, show = (now + hidden @ self.weight_hh.mT).chunk(4, -1)
            cell = keep.sigmoid() * cell + take.sigmoid() * new.tanh()
            hidden = show.sigmoid() * cell.tanh()
            seen.append(hidden)
        return torch.stack(seen, 1)
