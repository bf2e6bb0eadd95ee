"""Progress where there is no terminal: lines in files, a bar in notebooks."""

from __future__ import annotations

import io
import logging
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from undrift.simulation import display
from undrift.simulation.progress import hidden, overall_bar, progress_bar

ROW = {"accuracy": 0.5, "train_loss": 1.25}
UNEVALUATED = {"accuracy": float("nan"), "train_loss": 1.0}


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("undrift.simulation.display.monotonic", clock)
    return clock


def run(clock: Clock, rounds: int, seconds: float, found: int = 0, label: str = "FedAvg", runs: int = 1) -> None:
    """A run whose rounds take so long, evaluated in every other one; `found` rounds were there before."""
    with progress_bar(label, rounds, runs) as tick:
        tick(found, None)
        for done in range(found + 1, rounds + 1):
            clock.now += seconds
            tick(done, ROW if done % 2 else UNEVALUATED)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "undrift"]


def test_lines_in_a_file(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    run(clock, rounds=100, seconds=1.0)
    assert lines(caplog)[:2] == [
        "FedAvg: round 5 of 100, training loss 1.25, accuracy 50.0%, elapsed 0:00:05, left 0:01:35",
        "FedAvg: round 10 of 100, training loss 1, accuracy 50.0%, elapsed 0:00:10, left 0:01:30",
    ]
    assert [line.split(",")[0] for line in lines(caplog)[2:]] == [
        f"FedAvg: round {done} of 100" for done in (20, 40, 70, 100)
    ]
    assert "left" not in lines(caplog)[-1]


def test_short_runs_are_silent(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    run(clock, rounds=100, seconds=0.01)
    assert not lines(caplog)


def test_long_runs_do_not_fill_a_file(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    run(clock, rounds=10_000, seconds=60.0)  # a week
    assert 50 < len(lines(caplog)) < 200


def test_what_was_done_before_takes_no_time(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    run(clock, rounds=100, seconds=5.0, found=90)
    assert lines(caplog)[0].endswith("elapsed 0:00:05, left 0:00:45")


def test_lines_of_a_comparison(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    with overall_bar("4 runs", 40):
        run(clock, rounds=10, seconds=5.0, runs=2, label="FedAvg × 2")
        run(clock, rounds=10, seconds=5.0, runs=2, label="FedHBM × 2")
    told = lines(caplog)
    assert told[0] == (
        "4 runs, 5% done; FedAvg × 2: round 1 of 10, training loss 1.25, accuracy 50.0%, elapsed 0:00:05, left 0:01:35"
    )
    assert any("FedHBM × 2: round" in line for line in told)
    assert told[-1] == "4 runs: round 40 of 40, elapsed 0:01:40"


def test_lines_are_printed_unless_logging_is_configured(
    clock: Clock, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    run(clock, rounds=1, seconds=6.0)
    assert capsys.readouterr().err.startswith("FedAvg: round 1 of 1, ")
    monkeypatch.setattr(logging.getLogger(), "handlers", [logging.NullHandler()])
    run(clock, rounds=1, seconds=6.0)
    assert not capsys.readouterr().err


def test_switched_off(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    with hidden():
        run(clock, rounds=2, seconds=10.0)
    with caplog.at_level(logging.WARNING, "undrift"), overall_bar("1 run", 2):
        run(clock, rounds=2, seconds=10.0)
    assert not lines(caplog)


def test_a_bar_in_a_notebook(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    handle = SimpleNamespace(update=shown.append)
    module: Any = SimpleNamespace(HTML=str, display=lambda html, display_id: handle)
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    monkeypatch.setattr(display, "Console", lambda: SimpleNamespace(is_jupyter=True))
    run(clock, rounds=100, seconds=0.1, label="<b>")
    assert 30 < len(shown) < 60  # not in every round
    assert shown[-1] == (
        '<progress value="100" max="100"></progress> '
        "&lt;b&gt;: round 100 of 100, training loss 1, accuracy 50.0%, elapsed 0:00:10"
    )


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (120, ["━", " 5/15", "accuracy 45.3%"]),
        (72, ["━", " 5/15"]),
        (50, [" 5/15"]),
        (44, []),
    ],
)
def test_a_narrow_terminal_shows_the_times(clock: Clock, width: int, shown: list[str]) -> None:
    """Other columns go first. Rounds that were there before take no time."""
    terminal = Console(width=width, file=io.StringIO())
    bars = display._FittingBars(terminal)
    bars.get_time = clock
    task, label = display.Task("", total=15), "FedAvg(lr=0.3, momentum=0.9) × 3"
    bars.add_task("9 runs", total=135, figures="", task=display.Task("", total=135))
    bar = bars.add_task(label, total=15, figures="accuracy 45.3%", task=task)
    task.advance(3, computed=False)
    for _ in range(2):
        clock.now += 100
        task.advance(1, computed=True)
    bars.update(bar, completed=task.done)
    clock.now += 50
    with terminal.capture() as captured:
        terminal.print(bars.get_renderable())
    overall, run = captured.get().splitlines()
    assert run.startswith("FedAvg(lr")
    assert "elapsed 0:04:10, left 0:15:50" in run  # ten rounds of 100 seconds, of which the first is half over
    assert overall.rstrip().endswith("elapsed 0:04:10")
    assert [part for part in ("━", " 5/15", "accuracy 45.3%") if part in run] == shown
