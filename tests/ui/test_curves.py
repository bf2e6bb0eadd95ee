"""Curves have few points, keep their extremes, and are sent again only where they changed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from folders import append_rows, write_run
from undrift.ui.curves import FEW, FULL, curve_of, thinned
from undrift.ui.history import History


def history(home: Path, accuracy: list[float | None]) -> History:
    found = History(write_run(home, accuracy))
    found.follow()
    return found


@pytest.mark.parametrize("count", [1, 2, FULL, FULL + 1, 1000, 9999, 10_000])
def test_thinning_keeps_ends_and_extremes(count: int) -> None:
    values = np.random.default_rng(count).normal(size=count)
    kept = thinned(values, FULL)
    assert len(kept) <= FULL
    assert (np.diff(kept) > 0).all()
    assert (kept[0], kept[-1]) == (0, count - 1)
    assert {values.argmin(), values.argmax()} <= set(kept)
    if count <= FULL:
        assert len(kept) == count


def test_a_curve_grows_by_what_is_new(tmp_path: Path) -> None:
    run = history(tmp_path / "run", [0.1, None, 0.3])
    first = curve_of([run], "accuracy")
    assert first["reset"]
    assert (first["round"], first["y"]) == ([1, 3], [0.1, 0.3])
    assert (first["traffic"], first["elapsed"]) == ([150, 450], [0.5, 1.5])
    assert curve_of([run], "accuracy", first["stamp"]) == {"stamp": first["stamp"], "reset": False, "round": []}
    append_rows(tmp_path / "run", [0.4])
    run.follow()
    more = curve_of([run], "accuracy", first["stamp"])
    assert not more["reset"]
    assert (more["round"], more["y"], more["traffic"], more["elapsed"]) == ([4], [0.4], [600], [2])
    append_rows(tmp_path / "run", [0.5] * (FEW + 1))
    run.follow()
    assert curve_of([run], "accuracy", more["stamp"])["reset"]  # many new ones are thinned with the others


@pytest.mark.parametrize("stamp", ["", "1.2", "0.9", "0.3.3", "x", "0.-1", "0.3~", "9" * 50])
def test_a_wrong_stamp_gets_the_whole_curve(tmp_path: Path, stamp: str) -> None:
    assert curve_of([history(tmp_path / "run", [0.1, 0.2, 0.3])], "accuracy", stamp)["round"] == [1, 2, 3]


def test_seeds_have_a_mean_and_a_band(tmp_path: Path) -> None:
    first = history(tmp_path / "a", [0.1, 0.2, 0.5])
    second = history(tmp_path / "b", [0.3, None])
    both = curve_of([first, second], "accuracy")
    assert both["round"] == [1, 2, 3]
    assert (both["y"], both["low"], both["high"]) == ([0.2, 0.2, 0.5], [0.1, 0.2, 0.5], [0.3, 0.2, 0.5])
    append_rows(tmp_path / "b", [0.7])
    second.follow()
    again = curve_of([first, second], "accuracy", both["stamp"])
    assert again["reset"]  # the mean changed where the curve was already
    assert again["y"] == [0.2, 0.2, 0.6]
    for each, home in ((first, "a"), (second, "b")):
        append_rows(tmp_path / home, [0.9])
        each.follow()
    assert curve_of([first, second], "accuracy", again["stamp"])["round"] == [4]


def test_the_band_of_a_long_curve_covers_what_is_left_out(tmp_path: Path) -> None:
    values = np.full((2, 3000), 0.5)
    values[:, 1234] = 0.0, 1.0  # the mean does not show it
    both = [history(tmp_path / str(seed), values[seed].tolist()) for seed in range(2)]
    drawn = curve_of(both, "accuracy")
    assert len(drawn["round"]) <= FULL
    assert (min(drawn["low"]), max(drawn["high"])) == (0, 1)


def test_a_column_that_a_run_does_not_have(tmp_path: Path) -> None:
    assert curve_of([history(tmp_path / "run", [0.1])], "../../etc/passwd")["round"] == []
