"""Error codes of a stream without a reader: `levada train ... --json | head -1`, or a closed terminal.

>>> error = BrokenPipeError(errno.EPIPE, "Broken pipe")
>>> error.errno in CLOSED
True
"""

from __future__ import annotations

import errno

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""`OSError.errno` of a file on a full disk."""
CLOSED = frozenset({errno.EPIPE, errno.EIO, errno.EBADF})
"""`OSError.errno` of a closed pipe, terminal or descriptor."""
