"""Rows are read from where the last look ended, and damage is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from folders import append_rows, row_text, write_run
from undrift.ui.history import History


def read(home: Path) -> History:
    history = History(home)
    history.follow()
    return history


def test_only_what_is_new_is_read(tmp_path: Path) -> None:
    home = write_run(tmp_path / "run", [0.1, None, 0.3])
    history = read(home)
    assert history.column("accuracy").tolist()[::2] == [0.1, 0.3]
    assert history.last("accuracy") == 0.3
    before = (home / "rounds.jsonl").read_bytes()
    # Bytes before the last line are not looked at again: a change there is not noticed here, and costs nothing.
    (home / "rounds.jsonl").write_bytes(before.replace(b"0.1", b"0.9", 1))
    append_rows(home, [0.4])
    history.follow()
    assert history.column("accuracy").tolist()[0] == 0.1
    assert history.column("round").tolist() == [1, 2, 3, 4]
    assert (history.generation, history.problem) == (0, "")


def test_a_line_that_is_being_written_waits(tmp_path: Path) -> None:
    home = write_run(tmp_path / "run", [0.1])
    line = row_text(2, 0.2)
    with (home / "rounds.jsonl").open("a") as file:
        file.write(line[:20])
    history = read(home)
    assert len(history) == 1
    with (home / "rounds.jsonl").open("a") as file:
        file.write(line[20:])
    history.follow()
    assert history.column("accuracy").tolist() == [0.1, 0.2]
    assert not history.problem


@pytest.mark.parametrize("same_length", [True, False])
def test_rows_that_a_resumed_run_dropped_are_forgotten(tmp_path: Path, same_length: bool) -> None:
    home = write_run(tmp_path / "run", [0.1, 0.2, 0.3])
    history = read(home)
    (home / "rounds.jsonl").unlink()
    append_rows(home, [0.5, 0.6, 0.7, 0.8] if same_length else [0.5])
    history.follow()
    assert history.generation == 1
    assert history.column("accuracy")[0] == 0.5


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("garbage\n", "line 2 is not as it was written"),
        ("\n", "line 2 is not as it was written"),
        (row_text(7, 0.2), "line 2 is of another round"),
        (row_text(2, 0.2).replace("0.2", '"<b>"'), "line 2 is not as it was written"),
        (row_text(2, 0.2).replace("accuracy", "other"), "line 2 is not as it was written"),
        ("[" * 100_000 + "\n", "line 2 is not as it was written"),
    ],
)
def test_rows_before_damage_are_kept(tmp_path: Path, line: str, problem: str) -> None:
    home = write_run(tmp_path / "run", [0.1])
    with (home / "rounds.jsonl").open("a") as file:
        file.write(line + row_text(3, 0.3))
    history = read(home)
    assert history.column("accuracy").tolist() == [0.1]
    assert problem in history.problem
    history.follow()
    assert len(history) == 1


def test_the_last_row_is_known_before_the_others(tmp_path: Path) -> None:
    history = History(write_run(tmp_path / "run", [0.1, 0.2]))
    history.peek()
    assert (history.last("round"), history.last("accuracy"), len(history)) == (2, 0.2, 0)


def test_what_is_no_file_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "rounds.jsonl").mkdir()
    assert read(tmp_path).problem == "rounds.jsonl is no file"
