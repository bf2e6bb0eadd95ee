"""Clients that fail: who is left out, what is counted, and what still holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import undrift as ud
from undrift.core.random import Key, Stream, uniform
from undrift.diagnostics import DIAGNOSTICS
from undrift.diagnostics.columns import is_diagnostic
from undrift.reporting.record import FAILURE_COLUMNS, TIMES
from undrift.transport import Answers, TooFewAnswersError, admit

SETTINGS: dict[str, Any] = {"rounds": 7, "cohort": 10, "lr": 0.1}
MANY = ud.Faults(dropout=0.2, lost=0.1, slow=0.1, twice=0.1, corrupt=0.3)


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "mime"])
def test_the_same_on_every_engine_and_again(name: str) -> None:
    runs = [
        ud.simulate(name, "softmax", "digits", faults=MANY, engine=engine, **SETTINGS)
        for engine in ("sequential", "sequential", "batched")
    ]
    counted = [[[row[k] for k in (*FAILURE_COLUMNS, "participants")] for row in run.rows] for run in runs]
    assert counted[0] == counted[1] == counted[2]
    assert runs[0].history.drop(columns=TIMES).equals(runs[1].history.drop(columns=TIMES))
    assert_close(runs[0].parameters, runs[2].parameters, rtol=1e-4, atol=1e-6)
    totals = runs[0].history[list(FAILURE_COLUMNS)].sum()
    assert (totals[["unanswered", "late", "repeated", "malformed", "not_finite", "absurd_norm"]] > 0).all()
    for row in runs[0].rows:
        if row["attempts"] == 1:
            left_out = sum(row[k] for k in ("unanswered", "late", "malformed", "not_finite", "absurd_norm"))
            assert row["participants"] == row["asked"] - left_out
    assert np.isfinite(runs[0].history.loss).all()


def test_written_as_text_and_resumed(tmp_path: Path) -> None:
    given = "dropout=0.3, corrupt=0.1"
    whole = ud.simulate("scaffold", "softmax", "digits", faults=ud.Faults(dropout=0.3, corrupt=0.1), **SETTINGS)
    ud.simulate("scaffold", "softmax", "digits", faults=given, out=tmp_path, **SETTINGS | {"rounds": 3})
    again = ud.resume(tmp_path, 7)
    assert again.history.drop(columns=TIMES).equals(whole.history.drop(columns=TIMES))
    assert_close(again.parameters, whole.parameters, rtol=0, atol=0)


def test_no_faults_are_a_plain_run() -> None:
    plain, none = (ud.simulate("scaffold", "softmax", "digits", faults=f, **SETTINGS) for f in (None, ud.Faults()))
    assert_close(none.parameters, plain.parameters, rtol=0, atol=0)


def test_diagnostics_are_of_the_clients_that_answered() -> None:
    """A client that never answers is as if it were not in the cohorts."""
    cohorts = [[0, 1, 2], [1, 2, 3], [0, 2, 3]]
    given: dict[str, Any] = {"rounds": 3, "lr": 0.1, "engine": "sequential", "diagnostics": list(DIAGNOSTICS)}
    run = ud.simulate("mime", "softmax", "digits", faults="dropout=0.4", cohort=cohorts, min_answers=1, **given)
    assert 0 < run.history.unanswered.sum() < 9
    kept = [[i for i in cohort if i not in away(run, number)] for number, cohort in enumerate(cohorts, 1)]
    assert [len(each) for each in kept] == run.history.participants.tolist()
    plain = ud.simulate("mime", "softmax", "digits", cohort=kept, **given)
    columns = [name for name in plain.history if is_diagnostic(str(name))]
    assert columns
    assert run.history[columns].equals(plain.history[columns])


def away(run: ud.Run, round: int) -> set[int]:
    """Who drops out of the first attempt at a round."""
    everyone = torch.arange(len(run.experiment.data))
    numbers = uniform(Key(run.options.seed, round, everyone[:, None]), Stream.FAULTS, 16, (1,))[:, 0]
    return set(everyone[numbers < 0.4].tolist())


class TestTooFewAnswers:
    def test_the_round_is_repeated_with_other_clients(self) -> None:
        run = ud.simulate("fedavg", "softmax", "digits", faults="dropout=0.6", min_answers=5, attempts=50, **SETTINGS)
        assert max(row["attempts"] for row in run.rows) > 1
        assert min(row["participants"] for row in run.rows) >= 5

    def test_after_some_attempts_the_run_stops_with_a_checkpoint(self, tmp_path: Path) -> None:
        message = r"round \d+: fewer clients answered than min_answers=9, in 2.attempts, unanswered: \d+; resume with"
        with pytest.raises(TooFewAnswersError, match=message):
            ud.simulate(
                "fedavg",
                "softmax",
                "digits",
                faults="dropout=0.1",
                min_answers=9,
                attempts=2,
                out=tmp_path,
                **SETTINGS | {"rounds": 100},
            )
        assert list((tmp_path / "checkpoints").iterdir())

    def test_more_than_there_are(self) -> None:
        with pytest.raises(ValueError, match="min_answers must be at most the 10 clients of a round, got 11"):
            ud.simulate("fedavg", "softmax", "digits", min_answers=11, **SETTINGS)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"dropout": 1.5}, "faults: dropout must"),
        ("dropouts=0.1", "unknown fault 'dropouts'; did you mean 'dropout'"),
        ("dropout", "is written as in dropout=0.2"),
        ("lost=often", "lost needs a number"),
        (3, "faults must be"),
    ],
)
def test_wrong_faults(given: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        ud.simulate("fedavg", "softmax", "digits", faults=given, **SETTINGS)


class TestAdmission:
    def answers(self, *values: float) -> Answers:
        return Answers({"update": {"w": torch.tensor(values)[:, None]}}, {"loss": torch.ones(len(values))})

    def test_what_is_not_finite_or_absurd_is_left_out(self) -> None:
        found = admit(self.answers(1.0, float("nan"), 2.0, 1e5, float("inf"), 1.5), 6)
        assert found.present is not None
        assert found.present.tolist() == [0, 2, 5]
        assert found.failures == {"not_finite": 2, "absurd_norm": 1}
        assert len(found.reports["loss"]) == 3

    def test_two_answers_have_no_majority(self) -> None:
        assert admit(self.answers(1.0, 1e5), 2).present is None

    def test_where_none_is_finite_the_run_diverges(self) -> None:
        assert admit(self.answers(float("nan"), float("inf")), 2).present is None


# What the server remembers of all clients is the mean of what they remember, or of what it remembers of each: where the
# state of a client whose answer was lost were kept, they would drift apart.
INVARIANTS = {
    "scaffold": ("ControlVariates", "control", "control"),
    "feddyn": ("DynamicRegularizer", "slope", "slope"),
    "fedvarp": ("ReducedVariance", "mean", "direction"),
    "mifa": ("LatestUpdates", "mean", "direction"),
}


@pytest.mark.parametrize("faults", ["lost=0.3", "dropout=0.2, lost=0.2, slow=0.1, corrupt=0.2"])
@pytest.mark.parametrize("name", INVARIANTS)
def test_invariants_hold_under_lost_answers(name: str, faults: str) -> None:
    settings = SETTINGS | {"rounds": 12, "weighting": "uniform", "dtype": "float64"}
    run = ud.simulate(name, "softmax", "digits", faults=faults, **settings)
    key, whole, own = INVARIANTS[name]
    everyone = np.arange(len(run.experiment.data))
    each = run.memory.own.gather(everyone) | run.memory.ledger.gather(everyone)
    for tensor, mine in zip(run.memory.server[key][whole].values(), each[key][own].values(), strict=True):
        assert mine.abs().max() > 0
        assert_close(tensor, mine.mean(0), rtol=1e-10, atol=1e-12)
