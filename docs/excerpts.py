"""Excerpts of the source in the documents: `python docs/excerpts.py` rewrites all of them.

An excerpt is a block of `py` after a line that begins with a link to the function, named as in its module:

    [`PPOLoss.__call__`](../../src/levada/algorithms/ppo.py) in full:

tests/test_docs.py fails where an excerpt differs from the source.
"""

import ast
import re
import textwrap
from pathlib import Path

DOCS = Path(__file__).resolve().parent
EXCERPT = re.compile(r"^(\[`([\w.]+)`\]\(([^)]+\.py)\)[^\n]*\n\n```py\n)(.*?)(?=^```$)", re.MULTILINE | re.DOTALL)


def excerpt(path, name):
    """The lines of a function or class; `name` is that of a method with its class."""
    source = path.read_text(encoding="utf-8")
    node = ast.parse(source)
    for part in name.split("."):
        node = next((inner for inner in node.body if getattr(inner, "name", None) == part), None)
        if node is None:
            msg = f"{path} has no {name}; change the link above the excerpt"
            raise ValueError(msg)
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    return textwrap.dedent("".join(source.splitlines(keepends=True)[first - 1 : node.end_lineno]))


def rewritten(document):
    """Text of a document with the excerpts of the present source."""

    def now(found):
        before, name, path, _ = found.groups()
        return before + excerpt(document.parent / path, name)

    return EXCERPT.sub(now, document.read_text(encoding="utf-8"))


if __name__ == "__main__":
    for document in DOCS.glob("**/*.md"):
        text = rewritten(document)
        if text != document.read_text(encoding="utf-8"):
            document.write_text(text, encoding="utf-8")
            print(document.relative_to(DOCS.parent))
