"""Experiments of papers: how they are read, run, stored and judged."""

from __future__ import annotations

import json
import math
import runpy
from dataclasses import replace
from multiprocessing.pool import ThreadPool
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from typer.testing import CliRunner

from undrift.cli import app
from undrift.reporting.record import Record
from undrift.reproduce import experiment, page, stored
from undrift.reproduce.common_runs import take_over
from undrift.reproduce.cost import _sizes, cost
from undrift.reproduce.experiment import Experiment, read
from undrift.reproduce.measures import measure_named
from undrift.reproduce.plan import listed, plan
from undrift.reproduce.results import Results, shared_rounds
from undrift.reproduce.run import run
from undrift.reproduce.verdicts import Outcome, Verdict, verdicts

TINY = """
paper = "Mine"
table = "Table 1"
title = "Digits"
[data]
name = { value = "digits", source = "§1" }
clients = { value = 8, source = "§1" }
partition = { value = "iid", source = "§1" }
[model]
name = { value = "softmax", source = "§1" }
[local]
batch_size = { value = 32, source = "§1" }
weight_decay = { value = 0.0, note = "not mentioned" }
lr = { value = 0.1, source = "§1" }
[run]
rounds = { value = 4, source = "§1" }
cohort = { value = 0.5, source = "§1" }
augment = { value = "none", note = "not mentioned" }
[seeds]
value = 2
source = "§1"
[algorithms]
A = { run = "fedavg", source = "§2" }
B = { run = "fedprox(mu=0.1)", source = "§2" }
[cases.one]
"local.epochs" = { value = 1, source = "§3" }
[cases.two]
"local.epochs" = { value = 2, source = "§3" }
[[figures]]
measure = "best"
[figures.values.one]
A = [80.0, 0.5]
B = 70
[[claims]]
text = "A is better"
measure = "best"
better = "A"
[fast]
seeds = 1
cases = ["one"]
"run.rounds" = 2
algorithms = { A = "fedavg(lr=0.05)" }
"""


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Experiment:
    (tmp_path / "tiny.toml").write_text(TINY, "utf-8")
    monkeypatch.setattr(experiment, "_folder", lambda: tmp_path)
    experiment.find.cache_clear()
    return experiment.find("tiny")


class TestFiles:
    def test_what_is_read(self, tiny: Experiment) -> None:
        assert tiny.settings_of("two")["local.epochs"] == 2
        assert tiny.claims[0].than == ("B",)
        assert tiny.claims[0].cases == ("one", "two")
        assert tiny.figures[0].values["one"]["A"] == (80.0, 0.5)

    @pytest.mark.parametrize(
        ("old", "new", "message"),
        [
            ('lr = { value = 0.1, source = "§1" }', "lr = 0.1", "lr must have a value, and a source"),
            ('paper = "Mine"', 'papier = "Mine"', "unknown key 'papier'; did you mean 'paper'"),
            ("B = 70", "C = 70", "unknown algorithm 'C'"),
            ("[figures.values.one]", "[figures.values.three]", "unknown case 'three'"),
            ('measure = "best"', 'measure = "bests"', "unknown measure 'bests'; did you mean 'best'"),
            ('better = "A"', 'better = "D"', "unknown algorithm 'D'"),
        ],
    )
    def test_what_is_refused(self, old: str, new: str, message: str) -> None:
        with pytest.raises(ValueError, match=f"experiment tiny: .*{message}"):
            read("tiny", TINY.replace(old, new))

    def test_runs_of_another(self, tiny: Experiment) -> None:
        text = '[[figures]]\nmeasure = "rounds to 70 %"\nvalues = { one = { A = 3 } }\n'
        head = 'paper = "Mine"\ntable = "Table 2"\ntitle = "Rounds"\nruns_of = "tiny"\n'
        other = read("other", head + text)
        assert (other.runs_of, other.table, other.entries) == ("tiny", "Table 2", tiny.entries)
        assert not other.claims
        with pytest.raises(ValueError, match="runs are those of tiny: leave out"):
            read("other", head + '[algorithms]\nA = { run = "fedavg", source = "§2" }\n')

    def test_an_unknown_name(self, tiny: Experiment) -> None:
        with pytest.raises(ValueError, match="unknown experiment 'tini'; did you mean 'tiny'"):
            experiment.find("tini")


