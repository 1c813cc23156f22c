"""How a stream says that nobody reads it any more: `levada train ... --json | head -1`, a terminal that was closed.

>>> error = BrokenPipeError(errno.EPIPE, "Broken pipe")
>>> error.errno in CLOSED
True
"""

from __future__ import annotations

import errno

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""`OSError.errno` of a file on a disk that is full."""
CLOSED = frozenset({errno.EPIPE, errno.EIO, errno.EBADF})
"""`OSError.errno` of a pipe, a terminal, a descriptor that was closed."""
