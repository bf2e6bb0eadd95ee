"""Results in two small files: the histories of all runs, and how they were made."""

from __future__ import annotations

import gzip
import json
from io import BytesIO
from pathlib import Path
from typing import Any

import pandas as pd

from undrift.reporting.record import Record
from undrift.reproduce.experiment import Experiment, find
from undrift.reproduce.results import Chosen, Results, Tried
from undrift.storage import files

HISTORIES, ABOUT = "histories.csv.gz", "results.json"
_DIGITS = 6  # of accuracies and losses
COLUMNS = ["case", "algorithm", "seed", "round", "accuracy", "loss", "train_loss", "bytes_down", "bytes_up", "diverged"]


def write(results: Results, home: Path) -> None:
    """Of every run the rounds that were evaluated, the last one, and the one in which it diverged."""
    frames = [
        _thinned(record.history).assign(case=case, algorithm=record.label, seed=record.seed)[COLUMNS]
        for case, records in results.records.items()
        for record in records
    ]
    text = pd.concat(frames).round(_DIGITS).to_csv(index=False)
    files.replace(home / HISTORIES, gzip.compress(text.encode(), mtime=0))
    first = next(iter(results.records.values()))[0]
    known = ("device", "undrift", "torch", "python")
    about = {
        "experiment": results.experiment.folder,
        "fast": results.fast,
        "chosen": {case: each._asdict() for case, each in results.chosen.items()},
        "environment": {key: first.environment[key] for key in known if key in first.environment},
    }
    files.write_json(home / ABOUT, about)


def _thinned(history: pd.DataFrame) -> pd.DataFrame:
    """Traffic is that of all rounds up to each."""
    history = history.assign(bytes_down=history.bytes_down.cumsum(), bytes_up=history.bytes_up.cumsum())
    kept = history.accuracy.notna() | history.diverged | (history["round"] == history["round"].max())
    return pd.DataFrame(history[kept])


def read(home: Path, experiment: Experiment | None = None) -> Results:
    """The results of an experiment, or of another one that looks at the same runs."""
    about: dict[str, Any] = json.loads((home / ABOUT).read_text("utf-8"))
    file = BytesIO(gzip.decompress((home / HISTORIES).read_bytes()))
    missing = {name: [""] for name in ("accuracy", "loss", "train_loss")}
    # A case may be empty, and an algorithm may be called "None".
    runs = pd.read_csv(file, dtype={"case": str, "algorithm": str}, keep_default_na=False, na_values=missing)
    records: dict[str, list[Record]] = {}
    for (case, label, seed), history in runs.groupby(["case", "algorithm", "seed"], sort=False):
        record = Record(str(label), int(str(seed)), history.reset_index(drop=True), {}, about["environment"])
        records.setdefault(str(case), []).append(record)
    chosen = {
        case: Chosen(each["algorithms"], [Tried(*one) for one in each["tried"]])
        for case, each in about["chosen"].items()
    }
    return Results(experiment or find(about["experiment"]), records, chosen, fast=about["fast"])