class TestPlans:
    def test_the_short_version(self, tiny: Experiment) -> None:
        short = plan(tiny, fast=True)
        assert (short.cases, dict(short.algorithms), short.seeds) == (("one",), {"A": "fedavg(lr=0.05)"}, 1)
        assert short.rounds("one") == 2

    def test_some_of_it(self, tiny: Experiment) -> None:
        some = plan(tiny, only="B,two", rounds=3, seeds=1)
        assert (some.cases, list(some.algorithms), some.rounds("two")) == (("two",), ["B"], 3)
        with pytest.raises(ValueError, match="tiny has no 'C'"):
            plan(tiny, only="C")
        names = "GHB, τ = 1,FedPMVR (drift, reset), one,FedPMVR (drift"
        known = ["GHB, τ = 1", "GHB", "FedPMVR (drift, reset)", "one"]
        assert listed(names, known) == ["GHB, τ = 1", "FedPMVR (drift, reset)", "one", "FedPMVR (drift"]
        with pytest.raises(ValueError, match="rounds must be at least 1"):
            plan(tiny, rounds=0)

    def test_costs(self, tiny: Experiment) -> None:
        """Four of eight clients, 1437 / 8 samples in batches of 32: six steps an epoch."""
        whole, short = (cost(plan(tiny, fast=fast)) for fast in (False, True))
        assert (whole.client_steps, short.client_steps) == (2 * 2 * 4 * 4 * (6 + 12), 2 * 4 * 6)
        assert 0 < short.seconds < whole.seconds

    def test_times_count_the_gradients_of_algorithms(self, tiny: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
        """MimeSVRG has two gradients a step and a pass before: three times the steps of an epoch, 2.5 those of two."""
        monkeypatch.setattr("undrift.reproduce.cost._seconds_of_step", lambda *_: 1.0)
        assert cost(plan(tiny)).seconds == cost(plan(tiny)).client_steps
        mime = cost(plan(read("tiny", TINY.replace("fedprox(mu=0.1)", "mimesvrg"))))
        assert mime.client_steps == cost(plan(tiny)).client_steps
        assert mime.seconds == mime.client_steps * 0.5 + 2 * 4 * 4 * (6 * 3 + 12 * 2.5)

    def test_costs_without_the_data(self, tiny: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
        here = cost(plan(tiny))
        monkeypatch.setattr("undrift.reproduce.cost.is_local", lambda name: False)
        _sizes.cache_clear()
        assert cost(plan(tiny)).client_steps == here.client_steps

    def test_tuning_costs_too(self) -> None:
        text = TINY.replace('lr = { value = 0.1, source = "§1" }', "")
        grid = '[tuning]\nrounds = 2\ngrid = { value = { lr = [0.1, 0.2, 0.3] }, source = "§1" }\n'
        tuned = read("tiny", text + grid)
        found = cost(plan(tuned))
        assert found.client_steps == (2 * 2 + 2 * 3 * 0.5) * 4 * 4 * (6 + 12)


def history(*accuracy: float, diverged: bool = False) -> pd.DataFrame:
    rounds = range(1, len(accuracy) + 1)
    return pd.DataFrame(
        {
            "round": rounds,
            "accuracy": accuracy,
            "train_loss": 1.0,
            "diverged": [diverged and r == len(accuracy) for r in rounds],
        }
    )


def records(**accuracies: list[float | None]) -> list[Record]:
    """By label, the best accuracy of every seed; None where it diverged."""
    return [
        Record(label, seed, history(0.1, 0.1 if best is None else best, diverged=best is None), {}, {})
        for label, values in accuracies.items()
        for seed, best in enumerate(values)
    ]


def trained() -> list[Record]:
    """As they are stored."""
    return [Record("A", 0, history(0.5).assign(bytes_down=1, bytes_up=1), {}, {})]


def results(of: Experiment, **cases: list[Record]) -> Results:
    return Results(of, cases, {}, fast=False)


class TestVerdicts:
    def outcome(self, of: Experiment, **cases: list[Record]) -> Outcome:
        (found,) = verdicts(results(of, **cases))
        return found.outcome

    def test_the_same_order_with_significance(self, tiny: Experiment) -> None:
        clear = records(A=[0.90, 0.91, 0.92], B=[0.80, 0.811, 0.822])
        assert self.outcome(tiny, one=clear, two=clear) is Outcome.REPRODUCED

    def test_the_same_order_by_chance(self, tiny: Experiment) -> None:
        noisy = records(A=[0.90, 0.80, 0.92], B=[0.85, 0.85, 0.85])
        assert self.outcome(tiny, one=noisy, two=noisy) is Outcome.UNDECIDED
        clear = records(A=[0.90, 0.91, 0.92], B=[0.80, 0.811, 0.822])
        assert self.outcome(tiny, one=noisy, two=clear) is Outcome.PARTLY

    def test_of_some_of_the_cases(self, tiny: Experiment) -> None:
        (found,) = verdicts(results(tiny, one=records(A=[0.90, 0.91, 0.92], B=[0.80, 0.811, 0.822])))
        assert found.outcome is Outcome.PARTLY
        assert found.reason.startswith("A against B (one): +9.9\u00a0points, 95\u00a0% interval +9.7 to +10.1; ")
        assert found.reason.endswith("; 1\u00a0comparison not run")

    def test_within_the_spread(self, tiny: Experiment) -> None:
        text = TINY.replace("B = 70", "B = [79.5, 0.5]").replace('better = "A"', 'better = "A"\ncases = ["one"]')
        near = records(A=[0.801, 0.799], B=[0.797, 0.797])
        assert self.outcome(read("tiny", text), one=near) is Outcome.UNDECIDED  # after two of four rounds
        text = text.replace("rounds = { value = 4", "rounds = { value = 2")
        assert self.outcome(read("tiny", text), one=near) is Outcome.REPRODUCED
        assert self.outcome(tiny, one=near) is Outcome.UNDECIDED

    def test_another_order(self, tiny: Experiment) -> None:
        behind = records(A=[0.7, 0.7, 0.7], B=[0.80, 0.811, 0.822])
        assert self.outcome(tiny, one=behind) is Outcome.NOT
        ahead = records(A=[0.9, 0.91, 0.92], B=[0.80, 0.811, 0.822])
        (found,) = verdicts(results(tiny, one=behind, two=ahead))
        assert found.outcome is Outcome.PARTLY
        assert (
            found.reason == "A is ahead in 1 of 2 comparisons, in 1 with p < 0.05; behind B (one) by 11.1\u00a0points"
        )

    def test_behind_in_one_and_ahead_of_the_other_by_chance(self, tiny: Experiment) -> None:
        behind = records(A=[0.7, 0.7, 0.7], B=[0.80, 0.811, 0.822])
        noisy = records(A=[0.90, 0.80, 0.92], B=[0.85, 0.85, 0.85])
        (found,) = verdicts(results(tiny, one=behind, two=noisy))
        assert found.outcome is Outcome.NOT
        assert found.reason == (
            "A is ahead in 1 of 2 comparisons, in 0 with p < 0.05; behind B (one) by 11.1\u00a0points"
        )

    def test_behind_by_chance(self, tiny: Experiment) -> None:
        noisy = records(A=[0.90, 0.80, 0.83], B=[0.85, 0.85, 0.85])
        assert self.outcome(tiny, one=noisy, two=noisy) is Outcome.UNDECIDED

    def test_a_lead_that_is_less_than_the_papers(self) -> None:
        """Of runs with all rounds: 80.0 ± 0.5 against 70."""
        text = TINY.replace("rounds = { value = 4", "rounds = { value = 2").replace('"A"', '"A"\ncases = ["one"]')
        less = records(A=[0.85, 0.86, 0.84], B=[0.85, 0.84, 0.85])
        wide = records(A=[0.85, 0.95, 0.80], B=[0.85, 0.84, 0.85])
        assert self.outcome(read("tiny", text), one=less) is Outcome.NOT
        assert self.outcome(read("tiny", text), one=wide) is Outcome.UNDECIDED
        cut = text.replace("rounds = { value = 2", "rounds = { value = 4")
        assert self.outcome(read("tiny", cut), one=less) is Outcome.UNDECIDED
        unprinted = text.replace("B = 70\n", "")
        assert self.outcome(read("tiny", unprinted), one=less) is Outcome.UNDECIDED  # it may be a point
        level = records(A=[0.850, 0.841, 0.850], B=[0.850, 0.840, 0.851])
        assert self.outcome(read("tiny", unprinted), one=level) is Outcome.NOT

    def test_most_of_those_it_is_behind_are_counted(self) -> None:
        labels = [f"B{number}" for number in range(7)]
        runs = "".join(f'{label} = {{ run = "fedavg", source = "§2" }}\n' for label in labels)
        of = read("tiny", TINY.replace("[cases.one]", f"{runs}[cases.one]").replace('"A"', '"A"\ncases = ["one"]', 1))
        many: dict[str, list[float | None]] = {
            label: [0.8 + number / 100, 0.8 + number / 100 + 0.02] for number, label in enumerate(labels)
        }
        (found,) = verdicts(results(of, one=records(A=[0.7, 0.7], B=[0.6, 0.6], **many)))
        assert found.reason == (
            "A is ahead in 1 of 8 comparisons, in 0 with p < 0.05; behind B6 by 17.0\u00a0points, "
            "B5 by 16.0\u00a0points, "
            "B4 by 15.0\u00a0points, B3 by 14.0\u00a0points and 3\u00a0others"
        )

    def test_ahead_of_few_is_not_reproduced(self) -> None:
        third = '[cases.three]\n"local.epochs" = { value = 3, source = "§3" }\n[[figures]]'
        ahead = records(A=[0.9, 0.91, 0.92], B=[0.80, 0.811, 0.822])
        behind = records(A=[0.7, 0.7, 0.7], B=[0.80, 0.811, 0.822])
        of = read("tiny", TINY.replace("[[figures]]", third))
        (found,) = verdicts(results(of, one=ahead, two=behind, three=behind))
        assert found.outcome is Outcome.NOT
        assert found.reason.startswith("A is ahead in 1 of 3 comparisons, in 1 with p < 0.05; behind B (two) by 11.1")

    def test_of_one_that_diverged(self, tiny: Experiment) -> None:
        assert self.outcome(tiny, one=records(A=[None, None], B=[0.8, 0.8])) is Outcome.NOT
        assert self.outcome(tiny, one=records(A=[0.6, 0.6], B=[None, None])) is Outcome.PARTLY
        assert results(tiny, one=records(A=[0.2, None])).values("one", "A", "best").failed == 1

    def test_of_one_that_never_reached_a_target_before_the_other_diverged(self) -> None:
        text = TINY.replace('measure = "best"\nbetter', 'measure = "rounds to 90 %"\nbetter')
        assert self.outcome(read("tiny", text), one=records(A=[0.2], B=[None])) is Outcome.UNDECIDED
        assert self.outcome(read("tiny", text), one=records(A=[0.95], B=[None])) is Outcome.PARTLY

    def test_one_that_diverged_is_in_the_table(self, tiny: Experiment) -> None:
        shown = page.table(results(tiny, two=records(A=[0.2, 0.2], B=[None, None])), "best")
        assert [row[-1] for row in shown] == ["here", "20.00\u00a0±\u00a00.00", "failed"]

    def test_seeds_that_both_have_decide(self, tiny: Experiment) -> None:
        uneven = results(tiny, one=records(A=[0.9, 0.5, 0.5], B=[0.8]))
        (found,) = verdicts(uneven)
        assert found.reason.startswith("A against B (one): +10.0\u00a0points; one seed: ")
        assert page.conditions(uneven)[0] == "one: 2\u00a0rounds of 4, 3\u00a0seeds (B\u00a01)"

    def test_of_what_was_not_run(self, tiny: Experiment) -> None:
        assert self.outcome(tiny, one=records(B=[0.8])) is Outcome.UNDECIDED

    def test_a_measure_of_cases_that_were_not_run_has_no_table(self) -> None:
        figures = '[[figures]]\nmeasure = "rounds to 70 %"\nvalues = { two = { A = 3 } }\n'
        found = results(read("tiny", TINY + figures), one=records(A=[0.8], B=[0.7]))
        assert found.measures == ["best"]
        assert "Rounds to 70" not in page.markdown(found)

    def test_cases_with_the_same_conditions_share_a_line(self, tiny: Experiment) -> None:
        both = results(tiny, one=records(A=[0.8]), two=records(A=[0.8]))
        assert page.conditions(both) == ["2\u00a0rounds of 4, 1\u00a0seed, not run: B"]
        apart = results(tiny, one=records(A=[0.8]), two=records(A=[0.8, 0.8]))
        assert [line.partition(":")[0] for line in page.conditions(apart)] == ["one", "two"]

    def test_conditions_say_how_often_algorithms_were_evaluated_and_what_was_not_run(self, tiny: Experiment) -> None:
        every = history(0.1, 0.2, 0.3, 0.4, 0.5)
        often = [Record(label, 0, every, {}, {}) for label in "AB"]
        seldom = Record("B", 0, every.assign(accuracy=[0.1, math.nan, 0.3, math.nan, 0.5]), {}, {})
        assert page.conditions(results(tiny, one=often)) == ["one: 5\u00a0rounds, 1\u00a0seed", "not run: two"]
        both = page.conditions(results(tiny, one=[often[0], seldom], two=often))
        assert both[0] == "one: 5\u00a0rounds, 1\u00a0seed, evaluated every round (B every 2)"
        failed = Record("A", 0, history(0.1, math.nan, diverged=True), {}, {})
        assert "evaluated every 2" in page.conditions(results(tiny, one=[failed, seldom]))[0]

    def test_fewer_rounds_are_better(self, tiny: Experiment) -> None:
        text = TINY.replace('measure = "best"\nbetter', 'measure = "rounds to 70 %"\nbetter')
        late = [Record("B", seed, history(0.1, 0.2, 0.8), {}, {}) for seed in range(2)]
        early = [Record("A", seed, history(0.1, 0.7, 0.8), {}, {}) for seed in range(2)]
        (found,) = verdicts(results(read("tiny", text), one=[*late, *early]))
        assert found.reason.startswith("A against B (one): -1.0\u00a0rounds")

    def test_one_that_never_reaches_a_target_would_need_a_round_more_at_least(self) -> None:
        text = TINY.replace('measure = "best"\nbetter', 'measure = "rounds to 70 %"\ncases = ["one"]\nbetter')
        never = [Record("B", seed, history(*[0.1] * 40), {}, {}) for seed in range(3)]
        early = [Record("A", seed, history(*[0.1] * (seed + 1), 0.8), {}, {}) for seed in range(3)]
        (found,) = verdicts(results(read("tiny", text), one=[*never, *early]))
        assert found[1:] == (Outcome.REPRODUCED, "A against B: -38.0\u00a0rounds, 95\u00a0% interval -40.5 to -35.5")
        (other,) = verdicts(results(read("tiny", text.replace('better = "A"', 'better = "B"')), one=[*never, *early]))
        assert other[1:] == (Outcome.NOT, "B against A: +38.0\u00a0rounds, 95\u00a0% interval +35.5 to +40.5")

    def test_runs_are_compared_after_the_same_rounds(self, tiny: Experiment) -> None:
        """A is better at the end, of which B was not run so far."""
        long = [Record("A", seed, history(0.1, 0.2, 0.9), {}, {}) for seed in range(2)]
        short = [Record("B", seed, history(0.1, 0.3 + seed / 100), {}, {}) for seed in range(2)]
        uneven = results(tiny, one=[*long, *short])
        (found,) = verdicts(uneven)
        assert found.outcome is Outcome.NOT
        assert page.conditions(uneven)[0] == "one: 2 to 3\u00a0rounds of 4, 2\u00a0seeds"
        assert [row[1:3] for row in page.table(uneven, "best")] == [
            ["algorithm", "rounds run"],
            ["A", "3 of 4"],
            ["B", "2 of 4"],
        ]

    def test_final_models_are_compared_after_the_same_rounds_only(self) -> None:
        text = TINY.replace('measure = "best"\nbetter', 'measure = "set size at 90 %"\nbetter')
        size = {"set size at 90 %": [math.nan, 1.5]}
        mine = [Record("A", seed, history(0.1, 0.9).assign(**size), {}, {}) for seed in range(2)]
        theirs = [Record("B", seed, history(0.1, 0.3).assign(**size), {}, {}) for seed in range(2)]
        longer = [Record("B", seed, history(0.1, 0.3, 0.3).assign(x=0), {}, {}) for seed in range(2)]
        of = read("tiny", text)
        assert verdicts(results(of, one=[*mine, *theirs]))[0].reason.startswith("A against B (one): +0.00")
        (found,) = verdicts(results(of, one=[*mine, *longer]))
        assert found[1:] == (Outcome.UNDECIDED, "the rounds that were run do not decide it")

    @pytest.mark.parametrize(
        ("mine", "other", "rounds", "decided"),
        [
            (0.39, 0.34, 3, False),
            (0.41, 0.34, 3, True),
            (0.39, 0.36, 3, True),  # more than half of 70 %
            (0.39, 0.34, 4, True),  # all rounds of the paper
            (0.39, None, 3, False),
            (None, 0.34, 3, True),
            (None, None, 3, False),
        ],
    )
    def test_near_chance_level_after_fewer_rounds(
        self, mine: float | None, other: float | None, rounds: int, decided: bool
    ) -> None:
        """The paper has 80 and 70 %."""
        runs = [
            Record(label, seed, history(*[best or 0.1] * rounds, diverged=best is None), {}, {})
            for label, best in {"A": mine, "B": other}.items()
            for seed in range(2)
        ]
        (found,) = verdicts(results(read("tiny", TINY), one=runs))
        assert (found.reason != "the rounds that were run do not decide it") == decided

    @pytest.mark.parametrize(("rounds", "decided"), [(2, False), (3, True), (4, True)])
    def test_a_target_that_one_reaches_after_the_other_was_ended(self, rounds: int, decided: bool) -> None:
        text = TINY.replace('measure = "best"\nbetter', 'measure = "rounds to 70 %"\ncases = ["one"]\nbetter')
        late = [Record("A", seed, history(0.1, 0.1, 0.8), {}, {}) for seed in range(2)]
        never = [Record("B", seed, history(*[0.1] * rounds), {}, {}) for seed in range(2)]
        (found,) = verdicts(results(read("tiny", text), one=[*late, *never]))
        assert (found.reason != "the rounds that were run do not decide it") == decided

    def test_a_target_that_is_reached_first_in_some_seeds(self) -> None:
        """Seeds in which it was reached early would decide for those that were ended."""
        text = TINY.replace('measure = "best"\nbetter', 'measure = "rounds to 70 %"\ncases = ["one"]\nbetter')
        mine = [Record("A", seed, history(0.1, 0.1, 0.1, 0.8), {}, {}) for seed in range(2)]
        theirs = [Record("B", seed, history(0.1, last, last), {}, {}) for seed, last in enumerate([0.8, 0.1])]
        (found,) = verdicts(results(read("tiny", text), one=[*mine, *theirs]))
        assert found[1:] == (Outcome.UNDECIDED, "the rounds that were run do not decide it")

    def test_runs_that_were_evaluated_more_often_have_no_advantage(self) -> None:
        """B is best in a round in which A was not evaluated, and A's accuracies are a little better in all others."""
        text = TINY.replace('better = "A"', 'better = "A"\ncases = ["one"]')
        theirs = [Record("B", seed, history(0.1, 0.9, 0.5 + seed / 100, 0.6), {}, {}) for seed in range(3)]
        mine = [Record("A", seed, history(0.2, math.nan, 0.6, 0.7 + seed / 100), {}, {}) for seed in range(3)]
        (found,) = verdicts(results(read("tiny", text), one=[*mine, *theirs]))
        assert found[1:] == (Outcome.REPRODUCED, "A against B: +11.0\u00a0points, 95\u00a0% interval +8.5 to +13.5")
        longer = [
            each._replace(history=history(*each.history.accuracy, 0.95)) for each in theirs
        ]  # what comes after all rounds of A is not looked at
        assert verdicts(results(read("tiny", text), one=[*mine, *longer]))[0] == found
        sooner = text.replace('measure = "best"\nbetter', 'measure = "rounds to 70 %"\nbetter')
        (found,) = verdicts(results(read("tiny", sooner), one=[*mine, *longer]))
        assert found.reason.startswith("A against B: -1.0\u00a0rounds")

    def test_where_the_paper_prints_no_figures(self) -> None:
        text = TINY[: TINY.index("[[figures]]")] + TINY[TINY.index("[[claims]]") :]
        low = records(A=[0.30, 0.31, 0.32], B=[0.20, 0.211, 0.222])
        text = text.replace('better = "A"', 'better = "A"\ncases = ["one"]')
        assert verdicts(results(read("tiny", text), one=low))[0].outcome is Outcome.REPRODUCED
        judged = text + '[judged_from]\nvalue = 40\nsource = "half of Table 3"\n'
        (found,) = verdicts(results(read("tiny", judged), one=low))
        assert found[1:] == (Outcome.UNDECIDED, "the rounds that were run do not decide it")
        whole = judged.replace("rounds = { value = 4", "rounds = { value = 2")
        assert verdicts(results(read("tiny", whole), one=low))[0].outcome is Outcome.REPRODUCED

    def test_of_two_that_both_failed(self, tiny: Experiment) -> None:
        assert self.outcome(tiny, one=records(A=[None, None], B=[None, None])) is Outcome.UNDECIDED

    def test_within_the_spread_of_those_that_did_not_fail(self) -> None:
        text = TINY.replace("B = 70", "B = [79.5, 0.5]").replace('better = "A"', 'better = "A"\ncases = ["one"]')
        text = text.replace("rounds = { value = 4", "rounds = { value = 2")
        some = records(A=[0.801, None], B=[0.797, 0.797])
        assert self.outcome(read("tiny", text), one=some) is Outcome.UNDECIDED

    def test_the_same_lead_in_every_seed(self) -> None:
        (found,) = verdicts(results(read("tiny", TINY), one=records(A=[0.9, 0.9, 0.9], B=[0.85, 0.85, 0.85])))
        assert found.outcome is Outcome.UNDECIDED
        assert "; the same difference in every seed: their spread says nothing; " in found.reason


def test_what_is_said_beside_the_figures_of_a_page(tiny: Experiment) -> None:
    cut, note = results(tiny, one=records(A=[0.8], B=[0.7])), "What the paper has is after all rounds"
    shown = page.markdown(cut, "tiny.svg", "digits (JPEG)")
    assert "**Best accuracy, in %, digits (JPEG)**" in shown
    assert "\nTest accuracy over rounds, digits (JPEG)." in shown
    assert note in shown
    whole = read("tiny", TINY.replace("rounds = { value = 4", "rounds = { value = 2"))
    assert note not in page.markdown(replace(cut, experiment=whole))
    assert "**Best accuracy, in %**" in page.markdown(cut)


def test_measures() -> None:
    run = Record("A", 0, history(0.1, math.nan, 0.6, 0.5), {}, {})
    found = {name: measure_named(name).of(run) for name in ("best", "best round", "last", "rounds to 55 %")}
    assert found == {"best": 0.6, "best round": 3, "last": 0.5, "rounds to 55 %": 3}
    assert math.isnan(measure_named("rounds to 90 %").of(run))


def test_it_is_run_stored_and_continued(tiny: Experiment, tmp_path: Path) -> None:
    whole = run(plan(tiny), tmp_path / "out")
    assert list(whole.records) == ["one", "two"]
    for runs in whole.records.values():
        assert [(each.label, each.seed) for each in runs] == [("A", 0), ("A", 1), ("B", 0), ("B", 1)]
    stored.write(whole, tmp_path / "out")
    again = stored.read(tmp_path / "out")
    assert [each.algorithms for each in again.chosen.values()] == [{"A": "fedavg", "B": "fedprox(mu=0.1)"}] * 2
    for mine, theirs in zip(again.table("best"), whole.table("best"), strict=True):
        assert mine.here.mean == pytest.approx(theirs.here.mean, abs=1e-4)
    assert page.markdown(again) == page.markdown(whole)
    assert whole.correct.keys() == again.correct.keys() == {(case, each) for case in ("one", "two") for each in "AB"}
    for pair, seeds in whole.correct.items():
        assert seeds.keys() == again.correct[pair].keys() == {0, 1}
        assert all(np.array_equal(right, again.correct[pair][seed]) for seed, right in seeds.items())
    row = whole.table("best")[0]
    assert row.difference == row.here.mean - 80


def test_parts_that_were_run_apart_are_added_in_the_order_of_the_experiment(tiny: Experiment, tmp_path: Path) -> None:
    stored.write(run(plan(tiny), tmp_path / "whole"), tmp_path / "whole")
    for case, label in (("two", "B"), ("one", "B"), ("two", "A"), ("one", "A"), ("one", "B")):
        home = tmp_path / f"{case}-{label}"
        stored.write(run(plan(tiny, only=f"{case},{label}"), home), home)
        stored.add(stored.read_files(home), tmp_path / "added")
    for name in (stored.HISTORIES, stored.ABOUT, stored.ANSWERS):
        assert (tmp_path / "added" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_a_campaign_runs_what_is_not_stored_with_as_many_seeds_and_rounds(
    tiny: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    campaign = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "reproduction" / "campaign.py"))
    threads = SimpleNamespace(Pool=lambda workers, **_: ThreadPool(workers))  # processes would not know the experiment
    monkeypatch.setattr("multiprocessing.get_context", lambda kind: threads)
    monkeypatch.setattr("signal.signal", lambda *_: None)  # not for the process that tests
    given = ["campaign.py", "--results", str(tmp_path / "results"), "--runs", str(tmp_path / "runs")]
    calls = (
        ["tiny --only one,A --seeds 1"],
        ["tiny --only one --seeds 1", "tiny --seeds 1 --rounds 2"],
        ["tiny --only two --seeds 2 --rounds 2"],
        ["tiny --only two,A --seeds 2 --rounds 3", "tiny --rounds 2"],
        ["tiny --only two,A --seeds 3 --rounds 2", "--runs", str(tmp_path / "fewer-rounds")],
        ["tiny --only two,A --seeds 1 --rounds 4", "--runs", str(tmp_path / "fewer-seeds")],
        ["tiny --only two,A --seeds 1 --rounds 4"],
        ["tiny"],
    )
    for lines in calls:
        monkeypatch.setattr("sys.argv", [*given, *lines])
        campaign["main"]()
    printed = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in printed] == [
        "1/1 tiny one A",
        "1/3 tiny one B",
        "2/3 tiny two A",
        "3/3 tiny two B",
        "1/2 tiny two A",
        "2/2 tiny two B",
        "1/1 tiny two A",
        "1/1 tiny two A",
        "1/1 tiny two A",
    ]
    assert [line.partition(" s ")[2] for line in printed[-2:]] == [
        "not stored: 2 seeds of 3 rounds are there already",
        "",
    ]
    found = stored.read(tmp_path / "results" / "tiny")
    assert {case: found.labels(case) for case in found.records} == {"one": ["A", "B"], "two": ["A", "B"]}
    # Of the last parts one had fewer rounds than were stored, and was not added; of the other, with fewer seeds, one
    # has more rounds now.
    assert [found.rounds_of(case) for case in found.records] == [{"A": 4, "B": 4}, {"A": 3, "B": 2}]
    assert [found.seeds_of(case) for case in found.records] == [{"A": 1, "B": 1}, {"A": 2, "B": 2}]
    assert [shared_rounds([run]) for run in found.runs("two", "A")] == [4, 3]


def test_a_campaign_ends_in_time_with_what_it_has(tiny: Experiment, tmp_path: Path) -> None:
    campaign = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "reproduction" / "campaign.py"))
    minutes = iter([0, *[60] * 2, *[180] * 9])  # when it begins, and after the first round of its two seeds
    campaign["measure"].__globals__["time"] = SimpleNamespace(time=lambda: next(minutes))
    part = campaign["Part"]("tiny", "one", "A", 2, None, {"run.device": "cpu"}, tmp_path / "runs", until=120)
    assert campaign["measure"](part)[2] == ""
    assert stored.read(part.home).rounds_of("one") == {"A": 2}
    assert campaign["measure"](part)[1:] == (0, "not begun")


