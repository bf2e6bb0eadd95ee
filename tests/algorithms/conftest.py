"""Thousands of runs here have the same few networks."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _try_networks_once(networks_are_tried_once: None) -> None:
    pass
