"""The report: its numbers, its words, and a page that needs nothing else."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from undrift.reporting import report
from undrift.reporting.summary import Record, headline, summarise

NAN = math.nan


def record(
    label: str,
    accuracy: Sequence[float],
    *,
    seed: int = 0,
    loss: Sequence[float] | None = None,
    diverged_at: int | None = None,
    config: dict[str, Any] | None = None,
) -> Record:
    """A run of 150 bytes and half a second a round, with rounds counted from one."""
    rounds = list(range(1, len(accuracy) + 1))
    history = pd.DataFrame(
        {
            "round": rounds,
            "loss": list(loss) if loss is not None else [1 / number for number in rounds],
            "accuracy": list(accuracy),
            "train_loss": [2 / number for number in rounds],
            "bytes_down": 100,
            "bytes_up": 50,
            "seconds": 0.5,
            "participants": 10,
            "diverged": [number == diverged_at for number in rounds],
        }
    )
    return Record(label, seed, history, config or {"algorithm": {"name": label}, "seed": seed}, {"torch": "2.9"})


def said(records: Sequence[Record], target: float | None = None) -> str:
    """The headline, with plain spaces."""
    return headline(records, target).replace("\u00a0", " ")


def page(records: Sequence[Record], **options: Any) -> str:
    """The page without plotly.js, which would drown every failure message."""
    html = report.render(records, **options)
    return re.sub(r"<script>/\*.*?</script>", "", html, flags=re.DOTALL).replace("\u00a0", " ")


def chart_data(records: Sequence[Record], **options: Any) -> dict[str, Any]:
    match = re.search(r'id="report-data">(.*?)</script>', page(records, **options), re.DOTALL)
    assert match
    data = json.loads(match[1])
    assert isinstance(data, dict)
    return data


FEDAVG = [0.5, 0.6, 0.7, 0.8]
FEDHBM = [0.7, 0.8, 0.9, 0.95]


class TestSummarise:
    def test_hand_computed(self) -> None:
        summary = summarise(
            [
                record("FedAvg", [0.5, 0.9, 0.7], seed=0, loss=[3, 2, 1]),
                record("FedHBM", [0.8, 0.9, 0.9], seed=0),
                record("FedAvg", [0.5, 0.6, 0.9], seed=1, loss=[3, 2, 2]),
            ]
        )
        assert list(summary.columns) == [
            "label",
            "runs",
            "accuracy",
            "accuracy_std",
            "best_accuracy",
            "loss",
            "rounds_to_target",
            "traffic",
            "seconds",
            "diverged",
        ]
        assert summary.attrs["target"] == pytest.approx(0.8)
        first, second = summary.to_dict("records")
        assert first == pytest.approx(
            {
                "label": "FedAvg",
                "runs": 2,
                "accuracy": 0.8,
                "accuracy_std": 0.02**0.5,
                "best_accuracy": 0.9,
                "loss": 1.5,
                "rounds_to_target": 2.5,
                "traffic": 450,
                "seconds": 1.5,
                "diverged": 0,
            }
        )
        assert second["label"] == "FedHBM"
        assert second["rounds_to_target"] == 1
        assert math.isnan(second["accuracy_std"])

    def test_final_is_the_last_evaluated_round(self) -> None:
        summary = summarise([record("FedAvg", [0.5, 0.6, NAN], loss=[2, 1, NAN])])
        assert (summary["accuracy"][0], summary["loss"][0]) == (0.6, 1)

    def test_a_given_target_counts_only_the_seeds_that_reach_it(self) -> None:
        runs = [record("FedAvg", [0.5, 0.9], seed=0), record("FedAvg", [0.5, 0.6], seed=1)]
        summary = summarise([*runs, record("FedHBM", [0.1, 0.2])], target=0.85)
        assert summary.attrs["target"] == 0.85
        assert summary.loc[0, "rounds_to_target"] == 2
        assert math.isnan(summary["rounds_to_target"][1])

    def test_a_method_reaches_its_own_mean_in_spite_of_rounding(self) -> None:
        runs = [record("FedAvg", [0.0, 0.1], seed=seed) for seed in range(3)]
        assert summarise(runs).loc[0, "rounds_to_target"] == 2

    def test_regression_has_no_target(self) -> None:
        summary = summarise([record("FedAvg", [NAN, NAN])])
        assert summary.attrs["target"] is None
        assert math.isnan(summary["accuracy"][0])

    def test_diverged_seeds_are_counted(self) -> None:
        runs = [record("FedAvg", [0.5, 0.1], seed=0, diverged_at=2), record("FedAvg", FEDAVG, seed=1)]
        assert summarise(runs).loc[0, "diverged"] == 1


class TestBadInput:
    def test_no_records(self) -> None:
        with pytest.raises(ValueError, match="at least one record, got none"):
            summarise([])

    def test_empty_history(self) -> None:
        with pytest.raises(ValueError, match=r"'FedAvg' \(seed 3\) is empty"):
            report.render([record("FedAvg", [], seed=3)])

    def test_missing_column(self) -> None:
        given = record("FedAvg", FEDAVG)
        with pytest.raises(ValueError, match=r"'FedAvg' \(seed 0\) lacks the columns seconds"):
            summarise([given._replace(history=given.history.drop(columns="seconds"))])

    def test_the_same_run_twice(self) -> None:
        with pytest.raises(ValueError, match=r"both 'FedAvg' \(seed 0\)"):
            summarise([record("FedAvg", FEDAVG), record("FedAvg", FEDHBM)])

    @pytest.mark.parametrize("target", [95, -0.1, NAN])
    def test_target_out_of_range(self, target: float) -> None:
        with pytest.raises(ValueError, match=f"between 0 and 1, got {target}"):
            summarise([record("FedAvg", FEDAVG)], target)


class TestHeadline:
    def test_one_run(self) -> None:
        assert said([record("FedAvg", FEDAVG)]) == "FedAvg ended at 80.0 % accuracy after 4 rounds."

    def test_one_method_several_seeds(self) -> None:
        runs = [record("FedAvg", FEDAVG, seed=seed) for seed in range(3)]
        assert said(runs) == "FedAvg ended at 80.0 % accuracy after 4 rounds, the mean of 3 seeds."

    def test_one_method_and_a_target(self) -> None:
        run = [record("FedAvg", FEDAVG)]
        assert said(run, 0.7).endswith("; it reached 70.0 % in 3 rounds.")
        assert said(run, 0.9).endswith("; it did not reach 90.0 %.")

    def test_better_and_sooner(self) -> None:
        assert said([record("FedAvg", FEDAVG), record("FedHBM", FEDHBM)]) == (
            "FedHBM ended at 95.0 % accuracy, 15.0 points above FedAvg, "
            "and reached FedAvg’s final accuracy in 2 rounds instead of 4."
        )

    def test_worse(self) -> None:
        assert said([record("FedHBM", FEDHBM), record("FedAvg", FEDAVG)]) == (
            "FedAvg ended at 80.0 % accuracy, 15.0 points below FedHBM, and did not reach FedHBM’s final accuracy."
        )

    def test_worse_though_once_better(self) -> None:
        assert said([record("FedAvg", FEDAVG), record("FedHBM", [0.7, 0.85, 0.8, 0.75])]) == (
            "FedHBM ended at 75.0 % accuracy, 5.0 points below FedAvg, "
            "but reached FedAvg’s final accuracy in 2 rounds instead of 4."
        )

    def test_level_but_later(self) -> None:
        assert said([record("FedAvg", [0.8, 0.8]), record("FedHBM", [0.1, 0.8])]) == (
            "FedHBM ended at 80.0 % accuracy, level with FedAvg, "
            "and reached FedAvg’s final accuracy in 2 rounds, against 1 round for FedAvg."
        )

    def test_a_target_only_one_reaches(self) -> None:
        runs = [record("FedAvg", FEDAVG), record("FedHBM", FEDHBM)]
        assert said(runs, 0.9).endswith(", and reached 90.0 % in 3 rounds; FedAvg did not reach it.")
        assert said(runs[::-1], 0.9).endswith(", and did not reach 90.0 %; FedHBM did, in 3 rounds.")

    def test_seeds_that_did_not_reach_it_are_not_hidden(self) -> None:
        runs = [record("FedHBM", FEDHBM, seed=0), record("FedHBM", FEDAVG, seed=1)]
        assert "in 3 rounds (1 of 2 seeds)" in said([record("FedAvg", FEDAVG), *runs], 0.9)

    def test_difference_within_the_spread(self) -> None:
        baseline = [record("FedAvg", [value], seed=seed) for seed, value in enumerate((0.6, 0.9))]
        rival = [record("FedHBM", [value], seed=seed) for seed, value in enumerate((0.7, 0.9))]
        assert said([*baseline, *rival]).endswith("The difference is within the spread over seeds.")

    def test_unequal_lengths(self) -> None:
        runs = [record("FedAvg", FEDAVG), record("FedHBM", FEDHBM[:3])]
        assert said(runs).endswith("FedHBM ran for 3 rounds, FedAvg for 4.")

    def test_many_methods(self) -> None:
        middle = record("FedProx", [0.6, 0.7, 0.8, 0.85])
        runs = [record("FedAvg", FEDAVG), middle, record("FedHBM", FEDHBM)]
        assert said(runs).startswith(
            "FedHBM ended highest of 3 methods, at 95.0 % accuracy, 15.0 points above FedAvg, and reached"
        )
        assert said(runs[::-1]) == (
            "FedHBM ended highest of 3 methods, at 95.0 % accuracy, 10.0 points above FedProx, the next best."
        )
        level = [record(label, FEDHBM) for label in ("FedHBM", "GHBM")]
        assert said([*level, middle]) == ("FedHBM and GHBM ended level, highest of 3 methods, at 95.0 % accuracy.")

    def test_one_diverged_run(self) -> None:
        assert said([record("FedAvg", [0.5, 0.1], diverged_at=2)]) == (
            "FedAvg diverged at round 2; its last accuracy was 10.0 %."
        )

    def test_some_seeds_diverged(self) -> None:
        runs = [record("FedAvg", FEDAVG, seed=0), record("FedAvg", FEDAVG, seed=1, diverged_at=4)]
        assert said(runs).endswith("1 of 2 runs of FedAvg diverged.")

    def test_the_rival_diverged(self) -> None:
        runs = [record("FedHBM", FEDHBM, seed=seed, diverged_at=4) for seed in range(2)]
        assert said([record("FedAvg", FEDAVG), *runs]) == (
            "FedAvg ended at 80.0 % accuracy. FedHBM diverged in all 2 runs."
        )

    def test_the_baseline_diverged(self) -> None:
        runs = [record("FedAvg", FEDAVG, diverged_at=4), record("FedHBM", FEDHBM)]
        assert said(runs) == "FedHBM ended at 95.0 % accuracy. FedAvg diverged."

    def test_everything_diverged(self) -> None:
        runs = [record(label, FEDAVG, diverged_at=4) for label in ("FedAvg", "FedProx", "FedHBM")]
        assert said(runs) == "Every run diverged: FedAvg, FedProx and FedHBM."

    def test_no_accuracy(self) -> None:
        runs = [record("FedAvg", [NAN] * 2, loss=[1, 0.5]), record("FedHBM", [NAN] * 2, loss=[1, 0.2])]
        assert said(runs) == "FedHBM ended at a test loss of 0.200, 0.300 below FedAvg."
        assert said(runs[::-1]) == "FedAvg ended at a test loss of 0.500, 0.300 above FedHBM."
        assert said(runs[:1]) == "FedAvg ended at a test loss of 0.500 after 2 rounds."

    def test_no_evaluation_at_all(self) -> None:
        assert said([record("FedAvg", [NAN], loss=[NAN])]).startswith("No round was evaluated")


class _Loads(HTMLParser):
    """Collects every address that a browser would fetch or offer to open."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "action")]


