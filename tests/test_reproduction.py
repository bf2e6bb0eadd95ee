"""Pages show what is stored, and the scripts that measured it work and know all of it."""

from __future__ import annotations

import re
import runpy
from functools import partial
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
import pytest
import torch

import undrift as ud
from undrift.algorithms.text import parse
from undrift.recommendation import measured
from undrift.reproduce.experiment import names

HOME = Path(__file__).parents[1] / "docs" / "reproduction"
SCRIPT = runpy.run_path(str(HOME / "readings.py"))
ATTACKS = runpy.run_path(str(HOME / "attacks.py"))
FORMS: dict[str, str] = {form: text for forms in SCRIPT["FORMS"].values() for form, text in forms.items()}


def test_readings_are_algorithms() -> None:
    assert all(parse(text) for text in FORMS.values())


def test_what_is_stored_is_known() -> None:
    stored = pd.read_csv(SCRIPT["FILE"])
    assert list(stored) == SCRIPT["COLUMNS"]
    assert set(stored.task) <= set(SCRIPT["TASKS"] | SCRIPT["CONVEX"])
    assert set(stored.form) <= set(FORMS)


@pytest.mark.parametrize("form", ["FedAvg", "MA-FSVRG, by default"])
def test_a_reading_is_measured_at_every_rate_with_every_seed(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCRIPT["TASKS"], "tiny", SCRIPT["Task"]("digits", "softmax", 10, 5))
    rows = SCRIPT["measure"](SCRIPT["Job"]("tiny", form, FORMS[form], "cpu"))
    assert list(rows) == SCRIPT["COLUMNS"]
    assert sorted(zip(rows.lr, rows.seed, strict=True)) == [(lr, seed) for lr in SCRIPT["RATES"] for seed in range(3)]


def test_every_attack_was_measured() -> None:
    stored = pd.read_csv(ATTACKS["FILE"], keep_default_na=False, na_values={"accuracy": [""]})
    cases = [(*case, seed) for case in ATTACKS["cases"]() for seed in range(ATTACKS["SEEDS"])]
    assert list(zip(stored.rule, stored.attack, stored.share, stored.seed, strict=True)) == cases
    assert ATTACKS["table"]().count("\n") == 1 + len(ATTACKS["RULES"])


def test_pages_of_experiments_are_up_to_date() -> None:
    """Every figure on them is computed again from the histories."""
    pages = runpy.run_path(str(HOME / "report.py"))["pages"]()
    assert len(pages) > 1
    for path, text in pages.items():
        assert path.read_text("utf-8") == text, f"make reproduction-report writes another {path.name}"


def test_what_is_stored_of_all_algorithms_is_known() -> None:
    runs = measured.rows()
    assert list(runs) == measured.COLUMNS
    assert set(runs.task) <= set(measured.TASKS)
    assert set(runs.algorithm) <= set(measured.ALGORITHMS)
    counts = runs.groupby(["task", "algorithm"]).size()
    assert (counts == measured.SEEDS * len(measured.RATES)).all()
    assert measured.same_as(runs) == {"fedbn": "fedavg", "mimelite": "fedavg", "mimesvrg": "mime"}


def test_times_of_all_algorithms_are_stored_and_measured_in_turns() -> None:
    stored = measured.times()
    assert list(stored) == measured.TIME_COLUMNS
    assert (stored.ratio > 0).all()
    for _, each in stored.groupby(["device", "clients"]):
        assert [measured.BASELINE, *each.algorithm] == list(measured.ALGORITHMS)
    script = runpy.run_path(str(HOME / "times.py"))
    script["measure"].__globals__["SAMPLES"] = 400
    rows = script["measure"]("all", "cpu", ["mime"], 1)
    assert list(rows) == measured.TIME_COLUMNS
    assert rows.ratio.item() > 0


def test_times_are_kept_as_soon_as_a_part_is_measured(tmp_path: Path) -> None:
    """A part replaces what was measured of the same clients on the same device."""
    keep, file = runpy.run_path(str(HOME / "times.py"))["keep"], tmp_path / "times.csv"

    def row(device: str, clients: str, ratio: float) -> pd.DataFrame:
        return pd.DataFrame([[device, clients, "mime", ratio]], columns=measured.TIME_COLUMNS)

    for each in (row("cpu", "10 %", 1.0), row("cpu", "all", 2.0), row("cuda", "all", 3.0), row("cpu", "all", 4.0)):
        keep(each, file)
    assert list(pd.read_csv(file).itertuples(index=False, name=None)) == [
        ("cpu", "10 %", "mime", 1.0),
        ("cuda", "all", "mime", 3.0),
        ("cpu", "all", "mime", 4.0),
    ]


