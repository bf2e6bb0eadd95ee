"""Accuracy under attack: aggregation rules on digits with 10 and 30 % of the clients malicious, three seeds.

    python docs/reproduction/attacks.py FILE.csv

writes a row per run to FILE.csv. `histories/attacks.csv` holds what was measured, from which `make docs` writes the
table of `docs/robustness.md`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

import undrift as ud
from undrift.methods.attack import KINDS

FILE = Path(__file__).parent / "histories" / "attacks.csv"
SEEDS = 3
SHARES = (0.1, 0.3)
# Rules that must know how many attack are told so.
RULES = {
    "mean": "mean",
    "median": "median",
    "trimmed mean": "trimmed-mean(share={share})",
    "Krum": "krum(share={share})",
    "Multi-Krum, 7 kept": "krum(share={share}, keep=7)",
    "geometric median": "geometric-median",
    "norm clipping": "norm-clip",
}


def cases() -> Iterator[tuple[str, str, float]]:
    """Rule, attack and share of attackers; the first of every rule without any."""
    for rule in RULES:
        yield rule, "none", 0.0
        for attack in KINDS:
            for share in SHARES:
                yield rule, attack, share


def measure(rule: str, attack: str, share: float, seed: int) -> float:
    """Final test accuracy of FedAvg; 20 clients, all of which take part."""
    run = ud.simulate(
        "fedavg",
        "mlp",
        ud.data.load("digits", partition="dirichlet:0.5", clients=20, seed=seed),
        rounds=25,
        cohort=None,
        steps=10,
        batch_size=32,
        lr=0.1,
        weighting="uniform",
        eval_every=25,
        seed=seed,
        engine="batched",
        aggregate=RULES[rule].format(share=share or max(SHARES)),
        attack=f"{attack}(share={share})" if share else None,
        on_divergence="stop",
    )
    return float("nan") if run.history.diverged.any() else float(run.history.accuracy.iloc[-1])


def table() -> str:
    """A table in Markdown: a row per rule, a column per attack."""
    runs = pd.read_csv(FILE, keep_default_na=False, na_values={"accuracy": [""]})
    head = ["| rule | no attack | " + " | ".join(KINDS) + " |", "|---" * (2 + len(KINDS)) + "|"]
    rows = []
    for rule in RULES:
        mine = runs[runs.rule == rule]
        cells = [_figure(mine[mine.attack == "none"])]
        for attack in KINDS:
            against = mine[mine.attack == attack]
            cells.append(" / ".join(_figure(against[against.share == share]) for share in SHARES))
        rows.append(f"| {rule} | " + " | ".join(cells) + " |")
    return "\n".join([*head, *rows])


def _figure(runs: pd.DataFrame) -> str:
    """Mean accuracy in percent; × where a run diverged."""
    return "×" if runs.accuracy.isna().any() else f"{100 * runs.accuracy.mean():.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    given = parser.parse_args()
    for rule, attack, share in cases():
        for seed in range(SEEDS):
            row = {"rule": rule, "attack": attack, "share": share, "seed": seed}
            found = pd.DataFrame([row | {"accuracy": measure(rule, attack, share, seed)}])
            found.to_csv(given.file, mode="a", index=False, header=not given.file.exists())


if __name__ == "__main__":
    main()
