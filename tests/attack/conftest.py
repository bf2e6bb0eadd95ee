"""Attacks: seeded random cases, few of them by default and many with ``--long``, and a summary line per class.

A test marked ``attack(short=…, long=…)`` takes the fixture `rng` and is run so many times, each time with another
`random.Random`; every other test of this directory is a single case. The file's name is the class.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

import pytest


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    mark = metafunc.definition.get_closest_marker("attack")
    if mark is None:
        return
    count = mark.kwargs["long" if metafunc.config.getoption("long") else "short"]
    metafunc.parametrize("rng", range(count), indirect=True)


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> Random:
    """Random choices of one case; another ``--attack-seed`` makes other ones."""
    return Random(f"{request.config.getoption('attack_seed')}/{request.node.nodeid}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    cases: Counter[str] = Counter()
    failures: Counter[str] = Counter()
    for outcome in ("passed", "failed", "error"):
        for report in terminalreporter.getreports(outcome):
            path = Path(report.nodeid.partition("::")[0])
            if path.parent.name == "attack":
                kind = path.stem.removeprefix("test_")
                cases[kind] += 1
                failures[kind] += outcome != "passed"
    if cases:
        terminalreporter.section("attack")
    for kind in sorted(cases):
        terminalreporter.line(f"{kind:<12} {cases[kind]:>6} cases {failures[kind]:>4} failures")