def test_a_setting_that_diverges_at_once_has_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    data = ud.data.load("digits", partition="iid", clients=4)
    diverges = partial(ud.simulate, "fedprox(mu=1e17)", "softmax", data, rounds=2, cohort="all", steps=9, lr=1e17)
    monkeypatch.setattr(ud.data, "load", lambda *_, **__: data)
    monkeypatch.setattr(ud, "simulate", lambda *_, **__: diverges())
    found = runpy.run_path(str(HOME / "stability.py"))["measure"](("mime", 1000))
    assert found.to_dict("records") == [{"setting": "mime", "planned": 1000, "end": "diverged in round 1"}]


def test_every_experiment_is_on_the_page_of_its_paper() -> None:
    report = runpy.run_path(str(HOME / "report.py"))
    texts = {name: (HOME / f"{name}.md").read_text("utf-8") for name in report["PAPERS"]}
    shown = {
        name: [f"{each.name}.md)" in text or f"reproduce {each.name}`" in text for each in report["of_paper"](name)]
        for name, text in texts.items()
    }
    assert all(all(each) for each in shown.values())
    assert sum(map(len, shown.values())) == len(names())


def test_curves_of_experiments_are_up_to_date() -> None:
    """Every point is computed and drawn again; what else is in the files depends on the version of matplotlib."""
    number, identifier = re.compile(r"-?\d+\.?\d*"), re.compile(r"\b[mp][0-9a-f]{10}\b")
    drawn = {path: each.decode() for path, each in runpy.run_path(str(HOME / "report.py"))["pictures"]().items()}
    compared = []
    for path, new in drawn.items():
        stored, text = (identifier.sub("", each) for each in (path.read_text("utf-8"), new))
        assert len(stored) < 100_000
        if f"Matplotlib v{matplotlib.__version__}," not in stored:
            continue
        compared.append(path.name)
        message = f"make reproduction-report draws another {path.name}"
        assert number.sub("", stored) == number.sub("", text), message
        found, wanted = (np.array(number.findall(each), float) for each in (stored, text))
        np.testing.assert_allclose(found, wanted, atol=0.01, rtol=0, err_msg=message)
    assert drawn
    if not compared:
        pytest.skip("all curves were drawn by another version of matplotlib")


@pytest.mark.parametrize(
    ("situation", "sentence"),
    [
        ("many clients, a part of them in each round, very different classes", "A tenth of the clients a round"),
        ("few clients, all in every round (hospitals, companies)", "All clients in every round"),
        ("clients are alike", "Clients that are alike"),
        ("clients that appear once (phones)", "Clients that keep nothing between rounds"),
        ("traffic is what costs", "Traffic at most FedAvg's"),
    ],
)
def test_advice_by_situation_is_that_of_the_table_of_all_algorithms(situation: str, sentence: str) -> None:
    """The first three that docs/which-algorithm.md names for a situation."""

    def names(file: Path, start: str) -> list[str]:
        line = next(line for line in file.read_text("utf-8").splitlines() if start in line)
        return re.findall(r"algorithms/(\w+)\.md", line)[:3]

    advice = names(HOME.parent / "which-algorithm.md", f"| {situation} |")
    assert len(advice) == 3
    assert advice == names(HOME / "grand.md", f"**{sentence}")


def test_the_table_of_all_algorithms_chooses_by_held_out_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grand = runpy.run_path(str(HOME / "grand.py"))
    assert len(grand["TASKS"]) == 16
    task = grand["Task"]("digits", "softmax", "dirichlet:1", 20, 2)
    monkeypatch.setitem(grand["TASKS"], "tiny", task)
    held, count = grand["federation"](task, 0)
    whole = ud.data.load("digits", partition="dirichlet:1", clients=20)
    assert count + held.sizes.sum() == whole.sizes.sum()
    assert whole.test is not None
    assert torch.equal(held.test[0][count:], whole.test[0])
    rows = grand["measure"](grand["Job"]("tiny", "fedavg", "cpu"))
    assert list(rows) == measured.COLUMNS
    assert sorted(zip(rows.lr, rows.seed, strict=True)) == [(lr, seed) for lr in measured.RATES for seed in range(3)]
    alone = ud.simulate(
        *("fedavg", "softmax", held),
        rounds=2,
        cohort=10,
        steps=20,
        batch_size=32,
        lr=0.1,
        weight_decay=0.0,
        augment=None,
    )
    assert alone.predictions is not None
    right = alone.predictions.labels == alone.predictions.targets
    mine = rows[(rows.lr == 0.1) & (rows.seed == 0)]
    assert mine.held_out.item() == pytest.approx(right[:count].mean(), abs=0.01)
    assert mine.test.item() == pytest.approx(right[count:].mean(), abs=0.01)
    rows.to_csv(tmp_path / "rows.csv", index=False)
    left = grand["jobs"](["tiny", "cifar10, IID, all"], ["gafsvrg", "fedavg"], "cpu", tmp_path / "rows.csv")
    assert [(job.task, job.algorithm) for job in left] == [
        ("cifar10, IID, all", "fedavg"),
        ("tiny", "gafsvrg"),
        ("cifar10, IID, all", "gafsvrg"),
    ]
