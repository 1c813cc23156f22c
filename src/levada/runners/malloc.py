"""Keep freed memory in the process, for the next array of that size.

By default the C library returns large blocks to the system at once, and each new one is slow when first touched: an update of
half a million parameters spends two thirds of its optimizer step on that.
"""

from __future__ import annotations

import ctypes
import sys

_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1
"""Parameters of mallopt, from malloc.h of the GNU C library."""
LARGE = 1 << 25
"""Size in bytes above which blocks are still returned at once. (The library accepts no larger value.)"""
KEPT = 1 << 28
"""Most bytes that are kept at the end of the heap."""


def keep_freed_memory() -> bool:
    """Configure the C library of this process; return False if it does not support this."""
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has no mallopt
    return mallopt is not None and bool(mallopt(_MMAP_THRESHOLD, LARGE) and mallopt(_TRIM_THRESHOLD, KEPT))
