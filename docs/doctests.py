"""Extension of griffe, which reads docstrings for the site: examples that begin with >>> become blocks of code."""

import re

import griffe

EXAMPLE = re.compile(r"^>>> .*?(?=\n[ \t]*\n|\Z)", re.MULTILINE | re.DOTALL)
"""From >>> at the margin to the next empty line."""


class Doctests(griffe.Extension):
    """Fence the examples of each docstring."""

    def on_object(self, *, obj, **kwargs):
        if obj.docstring:
            obj.docstring.value = EXAMPLE.sub(lambda found: f"```pycon\n{found[0]}\n```", obj.docstring.value)
