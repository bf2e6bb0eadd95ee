"""What a part of the report is, and how it is made of a template."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from markupsafe import Markup


class Section(NamedTuple):
    """What the page shows under a heading of its own."""

    title: str
    html: Markup  # escaped by whoever made it
    note: str = ""  # how it is to be read


def rendered(template: str, **values: Any) -> Markup:
    """A template of this folder; values are escaped. The page defines ``--s0``, ... as the colours of the methods."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    pages = Environment(loader=PackageLoader(__package__, "."), autoescape=True, undefined=StrictUndefined)
    return Markup(pages.get_template(template).render(values))
