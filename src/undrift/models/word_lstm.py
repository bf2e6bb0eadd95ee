"""Next-word prediction."""

from __future__ import annotations

from torch import Tensor, nn

from undrift.models.common import text
from undrift.models.lstm import LSTM


class WordLSTM(nn.Module):
    def __init__(self, words: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, 96)
        self.lstm = LSTM(96, 670, biases=1)
        self.projection = nn.Linear(670, 96)
        self.linear = nn.Linear(96, words)

    def forward(self, x: Tensor) -> Tensor:  # [B, T] -> [B, T, words]
        out: Tensor = self.linear(self.projection(self.lstm(self.embedding(x))))
        return out


def word_lstm(shape: tuple[int, ...], classes: int) -> nn.Module:
    """StackOverflow's next word at every position (Reddi et al., 2021; FedHBM): embedding 96, LSTM 670, projection 96.

    The classes are the words, read and predicted, special tokens included: 4 050 748 parameters for 10 004 of them.
    """
    text("word-lstm", shape)
    return WordLSTM(classes)
