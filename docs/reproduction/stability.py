"""Why corrected local steps fail at one class per client, measured: `docs/stability.md` says what was found.

    python docs/reproduction/stability.py FILE.csv [--rounds 1000] [--workers 8] [--setting NAME]

writes FILE.csv: accuracy, norms of gradients and of SCAFFOLD's controls, and sharpness (the largest eigenvalue
of the Hessian) along training. It needs a GPU and CIFAR-10: `undrift data get cifar10`. What was measured is in
`histories/stability.csv.gz`; a setting with a single row is one of which only the end was kept.
"""

from __future__ import annotations

import argparse
import multiprocessing
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

import undrift as ud
from undrift.algorithms import SCAFFOLD
from undrift.algorithms.scaffold import ControlVariates
from undrift.correction import At, Correction
from undrift.storage.states import ClientStates
from undrift.tree import Tree, add, dot, scale, sub, take, where, zeros

SAMPLED = range(0, 100, 10)  # clients that are looked at
SETTINGS: dict[str, Any] = {"lr": 0.01, "cohort": 10, "steps": 8, "batch_size": 64, "weight_decay": 0.001}


@dataclass(frozen=True)
class DirectionClip(Correction):
    """The corrected direction has at most this norm."""

    limit: float

    def step(self, grad: Tree, client: Any, at: At) -> tuple[Tree, Any]:
        return scale(grad, (self.limit / dot(grad, grad).sqrt().clamp_min(1e-30)).clamp_max(1)), client


@dataclass(frozen=True)
class ClippedSCAFFOLD(SCAFFOLD):
    limit: float = 1.0

    def corrections(self, setting: Any) -> tuple[Correction, ...]:
        return (*super().corrections(setting), DirectionClip(self.limit))


@dataclass(frozen=True)
class WarmVariates(ControlVariates):
    """A client's first control is its gradient at the received model, instead of zero."""

    key = "ControlVariates"

    def client(self, model: Tree) -> Any:
        return super().client(model) | {"seen": torch.zeros((), device=next(iter(model.values())).device)}

    def begin(self, start: Tree, client: Any, at: At) -> tuple[Tree, Any]:
        own = take(at.task.full_gradient(at.anchor, at.anchor_buffers).gradient, self.names)
        return start, client | {"control": where(client["seen"] > 0, client["control"], own)}

    def finish(self, update: Tree, client: Any, at: At) -> tuple[Tree, Any, Any]:
        update, state, message = super().finish(update, client, at)
        new = where(client["seen"] > 0, zeros(client["control"]), client["control"])  # not yet part of the mean
        seen = torch.ones_like(client["seen"])
        return update, state | {"seen": seen}, {"change": add(message["change"], new)}


@dataclass(frozen=True)
class WarmSCAFFOLD(SCAFFOLD):
    def corrections(self, setting: Any) -> tuple[Correction, ...]:
        return (WarmVariates(setting.layout.names, self.option),)


VARIANTS: dict[str, tuple[Any, dict[str, Any]]] = {  # algorithm, and settings that differ
    "fedavg": ("fedavg", {}),
    "scaffold": ("scaffold", {}),
    "scaffold steps=1": ("scaffold", {"steps": 1}),
    "scaffold lr=0.001": ("scaffold", {"lr": 0.001}),
    "scaffold clip=1": ("scaffold", {"clip": 1.0}),
    "scaffold cohort=100": ("scaffold", {"cohort": 100}),
    "scaffold warm": (WarmSCAFFOLD(), {}),
    "scaffold option I": ("scaffold(option=I)", {}),
    "scaffold server_lr=0.3": ("scaffold", {"server_lr": 0.3}),
    "scaffold server_lr=0.1": ("scaffold", {"server_lr": 0.1}),
    "scaffold direction<=1": (ClippedSCAFFOLD(), {}),
    "scaffold direction<=0.3": (ClippedSCAFFOLD(limit=0.3), {}),
    "mime": ("mime", {}),
    "mime steps=1": ("mime", {"steps": 1}),
    "mime lr=0.001": ("mime", {"lr": 0.001}),
    "mime clip=1": ("mime", {"clip": 1.0}),
    "feddc": ("feddc", {}),
    "feddc lr=0.001": ("feddc", {"lr": 0.001}),
    "feddc clip=1": ("feddc", {"clip": 1.0}),
    "feddyn": ("feddyn", {}),
    "feddyn clip=1": ("feddyn", {"clip": 1.0}),
}