def test_runs_that_two_experiments_have_in_common_are_taken_over(tiny: Experiment, tmp_path: Path) -> None:
    """Those of A in one case; B has another option there, and the other case other settings."""
    text = TINY.replace("rounds = { value = 4", "rounds = { value = 2").replace("fedprox(mu=0.1)", "fedprox(mu=0.2)")
    text = text.replace('"local.epochs" = { value = 2', '"local.epochs" = { value = 3')
    for before, after in (("cases.one", "cases.first"), ("values.one", "values.first"), ('["one"]', '["first"]')):
        text = text.replace(before, after)
    (tmp_path / "short.toml").write_text(text, "utf-8")
    short = experiment.find("short")
    source = run(plan(tiny, seeds=2), tmp_path / "runs")
    (tmp_path / "tiny").mkdir()
    stored.write(source, tmp_path / "tiny")
    own = run(plan(short, only="first,A", seeds=1), tmp_path / "own")
    (tmp_path / "short").mkdir()
    stored.write(own, tmp_path / "short")
    for taken in ([("first", "A")], []):  # the second seed, once
        assert take_over(short, tmp_path) == taken
    found = stored.read(tmp_path / "short")
    assert found.labels("first") == ["A"]
    for seed, record in enumerate(found.runs("first", "A")):
        theirs = source.runs("one", "A")[seed].history
        assert record.seed == seed
        assert record.history["accuracy"].tolist() == pytest.approx(theirs["accuracy"].tolist()[:2], abs=1e-6)
        assert record.history["bytes_up"].tolist() == theirs["bytes_up"].cumsum().tolist()[:2]
    assert found.correct.keys() == {("first", "A")}
    assert found.correct["first", "A"].keys() == {0}  # the answers of the other run are those after four rounds


