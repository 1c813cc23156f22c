"""Memory that is freed stays with the process, for the next array of that size.

By default the C library gives large pieces back at once, and each new one is slow when it is first touched: an update of half a
million parameters spends two thirds of its optimiser step on that.
"""

from __future__ import annotations

import ctypes
import sys

_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1
"""Parameters of mallopt, from malloc.h of the GNU C library."""
LARGE = 1 << 25
"""Bytes; what is larger is given back at once, as before. (The library takes no larger value.)"""
KEPT = 1 << 28
"""Bytes that are kept at most at the end of the heap."""


def keep_freed_memory() -> bool:
    """Tell the C library of this process; False where it has no such thing."""
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    return mallopt is not None and bool(mallopt(_MMAP_THRESHOLD, LARGE) and mallopt(_TRIM_THRESHOLD, KEPT))
