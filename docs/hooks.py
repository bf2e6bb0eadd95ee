"""What MkDocs does besides: pages from notebooks and from files outside of docs/, and the list of algorithms."""

from __future__ import annotations

import json
import re
from pathlib import Path
from posixpath import normpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
# Files that people look for in the repository's root, as pages of the site.
FROM_ROOT = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md", "SECURITY.md": "security.md"}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """A page per algorithm, in alphabetical order, below their table."""
    pages = sorted((ROOT / "docs/algorithms").glob("*.md"), key=lambda path: path.stem)
    entries: list[str | dict[str, str]] = [{"All of them": "algorithms/README.md"}]
    entries += [f"algorithms/{path.name}" for path in pages if path.stem != "README"]
    config.nav = [{"Algorithms": entries} if "Algorithms" in entry else entry for entry in config.nav or []]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for name, page in FROM_ROOT.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / name)))
    for path in sorted((ROOT / "docs/notebooks").glob("*.ipynb")):
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=_notebook(path)))
    return files


def _notebook(path: Path) -> str:
    """A notebook as a page, without what its cells show."""
    title, *parts = [
        f"```python\n{text}\n```" if cell["cell_type"] == "code" else text
        for cell in json.loads(path.read_text("utf-8"))["cells"]
        for text in ["".join(cell["source"])]
    ]
    return "\n\n".join([title, f"*Run it yourself: [{path.name}]({path.name}).*", *parts]) + "\n"


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links between files of the repository become links between pages; what is no page is named, without a link."""
    source = page.file.src_uri
    outside = {to: name for name, to in FROM_ROOT.items()}.get(source)
    folder = Path("docs" if outside is None else "", outside or source).parent

    def mended(link: re.Match[str]) -> str:
        text, target, anchor = link.groups()
        path = normpath((folder / target).as_posix())  # in the repository
        if path in FROM_ROOT:
            at = FROM_ROOT[path]
        elif path.startswith("docs/"):
            at = path.removeprefix("docs/")
        else:
            return text
        up = "../" * source.count("/")
        return f"[{text}]({up}{at}{anchor or ''})"

    return re.sub(r"(?<!!)\[([^\]]+)\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)", mended, markdown)
