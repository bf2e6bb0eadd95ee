"""A plot of a partition, clients × classes, as papers show it: a PNG or an HTML page."""

from __future__ import annotations

from pathlib import Path

from undrift.core.extras import needs
from undrift.data import picture_svg
from undrift.data.federated import FederatedData
from undrift.data.heterogeneity import heterogeneity, summary
from undrift.data.split import Split


def draw(data: FederatedData, path: str | Path, title: str = "") -> Path:
    """Write the picture as a PNG or an HTML page, by the suffix of `path`."""
    target = Path(path)
    if target.suffix not in (".png", ".html"):
        raise ValueError(f"the picture of a partition is a .png or a .html, got {str(path)!r}")
    heading = title or data.name or "partition"
    content = _png(data, heading) if target.suffix == ".png" else _page(data, heading).encode()
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)
    return target


def _png(data: FederatedData, heading: str) -> bytes:
    with needs("plot"):
        from undrift.data import picture_png

    return picture_png.png(Split.of(data), len(data), heading, _description(data))


def _description(data: FederatedData) -> str:
    """The line below the title: how many clients and samples, and how different the clients are."""
    measured = summary(heterogeneity(data))
    sizes = measured["per_client"]["samples"]
    least, most = f"{sizes['min']:,.0f}", f"{sizes['max']:,.0f}"
    parts = [
        f"{measured['clients']:,} clients",
        f"{measured['samples']:,} samples, {most if least == most else f'{least} to {most}'} each",
    ]
    if "classes" in measured["per_client"]:
        mean = {name: values["mean"] for name, values in measured["per_client"].items()}
        parts += [
            f"{mean['classes']:.3g} {'class' if mean['classes'] == 1 else 'classes'} a client",
            f"Jensen–Shannon {mean['jensen_shannon']:.2f}",
            f"earth mover {mean['earth_mover']:.2f}",
        ]
    return "  ·  ".join(parts)


def _page(data: FederatedData, heading: str) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    pages = Environment(loader=PackageLoader("undrift.data", "."), autoescape=True, undefined=StrictUndefined)
    return pages.get_template("picture_template.html").render(
        title=heading,
        description=_description(data),
        picture=Markup(picture_svg.svg(Split.of(data), picture_svg.LARGE)),  # escaped by its own template
        table=_table(summary(heterogeneity(data))["per_client"]),
    )


def _table(per_client: dict[str, dict[str, float]]) -> list[tuple[str, list[str]]]:
    """Smallest, mean and largest of every measure."""
    names = {
        "samples": "Samples",
        "classes": "Classes",
        "entropy": "Entropy of labels (bits)",
        "jensen_shannon": "Jensen–Shannon distance to the whole",
        "earth_mover": "Earth mover’s distance to the whole",
    }
    return [
        (names[name], [f"{value:,.{0 if name == 'samples' else 2}f}" for value in values.values()])
        for name, values in per_client.items()
    ]