def sharpness(loss: Callable[[Tree], Tensor], params: Tree, iterations: int = 20) -> float:
    """The largest eigenvalue of the Hessian, by power iteration."""
    generator = torch.Generator(device="cuda").manual_seed(0)
    vector = {k: torch.randn(p.shape, generator=generator, device=p.device) for k, p in params.items()}
    gradient, value = torch.func.grad(loss), torch.zeros(())
    for _ in range(iterations):
        vector = scale(vector, 1 / dot(vector, vector).sqrt())
        product = torch.func.jvp(gradient, (params,), (vector,))[1]
        value, vector = dot(product, vector), product
    return float(value)


def norm(values: Tree) -> float:
    return float(dot(values, values).sqrt())


def copied(values: Tree) -> Tree:
    return {k: v.clone() for k, v in values.items()}


def look(row: dict[str, Any], run: ud.Run) -> dict[str, float]:
    """Gradients, controls and sharpness at the server's model."""
    params = {k: v.cuda() for k, v in run.parameters.items()}
    module, data, learner = run.model.cuda(), run.experiment.data, run.experiment.learner

    def loss(x: Tensor, y: Tensor) -> Callable[[Tree], Tensor]:
        inputs, targets = learner.prepare(x.cuda()), y.cuda().long()
        return lambda p: nn.functional.cross_entropy(torch.func.functional_call(module, p, (inputs,)), targets)

    gradients = {c: torch.func.grad(loss(*data.client(c)))(params) for c in SAMPLED}
    mean = {k: sum(g[k] for g in gradients.values()) / len(gradients) for k in params}
    found = {"model": norm(params), "gradient": norm(mean)}
    found["client_gradient"] = sum(map(norm, gradients.values())) / len(gradients)
    if "ControlVariates" in run.memory.server:
        states = run.memory.states
        assert isinstance(states, ClientStates)
        known = set(states.seen.tolist())
        own = {c: copied(states.look(c)["ControlVariates"]["control"]) for c in SAMPLED if c in known}
        found["c"] = norm(run.memory.server["ControlVariates"]["control"])
        found["c_i"] = sum(map(norm, own.values())) / max(1, len(own))
        errors = [norm(sub(own[c], gradients[c])) / norm(gradients[c]) for c in own]
        found["control_error"] = sum(errors) / max(1, len(errors))
    if row["round"] % 100 == 0 or row["round"] <= 10:
        x, y = (torch.cat([data.client(c)[i][:50] for c in SAMPLED]) for i in (0, 1))
        found["sharpness"] = sharpness(loss(x, y), params)
        x, y = data.client(0)
        found["client_sharpness"] = sharpness(loss(x[:200], y[:200]), params)
    return found


def measure(job: tuple[str, int]) -> pd.DataFrame:
    name, rounds = job
    (algorithm, settings), rows = VARIANTS[name], []

    def watch(row: dict[str, Any], run: ud.Run) -> None:
        if row["round"] % 25 == 0 or row["round"] <= 10:
            kept = {key: row[key] for key in ("round", "loss", "accuracy", "train_loss")}
            rows.append({"setting": name, "planned": rounds} | kept | look(row, run))

    end = "finished"
    data = ud.data.load("cifar10", partition="dirichlet-client:0", clients=100, seed=0)
    try:
        ud.simulate(
            algorithm,
            "lenet-hsu",
            data,
            rounds=rounds,
            eval_every=25,
            augment="crop-flip",
            weighting="samples",
            device="cuda",
            callbacks=[watch],
            **SETTINGS | settings,
        )
    except ud.DivergenceError as error:
        end = f"diverged in round {error.round}"
    # One that diverged at once was never looked at.
    return pd.DataFrame(rows or [{"setting": name, "planned": rounds}]).assign(end=end)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--setting", choices=VARIANTS, action="append")
    given = parser.parse_args()
    jobs = [(name, given.rounds) for name in given.setting or VARIANTS]
    found = []
    with multiprocessing.get_context("spawn").Pool(given.workers) as pool:
        for rows in pool.imap_unordered(measure, jobs):
            found.append(rows)
            pd.concat(found).to_csv(given.file, index=False)


if __name__ == "__main__":
    main()
