"""The critical-difference diagram of methods over several tasks (Demšar, 2006)."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING

from undrift.core.extras import needs
from undrift.reporting.significance import Ranks

if TYPE_CHECKING:
    from markupsafe import Markup
    from matplotlib.axes import Axes

_NUMBERED = 15  # ranks; of more, every fifth has a number


def draw(ranks: Ranks, axes: Axes | None = None) -> Axes:
    """Average ranks on a line, 1 for the best; a bar joins methods that Nemenyi's test does not tell apart."""
    with needs("plot"):
        import matplotlib.pyplot as plt  # slow to import
    with needs("stats"):
        from scikit_posthocs import critical_difference_diagram
    count = len(ranks.table)
    if axes is None:
        axes = plt.subplots(figsize=(7, 1.2 + 0.22 * count), layout="constrained")[1]
    average = ranks.table.set_index("label")["average_rank"]
    # Labels are any text: {} and $ in them are no formulas.
    shown = {label: f"{label} ({rank:.2f})" for label, rank in average.items()}
    drawn = critical_difference_diagram(
        average.rename(shown),
        ranks.nemenyi.rename(index=shown, columns=shown),
        ax=axes,
        label_fmt_left="{label} ",
        label_fmt_right=" {label}",
        label_props={"parse_math": False},
        marker_props={"color": "black"},
        elbow_props={"color": "black", "linewidth": 1},
        crossbar_props={"color": "black", "linewidth": 3},
        text_h_margin=0.05 * (count - 1),
    )
    for (bar,) in drawn["crossbars"]:  # its points are in the order of a set, which differs between processes
        bar.set_xdata(sorted(bar.get_xdata()))
    axes.set_xlim(1 - 0.05 * (count - 1), count + 0.05 * (count - 1))
    step = 1 if count <= _NUMBERED else 5
    axes.set_xticks(sorted({1, *range(step, count + 1, step)}))
    return axes


def svg(ranks: Ranks) -> Markup:
    """The diagram for a page: in the colour of its text, without a style sheet or colours of its own."""
    from markupsafe import Markup

    with needs("plot"):
        import matplotlib
        from matplotlib.figure import Figure
    figure = Figure(figsize=(7, 1.2 + 0.22 * len(ranks.table)))
    written = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "undrift", "text.parse_math": False}):
        draw(ranks, figure.subplots())
        figure.savefig(written, format="svg", transparent=True, bbox_inches="tight", metadata={"Date": None})
    return Markup(_for_a_page(written.getvalue()))


def _for_a_page(text: str) -> str:
    """matplotlib's SVG inside HTML: as wide as there is room, its text and lines as those around it."""
    found = re.search(r'<svg [^>]*?width="([0-9.]+)pt"[^>]*?(viewBox="[^"]*")[^>]*>(.*)</svg>', text, re.DOTALL)
    assert found is not None
    width, box, drawing = found.groups()
    drawing = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", drawing, flags=re.DOTALL)
    drawing = re.sub(r"font-family:[^;\"]*", "font-family: inherit", drawing)
    drawing = drawing.replace("#000000", "currentColor").replace("xlink:href", "href")
    style = f"width:100%;min-width:28rem;max-width:{width}pt;height:auto;fill:currentColor"
    return f'<svg role="img" aria-label="Critical-difference diagram" {box} style="{style}">{drawing}</svg>'
