"""The memory of clients: what was scattered is gathered, and only clients that were seen cost anything."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from undrift import tree
from undrift.states import ClientStates

INITIAL = {"control": {"w": torch.zeros(2, 3)}, "seen": torch.tensor(0)}


def states_of(ids: list[int], stamp: int) -> dict[str, object]:
    return tree.stack([{"control": {"w": torch.full((2, 3), 1.0 * stamp + i)}, "seen": torch.tensor(i)} for i in ids])


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=6, unique=True), max_size=8))
def test_the_last_state_of_every_client_is_kept(cohorts: list[list[int]]) -> None:
    memory, expected = ClientStates(INITIAL), dict.fromkeys(range(31), INITIAL)
    for stamp, cohort in enumerate(cohorts, 1):
        memory.scatter(np.array(cohort), states_of(cohort, 100 * stamp))
        expected |= {i: tree.row(states_of(cohort, 100 * stamp), place) for place, i in enumerate(cohort)}
    everyone = list(range(31))
    assert_close(memory.gather(np.array(everyone)), tree.stack([expected[i] for i in everyone]))
    assert len(memory) == len({i for cohort in cohorts for i in cohort})
    restored = ClientStates(INITIAL)
    restored.restore(tree.map_nest(torch.clone, memory.export()))
    assert_close(restored.gather(np.array(everyone)), memory.gather(np.array(everyone)))


def test_gathered_states_are_copies() -> None:
    memory = ClientStates(INITIAL)
    memory.scatter(np.array([4]), states_of([4], 0))
    memory.gather(np.array([4]))["control"]["w"].zero_()
    assert memory.gather(np.array([4]))["control"]["w"][0, 0, 0] == 4


def test_only_clients_that_were_seen_are_stored() -> None:
    memory = ClientStates(INITIAL)
    assert memory.export() == {}
    memory.scatter(np.array([10**9, 3]), states_of([7, 3], 0))
    exported = memory.export()
    assert exported["ids"].tolist() == [10**9, 3]
    assert exported["states"]["control"]["w"].shape == (2, 2, 3)


def test_a_state_that_changes_shape_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="must keep its names, shapes and dtypes"):
        ClientStates(INITIAL).scatter(np.array([0]), {"control": {"w": torch.zeros(1, 2, 4)}, "seen": torch.zeros(1)})
