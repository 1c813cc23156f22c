"""HTML for notebooks: every piece is made by `element`, which escapes what is not HTML already.

>>> print(element("b", "a < b", title='"x"'))
<b title="&quot;x&quot;">a &lt; b</b>
>>> print(element("p", element("b", "bold"), " & plain"))
<p><b>bold</b> &amp; plain</p>
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from levada.run.display.printable import printable


class Html(str):
    """Text that is HTML, which is not escaped again. Only `element` and `joined` make it."""

    __slots__ = ()


def element(name: str, /, *children: str, **attributes: str | float) -> Html:
    """Make an element.

    Args:
        name: name of the element.
        *children: text, which is escaped, or `Html`.
        **attributes: values, which are escaped. A `_` in a name becomes a `-`, and one at its end is left out, as in `class_`.
    """
    own = (f' {key.rstrip("_").replace("_", "-")}="{_text(value)}"' for key, value in attributes.items())
    return Html(f"<{name}{''.join(own)}>{joined(children)}</{name}>")


def joined(parts: Iterable[str]) -> Html:
    """Join text, which is escaped, and `Html`."""
    return Html("".join(part if isinstance(part, Html) else _text(part) for part in parts))


def table(rows: Iterable[Sequence[str]], heads: Sequence[str] = ()) -> Html:
    """Make a table. Its first column is text, and the others are numbers if there are `heads`.

    >>> print(table([("return", "475.0")]))
    <table><tbody><tr><th style="text-align:left">return</th><td style="text-align:left">475.0</td></tr></tbody></table>
    """
    left, other = {"style": "text-align:left"}, {"style": f"text-align:{'right' if heads else 'left'}"}
    body = [
        element("tr", element("th", row[0], **left), *(element("td", cell, **other) for cell in row[1:]))
        for row in rows
    ]
    parts = [element("tbody", *body)]
    if heads:
        first, *others = heads
        top = element("tr", element("th", first, **left), *(element("th", head, **other) for head in others))
        parts.insert(0, element("thead", top))
    return element("table", *parts)


def _text(value: str | float) -> str:
    return escape(printable(value)) if isinstance(value, str) else f"{value:.6g}"
