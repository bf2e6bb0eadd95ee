"""An LSTM that can be batched over clients, which `nn.LSTM` under `vmap` cannot."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from undrift.accelerate import recurrence
from undrift.core import torch_private


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
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -(self.units**-0.5), self.units**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        kind = x.device.type
        if kind == "cpu" and not torch_private.in_functorch() and not torch.is_autocast_enabled(kind):
            return self._native(x)
        bias = self.bias_ih if self.bias_hh is None else self.bias_ih + self.bias_hh
        return recurrence.layer(x, self.weight_ih, self.weight_hh, bias)[0]

    def _native(self, x: Tensor) -> Tensor:
        """By PyTorch's kernel, which is faster on a CPU but supports neither `vmap` nor `torch.func.grad`."""
        start = x.new_zeros(1, len(x), self.units)
        second = torch.zeros_like(self.bias_ih) if self.bias_hh is None else self.bias_hh
        weights = [self.weight_ih, self.weight_hh, self.bias_ih, second]
        hidden: Tensor = torch.lstm(
            x,
            hx=(start, start),
            params=weights,
            has_biases=True,
            num_layers=1,
            dropout=0.0,
            train=self.training,
            bidirectional=False,
            batch_first=True,
        )[0]
        return hidden
