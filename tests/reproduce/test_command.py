"""`undrift reproduce`: what is asked for, and what is there afterwards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from undrift.cli import app
from undrift.reproduce import experiment
from undrift.reproduce.plan import plan
from undrift.simulation.simulate import start

TEXT = """
paper = "Mine"
table = "Table 1"
title = "Digits"
[data]
name = { value = "digits", source = "§1" }
clients = { value = 4, source = "§1" }
partition = { value = "iid", source = "§1" }
[model]
name = { value = "softmax", source = "§1" }
[local]
batch_size = { value = 64, source = "§1" }
steps = { value = 1, source = "§1" }
weight_decay = { value = 0.0, note = "not mentioned" }
lr = { value = 0.1, source = "§1" }
[run]
rounds = { value = 2, source = "§1" }
cohort = { value = "all", source = "§1" }
augment = { value = "none", note = "not mentioned" }
[seeds]
value = 1
source = "§1"
[algorithms]
"λ = 0.1" = { run = "fedprox(mu=0.1)", source = "§2" }
"λ = −0.1" = { run = "fedprox(mu=0.2)", source = "§2" }
"None" = { run = "fedavg", source = "§2" }
[cases."β = 1"]
"local.steps" = { value = 1, source = "§3" }
[cases."α = 1"]
"local.steps" = { value = 2, source = "§3" }
[[figures]]
measure = "best"
values = {}
[[claims]]
text = "None is as good"
measure = "best"
better = "None"
[[claims]]
text = "None is faster"
measure = "rounds to 99 %"
better = "None"
[fast]
"run.rounds" = 1
algorithms = { None = "fedavg" }
"""


@pytest.fixture(autouse=True)
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "tiny.toml").write_text(TEXT, "utf-8")
    monkeypatch.setattr(experiment, "_folder", lambda: tmp_path)
    monkeypatch.chdir(tmp_path)
    experiment.find.cache_clear()
    return tmp_path


def undrift(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["reproduce", *arguments], catch_exceptions=False)


def found(*arguments: str) -> dict[str, Any]:
    content = json.loads(undrift("tiny", "--json", *arguments).stdout)
    assert isinstance(content, dict)
    return content


def test_parts_that_are_run_one_after_the_other_are_kept_apart_and_shown_together(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names of which the same letters are left, of algorithms and of cases."""
    parts = [f"{label},{case}" for label in ("λ = 0.1", "λ = −0.1") for case in ("β = 1", "α = 1")]
    for number, part in enumerate(parts, start=1):
        assert len(found("--only", part)["figures"]["best"]) == number
    page = (tiny / "reproduction/tiny/tiny.md").read_text("utf-8")
    assert all(page.count(f"| {label} |") >= 2 for label in ("λ = 0.1", "λ = −0.1"))
    begun: list[str] = []

    def begin(*given: Any, **settings: Any) -> Any:
        begun.append(given[2])
        return start(*given, **settings)

    monkeypatch.setattr("undrift.simulation.together.start", begin)
    whole = found()
    assert begun == ["None"] * 2  # nothing else is run again
    assert [(row["case"], row["algorithm"]) for row in whole["figures"]["best"]] == [
        (case, label) for case in ("β = 1", "α = 1") for label in ("λ = 0.1", "λ = −0.1", "None")
    ]


def test_runs_of_earlier_calls_are_found(tiny: Path) -> None:
    """Where names do not collide, folders are named by them alone."""
    found("--only", "None,α = 1")
    assert {path.parts[-3:-1] for path in tiny.rglob("config.json")} == {("none", "seed-0")}


def test_what_json_has(tiny: Path) -> None:
    content = found("--only", "None,β = 1", "--seeds", "2")
    assert content["fast"] is False
    (best,) = content["figures"]["best"]
    assert (best["rounds"], best["seeds"], best["runs"], best["failed"], best["not_reached"]) == (2, [0, 1], 2, 0, 0)
    (target,) = content["figures"]["rounds to 99 %"]
    assert (target["rounds"], target["seeds"], target["values"], target["not_reached"]) == (2, [], [], 2)
    assert found("--fast")["fast"] is True


def test_a_page_of_runs_that_all_failed_at_once(tiny: Path) -> None:
    (tiny / "tiny.toml").write_text(TEXT.replace("value = 0.1", "value = 1e17").replace("mu=0.1", "mu=1e17"), "utf-8")
    experiment.find.cache_clear()
    content = found("--only", "λ = 0.1,α = 1")
    (row,) = content["figures"]["best"]
    assert (row["rounds"], row["values"], row["failed"]) == (None, [], 1)
    assert "failed" in (tiny / "reproduction/tiny/tiny.md").read_text("utf-8")


def test_results_of_the_short_version_are_not_mixed_with_others(tiny: Path) -> None:
    found("--fast", "--out", "here")
    refused = undrift("tiny", "--out", "here")
    assert refused.exit_code == 2
    assert "here holds other results, choose another folder: results of the short version are there" in refused.stderr


@pytest.mark.parametrize(
    "arguments", [("--only", "A"), ("--only", " "), ("--seeds", "1"), ("--rounds", "1"), ("--out", "here", "--fast")]
)
def test_options_of_an_experiment_need_its_name(arguments: tuple[str, ...]) -> None:
    refused = undrift(*arguments)
    assert refused.exit_code == 2
    assert f"error: {arguments[0]}: of which experiment? Give its NAME" in refused.stderr


@pytest.mark.parametrize("only", [",", " ", " , "])
def test_a_list_that_names_nothing_is_refused(only: str) -> None:
    with pytest.raises(ValueError, match=f"only must name algorithms or cases of tiny, got '{only}'"):
        plan(experiment.find("tiny"), only=only)


def test_what_the_short_version_does_not_have() -> None:
    tiny = experiment.find("tiny")
    with pytest.raises(ValueError, match=r"tiny: its short version has no 'λ = 0\.1', only None, β = 1, α = 1"):
        plan(tiny, fast=True, only="λ = 0.1")
    with pytest.raises(ValueError, match="tiny has no 'Nane'; did you mean 'None'"):
        plan(tiny, fast=True, only="Nane")
