"""Next-character prediction."""

from __future__ import annotations

from torch import Tensor, nn

from undrift.models.common import text
from undrift.models.lstm import LSTM


class CharLSTM(nn.Module):
    def __init__(self, characters: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(characters, 8)
        self.lstm = nn.Sequential(LSTM(8, 100), LSTM(100, 100))
        self.linear = nn.Linear(100, characters)

    def forward(self, x: Tensor) -> Tensor:  # [B, T] -> [B, characters]
        out: Tensor = self.linear(self.lstm(self.embedding(x))[:, -1])
        return out


def char_lstm(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Shakespeare's next character after 80 (FedHBM; Li et al., 2020): embedding 8, two LSTM layers of 100 units.

    The classes are the characters, read and predicted: 133 520 parameters for 80 of them.
    """
    text("char-lstm", shape)
    return CharLSTM(classes)
