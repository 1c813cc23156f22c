"""The files of the page, as they ship in the package."""

from __future__ import annotations

from importlib import resources

from levada.flow.draw.svg import STYLE


def page_file(name: str) -> str:
    """Return a file of the page: index.html, page.js, page.css, or flow.css, the style of drawings."""
    return (
        STYLE if name == "flow.css" else (resources.files("levada.watch") / "page" / name).read_text(encoding="utf-8")
    )
