"""The place of a run's inference: starts the server, connects to it, and restarts it when it has ended."""

from __future__ import annotations

import logging
import select
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Literal, TypeAlias

from levada.runners.processes.inference.messages import Connect, End, Ping, Pong, Rings
from levada.runners.processes.inference.server import InferenceServer
from levada.runners.processes.ipc.child import PATIENCE_S, Child
from levada.runners.processes.ipc.weights_ring import Ring
from levada.runners.processes.ipc.wire import Wire

Inference: TypeAlias = Literal["sampler", "learner", "worker"]

ANSWER_S = 1.0
"""Seconds within which a server must answer when a process that called it hangs."""

log: logging.Logger = logging.getLogger(__name__)


class InferencePlace:
    """A server in a separate process (`worker`), or in a thread of this one, where the learner is (`learner`)."""

    def __init__(
        self, where: Literal["learner", "worker"], rings: Mapping[str, Ring], *, num_threads: int, is_batched: bool
    ) -> None:
        here, there = socket.socketpair()
        self.control: Wire = Wire(here, Pong)
        self._place: Any
        if where == "worker":
            with there:  # a daemon: it forks nothing
                self._place = Child(
                    serve, (there,), (is_batched,), name="inference", num_threads=num_threads, daemon=True
                )
        else:
            server = InferenceServer(there, is_batched=is_batched)
            self._place = threading.Thread(target=server.run, name="levada inference", daemon=True)
            self._place.start()
        descriptors = [ring.share() for ring in rings.values()]
        with suppress(ConnectionError):  # it could not even start: its end will be noticed
            self.control.send(Rings({register: ring.place for register, ring in rings.items()}), descriptors)

    @property
    def pid(self) -> int | None:
        """Process id of the server. None: it runs in this process."""
        return getattr(self._place, "pid", None)

    @property
    def sentinel(self) -> int:
        """Descriptor for selectors: readable once the server has ended."""
        sentinel: int = getattr(self._place, "sentinel", self.control.fileno())
        return sentinel

    def check(self) -> None:
        """Kill a server that does not answer: its clients seem to hang, and would do so again."""
        if isinstance(self._place, threading.Thread):
            return  # a thread of this process, which is awake
        try:
            self.control.send(Ping())
            if select.select([self.control], [], [], ANSWER_S)[0]:
                self.control.receive()
                return
        except (EOFError, ConnectionError):
            return  # it has ended, which is noticed
        log.warning("the inference does not answer, and is killed")
        self._place.kill()

    def connect(self) -> socket.socket:
        """Return a socket to the server, for a worker."""
        worker, server = socket.socketpair()
        with suppress(ConnectionError):  # it is gone: the worker will notice that, too
            self.control.send(Connect(), [server.detach()])
        return worker

    def close(self) -> None:
        """Stop the server."""
        with suppress(ConnectionError):
            self.control.send(End())
        if isinstance(self._place, threading.Thread):
            self._place.join(PATIENCE_S)
        else:
            self._place.end()
        self.control.close()


def serve(control: socket.socket, is_batched: bool) -> None:
    """Main function of an inference process."""
    InferenceServer(control, is_batched=is_batched).run()
