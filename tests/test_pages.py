"""The pages of the documentation are what the code says now."""

from __future__ import annotations

import runpy
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


def test_pages_are_up_to_date() -> None:
    contents = runpy.run_path(str(DOCS / "pages.py"))["contents"]()
    stale = [path.name for path, text in contents.items() if not path.exists() or path.read_text("utf-8") != text]
    assert not stale, f"run `make docs`: {stale}"
    extra = {path.name for path in (DOCS / "algorithms").glob("*.md")} - {path.name for path in contents}
    assert not extra, f"pages of algorithms that are gone: {extra}"
