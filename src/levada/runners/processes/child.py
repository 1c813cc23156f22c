"""A process of ours: forked from the forkserver, given what it works on in shared memory, and ended within a limited time.

Whatever happens to it while it starts, or to the forkserver at any time, it only ends, as any process may.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing import reduction
from multiprocessing.context import ForkServerProcess
from typing import Any

from levada.runners.processes.forkserver import CONTEXT, OURS, await_end, prepare, replace_stopped
from levada.runners.processes.memory import Segment
from levada.runners.processes.signals import end_with, how_it_ended, leave_signals_to_main

PATIENCE_S = 5.0
"""How long a process may take to close its environments, before it is killed."""


class Child:
    """One process."""

    def __init__(
        self, target: Callable[..., None], ends: Sequence[Any], args: Sequence[Any], *, name: str, daemon: bool = False
    ) -> None:
        """Start it.

        Args:
            target: is called there with `ends` and `args`.
            ends: sockets and connections, of which the first is hung up when this process ends; None for one that there is not.
            args: what else there is, however large.
            name: of the process.
            daemon: whether it has no processes of its own.

        Raises:
            Exception: `args` cannot be pickled.

        """
        self.exitcode: int | None = None
        """Once it has ended, if that is known."""
        self.pid: int | None = None
        """The number of the process; None: it has none, for it could not be started."""
        self._why = ""
        sealed = _Sealed(args)
        start_args = (target, tuple(ends), sealed)
        try:
            self._process = _forked(start_args, OURS + name, daemon)
        except (EOFError, ConnectionError, FileNotFoundError) as error:  # it was killed at once, or the forkserver was
            self._why = f"while it was being started ({type(error).__name__})"
        finally:
            sealed.segment.seal()
        self.sentinel = self._watch()
        """For selectors: readable once the process has ended, also if something that it has forked goes on."""

    @property
    def has_started(self) -> bool:
        """Whether there was a process at all."""
        return self.pid is not None

    @property
    def how_it_ended(self) -> str:
        """In words, once it has."""
        return self._why or how_it_ended(self.exitcode)

    def kill(self, why: str = "") -> None:
        """End it at once; `why`: how it will have ended, in words."""
        self._why = why or self._why
        if self.pid is not None and not self._has_ended(0.0):  # else the number may be another's by now
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
            self._process.join(PATIENCE_S)  # the forkserver says how it ended
            self.exitcode = self._process.exitcode
            if self.exitcode is not None:
                self._process.close()
        os.close(self.sentinel)
        self.sentinel = -1

    def _has_ended(self, patience_s: float) -> bool:
        ended = select.poll()
        ended.register(self.sentinel, select.POLLIN)
        return bool(ended.poll(1000.0 * patience_s))

    def _watch(self) -> int:
        """A descriptor that says when it has ended: by the kernel, as far as it can, for the forkserver may end before."""
        if self._why:
            ended, writer = os.pipe()
            os.close(writer)
            return ended
        self.pid = self._process.pid
        assert self.pid is not None
        try:
            return os.pidfd_open(self.pid)
        except (AttributeError, OSError):  # no Linux, or one that forbids it; or the process has ended already
            return os.dup(self._process.sentinel)


def _forked(args: tuple[Any, ...], name: str, daemon: bool) -> ForkServerProcess:
    """A new process; where the forkserver is at its end, of the next one."""
    try:
        return _started(args, name, daemon)
    except (ConnectionRefusedError, FileNotFoundError):  # nothing was sent: it hears nobody any more
        await_end(PATIENCE_S)
        return _started(args, name, daemon)


def _started(args: tuple[Any, ...], name: str, daemon: bool) -> ForkServerProcess:
    prepare()  # makes the folder for sockets, which the process shares if it is known when that is made
    process = CONTEXT.Process(target=_live, args=args, name=name, daemon=daemon)
    process.start()
    return process


class _Sealed:
    """Arguments of a new process, in shared memory: a pipe holds 64 KiB that nobody has read yet; who writes more waits."""

    def __init__(self, args: Sequence[Any]) -> None:
        data = pickle.dumps(tuple(args), protocol=5)
        self.size = len(data)
        self.segment = Segment.create(self.size)
        self.segment.memory[:] = data

    def __reduce__(self) -> Any:
        descriptor = self.segment.descriptor
        return _Received, (reduction.DupFd(descriptor), self.size)


class _Received:
    """The same in the new process."""

    def __init__(self, descriptor: Any, size: int) -> None:
        self._descriptor: int = descriptor.detach()
        self._size = size

    def args(self) -> tuple[Any, ...]:
        """The arguments; to be asked for once."""
        segment = Segment.open(self._descriptor, self._size)
        args: tuple[Any, ...] = pickle.loads(segment.memory)
        return args


def _live(target: Callable[..., None], ends: tuple[Any, ...], sealed: _Received) -> None:
    """The life of the process."""
    leave_signals_to_main()
    threading.Thread(target=end_with, args=(ends[0].fileno(),), daemon=True).start()
    code = 0
    try:
        target(*ends, *sealed.args())
    except Exception:
        if not _leaves_threads():
            raise
        traceback.print_exc()
        code = 1
    if _leaves_threads():  # of an environment; Python would wait for them
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


def _leaves_threads() -> bool:
    return any(not thread.daemon and thread is not threading.main_thread() for thread in threading.enumerate())