def test_results_of_another_experiment_are_not_added(tiny: Experiment, tmp_path: Path) -> None:
    for name in ("mine", "theirs"):
        (tmp_path / name).mkdir()
        stored.write(results(replace(tiny, name=name), one=trained()), tmp_path / name)
    with pytest.raises(ValueError, match="results of theirs are added to those of mine"):
        stored.add(stored.read_files(tmp_path / "theirs"), tmp_path / "mine")


def test_results_from_another_device_are_told_apart(tiny: Experiment, tmp_path: Path) -> None:
    environments = {"NVIDIA H200": "2.11.0+cu130", "cpu": "2.13.0"}
    for label, (device, torch) in zip("AB", environments.items(), strict=True):
        (tmp_path / device).mkdir()
        run = trained()[0]._replace(label=label, environment={"device": device, "torch": torch})
        stored.write(results(tiny, one=[run]), tmp_path / device)
        assert page.markdown(stored.read(tmp_path / device)).count("torch") == 1
    stored.add(stored.read_files(tmp_path / "cpu"), tmp_path / "NVIDIA H200")
    both = stored.read(tmp_path / "NVIDIA H200")
    assert {each.label: each.environment["device"] for each in both.records["one"]} == {"A": "NVIDIA H200", "B": "cpu"}
    assert " On NVIDIA H200, torch 2.11.0. On a CPU, torch 2.13.0: one: B.\n" in page.markdown(both)


