"""Every code block of the README, of the pages and of the notebooks runs as printed, with a few rounds of each run."""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib
import pytest

import documents
from undrift.simulation.options import AUTO, Options

ROOT = Path(__file__).parents[1]
GENERATED = [
    ROOT / "docs" / "settings.md",
    ROOT / "docs" / "agreement.md",
    *(ROOT / "docs" / "algorithms").glob("*.md"),
]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md"))]
MOST_ROUNDS = 2
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.fixture(autouse=True)
def _empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory to work in that holds nothing but the documentation."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    matplotlib.use("agg")
    (tmp_path / "docs").symlink_to(ROOT / "docs")


@pytest.fixture(autouse=True)
def _few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    checked = Options.__post_init__

    def shortened(self: Options) -> None:
        checked(self)
        object.__setattr__(self, "rounds", MOST_ROUNDS if self.rounds == AUTO else min(self.rounds, MOST_ROUNDS))

    monkeypatch.setattr(Options, "__post_init__", shortened)


@pytest.mark.parametrize("page", [page for page in PAGES if page not in GENERATED], ids=name)
def test_blocks_of_pages_run(page: Path) -> None:
    expected = [block for block in documents.blocks(page) if block.language in documents.RUN and not block.not_run]
    assert documents.run(page) >= len([block for block in expected if not block.title])


@pytest.mark.parametrize("path", NOTEBOOKS, ids=name)
def test_notebooks_run(path: Path) -> None:
    notebook = json.loads(path.read_text("utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    ids = [cell["id"] for cell in notebook["cells"]]
    assert len(set(ids)) == len(ids)
    namespace: dict[str, object] = {"__name__": "__main__"}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []  # they would grow old
            exec(
                compile("".join(cell["source"]), f"{path.name}: cell {cell['id']}", "exec", dont_inherit=True),
                namespace,
            )
