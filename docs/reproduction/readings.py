"""Every reading of the papers on the same tasks, at three rates, with three seeds.

    python docs/reproduction/readings.py FILE.csv [--device cuda] [--workers 8] [--task NAME] [--algorithm NAME]

appends a row per evaluation to FILE.csv. `histories/readings.csv.gz` holds what was measured, from which `make docs`
writes the tables of `docs/readings.md`. Data sets must be there: `undrift data get fashion-mnist cifar10 mnist`.
"""

from __future__ import annotations

import argparse
import multiprocessing
from pathlib import Path
from typing import NamedTuple

import pandas as pd

import undrift as ud
from undrift.algorithms.text import parse

FILE = Path(__file__).parent / "histories" / "readings.csv.gz"
SEEDS = 3
RATES = [0.01, 0.03, 0.1]
COLUMNS = ["task", "form", "lr", "seed", "round", "accuracy", "train_loss", "diverged"]


class Task(NamedTuple):
    data: str
    model: str
    clients: int
    rounds: int
    features: str | None = None


# Dirichlet(0.1), ten clients in a round, 20 local steps of 32 samples; clients weighted by samples.
TASKS = {
    "digits, all": Task("digits", "mlp", 10, 50),
    "digits, a tenth": Task("digits", "mlp", 100, 75),
    "mnist, all": Task("mnist", "lenet", 10, 50),
    "mnist, a tenth": Task("mnist", "lenet", 100, 75),
    "fashion-mnist, all": Task("fashion-mnist", "lenet", 10, 50),
    "fashion-mnist, a tenth": Task("fashion-mnist", "lenet", 100, 75),
    "cifar10, all": Task("cifar10", "lenet5", 10, 75),
    "cifar10, a tenth": Task("cifar10", "lenet5", 100, 100),
}

# What MA-FSVRG and GA-FSVRG are made for, a convex model: softmax regression on HOG features, as in their paper, which
# does not say how many rounds it takes.
CONVEX = {
    "digits, softmax, all": Task("digits", "softmax", 10, 50),
    "digits, softmax, a tenth": Task("digits", "softmax", 100, 75),
    "mnist, HOG, all": Task("mnist", "softmax", 10, 15, "hog"),
    "mnist, HOG, a tenth": Task("mnist", "softmax", 100, 15, "hog"),
    "fashion-mnist, HOG, all": Task("fashion-mnist", "softmax", 10, 15, "hog"),
    "fashion-mnist, HOG, a tenth": Task("fashion-mnist", "softmax", 100, 15, "hog"),
    "cifar10, HOG, all": Task("cifar10", "softmax", 10, 15, "hog"),
    "cifar10, HOG, a tenth": Task("cifar10", "softmax", 100, 15, "hog"),
}

# Readings of MA-FSVRG and GA-FSVRG both. By default the first leaves features alone, the second counts the cohort's.
SEVERAL_MODELS = {
    "by default": "",
    "β₁ = 0": "beta1=0.0",
    "acceleration as printed": "acceleration='printed'",
    "no acceleration": "acceleration='off'",
    "acceleration after round T": "accelerate_first_rounds=False",
    "ε in the root": "eps_in_root=True",
    "random starts": "starts='random'",
    "Eq. 39 uncentred": "centred_starts=False",
    "census": "feature_scaling='census'",
    "features as printed": "feature_scaling='printed'",
}

FORMS = {
    "FedAvg": {"FedAvg": "fedavg"},
    "FedHBM": {
        "FedHBM, β by default": "fedhbm",
        "FedHBM, β = 1": "fedhbm(beta=1.0)",
        "FedHBM, β = 0.53": "fedhbm(beta=0.53)",
        "FedHBM, β = 0.4": "fedhbm(beta=0.4)",
        "FedHBM, anchor step": "fedhbm(anchor='step')",
        "FedHBM, anchor step, β = 1": "fedhbm(beta=1.0, anchor='step')",
        "FedHBM, shared": "fedhbm(variant='shared')",
        "FedHBM, random": "fedhbm(variant='random')",
        "FedHBM, Nesterov": "fedhbm(nesterov=True)",
        "LocalGHB, β = 0.9": "localghb(beta=0.9)",
        "LocalGHB, β = 1": "localghb(beta=1.0)",
        "GHB, τ = 10": "ghb(tau=10)",
    },
    "FedPMVR": {
        "FedPMVR gradient, kept": "fedpmvr(form='gradient')",
        "FedPMVR gradient, reset": "fedpmvr(form='gradient', keep_momentum=False)",
        "FedPMVR gradient, accumulating": "fedpmvr(form='gradient', accumulate=True)",
        "FedPMVR drift, kept": "fedpmvr(form='drift')",
        "FedPMVR drift, reset": "fedpmvr(form='drift', keep_momentum=False)",
        "FedPMVR drift, accumulating": "fedpmvr(form='drift', accumulate=True)",
        "FedPMVR pseudogradient, kept": "fedpmvr(form='pseudogradient')",
        "FedPMVR pseudogradient, reset": "fedpmvr(form='pseudogradient', keep_momentum=False)",
        "FedPMVR sum, kept": "fedpmvr(form='sum')",
        "FedPMVR sum, reset": "fedpmvr(form='sum', keep_momentum=False)",
        "FedPMVR stepwise, kept": "fedpmvr(form='stepwise')",
        "FedPMVR stepwise, reset": "fedpmvr(form='stepwise', keep_momentum=False)",
    },
    "FedPGVC": {
        "FedPGVC normalised": "fedpgvc(form='normalised')",
        "FedPGVC normalised, σ = 0.1": "fedpgvc(form='normalised', sigma=0.1)",
        "FedPGVC product": "fedpgvc(form='product')",
        "FedPGVC product, received": "fedpgvc(form='product', penalty_at='received')",
        "FedPGVC magnitude": "fedpgvc(form='magnitude')",
        "FedPGVC magnitude, received": "fedpgvc(form='magnitude', penalty_at='received')",
        "FedPGVC additive": "fedpgvc(form='additive')",
        "FedPGVC additive, received": "fedpgvc(form='additive', penalty_at='received')",
        "FedPGVC loss": "fedpgvc(form='loss')",
        "FedPGVC norm": "fedpgvc(form='norm')",
        "FedPGVC decay": "fedpgvc(form='decay')",
    },
    "FedDPC": {
        "FedDPC, λ = 1": "feddpc(lam=1.0)",
        "FedDPC, λ = 0": "feddpc(lam=0.0)",
        "FedDPC, λ = −0.1": "feddpc(lam=-0.1)",
        "FedDPC, λ = −0.5": "feddpc(lam=-0.5)",
        "FedDPC without projection": "feddpc(projection=False)",
        "FedDPC without scaling": "feddpc(scaling=False)",
    },
    "FSVRG": {
        "FSVRG": "fsvrg",
        **{
            f"{name}, {reading}": f"{name.lower().replace('-', '')}({options})"
            for name, scaling in {
                "MA-FSVRG": {"features of the cohort": "feature_scaling='cohort'"},
                "GA-FSVRG": {"no feature scaling": "feature_scaling='off'"},
            }.items()
            for reading, options in (SEVERAL_MODELS | scaling).items()
        },
        "GA-FSVRG, A twice": "gafsvrg(scale_twice=True)",
        "GA-FSVRG, group_lr 1": "gafsvrg(group_lr=1.0)",
    },
}


