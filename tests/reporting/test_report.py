"""The report: a page that shows the figures and needs nothing else."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from records import FEDAVG, FEDHBM, NAN, record
from undrift.reporting import report
from undrift.reporting.record import Record


def page(records: Sequence[Record], **options: Any) -> str:
    return report.render(records, **options).replace("\u00a0", " ")


def report_data(records: Sequence[Record], **options: Any) -> dict[str, Any]:
    """What the page's script is given."""
    match = re.search(r'id="report-data">(.*?)</script>', page(records, **options), re.DOTALL)
    assert match
    data = json.loads(match[1])
    assert isinstance(data, dict)
    return data


def chart_data(records: Sequence[Record], **options: Any) -> dict[str, Any]:
    """The charts of a page with one task."""
    (task,) = report_data(records, **options)["tasks"]
    assert isinstance(task, dict)
    return task


def best_cells(html: str) -> list[tuple[str, str]]:
    return re.findall(r'data-heading="([^"]+)"><strong>([^<]+)', html)


def seeds(label: str, *finals: float, **options: Any) -> list[Record]:
    """A run for each final accuracy."""
    return [record(label, [0.1, final], seed=seed, **options) for seed, final in enumerate(finals)]


class AddressParser(HTMLParser):
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
        parser = AddressParser()
        parser.feed(html)
        assert parser.addresses == []
        assert not {"link", "iframe", "img", "object"} & set(parser.tags)
        assert "default-src 'none'" in html
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|@import|url\(", html)

    def test_structure(self) -> None:
        html = page([record("FedAvg", FEDAVG), record("FedHBM", FEDHBM)], title="Drift")
        assert "<title>Drift</title>" in html
        assert html.count("<h1>") == 1
        assert "{{" not in html
        assert "{%" not in html
        for label in ("Test accuracy", "Test loss", "Training loss"):
            assert f'aria-label="{label} as a line chart: FedAvg ends at' in html

    def test_user_text_is_escaped(self) -> None:
        label = '</script><b>"A" & {{data}} {% raw %}'
        html = page([record(label, FEDAVG, config={"<i>": "<u>"}), record("FedHBM", FEDHBM)], title="<em>title</em>")
        for raw in ("</script><b>", "<em>", "<i>", "<u>"):
            assert raw not in html
        assert "&lt;/script&gt;&lt;b&gt;&#34;A&#34; &amp; {{data}} {% raw %}" in html
        assert report_data([record(label, FEDAVG)])["methods"][0]["label"] == label  # the script sets texts, not markup

    def test_bold_is_better_by_more_than_the_spread(self) -> None:
        clear = [*seeds("FedAvg", 0.80, 0.82), *seeds("FedHBM", 0.90, 0.92)]
        assert ("Final accuracy", "91.0 ± 1.4 %") in best_cells(page(clear))
        within = [*seeds("FedAvg", 0.80, 0.82), *seeds("FedHBM", 0.81, 0.83)]
        assert "Final accuracy" not in dict(best_cells(page(within)))
        # The spread of the other one counts as well, and one rival within reach is enough.
        wide = [*seeds("FedAvg", 0.5, 0.9), *seeds("FedHBM", 0.90, 0.92)]
        assert "Final accuracy" not in dict(best_cells(page(wide)))
        assert "Final accuracy" not in dict(best_cells(page([*clear, *seeds("FedCM", 0.88, 0.93)])))
        assert "Bold is better than all others by more than the larger standard deviation of the two." in page(clear)

    def test_nothing_is_bold_with_one_seed(self) -> None:
        html = page([record("FedAvg", FEDAVG), record("FedHBM", FEDHBM)])
        assert best_cells(html) == []
        assert "the spread between seeds is unknown, so nothing is bold" in html

    def test_neither_a_diverged_nor_an_incomplete_method_is_best(self) -> None:
        finished = [record("FedAvg", FEDAVG, seed=seed) for seed in range(2)]
        unstable = [record("SCAFFOLD", [0.99], seed=seed, diverged_at=1 if seed else None) for seed in range(2)]
        lucky = [record("FedCM", [0.9, 0.1], seed=0), record("FedCM", [0.1, 0.1], seed=1)]
        html = page([*finished, *unstable, *lucky]).split("Every run")[0]
        best = best_cells(html)
        assert ("Final accuracy", "80.0 ± 0.0 %") in best
        assert "Rounds to 80.0 %" not in dict(best)
        assert '<span class="badge">1 of 2 seeds; 1 diverged</span>' in html
        assert "1 (1 of 2)" in html

    def test_a_single_run_is_compared_with_nothing(self) -> None:
        html = page([record("FedAvg", FEDAVG)])
        visible = html[html.index("<main>") : html.index("<script")]
        for word in ("old", "best)", "Rounds to", "differs", "Every run", 'class="chip"', "bands"):
            assert word not in visible
        assert chart_data([record("FedAvg", FEDAVG)])["charts"][0]["lines"] == []

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
        data = chart_data(runs, targets=0.8)
        assert [axis["key"] for axis in data["axes"]] == ["round", "traffic", "elapsed"]
        assert data["axes"][1]["unit"] == "B"
        accuracy = data["charts"][0]
        assert accuracy["lines"] == [{"y": 0.8, "label": "", "dashes": "2 4"}]
        assert accuracy["means"] == [
            {
                "round": [1, 3],
                "traffic": [150, 450],
                "elapsed": [0.4, 1.2],
                "y": [0.55, 0.8],
                "low": [0.5, 0.7],
                "high": [0.6, 0.9],
            }
        ]

    def test_diverged_runs_have_curves_of_their_own(self) -> None:
        finished = record("FedAvg", [0.5, 0.6, 0.7], seed=0, loss=[3, 2, 1])
        diverged = record("FedAvg", [0.5, 0.1, 0.1], seed=1, loss=[3, 1e30, math.inf], diverged_at=3)
        accuracy, loss, _ = chart_data([finished, diverged])["charts"]
        assert accuracy["means"][0]["y"] == [0.5, 0.6, 0.7]
        assert accuracy["failed"][0]["y"] == [0.5, 0.1, 0.1]
        assert loss["failed"][0]["y"] == [3, 1e30]
        assert loss["failed"][0]["text"] == "FedAvg, seed 1: diverged at round 3"
        assert not loss["log"]  # 1e30 has no say

    def test_a_run_whose_loss_exploded_is_no_part_of_a_mean(self) -> None:
        good, bad = record("FedAvg", FEDAVG, seed=0), record("FedAvg", [0.1] * 4, seed=1)
        bad.history["train_loss"] = [2.0, 5000.0, 3.0, 3.0]
        accuracy = chart_data([good, bad])["charts"][0]
        assert accuracy["means"][0]["y"] == FEDAVG
        assert accuracy["failed"][0]["text"] == "FedAvg, seed 1: loss exploded"

    def test_a_curve_far_above_the_others_does_not_flatten_them(self) -> None:
        usual = [record("FedAvg", FEDAVG), record("FedHBM", FEDHBM)]
        spoilt = record("FedAdam", FEDAVG, loss=[2.0, 1e9, 3.0, 3.0])
        loss = chart_data([*usual, spoilt])["charts"][1]
        assert (loss["far"], loss["log"]) == ([2], False)
        assert "Curves that rise far above the others leave their chart." in page([*usual, spoilt])
        assert chart_data(usual)["charts"][1]["far"] == []
        assert chart_data([spoilt])["charts"][1]["far"] == []  # nothing to flatten

    def test_long_curves_are_thinned_and_end_where_they_end(self) -> None:
        run = record("FedAvg", [number / 5000 for number in range(4001)])
        (mean,) = chart_data([run])["charts"][0]["means"]
        assert len(mean["round"]) <= 500
        assert (mean["round"][-1], mean["y"][-1]) == (4001, 0.8)
        assert "at most 500 of their rounds" in page([run])
        assert len(page([run])) < 150_000

    def test_a_page_is_small(self) -> None:
        runs = [record(f"Method {i}", FEDAVG * 250, seed=seed) for i in range(7) for seed in range(3)]
        assert len(page(runs).encode()) < 1_000_000

    def test_metrics_get_a_chart_and_a_column(self) -> None:
        drift = [4.0, 3.0, 2.0, 1.0]
        runs = [record("FedAvg", FEDAVG, f1=FEDAVG, client_drift=drift), record("FedHBM", FEDHBM, f1=FEDHBM)]
        data = chart_data(runs)
        assert [chart["id"] for chart in data["charts"]] == ["accuracy", "f1", "loss", "train_loss", "client_drift"]
        assert data["charts"][1]["percent"]
        assert data["charts"][4]["means"][0]["y"] == drift
        assert data["charts"][4]["means"][1]["y"] == []
        html = page(runs)
        assert '<td role="cell" data-heading="Final F1">95.0 %' in html
        assert '<td role="cell" data-heading="Final client drift">1.00</td>' in html
        assert 'aria-label="Client drift as a line chart: FedAvg ends at 1.00; FedHBM has no curve."' in html

    def test_a_wide_table_is_shown_in_parts(self) -> None:
        def headings(html: str) -> list[list[str]]:
            tables = re.findall(r'<table class="summary compared".*?</thead>', html, re.DOTALL)
            return [re.findall(r'role="columnheader">([^<]*)<', table)[1:] for table in tables]

        records = [*seeds("A", 0.5, 0.6), *seeds("B", 0.7, 0.8)]
        assert len(headings(page(records))) == 1
        wide = headings(page(records, targets=[0.3, 0.4, 0.5], last_k=2))
        shown = [heading for part in wide for heading in part]
        assert len(wide) > 1
        assert shown[:2] + shown[-2:] == ["Seeds", "Final accuracy", "Traffic", "Training time"]
        assert len({*shown}) == len(shown)
        for target in ("30.0", "40.0", "50.0"):  # what is of one target stays together
            assert len([part for part in wide if any(target in heading for heading in part)]) == 1

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


def test_settings_that_all_runs_share_are_no_columns() -> None:
    def headings(rates: Sequence[float]) -> set[str]:
        runs = [
            record(label, FEDAVG, config={"options": {"lr": rate, "weighting": "samples"}})
            for label, rate in zip("AB", rates, strict=True)
        ]
        assert "<dt>Learning rate</dt>" in page(runs)
        return set(re.findall(r'data-heading="([^"]+)"', page(runs)))

    assert not {"Rate", "Weights"} & headings([0.1, 0.1])
    assert {"Rate", "Weights"} & headings([0.1, 0.2]) == {"Rate"}


def test_the_first_sentence_is_the_headline_and_the_others_the_verdict() -> None:
    html = page([*seeds("FedAvg", 0.5, 0.6), *seeds("FedHBM", 0.55, 0.65)])
    lead, verdict = re.search(r'class="headline">(.*?)</p>', html), re.search(r'class="verdict">(.*?)</p>', html)
    assert lead
    assert verdict
    assert lead[1].endswith(".")
    assert ". " not in lead[1]
    assert "chance" in verdict[1] or "spread" in verdict[1]
