"""Results in small files: histories of all runs, how and where they were made, which test samples they get right."""

from __future__ import annotations

import base64
import gzip
import json
import math
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

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
_ENVIRONMENT = ("device", "undrift", "torch", "python")

Pair = tuple[str, str]  # a case and the label of an algorithm


class Stored(NamedTuple):
    """What the files hold."""

    about: dict[str, Any]
    runs: pd.DataFrame  # a row for every case, algorithm, seed and round
    answers: dict[Pair, Correct]
    environments: dict[Pair, dict[str, str]]  # where each was run

    @property
    def pairs(self) -> list[Pair]:
        return list(dict.fromkeys(zip(self.runs["case"], self.runs["algorithm"], strict=True)))


def exists(home: Path) -> bool:
    """Whether there are results in a folder."""
    return (home / HISTORIES).exists()


def check_home(home: Path, experiment: Experiment, *, fast: bool) -> None:
    """Refuse a folder to whose results those of an experiment cannot be added, before it is run."""
    if exists(home):
        about = {"experiment": experiment.folder, "fast": fast}
        _check_fits(read_files(home), about, f"{home} holds other results, choose another folder: ")


def write(results: Results, home: Path) -> None:
    """Of every run the first round, those that were evaluated, the last one, and the one in which it diverged.

    With all columns but times, since measures may be of any, and with what is measured by predictions. Of what is in
    the folder, the same algorithms in the same cases are replaced.
    """
    measures = final_measures(results.experiment)
    frames = []
    for case, records in results.records.items():
        for record in records:
            found = _thinned(record.history)
            for name in measures:
                found[name] = [*[math.nan] * (len(found) - 1), measure_named(name).of(record)]
            frames.append(found.assign(case=case, algorithm=record.label, seed=record.seed))
    about = {
        "experiment": results.experiment.folder,
        "fast": results.fast,
        "chosen": {case: each._asdict() for case, each in results.chosen.items()},
    }
    environments = {
        (case, record.label): {key: record.environment[key] for key in _ENVIRONMENT if key in record.environment}
        for case, records in results.records.items()
        for record in records
    }
    new = Stored(about, pd.concat(frames), dict(results.correct), environments)
    write_files(merged(read_files(home), new) if exists(home) else new, home)


def final_measures(experiment: Experiment) -> list[str]:
    """Those that need the predictions of final models, and are stored as columns."""
    return [name for name in experiment.measures if measure_named(name).needs_predictions]


def write_files(stored: Stored, home: Path) -> None:
    """Histories come last: until they are written, the other files are about more runs than there are, not fewer."""
    environments: list[dict[str, Any]] = []
    for (case, label), environment in stored.environments.items():
        if environment not in (each["environment"] for each in environments):
            environments.append({"environment": environment, "runs": {}})
        same = next(each["runs"] for each in environments if each["environment"] == environment)
        same.setdefault(case, []).append(label)
    files.write_json(home / ABOUT, stored.about | {"environments": environments})
    rows = [  # a bit a sample
        [case, label, seed, len(right), base64.b64encode(np.packbits(right).tobytes()).decode()]
        for (case, label), seeds in stored.answers.items()
        for seed, right in seeds.items()
    ]
    if rows:
        files.replace(home / ANSWERS, gzip.compress(json.dumps(rows).encode(), mtime=0))
    else:
        (home / ANSWERS).unlink(missing_ok=True)
    runs = stored.runs[[*_ABOUT_RUNS, *stored.runs.columns.drop(_ABOUT_RUNS)]]
    files.replace(home / HISTORIES, gzip.compress(runs.round(_DIGITS).to_csv(index=False).encode(), mtime=0))


def read_files(home: Path) -> Stored:
    file = BytesIO(gzip.decompress(files.read(home / HISTORIES)))
    # An algorithm may be called "None".
    runs = pd.read_csv(file, dtype={"case": str, "algorithm": str}, keep_default_na=False, na_values=[""])
    answers: dict[Pair, Correct] = {}
    if (home / ANSWERS).exists():
        for case, label, seed, count, text in json.loads(gzip.decompress((home / ANSWERS).read_bytes())):
            bits = np.unpackbits(np.frombuffer(base64.b64decode(text), np.uint8), count=count)
            answers.setdefault((case, label), {})[seed] = bits.astype(bool)
    about = files.read_json(home / ABOUT)
    environments = {
        (case, label): each["environment"]
        for each in about.pop("environments")
        for case, labels in each["runs"].items()
        for label in labels
    }
    found = Stored(about, runs.assign(case=runs["case"].fillna("")), answers, environments)
    for case, label in found.pairs:
        if (case, label) not in environments:
            raise files.DamageError(
                f"{home / ABOUT} is damaged: it does not say where {_named(case, label)} was run, which "
                f"{HISTORIES} beside it has"
            )
    return found


def add(part: Stored, home: Path) -> None:
    """Add results of some algorithms or cases to those that are in `home`, in the order of the experiment."""
    home.mkdir(parents=True, exist_ok=True)
    write_files(merged(read_files(home), part) if exists(home) else part, home)


