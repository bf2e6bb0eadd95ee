"""Results in two small files: the histories of all runs, and how they were made."""

from __future__ import annotations

import gzip
import json
import math
from io import BytesIO
from pathlib import Path
from typing import Any

import pandas as pd

from undrift.reporting.record import TIMES, Record
from undrift.reproduce.experiment import Experiment, find
from undrift.reproduce.measures import measure_named
from undrift.reproduce.results import Chosen, Results, Tried
from undrift.storage import files

HISTORIES, ABOUT = "histories.csv.gz", "results.json"
_DIGITS = 6  # of accuracies and losses
_ABOUT_RUNS = ["case", "algorithm", "seed"]


def write(results: Results, home: Path) -> None:
    """Of every run the first round, those that were evaluated, the last one, and the one in which it diverged.

    With all columns but times, since measures may be of any, and with what is measured by predictions.
    """
    measures = [name for name in results.measures if measure_named(name).needs_predictions]
    frames = []
    for case, records in results.records.items():
        for record in records:
            found = _thinned(record.history)
            for name in measures:
                found[name] = [*[math.nan] * (len(found) - 1), measure_named(name).of(record)]
            frames.append(found.assign(case=case, algorithm=record.label, seed=record.seed))
    runs = pd.concat(frames)
    text = runs[[*_ABOUT_RUNS, *runs.columns.drop(_ABOUT_RUNS)]].round(_DIGITS).to_csv(index=False)
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
    edge = history["round"].isin([history["round"].min(), history["round"].max()])
    kept = history[history.accuracy.notna() | history.diverged | edge]
    return kept.drop(columns=[name for name in kept if name in TIMES])


def read(home: Path, experiment: Experiment | None = None) -> Results:
    """The results of an experiment, or of another one that looks at the same runs."""
    about: dict[str, Any] = json.loads((home / ABOUT).read_text("utf-8"))
    file = BytesIO(gzip.decompress((home / HISTORIES).read_bytes()))
    # An algorithm may be called "None".
    runs = pd.read_csv(file, dtype={"case": str, "algorithm": str}, keep_default_na=False, na_values=[""])
    runs["case"] = runs["case"].fillna("")
    records: dict[str, list[Record]] = {}
    for (case, label, seed), history in runs.groupby(["case", "algorithm", "seed"], sort=False):
        record = Record(str(label), int(str(seed)), history.reset_index(drop=True), {}, about["environment"])
        records.setdefault(str(case), []).append(record)
    chosen = {
        case: Chosen(each["algorithms"], [Tried(*one) for one in each["tried"]])
        for case, each in about["chosen"].items()
    }
    return Results(experiment or find(about["experiment"]), records, chosen, fast=about["fast"])
