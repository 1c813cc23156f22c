"""Where compilers keep compiled code between runs: `levada` in the user's cache directory ($XDG_CACHE_HOME, or ~/.cache)."""

from __future__ import annotations

import os
from pathlib import Path


def code_cache(compiler: str) -> Path | None:
    """Return the directory for a compiler's code, made if necessary; None: it cannot be made.

    >>> code_cache("xla").name
    'xla'
    """
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = Path(home, "levada", compiler)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:  # a home that is missing or cannot be written; compiling works without
        return None
    return folder
