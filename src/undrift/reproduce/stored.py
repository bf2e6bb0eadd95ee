"""Results in small files: the histories of all runs, how they were made, and which test samples they get right."""

from __future__ import annotations

import base64
import gzip
import json
import math
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path

import numpy as np
import pandas as pd

from undrift.reporting.record import TIMES, Record
from undrift.reproduce.experiment import Experiment, find
from undrift.reproduce.measures import measure_named
from undrift.reproduce.results import Chosen, Correct, Results, Tried
from undrift.storage import files

HISTORIES, ABOUT, ANSWERS = "histories.csv.gz", "results.json", "answers.json.gz"
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
    _write_histories(pd.concat(frames), home)
    _write_answers(results.correct, home)
    first = next(iter(results.records.values()))[0]
    known = ("device", "undrift", "torch", "python")
    about = {
        "experiment": results.experiment.folder,
        "fast": results.fast,
        "chosen": {case: each._asdict() for case, each in results.chosen.items()},
        "environment": {key: first.environment[key] for key in known if key in first.environment},
    }
    files.write_json(home / ABOUT, about)


def _write_histories(runs: pd.DataFrame, home: Path) -> None:
    text = runs[[*_ABOUT_RUNS, *runs.columns.drop(_ABOUT_RUNS)]].round(_DIGITS).to_csv(index=False)
    files.replace(home / HISTORIES, gzip.compress(text.encode(), mtime=0))


def _read_histories(home: Path) -> pd.DataFrame:
    file = BytesIO(gzip.decompress((home / HISTORIES).read_bytes()))
    # An algorithm may be called "None".
    runs = pd.read_csv(file, dtype={"case": str, "algorithm": str}, keep_default_na=False, na_values=[""])
    return runs.assign(case=runs["case"].fillna(""))


def _write_answers(correct: Mapping[tuple[str, str], Correct], home: Path) -> None:
    """A bit a sample; nothing where no run kept them."""
    rows = [
        [case, label, seed, len(right), base64.b64encode(np.packbits(right).tobytes()).decode()]
        for (case, label), seeds in correct.items()
        for seed, right in seeds.items()
    ]
    if rows:
        files.replace(home / ANSWERS, gzip.compress(json.dumps(rows).encode(), mtime=0))


def _read_answers(home: Path) -> dict[tuple[str, str], Correct]:
    found: dict[tuple[str, str], Correct] = {}
    if (home / ANSWERS).exists():
        for case, label, seed, count, text in json.loads(gzip.decompress((home / ANSWERS).read_bytes())):
            bits = np.unpackbits(np.frombuffer(base64.b64decode(text), np.uint8), count=count)
            found.setdefault((case, label), {})[seed] = bits.astype(bool)
    return found


def add(part: Path, home: Path) -> None:
    """Add results of some algorithms or cases to those that are in `home`, in the order of the experiment.

    Of an algorithm that both have in a case, those of `part` are kept. Both must be from the same device.
    """
    if not (home / ABOUT).exists():
        home.mkdir(parents=True, exist_ok=True)
        for name in (HISTORIES, ABOUT, ANSWERS):
            if (part / name).exists():
                files.replace(home / name, (part / name).read_bytes())
        return
    new, about, own = _read_histories(part), files.read_json(home / ABOUT), files.read_json(part / ABOUT)
    if own["experiment"] != about["experiment"]:
        raise ValueError(f"{part} has results of {own['experiment']}, {home} of {about['experiment']}")
    here, there = (each["environment"].get("device") for each in (own, about))
    if here != there:  # which pages name for all of them
        raise ValueError(f"{part} has results from {here}, {home} from {there}: keep them apart")
    old = _read_histories(home)
    pair = ["case", "algorithm"]
    replaced = pd.MultiIndex.from_frame(old[pair]).isin(pd.MultiIndex.from_frame(new[pair]))
    experiment = find(about["experiment"])
    cases = list(experiment.cases)
    labels = [each.label for each in experiment.entries]

    def position(column: pd.Series) -> pd.Series:
        order = {"case": cases, "algorithm": labels}.get(str(column.name))
        return column if order is None else column.map(order.index)

    runs = pd.concat([old[~replaced], new]).sort_values([*_ABOUT_RUNS, "round"], key=position, kind="stable")
    _write_histories(runs, home)
    gone = set(zip(new["case"], new["algorithm"], strict=True))
    kept = {pair: each for pair, each in _read_answers(home).items() if pair not in gone} | _read_answers(part)
    _write_answers(
        {(case, label): kept[case, label] for case in cases for label in labels if (case, label) in kept}, home
    )
    chosen = about["chosen"]
    for case, found in own["chosen"].items():
        before = chosen.get(case, {"algorithms": {}, "tried": []})
        algorithms = before["algorithms"] | found["algorithms"]
        tried = [each for each in before["tried"] if each[0] not in found["algorithms"]] + found["tried"]
        chosen[case] = {
            "algorithms": {label: algorithms[label] for label in labels if label in algorithms},
            "tried": sorted(tried, key=lambda each: labels.index(each[0])),
        }
    about["chosen"] = {case: chosen[case] for case in cases if case in chosen}
    files.write_json(home / ABOUT, about)


def _thinned(history: pd.DataFrame) -> pd.DataFrame:
    """Traffic is that of all rounds up to each."""
    history = history.assign(bytes_down=history.bytes_down.cumsum(), bytes_up=history.bytes_up.cumsum())
    edge = history["round"].isin([history["round"].min(), history["round"].max()])
    kept = history[history.accuracy.notna() | history.diverged | edge]
    return kept.drop(columns=[name for name in kept if name in TIMES])


def read(home: Path, experiment: Experiment | None = None) -> Results:
    """The results of an experiment, or of another one that looks at the same runs."""
    about, runs = files.read_json(home / ABOUT), _read_histories(home)
    records: dict[str, list[Record]] = {}
    for (case, label, seed), history in runs.groupby(["case", "algorithm", "seed"], sort=False):
        record = Record(str(label), int(str(seed)), history.reset_index(drop=True), {}, about["environment"])
        records.setdefault(str(case), []).append(record)
    chosen = {
        case: Chosen(each["algorithms"], [Tried(*one) for one in each["tried"]])
        for case, each in about["chosen"].items()
    }
    of = experiment or find(about["experiment"])
    return Results(of, records, chosen, fast=about["fast"], correct=_read_answers(home))
