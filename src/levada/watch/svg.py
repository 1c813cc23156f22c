"""Drawings from runs, whose files may come from anywhere: only what levada draws with is left of them.

>>> print(safe_svg('<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script><g onclick="x" class="lv"/></svg>'))
<svg xmlns="http://www.w3.org/2000/svg"><g class="lv"></g></svg>
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from xml.etree import ElementTree

SVG_NBYTES = 4 << 20
"""Upper limit of the size of a drawing."""
_NAMESPACE = "{http://www.w3.org/2000/svg}"
_TAGS = {"svg", "title", "desc", "marker", "rect", "path", "g", "text"}
_NUMBERS = {"x", "y", "width", "height", "rx", "refX", "refY", "markerWidth", "markerHeight"}
_ATTRIBUTES = _NUMBERS | {
    "class", "d", "transform", "viewBox", "id", "orient", "role", "markerUnits", "data-node", "data-channel", "data-replay",
    "data-register",
}  # fmt: skip
_LINKS = {"url(#lv-tip)", "url(#lv-back-tip)"}
_DEPTH = 20


def safe_svg(text: str) -> str | None:
    """Return the drawing with known elements and attributes alone, without styles; None if it is not well-formed."""
    if len(text) > SVG_NBYTES or "<!" in text:  # entities could expand to gigabytes
        return None
    try:
        root = ElementTree.fromstring(text)
    except (ElementTree.ParseError, ValueError):
        return None
    if root.tag != f"{_NAMESPACE}svg":
        return None
    return "".join(_safe(root, _DEPTH))


def _safe(element: ElementTree.Element, depth: int) -> Iterator[str]:
    tag = element.tag.removeprefix(_NAMESPACE) if isinstance(element.tag, str) else ""
    if tag not in _TAGS or depth == 0:
        return
    kept = {name: value for name, value in element.attrib.items() if name in _ATTRIBUTES}
    if element.get("marker-end") in _LINKS:
        kept["marker-end"] = element.attrib["marker-end"]
    if tag == "svg":
        kept = {"xmlns": _NAMESPACE.strip("{}"), **kept}
    yield "".join([f"<{tag}", *(f' {name}="{escape(value)}"' for name, value in kept.items()), ">"])
    yield escape(element.text or "", quote=False)
    for child in element:
        yield from _safe(child, depth - 1)
    yield f"</{tag}>"
