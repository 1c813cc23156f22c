"""What processes hold and use, read from /proc: memory, descriptors, processor time, and who is alive."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

_OWN = ("Pss_Anon:", "Pss_Shmem:")


def pss_mb(pids: Iterable[int], *, with_files: bool = False) -> float:
    """Megabytes of memory, what is shared divided among those who share it; without files such as libraries, whose share
    depends on who else on the machine has loaded them, unless they are asked for.
    """
    total_kb = 0
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            continue
        total_kb += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:" if with_files else _OWN))
    return total_kb / 1024


def num_descriptors(pid: int) -> int:
    """Open files, sockets and segments."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def marked(mark: str) -> list[int]:
    """Live processes that have `mark` in their environment, as all have that a process with it has started."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if mark.encode() in (entry / "environ").read_bytes() and _state(int(entry.name)) != "Z":
                found.append(int(entry.name))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return found


def segments() -> set[str]:
    """Names in the shared memory of the machine."""
    return set(os.listdir("/dev/shm"))


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def family(pid: int) -> list[int]:
    """A process and all that descend from it."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found


def cpu_s(pids: Iterable[int]) -> float:
    """Processor seconds that processes have used."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")
