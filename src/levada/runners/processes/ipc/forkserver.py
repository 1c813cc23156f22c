"""The process that workers are forked from, with everything they need already loaded.

Signals sent to a whole process group, such as those of a terminal, systemd or a scheduler, end neither the forkserver nor a
process that it is just forking, which takes a while to know what it is.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import forkserver, resource_tracker, spawn, util
from multiprocessing.connection import wait
from pathlib import Path
from types import FrameType
from typing import Any

from levada.flow.errors import DeploymentError
from levada.runners.processes.ipc.signals import GROUP_SIGNALS, leave_signals_to_main

CONTEXT = multiprocessing.get_context("forkserver")
OURS = "levada "
"""Prefix of the names of levada's processes."""
_preloaded = [__name__, "levada.runners.processes.worker.server"]
"""Modules that the forkserver imports when it starts."""
_FOLDER = "LEVADA_FORKSERVER_FOLDER"
"""Environment variable of the forkserver: the id of the process that started it, and the folder with its socket, which that
process removes unless it is killed. No folder if it belongs to another process."""
_lock = threading.Lock()
"""Several runs may start at once, each in a thread, and they all share the environment."""
_ENDING_S = 1.0
"""Time that a process may take to end once it was killed, or its descriptors were closed, in seconds."""
_forked_by: int | None = None
"""Process id of the forkserver that forked this process, which starts its own children from there, too."""


LONGEST_TMPDIR = 75
"""In characters. The socket of the forkserver is in a folder below it; its full name has at most 107 (unix(7))."""


def check_temporary_directory() -> None:
    """Reject a temporary directory in which no socket can be created.

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


def preload(modules: Iterable[str]) -> None:
    """Let the forkserver import modules of levada before it forks workers; has no effect once it is running.

    Modules of others are left to the workers: what goes wrong in them would end the forkserver.
    """
    library = __name__.partition(".")[0]
    own = [module for module in modules if module.partition(".")[0] == library]
    _preloaded.extend(dict.fromkeys(module for module in own if module not in _preloaded))


def prepare() -> None:
    """Start loading what workers need, while this process continues.

    Raises:
        RuntimeError: this process is itself being started, and is importing the script that calls this.
    """
    spawn._check_not_importing_main()  # type: ignore[attr-defined]  # before writing anything that would not be removed
    CONTEXT.set_forkserver_preload(_preloaded)
    is_main = multiprocessing.parent_process() is None  # otherwise it has the folder of its parent
    with _lock:
        _end_if_stopped()
        os.environ[_FOLDER] = f"{os.getpid()} {util.get_temp_dir() if is_main else ''}"
        try:
            with _signals_held():
                _server().ensure_running()
        finally:
            del os.environ[_FOLDER]


def _server() -> Any:
    """Return multiprocessing's forkserver of this process, running or not."""
    return forkserver._forkserver


def _forget() -> None:
    """Forget the parent's forkserver and folder in a process forked by the user's program; it creates its own."""
    global _lock, _forked_by
    multiprocessing.current_process()._config["tempdir"] = None  # type: ignore[attr-defined]
    server = _server()
    if server._forkserver_alive_fd is not None:
        os.close(server._forkserver_alive_fd)
    server._lock = threading.Lock()
    _lock = threading.Lock()
    vars(server).pop("ensure_running", None)
    knows_no_key = not hasattr(server, "_forkserver_authkey")  # from Python 3.14 on, only who started it may ask it
    if _shield is not None and _shield.is_parent and knows_no_key:  # multiprocessing fills in the descriptor
        _forked_by = os.getppid()
        server.ensure_running = _ensure_running
        return
    _forked_by = None
    server._forkserver_pid = server._forkserver_alive_fd = server._forkserver_address = None


os.register_at_fork(after_in_child=_forget)


def _ensure_running() -> None:
    """Use the forkserver that forked this process, where all is loaded, as long as it is alive; then start another one."""
    global _forked_by
    if os.getppid() == _forked_by:
        return
    server, _forked_by = _server(), None
    del server.ensure_running
    os.close(server._forkserver_alive_fd)
    server._forkserver_alive_fd = server._forkserver_address = None
    server.ensure_running()


def _pid() -> int | None:
    """Return the process id of the forkserver in use, if there is any."""
    own: int | None = _server()._forkserver_pid
    return own if own is not None or os.getppid() != _forked_by else _forked_by


def replace_stopped() -> None:
    """Kill a stopped forkserver, so that no process waits for it. The next `prepare` starts another one."""
    with _lock:
        _end_if_stopped()


def _end_if_stopped() -> None:
    pid = _pid()
    if pid is None:
        return
    with suppress(OSError, IndexError):  # no /proc, or it has ended
        if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "Tt":
            os.kill(pid, signal.SIGKILL)
            if pid == _forked_by:
                _await_another_parent(pid)
            else:
                os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # left to the process that started it


def _await_another_parent(parent: int) -> None:
    """Wait for the end of this process's parent."""
    deadline_s = time.monotonic() + _ENDING_S
    while os.getppid() == parent and time.monotonic() < deadline_s:
        time.sleep(0.005)


def await_end(patience_s: float) -> None:
    """Wait for a forkserver that refuses connections to end: once killed, it still counts as alive for a while."""
    pid = _pid()
    try:
        process = -1 if pid is None else os.pidfd_open(pid)
    except (AttributeError, OSError):  # not Linux, or not permitted; or it has already ended
        return
    if process >= 0:
        wait([process], patience_s)
        os.close(process)


@contextmanager
def _signals_held() -> Iterator[None]:
    """Block signals in processes started meanwhile. The forkserver unblocks them when it can handle them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        resource_tracker.ensure_running()  # it would unblock the signals, and must never receive SIGHUP
        signal.pthread_sigmask(signal.SIG_BLOCK, GROUP_SIGNALS)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Shield:
    """Shields the forkserver from group signals, and its new processes until they know what they are."""

    def __init__(self) -> None:
        self._server = os.getpid()
        self._came: list[int] = []
        for number in GROUP_SIGNALS:
            signal.signal(number, self._note)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, GROUP_SIGNALS)
        util.register_after_fork(self, _Shield._settle)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came.append(number)

    @property
    def is_parent(self) -> bool:
        """Whether the forkserver is the parent of this process."""
        return os.getppid() == self._server

    def _settle(self) -> None:
        """In a new process: leave signals to the main process if it is one of levada's; otherwise restore and raise them."""
        if not self.is_parent:
            return
        if multiprocessing.current_process().name.startswith(OURS):
            leave_signals_to_main()
            return
        for number in GROUP_SIGNALS:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        for came in self._came:
            signal.raise_signal(came)


def _remove(folder: str, parent: int) -> None:
    """Remove the folder, unless the parent is alive: it still uses it, and removes it itself.

    The forkserver ends when descriptors of its parent are closed, which happens shortly before the parent's own end.
    """
    _await_another_parent(parent)
    if os.getppid() != parent:
        shutil.rmtree(folder, ignore_errors=True)


_shield: _Shield | None = None
# this is the forkserver: it ends after all processes it serves
if (_known := os.environ.pop(_FOLDER, None)) is not None:
    os.dup2(2, 1)  # stdout belongs to the main process: output of user code in the children goes to stderr
    _shield = _Shield()
    _parent, _space, _folder = _known.partition(" ")  # the parent may already have been killed
    if _folder:
        atexit.register(_remove, _folder, int(_parent))
