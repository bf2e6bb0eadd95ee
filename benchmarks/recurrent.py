"""The time of a round of recurrent models, batched and client by client.

    python benchmarks/recurrent.py                    # on a GPU if there is one
    python benchmarks/recurrent.py --precision bf16   # in half precision

Texts are random, of the length and alphabet of Shakespeare's; the time does not depend on their content.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import undrift as ud

LENGTH, CHARACTERS = 80, 80
COHORTS = ((10, 200, 20), (100, 60, 10))  # clients per round, samples of each, batch size


class UserLSTM(nn.Module):
    """`char-lstm` as a user would write it, with PyTorch's layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(CHARACTERS, 8)
        self.lstm = nn.LSTM(8, 100, num_layers=2, batch_first=True)
        self.linear = nn.Linear(100, CHARACTERS)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(self.lstm(self.embedding(x))[0][:, -1])
        return out


def texts(clients: int, samples: int) -> ud.FederatedData:
    generator = torch.Generator().manual_seed(0)
    count = clients * samples
    x = torch.randint(CHARACTERS, (count, LENGTH), dtype=torch.int16, generator=generator)
    y = torch.randint(CHARACTERS, (count,), generator=generator)
    return ud.FederatedData.from_rows(x, y, np.arange(count), [samples] * clients, classes=CHARACTERS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", help="cpu or cuda")
    parser.add_argument("--precision", help="fp32, tf32 or bf16")
    parser.add_argument("--rounds", type=int, default=8, help="of which the first three warm up")
    options = parser.parse_args()
    table = Table("clients", "model", "engine", title="milliseconds per round, FedAvg, one local epoch")
    table.add_column("median", justify="right")
    for clients, samples, batch in COHORTS:
        data = texts(clients, samples)
        for name, model in (("char-lstm", "char-lstm"), ("nn.LSTM", UserLSTM())):
            for engine in ("batched", "sequential"):
                run = ud.simulate(
                    "fedavg",
                    model,
                    data,
                    rounds=options.rounds,
                    cohort=1.0,
                    batch_size=batch,
                    lr=0.1,
                    engine=engine,
                    device=options.device,
                    precision=options.precision,
                )
                seconds = run.history.seconds.iloc[3:].median()
                table.add_row(f"{clients} × {samples}, batches of {batch}", name, engine, f"{1e3 * seconds:.0f}")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
