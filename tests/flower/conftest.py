from __future__ import annotations

import pytest


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replies and nodes are looked for at once."""
    from undrift.flower import messages, nodes  # Flower may not be installed

    monkeypatch.setattr(messages, "POLL", 0.0)
    monkeypatch.setattr(nodes, "_LOOK", 0.0)
