"""The process that workers are forked from, with everything they need loaded once.

Signals that go to a whole group of processes, as those of a terminal, of systemd and of schedulers do, end neither it nor what it
is just forking: a new process knows only after some time what it is.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import select
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import forkserver, resource_tracker, spawn, util
from pathlib import Path
from types import FrameType
from typing import Any

from levada.flow.errors import DeploymentError
from levada.runners.processes.signals import GROUP_SIGNALS, leave_signals_to_main

CONTEXT = multiprocessing.get_context("forkserver")
OURS = "levada "
"""What the names of our processes begin with."""
_PRELOAD = [__name__, "levada.runners.processes.worker", "levada.rl.sampler"]
_FOLDER = "LEVADA_FORKSERVER_FOLDER"
"""Environment variable of the forkserver: who started it, and the folder with its socket, which that one removes unless it is
killed; no folder, if that belongs to somebody else."""
_lock = threading.Lock()
"""Several runs may begin at once, each in a thread: the environment belongs to all of them."""


LONGEST_TMPDIR = 75
"""Characters; a socket of the forkserver lies in a folder of it, and its whole name has at most 107 (unix(7))."""


def check_temporary_directory() -> None:
    """Refuse a temporary directory in which no socket can be made.

    Raises:
        DeploymentError: its name is too long.

    """
    place = tempfile.gettempdir()
    if len(os.fsencode(place)) > LONGEST_TMPDIR:
        msg = (
            f"the temporary directory {place} has {len(os.fsencode(place))} characters, expected at most {LONGEST_TMPDIR}, for "
            "workers are reached by a socket in it; set TMPDIR to a shorter one"
        )
        raise DeploymentError(msg)


def prepare() -> None:
    """Begin to load what workers need, while this process does something else.

    Raises:
        RuntimeError: this process is itself just being started, and imports the script that calls this.

    """
    spawn._check_not_importing_main()  # type: ignore[attr-defined]  # before anything is written that nobody would remove
    CONTEXT.set_forkserver_preload(_PRELOAD)
    is_main = multiprocessing.parent_process() is None  # else it has the folder of its parent
    with _lock:
        _end_if_stopped()
        os.environ[_FOLDER] = f"{os.getpid()} {util.get_temp_dir() if is_main else ''}"
        try:
            with _signals_held():
                forkserver.ensure_running()
        finally:
            del os.environ[_FOLDER]


def _forget() -> None:
    """In a process that the user's program has forked: the forkserver and its folder are the parent's; it makes its own."""
    multiprocessing.current_process()._config["tempdir"] = None  # type: ignore[attr-defined]
    server: Any = forkserver._forkserver
    if server._forkserver_alive_fd is not None:
        os.close(server._forkserver_alive_fd)
    server._forkserver_pid = server._forkserver_alive_fd = server._forkserver_address = None
    server._lock = threading.Lock()
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget)


def replace_stopped() -> None:
    """End a forkserver that was stopped, so that nobody waits for it: the next `prepare` starts another one."""
    with _lock:
        _end_if_stopped()


def _end_if_stopped() -> None:
    pid = getattr(forkserver._forkserver, "_forkserver_pid", None)
    if pid is None:
        return
    with suppress(OSError, IndexError):  # there is no /proc, or it has ended
        if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "Tt":
            os.kill(pid, signal.SIGKILL)
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # left to who started it


def await_end(patience_s: float) -> None:
    """Wait for the end of a forkserver that refuses connections: once killed it takes a while to be gone, and counts as alive."""
    pid = getattr(forkserver._forkserver, "_forkserver_pid", None)
    try:
        process = -1 if pid is None else os.pidfd_open(pid)
    except (AttributeError, OSError):  # no Linux, or one that forbids it; or it has ended already
        return
    if process >= 0:
        ended = select.poll()
        ended.register(process, select.POLLIN)
        ended.poll(1000.0 * patience_s)
        os.close(process)


@contextmanager
def _signals_held() -> Iterator[None]:
    """What is started meanwhile inherits that it hears of no signal; the forkserver undoes it when it can deal with them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        resource_tracker.ensure_running()  # which would undo what is held, and is never to hear of SIGHUP
        signal.pthread_sigmask(signal.SIG_BLOCK, GROUP_SIGNALS)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Shield:
    """Keeps signals of the group from the forkserver, and from what it forks until that knows what it is."""

    def __init__(self) -> None:
        self._server = os.getpid()
        self._came: list[int] = []
        for number in GROUP_SIGNALS:
            signal.signal(number, self._note)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, GROUP_SIGNALS)
        util.register_after_fork(self, _Shield._settle)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came.append(number)

    def _settle(self) -> None:
        """In a new process: one of ours leaves signals to the main one, any other gets what it would have got."""
        if os.getppid() != self._server:
            return
        if multiprocessing.current_process().name.startswith(OURS):
            leave_signals_to_main()
            return
        for number in GROUP_SIGNALS:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        for came in self._came:
            signal.raise_signal(came)


def _remove(folder: str, parent: int) -> None:
    if os.getppid() != parent:  # else that one still uses it, and removes it itself
        shutil.rmtree(folder, ignore_errors=True)


if (_known := os.environ.pop(_FOLDER, None)) is not None:  # this is the forkserver: it ends after all that it serves
    os.dup2(2, 1)  # standard output is the main process's: what user code prints in its children goes to standard error
    _shield = _Shield()
    _parent, _, _folder = _known.partition(" ")  # who may have been killed already
    if _folder:
        atexit.register(_remove, _folder, int(_parent))
