"""A report: the page with the data of finished runs in it, as one file that needs no server and no network.

report_of([Path("runs/first")])      # the document, as text
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from html import escape
from pathlib import Path

from levada.watch.messages import encode
from levada.watch.page_files import page_file
from levada.watch.tail import Tail


def report_of(runs: Sequence[Path]) -> str:
    """Make the report of runs, from their directories."""
    messages: list[str] = []
    for number, path in enumerate(runs):
        tail = Tail(path, number)
        try:
            messages += (encode(message).decode() for message in tail.messages())
        finally:
            tail.close()
    # nothing in a string can end the element, or begin another
    data = f"[{','.join(messages)}]".replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    style, script = page_file("flow.css") + page_file("page.css"), page_file("page.js")
    policy = f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data:"
    names = escape(", ".join(path.name for path in runs))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<title>{names} - levada</title>\n<link rel="icon" href="data:,">\n<style>{style}</style>\n</head>\n<body>\n'
        '<main id="page"><h1>levada</h1></main>\n'
        f'<script type="application/json" id="data">{data}</script>\n<script>{script}</script>\n</body>\n</html>\n'
    )


def _hash(text: str) -> str:
    """Return the source of the security policy that allows this text, and no other."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
