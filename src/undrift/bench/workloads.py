"""The workloads that systems are timed on. A new one is an entry of `WORKLOADS`."""

from __future__ import annotations

from dataclasses import dataclass, replace

from undrift.core import check


@dataclass(frozen=True)
class Workload:
    """Clients of equal size that train for one local epoch of SGD."""

    name: str
    title: str
    data: str
    shape: tuple[int, int, int]
    net: str  # in peers/torch_side.py
    clients: int
    samples: int  # of each client
    cohort: int
    batch_size: int
    lr: float
    warm_up: int  # rounds that are not timed, on a CPU
    rounds: int  # rounds that are
    seconds: float  # per round of the plain loop on two cores, roughly: for the estimate of the time left
    algorithm: str = "fedavg"
    compiled: bool = False  # undrift is also timed with compiled rounds, which it chooses for long runs only


GPU_WARM_UP, GPU_ROUNDS, GPU_SECONDS = 3, 30, 0.2  # the same on a GPU, where all are fast

_W1 = Workload(
    name="W1",
    title="MNIST, LeNet-5",
    data="mnist",
    shape=(1, 28, 28),
    net="lenet5",
    clients=100,
    samples=600,
    cohort=10,
    batch_size=32,
    lr=0.05,
    warm_up=1,
    rounds=8,
    seconds=0.6,
)
_W2 = Workload(
    name="W2",
    title="CIFAR-10, FedHBM's LeNet",
    data="cifar10",
    shape=(3, 32, 32),
    net="lenet-hsu",
    clients=100,
    samples=500,
    cohort=10,
    batch_size=64,
    lr=0.05,
    warm_up=1,
    rounds=3,
    seconds=5,
)
_W3 = replace(
    _W1,
    name="W3",
    title="MNIST, 1000 tiny clients",
    net="softmax",
    clients=1000,
    samples=60,
    cohort=100,
    batch_size=20,
    warm_up=3,
    rounds=30,
    seconds=0.15,
    compiled=True,
)
# The benchmark of pfl-research (arXiv 2404.06430) without its evaluations, which are not timed here.
_W4 = replace(
    _W2,
    name="W4",
    title="CIFAR-10, as pfl-research",
    net="cnn-pfl",
    clients=1000,
    samples=50,
    cohort=50,
    batch_size=10,
    lr=0.1,
)
_W5 = replace(_W2, name="W5", title="CIFAR-10, SCAFFOLD", algorithm="scaffold")

WORKLOADS = {work.name: work for work in (_W1, _W2, _W3, _W4, _W5)}


def select(text: str) -> list[Workload]:
    """The workloads of a list such as ``W3,W1``, in its order."""
    names = [part.strip().upper() for part in text.split(",") if part.strip()]
    for name in names:
        check.choice("--work", name, WORKLOADS)
    if not names:
        raise ValueError(f"--work must name at least one of {', '.join(WORKLOADS)}, got {text!r}")
    return [WORKLOADS[name] for name in dict.fromkeys(names)]