def tasks_of(algorithm: str) -> dict[str, Task]:
    return {"FedAvg": TASKS | CONVEX, "FSVRG": CONVEX}.get(algorithm, TASKS)


class Job(NamedTuple):
    task: str
    form: str
    algorithm: str
    device: str


def measure(job: Job) -> pd.DataFrame:
    """The histories of all rates and seeds, which train together."""
    task = (TASKS | CONVEX)[job.task]

    def data(seed: int) -> ud.FederatedData:
        partition = "dirichlet:0.1"
        return ud.data.load(task.data, partition=partition, clients=task.clients, seed=seed, features=task.features)

    # FSVRG's step is lr / n_i: its rates are given for a client with the mean number of samples.
    unit = float(data(0).sizes.mean()) if parse(job.algorithm).algorithm.divides_rate else 1.0

    found = ud.compare(
        {job.form: job.algorithm},
        task.model,
        data,
        seeds=SEEDS,
        lr=[rate * unit for rate in RATES],
        rounds=task.rounds,
        cohort=10,
        steps=20,
        batch_size=32,
        augment=None,
        eval_every=5,
        device=job.device,
    )
    histories = []
    for record in found.records:
        kept = record.history[record.history.accuracy.notna() | record.history.diverged]
        rate = round(record.config["options"]["lr"] / unit, 6)
        about = {"task": job.task, "form": job.form, "lr": rate, "seed": record.seed}
        histories.append(kept.assign(**about)[COLUMNS])
    return pd.concat(histories)


def tables() -> dict[str, str]:
    """Of every algorithm a table in Markdown: a row per reading, a column per task that was measured."""
    runs = pd.read_csv(FILE)
    found = {}
    for algorithm, forms in FORMS.items():
        tasks = [task for task in tasks_of(algorithm) if task in set(runs.task)]
        head = ["| reading | " + " | ".join(tasks) + " |", "|---" * (len(tasks) + 1) + "|"]
        shown = [form for form in (FORMS["FedAvg"] | forms) if form in set(runs.form)]
        rows = (f"| {form} | " + " | ".join(_cell(runs, task, form) for task in tasks) + " |" for form in shown)
        found[algorithm] = "\n".join([*head, *rows])
    return found


def _cell(runs: pd.DataFrame, task: str, form: str) -> str:
    """Final accuracies in percent at the three rates; a raised number counts seeds that diverged."""
    rates = runs[(runs.task == task) & (runs.form == form)].groupby("lr")
    return " / ".join(_figure(each) for _, each in rates) or "–"


def _figure(runs: pd.DataFrame) -> str:
    last = runs.sort_values("round").groupby("seed", dropna=False).tail(1)
    failed = int(last.diverged.sum())
    mean = last[~last.diverged].accuracy.mean()
    return ("×" if failed == len(last) else f"{100 * mean:.1f}") + (f"<sup>{failed}</sup>" if failed else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--task", choices=TASKS | CONVEX, action="append")
    parser.add_argument("--algorithm", choices=FORMS, action="append")
    parser.add_argument("--form", action="append", help="a reading, as it is named in the tables")
    given = parser.parse_args()
    jobs = [
        Job(task, form, algorithm, given.device)
        for name in given.algorithm or FORMS
        for task in tasks_of(name)
        if task in (given.task or (TASKS | CONVEX))
        for form, algorithm in FORMS[name].items()
        if form in (given.form or FORMS[name])
    ]
    with multiprocessing.get_context("spawn").Pool(given.workers) as pool:
        for rows in pool.imap_unordered(measure, jobs):
            rows.to_csv(given.file, mode="a", index=False, header=not given.file.exists())


if __name__ == "__main__":
    main()