def with_longer_runs(new: Stored, old: Stored) -> Stored:
    """With the old runs of further seeds, or of more rounds, where both have the same options and device."""
    alike = [
        pair
        for pair in new.pairs
        if pair in old.environments
        and old.environments[pair].get("device") == new.environments[pair].get("device")
        and _written(old, pair) == _written(new, pair)
    ]
    lengths = [dict(each.runs.groupby(_ABOUT_RUNS)["round"].max()) for each in (old, new)]
    kept = [run for run, rounds in lengths[0].items() if run[:2] in alike and rounds > lengths[1].get(run, 0)]
    runs = pd.concat([new.runs[~_among(new.runs, kept)], old.runs[_among(old.runs, kept)]])
    answers = {pair: dict(seeds) for pair, seeds in new.answers.items()}
    for case, label, seed in kept:
        answers.get((case, label), {}).pop(seed, None)
        if seed in (right := old.answers.get((case, label), {})):
            answers.setdefault((case, label), {})[seed] = right[seed]
    return new._replace(runs=runs, answers={pair: seeds for pair, seeds in answers.items() if seeds})


def _written(stored: Stored, pair: Pair) -> str:
    """An algorithm with its options, the rate that was chosen among them."""
    case, label = pair
    return str(stored.about["chosen"][case]["algorithms"][label])


def _among(runs: pd.DataFrame, wanted: Sequence[tuple[Any, ...]]) -> pd.Series[bool]:
    rows = zip(*(runs[name] for name in _ABOUT_RUNS), strict=True)
    return pd.Series([row in wanted for row in rows], index=runs.index, dtype=bool)


def merged(old: Stored, new: Stored) -> Stored:
    """Of an algorithm that both have in a case, the new runs are kept."""
    _check_fits(old, new.about)
    experiment = find(old.about["experiment"])
    cases = list(experiment.cases)
    labels = [each.label for each in experiment.entries]

    def position(column: pd.Series) -> pd.Series:
        order = {"case": cases, "algorithm": labels}.get(str(column.name))
        return column if order is None else column.map(order.index)

    pair = ["case", "algorithm"]
    replaced = pd.MultiIndex.from_frame(old.runs[pair]).isin(pd.MultiIndex.from_frame(new.runs[pair]))
    runs = pd.concat([old.runs[~replaced], new.runs])
    runs = runs.sort_values([*_ABOUT_RUNS, "round"], key=position, kind="stable")
    gone = set(new.pairs)
    kept = {pair: each for pair, each in old.answers.items() if pair not in gone} | new.answers
    pairs = [(case, label) for case in cases for label in labels]
    answers = {pair: kept[pair] for pair in pairs if pair in kept}
    ran = old.environments | new.environments
    environments = {pair: ran[pair] for pair in pairs if pair in ran}
    chosen = dict(old.about["chosen"])
    for case, found in new.about["chosen"].items():
        before = chosen.get(case, {"algorithms": {}, "tried": []})
        algorithms = before["algorithms"] | found["algorithms"]
        tried = [each for each in before["tried"] if each[0] not in found["algorithms"]] + [*found["tried"]]
        chosen[case] = {
            "algorithms": {label: algorithms[label] for label in labels if label in algorithms},
            "tried": sorted(tried, key=lambda each: labels.index(each[0])),
        }
    about = old.about | {"chosen": {case: chosen[case] for case in cases if case in chosen}}
    return Stored(about, runs, answers, environments)


def _check_fits(old: Stored, new: Mapping[str, Any], before: str = "") -> None:
    """Refuse to add results of another experiment or version, or to those of algorithms that it had once."""
    if new["experiment"] != old.about["experiment"]:
        raise ValueError(f"{before}results of {new['experiment']} are added to those of {old.about['experiment']}")
    if new["fast"] != old.about["fast"]:
        short, whole = ("added", "there") if new["fast"] else ("there", "added")
        raise ValueError(f"{before}results of the short version are {short}, and {whole} are those of the whole")
    experiment = find(old.about["experiment"])
    labels = [each.label for each in experiment.entries]
    for case, label in old.pairs:
        if case not in experiment.cases or label not in labels:
            raise ValueError(f"{before}there is {_named(case, label)}, which {experiment.name} does not have")


def _named(case: str, label: str) -> str:
    return f"{label} in {case}" if case else label


def _thinned(history: pd.DataFrame) -> pd.DataFrame:
    """Traffic is that of all rounds up to each."""
    history = history.assign(bytes_down=history.bytes_down.cumsum(), bytes_up=history.bytes_up.cumsum())
    edge = history["round"].isin([history["round"].min(), history["round"].max()])
    kept = history[history.accuracy.notna() | history.diverged | edge]
    return kept.drop(columns=[name for name in kept if name in TIMES])


def read(home: Path, experiment: Experiment | None = None) -> Results:
    """The results of an experiment, or of another one that looks at the same runs."""
    return results_of(read_files(home), experiment)


def results_of(given: Stored, experiment: Experiment | None = None) -> Results:
    about, runs, answers, environments = given
    records: dict[str, list[Record]] = {}
    for (case, label, seed), history in runs.groupby(["case", "algorithm", "seed"], sort=False):
        environment = environments[str(case), str(label)]
        record = Record(str(label), int(str(seed)), history.reset_index(drop=True), {}, environment)
        records.setdefault(str(case), []).append(record)
    chosen = {
        case: Chosen(each["algorithms"], [Tried(*one) for one in each["tried"]])
        for case, each in about["chosen"].items()
    }
    of = experiment or find(about["experiment"])
    return Results(of, records, chosen, fast=about["fast"], correct=answers)
