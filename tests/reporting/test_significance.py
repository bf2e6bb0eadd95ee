"""Which differences are clear, and why: from records to a table, a line, a matrix and ranks."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence

import numpy as np
import pandas as pd
import pytest

from records import FEDAVG, FEDHBM, NAN, answering, answers, record
from undrift.core.extras import MissingExtraError
from undrift.reporting.headline import headline
from undrift.reporting.record import Record
from undrift.reporting.report import render
from undrift.reporting.sections.significance import significance
from undrift.reporting.significance import Pair, line_of, pairs_of
from undrift.simulation.comparison import Comparison
from undrift.statistics.samples import Answers, independence, mcnemar
from undrift.statistics.seeds import paired

pytestmark = pytest.mark.filterwarnings("error")


def runs(label: str, finals: Sequence[float], task: str = "") -> list[Record]:
    config = {"algorithm": {"name": label}, "model": task} if task else None
    return [record(label, [0.1, final], seed=seed, config=config) for seed, final in enumerate(finals)]


LOW, HIGH = [0.60, 0.61, 0.59, 0.60], [0.70, 0.72, 0.69, 0.71]


def only(records: Sequence[Record], everything: bool = False) -> Pair:
    (pair,) = pairs_of(records, everything=everything)
    return pair


class TestOverSeeds:
    def test_the_paired_t_test_decides(self) -> None:
        pair = only([*runs("A", LOW), *runs("B", HIGH)])
        expected = paired(LOW, HIGH)
        assert (pair.labels, pair.seeds) == (("A", "B"), 4)
        assert pair.difference == pytest.approx(-0.105)
        assert (pair.t_p, pair.p) == pytest.approx((expected.t, expected.t))
        assert (pair.wilcoxon_p, pair.cohens_d) == pytest.approx((expected.wilcoxon, expected.cohens_d))
        assert (pair.better, pair.decided_by) == ("B", "seeds")
        assert pair.reason == "paired t test over 4\u00a0seeds"

    def test_all_pairs_are_corrected_together(self) -> None:
        records = [*runs("A", LOW), *runs("B", HIGH), *runs("C", [0.6, 0.62, 0.58, 0.61])]
        found = {pair.labels: pair for pair in pairs_of(records)}
        assert list(found) == [("A", "B"), ("A", "C"), ("B", "C")]
        # Holm: the smallest of three times 3, the next times 2, but not below the one before
        smallest, next_one = found["B", "C"], found["A", "B"]
        assert smallest.p == pytest.approx(3 * smallest.t_p)
        assert next_one.p == pytest.approx(max(2 * next_one.t_p, smallest.p))
        assert [pair.better for pair in found.values()] == ["B", "", "B"]

    def test_runs_are_paired_by_seed_not_by_position(self) -> None:
        straight = [*runs("A", LOW), *runs("B", HIGH)]
        mixed = only([*straight[:4], *reversed(straight[4:])])
        assert (mixed.t_p, mixed.cohens_d) == pytest.approx((only(straight).t_p, only(straight).cohens_d))

    def test_seeds_that_only_one_has_do_not_count(self) -> None:
        assert only([*runs("A", LOW), *runs("B", HIGH[:3])]).seeds == 3
        apart = [*runs("A", LOW[:1]), record("B", HIGH[:1], seed=7)]
        assert only(apart).reason == "no seed in common"
        assert math.isnan(only(apart).p)

    def test_seeds_in_which_one_failed_do_not_count(self) -> None:
        failed = record("B", [0.1, 0.9], seed=3, diverged_at=2)
        assert only([*runs("A", LOW), *runs("B", HIGH[:3]), failed]).seeds == 3
        assert only([*runs("A", LOW[:1]), failed]).reason == "every run of B failed"

    def test_a_loss_is_better_when_it_is_lower(self) -> None:
        records = [
            record(label, [NAN], loss=[value], seed=seed)
            for label, values in (("A", LOW), ("B", HIGH))
            for seed, value in enumerate(values)
        ]
        assert only(records).better == "A"

    def test_the_same_in_every_seed(self) -> None:
        pair = only([*runs("A", LOW), *runs("B", LOW)])
        assert (pair.p, pair.better, pair.difference) == (1.0, "", 0.0)


class TestOnTestSamples:
    def test_one_seed_is_decided_by_mcnemar(self) -> None:
        pair = only([answering("A", 60, 100), answering("B", 80, 100)])
        table = Answers(60, 0, 20, 20)
        assert (pair.mcnemar_p, pair.mcnemar_corrected_p) == pytest.approx(tuple(mcnemar(table)))
        assert math.isnan(pair.independence_p), "it decides nothing"
        whole = only([answering("A", 60, 100), answering("B", 80, 100)], everything=True)
        assert whole.independence_p == pytest.approx(independence(table))
        assert (pair.samples, pair.better, pair.decided_by) == (100, "B", "test samples")
        assert pair.low < -0.2 < pair.high < 0
        assert "McNemar’s exact test on 100\u00a0test samples; one seed" in pair.reason

    def test_identical_predictions(self) -> None:
        pair = only([answering("A", 60, 100), answering("B", 60, 100)])
        assert (pair.mcnemar_p, pair.p, pair.low, pair.high, pair.better) == (1.0, 1.0, 0.0, 0.0, "")

    def test_of_two_seeds_it_holds_in_each(self) -> None:
        records = [
            *(answering("A", 60, 100, seed=seed) for seed in range(2)),
            *(answering("B", right, 100, seed=seed) for seed, right in enumerate((70, 80))),
        ]
        pair = only(records)
        assert pair.mcnemar_p == pytest.approx(mcnemar(Answers(60, 0, 10, 30)).exact)  # the larger of the two
        assert pair.better == "B"
        assert "too few to know the spread over seeds" in pair.reason

    def test_seeds_that_contradict_each_other(self) -> None:
        first, second = (
            [answering("A", n, 100, seed=s) for s, n in enumerate((60, 90))],
            [answering("B", n, 100, seed=s) for s, n in enumerate((90, 70))],
        )
        assert only([*first, *second]).mcnemar_p == 1.0

    def test_enough_seeds_are_tested_on_samples_where_asked_for(self) -> None:
        records = [
            answering(label, n + seed * k, 100, seed=seed)
            for label, n, k in (("A", 60, 1), ("B", 80, 2))
            for seed in range(3)
        ]
        assert math.isnan(only(records).mcnemar_p)
        pair = only(records, everything=True)
        assert pair.mcnemar_p < 0.01
        assert pair.decided_by == "seeds"

    def test_other_test_samples(self) -> None:
        other = answering("B", 80, 100)._replace(predictions=answers([True] * 90))
        assert "the test samples differ" in only([answering("A", 60, 100), other]).reason
        none = answering("B", 80, 100)._replace(predictions=None)
        pair = only([answering("A", 60, 100), none])
        assert "no predictions were kept" in pair.reason
        assert (pair.decided_by, pair.better, pair.samples) == ("", "", 0)


class TestTable:
    def test_a_row_per_pair(self) -> None:
        table = Comparison([*runs("A", LOW), *runs("B", HIGH), *runs("C", HIGH)]).tests()
        assert table[["label", "other", "better"]].to_numpy().tolist() == [
            ["A", "B", "B"],
            ["A", "C", "C"],
            ["B", "C", ""],
        ]
        for name in ("t_p_holm", "wilcoxon_p_holm", "mcnemar_p_holm", "independence_p", "rank_biserial", "low", "high"):
            assert pd.api.types.is_float_dtype(table[name])

    def test_a_single_label_has_no_row(self) -> None:
        table = Comparison(runs("A", LOW)).tests()
        assert table.empty
        assert "p" in table

    def test_tasks_are_tested_apart(self) -> None:
        records = [run for task in ("m", "n") for label, v in (("A", LOW), ("B", HIGH)) for run in runs(label, v, task)]
        table = Comparison(records).tests()
        assert table["task"].tolist() == ["m", "n"]
        assert table["p"][0] == pytest.approx(paired(LOW, HIGH).t)  # a pair for each

    def test_a_column_that_is_not_there(self) -> None:
        comparison = Comparison([*runs("A", LOW), *runs("B", HIGH)])
        assert comparison.tests("loss")["p"].tolist() == [1.0]
        with pytest.raises(ValueError, match=r"unknown column 'acuracy'.*accuracy"):
            comparison.tests("acuracy")
        with pytest.raises(ValueError, match="level"):
            comparison.tests(level=0)

    def test_a_stricter_level(self) -> None:
        comparison = Comparison([*runs("A", LOW), *runs("B", HIGH)])
        assert comparison.tests(level=1e-9)["better"].tolist() == [""]


class TestLine:
    def test_clear(self) -> None:
        line = line_of([*runs("A", LOW), *runs("B", HIGH), *runs("C", LOW)]).replace("\u00a0", " ")
        assert line == ("B clearly better than A and C; 1 other pair unclear (p < 0.001, paired t test over 4 seeds)")

    def test_unclear(self) -> None:
        line = line_of([*runs("A", LOW), *runs("B", [0.5, 0.7, 0.6, 0.65])]).replace("\u00a0", " ")
        assert line.startswith("no clear difference (p = 0.")

    def test_nothing_to_test(self) -> None:
        assert line_of(runs("A", LOW)) == ""
        assert line_of([record("A", FEDAVG), record("B", FEDHBM)]).startswith("no test of 1\u00a0pair: one seed")


@pytest.fixture
def without_scipy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("scipy", "statsmodels", "scikit_posthocs"):
        for module in [known for known in sys.modules if known.partition(".")[0] == name]:
            monkeypatch.delitem(sys.modules, module)
        monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.usefixtures("without_scipy")
def test_without_the_extra_everything_else_is_there() -> None:
    records = [*runs("A", LOW), *runs("B", HIGH)]
    with pytest.raises(MissingExtraError, match=r'pip install "undrift\[stats\]"'):
        Comparison(records).tests()
    assert line_of(records).startswith("not tested, as ")
    assert headline(records).startswith("B ended at")
    assert "No tests: " in render(records)


class TestSection:
    def test_a_matrix_of_all_pairs(self) -> None:
        section = significance([*runs("A", LOW), *runs("<B>", HIGH)])
        assert section is not None
        assert "<strong>+10.5" in section.html
        assert "−10.5" in section.html
        assert "&lt;B&gt;" in section.html
        assert "<B>" not in section.html

    def test_no_difference_has_no_sign(self) -> None:
        section = significance([*runs("A", LOW), *runs("B", LOW)])
        assert section is not None
        assert section.html.count("0.0<br>") == 2
        assert "+0.0" not in section.html

    def test_nothing_of_one_label(self) -> None:
        assert significance(runs("A", LOW)) is None

    def test_runs_that_cannot_be_compared(self) -> None:
        section = significance([record("A", FEDAVG, diverged_at=4), record("B", FEDHBM)])
        assert section is not None
        assert "not tested" in section.html


def several_tasks(labels: Sequence[str], tasks: int, seeds: int = 3) -> list[Record]:
    random = np.random.default_rng(0)
    return [
        run
        for task in range(tasks)
        for number, label in enumerate(labels)
        for run in runs(label, (0.5 + 0.1 * number + 0.02 * random.random(seeds)).tolist(), f"model-{task}")
    ]


class TestRanks:
    def test_of_labels_over_tasks(self) -> None:
        table = Comparison(several_tasks("ABC", 4)).ranks()
        assert table["label"].tolist() == ["A", "B", "C"]
        assert table["average_rank"].tolist() == [3, 2, 1]
        assert table["improvement"].iloc[1:].tolist() == [1, 1]
        assert table["interquartile_mean"].is_monotonic_increasing
        assert table.attrs["tasks"] == 4
        assert table.attrs["friedman_p"] == pytest.approx(math.exp(-4))  # χ² = 8 with two degrees of freedom

    def test_a_run_that_failed_counts_as_nothing(self) -> None:
        records = several_tasks("ABC", 3)
        failed = [r._replace(history=r.history.assign(diverged=True)) if r.label == "C" else r for r in records]
        assert Comparison(failed).ranks()["average_rank"].tolist() == [2, 1, 3]

    def test_one_task_is_refused(self) -> None:
        with pytest.raises(ValueError, match="at least 2 tasks that have 2 labels in common, got 1 task with 3 labels"):
            Comparison(several_tasks("ABC", 1)).ranks()

    def test_labels_that_some_task_lacks_are_left_out(self) -> None:
        records = [r for r in several_tasks("ABC", 3) if (r.label, r.config["model"]) != ("A", "model-2")]
        assert Comparison(records).ranks()["label"].tolist() == ["B", "C"]

    def test_the_diagram_has_all_labels_whatever_they_are(self) -> None:
        axes = Comparison(several_tasks(["A", "$x_{$", "<b>{0}"], 3)).plot_ranks()
        texts = [text.get_text() for text in axes.texts]
        assert [text.strip() for text in texts] == ["<b>{0} (1.00)", "$x_{$ (2.00)", "A (3.00)"]

    def test_the_page_shows_it_from_three_tasks_on(self) -> None:
        page = render(several_tasks(["A", "<blink>", "C"], 3))
        assert "Ranks over 3 tasks" in page
        assert "<blink>" not in page
        assert "http" not in page[page.index("Ranks over") : page.index("</figure>")]
        assert "Ranks over" not in render(several_tasks("ABC", 2))
