"""Start a process, see it end, and see what else the machine does meanwhile."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Final

from benchmarks._proc import cpu_s, family, machine_busy_s, pss_mb

THREAD_VARIABLES: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_DROPPED: Final = {*THREAD_VARIABLES, "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "RAY_ADDRESS"}
_ORPHANS_PATIENCE_S: Final = 5.0
_PR_SET_CHILD_SUBREAPER: Final = 36


class Process:
    """A process that runs. A thread waits for it: `Popen.wait(timeout)` would see its end up to 50 ms late."""

    def __init__(self, command: Sequence[str], variables: Mapping[str, str], out: IO[bytes], err: IO[bytes]) -> None:
        kept = {name: value for name, value in os.environ.items() if name not in _DROPPED}
        environment = {**kept, "CUDA_VISIBLE_DEVICES": "", **variables}
        self.start_s = time.perf_counter()
        self.end_s: float | None = None
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
        )
        self._ended = threading.Event()  # a join that Ctrl-C interrupts would take the thread for dead (CPython 3.11)
        threading.Thread(target=self._wait, daemon=True).start()

    @property
    def pid(self) -> int:
        """Its number."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.returncode

    @property
    def seconds(self) -> float:
        """From its start to its exit, or so far."""
        return (time.perf_counter() if self.end_s is None else self.end_s) - self.start_s

    def ended_within(self, seconds: float) -> bool:
        """Wait at most so long."""
        return self._ended.wait(seconds)

    def kill(self) -> None:
        """End it, with its children, if it still runs."""
        if not self._ended.is_set():
            self._kill_session()
            self._ended.wait()
        self.reap()

    def reap(self) -> None:
        """Wait for the processes that it has left behind, so that their processor time is known; kill them if need be."""
        patience_ends_s = time.perf_counter() + _ORPHANS_PATIENCE_S
        while left := _left_of_session(self._process.pid):
            if not [pid for pid in left if _has_ended(pid)]:
                time.sleep(0.01)
                if time.perf_counter() > patience_ends_s:
                    self._kill_session()

    def _kill_session(self) -> None:
        """Its group, and those that have made groups of their own, as Ray's do."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        for pid in _left_of_session(self._process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _wait(self) -> None:
        self._process.wait()
        self.end_s = time.perf_counter()
        self._ended.set()


def _left_of_session(session: int) -> list[int]:
    """Processes of a session that live, or have ended and wait for this process to hear of it; none where the system does not
    tell.
    """
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            state, parent, _group, of = (entry / "stat").read_text().rpartition(")")[2].split(maxsplit=4)[:4]
            if int(of) == session and (state != "Z" or int(parent) == os.getpid()):
                found.append(int(entry.name))
    return found


def _has_ended(pid: int) -> bool:
    """Whether this process was its parent, and it has ended. It is then gone."""
    with contextlib.suppress(ChildProcessError):
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    return False


def adopt_orphans() -> None:
    """Let this process inherit the processes whose parents end before them, where the system can do that."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


@contextlib.contextmanager
def started(
    command: Sequence[str],
    variables: Mapping[str, str],
    out: IO[bytes],
    err: IO[bytes],
    *,
    num_cores: int | None = None,
) -> Iterator[Process]:
    """Start a process which, like its children, does not outlive the block. It sees no GPU, and `num_cores` of the cores."""
    with _first_cores(num_cores):  # inherited
        process = Process(command, variables, out, err)
    try:
        yield process
    finally:
        process.kill()


@contextlib.contextmanager
def _first_cores(num_cores: int | None) -> Iterator[None]:
    """Keep this thread to the first cores, where the system can do that."""
    if num_cores is None or sys.platform != "linux":
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:num_cores])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class Watched:
    """Memory and processor time of a process and of all that descend from it, as far as they were looked at."""

    def __init__(self) -> None:
        self.memory_mb = 0.0
        """At its largest, with libraries."""
        self._cpu_s: dict[int, float] = {}

    def look(self, pid: int) -> None:
        """Now."""
        pids = family(pid)
        self.memory_mb = max(self.memory_mb, pss_mb(pids, with_files=True))
        for one in pids:
            with contextlib.suppress(OSError):  # it has ended meanwhile
                self._cpu_s[one] = cpu_s([one])

    @property
    def cpu_s(self) -> float:
        """Also of processes that nobody waits for, as those of Ray, which the system forgets."""
        return sum(self._cpu_s.values())


class Load:
    """Processor time from its making on: of the processes that have ended since, and of everything else."""

    def __init__(self) -> None:
        self._busy_s = _busy_s()
        self._self_s = _cpu_s(resource.RUSAGE_SELF)
        self._children_s = _cpu_s(resource.RUSAGE_CHILDREN)

    def children_s(self) -> float:
        """Seconds of the processes that were started here."""
        return _cpu_s(resource.RUSAGE_CHILDREN) - self._children_s

    def foreign_s(self, children_s: float) -> float | None:
        """Seconds that the cores were busy with something else than what was started here and took `children_s`; None where the
        system does not tell.
        """
        busy_s = _busy_s()
        if busy_s is None or self._busy_s is None:
            return None
        ours_s = children_s + _cpu_s(resource.RUSAGE_SELF) - self._self_s
        return max(0.0, busy_s - self._busy_s - ours_s)


def _cpu_s(who: int) -> float:
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime


def _busy_s() -> float | None:
    """Seconds that the cores of this machine were busy; None where the system does not tell."""
    with contextlib.suppress(OSError):
        return machine_busy_s()
    return None
