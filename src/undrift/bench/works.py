"""The works that systems are timed on."""

from __future__ import annotations

from dataclasses import dataclass

from undrift import check


@dataclass(frozen=True)
class Work:
    """Equal clients, one local epoch of SGD, everything else as in the fields."""

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
    seconds: float  # of a round of the plain loop on two cores, roughly: for the estimate of the time left
    algorithm: str = "fedavg"


GPU_WARM_UP, GPU_ROUNDS, GPU_SECONDS = 3, 30, 0.2

WORKS = {
    work.name: work
    for work in (
        Work("W1", "MNIST, LeNet-5", "mnist", (1, 28, 28), "lenet5", 100, 600, 10, 32, 0.05, 1, 8, 0.7),
        Work("W2", "CIFAR-10, FedHBM's LeNet", "cifar10", (3, 32, 32), "lenet-hsu", 100, 500, 10, 64, 0.05, 1, 3, 5),
        Work("W3", "MNIST, 1000 tiny clients", "mnist", (1, 28, 28), "softmax", 1000, 60, 100, 20, 0.05, 3, 30, 0.2),
        # The set-up of pfl-research (arXiv 2404.06430) but for its evaluations, which are outside of the timed part.
        Work("W4", "CIFAR-10, as pfl-research", "cifar10", (3, 32, 32), "cnn-pfl", 1000, 50, 50, 10, 0.1, 1, 3, 5),
        Work(
            "W5",
            "CIFAR-10, SCAFFOLD",
            "cifar10",
            (3, 32, 32),
            "lenet-hsu",
            *(100, 500, 10, 64, 0.05, 1, 3, 5.5),
            algorithm="scaffold",
        ),
    )
}
DEFAULT = "W1,W2,W3"


def named(text: str) -> list[Work]:
    """The works of a list such as ``W3,W1``, in its order."""
    names = [part.strip().upper() for part in text.split(",") if part.strip()]
    for name in names:
        check.choice("--work", name, WORKS)
    if not names:
        raise ValueError(f"--work must name at least one of {', '.join(WORKS)}, got {text!r}")
    return [WORKS[name] for name in dict.fromkeys(names)]
