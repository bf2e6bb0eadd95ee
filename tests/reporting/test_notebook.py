"""Runs and comparisons in a notebook."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest

import undrift as ud
from laws import classified, mlp
from records import NAN, record
from undrift.reporting.record import Record

A = [record("<A>", [0.1, 0.5]), record("<A>", [0.3, 0.7], seed=1)]
B = record("B", [0.2, NAN], f1=[0.1, NAN])


@pytest.fixture(autouse=True)
def _without_a_screen() -> Iterator[None]:
    plt.switch_backend("agg")
    yield
    plt.close("all")


def test_a_comparison_is_a_table_there() -> None:
    page = ud.Comparison([*A, B])._repr_html_()
    assert page.count("<tr>") == 3
    assert "<td>&lt;A&gt;</td><td>2</td>" in page
    assert "<A>" not in page


def drawn(records: list[Record]) -> Any:
    """The axes of a comparison; matplotlib's types promise little."""
    return ud.Comparison(records).plot()


def test_curves_are_means_with_a_band_over_seeds() -> None:
    axes = drawn([*A, B])
    mean, single = axes.get_lines()
    assert mean.get_xydata() == pytest.approx(np.array([[1, 20], [2, 60]]))
    assert single.get_xydata() == pytest.approx(np.array([[1, 20]]))
    (band,) = axes.collections
    corners = band.get_paths()[0].vertices
    assert (corners[:, 1].min(), corners[:, 1].max()) == pytest.approx((10, 70))
    assert axes.get_ylabel() == "Test accuracy (%)"
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["<A>", "B"]


def test_a_run_that_diverged_is_no_part_of_a_mean() -> None:
    mean, diverged = drawn([*A, record("<A>", [0.9, 0.9], seed=2, diverged_at=2)]).get_lines()
    assert mean.get_ydata()[-1] == pytest.approx(60)
    assert (diverged.get_linestyle(), diverged.get_color()) == (":", mean.get_color())


def test_another_column_on_given_axes() -> None:
    comparison = ud.Comparison([*A, B])
    axes = comparison.plot("train_loss")
    assert comparison.plot("f1", axes) is axes
    assert axes.get_ylabel() == "Test F1 (macro) (%)"
    with pytest.raises(ValueError, match=r"column must be one of .*, got 'acuracy'.*'accuracy'"):
        comparison.plot("acuracy")


def test_a_run_without_test_samples() -> None:
    run = ud.simulate("fedavg", mlp(), classified(), rounds=2)
    assert run.plot().get_ylabel() == "Training loss"
    page = run._repr_html_()
    assert page.startswith("<p>Run(FedAvg(), 2 rounds)</p><table>")


def test_against_bytes_and_seconds() -> None:
    comparison = ud.Comparison([*A, B])
    by_bytes: Any = comparison.plot(against="bytes")
    assert by_bytes.get_lines()[0].get_xdata() == pytest.approx([150, 300])
    assert by_bytes.get_xlabel() == "Traffic, down and up (B)"
    by_seconds: Any = comparison.plot(against="seconds")
    assert by_seconds.get_lines()[0].get_xdata() == pytest.approx([0.4, 0.8])  # without evaluation
    with pytest.raises(ValueError, match=r"against must be one of .*, got 'byte'"):
        comparison.plot(against="byte")


def test_a_reference_is_a_line_where_it_ended() -> None:
    central = {"algorithm": {"name": "centralised"}}
    ends = [record("Centralised", [0.5, end], seed=seed, config=central) for seed, end in enumerate((0.8, 0.9))]
    axes = drawn([*A, *ends])
    assert [line.get_label() for line in axes.get_lines()] == ["<A>", "Centralised"]
    assert axes.get_lines()[1].get_ydata() == pytest.approx([85, 85])


def test_figures_as_files(tmp_path: Path) -> None:
    comparison = ud.Comparison([*A, B])
    written = comparison.figures(tmp_path / "new", formats=["svg", "pdf"])
    kinds = [f"accuracy-{against}.{kind}" for against in ("rounds", "bytes", "seconds") for kind in ("svg", "pdf")]
    assert [path.name for path in written] == kinds
    first = [path.read_bytes() for path in written]
    assert first[0].startswith(b"<?xml")
    assert first[1].startswith(b"%PDF")
    assert [path.read_bytes() for path in comparison.figures(tmp_path / "new", formats=["svg"])] == first[::2]
    with pytest.raises(ValueError, match="got 'gif'"):
        comparison.figures(tmp_path / "other", formats=["gif"])
    assert not (tmp_path / "other").exists()
