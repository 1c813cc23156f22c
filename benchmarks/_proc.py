"""Resources of processes, read from /proc: memory, descriptors, processor time, and live processes."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

_OWN = ("Pss_Anon:", "Pss_Shmem:")


def pss_mb(pids: Iterable[int], *, with_files: bool = False) -> float:
    """Memory of processes in megabytes (PSS: shared memory is divided among the processes that share it). Files such as
    libraries are excluded unless `with_files`, because their PSS depends on other processes of the machine.
    """
    total_kb = 0
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):  # the process has exited
            continue
        total_kb += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:" if with_files else _OWN))
    return total_kb / 1024


def num_descriptors(pid: int) -> int:
    """Number of open files, sockets and segments."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def marked(mark: str) -> list[int]:
    """Live processes that have `mark` in their environment, which child processes inherit."""
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
    """Names in the machine's shared memory."""
    return set(os.listdir("/dev/shm"))


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def family(pid: int) -> list[int]:
    """A process and all its descendants."""
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
    """Processor time of processes in seconds."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def machine_busy_s() -> float:
    """Seconds that the cores of this machine were busy, or stolen from it."""
    _, user, nice, system, _idle, _iowait, irq, softirq, steal, _ = Path("/proc/stat").read_text().split(maxsplit=9)
    return sum(map(int, (user, nice, system, irq, softirq, steal))) / os.sysconf("SC_CLK_TCK")
