"""Status of a run, from the files that it writes, without disturbing it.

>>> from tempfile import TemporaryDirectory
>>> with TemporaryDirectory() as directory:
...     status_of(Path(directory))
'cut off'
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal, TypeAlias

from levada.memory import lines_of

Status: TypeAlias = Literal["running", "finished", "failed", "cut off"]
"""A run that was cut off has neither a summary nor an error: its process was killed, or the machine stopped."""

FRESH_S: Final = 10.0
"""Seconds since the last frame during which a run counts as running: on another machine, its lock cannot be seen."""


def status_of(path: Path, *, now: Callable[[], float] = time.time) -> Status:
    """Return the status of the run in a directory; `now`: seconds since 1970, replaced in tests."""
    if is_locked(path):
        return "running"
    if os.path.lexists(path / "summary.json"):
        return "finished"
    if os.path.lexists(path / "error.txt"):
        return "failed"
    try:
        age_s = now() - os.lstat(path / "frames.bin").st_mtime
    except OSError:
        return "cut off"
    return "running" if age_s < FRESH_S else "cut off"


def is_locked(path: Path) -> bool:
    """Whether a process of this machine has locked the run. The lock is not tried: that could keep the run from starting."""
    try:
        stat = os.stat(path)
    except OSError:
        return False
    place = f"{os.major(stat.st_dev):02x}:{os.minor(stat.st_dev):02x}:{stat.st_ino}"
    return any(" FLOCK " in line and f" {place} " in line for line in lines_of(Path("/proc/locks")))
