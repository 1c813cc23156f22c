"""A child process: forked from the forkserver, given its arguments in shared memory, and ended within a limited time.

If anything goes wrong while it starts, or with the forkserver at any time, it only ends, as any process may.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing import reduction
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerProcess
from typing import Any

from threadpoolctl import threadpool_limits

from levada.runners.malloc import keep_freed_memory
from levada.runners.processes.ipc.forkserver import CONTEXT, OURS, await_end, prepare, replace_stopped
from levada.runners.processes.ipc.shared_memory import Segment
from levada.runners.processes.ipc.signals import end_with, how_it_ended, leave_signals_to_main

PATIENCE_S = 5.0
"""Time that a process has to close its environments before it is killed, in seconds."""


class Child:
    """One child process."""

    def __init__(
        self,
        target: Callable[..., None],
        ends: Sequence[Any],
        args: Sequence[Any],
        *,
        name: str,
        num_threads: int | None,
        daemon: bool = False,
    ) -> None:
        """Start it.

        Args:
            target: function to call in the process, with `ends` and `args`.
            ends: sockets and connections; the first is hung up when this process ends. None for one that does not exist.
            args: other arguments, of any size.
            name: name of the process.
            num_threads: threads for linear algebra. None: as many as the libraries choose.
            daemon: whether it starts no processes of its own.

        Raises:
            Exception: `args` cannot be pickled.
        """
        self.exitcode: int | None = None
        """Exit code once it has ended, if known."""
        self.pid: int | None = None
        """Process id. None: it could not be started."""
        self._why = ""
        sealed = _Sealed(args)
        start_args = (target, tuple(ends), sealed, num_threads)
        try:
            self._process = _forked(start_args, OURS + name, daemon)
        except (EOFError, ConnectionError, FileNotFoundError) as error:  # it was killed at once, or the forkserver was
            self._why = f"while it was being started ({type(error).__name__})"
        finally:
            sealed.segment.seal()
        self.sentinel: int = self._watch()
        """Descriptor for selectors: readable once the process has ended, even if its children are still running."""

    @property
    def has_started(self) -> bool:
        """Whether there was a process at all."""
        return self.pid is not None

    @property
    def how_it_ended(self) -> str:
        """How it ended, as text."""
        return self._why or how_it_ended(self.exitcode)

    def kill(self, why: str = "") -> None:
        """Kill it at once. `why`: how it ended, as text."""
        self._why = why or self._why
        if self.pid is not None and not self._has_ended(0.0):  # otherwise the id may belong to another process by now
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def end(self, patience_s: float = PATIENCE_S) -> None:
        """Wait until it has ended; kill it if that takes too long."""
        if self.sentinel < 0:
            return
        if self.pid is not None:
            if not self._has_ended(patience_s):
                self.kill()
                self._has_ended(PATIENCE_S)  # the kernel may be at work for it
            replace_stopped()
            self._process.join(PATIENCE_S)  # the forkserver reports how it ended
            self.exitcode = self._process.exitcode
            if self.exitcode is not None:
                self._process.close()
        os.close(self.sentinel)
        self.sentinel = -1

    def _has_ended(self, patience_s: float) -> bool:
        return bool(wait([self.sentinel], patience_s))

    def _watch(self) -> int:
        """Return a descriptor for its end: from the kernel if possible, since the forkserver may end earlier."""
        if self._why:
            ended, writer = os.pipe()
            os.close(writer)
            return ended
        self.pid = self._process.pid
        assert self.pid is not None
        try:
            return os.pidfd_open(self.pid)
        except (AttributeError, OSError):  # not Linux, or not permitted; or the process has already ended
            return os.dup(self._process.sentinel)


def _forked(args: tuple[Any, ...], name: str, daemon: bool) -> ForkServerProcess:
    """Start a process; if the forkserver is about to end, start it from the next one."""
    try:
        return _started(args, name, daemon)
    except (ConnectionRefusedError, FileNotFoundError):  # nothing was sent: it no longer listens
        await_end(PATIENCE_S)
        return _started(args, name, daemon)


def _started(args: tuple[Any, ...], name: str, daemon: bool) -> ForkServerProcess:
    prepare()  # creates the folder for sockets, which the process shares if it exists by then
    process = CONTEXT.Process(target=_live, args=args, name=name, daemon=daemon)
    process.start()
    return process


class _Sealed:
    """Arguments of a new process, in shared memory: a pipe holds only 64 KiB of unread data, and further writes block."""

    def __init__(self, args: Sequence[Any]) -> None:
        data = pickle.dumps(tuple(args), protocol=5)
        self.size = len(data)
        self.segment = Segment.create(self.size)
        self.segment.memory[:] = data

    def __reduce__(self) -> Any:
        descriptor = self.segment.descriptor
        return _Received, (reduction.DupFd(descriptor), self.size)


class _Received:
    """The same arguments in the new process."""

    def __init__(self, descriptor: Any, size: int) -> None:
        self._descriptor: int = descriptor.detach()
        self._size = size

    def args(self) -> tuple[Any, ...]:
        """Return the arguments; call this once."""
        segment = Segment.open(self._descriptor, self._size)
        args: tuple[Any, ...] = pickle.loads(segment.memory)
        return args


def _live(target: Callable[..., None], ends: tuple[Any, ...], sealed: _Received, num_threads: int | None) -> None:
    """Main function of every child: what they have in common, around `target`."""
    leave_signals_to_main()
    threading.Thread(target=end_with, args=(ends[0].fileno(),), daemon=True).start()
    keep_freed_memory()
    code = 0
    try:
        with threadpool_limits(num_threads):
            target(*ends, *sealed.args())
    except Exception:
        if not _leaves_threads():
            raise
        traceback.print_exc()
        code = 1
    if _leaves_threads():  # started by an environment; Python would wait for them
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


def _leaves_threads() -> bool:
    return any(not thread.daemon and thread is not threading.main_thread() for thread in threading.enumerate())
