"""Memory of this machine.

>>> has = machine_memory()
>>> 0 < has.free_nbytes <= has.total_nbytes
True
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of the machine, or of the container that limits this process."""

    total_nbytes: int
    free_nbytes: int


def machine_memory() -> Memory:
    """Read the memory that this process may use: the machine's, or less if a container limits it."""
    page = os.sysconf("SC_PAGE_SIZE")
    total, free = page * os.sysconf("SC_PHYS_PAGES"), page * os.sysconf("SC_AVPHYS_PAGES")
    for line in lines_of(Path("/proc/meminfo")):  # cached memory counts as free
        if line.startswith("MemAvailable:"):
            free = 1024 * int(line.split()[1])
    group = Path("/sys/fs/cgroup")
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        most, now = (next(lines_of(group / name), "") for name in (limit, used))
        if most.isdecimal() and int(most) < total:
            total = int(most)
            free = min(free, max(1, total - int(now)) if now.isdecimal() else total)
    return Memory(total, min(free, total))


def process_nbytes() -> int:
    """Read the memory of this process, in bytes, shared memory included; 0 if the system does not tell."""
    for line in lines_of(Path("/proc/self/statm")):
        return os.sysconf("SC_PAGE_SIZE") * int(line.split()[1])
    return 0


def nbytes_text(nbytes: float) -> str:
    """Format a number of bytes.

    >>> nbytes_text(800), nbytes_text(48e9), nbytes_text(2.5e17)
    ('800 bytes', '44.7 GiB', '227,374 TiB')
    """
    unit = 0
    while nbytes >= 1024 and unit < 4:
        nbytes, unit = nbytes / 1024, unit + 1
    digits = 0 if unit == 0 or nbytes >= 100 else 1
    return f"{nbytes:,.{digits}f} {('bytes', 'KiB', 'MiB', 'GiB', 'TiB')[unit]}"


def lines_of(path: Path) -> Iterator[str]:
    """Lines of a kernel file; none if it does not exist."""
    try:
        yield from path.read_text().splitlines()
    except OSError:  # not Linux, or another kind of container
        return