def test_all_that_is_measured_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Metrics, and what needs the predictions of the final model; also whether a loss exploded since round 1."""
    further = '[[figures]]\nmeasure = "{}"\nvalues = {{ one = {{ A = 1 }} }}\n'
    asked = 'metrics = { value = ["f1"], source = "§1" }\neval_every = { value = 3, source = "§1" }\n[seeds]'
    names = ("last macro F1", "set size at 90 %", "coverage at 90 %")
    wide = read("tiny", TINY.replace("[seeds]", asked) + "".join(further.format(name) for name in names))
    monkeypatch.setattr(stored, "find", lambda name: wide)
    whole = run(plan(wide, only="A,one", seeds=1), tmp_path / "out")
    stored.write(whole, tmp_path / "out")
    again = stored.read(tmp_path / "out")
    for name in names:
        (mine,), (theirs,) = (each.values("one", "A", name).values.values() for each in (again, whole))
        assert mine == pytest.approx(theirs, abs=1e-3)
    assert again.records["one"][0].history["round"].tolist() == [1, 3, 4]
    assert list(again.records["one"][0].history["train_loss"].round(5)) == [
        round(loss, 5) for loss in whole.records["one"][0].history["train_loss"][[0, 2, 3]]
    ]


def test_rates_are_tuned_on_held_out_samples(tiny: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = TINY.replace('lr = { value = 0.1, source = "§1" }', "")
    grid = '[tuning]\nrounds = 2\ngrid = { value = { lr = [1e-6, 0.2] }, source = "§1" }\n'
    tuned = read("tiny", text + grid)
    monkeypatch.setattr(stored, "find", lambda name: tuned)
    found = run(plan(tuned, only="one", seeds=1), tmp_path / "out")
    assert found.chosen["one"].algorithms == {"A": "fedavg(lr=0.2)", "B": "fedprox(mu=0.1, lr=0.2)"}
    assert [each.text for each in found.chosen["one"].tried if each.label == "A"] == [
        "fedavg(lr=1e-06)",
        "fedavg(lr=0.2)",
    ]
    stored.write(found, tmp_path / "out")
    assert "each the best of 2 configurations" in page.markdown(stored.read(tmp_path / "out"))
    assert {record.seed for record in found.records["one"]} == {1}  # not that of the tuning


def test_algorithms_that_are_run_later_add_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = TINY.replace('lr = { value = 0.1, source = "§1" }', "")
    grid = '[tuning]\nrounds = 2\ngrid = { value = { lr = [0.1, 0.2], "fedprox.mu" = [0.1, 1] }, source = "§1" }\n'
    tuned = read("tiny", text.replace("fedprox(mu=0.1)", "fedprox") + grid)
    parts = [run(plan(tuned, only=f"{label},one", seeds=1), tmp_path) for label in ("A", "B")]
    assert [len(each.chosen["one"].tried) for each in parts] == [2, 2]  # as many of each, though B has four
    monkeypatch.setattr("undrift.simulation.run.Run.keep", lambda *given: pytest.fail("it trains again"))
    whole = run(plan(tuned, only="one", seeds=1), tmp_path)
    assert dict(whole.chosen["one"].algorithms) == {
        label: part.chosen["one"].algorithms[label] for label, part in zip("AB", parts, strict=True)
    }


@pytest.mark.usefixtures("tiny")
def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def undrift(*arguments: str) -> Any:
        return CliRunner().invoke(app, ["reproduce", *arguments], catch_exceptions=False)

    shown = undrift("tiny", "--fast")
    assert "not decided in the short version: A is better." in shown.stdout
    assert "one: 2 rounds of 4, 1 seed, not run: B" in shown.stdout.replace("\u00a0", " ")
    written = (tmp_path / "reproduction/tiny-fast/tiny.md").read_text("utf-8").replace("\u00a0", " ")
    assert "| one | A | 2 of 4 | 80.00 ± 0.50 |" in written
    assert "FedAvg" not in (curves := (tmp_path / "reproduction/tiny-fast/tiny.svg").read_text("utf-8"))
    assert "one" in curves
    figures = json.loads(undrift("tiny", "--fast", "--json").stdout)["figures"]["best"]
    assert (figures[0]["algorithm"], figures[0]["paper"], len(figures[0]["values"])) == ("A", 80.0, 1)
    (listed,) = json.loads(undrift("--json").stdout)
    assert (listed["name"], listed["client_steps"]) == ("tiny", 1152)


class TestOtherClaims:
    def verdict(self, claim: str, **cases: list[Record]) -> Verdict:
        (found,) = verdicts(results(read("tiny", TINY.replace('better = "A"', f'better = "A"\n{claim}')), **cases))
        return found

    def outcome(self, claim: str, **cases: list[Record]) -> Outcome:
        return self.verdict(claim, **cases).outcome

    def test_that_two_are_equal(self) -> None:
        """That is shown where all of the interval is within a point: not by a difference that could be chance."""
        alike = records(A=[0.900, 0.910, 0.920], B=[0.901, 0.910, 0.919])
        noisy = records(A=[0.90, 0.80, 0.85], B=[0.80, 0.90, 0.86])
        apart = records(A=[0.90, 0.91, 0.92], B=[0.80, 0.811, 0.822])
        assert self.outcome("equal = true", one=alike, two=alike) is Outcome.REPRODUCED
        assert self.outcome("equal = true", one=alike, two=noisy) is Outcome.PARTLY
        assert self.outcome("equal = true", one=noisy, two=noisy) is Outcome.UNDECIDED
        assert self.outcome("equal = true", one=alike, two=apart) is Outcome.NOT
        assert self.outcome("equal = true", one=alike, two=records(A=[None], B=[0.9])) is Outcome.PARTLY
        assert self.outcome("equal = true", one=records(A=[None], B=[0.9])) is Outcome.UNDECIDED
        assert self.outcome("equal = true", one=apart, two=apart) is Outcome.NOT
        assert self.outcome("equal = true", one=records(A=[0.9], B=[0.9])) is Outcome.UNDECIDED

    def test_a_difference_that_is_significant_and_small(self) -> None:
        near = records(A=[0.901, 0.912, 0.923], B=[0.900, 0.9105, 0.921])
        assert self.outcome("equal = true", one=near, two=near) is Outcome.REPRODUCED

    def test_the_interval_is_that_of_students_t(self) -> None:
        noisy = records(A=[0.90, 0.80, 0.85], B=[0.80, 0.90, 0.86])
        (found,) = verdicts(
            results(read("tiny", TINY.replace('r = "A"', 'r = "A"\ncases = ["one"]\nequal = true')), one=noisy)
        )
        low, high = stats.ttest_rel([90, 80, 85], [80, 90, 86]).confidence_interval(0.95)
        assert found.reason == f"A against B: -0.3\u00a0points, 95\u00a0% interval {low:.1f} to +{high:.1f}"

    def test_that_one_is_not_better(self) -> None:
        better = records(A=[0.90, 0.91, 0.92], B=[0.80, 0.811, 0.822])
        worse = records(A=[0.80, 0.811, 0.822], B=[0.90, 0.91, 0.92])
        noisy = records(A=[0.90, 0.80, 0.85], B=[0.80, 0.90, 0.86])
        assert self.outcome("no_better = true", one=worse, two=worse) is Outcome.REPRODUCED
        assert self.outcome("no_better = true", one=worse, two=noisy) is Outcome.PARTLY
        assert self.outcome("no_better = true", one=noisy, two=noisy) is Outcome.UNDECIDED
        assert self.outcome("no_better = true", one=better, two=better) is Outcome.NOT
        with pytest.raises(ValueError, match="equal and no_better are different claims"):
            self.outcome("equal = true\nno_better = true", one=worse)

    def test_that_one_is_not_sooner(self) -> None:
        """Rounds count as equal within a tenth of the other's."""
        text = TINY.replace(
            'measure = "best"\nbetter = "A"', 'measure = "rounds to 70 %"\nbetter = "A"\ncases = ["one"]'
        )

        def runs(label: str, *reached: int) -> list[Record]:
            return [Record(label, seed, history(*[0.1] * (at - 1), 0.8), {}, {}) for seed, at in enumerate(reached)]

        def found(claim: str, first: list[Record]) -> Verdict:
            of = read("tiny", text.replace('["one"]', f'["one"]\n{claim}'))
            return verdicts(results(of, one=[*first, *runs("B", 40, 41, 42)]))[0]

        assert found("equal = true", runs("A", 41, 41, 42))[1:] == (
            Outcome.REPRODUCED,
            "A against B: +0.3\u00a0rounds, 95\u00a0% interval -1.1 to +1.8",
        )
        assert (
            found("equal = true", runs("A", 60, 61, 62)).outcome is Outcome.UNDECIDED
        )  # alike in all seeds: no spread
        assert found("equal = true", runs("A", 60, 61, 64)).outcome is Outcome.NOT
        assert found("no_better = true", runs("A", 60, 61, 64)).outcome is Outcome.REPRODUCED
        assert found("no_better = true", runs("A", 20, 21, 24)).outcome is Outcome.NOT

    def test_by_the_answers_of_the_final_models(self) -> None:
        """Over seeds the two are the same; of 200 answers one has 10 that the other has not."""
        text = TINY.replace('better = "A"', 'better = "A"\ncases = ["one"]\nmcnemar = true')
        mine, theirs = np.ones(200, dtype=bool), np.arange(200) >= 10
        correct = {("one", label): {0: each, 1: each} for label, each in (("A", mine), ("B", theirs))}
        noisy = records(A=[0.90, 0.84], B=[0.85, 0.85])
        without = results(read("tiny", text), one=noisy)
        assert verdicts(without)[0][1:] == (
            Outcome.UNDECIDED,
            "A is ahead in 1 of 1 comparisons, in 0 with p < 0.05; no answers were kept",
        )
        assert verdicts(replace(without, correct=correct))[0].outcome is Outcome.REPRODUCED
        few = {pair: {0: seeds[0][5:]} for pair, seeds in correct.items()}  # of which 5 are different
        assert verdicts(replace(without, correct=few))[0].outcome is Outcome.NOT
        some = {pair: seeds | {1: seeds[1][5:]} for pair, seeds in correct.items()}
        assert verdicts(replace(without, correct=some))[0].outcome is Outcome.NOT  # it has to hold in every seed
        other = {(case, {"A": "B", "B": "A"}[label]): seeds for (case, label), seeds in correct.items()}
        assert verdicts(replace(without, correct=other))[0].outcome is Outcome.NOT  # A has fewer right
        with pytest.raises(ValueError, match="mcnemar must be true or false, got 1"):
            read("tiny", text.replace("mcnemar = true", "mcnemar = 1"))

    def test_of_two_cases(self) -> None:
        good, bad = records(A=[0.90, 0.91, 0.92]), records(A=[0.80, 0.811, 0.822])
        claim = 'than = ["A"]\ncases = ["one"]\nthan_case = "two"'
        assert self.outcome(claim, one=good, two=bad) is Outcome.REPRODUCED
        found = self.verdict(claim, one=bad, two=good)
        assert found[1:] == (
            Outcome.NOT,
            "A in one against A in two: -9.9\u00a0points, 95\u00a0% interval -10.1 to -9.7",
        )
        assert self.outcome(claim, one=good) is Outcome.UNDECIDED
