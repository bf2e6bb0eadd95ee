"""What the prose of the reproduction says is what the stored results say."""

from __future__ import annotations

import runpy
from pathlib import Path
from statistics import fmean

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from undrift.reporting.record import Record
from undrift.reporting.wording import NBSP
from undrift.reproduce import stored
from undrift.reproduce.experiment import find
from undrift.reproduce.pairs import pairs
from undrift.reproduce.results import Results
from undrift.statistics.seeds import paired

HOME = Path(__file__).parents[2] / "docs" / "reproduction"


def test_prose_has_its_figures_from_the_results() -> None:
    report = runpy.run_path(str(HOME / "report.py"))
    there = [stored.read(HOME / "results" / name) for name in ("feddpc-table2", "feddpc-fig7", "fedhbm-table4")]
    runs = there[0].runs("α = 0.2", "FedDPC"), there[0].runs("α = 0.2", "FedCM")
    lead = 100 * np.mean([a.history.accuracy.max() - b.history.accuracy.max() for a, b in zip(*runs, strict=True)])
    text = "{feddpc-table2 | α = 0.2 | FedDPC - FedCM | best}, {feddpc-table2 | α = 0.2 | paper FedDPC | best}"
    assert report["filled"](text, there) == f"{lead:.1f}, 55.44"
    text, best = (
        "{feddpc-fig7 | λ = 1 | best} % after {feddpc-fig7 | λ = 1 | rounds}",
        there[1].values("", "λ = 1", "best"),
    )
    assert report["filled"](text, there) == f"{best.mean:.1f} % after {there[1].rounds('')}"
    pairs_of_runs = [[100 * run.history.accuracy.max() for run in each] for each in runs]
    low, high = stats.ttest_rel(*pairs_of_runs).confidence_interval(0.95)
    text = "{feddpc-table2 | α = 0.2 | interval of FedDPC - FedCM | best}"
    assert report["filled"](text, there) == f"{low:+.1f} to {high:+.1f}"
    deviation = np.std(list(best.values.values()), ddof=1)
    assert report["filled"]("{feddpc-fig7 | spread of λ = 1 | best}", there) == f"{deviation:.2f}"
    # Of two with different rounds, what they have after those of the shorter one.
    rounds = there[2].rounds_of("non-IID")
    assert rounds["FedDyn"] < rounds["FedHBM"]
    means = [
        there[2].values("non-IID", each, "mean of last rounds", rounds["FedDyn"]).mean for each in ("FedHBM", "FedDyn")
    ]
    asked = "{fedhbm-table4 | non-IID | FedHBM - FedDyn | mean of last rounds}"
    assert report["filled"](asked, there) == f"{means[0] - means[1]:.1f}"


def test_nobody_is_the_best_where_all_runs_failed() -> None:
    report = runpy.run_path(str(HOME / "report.py"))
    history = pd.DataFrame(
        {"round": [1, 2], "accuracy": [0.1, np.nan], "train_loss": np.nan, "diverged": [False, True]}
    )
    of = find("fedpmvr-table3")
    failed = Results(of, {"no normalisation": [Record("FedAvg", 0, history, {}, {})]}, {}, fast=False)
    found: list[str] = report["best"](failed, "best", "no normalisation")
    assert [text.replace(NBSP, " ") for text in found] == ["2 of 100", "–", "FedAvg"]


