"""Every algorithm with everything that acts on updates: it trains with the right numbers, or is refused in one line."""

from __future__ import annotations

from typing import Any

import pytest
from torch.testing import assert_close

import undrift as ud
from laws import FIRST_OF_EVERY_KIND, SHORT, Law, classified, normed

pytestmark = pytest.mark.usefixtures("networks_are_tried_once")

UPDATES_ONLY = {
    *("fedavg", "fedprox", "fedbn", "moon", "perfedavg", "fedavgm", "fedadagrad", "fedadam", "fedyogi", "adabest"),
    *("mimelite", "fedpmvr", "feddpc", "fedhbm", "localghb", "ghb"),
}


def run(law: Law, **options: Any) -> ud.Run:
    return ud.simulate(law.algorithm, law.model(), classified(), **SHORT | dict(law.options) | options)


def refusal(law: Law, **options: Any) -> str:
    with pytest.raises(ValueError, match=type(law.algorithm).__name__) as error:
        run(law, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("law", FIRST_OF_EVERY_KIND)
def test_robust_rules(law: Law) -> None:
    """A rule that has nothing to cut gives the mean."""
    if law.algorithm.name() not in UPDATES_ONLY:
        assert "aggregate" in refusal(law, aggregate="median")
        return
    rule = run(law, aggregate="norm-clip(limit=1e9)")
    assert_close(rule.parameters, run(law).parameters, rtol=1e-12, atol=1e-12)


def test_averaged_statistics_are_no_part_of_a_rule() -> None:
    given = SHORT | {"aggregate": "median"}
    with pytest.raises(ValueError, match=r"also send buffers, which the server averages; give buffers='local' or"):
        ud.simulate("fedavg", normed(), classified(), **given)
    assert ud.simulate("fedavg", normed(), classified(), **given, buffers="dropped").rounds == 3


NO_FEEDBACK = {
    *("feddyn", "feddc", "fedspeed", "fedexp", "feddpc"),  # the server remembers or changes updates
    *("fedvarp", "mifa"),  # it uses them more than once
    *("mafsvrg", "gafsvrg"),
}


@pytest.mark.parametrize("law", FIRST_OF_EVERY_KIND)
def test_compression(law: Law) -> None:
    """A codec that loses nothing gives the numbers of none."""
    if law.algorithm.name() in NO_FEEDBACK:
        assert "compress=" in refusal(law, compress="top-k")
        return
    coded = run(law, compress="top-k(share=1)")
    assert_close(coded.parameters, run(law).parameters, rtol=1e-12, atol=1e-12)


PRIVATE = {"fedavg", "fedprox", "fedavgm", "fedadagrad", "fedadam", "fedyogi", "mimelite", "perfedavg", "ghb"}
KEEPING = UPDATES_ONLY - PRIVATE - {"feddpc"}  # whose clients remember something


@pytest.mark.parametrize("law", FIRST_OF_EVERY_KIND)
def test_privacy(law: Law) -> None:
    """Limits so wide and noise so small that nothing changes."""
    name, privacy = law.algorithm.name(), ud.Privacy(clip=1e6, noise=1e-18)
    if name not in PRIVATE:
        assert "privacy" in refusal(law, privacy=privacy, cohort=4)
    if name in PRIVATE | KEEPING:
        given = {"cohort": None, "weighting": "uniform"}
        assert_close(run(law, privacy=privacy, **given).parameters, run(law, **given).parameters, rtol=1e-9, atol=1e-9)
