"""Write the page of every algorithm from the source of `undrift explain`: `make docs`."""

from __future__ import annotations

from pathlib import Path

from undrift import algorithms
from undrift.explain import Page, markdown, page, sizes

HOME = Path(__file__).parent / "algorithms"


def index(pages: list[Page]) -> str:
    """The table of all pages."""
    rows = [
        f"| [{p.label}]({p.name}.md) | {p.title} | {'–' if p.cost.stateless else sizes(p.cost.client)} | {server(p)} "
        f"| {sizes(p.cost.down)} / {sizes(p.cost.up)} | {sizes(p.cost.gradients)} | {sizes(p.cost.passes)} |"
        for p in pages
    ]
    return "\n".join(
        [
            "# Algorithms",
            "",
            "Sizes are in models, measured with the defaults on a model of four equal layers: what a client keeps,",
            "what the server keeps besides the model (N: for every client), what a client receives and sends in a",
            "round, the gradients of a local step, and further passes over a client's samples. A message is",
            "self-contained: an exchange before training sends the model as well.",
            "",
            "| algorithm | in a sentence | client | server | down / up | gradients | passes |",
            "|---|---|---|---|---|---|---|",
            *rows,
            "",
        ]
    )


def server(p: Page) -> str:
    common, each = sizes(p.cost.server), sizes(p.cost.server_per_client)
    return common if each == "0" else f"{common} + {'' if each == '1' else each}N"


def contents() -> dict[Path, str]:
    pages = [page(name) for name in algorithms.available()]
    return {HOME / f"{p.name}.md": markdown(p) for p in pages} | {HOME / "README.md": index(pages)}


if __name__ == "__main__":
    HOME.mkdir(exist_ok=True)
    for path, text in contents().items():
        path.write_text(text, encoding="utf-8")