@pytest.mark.parametrize(
    ("name", "case", "measure", "first"),
    [
        ("feddpc-table2", "α = 0.2", "best", ["FedDPC", "FedCM"]),
        ("feddpc-table2", "α = 0.6", "best", ["FedCM", "FedDPC"]),
        ("fedhbm-table4", "non-IID", "mean of last rounds", ["FedHBM", "FedDyn", "AdaBest", "FedADC"]),
        ("fedhbm-table3", "non-IID", "mean of last rounds", ["FedHBM", "FedDyn", "AdaBest"]),
        ("fedhbm-table3", "IID", "mean of last rounds", ["FedADC", "AdaBest", "FedDyn", "FedHBM"]),
        ("fedhbm-shakespeare", "non-IID", "mean of last rounds", ["FedADC", "AdaBest", "FedHBM", "FedDyn"]),
        ("fedpgvc-table2-mnist", "α = 0.5", "best", ["FedAvg", "FedBN", "FedNova", "FedPGVC (decay)", "FedPVR"]),
        ("fedpmvr-table1-fmnist", "β = 0.1", "best", ["SCAFFOLD"]),
        ("fedpmvr-table1-mnist", "β = 0.1", "best", ["SCAFFOLD"]),
        ("fedpmvr-table1-cifar10", "β = 0.1", "best", ["SCAFFOLD", "FedDyn", "FedPVR"]),
    ],
)
def test_orders_that_the_prose_names_are_those_of_the_results(
    name: str, case: str, measure: str, first: list[str]
) -> None:
    """After the rounds that all have."""
    found = stored.read(HOME / "results" / name)
    rounds = found.rounds_of(case)
    means = {each: found.values(case, each, measure, min(rounds.values())).mean for each in rounds}
    assert sorted(means, key=means.__getitem__, reverse=True)[: len(first)] == first


def test_fedhbm_is_ahead_of_all_others_by_more_than_chance() -> None:
    found = stored.read(HOME / "results" / "fedhbm-table3")
    claim = next(each for each in found.experiment.claims if each.cases == ("non-IID",))
    compared = pairs(found, claim)
    assert len(compared) == 11
    assert all(pair.low > 0 for pair in compared)
    fewest = f"{min(found.rounds_of('non-IID').values()):,} of 10,000 rounds or more".replace(",", " ")
    assert f"by more than chance, after {fewest}" in (HOME / "index.md").read_text("utf-8")


def test_fsvrg_with_several_models_is_ahead_of_all_but_mimesvrg_on_cifar10() -> None:
    found = stored.read(HOME / "results" / "fsvrg-cifar10")
    for first in ("MA-FSVRG", "GA-FSVRG"):
        claim = next(each for each in found.experiment.claims if each.better == first and len(each.than) > 1)
        assert {pair.other for pair in pairs(found, claim) if not pair.low > 0} == {"MimeSVRG"}


@pytest.mark.parametrize("data", ["fmnist", "mnist", "cifar10"])
def test_no_reading_of_fedpmvr_is_ahead_of_fedavg_by_more_than_chance(data: str) -> None:
    found = stored.read(HOME / "results" / f"fedpmvr-table1-{data}")
    compared = [(case, form) for case in found.records for form in found.rounds_of(case) if form.startswith("FedPMVR")]
    assert compared
    for case, form in compared:
        rounds = found.rounds_of(case)
        both = [found.values(case, each, "best", min(rounds[form], rounds["FedAvg"])) for each in (form, "FedAvg")]
        test = paired(*([each.values[seed] for seed in range(3)] for each in both))
        assert test.difference < 0 or test.t > 0.05, (case, form)


def test_how_many_runs_of_fsvrg_with_several_models_end_far_below_others() -> None:
    found = stored.read(HOME / "results" / "fsvrg-mnist")
    below = {
        (case, label): sum(value < 90 for value in found.values(case, label, "last").values.values())
        for case in found.records
        for label in found.labels(case)
    }
    assert {each: count for each, count in below.items() if count > 1} == {
        ("20%", "MA-FSVRG"): 3,
        ("20%", "GA-FSVRG"): 2,
    }
    assert below["20%", "FSVRG"] == 0
    medians = {
        case: {label: np.median([*found.values(case, label, "last").values.values()]) for label in found.labels(case)}
        for case in found.records
    }
    best = {case: max(of, key=of.__getitem__) for case, of in medians.items()}
    assert best == {"20%": "FSVRG", "15%": "MA-FSVRG", "10%": "MA-FSVRG", "5%": "MA-FSVRG"}


def test_what_images_prepared_as_in_the_public_code_of_fedhbm_gain() -> None:
    runs = _released("fedhbm(beta=1.0)", "batches, their scale", 0.001)
    theirs = runs[runs["round"].between(901, 1000)].accuracy.mean()
    found = stored.read(HOME / "results" / "fedhbm-table3")
    histories = [run.history.dropna(subset="accuracy") for run in found.runs("non-IID", "FedHBM")]
    ours = fmean(each[each["round"].between(901, 1000)].accuracy.mean() for each in histories)
    words = f"has {100 * theirs:.1f} % in rounds 901 to 1000, without it {100 * ours:.1f} (three seeds)"
    assert words in (HOME / "fedhbm.md").read_text("utf-8")