class TestPage:
    def test_self_contained(self) -> None:
        html = report.render([record("FedAvg", FEDAVG), record("FedHBM", FEDHBM)])
        found = _Loads()
        found.feed(html)
        assert found.addresses == []
        assert not {"link", "iframe", "img", "object"} & set(found.tags)
        assert "default-src 'none'" in html
        assert html.count("plotly.js v") == 1
        template = page([record("FedAvg", FEDAVG)])
        assert not re.search(r"https?://|@import|url\(", template)
        # Plotly's default buttons offer to upload the chart.
        assert 'plotlyServerURL: ""' in template
        assert "modeBarButtons: [[" in template

    def test_structure(self) -> None:
        html = page([record("FedAvg", FEDAVG), record("FedHBM", FEDHBM)], title="Drift")
        assert "<title>Drift</title>" in html
        assert html.count("<h1>") == 1
        assert html.count("<table") == html.count("<caption>")
        assert not re.search(r"\{\{\w+\}\}", html)
        for label in ("Test accuracy", "Test loss", "Training loss"):
            assert f'aria-label="{label} as a line chart: FedAvg ends at' in html

    def test_user_text_is_escaped(self) -> None:
        label = '</script><b>"A" & {{data}}'
        html = page([record(label, FEDAVG, config={"<i>": "<u>"}), record("FedHBM", FEDHBM)], title="<em>title</em>")
        for raw in ("</script><b>", "<em>", "<i>", "<u>"):
            assert raw not in html
        assert "&lt;/script&gt;&lt;b&gt;&quot;A&quot; &amp; {{data}}" in html
        assert chart_data([record(label, FEDAVG)])["methods"] == [
            "&lt;/script&gt;&lt;b&gt;&quot;A&quot; &amp; {{data}}"
        ]

    def test_best_values_stand_out(self) -> None:
        html = page([record("FedAvg", FEDAVG), record("FedHBM", FEDHBM)])
        best = re.findall(r'data-heading="([^"]+)"><strong>([^<]+)', html)
        assert best == [("Final accuracy", "95.0 %"), ("Best accuracy", "95.0 %"), ("Rounds to 80.0 %", "2")]

    def test_neither_a_diverged_nor_an_incomplete_method_is_best(self) -> None:
        sound = [record("FedAvg", FEDAVG, seed=seed) for seed in range(2)]
        lost = [record("SCAFFOLD", [0.99], seed=seed, diverged_at=1 if seed else None) for seed in range(2)]
        lucky = [record("FedCM", [0.9, 0.1], seed=0), record("FedCM", [0.1, 0.1], seed=1)]
        html = page([*sound, *lost, *lucky]).split("Every run")[0]
        best = re.findall(r'data-heading="([^"]+)"><strong>([^<]+)', html)
        assert ("Final accuracy", "80.0 ± 0.0 %") in best
        assert ("Rounds to 80.0 %", "4") in best
        assert '<span class="badge">1 of 2 diverged</span>' in html
        assert "1 (1 of 2)" in html

    def test_a_single_run_is_compared_with_nothing(self) -> None:
        html = page([record("FedAvg", FEDAVG)])
        visible = html[html.index("<main>") : html.index("<script")]
        for word in ("Bold", "best)", "Rounds to", "differs", "Every run", 'class="chip"', "bands"):
            assert word not in visible
        assert chart_data([record("FedAvg", FEDAVG)])["charts"][0]["level"] is None

    def test_regression_shows_losses_only(self) -> None:
        runs = [record("FedAvg", [NAN] * 2), record("FedHBM", [NAN] * 2)]
        assert [chart["id"] for chart in chart_data(runs)["charts"]] == ["loss", "train_loss"]
        html = page(runs)
        assert "Final accuracy" not in html

    def test_differing_settings_come_first(self) -> None:
        html = page(
            [
                record("FedAvg", FEDAVG, config={"lr": 0.1, "algorithm": {"name": "fedavg"}}),
                record("FedHBM", FEDHBM, config={"lr": 0.1, "algorithm": {"name": "fedhbm", "beta": [1, 2]}}),
            ]
        )
        differing, common = html.split("What differs between the runs</caption>")[1].split("What all runs share")[:2]
        assert '<th scope="row">algorithm.name</th><td>fedavg</td><td>fedhbm</td>' in differing
        assert '<th scope="row">algorithm.beta</th><td>–</td><td>[1, 2]</td>' in differing
        assert '<th scope="row">lr</th>' not in differing
        assert '<th scope="row">torch</th><td>2.9</td>' in html
        assert common

    def test_curves(self) -> None:
        runs = [record("FedAvg", [0.5, NAN, 0.7], seed=0), record("FedAvg", [0.6, NAN, 0.9], seed=1)]
        data = chart_data(runs, target=0.8)
        assert [axis["key"] for axis in data["axes"]] == ["round", "traffic", "elapsed"]
        assert data["axes"][1]["unit"] == "B"
        accuracy = data["charts"][0]
        assert accuracy["level"] == 0.8
        assert accuracy["means"] == [
            {
                "round": [1, 3],
                "traffic": [150, 450],
                "elapsed": [0.5, 1.5],
                "y": [0.55, 0.8],
                "low": [0.5, 0.7],
                "high": [0.6, 0.9],
            }
        ]

    def test_diverged_runs_are_drawn_apart(self) -> None:
        sound = record("FedAvg", [0.5, 0.6, 0.7], seed=0, loss=[3, 2, 1])
        lost = record("FedAvg", [0.5, 0.1, 0.1], seed=1, loss=[3, 1e30, math.inf], diverged_at=3)
        accuracy, loss, _ = chart_data([sound, lost])["charts"]
        assert accuracy["means"][0]["y"] == [0.5, 0.6, 0.7]
        assert accuracy["lost"][0]["last"] == 2
        assert loss["lost"][0]["y"] == [3, 9]  # three times the highest sound loss is the ceiling
        assert loss["lost"][0]["last"] == 1
        assert loss["lost"][0]["text"] == "FedAvg, seed 1: diverged at round 3"

    def test_a_page_of_diverged_runs(self) -> None:
        html = page([record("FedAvg", [0.1], diverged_at=1, loss=[NAN])])
        assert '<span class="badge">diverged</span>' in html


def test_write_replaces_the_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "new" / "report.html"
    path.parent.mkdir()
    path.write_text("old")
    assert report.write(str(path), [record("FedAvg", FEDAVG)], title="μ") == path
    assert "<h1>μ</h1>" in path.read_text("utf-8")
    assert list(path.parent.iterdir()) == [path]


def test_a_failed_write_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("old")
    with pytest.raises(ValueError, match="got none"):
        report.write(path, [])
    assert path.read_text() == "old"
