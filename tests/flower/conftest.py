from __future__ import annotations

import pytest

from undrift.flower import messages


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replies are looked for at once."""
    monkeypatch.setattr(messages, "POLL", 0.0)