def test_what_fedhbm_reaches_with_the_smallest_weight_decay_of_its_grid() -> None:
    run = _released("fedhbm(beta=1.0)", "each", 0.0004).set_index("round").accuracy
    assert run.index.max() == 10000
    last, more = (100 * run.loc[10001 - rounds :].mean() for rounds in (100, 1000))
    first = [int(run.index[run >= accuracy][0]) for accuracy in (0.605, 0.692, 0.778)]
    text = (HOME / "fedhbm.md").read_text("utf-8")
    assert f"FedHBM has {last:.1f} % in the last 100 rounds and {more:.1f} in the last 1000" in text
    found = stored.read(HOME / "results" / "fedhbm-table3")
    with_more = [run.history[run.history["round"] > 9000].accuracy.mean() for run in found.runs("non-IID", "FedHBM")]
    assert f"and {100 * fmean(with_more):.1f}, and needs" in text
    assert f"needs {first[0]}, {first[1]} and {first[2]} rounds to 60.5, 69.2 and 77.8 %" in text
    assert f"at {last:.1f} (one seed)" in (HOME / "index.md").read_text("utf-8")


def _released(algorithm: str, images: str, weight_decay: float) -> pd.DataFrame:
    runs = pd.read_csv(HOME / "histories" / "released.csv.gz")
    of = (runs.algorithm == algorithm) & (runs.images == images) & (runs.weight_decay == weight_decay)
    return runs[of]


def test_what_mimemom_reaches_at_other_rates() -> None:
    runs = pd.read_csv(HOME / "histories" / "fedhbm-table3.csv.gz")
    after = runs[runs["round"] == 1000].groupby(["algorithm", "lr"]).accuracy.max()
    mimemom, fedhbm = (100 * after[run] for run in (("MimeMom", 0.05), ("FedHBM", 0.01)))
    words = f"one seed, held-out training samples: {mimemom:.1f} % after 1000 rounds, FedHBM {fedhbm:.1f})"
    assert words in (HOME / "fedhbm.md").read_text("utf-8")


def test_what_the_summed_control_of_the_public_code_of_fedhbm_reaches() -> None:
    runs = pd.read_csv(HOME / "histories" / "released.csv.gz").set_index("algorithm")
    text = (HOME / "fedhbm.md").read_text("utf-8")
    for algorithm, words in [
        ("summedscaffold", "stays at {best:.1f} % for {rounds} rounds at a rate of 0.01"),
        ("summedscaffold(lr=0.0001)", "reaches {best:.1f} % within {rounds} at 0.0001"),
    ]:
        run = runs.loc[algorithm]
        assert words.format(best=100 * run.accuracy.max(), rounds=run["round"].max()) in text


def test_what_models_and_settings_of_the_public_code_of_fedpmvr_reach() -> None:
    runs = pd.read_csv(HOME / "histories" / "released-fedpmvr.csv.gz")
    text = (HOME / "fedpmvr.md").read_text("utf-8")
    for data, each in runs.groupby("data"):
        best = 100 * each.groupby("seed").accuracy.max()
        assert len(best) == 3
        assert f"{best.mean():.1f} ± {best.std():.1f}" in text, data
    mnist = runs[(runs.data == "mnist") & (runs.accuracy >= 0.9715)].groupby("seed")["round"].min()
    assert f"97.15 % of which it reaches after {mnist.mean():.0f}" in text


def test_what_scaffold_reaches_at_the_end_of_fedhbms_experiment() -> None:
    found = stored.read(HOME / "results" / "fedhbm-table3")
    (whole,) = [run.history for run in found.runs("non-IID", "SCAFFOLD") if run.history["round"].max() == 10000]
    last = 100 * whole[whole["round"] > 9900].accuracy.mean()
    assert f"the one seed that was run to the end has {last:.1f} in the last 100" in (HOME / "fedhbm.md").read_text(
        "utf-8"
    )
